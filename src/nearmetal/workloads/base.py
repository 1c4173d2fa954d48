"""What a workload is, and the registry of workloads.

A workload is one module in this package that defines a :class:`Workload`, decorated with
:func:`register_workload`. Its program lies in the userland under ``/opt/nearmetal/bin`` and
prints JSON lines (see :mod:`nearmetal.workloads.lines`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from nearmetal import registry
from nearmetal.errors import NearmetalError, WorkloadFailed
from nearmetal.machines.base import Completed

BIN = "/opt/nearmetal/bin"


@dataclass(frozen=True)
class Metric:
    """What is measured. ``axis`` names the key of a measurement's point that makes a curve
    (``bytes``, ``processes``), with ``axis_scale`` "log2" or "linear"; ``scale`` is the value's.
    ``kind`` "time" or "rate" decides how values are averaged."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    kind: Literal["time", "rate", "size"] = "time"
    summary: str = ""
    axis: str | None = None
    axis_scale: Literal["log2", "log10", "linear"] = "linear"
    scale: Literal["log", "linear"] = "linear"
    headline: bool = False


@dataclass(frozen=True)
class Measurement:
    """A number with a unit that came out of a run, at a point (``{"bytes": 8}``; {} for one)."""

    metric: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    point: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a run gave: measurements, the workload's own elapsed time (ns, by its monotonic
    clock, None if it gave none) and other facts it printed."""

    measurements: tuple[Measurement, ...]
    workload_ns: int | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class Site(Protocol):
    """Where a run takes place: a cluster of one environment, seen by a workload."""

    size: int
    cpus: int

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run on the first machine."""

    def mpi(self, argv: Sequence[str], *, ranks: int, timeout: float) -> Completed:
        """Run ``ranks`` MPI processes, dealt round-robin over the machines."""

    def boot(self) -> tuple[float, int | None]:
        """Boot one more machine, ask it one command, end it: (seconds, bytes of host memory)."""


class WorkloadParams(BaseModel):
    """Parameters of a workload; each has a description, a unit and bounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(ABC):
    """A program, its parameters and its metrics.

    Class attributes: ``name``, ``summary``, ``Params``, ``metrics``; ``machines`` is how many
    machines it needs at least; ``source`` names the paper or benchmark it follows.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = ""
    Params: ClassVar[type[WorkloadParams]] = WorkloadParams
    metrics: ClassVar[tuple[Metric, ...]]
    machines: ClassVar[int] = 1

    def __init__(self, params: WorkloadParams):
        self.params = params

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments, as a person would type them in the userland."""

    def ranks(self) -> int | None:
        """Number of MPI processes; None: not an MPI program."""
        return None

    def execute(self, site: Site, timeout: float) -> Completed:
        """Carry out one run; the output is stored as it is before :meth:`parse` sees it."""
        ranks = self.ranks()
        if ranks is None:
            return site.run(self.command(), timeout=timeout)
        return site.mpi(self.command(), ranks=ranks, timeout=timeout)

    def parse(self, stdout: str) -> Outcome:
        """Measurements from the raw output. Raises WorkloadFailed: wrong answer, unreadable."""
        from nearmetal.workloads.lines import read

        return read(stdout, self.metrics)

    def estimate_s(self) -> float:
        """A rough time of one run at native speed, in seconds, for plans."""
        return 1.0


_workloads: dict[str, type[Workload]] = {}


def register_workload(cls: type[Workload]) -> type[Workload]:
    """Class decorator: make the workload known by its name."""
    return registry.add(_workloads, cls, "workload")


def workloads() -> dict[str, type[Workload]]:
    """All workloads by name; every module of this package is loaded."""
    registry.load(__package__)
    return dict(sorted(_workloads.items()))


__all__ = [
    "BIN", "Measurement", "Metric", "NearmetalError", "Outcome", "Site", "Workload",
    "WorkloadFailed", "WorkloadParams", "register_workload", "workloads",
]
