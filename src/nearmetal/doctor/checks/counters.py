"""Hardware counters: tried, not guessed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System

GROUP = "Counters"
_CALL = {"x86_64": 298, "aarch64": 241}  # perf_event_open(2)
_SIZE = 64  # PERF_ATTR_SIZE_VER0
_EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 5, 1 << 6
HARDWARE, SOFTWARE = 0, 1
EVENTS = {"cycles": 0, "instructions": 1, "cache misses": 3, "branch misses": 5}


def check(system: System) -> list[Finding]:
    if not system.live:
        return []
    return [pmu({name: try_event(HARDWARE, number) for name, number in EVENTS.items()}),
            software(try_event(SOFTWARE, 1), system)]


def try_event(kind: int, config: int) -> int:
    """Open and close a counter of this process's user-mode code; 0, or the errno."""
    number = _CALL.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    attributes = struct.pack("<IIQQQQQ", kind, _SIZE, config, 0, 0, 0,
                             _EXCLUDE_KERNEL | _EXCLUDE_HV).ljust(_SIZE, b"\0")
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    got = library.syscall(ctypes.c_long(number), attributes, 0, -1, -1, ctypes.c_ulong(0))
    if got < 0:
        return ctypes.get_errno()
    os.close(got)
    return 0


def pmu(tried: dict[str, int]) -> Finding:
    works = [name for name, error in tried.items() if error == 0]
    why = "Cycles, instructions and misses say where a cost comes from; without them only how much."
    if len(works) == len(tried):
        return Finding("Hardware counters", GROUP, "ok", ", ".join(works), why)
    if works:
        lost = [name for name in tried if name not in works]
        return Finding("Hardware counters", GROUP, "warn",
                       f"{', '.join(works)}; not {', '.join(lost)}", why,
                       "Those that work are recorded.")
    errors = {errno.errorcode.get(error, str(error)) for error in tried.values()}
    denied = errors & {"EACCES", "EPERM"}
    return Finding("Hardware counters", GROUP, "warn",
                   "denied" if denied else f"none ({', '.join(sorted(errors))})", why,
                   "nearmetal tune (lowers perf_event_paranoid), or run as root" if denied else
                   "The hypervisor hides them; ask for a virtual PMU, or use bare metal.")


def software(error: int, system: System) -> Finding:
    level = system.number("/proc/sys/kernel/perf_event_paranoid")
    shown = f"works (perf_event_paranoid {level})" if error == 0 else errno.errorcode.get(
        error, str(error))
    return Finding("perf_event_open", GROUP, "ok" if error == 0 else "warn", shown,
                   "Page faults and context switches are counted through it.",
                   "" if error == 0 else "nearmetal tune (lowers perf_event_paranoid)")
