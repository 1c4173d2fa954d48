"""linpack: solve a dense system of linear equations by LU factorisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nearmetal.workloads.base import BIN, Metric, Workload, WorkloadParams, register_workload


class Params(WorkloadParams):
    n: int = Field(3000, ge=1, le=40000, description="Number of equations")
    variant: Literal["dgefa", "blas"] = Field("dgefa", description=(
        "dgefa: LINPACK's serial column-oriented code in Fortran; blas: dgetrf and dgetrs of "
        "OpenBLAS"))
    threads: int = Field(1, ge=1, le=1024, description="Threads of OpenBLAS; blas only")
    core: str = Field("auto", pattern=r"^[A-Za-z0-9]+$", description=(
        "Kernels of OpenBLAS: auto, or a processor's name as Prescott, Haswell, SkylakeX; "
        "blas only"))
    seed: int = Field(1, ge=0, le=10**15, description="Seed of the random matrix")


@register_workload
class Linpack(Workload):
    name = "linpack"
    summary = "Solve a dense system of linear equations by LU factorisation, serial."
    source = "LINPACK benchmark (Dongarra 1988); Youseff et al. 2006, section 4.2, figure 5"
    Params = Params
    metrics = (
        Metric("factor_time", "s", "lower", "time", "Time to factor the matrix"),
        Metric("solve_time", "s", "lower", "time", "Time to solve with the factors"),
        Metric("total_time", "s", "lower", "time", "Factor and solve"),
        Metric("rate", "MFLOP/s", "higher", "rate",
               "(2/3 n^3 + 2 n^2) operations / total time", headline=True),
    )

    def command(self) -> list[str]:
        p = self.params
        line = [f"{BIN}/linpack", "--n", str(p.n), "--variant", p.variant, "--seed", str(p.seed)]
        if p.variant == "blas":
            line += ["--threads", str(p.threads), "--core", p.core]
        return line

    def estimate_s(self) -> float:
        p = self.params
        rate = 4.5e9 if p.variant == "dgefa" else 13e9 * p.threads
        return 0.02 + 2 / 3 * p.n**3 / rate + p.n**2 * 1.2e-8
