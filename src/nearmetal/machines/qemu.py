"""``qemu``: a whole virtual machine, by KVM where it executes natively, else by TCG.

The guest is Debian's generic kernel with the userland as its disk: read-only, shared by all
machines, changes kept in the guest's memory. Its agent speaks over a virtio port, or, where
nothing may be paravirtual, over an emulated serial port.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field, field_validator

from nearmetal import userland
from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines import initrd, kvm, qemu_command
from nearmetal.machines.affinity import processors
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.base import Layer, LayerParams, Machine, Order, register_layer
from nearmetal.machines.process import HostProcess
from nearmetal.machines.tsc import host_tsc_khz
from nearmetal.units import mebibytes

PACKAGE = "apt-get install qemu-system-x86"
_ANSWER_LIMIT = 60.0
_PANIC = re.compile(rb"(?<!end )Kernel panic - not syncing: [^\r\n]*")

_MITIGATIONS = """cd /sys/devices/system/cpu/vulnerabilities && for f in *; do
read -r line < $f; case $line in Mitigation*|Vulnerable*) echo "$f: ${line#Mitigation: }" ;; esac
done"""


class QemuParams(LayerParams):
    """As written in a path: ``qemu(io=emulated, cpus=2, memory=512M)``."""

    accel: Literal["auto", "kvm", "tcg"] = Field(
        "auto", description="auto: KVM if a timed probe shows native execution, else TCG")
    io: Literal["virtio", "emulated"] = Field(
        "virtio", description="virtio: paravirtual devices; emulated: AHCI disk, e1000, UART")
    machine: Literal["q35", "microvm"] = Field("q35", description="QEMU's machine type")
    kernel: Path | None = Field(None, description="a bzImage or vmlinux; default: the userland's")
    cpus: int | None = Field(None, ge=1, le=255, description="processors; default: the study's")
    memory: int | None = Field(None, ge=128, le=1 << 22,
                               description="512M, 2G or MiB; default: the study's")
    cpu: str = Field("max", pattern=r"^[A-Za-z0-9_.+,=-]+$", description="QEMU's CPU model")
    mitigations: Literal["auto", "off"] = Field(
        "auto", description="the guest kernel's parameter of that name")

    _memory = field_validator("memory", mode="before")(mebibytes)


@register_layer
class Qemu(Layer):
    name = "qemu"
    summary = "A virtual machine (QEMU): virtio or fully emulated devices, by KVM or by TCG."
    Params = QemuParams
    on_host_only = True
    params: QemuParams

    def __init__(self, params: LayerParams):
        super().__init__(params)
        if self.params.machine == "microvm" and self.params.io == "emulated":
            raise PathError("Layer 'qemu': machine=microvm has no emulated disk or network card.",
                            "Use io=virtio, or machine=q35.")

    def check(self) -> None:
        if platform.machine() != "x86_64":
            raise CannotRun(f"x86-64 guests are not run on {platform.machine()}.",
                            "Use an x86-64 machine.")
        if shutil.which(qemu_command.PROGRAM) is None:
            raise CannotRun("QEMU is not installed.", PACKAGE)
        if os.geteuid() != 0:
            raise CannotRun("The lab network's taps need root.", "Run nearmetal as root.")
        self.accel()
        if self.params.kernel is not None and not self.params.kernel.is_file():
            raise CannotRun(f"There is no kernel {self.params.kernel}.",
                            "Give the path of a bzImage or vmlinux, or leave `kernel` out.")

    def accel(self) -> Literal["kvm", "tcg"]:
        """What will be used. Raises CannotRun for accel=kvm without a usable KVM."""
        if self.params.accel == "tcg":
            return "tcg"
        found = kvm.probe()
        if found.usable:
            return "kvm"
        if self.params.accel == "kvm":
            raise CannotRun(f"KVM cannot be used here. {found.detail}",
                            "Use accel=tcg, or a machine whose KVM executes natively.")
        return "tcg"

    def substrate(self) -> str:
        return "KVM" if self.params.accel != "tcg" and kvm.probe().usable else "TCG"

    def up(self, carrier: Machine, order: Order) -> Machine:
        vm, enter = self.describe(order)
        cpus = processors(min(vm.cpus, len(os.sched_getaffinity(0))), order.port)
        argv = [*enter, "unshare", "--pid", "--fork", "--kill-child", "--",
                *qemu_command.command(vm)]
        process = carrier.spawn(argv, env={"TMPDIR": str(order.workdir)})
        machine = QemuMachine(
            process, name=order.name, environment=self.name,
            address=order.port.address if order.port else None, console=vm.console,
            boot_timeout=order.boot_timeout, extra_facts=self._facts(vm))
        try:
            machine.pin(cpus)
            machine.join_network(order)
        except BaseException:
            machine.down()
            raise
        return machine

    def describe(self, order: Order) -> tuple[qemu_command.Vm, list[str]]:
        """The machine to start, and the command prefix that puts it on its network."""
        params, cache = self.params, userland.cache_dir() / "boot"
        enter, nic = [], None
        if order.port is not None:
            enter, tap = order.port.tap()
            nic = qemu_command.Nic(tap, order.port.mac)
        drivers = "emulated" if params.io == "emulated" else (
            "virtio-pci" if params.machine == "q35" else "virtio-mmio")
        kernel = params.kernel or order.userland.kernel
        accel = self.accel()
        return qemu_command.Vm(
            name=order.name, accel=accel, io=params.io, machine=params.machine,
            cpus=params.cpus or order.shape.cpus,
            memory_mib=params.memory or order.shape.memory_mib,
            kernel=initrd.unpacked_kernel(kernel, cache),
            initrd=initrd.make_initrd(_modules(kernel, order), initrd.find_busybox(
                order.userland.tree), drivers, cache),
            root=order.userland.image, console=order.workdir / f"{order.name}.console",
            cpu=params.cpu, nic=nic, tsc_khz=host_tsc_khz() if accel == "tcg" else None,
            mitigations=params.mitigations), enter

    def _facts(self, vm: qemu_command.Vm) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "accel": vm.accel, "substrate": vm.accel.upper(), "io": vm.io, "machine": vm.machine,
            "qemu": qemu_version(), "cpu_model": vm.cpu, "memory_asked_mib": vm.memory_mib,
            "pinned": "the guest's processors; not the threads that serve its devices",
            "rootfs": "ext4, read-only, changes in memory (overlay)"}
        if vm.tsc_khz:
            facts["tsc_khz"] = vm.tsc_khz
        if vm.accel == "tcg" and self.params.accel == "auto":
            facts["kvm"] = kvm.probe().detail
        return facts


class QemuMachine(AgentMachine):
    """A virtual machine with an agent, whose process is one of the host."""

    process: HostProcess

    def pin(self, cpus: list[int]) -> None:
        """Keep the guest's processors on these of the host from now on.

        Not while it boots: machines that boot at once would then share the first processor.
        QEMU's own threads, which serve the devices, stay free: on the processor of a guest that
        polls they would wait for the end of its time slice at each packet (some ms).
        """
        for pid in _children(self.process.pid):
            for comm in Path(f"/proc/{pid}/task").glob("*/comm"):
                with contextlib.suppress(OSError):  # a thread that has ended
                    if comm.read_text().startswith("CPU "):
                        os.sched_setaffinity(int(comm.parent.name), cpus)

    def join_network(self, order: Order) -> None:
        """Give eth0 the address of the order's port. Raises MachineFailed."""
        if order.port is None:
            return
        script = (f"ip link set eth0 up && ip addr add {order.port.address}/{order.port.prefix}"
                  " dev eth0")
        done = self.run(["/bin/sh", "-c", script], timeout=_ANSWER_LIMIT)
        if done.status != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise MachineFailed(f"The network of {self.name!r} does not come up: {said}.",
                                "Its console is kept.")
        card = "virtio-net" if self._extra_facts["io"] == "virtio" else "e1000"
        self._extra_facts["network"] = f"lab network, {self.address} ({card}, tap)"

    def console_tail(self) -> str:
        """The kernel's reason for a panic if there was one, else the console's last lines."""
        if self.console is not None:
            with contextlib.suppress(OSError):
                found = _PANIC.findall(self.console.read_bytes())
                if found:
                    return found[0].decode(errors="replace").strip()
        return super().console_tail()

    def facts(self) -> dict[str, Any]:
        if "mitigations" not in self._extra_facts:
            done = self.run(["/bin/sh", "-c", _MITIGATIONS], timeout=_ANSWER_LIMIT)
            lines = done.stdout.decode(errors="replace").split("\n")
            self._extra_facts["mitigations"] = "; ".join(filter(None, lines)) or "none"
        return super().facts()


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


@functools.lru_cache(maxsize=1)
def qemu_version() -> str:
    """QEMU's version, such as "7.2.22"; "unknown" when it does not say."""
    try:
        done = subprocess.run([qemu_command.PROGRAM, "--version"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(rb"version (\S+)", done.stdout)
    return found[1].decode() if found else "unknown"


def _modules(kernel: Path, order: Order) -> Path | None:
    """The folder with the kernel's modules; None for one that is not installed with any.

    Such a kernel has to have the drivers built in.
    """
    if kernel == order.userland.kernel:
        return order.userland.modules
    version = initrd.kernel_version(kernel)
    places = [kernel.parent.parent / "lib/modules", Path("/lib/modules"),
              order.userland.modules.parent]
    return next((place / version for place in places if (place / version / "kernel").is_dir()),
                None)
