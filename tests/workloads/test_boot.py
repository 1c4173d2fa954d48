"""boot: what a site measured, as lines; memory that cannot be seen is missing, not 0."""

from __future__ import annotations

import pytest

from nearmetal.errors import MachineFailed
from nearmetal.workloads.base import workloads


class FakeSite:
    size, cpus = 1, 1

    def __init__(self, answer):
        self.answer = answer

    def run(self, argv, *, timeout):
        raise AssertionError("boot runs no program")

    mpi = run

    def boot(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def boot(answer):
    cls = workloads()["boot"]
    workload = cls(cls.Params())
    completed = workload.execute(FakeSite(answer), timeout=10)
    outcome = workload.parse(completed.stdout.decode())
    return completed, {one.metric: (one.value, one.unit) for one in outcome.measurements}


def test_time_and_memory():
    completed, values = boot((2.5, 64 * 2**20))
    assert values == {"boot_time": (2.5, "s"), "memory": (64.0, "MiB")}
    assert completed.status == 0 and completed.host_ns == 2_500_000_000
    assert completed.argv == ("true",)


def test_memory_that_is_not_known_is_missing():
    assert boot((0.1, None))[1] == {"boot_time": (0.1, "s")}


def test_a_machine_that_does_not_boot_is_the_callers_matter():
    with pytest.raises(MachineFailed, match="panicked"):
        boot(MachineFailed("It panicked."))
