"""What takes time from a measurement or changes it from run to run."""

from __future__ import annotations

import time

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System

GROUP = "Disturbance"
WINDOW_S = 0.5
STEAL_LIMIT = 0.005  # of processor time


def check(system: System) -> list[Finding]:
    before = system.cpu_ticks()
    if system.live:
        time.sleep(WINDOW_S)
    return [load(system), steal(before, system.cpu_ticks()), aslr(system), watchdog(system)]


def load(system: System) -> Finding:
    text = (system.read("/proc/loadavg") or "").split()
    if not text:
        return Finding("Load", GROUP, "info", "not shown by this kernel")
    now, cores = float(text[0]), system.online_cpus()
    busy = now > 0.25 * cores
    return Finding("Load", GROUP, "warn" if busy else "ok",
                   f"{now:.2f} over the last minute, {cores} processors",
                   "What else runs takes processor time, caches and memory bandwidth.",
                   "Stop it, or wait until it is done: 'top' shows it." if busy else "")


def steal(before: dict[str, int], after: dict[str, int]) -> Finding:
    """Time that a hypervisor gave to others, now and since boot."""
    if "steal" not in after:
        return Finding("Steal time", GROUP, "info", "not shown by this kernel")
    since_boot = after["steal"] / max(1, sum(after.values()))
    window = sum(after.values()) - sum(before.values())
    now = (after["steal"] - before["steal"]) / window if window > 0 else 0.0
    much = max(now, since_boot) > STEAL_LIMIT
    return Finding("Steal time", GROUP, "warn" if much else "ok",
                   f"{now:.1%} now, {since_boot:.2%} since boot",
                   "A hypervisor gave that time to other guests while this machine wanted it.",
                   "Repeat at another hour, or on a machine of your own; the runs record it."
                   if much else "")


def aslr(system: System) -> Finding:
    level = system.number("/proc/sys/kernel/randomize_va_space")
    if level is None:
        return Finding("Address randomisation", GROUP, "info", "not shown by this kernel")
    return Finding("Address randomisation", GROUP, "info" if level else "ok",
                   {0: "off", 1: "on, but for the heap"}.get(level, "on"),
                   "Each process lies elsewhere in caches and TLB: more spread between runs, and "
                   "no one layout's luck in the mean.",
                   "nearmetal tune (switches it off; --undo restores)" if level else "")


def watchdog(system: System) -> Finding:
    on = system.number("/proc/sys/kernel/nmi_watchdog")
    return Finding("NMI watchdog", GROUP, "info" if on else "ok", "on" if on else "off",
                   "It takes one hardware counter and interrupts now and then.",
                   "nearmetal tune (switches it off; --undo restores)" if on else "")
