"""A fake machine at the Machine seam: what it runs is decided by a test, nothing is booted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from nearmetal.errors import MachineFailed
from nearmetal.machines.base import Completed, Machine


@dataclass
class FakeWorld:
    """What happened, in order, and how fake machines answer."""

    log: list[tuple] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    refuse: set[str] = field(default_factory=set)


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
