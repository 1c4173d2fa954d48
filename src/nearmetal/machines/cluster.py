"""N machines of one environment, and MPI across them.

Every machine runs ``nm-agent --listen`` on the lab network; MPICH's Hydra on machine 0 starts its
proxies through ``nm-rsh``, which it calls as it would call ssh.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from nearmetal.errors import MachineFailed
from nearmetal.machines.base import Completed, Machine, Process
from nearmetal.machines.network import LabNetwork

PORT = 7077
BIN = "opt/nearmetal/bin"
MPI = "opt/nearmetal/mpi/bin"
_WORKERS = 8
_LISTEN_LIMIT = 60.0

# MPICH through libfabric over TCP between machines; shared memory within one.
MPI_ENVIRONMENT = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
}


class Cluster:
    """Machines that are up, the first of which is asked. ``network`` is ended with them."""

    def __init__(self, machines: Sequence[Machine], network: LabNetwork | None = None):
        if not machines:
            raise ValueError("a cluster has at least one machine")
        self.machines = list(machines)
        self.network = network
        self._listeners: list[Process] = []
        self._lock = threading.Lock()
        self._down = False

    @classmethod
    def boot(cls, boot_one: Callable[[int], Machine], size: int,
             network: LabNetwork | None = None) -> Cluster:
        """Boot ``size`` machines in parallel with ``boot_one(rank)``.

        When one fails the others and the network are ended, and its error is raised.
        """
        with ThreadPoolExecutor(max_workers=min(size, _WORKERS)) as pool:
            futures = [pool.submit(boot_one, rank) for rank in range(size)]
        errors = [one.exception() for one in futures]
        machines = [one.result() for one in futures if one.exception() is None]
        first = next((error for error in errors if error is not None), None)
        if first is not None:
            _end(machines, network)
            raise first
        return cls(machines, network)

    @property
    def size(self) -> int:
        return len(self.machines)

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run on the first machine."""
        return self.machines[0].run(argv, timeout=timeout)

    def mpi(self, argv: Sequence[str], *, ranks: int, timeout: float) -> Completed:
        """Run ``ranks`` MPI processes, dealt round-robin over the machines.

        ``stdout`` is that of all ranks. After ``timeout`` s all of them are killed, on every
        machine. Raises MachineFailed.
        """
        first = self.machines[0]
        if self.size == 1:
            where = ["-launcher", "fork"]
        else:
            self._listen()
            hosts = [_address(machine) for machine in self.machines]
            where = ["-launcher", "ssh", "-launcher-exec", _program(first, "nm-rsh"),
                     "-localhost", hosts[0], "-hosts", ",".join(f"{host}:1" for host in hosts)]
        command = [_program(first, "mpiexec.hydra", MPI), *where, "-n", str(ranks), *argv]
        return first.run(command, timeout=timeout, env=MPI_ENVIRONMENT)

    def _listen(self) -> None:
        """Start an agent on every machine that serves the others; once."""
        with self._lock:
            if not self._listeners:
                with ThreadPoolExecutor(max_workers=min(self.size, _WORKERS)) as pool:
                    self._listeners = list(pool.map(_listener, self.machines))
            for machine, listener in zip(self.machines, self._listeners, strict=True):
                if listener.poll() is not None:
                    raise MachineFailed(f"The agent that serves {machine.name!r} to the others "
                                        "has ended.", "Its console is kept.")

    def alive(self) -> bool:
        return not self._down and all(machine.alive() for machine in self.machines)

    def down(self) -> None:
        """End all machines, then the network. Safe to call twice."""
        with self._lock:
            if self._down:
                return
            self._down = True
        _end(self.machines, self.network)


def _end(machines: Sequence[Machine], network: LabNetwork | None) -> None:
    def end(machine: Machine) -> None:
        with contextlib.suppress(MachineFailed):
            machine.down()

    if machines:
        with ThreadPoolExecutor(max_workers=min(len(machines), _WORKERS)) as pool:
            list(pool.map(end, machines))
    if network is not None:
        network.down()


def _address(machine: Machine) -> str:
    if machine.address is None:
        raise MachineFailed(f"The machine {machine.name!r} has no place on a lab network.",
                            "MPI across machines needs a layer that can join one.")
    return machine.address


def _program(machine: Machine, name: str, folder: str = BIN) -> str:
    return f"{machine.root.rstrip('/')}/{folder}/{name}"


def _listener(machine: Machine) -> Process:
    argv = [_program(machine, "nm-agent"), "--listen", f"{_address(machine)}:{PORT}"]
    process = machine.spawn(argv)
    timer = threading.Timer(_LISTEN_LIMIT, process.kill)
    timer.start()
    try:
        said = process.stdout.readline()
    finally:
        timer.cancel()
    if said != b"listening\n":
        why = process.stderr.read().decode(errors="replace").strip(" .\n") if process.stderr else ""
        process.kill()
        raise MachineFailed(f"The machine {machine.name!r} cannot serve the others: "
                            f"{why or 'no answer'}.")
    return process
