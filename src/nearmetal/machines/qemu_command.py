"""QEMU's command line for a virtual machine: a pure function of its description.

QEMU's options: "QEMU User Documentation", Invocation. Kernel parameters: Linux,
Documentation/admin-guide/kernel-parameters.txt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROGRAM = "qemu-system-x86_64"


@dataclass(frozen=True)
class Nic:
    """A network card on the tap ``tap``, with the address ``mac``."""

    tap: str
    mac: str


@dataclass(frozen=True)
class Vm:
    """A virtual machine. Paths are on the host; memory in MiB.

    ``tsc_khz`` is the frequency of the counter that a TCG guest sees, None where it has no steady
    one. ``mitigations`` is the kernel parameter; "auto" leaves the kernel's default.
    """

    name: str
    accel: Literal["kvm", "tcg"]
    io: Literal["virtio", "emulated"]
    machine: Literal["q35", "microvm"]
    cpus: int
    memory_mib: int
    kernel: Path
    initrd: Path
    root: Path
    console: Path
    cpu: str = "max"
    nic: Nic | None = None
    tsc_khz: int | None = None
    mitigations: str = "auto"


# Quiet and without checks that only cost time on a machine that does not change; the kernel's
# place is the same at every boot, as far as that decides speed.
_KERNEL = ("console=ttyS0", "quiet", "panic=-1", "oops=panic", "nokaslr", "no_timer_check",
           "nowatchdog", "cryptomgr.notests", "8250.nr_uarts=2", "random.trust_cpu=on",
           "i8042.noaux", "i8042.nokbd", "net.ifnames=0")


def kernel_line(vm: Vm) -> str:
    """The kernel's command line."""
    words = [*_KERNEL, f"hostname={vm.name}", *_clock(vm)]
    if vm.mitigations != "auto":
        words.append(f"mitigations={vm.mitigations}")
    if vm.io == "virtio":
        words += ["nm.root=/dev/vda", "nm.agent=/dev/vport*p1"]
    else:
        words += ["nm.root=/dev/sda", "nm.agent=/dev/ttyS1"]
    return " ".join(words)


def _clock(vm: Vm) -> list[str]:
    """The guest's clock source.

    TCG: the time stamp counter, which is the host's, with its frequency given (see tsc.py); the
    kernel then does not watch or distrust it. Without a steady counter: the HPET, which QEMU
    drives by the host's monotonic clock. KVM: the kernel's own choice (kvm-clock or tsc).
    """
    if vm.accel == "kvm":
        return []
    if vm.tsc_khz is not None:
        return ["clocksource=tsc", "tsc=reliable", f"tsc_early_khz={vm.tsc_khz}"]
    return ["clocksource=hpet", "tsc=unstable"] if vm.machine == "q35" else []


def command(vm: Vm) -> list[str]:
    """QEMU's argument list. Its standard input and output are the agent's byte stream."""
    accel = "tcg,thread=multi" if vm.accel == "tcg" else "kvm"
    return [
        PROGRAM, "-name", f"{vm.name},debug-threads=on",  # threads have names, see QemuMachine.pin
        "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        "-machine", vm.machine, "-accel", accel, "-cpu", vm.cpu,
        "-smp", f"{vm.cpus},sockets=1,cores={vm.cpus},threads=1", "-m", f"{vm.memory_mib}M",
        "-kernel", str(vm.kernel), "-initrd", str(vm.initrd), "-append", kernel_line(vm),
        "-chardev", f"file,id=console,path={escape(vm.console)},append=on",
        "-serial", "chardev:console",
        "-chardev", "stdio,id=agent,signal=off",
        *_devices(vm),
    ]


def escape(path: Path) -> str:
    """A path as a value in QEMU's option=value,... syntax, where a comma is written twice."""
    return str(path).replace(",", ",,")


def _devices(vm: Vm) -> list[str]:
    # Many machines read one image: it is opened read-only and not locked.
    image = f"if=none,id=root,file={escape(vm.root)},format=raw,file.locking=off"
    network = []
    if vm.nic:
        network = ["-netdev", f"tap,id=net,ifname={vm.nic.tap},script=no,downscript=no"]
    if vm.io == "emulated":
        # An IDE disk cannot be read-only; what is written goes to an unlinked temporary file.
        words = ["-drive", f"{image},snapshot=on", "-device", "ide-hd,drive=root,bus=ide.0",
                 "-serial", "chardev:agent", *network]
        card = "e1000"
    else:
        bus = "pci" if vm.machine == "q35" else "device"
        words = ["-drive", f"{image},readonly=on", "-device", f"virtio-blk-{bus},drive=root",
                 "-device", f"virtio-serial-{bus}",
                 "-device", "virtserialport,chardev=agent,name=nearmetal", *network]
        card = f"virtio-net-{bus}"
    if vm.nic:
        words += ["-device", f"{card},netdev=net,mac={vm.nic.mac}"]
    return words
