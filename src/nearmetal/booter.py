"""Boots clusters for a study: names, folders, networks, and taking all down again."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from nearmetal.machines.base import Machine, Order
from nearmetal.machines.cluster import Cluster
from nearmetal.machines.network import LabNetwork
from nearmetal.plan import Participant
from nearmetal.userland import Userland


class Booter:
    """Boots a participant's machines on ``host``; consoles are kept under ``folder``."""

    def __init__(self, host: Machine, userland: Userland, lab: str, folder: Path,
                 boot_timeout: float):
        self.host, self.userland, self.lab = host, userland, lab
        self.folder = folder.resolve()  # machines are started from other working folders
        self.boot_timeout = boot_timeout
        self._count = 0
        self._lock = threading.Lock()

    def _name(self) -> str:
        with self._lock:
            self._count += 1
            return f"m{self._count}"

    def boot(self, participant: Participant, size: int, *, keep_console: bool = True) -> Cluster:
        """A cluster of ``size`` machines, on a lab network when there are several.

        Raises MachineFailed or CannotRun, with nothing left up.
        """
        stem = self._name()
        network = LabNetwork(self.lab, size) if size > 1 else None

        def boot_one(rank: int) -> Machine:
            name = f"{stem}-{rank}" if size > 1 else stem
            workdir = self.folder / name
            workdir.mkdir(parents=True, exist_ok=True)
            order = Order(self.lab, name, participant.shape, self.userland, workdir,
                          network.port(rank) if network else None, self.boot_timeout)
            machine = participant.environment.up(self.host, order)
            if not keep_console:
                machine = _Tidy(machine, workdir)
            return machine

        return Cluster.boot(boot_one, size, network)


class _Tidy(Machine):
    """A machine whose working folder goes with it: for machines booted only to be timed."""

    def __init__(self, machine: Machine, workdir: Path):
        self._machine, self._workdir = machine, workdir
        self.name, self.root, self.address = machine.name, machine.root, machine.address
        self.console = machine.console

    def __getattr__(self, name):
        return getattr(self._machine, name)

    def spawn(self, argv, *, env=None, cwd="/"):
        return self._machine.spawn(argv, env=env, cwd=cwd)

    def run(self, argv, *, timeout, env=None, stdin=b""):
        return self._machine.run(argv, timeout=timeout, env=env, stdin=stdin)

    def put(self, source, target, mode=0o644):
        self._machine.put(source, target, mode)

    def get(self, source, target):
        self._machine.get(source, target)

    def facts(self):
        return self._machine.facts()

    def memory_bytes(self):
        return self._machine.memory_bytes()

    def clock_ns(self):
        return self._machine.clock_ns()

    def alive(self):
        return self._machine.alive()

    def down(self):
        self._machine.down()
        shutil.rmtree(self._workdir, ignore_errors=True)
