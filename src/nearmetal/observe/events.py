"""Hardware events of the whole host beside a run, by perf_event_open(2).

One counter an event and processor, in user and kernel mode, guests included. When the processor
has fewer counters than events, the kernel lets them take turns: a count is scaled by the time it
was enabled over the time it really counted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

from nearmetal.observe.base import Missing, Observer, register_observer

ONLINE = Path("/sys/devices/system/cpu/online")
_SYS_PERF_EVENT_OPEN = 298  # x86-64
_TYPE_HARDWARE = 0
_CONFIGS = {"cycles": 0, "instructions": 1, "cache_references": 2, "cache_misses": 3,
            "branches": 4, "branch_misses": 5}
_READ_TIMES = 1 | 2  # total time enabled, total time running
_CLOEXEC = 8

_REASONS = {
    errno.ENOENT: "this machine offers no performance counters (PMU)",
    errno.EOPNOTSUPP: "this machine offers no performance counters (PMU)",
    errno.EACCES: "not allowed; see /proc/sys/kernel/perf_event_paranoid",
    errno.EPERM: "not allowed; see /proc/sys/kernel/perf_event_paranoid",
    errno.ENOSYS: "the kernel has no perf_event_open",
    errno.ENODEV: "the processor does not count this",
}


class PerfAttr(ctypes.Structure):
    """struct perf_event_attr, its first version (64 bytes)."""

    _fields_ = [("type", ctypes.c_uint32), ("size", ctypes.c_uint32), ("config", ctypes.c_uint64),
                ("sample_period", ctypes.c_uint64), ("sample_type", ctypes.c_uint64),
                ("read_format", ctypes.c_uint64), ("flags", ctypes.c_uint64),
                ("wakeup_events", ctypes.c_uint32), ("bp_type", ctypes.c_uint32),
                ("config1", ctypes.c_uint64)]


def open_counter(config: int, cpu: int) -> int:
    """A file descriptor that counts a hardware event on a processor. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    attr = PerfAttr(type=_TYPE_HARDWARE, size=ctypes.sizeof(PerfAttr), config=config,
                    read_format=_READ_TIMES)
    # Each argument as a long: a C variadic function takes no hint of the types.
    number = libc.syscall(ctypes.c_long(_SYS_PERF_EVENT_OPEN), ctypes.byref(attr),
                          ctypes.c_long(-1), ctypes.c_long(cpu), ctypes.c_long(-1),
                          ctypes.c_ulong(_CLOEXEC))
    if number < 0:
        code = ctypes.get_errno()
        raise OSError(code, _REASONS.get(code, os.strerror(code)))
    return number


def online(text: str) -> list[int]:
    """The processors of a list as in /sys/devices/system/cpu/online: ``0-3,6``."""
    found = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def scaled(count: int, enabled: int, running: int) -> float | None:
    """The count as if it had counted all the time; None if it never did."""
    return count * enabled / running if running > 0 else None


@register_observer
class Events(Observer):
    name = "events"
    figures = {
        "cycles": ("cycles", "processor cycles"),
        "instructions": ("instructions", "instructions retired"),
        "cache_references": ("references", "references to the last cache"),
        "cache_misses": ("misses", "misses of the last cache"),
        "branches": ("branches", "branches retired"),
        "branch_misses": ("branches", "branches mispredicted"),
    }

    def __init__(self, opener=open_counter):
        super().__init__()
        self._open = opener
        self._files: dict[str, list[int]] = {}

    def start(self) -> None:
        processors = online(ONLINE.read_text())
        for name, config in _CONFIGS.items():
            files: list[int] = []
            try:
                for cpu in processors:
                    files.append(self._open(config, cpu))
            except OSError as error:
                for number in files:
                    os.close(number)
                self.missing[name] = error.strerror or str(error)
                continue
            self._files[name] = files
        self._before = {name: self._read(name) for name in self._files}
        if not self._files:
            raise Missing(next(iter(self.missing.values())))

    def _read(self, name: str) -> list[tuple[int, int, int]]:
        return [struct.unpack("QQQ", os.read(number, 24)) for number in self._files[name]]

    def stop(self) -> dict[str, float]:
        result = {}
        try:
            for name in self._files:
                deltas = [tuple(b - a for a, b in zip(before, after, strict=True))
                          for before, after in zip(self._before[name], self._read(name),
                                                   strict=True)]
                counts = [scaled(*delta) for delta in deltas]
                if any(count is None for count in counts):
                    self.missing[name] = "the counter never ran, others had its place"
                else:
                    result[name] = float(sum(counts))
        finally:
            self.close()
        return result

    def close(self) -> None:
        for files in self._files.values():
            while files:
                os.close(files.pop())
