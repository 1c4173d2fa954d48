"""``container``: the userland in an OCI container run by crun, with namespaces and cgroup limits.

The container shares its carrier's kernel. Its root is the userland with changes kept in memory
(overlayfs), or read-only where the carrier has none. It stands on any machine: in a guest it
is the guest's own crun that runs it, and it shares the guest's network.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

from pydantic import Field, field_validator

from nearmetal.errors import CannotRun
from nearmetal.machines import oci
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.base import Layer, LayerParams, Machine, Order, Shape, register_layer
from nearmetal.machines.host import Host
from nearmetal.units import mebibytes

TOOLS = {"crun": "crun", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount",
         "taskset": "util-linux"}

# $1 the machine's folder, $2 the root of the userland. A shell's `set -e` stops at the step that
# failed; what that said is in the console. The root is bound first: a path's ':' or ',' would end
# an overlay's option.
_OVERLAY = """
mount -t tmpfs -o mode=755 nearmetal "$1/scratch"
cd "$1/scratch"
mkdir upper work lower root
mount --bind "$2" lower
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work nearmetal root
cd /
"""
_BIND = """
mount --bind "$2" "$1/scratch"
"""


class LimitParams(LayerParams):
    """``cpus``, ``memory``: the limits, instead of the study's figures."""

    cpus: int | None = Field(default=None, ge=1, description="processors; default: the study's")
    memory: int | None = Field(default=None, ge=16, le=1 << 22,
                               description="512M, 2G or MiB; default: the study's")

    _memory = field_validator("memory", mode="before")(mebibytes)

    def applied(self, order: Order) -> Order:
        """The order with these limits in place of its shape's."""
        return replace(order, shape=Shape(self.cpus or order.shape.cpus,
                                          self.memory or order.shape.memory_mib))


def script(carrier: oci.Carrier) -> str:
    """The shell script that prepares the mounts and becomes crun: $1 folder, $2 root, $3 id."""
    manager = "disabled" if carrier.cgroup == "none" else "cgroupfs"
    return ("set -e\n" + oci.cgroup_mounts(carrier) + (_OVERLAY if carrier.overlay else _BIND)
            + f'exec crun --root "$1/state" --cgroup-manager={manager} run --bundle "$1" "$3"\n')


def command(carrier: oci.Carrier, order: Order, root: str, limited: oci.Limits) -> list[str]:
    """What to spawn on the carrier; its standard streams are the agent's."""
    return [*(order.port.enter() if order.port else []), *oci.guard(limited),
            "/bin/sh", "-c", script(carrier), "container", oci.place(order), root,
            oci.cgroup_name(order)]


def require(tools: dict[str, str]) -> None:
    """Raise CannotRun unless we are root and the host has these programs ({program: package})."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if missing:
        packages = " ".join(dict.fromkeys(tools[tool] for tool in missing))
        raise CannotRun(f"{', '.join(missing)} is not on this machine.",
                        f"apt-get install {packages}")
    if os.geteuid() != 0:
        raise CannotRun("Namespaces, mounts and cgroups need root.", "Run nearmetal as root.")


@register_layer
class Container(Layer):
    name = "container"
    summary = "An OCI container (crun): namespaces and cgroup limits on its carrier's kernel."
    Params = LimitParams

    def check(self) -> None:
        require(TOOLS)

    def up(self, carrier: Machine, order: Order) -> AgentMachine:
        assert isinstance(self.params, LimitParams)
        order = self.params.applied(order)
        version = oci.runtime_version(carrier, ["crun", "--version"])
        if version is None:
            raise CannotRun(f"crun is not on {carrier.name!r}.", "apt-get install crun")
        found = oci.survey(carrier)
        limited = oci.limits(found, order.shape, oci.rank(order))
        place = oci.place(order)
        root = f"{place}/scratch/root" if found.overlay else f"{place}/scratch"
        # On a port, crun starts in the port's namespace. On the host without one it makes one. In a
        # guest it shares the guest's network.
        network = "" if isinstance(carrier, Host) and order.port is None else None
        extra = {
            "runtime": version, "seccomp": "none",
            "rootfs": "overlay, changes in memory" if found.overlay else "read-only",
            **oci.facts(found, limited)}
        try:
            oci.lay_out(carrier, order, oci.config(order, root, limited, network=network,
                                                   read_only=not found.overlay))
            return AgentMachine(
                carrier.spawn(command(found, order, carrier.root, limited)),
                name=order.name, environment=self.name,
                address=order.port.address if order.port else carrier.address,
                console=order.workdir / f"{oci.safe(order.name)}.log",
                on_down=lambda: oci.remove(carrier, order),
                boot_timeout=order.boot_timeout, extra_facts=extra)
        except BaseException:
            oci.remove(carrier, order)
            raise
