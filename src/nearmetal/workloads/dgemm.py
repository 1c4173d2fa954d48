"""dgemm: multiply two matrices with OpenBLAS."""

from __future__ import annotations

from pydantic import Field

from nearmetal.workloads.base import BIN, Metric, Workload, WorkloadParams, register_workload


class Params(WorkloadParams):
    n: int = Field(1000, ge=1, le=40000, description="Order of the matrices")
    repetitions: int = Field(10, ge=1, le=10**6, description="Multiplications")
    threads: int = Field(1, ge=1, le=1024, description="Threads of OpenBLAS")
    core: str = Field("auto", pattern=r"^[A-Za-z0-9]+$", description=(
        "Kernels of OpenBLAS: auto, or a processor's name as Prescott, Haswell, SkylakeX"))
    seed: int = Field(1, ge=0, le=10**15, description="Seed of the random matrices")


@register_workload
class Dgemm(Workload):
    name = "dgemm"
    summary = "Multiply two matrices in double precision with OpenBLAS."
    source = "HPC Challenge DGEMM (Luszczek et al. 2005)"
    Params = Params
    metrics = (
        Metric("rate", "GFLOP/s", "higher", "rate",
               "2 n^3 operations / mean time of a multiplication", headline=True),
        Metric("rate_best", "GFLOP/s", "higher", "rate", "2 n^3 operations / shortest time"),
    )

    def command(self) -> list[str]:
        p = self.params
        return [f"{BIN}/dgemm", "--n", str(p.n), "--repetitions", str(p.repetitions),
                "--threads", str(p.threads), "--core", p.core, "--seed", str(p.seed)]

    def estimate_s(self) -> float:
        p = self.params
        return 0.02 + (p.repetitions + 1) * 2 * p.n**3 / (15e9 * p.threads) + p.n**2 * 4e-8
