import os
import signal
import sqlite3
import subprocess
import sys

import pytest

import nearmetal
from nearmetal.store import RunRecord, Store, StoreError, now
from nearmetal.workloads.base import Measurement, Metric


def create(folder, **more):
    store = Store.create(folder, name="t", title="T", text="x", file="t.toml", seed=1,
                         settings={"statistics": {}}, facts={"cpu": "a"}, version="0", **more)
    store.put_environment(label="a", path="a", role="baseline", matched="a", substrate="host CPU")
    store.add_metrics("spin", [Metric("speed", "op/s", "higher", "rate")])
    return store


def record(block=0, **more):
    return RunRecord(block, 0, "a", "spin", "{}", "ok", now(), stdout=b"raw", **more)


def test_a_run_and_its_measurements_come_back(tmp_path):
    with create(tmp_path) as store:
        store.add_run(record(), lambda kept: [Measurement("speed", 2.5, "op/s", "higher",
                                                          {"n": 1, "a": 2})])
    frame = nearmetal.load(tmp_path)
    assert list(frame.columns) == [
        "run", "study", "block", "position", "environment", "role", "label", "matched",
        "substrate", "workload", "params", "metric", "unit", "better", "kind", "point", "value",
        "flags", "started", "host_ns", "machine_ns", "workload_ns"]
    row = frame.iloc[0]
    assert (row.value, row.point, row.kind, row.label) == (2.5, '{"a":2,"n":1}', "rate", "a")


def test_raw_output_is_stored_before_it_is_read(tmp_path):
    seen = []

    def read(kept):
        # the same connection sees the row that is not yet committed
        seen.extend(store._db.execute("SELECT stdout FROM run").fetchall()[0])
        kept.status, kept.reason = "failed", "wrong answer"
        return []

    with create(tmp_path) as store:
        store.add_run(record(), read)
        assert seen == [b"raw"]
        row = store.runs().iloc[0]
        assert (row.status, row.reason, row.stdout) == ("failed", "wrong answer", "raw")
    assert nearmetal.load(tmp_path).empty


def test_a_reader_that_breaks_leaves_nothing_half(tmp_path):
    with create(tmp_path) as store:
        with pytest.raises(ZeroDivisionError):
            store.add_run(record(), lambda kept: 1 / 0)
        assert store.runs().empty
        store.add_run(record())
        assert len(store.runs()) == 1


def test_a_run_is_kept_once(tmp_path):
    with create(tmp_path) as store:
        store.add_run(record())
        with pytest.raises(StoreError):
            store.add_run(record())
        assert store.done() == {(0, "a", "spin", "{}")}


def test_two_writers_are_refused(tmp_path):
    with create(tmp_path):
        with pytest.raises(StoreError, match="Another lab"):
            Store(tmp_path, write=True)
        assert Store(tmp_path).runs().empty  # readers may


def test_results_are_never_overwritten(tmp_path):
    create(tmp_path).close()
    with pytest.raises(StoreError, match="holds results already"):
        create(tmp_path)


def test_missing_and_strange_stores(tmp_path):
    with pytest.raises(StoreError, match="no store"):
        Store(tmp_path)
    (tmp_path / "results.sqlite").write_bytes(b"not a database at all, but long enough" * 50)
    with pytest.raises(StoreError, match="Cannot open"):
        Store(tmp_path)
    (tmp_path / "results.sqlite").unlink()
    sqlite3.connect(tmp_path / "results.sqlite").execute("CREATE TABLE x (y)")
    with pytest.raises(StoreError, match="format 0"):
        Store(tmp_path)


def test_full_disk_is_one_clear_error_and_keeps_what_was_there(tmp_path):
    with create(tmp_path) as store:
        store.add_run(record())
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count={pages}")
        big = record(1)
        big.stdout = os.urandom(1 << 20)
        with pytest.raises(StoreError, match="disk is full.*resume"):
            store.add_run(big)
        assert len(store.runs()) == 1


def test_overhead_share(tmp_path):
    with create(tmp_path) as store:
        assert store.overhead_share() is None
        session = store.begin_session()
        store.tick_session(session, 10.0, 7.5)
        assert store.overhead_share() == pytest.approx(0.25)




def test_kill_while_writing_leaves_whole_runs(tmp_path):
    """A writer killed at any moment: every run in the store has its measurements."""
    create(tmp_path).close()
    code = (
        "import sys; from pathlib import Path\n"
        "from nearmetal.store import *\n"
        "from nearmetal.workloads.base import Measurement\n"
        "store = Store(Path(sys.argv[1]), write=True)\n"
        "start = len(store.runs()); print('go', flush=True)\n"
        "for block in range(start, start + 100000):\n"
        "    r = RunRecord(block, 0, 'a', 'spin', '{}', 'ok', now(), stdout=b'x' * 5000)\n"
        "    store.add_run(r, lambda kept: [Measurement('speed', 1.0, 'op/s', 'higher')] * 20)\n")
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)],
                                 stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"go\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        child.stdout.close()
    with Store(tmp_path) as store:
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        counts = nearmetal.load(tmp_path).groupby("run").size()
        assert len(counts) == len(store.runs()) > 3
        assert set(counts) == {20}
