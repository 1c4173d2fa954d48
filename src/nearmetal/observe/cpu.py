"""Processor time of the host beside a run: stolen, busy, and how often it switched.

Ticks are those of /proc/stat (proc(5)), usually 10 ms, summed over the processors.
"""

from __future__ import annotations

import os
from pathlib import Path

from nearmetal.observe.base import Observer, register_observer

STAT = Path("/proc/stat")
# The columns of the "cpu" line; guest time is part of user time already.
_COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def read(path: Path = STAT) -> dict[str, int]:
    """Ticks by kind, and ``ctxt`` and ``processes`` counts since boot."""
    result: dict[str, int] = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "cpu":
            result.update(zip(_COLUMNS, map(int, words[1:]), strict=False))
        elif words[0] in ("ctxt", "processes"):
            result[words[0]] = int(words[1])
    return result


@register_observer
class Cpu(Observer):
    name = "cpu"
    figures = {
        "steal_share": ("1", "processor time that the host's own hypervisor took away"),
        "busy_share": ("1", "processor time in use, by anyone"),
        "context_switches": ("switches", "context switches of the whole host"),
        "forks": ("processes", "processes and threads started on the whole host"),
        "load_before": ("tasks", "load average over a minute when the run began"),
    }

    def __init__(self, path: Path = STAT):
        super().__init__()
        self._path = path

    def start(self) -> None:
        self._load = os.getloadavg()[0]
        self._before = read(self._path)

    def stop(self) -> dict[str, float]:
        after = read(self._path)
        spent = {key: after[key] - self._before[key] for key in self._before if key in after}
        total = sum(spent.get(key, 0) for key in _COLUMNS)
        result = {"load_before": self._load}
        for key, name in (("ctxt", "context_switches"), ("processes", "forks")):
            if key in spent:
                result[name] = float(spent[key])
            else:
                self.missing[name] = "the kernel does not count them"
        if total <= 0:
            reason = "the run was shorter than a tick of the host's accounting"
            self.missing.update(steal_share=reason, busy_share=reason)
            return result
        if "steal" in spent:
            result["steal_share"] = max(0, spent["steal"]) / total
        else:
            self.missing["steal_share"] = "the kernel does not account for stolen time"
        result["busy_share"] = 1 - (spent["idle"] + spent.get("iowait", 0)) / total
        return result
