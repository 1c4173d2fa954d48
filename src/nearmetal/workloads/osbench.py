"""osbench: what the operating system's basic operations cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nearmetal.workloads.base import BIN, Metric, Workload, WorkloadParams, register_workload

# name: (what an operation is, headline)
_TESTS = {
    "syscall": ("a system call (getppid)", True),
    "clock": ("reading the monotonic clock", False),
    "handoff": ("handing a word to another thread by futex", False),
    "switch": ("handing a byte to another process by pipe, one context switch", True),
    "fault": ("first touch of a page", False),
    "mmap": ("mmap and munmap of 64 KiB, first page touched", False),
    "forkexec": ("fork, exec and wait", False),
}
Test = Literal["syscall", "clock", "handoff", "switch", "fault", "mmap", "forkexec"]


def _listed(value: Any) -> Any:
    """"all" and "syscall,fault" are lists of tests as well."""
    if value == "all":
        return tuple(_TESTS)
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class Params(WorkloadParams):
    tests: Annotated[tuple[Test, ...], BeforeValidator(_listed)] = Field(
        tuple(_TESTS), min_length=1, description="Which operations")
    seconds: float = Field(0.1, ge=0.001, le=3600, description=(
        "Time for each test; five samples are taken in any case (s)"))
    pin: bool = Field(True, description=(
        "Bind the two that take turns in handoff and switch to one processor"))


@register_workload
class Osbench(Workload):
    name = "osbench"
    summary = "Cost of the operating system's basic operations, median and 99th percentile."
    source = "After lmbench (McVoy and Staelin 1996)"
    Params = Params
    metrics = tuple(
        metric for name, (what, headline) in _TESTS.items() for metric in (
            Metric(name, "ns", "lower", "time", f"Median time of {what}", scale="log",
                   headline=headline),
            Metric(f"{name}_p99", "ns", "lower", "time", f"99th percentile of {what}",
                   scale="log")))

    def command(self) -> list[str]:
        p = self.params
        return [f"{BIN}/osbench", "--tests", ",".join(p.tests), "--seconds", f"{p.seconds:g}",
                "--pin", str(int(p.pin))]

    def estimate_s(self) -> float:
        return 0.02 + len(self.params.tests) * self.params.seconds
