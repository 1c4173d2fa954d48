"""A fake machine at the Machine seam: what it runs is decided by a test, nothing is booted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import Field

from nearmetal.errors import CannotRun, MachineFailed
from nearmetal.machines import base as machines_base
from nearmetal.machines.base import Completed, Layer, LayerParams, Machine
from nearmetal.workloads import base as workloads_base
from nearmetal.workloads.base import Metric, Workload, WorkloadParams


@dataclass
class FakeWorld:
    """What happened, in order, and how fake machines answer."""

    log: list[tuple] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    refuse: set[str] = field(default_factory=set)
    clock_speed: float = 1.0
    now: int = 0


class FakeMachine(Machine):
    def __init__(self, world: FakeWorld, name: str):
        self.world, self.name, self.up = world, name, True

    def run(self, argv, *, timeout, env=None, stdin=b""):
        self.world.log.append(("run", self.name, *argv))
        if list(argv) == ["true"]:
            return Completed(("true",), 0 if self.up else 1, b"", b"", 1000, 1000)
        answer = self.world.answers.get(self.name, 1.0)
        if callable(answer):
            answer = answer(self)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Completed):
            return answer
        line = json.dumps({"type": "metric", "metric": "speed", "value": answer, "unit": "op/s"})
        return Completed(tuple(argv), 0, line.encode(), b"", 5_000_000, 5_000_000)

    def spawn(self, argv, *, env=None, cwd="/"):
        raise MachineFailed("a fake machine spawns nothing")

    def put(self, source, target, mode=0o644):
        self.world.log.append(("put", self.name, target))

    def get(self, source, target):
        self.world.log.append(("get", self.name, source))

    def facts(self):
        return {"cpus": 1, "memory_mib": 64, "kernel": "fake", "clocksource": "fake",
                "network": "none"}

    def memory_bytes(self):
        return 1 << 20

    def alive(self):
        return self.up

    def down(self):
        self.world.log.append(("down", self.name))
        self.up = False


class FakeCluster:
    def __init__(self, machines):
        self.machines = machines

    def run(self, argv, *, timeout):
        return self.machines[0].run(argv, timeout=timeout)

    def mpi(self, argv, *, ranks, timeout):
        return self.machines[0].run(["mpi", str(ranks), *argv], timeout=timeout)

    def alive(self):
        return all(machine.alive() for machine in self.machines)

    def down(self):
        for machine in self.machines:
            machine.down()


class FakeBoots:
    """Boots fake clusters; ``fail`` maps a label to how many boots are to fail first."""

    def __init__(self, world: FakeWorld):
        self.world, self.fail = world, {}

    def boot(self, participant, size, *, keep_console=True):
        self.world.log.append(("boot", participant.label, size))
        if self.fail.get(participant.label, 0) > 0:
            self.fail[participant.label] -= 1
            raise MachineFailed("the kernel panicked")
        return FakeCluster([FakeMachine(self.world, participant.label) for _ in range(size)])


class Quiet:
    """A progress display that keeps what it is told."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def watch(self, estimator): ...
    def begin(self, step): ...
    def end(self, step, status, reason, seconds): ...
    def block(self, number, runs): ...


class NoObserver:
    def start(self): ...

    def stop(self):
        return {}


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
