"""Fixtures that every test may use: a fake world (see fakes.py) and a small study."""

from __future__ import annotations

import pytest
from fakes import FakeMachine, FakeWorld
from pydantic import Field

from nearmetal.errors import CannotRun
from nearmetal.machines import base as machines_base
from nearmetal.machines.base import Layer, LayerParams
from nearmetal.workloads import base as workloads_base
from nearmetal.workloads.base import Metric, Workload, WorkloadParams


@pytest.fixture
def world(monkeypatch):
    """A fake world with the layers ``fake`` and ``fake1`` (one CPU) and workloads ``spin``,
    ``spin2`` (two machines) registered for the test alone."""
    made = FakeWorld()

    class FakeParams(LayerParams):
        tag: str = ""
        size: int = 1

    class FakeLayer(Layer):
        name, summary, Params = "fake", "a fake layer", FakeParams

        def check(self):
            if self.params.tag in made.refuse:
                raise CannotRun(f"no {self.params.tag} here.", "Install it.")

        def up(self, carrier, order):
            made.log.append(("up", order.name, self.params.tag))
            return FakeMachine(made, order.name)

    class FakeOne(FakeLayer):
        name, max_cpus, on_host_only = "fake1", 1, True

    class SpinParams(WorkloadParams):
        n: int = Field(3, ge=1, le=100)

    class Spin(Workload):
        name, summary, Params = "spin", "spins", SpinParams
        metrics = (Metric("speed", "op/s", "higher", "rate", "speed", headline=True),)

        def command(self):
            return ["spin", str(self.params.n)]

    class Spin2(Spin):
        name, machines = "spin2", 2

        def ranks(self):
            return 2

    layers = {"fake": FakeLayer, "fake1": FakeOne}
    monkeypatch.setattr(machines_base, "_layers", {**machines_base.layers(), **layers})
    monkeypatch.setattr(workloads_base, "_workloads",
                        {**workloads_base.workloads(), "spin": Spin, "spin2": Spin2})
    return made


STUDY = """
title = "A test"
baseline = "fake"
environments = ["fake", "fake(tag=slow)"]

[machine]
cpus = 1
memory = "64M"

[statistics]
min_blocks = 3
max_blocks = 3
seed = 7

[[workload]]
name = "spin"
"""


@pytest.fixture
def study_text():
    return STUDY


@pytest.fixture
def boot(tmp_path):
    """Boot real machines by path: ``boot("native", cpus=1, memory_mib=512) -> Machine``; all are
    ended after the test. For tests marked slow."""
    from nearmetal import cleanup, userland
    from nearmetal.machines.base import Order, Shape
    from nearmetal.machines.host import Host
    from nearmetal.machines.path import Environment

    built, mark, up = userland.ensure(None), cleanup.new_mark(), []
    host = Host(mark, built.tree)

    def one(path, cpus=1, memory_mib=512, **more):
        name = f"t{len(up)}"
        order = Order(mark, name, Shape(cpus, memory_mib), built, tmp_path, **more)
        machine = Environment.parse(path).up(host, order)
        up.append(machine)
        return machine

    yield one
    for machine in reversed(up):
        machine.down()
    host.down()
    assert cleanup.leftovers(mark) == []


def pytest_collection_modifyitems(items):
    """Fast tests first: a mistake shows within seconds, not after the machines have booted."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
