"""Results on disk: one SQLite file, append-only, one transaction a run.

Written so that a kill at any moment leaves whole runs: write-ahead log, full synchronisation, and
a run's raw output, its measurements and its state in the same transaction.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from nearmetal.errors import NearmetalError
from nearmetal.workloads.base import Measurement, Metric

VERSION = 1
FILE = "results.sqlite"

_SCHEMA = """
CREATE TABLE study (name TEXT, title TEXT, text TEXT, file TEXT, seed INTEGER, started TEXT,
  version TEXT, settings TEXT, facts TEXT);
CREATE TABLE environment (label TEXT PRIMARY KEY, path TEXT, role TEXT, matched TEXT,
  substrate TEXT, cpus INTEGER, memory_mib INTEGER, state TEXT, reason TEXT, remedy TEXT,
  boot_s REAL, facts TEXT);
CREATE TABLE metric (workload TEXT, name TEXT, unit TEXT, better TEXT, kind TEXT, summary TEXT,
  axis TEXT, axis_scale TEXT, scale TEXT, headline INTEGER, PRIMARY KEY (workload, name));
CREATE TABLE run (id INTEGER PRIMARY KEY, block INTEGER, position INTEGER, label TEXT,
  workload TEXT, params TEXT, status TEXT, reason TEXT, started TEXT, exit_status INTEGER,
  host_ns INTEGER, machine_ns INTEGER, workload_ns INTEGER, clock_ratio REAL, flags TEXT,
  info TEXT, observed TEXT, argv TEXT, stdout BLOB, stderr BLOB, console BLOB,
  UNIQUE (block, label, workload, params));
CREATE TABLE measurement (run INTEGER REFERENCES run(id), metric TEXT, unit TEXT, better TEXT,
  point TEXT, value REAL);
CREATE INDEX measurement_run ON measurement(run);
CREATE TABLE session (id INTEGER PRIMARY KEY, started TEXT, wall_s REAL, workload_s REAL,
  ended TEXT);
"""

_FRAME = """
SELECT run.id AS run, (SELECT name FROM study) AS study, run.block, run.position,
  environment.path AS environment, environment.role, run.label, environment.matched,
  environment.substrate, run.workload, run.params, measurement.metric, measurement.unit,
  measurement.better, metric.kind, measurement.point, measurement.value, run.flags, run.started,
  run.host_ns, run.machine_ns, run.workload_ns
FROM measurement JOIN run ON run.id = measurement.run
  JOIN environment ON environment.label = run.label
  JOIN metric ON metric.workload = run.workload AND metric.name = measurement.metric
ORDER BY run.id, measurement.rowid
"""


class StoreError(NearmetalError):
    """A store that cannot be opened, read or written."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def canonical(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no blanks: the form in which points and params are compared."""
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))


@dataclass
class RunRecord:
    """A run as it is kept; times in ns; ``status`` is ok, failed, timeout or refused."""

    block: int
    position: int
    label: str
    workload: str
    params: str
    status: str
    started: str
    reason: str = ""
    exit_status: int | None = None
    host_ns: int | None = None
    machine_ns: int | None = None
    workload_ns: int | None = None
    clock_ratio: float | None = None
    flags: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    stdout: bytes = b""
    stderr: bytes = b""
    console: bytes = b""

    def row(self) -> dict[str, Any]:
        row = dict(self.__dict__)
        row["flags"] = ",".join(self.flags)
        row["argv"] = json.dumps(self.argv)
        row["info"], row["observed"] = json.dumps(dict(self.info)), json.dumps(dict(self.observed))
        return row


def locate(path: Path | str) -> Path:
    """The store's file for a file or a results folder. Raises StoreError when there is none."""
    found = Path(path)
    if found.is_dir():
        found = found / FILE
    if not found.is_file():
        raise StoreError(f"There is no store at {str(path)!r}.",
                         "Give a results folder that `nearmetal run` wrote, or its results.sqlite.")
    return found


class Store:
    """A store. ``Store.create(folder)`` makes one, ``Store(path)`` opens one (read only unless
    ``write``; writing takes a lock, so that two labs cannot write the same store)."""

    def __init__(self, path: Path | str, *, write: bool = False):
        self.path = locate(path)
        self._lock = None
        self._turn = threading.RLock()
        if write:
            self._take_lock()
        uri = f"{self.path.resolve().as_uri()}?mode={'rw' if write else 'ro'}"
        try:
            self._db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None,
                                       check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if write:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise StoreError(f"Cannot open the store {str(path)!r}: {error}.",
                             "It may not be a nearmetal store, or the disk is damaged.") from None
        if version != VERSION:
            raise StoreError(f"The store {str(path)!r} has format {version}, this is {VERSION}.",
                             "Use the nearmetal version that wrote it.")

    def _take_lock(self) -> None:
        self._lock = open(self.path.with_suffix(".lock"), "w")  # noqa: SIM115 (held while open)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"Another lab is writing {str(self.path)!r}.",
                             "Wait for it, or give another --output.") from None

    @classmethod
    def create(cls, folder: Path, *, name: str, title: str, text: str, file: str, seed: int,
               settings: Mapping[str, Any], facts: Mapping[str, Any], version: str) -> Store:
        """Make a store in ``folder`` (made if missing). Raises StoreError if one is there."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        if path.exists():
            raise StoreError(f"{str(folder)!r} holds results already.",
                             "Use `nearmetal resume`, another --output, or --again "
                             "to set it aside.")
        partial = folder / (FILE + ".partial")
        partial.unlink(missing_ok=True)
        db = sqlite3.connect(partial)
        with db:
            db.executescript(_SCHEMA + f"PRAGMA user_version={VERSION};")
            db.execute("INSERT INTO study VALUES (?,?,?,?,?,?,?,?,?)",
                       (name, title, text, file, seed, now(), version,
                        json.dumps(dict(settings)), json.dumps(dict(facts))))
        db.close()
        partial.rename(path)
        return cls(path, write=True)

    @contextmanager
    def _transaction(self):
        self._turn.acquire()  # machines boot in threads, and one connection has one transaction
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            raise StoreError(f"Cannot write the store {str(self.path)!r}: {error}.",
                             "Free some disk space, then `nearmetal resume`: "
                             "all finished runs are kept.") from None
        finally:
            self._turn.release()

    def close(self) -> None:
        self._db.close()
        if self._lock:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def add_metrics(self, workload: str, metrics: Iterable[Metric]) -> None:
        with self._transaction() as db:
            for one in metrics:
                db.execute("INSERT OR IGNORE INTO metric VALUES (?,?,?,?,?,?,?,?,?,?)",
                           (workload, one.name, one.unit, one.better, one.kind, one.summary,
                            one.axis, one.axis_scale, one.scale, int(one.headline)))

    def put_environment(self, **columns: Any) -> None:
        """Add or update an environment by its label."""
        columns["facts"] = json.dumps(columns.get("facts") or {})
        names = ", ".join(columns)
        marks = ", ".join(f":{key}" for key in columns)
        updates = ", ".join(f"{key}=excluded.{key}" for key in columns if key != "label")
        with self._transaction() as db:
            db.execute(f"INSERT INTO environment ({names}) VALUES ({marks}) "
                       f"ON CONFLICT(label) DO UPDATE SET {updates}", columns)

    def add_run(self, record: RunRecord,
                read: Callable[[RunRecord], Iterable[Measurement]] | None = None) -> int:
        """Keep a run, whole or not at all; returns its number.

        The raw output is stored before ``read`` looks at it; ``read`` settles the record's status
        and gives the measurements, which join the same transaction.
        """
        with self._transaction() as db:
            row = record.row()
            marks = ", ".join(f":{key}" for key in row)
            cursor = db.execute(f"INSERT INTO run ({', '.join(row)}) VALUES ({marks})", row)
            run = int(cursor.lastrowid or 0)
            if read is not None:
                measurements = list(read(record))
                row = record.row()
                db.execute(f"UPDATE run SET {', '.join(f'{key}=:{key}' for key in row)} "
                           "WHERE id=:id", {**row, "id": run})
                db.executemany(
                    "INSERT INTO measurement VALUES (?,?,?,?,?,?)",
                    [(run, one.metric, one.unit, one.better, canonical(one.point), one.value)
                     for one in measurements])
        return run

    def begin_session(self) -> int:
        with self._transaction() as db:
            return int(db.execute("INSERT INTO session (started, wall_s, workload_s) "
                                  "VALUES (?,0,0)", (now(),)).lastrowid or 0)

    def tick_session(self, session: int, wall_s: float, workload_s: float) -> None:
        """Keep how long the lab has been at it and how much of that workloads ran, in s."""
        with self._transaction() as db:
            db.execute("UPDATE session SET wall_s=?, workload_s=?, ended=? WHERE id=?",
                       (wall_s, workload_s, now(), session))

    # reading

    def done(self) -> set[tuple[int, str, str, str]]:
        """Keys (block, label, workload, params) of the runs that are kept."""
        rows = self._db.execute("SELECT block, label, workload, params FROM run")
        return {tuple(row) for row in rows}

    def study(self) -> dict[str, Any]:
        row = dict(self._db.execute("SELECT * FROM study").fetchone())
        row["settings"], row["facts"] = json.loads(row["settings"]), json.loads(row["facts"])
        return row

    def facts(self) -> dict[str, Any]:
        """Facts of the machine that the lab ran on."""
        return self.study()["facts"]

    def environments(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in self._db.execute("SELECT * FROM environment ORDER BY rowid")]
        return [{**row, "facts": json.loads(row["facts"] or "{}")} for row in rows]

    def metrics(self) -> dict[tuple[str, str], Metric]:
        """What is known of each (workload, metric)."""
        return {(row["workload"], row["name"]): Metric(
            row["name"], row["unit"], row["better"], row["kind"], row["summary"], row["axis"],
            row["axis_scale"], row["scale"], bool(row["headline"]))
            for row in self._db.execute("SELECT * FROM metric")}

    def runs(self) -> pd.DataFrame:
        """All runs, failed ones too; raw output decoded as text."""
        frame = pd.read_sql_query("SELECT * FROM run ORDER BY id", self._db)
        for name in ("stdout", "stderr", "console"):
            frame[name] = [bytes(one or b"").decode("utf-8", "replace") for one in frame[name]]
        return frame

    def frame(self) -> pd.DataFrame:
        """The measurements, one row each (see :func:`load`)."""
        return pd.read_sql_query(_FRAME, self._db)

    def overhead_share(self) -> float | None:
        """Share of the lab's wall time spent outside workloads; None before the first run."""
        wall, work = self._db.execute("SELECT sum(wall_s), sum(workload_s) FROM session").fetchone()
        return None if not wall else max(0.0, 1.0 - (work or 0.0) / wall)

    def sessions(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.execute("SELECT * FROM session ORDER BY id")]


def load(path: Path | str) -> pd.DataFrame:
    """The measurements of a store, one row each.

    Columns: run, study, block, position, environment, role, label, matched, substrate, workload,
    params, metric, unit, better, kind, point, value, flags, started, host_ns, machine_ns,
    workload_ns. Values are in ``unit``; times ending in ``_ns`` in nanoseconds; ``params`` and
    ``point`` are canonical JSON. Failed runs have no measurement and are not here.
    """
    with Store(path) as store:
        return store.frame()
