"""presta-com: MPI bandwidth between pairs of processes, by message size."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nearmetal.workloads.base import BIN, Metric, Workload, WorkloadParams, register_workload


class Params(WorkloadParams):
    processes: int = Field(2, ge=2, le=1024, multiple_of=2,
                           description="MPI processes; two make a pair")
    min: int = Field(32, ge=1, le=2**30, description="Smallest message; sizes double (bytes)")
    max: int = Field(2**23, ge=1, le=2**30, description="Largest message (bytes)")
    operations: int = Field(1000, ge=1, le=10**9, description="Messages in a test")
    tests: int = Field(3, ge=1, le=10**6, description="Tests of each size")
    mode: Literal["uni", "bi", "both"] = Field(
        "both", description="One direction, both at once, or one after the other")
    seconds: float = Field(0, ge=0, le=10**6, description=(
        "Limit for a size and mode; fewer operations when it would take longer; 0: none (s)"))
    pairs: Literal["neighbour", "half"] = Field("neighbour", description=(
        "Who talks with whom: 0-1, 2-3, ..., which crosses machines when processes are dealt "
        "round-robin; or i with i + processes/2, as Presta pairs them"))

    @model_validator(mode="after")
    def _ordered(self) -> Params:
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is smaller than min ({self.min})")
        return self


def _metrics(mode: str, words: str, headline: bool) -> tuple[Metric, ...]:
    curve = {"axis": "bytes", "axis_scale": "log2", "scale": "log"}
    return (
        Metric(f"{mode}_bandwidth", "MB/s", "higher", "rate",
               f"{words} bandwidth: all bytes / all time of the tests", headline=headline, **curve),
        Metric(f"{mode}_bandwidth_max", "MB/s", "higher", "rate",
               f"{words} bandwidth of the best test", **curve),
        Metric(f"{mode}_optime", "us", "lower", "time",
               f"{words} OpTime: time of the slowest process / operations, mean over the tests",
               **curve),
    )


@register_workload
class PrestaCom(Workload):
    name = "presta-com"
    summary = "MPI bandwidth between pairs of processes, by message size."
    source = "Presta com (LLNL); Youseff et al. 2006, section 4.1, figures 1 to 3"
    Params = Params
    machines = 2
    metrics = (*_metrics("uni", "Unidirectional", True), *_metrics("bi", "Bidirectional", False))

    def command(self) -> list[str]:
        p = self.params
        return [f"{BIN}/presta-com", "--min", str(p.min), "--max", str(p.max),
                "--operations", str(p.operations), "--tests", str(p.tests), "--mode", p.mode,
                "--seconds", f"{p.seconds:g}", "--pairs", p.pairs]

    def ranks(self) -> int:
        return self.params.processes

    def estimate_s(self) -> float:
        p = self.params
        total, size = 0.3, p.min
        modes = {"uni": (1,), "bi": (2,), "both": (1, 2)}[p.mode]
        while size <= p.max:
            for directions in modes:
                seconds = p.operations * p.tests * directions * (2e-6 + size * 4e-10)
                total += min(seconds, p.seconds) if p.seconds else seconds
            size *= 2
        return total
