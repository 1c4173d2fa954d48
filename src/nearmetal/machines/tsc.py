"""The frequency of the host's time stamp counter, measured.

QEMU's TCG gives guests the host's counter, but a guest that calibrates it against emulated timers
on a busy host gets it wrong (seen: eight times too fast), or not at all (microvm has no reference
timer). So the guest is told the figure.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import time
from pathlib import Path

_CODE = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx,32; or rax,rdx; ret
_SPAN_S = 0.1
_FLAGS = {"constant_tsc", "nonstop_tsc"}


@functools.lru_cache(maxsize=1)
def host_tsc_khz() -> int | None:
    """kHz by the host's monotonic clock, to a few parts in a million; takes 0.1 s once.

    None where the counter does not tick at a constant rate or cannot be read.
    """
    if platform.machine() != "x86_64" or not _FLAGS <= _cpu_flags():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE,
                         prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None  # a host that allows no page to be both written and executed
    page.write(_CODE)
    held = ctypes.c_char.from_buffer(page)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(held))
    first = _moment(read)
    time.sleep(_SPAN_S)
    last = _moment(read)
    return round((last[1] - first[1]) / (last[0] - first[0]) * 1e6)


def _moment(read) -> tuple[int, int]:
    """(clock in ns, counter) of one moment: of several tries the one least disturbed."""
    tries = []
    for _ in range(15):
        before = time.monotonic_ns()
        ticks = read()
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) // 2, ticks))
    return min(tries)[1:]


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split())
    return set()
