"""Memory of the host before and after a run, from /proc/meminfo."""

from __future__ import annotations

from pathlib import Path

from nearmetal.observe.base import Missing, Observer, register_observer, table

MEMINFO = Path("/proc/meminfo")


@register_observer
class Memory(Observer):
    name = "memory"
    figures = {
        "memory_available_mib": ("MiB", "memory available when the run began"),
        "memory_taken_mib": ("MiB", "available memory that was gone when the run ended"),
        "swap_used_mib": ("MiB", "swap in use when the run ended"),
    }

    def __init__(self, path: Path = MEMINFO):
        super().__init__()
        self._path = path

    def _read(self) -> dict[str, int]:
        values = table(self._path)
        if "MemAvailable" not in values:
            raise Missing("the kernel does not say how much memory is available")
        return values

    def start(self) -> None:
        self._before = self._read()["MemAvailable"]

    def stop(self) -> dict[str, float]:
        after = self._read()
        result = {"memory_available_mib": self._before / 1024,
                  "memory_taken_mib": (self._before - after["MemAvailable"]) / 1024}
        if "SwapTotal" in after and "SwapFree" in after:
            result["swap_used_mib"] = (after["SwapTotal"] - after["SwapFree"]) / 1024
        else:
            self.missing["swap_used_mib"] = "the kernel has no swap"
        return result
