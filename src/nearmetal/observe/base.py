"""What an observer is, and the registry of observers.

An observer samples the host beside a run: once before, once after. It is one module in this
package that defines an :class:`Observer`, decorated with :func:`register_observer`. What cannot be
sampled is missing, with the reason, and never 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from nearmetal import registry


class Missing(Exception):
    """A figure that cannot be sampled here; the text is the reason."""


class Observer(ABC):
    """Samples the host between :meth:`start` and :meth:`stop`.

    ``figures`` names all that it gives: name -> (unit, what it is).
    """

    name: ClassVar[str]
    figures: ClassVar[Mapping[str, tuple[str, str]]]

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    @abstractmethod
    def start(self) -> None:
        """Take the first sample. Raises Missing, OSError or ValueError when it cannot."""

    @abstractmethod
    def stop(self) -> dict[str, float]:
        """Take the last sample: figures since :meth:`start`, in the units of ``figures``. A
        figure that is not known is left out and named in ``missing``."""

    def close(self) -> None:
        """Let go of files held; called when sampling failed. Safe to call twice."""
        return None


_observers: dict[str, type[Observer]] = {}


def register_observer(cls: type[Observer]) -> type[Observer]:
    """Class decorator: make the observer known by its name."""
    return registry.add(_observers, cls, "observer")


def observers() -> dict[str, type[Observer]]:
    """All observers by name; every module of this package is loaded."""
    registry.load(__package__)
    return dict(sorted(_observers.items()))


class Observers:
    """All observers together, for one run. Nothing that goes wrong here stops a run."""

    def __init__(self, chosen: Mapping[str, type[Observer]] | None = None):
        classes = observers() if chosen is None else chosen
        self._all = [cls() for cls in classes.values()]
        self._failed: dict[str, str] = {}

    def start(self) -> None:
        """Start all of them; one that cannot is missing."""
        for observer in self._all:
            try:
                observer.start()
            except (Missing, OSError, ValueError, KeyError, IndexError) as error:
                self._fail(observer, error)

    def stop(self) -> dict[str, Any]:
        """The figures of all, and under ``missing`` name -> reason for those not known."""
        result: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for observer in self._all:
            if observer.name not in self._failed:
                try:
                    result.update(observer.stop())
                    missing.update(observer.missing)
                except (Missing, OSError, ValueError, KeyError, IndexError) as error:
                    self._fail(observer, error)
            if observer.name in self._failed:
                missing.update(dict.fromkeys(observer.figures, self._failed[observer.name]))
        if missing:
            result["missing"] = missing
        return result

    def _fail(self, observer: Observer, error: Exception) -> None:
        self._failed[observer.name] = str(error) or type(error).__name__
        observer.close()


def table(path: Path) -> dict[str, int]:
    """A file of ``name number`` lines (/proc/vmstat, /proc/meminfo) as numbers by name."""
    result = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            result[words[0].rstrip(":")] = int(words[1])
    return result
