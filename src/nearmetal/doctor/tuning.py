"""Quieten a machine for measurements, and undo it.

Each operation is a few control files and the value wanted. What they held is saved, on disk,
before anything is written; :func:`undo` puts it back.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.doctor.system import System
from nearmetal.errors import NearmetalError

FORMAT = 1


class TuningError(NearmetalError):
    """Something that cannot be tuned or undone."""


def state_file() -> Path:
    """Where previous values are kept: ``$NEARMETAL_STATE`` or /var/lib/nearmetal/tuning.json."""
    return Path(os.environ.get("NEARMETAL_STATE") or "/var/lib/nearmetal/tuning.json")


@dataclass(frozen=True)
class Operation:
    """One thing that can be tuned.

    ``paths`` are control files, a ``*`` standing for any name; ``wanted`` the value to write;
    ``why`` what it does for a measurement. ``keep`` tells of a present value whether it is as
    good as the wanted one; ``offered`` is a file beside the control that lists what it takes.
    """

    name: str
    paths: tuple[str, ...]
    wanted: str
    why: str
    keep: Callable[[str], bool] | None = None
    offered: str | None = None

    def files(self, system: System) -> list[str]:
        """The control files there are, as absolute names below the system's root."""
        found = []
        for pattern in self.paths:
            for path in sorted(system.root.glob(pattern.lstrip("/"))):
                if path.is_file() and self._takes(path):
                    found.append("/" + str(path.relative_to(system.root)))
        return found

    def _takes(self, path: Path) -> bool:
        if self.offered is None:
            return True
        try:
            return self.wanted in (path.parent / self.offered).read_text().split()
        except OSError:
            return False

    def available(self, system: System) -> bool:
        return bool(self.files(system))

    def show(self, system: System) -> dict[str, str]:
        """Control file -> present value, of those that can be read."""
        values = {name: system.chosen(name) for name in self.files(system)}
        return {name: value for name, value in values.items() if value is not None}

    def due(self, system: System) -> dict[str, str]:
        """Those of :meth:`show` that would be written."""
        return {name: value for name, value in self.show(system).items()
                if value != self.wanted and not (self.keep and self.keep(value))}


def _at_most(limit: int) -> Callable[[str], bool]:
    def keep(value: str) -> bool:
        with contextlib.suppress(ValueError):
            return int(value) <= limit
        return False

    return keep


OPERATIONS: tuple[Operation, ...] = (
    Operation("transparent huge pages", ("/sys/kernel/mm/transparent_hugepage/enabled",),
              "madvise", "pages are not merged behind a program's back",
              keep=lambda value: value == "never"),
    Operation("page merging (KSM)", ("/sys/kernel/mm/ksm/run",), "0",
              "no scanning of memory", keep=lambda value: value == "2"),
    Operation("address randomisation", ("/proc/sys/kernel/randomize_va_space",), "0",
              "less spread between runs"),
    Operation("swappiness", ("/proc/sys/vm/swappiness",), "1",
              "memory in use is not swapped out", keep=_at_most(1)),
    Operation("NUMA balancing", ("/proc/sys/kernel/numa_balancing",), "0",
              "pages are not moved between nodes"),
    Operation("NMI watchdog", ("/proc/sys/kernel/nmi_watchdog",), "0",
              "one more hardware counter, no interrupts from it"),
    Operation("perf_event_paranoid", ("/proc/sys/kernel/perf_event_paranoid",), "1",
              "counters may be used", keep=_at_most(1)),
    Operation("frequency governor", ("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",),
              "performance", "the processor keeps its speed",
              offered="scaling_available_governors"),
    Operation("turbo (intel_pstate)", ("/sys/devices/system/cpu/intel_pstate/no_turbo",), "1",
              "speed does not depend on heat and neighbours"),
    Operation("turbo (cpufreq)", ("/sys/devices/system/cpu/cpufreq/boost",), "0",
              "speed does not depend on heat and neighbours"),
)


def _saved(path: Path) -> dict[str, dict[str, str]]:
    """Control file -> {"was", "set"}; {} where nothing is saved. Raises TuningError."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise TuningError(f"{path} cannot be read: {error.strerror}.", "Run as root.") from None
    try:
        kept = json.loads(text)
        if kept["format"] != FORMAT:
            raise ValueError
        return {str(name): {"was": str(one["was"]), "set": str(one["set"])}
                for name, one in kept["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TuningError(f"{path} is not a record of tuning.",
                          "Look at it, set the values back by hand, and remove it.") from None


def _save(path: Path, files: Mapping[str, Mapping[str, str]]) -> None:
    """Whole or not at all; gone when there is nothing to undo. Raises TuningError."""
    try:
        if not files:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(path.name + ".new")
        with aside.open("w") as file:
            json.dump({"format": FORMAT, "files": files}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise TuningError(f"Present values cannot be saved in {path}: {error.strerror}.",
                          "Nothing was changed. Run as root, or set NEARMETAL_STATE.") from None


def tune(show_only: bool = False, *, system: System | None = None, state: Path | None = None,
         operations: tuple[Operation, ...] = OPERATIONS) -> list[str]:
    """Write what is due; a line for each operation. ``show_only`` writes nothing.

    What was there before the first tune is what :func:`undo` restores. Raises TuningError when
    the present values cannot be saved: then nothing is written.
    """
    system, state = system or System(), state or state_file()
    saved = {} if show_only else _saved(state)
    lines = []
    for operation in operations:
        if not operation.available(system):
            lines.append(f"{operation.name}: no control here")
            continue
        due = operation.due(system)
        if not due:
            now = ", ".join(sorted(set(operation.show(system).values())))
            lines.append(f"{operation.name}: {now}, left as it is")
        elif show_only:
            now = ", ".join(sorted(set(due.values())))
            lines.append(f"{operation.name}: {now} -> {operation.wanted} ({operation.why})")
        else:
            lines += _write_all(operation, due, system, state, saved)
    return lines


def _write_all(operation: Operation, due: Mapping[str, str], system: System, state: Path,
               saved: dict[str, dict[str, str]]) -> Iterator[str]:
    before = dict(saved)
    for name, value in due.items():
        saved[name] = {"was": saved.get(name, {}).get("was", value), "set": operation.wanted}
    _save(state, saved)
    refused: dict[str, str] = {}
    for name in due:
        error = _write(system, name, operation.wanted)
        if error:
            refused[name] = error
            saved.pop(name)
            saved.update({name: before[name]} if name in before else {})
    if refused:
        _save(state, saved)
        yield f"{operation.name}: refused ({', '.join(sorted(set(refused.values())))})"
    if len(refused) < len(due):
        now = ", ".join(sorted({value for name, value in due.items() if name not in refused}))
        yield f"{operation.name}: {now} -> {operation.wanted} ({operation.why})"


def _write(system: System, name: str, value: str) -> str | None:
    """None, or why it was not taken."""
    try:
        system.path(name).write_text(value)
    except OSError as error:
        return error.strerror or str(error)
    return None


def undo(*, system: System | None = None, state: Path | None = None) -> list[str]:
    """Put back what earlier tunes changed; a line for each control file.

    A value that somebody has changed since is left alone and said. What cannot be written stays
    on record for another try. Raises TuningError when the record cannot be read.
    """
    system, state = system or System(), state or state_file()
    saved = _saved(state)
    if not saved:
        return ["Nothing to undo."]
    lines, kept = [], {}
    for name, one in saved.items():
        now = system.chosen(name)
        if now is None:
            lines.append(f"{name}: it is gone")
        elif now == one["was"]:
            lines.append(f"{name}: {now}, as before")
        elif now != one["set"]:
            lines.append(f"{name}: changed to {now} by somebody since, left alone")
        elif error := _write(system, name, one["was"]):
            kept[name] = one
            lines.append(f"{name}: stays {now}, {one['was']} was refused ({error})")
        else:
            lines.append(f"{name}: {now} -> {one['was']}")
    _save(state, kept)
    return lines


__all__ = ["OPERATIONS", "Operation", "TuningError", "state_file", "tune", "undo"]
