"""``gvisor``: the userland on gVisor (runsc), a kernel written in Go that runs as a process.

The sandbox's own kernel serves every system call, its own network stack (netstack) every socket.
How it catches system calls is its platform: ``systrap`` (seccomp and shared memory, the default) or
``ptrace``. The root's changes are kept in the sandbox's memory.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from nearmetal import tools
from nearmetal.errors import CannotRun
from nearmetal.machines import oci
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.base import Layer, Machine, Order, register_layer
from nearmetal.machines.container import LimitParams, require
from nearmetal.machines.host import Host

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount",
         "taskset": "util-linux", "ip": "iproute2"}
_REMEDY = "Build it with `python -m nearmetal.tools` (about 2.5 minutes)."

# $1 the address of its port, "lo" for a network of its own without one, "" for its carrier's; the
# rest is runsc's command line. netstack takes eth0's address away from the kernel: a machine booted
# later on the same port finds it gone, so it is set anew. What runsc died of goes to the console.
_SCRIPT = """
[ -z "$1" ] || ip link set lo up
[ "${1:-lo}" = lo ] || ip addr replace "$1" dev eth0
shift
status=0
"$@" || status=$?
[ $status = 0 ] || echo "runsc ended with status $status (128, 137: killed, out of memory?)" >&2
exit $status
"""


class GvisorParams(LimitParams):
    """``platform``: how system calls are caught; ``cpus``, ``memory`` as for container."""

    platform: Literal["auto", "systrap", "ptrace"] = Field(
        default="auto", description="systrap, ptrace, or auto: systrap where runsc has it")


def is_current(version: str) -> bool:
    """Whether this runsc (first line of its --version) has systrap and -overlay2, which came in
    2023; Debian 12's says "0.0~20221219.0"."""
    return not re.search(r"20(1\d|2[012])\d{4}", version)


def options(version: str, platform: str, network: str, place: str) -> list[str]:
    """runsc's global options: the root's changes in memory, its state in the machine's folder."""
    common = [f"-platform={platform}", f"-network={network}", f"-root={place}/state",
              f"-log={place}/runsc.log"]
    return [*common, "-overlay2=root:memory" if is_current(version) else "-overlay"]


def without_cpuset(limited: oci.Limits) -> oci.Limits:
    """The limits with the processors left to taskset, and no cpuset.

    runsc makes as many virtual processors as the cpuset has, but from a quota two at least: with
    one, its network stack and the program wait for each other (an MPI ping-pong took half as long
    again).
    """
    cpu = {key: value for key, value in limited.resources.get("cpu", {}).items() if key != "cpus"}
    others = {key: value for key, value in limited.resources.items() if key != "cpu"}
    missing = tuple(what for what in limited.missing if not what.startswith("cpuset"))
    return replace(limited, resources={**others, **({"cpu": cpu} if cpu else {})},
                   missing=missing)


def first_command(cpus: int) -> list[str]:
    """The sandbox's first command: the agent, which sees ``cpus`` processors and no more."""
    return ["taskset", hex((1 << cpus) - 1), oci.AGENT]


def command(order: Order, limited: oci.Limits, on_host: bool, runtime: Sequence[str]) -> list[str]:
    """What to spawn on the carrier; its standard streams are the agent's."""
    port = order.port
    enter = port.enter() if port else ["unshare", "--net", "--"] if on_host else []
    address = f"{port.address}/{port.prefix}" if port else "lo" if on_host else ""
    return [*enter, *oci.guard(limited), "/bin/sh", "-ec", _SCRIPT, "gvisor", address, *runtime]


@register_layer
class Gvisor(Layer):
    name = "gvisor"
    summary = "gVisor (runsc): a kernel in a process, with its own network stack."
    Params = GvisorParams

    def check(self) -> None:
        require(TOOLS)
        if tools.find_runsc() is None:
            raise CannotRun("gVisor's runsc is not built.", _REMEDY)

    def _platform(self, version: str) -> str:
        assert isinstance(self.params, GvisorParams)
        asked = self.params.platform
        if asked == "auto":
            return "systrap" if is_current(version) else "ptrace"
        if asked == "systrap" and not is_current(version):
            raise CannotRun(f"This runsc has no systrap platform ({version}).", _REMEDY)
        return asked

    def up(self, carrier: Machine, order: Order) -> AgentMachine:
        assert isinstance(self.params, GvisorParams)
        program = tools.find_runsc()
        if program is None:
            raise CannotRun("gVisor's runsc is not built.", _REMEDY)
        order = self.params.applied(order)
        found = oci.survey(carrier)
        if found.cgroup == "unmounted":  # runsc would have to be told where, and is not
            found = replace(found, cgroup="none", controllers=frozenset())
        limited = without_cpuset(oci.limits(found, order.shape, oci.rank(order)))
        place = oci.place(order)
        on_host = isinstance(carrier, Host)
        try:
            version = oci.once(carrier, program, lambda: _version(program))
            platform = self._platform(version)
            # netstack would take a guest's address away, and Debian's does not start here: there
            # the sandbox passes sockets on to the namespace it runs in.
            network = "sandbox" if on_host and is_current(version) else "host"
            content = oci.config(order, carrier.root, limited,
                                 network="/proc/self/ns/net" if network == "sandbox" else None,
                                 args=first_command(order.shape.cpus))
            oci.lay_out(carrier, order, content)
            runsc = _deliver(carrier, program, place)
            unlimited = ["-ignore-cgroups"] if found.cgroup == "none" else []
            runtime = [runsc, *options(version, platform, network, place), *unlimited,
                       "run", "-bundle", place, oci.cgroup_name(order)]
            return AgentMachine(
                carrier.spawn(command(order, limited, on_host, runtime)),
                name=order.name, environment=self.name,
                address=order.port.address if order.port else carrier.address,
                console=order.workdir / f"{oci.safe(order.name)}.log",
                on_down=lambda: oci.remove(carrier, order), boot_timeout=order.boot_timeout,
                extra_facts={
                    "cpus": order.shape.cpus, "runtime": version, "platform": platform,
                    "rootfs": "overlay in memory",
                    "network_stack": "netstack" if network == "sandbox" else "the kernel's",
                    "affinity": "processors " + ",".join(map(str, limited.cpus)),
                    **oci.facts(found, limited)})
        except BaseException:
            oci.remove(carrier, order)
            raise


def _version(program: Path) -> str:
    """First line of what runsc's --version prints; it runs on the host."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30,
                          check=False)
    return (done.stdout.splitlines() or ["unknown"])[0]


def _deliver(carrier: Machine, program: Path, place: str) -> str:
    """Path of runsc on the carrier; copied there where the carrier is not the host."""
    if isinstance(carrier, Host):
        return str(program)
    carrier.put(program, f"{place}/runsc", 0o755)
    return f"{place}/runsc"
