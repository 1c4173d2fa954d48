"""Memory: how much, swap, page sizes."""

from __future__ import annotations

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System

GROUP = "Memory"
LOW_GIB = 3.0  # a cluster of two guests of 1 GiB, and the lab
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def check(system: System) -> list[Finding]:
    return [*amount(system), thp(system), reserved(system), sharing(system)]


def amount(system: System) -> list[Finding]:
    memory = system.meminfo()
    if "MemTotal" not in memory:
        return [Finding("Size", GROUP, "info", "not shown by this kernel")]
    total, free = memory["MemTotal"] / 2**20, memory.get("MemAvailable", 0) / 2**20
    low = free < LOW_GIB
    size = Finding("Size", GROUP, "warn" if low else "ok",
                   f"{total:.1f} GiB, {free:.1f} GiB available",
                   "A guest's memory is taken from here; without enough, pages are swapped out "
                   "or something is killed.",
                   "Stop other programs, or give machines less in the study's [machine] memory."
                   if low else "")
    swap = memory.get("SwapTotal", 0)
    used = swap - memory.get("SwapFree", 0)
    if not swap:
        return [size, Finding("Swap", GROUP, "ok", "none")]
    return [size, Finding("Swap", GROUP, "warn" if used else "info",
                          f"{swap / 2**20:.1f} GiB, {used / 1024:.0f} MiB used",
                          "A page that comes back from disk costs milliseconds.",
                          "swapoff -a, or nearmetal tune (lowers swappiness)")]


def thp(system: System) -> Finding:
    mode = system.chosen(THP)
    if mode is None:
        return Finding("Transparent huge pages", GROUP, "info", "not in this kernel")
    always = mode == "always"
    return Finding("Transparent huge pages", GROUP, "warn" if always else "ok", mode,
                   "With 'always' the kernel merges pages when it finds the time: the same "
                   "program is faster in one run than in another.",
                   "nearmetal tune (sets 'madvise'; --undo restores)" if always else "")


def reserved(system: System) -> Finding:
    pages = system.meminfo().get("HugePages_Total", 0)
    size = system.meminfo().get("Hugepagesize", 2048)
    return Finding("Huge pages set aside", GROUP, "info",
                   f"{pages} of {size // 1024} MiB" if pages else "none",
                   "Guests backed by them miss the TLB less often.")


def sharing(system: System) -> Finding:
    running = system.number("/sys/kernel/mm/ksm/run")
    if running is None:
        return Finding("Page merging (KSM)", GROUP, "ok", "not in this kernel")
    return Finding("Page merging (KSM)", GROUP, "warn" if running == 1 else "ok",
                   "running" if running == 1 else "off",
                   "It takes processor time, and a merged page costs a fault when written.",
                   "nearmetal tune (stops it; --undo restores)" if running == 1 else "")
