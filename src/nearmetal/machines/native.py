"""``native``: the userland on the host's own kernel, with nothing under it but a chroot.

Namespaces keep it apart (files, processes, names, network); the processors are those of the host,
the first ``cpus`` of them. No cgroup, no limit, no filter of system calls.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from pydantic import Field

from nearmetal.errors import CannotRun
from nearmetal.machines.affinity import processors
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.base import Layer, LayerParams, Machine, Order, register_layer
from nearmetal.machines.rootfs import MOUNTS

RUN = Path("/run/nearmetal")
AGENT = "/opt/nearmetal/bin/nm-agent"

# $1 mount point, $2 userland, $3 host name. Mounts live in this mount namespace alone. A shell's
# `set -e` names the step that failed on standard error, which is kept.
_SETUP = f"""
set -e
mount -t tmpfs -o mode=755 nearmetal "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" nearmetal "$1/root"
cd "$1/root"
{MOUNTS}hostname "$3"
ip link set lo up 2>/dev/null || true
exec chroot . {AGENT}
"""


class NativeParams(LayerParams):
    """``cpus``: processors, instead of the study's number."""

    cpus: int | None = Field(default=None, ge=1, description="processors; default: the study's")


@register_layer
class Native(Layer):
    name = "native"
    summary = "The userland on the host's kernel: the baseline."
    Params = NativeParams
    on_host_only = True

    def check(self) -> None:
        for tool in ("unshare", "nsenter", "setpriv", "taskset", "mount", "ip", "chroot"):
            if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
                raise CannotRun(f"The program {tool!r} is not on this machine.",
                                "apt-get install util-linux iproute2")
        if os.geteuid() != 0:
            raise CannotRun("Namespaces and mounts need root.", "Run nearmetal as root.")

    def up(self, carrier: Machine, order: Order) -> AgentMachine:
        assert isinstance(self.params, NativeParams)
        cpus = processors(self.params.cpus or order.shape.cpus, order.port)
        place = RUN / order.lab / order.name
        place.mkdir(parents=True, exist_ok=True)
        own_network = [] if order.port else ["--net"]
        argv = [
            *(order.port.enter() if order.port else []),
            "taskset", "-c", ",".join(map(str, cpus)),
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts",
            "--ipc", *own_network, "--",
            "sh", "-c", _SETUP, "native", str(place), carrier.root, order.name,
        ]
        try:
            return AgentMachine(
                carrier.spawn(argv), name=order.name, environment=self.name,
                address=order.port.address if order.port else None,
                console=order.workdir / "console.log", boot_timeout=order.boot_timeout,
                on_down=lambda: _remove(place), extra_facts={"memory_mib": None})
        except BaseException:
            _remove(place)
            raise


def _remove(place: Path) -> None:
    """The machine's mount point, and the lab's folder when it was the last in it."""
    for folder in (place, place.parent, RUN):
        with contextlib.suppress(OSError):
            folder.rmdir()
