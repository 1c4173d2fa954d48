"""The clock: its source and what reading it costs."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System

GROUP = "Clock"
FOLDER = "/sys/devices/system/clocksource/clocksource0"
FAST = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})
DEAR_NS = 200.0  # dearer than this, reading it was a system call

# push rbx,r12,r13; rbx=count, r12=function, r13=timespec; 1: edi=CLOCK_MONOTONIC, rsi=r13,
# call r12, dec rbx, jnz 1b; pop; ret
_LOOP = bytes.fromhex("53 4154 4155 4889f3 4989fc 4989d5"
                      "bf01000000 4c89ee 41ffd4 48ffcb 75f0 415d 415c 5b c3")


def check(system: System) -> list[Finding]:
    found = [source(system)]
    if system.live:
        found.append(cost(clock_cost_ns()))
    return found


def source(system: System) -> Finding:
    now = system.read(f"{FOLDER}/current_clocksource")
    others = [name for name in (system.read(f"{FOLDER}/available_clocksource") or "").split()
              if name != now]
    if now is None:
        return Finding("Source", GROUP, "info", "not shown by this kernel")
    value = now + (f" (also available: {', '.join(others)})" if others else "")
    if now in FAST:
        return Finding("Source", GROUP, "ok", value, "It is read without a system call.")
    better = next((name for name in others if name in FAST), None)
    return Finding("Source", GROUP, "warn", value,
                   "Each reading is a system call or a trap of microseconds, which is added to "
                   "what is timed.",
                   f"echo {better} > {FOLDER}/current_clocksource" if better else
                   "Time longer pieces; a kernel option such as clocksource=tsc may help.")


def cost(nanoseconds: float) -> Finding:
    dear = nanoseconds > DEAR_NS
    return Finding("Cost of a reading", GROUP, "warn" if dear else "ok",
                   f"{nanoseconds:.0f} ns (clock_gettime, CLOCK_MONOTONIC)",
                   "It is the least difference that a single timing can show.",
                   "Time many operations together." if dear else "")


def clock_cost_ns(rounds: int = 15, count: int = 2000) -> float:
    """The cost of clock_gettime(CLOCK_MONOTONIC), in ns: the least of ``rounds`` means.

    Called from a loop of machine code on x86-64; elsewhere from Python, whose own cost is in it.
    """
    if platform.machine() != "x86_64":
        return min(_timed(lambda: [time.monotonic_ns() for _ in range(count)])
                   for _ in range(rounds)) / count
    page = mmap.mmap(-1, mmap.PAGESIZE,
                     prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_LOOP)
    hold = ctypes.c_char.from_buffer(page)
    function = ctypes.CDLL(None, use_errno=False).clock_gettime
    address = ctypes.cast(function, ctypes.c_void_p)
    room = (ctypes.c_int64 * 2)()
    loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)(
        ctypes.addressof(hold))
    try:
        return min(_timed(lambda: loop(address, count, ctypes.addressof(room)))
                   for _ in range(rounds)) / count
    finally:
        del hold
        page.close()


def _timed(call) -> int:
    os.sched_yield()
    began = time.monotonic_ns()
    call()
    return time.monotonic_ns() - began
