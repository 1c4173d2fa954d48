"""stream: memory bandwidth by copy, scale, add and triad."""

from __future__ import annotations

from pydantic import Field

from nearmetal.workloads.base import BIN, Metric, Workload, WorkloadParams, register_workload

_FORMS = {"copy": "c = a", "scale": "b = s c", "add": "c = a + b", "triad": "a = b + s c"}


class Params(WorkloadParams):
    elements: int = Field(10_000_000, ge=1000, le=4 * 10**9, description=(
        "Elements of each of the three arrays, 8 bytes each; the rule is four times the last "
        "cache"))
    repetitions: int = Field(10, ge=2, le=10**5, description=(
        "Repetitions, the first not counted"))


@register_workload
class Stream(Workload):
    name = "stream"
    summary = "Memory bandwidth by copy, scale, add and triad, one thread."
    source = "STREAM (McCalpin 1995), as in HPC Challenge"
    Params = Params
    metrics = tuple(
        metric for name, form in _FORMS.items() for metric in (
            Metric(name, "MB/s", "higher", "rate", f"Best bandwidth of {form}",
                   headline=name == "triad"),
            Metric(f"{name}_mean", "MB/s", "higher", "rate",
                   f"Bandwidth of {form}: bytes / mean time")))

    def command(self) -> list[str]:
        p = self.params
        return [f"{BIN}/stream", "--elements", str(p.elements),
                "--repetitions", str(p.repetitions)]

    def estimate_s(self) -> float:
        p = self.params
        return 0.02 + p.elements * (p.repetitions * 80 / 15e9 + 1e-8)
