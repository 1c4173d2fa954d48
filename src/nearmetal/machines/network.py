"""The lab network: a bridge in a network namespace of its own, with no way out.

::

    keeper's namespace:  bridge br0 --- p0 (veth) --- eth0 in the namespace of machine 0
                                   \\-- t1 (tap)  --- a VM that runs in the bridge's namespace

Namespaces are held by keeper processes and not by names, so they vanish with the lab; interfaces
vanish with their namespaces.
"""

from __future__ import annotations

import threading

from nearmetal.errors import MachineFailed
from nearmetal.machines.process import HostProcess, do, start

PREFIX = 24
SIZE_LIMIT = 250
_READY = b"up\n"


def _keeper(lab: str, commands: str) -> HostProcess:
    """A process in a network namespace of its own, prepared by shell ``commands``; it ends when
    its standard input does."""
    script = f"set -e; ip link set lo up; {commands} echo up; exec cat >/dev/null"
    keeper = start(["unshare", "--net", "--", "sh", "-c", script], lab)
    said = keeper.stdout.readline()
    if said != _READY:
        keeper.kill()
        why = keeper.stderr.read().decode(errors="replace").strip(" .\n") if keeper.stderr else ""
        keeper.close()
        raise MachineFailed(f"A network namespace cannot be made: {why or 'no answer'}.",
                            "'nearmetal doctor' says what is missing.")
    return keeper


def _end(keeper: HostProcess) -> None:
    keeper.kill()
    keeper.close()


class Port:
    """A machine's place on a lab network: address ``10.77.0.<rank + 1>``, prefix 24, and a MAC."""

    def __init__(self, network: LabNetwork, rank: int):
        self._network = network
        self._lock = threading.Lock()
        self._keeper: HostProcess | None = None
        self._tap: str | None = None
        self.rank = rank
        self.address = f"10.77.0.{rank + 1}"
        self.prefix = PREFIX
        self.mac = f"02:4e:4d:77:00:{rank + 1:02x}"

    def namespace(self) -> int:
        """The pid of a keeper in a namespace with ``eth0`` configured and on the bridge, lo up.

        Raises MachineFailed.
        """
        with self._lock:
            if self._keeper is None:
                keeper = _keeper(self._network.lab, "")
                try:
                    self._wire(keeper.pid)
                except BaseException:
                    _end(keeper)
                    raise
                self._keeper = keeper
            return self._keeper.pid

    def _wire(self, pid: int) -> None:
        near = f"p{self.rank}"
        self._network.do(f"ip link add name {near} type veth peer name eth0 netns {pid};"
                         f"ip link set dev {near} master br0 up")
        do(["nsenter", "-t", str(pid), "-n", "--", "sh", "-ec",
            f"ip link set dev eth0 address {self.mac};"
            f"ip addr add {self.address}/{PREFIX} dev eth0; ip link set dev eth0 up"],
           self._network.lab)

    def enter(self) -> list[str]:
        """The prefix that runs a process in this machine's namespace."""
        return ["nsenter", "-t", str(self.namespace()), "-n", "--"]

    def tap(self) -> tuple[list[str], str]:
        """(prefix that runs a VM in the bridge's namespace, name of a tap on the bridge there).

        The guest configures ``address`` itself. Raises MachineFailed.
        """
        with self._lock:
            if self._tap is None:
                name = f"t{self.rank}"
                self._network.do(f"ip tuntap add dev {name} mode tap;"
                                 f"ip link set dev {name} master br0 up")
                self._tap = name
            return self._network.enter(), self._tap

    def close(self) -> None:
        with self._lock:
            if self._keeper is not None:
                _end(self._keeper)
                self._keeper = None


class LabNetwork:
    """A network for ``size`` machines. Raises MachineFailed when it cannot be made."""

    def __init__(self, lab: str, size: int):
        if not 1 <= size <= SIZE_LIMIT:
            raise MachineFailed(f"A lab network has 1 to {SIZE_LIMIT} machines, not {size}.")
        self.lab, self.size = lab, size
        self._keeper: HostProcess | None = _keeper(
            lab, "ip link add name br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0;"
                 "ip link set dev br0 up;")
        self._pid = self._keeper.pid
        self._ports = [Port(self, rank) for rank in range(size)]

    def port(self, rank: int) -> Port:
        return self._ports[rank]

    def enter(self) -> list[str]:
        """The prefix that runs a process in the bridge's namespace."""
        return ["nsenter", "-t", str(self._pid), "-n", "--"]

    def do(self, commands: str) -> None:
        """Run shell commands in the bridge's namespace. Raises MachineFailed."""
        do([*self.enter(), "sh", "-ec", commands], self.lab)

    def down(self) -> None:
        """End it; machines on it should be gone before. Safe to call twice."""
        for port in self._ports:
            port.close()
        if self._keeper is not None:
            _end(self._keeper)
            self._keeper = None
