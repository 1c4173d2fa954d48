"""Page faults and swapping of the whole host beside a run, from /proc/vmstat."""

from __future__ import annotations

from pathlib import Path

from nearmetal.observe.base import Observer, register_observer, table

VMSTAT = Path("/proc/vmstat")
_KEYS = {"page_faults": "pgfault", "major_faults": "pgmajfault",
         "swapped_in": "pswpin", "swapped_out": "pswpout"}


@register_observer
class Faults(Observer):
    name = "faults"
    figures = {
        "page_faults": ("faults", "page faults, minor and major"),
        "major_faults": ("faults", "page faults that read from a disk"),
        "swapped_in": ("pages", "pages read from swap"),
        "swapped_out": ("pages", "pages written to swap"),
    }

    def __init__(self, path: Path = VMSTAT):
        super().__init__()
        self._path = path

    def start(self) -> None:
        self._before = table(self._path)

    def stop(self) -> dict[str, float]:
        after = table(self._path)
        result = {}
        for name, key in _KEYS.items():
            if key in after and key in self._before:
                result[name] = float(after[key] - self._before[key])
            else:
                self.missing[name] = f"the kernel does not count {key}"
        return result
