"""presta-laten: MPI ping-pong latency, by the number of simultaneously communicating processes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nearmetal.workloads.base import BIN, Metric, Workload, WorkloadParams, register_workload


def _listed(value: Any) -> Any:
    """"2,4,8" and 2 are lists of numbers as well."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]


Even = Annotated[int, Field(ge=2, le=1024, multiple_of=2)]


class Params(WorkloadParams):
    processes: Annotated[tuple[Even, ...], BeforeValidator(_listed)] = Field(
        (2, 4, 8), min_length=1, max_length=64,
        description="Numbers of processes that communicate at once, each even")
    bytes: int = Field(8, ge=8, le=2**30, description="Size of a message (bytes)")
    operations: int = Field(1000, ge=4, le=10**7, description="Ping-pongs in a test")
    tests: int = Field(3, ge=1, le=10**6, description="Tests of each number")
    seconds: float = Field(0, ge=0, le=10**6, description=(
        "Limit for a number of processes; fewer operations when it would take longer; 0: none (s)"))
    pairs: Literal["neighbour", "half"] = Field("neighbour", description=(
        "Who talks with whom: 0-1, 2-3, ..., which crosses machines when processes are dealt "
        "round-robin; or i with i + processes/2, as Presta pairs them"))


def _metric(name: str, summary: str, headline: bool = False) -> Metric:
    return Metric(name, "us", "lower", "time", summary, axis="processes", axis_scale="log2",
                  scale="log", headline=headline)


@register_workload
class PrestaLaten(Workload):
    name = "presta-laten"
    summary = "MPI ping-pong latency (one way), by the number of communicating processes."
    source = "Presta laten (LLNL); Youseff et al. 2006, section 4.1, figure 4"
    Params = Params
    machines = 2
    metrics = (
        _metric("latency_max", "Latency of the slowest pair of a test, mean over the tests"),
        _metric("latency_mean", "Latency, mean over pairs and tests"),
        _metric("latency_median", "Latency, median of single ping-pongs", True),
        _metric("latency_p99", "Latency, 99th percentile of single ping-pongs"),
    )

    def command(self) -> list[str]:
        p = self.params
        return [f"{BIN}/presta-laten", "--processes", ",".join(map(str, p.processes)),
                "--bytes", str(p.bytes), "--operations", str(p.operations),
                "--tests", str(p.tests), "--seconds", f"{p.seconds:g}", "--pairs", p.pairs]

    def ranks(self) -> int:
        return max(self.params.processes)

    def estimate_s(self) -> float:
        p = self.params
        # More processes than processors take turns: about half a millisecond a ping-pong.
        each = [p.operations * (p.tests + 1) * (40e-6 if count == 2 else 1e-3) + p.bytes * 1e-9
                for count in p.processes]
        return 0.3 + sum(min(one, p.seconds) if p.seconds else one for one in each)
