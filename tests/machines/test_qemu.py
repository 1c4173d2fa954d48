"""QEMU: exact command lines, parameters, choice of the accelerator; and machines that boot."""

from __future__ import annotations

import json
import os
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal import userland
from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines import kvm, qemu, qemu_command, tsc
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.cluster import Cluster
from nearmetal.machines.host import Host
from nearmetal.machines.network import LabNetwork
from nearmetal.machines.qemu_command import Nic, Vm

TCG = Vm(name="m0", accel="tcg", io="virtio", machine="q35", cpus=1, memory_mib=512,
         kernel=Path("/c/vmlinux"), initrd=Path("/c/initrd"), root=Path("/u/root.ext4"),
         console=Path("/w/m0.console"), tsc_khz=2300000)
KVM = replace(TCG, accel="kvm", tsc_khz=None)
NIC = Nic("t0", "02:4e:4d:77:00:01")
KERNEL = ("console=ttyS0 quiet panic=-1 oops=panic nokaslr no_timer_check nowatchdog"
          " cryptomgr.notests 8250.nr_uarts=2 random.trust_cpu=on i8042.noaux i8042.nokbd"
          " net.ifnames=0 hostname=m0")
STEADY = " clocksource=tsc tsc=reliable tsc_early_khz=2300000"
VIRTIO = " nm.root=/dev/vda nm.agent=/dev/vport*p1"
EMULATED = " nm.root=/dev/sda nm.agent=/dev/ttyS1"


def expected(machine, accel, line, devices, cpus=1):
    return shlex.split(
        "qemu-system-x86_64 -name m0,debug-threads=on -nodefaults -no-user-config -no-reboot"
        f" -display none -machine {machine} -accel {accel} -cpu max"
        f" -smp {cpus},sockets=1,cores={cpus},threads=1 -m 512M -kernel /c/vmlinux"
        f" -initrd /c/initrd -append '{line}'"
        " -chardev file,id=console,path=/w/m0.console,append=on -serial chardev:console"
        f" -chardev stdio,id=agent,signal=off {devices}")


DRIVE = "-drive if=none,id=root,file=/u/root.ext4,format=raw,file.locking=off"
COMMANDS = {
    "tcg, virtio, q35": (TCG, expected(
        "q35", "tcg,thread=multi", KERNEL + STEADY + VIRTIO,
        f"{DRIVE},readonly=on -device virtio-blk-pci,drive=root -device virtio-serial-pci"
        " -device virtserialport,chardev=agent,name=nearmetal")),
    "tcg, emulated, q35, network": (replace(TCG, io="emulated", nic=NIC), expected(
        "q35", "tcg,thread=multi", KERNEL + STEADY + EMULATED,
        f"{DRIVE},snapshot=on -device ide-hd,drive=root,bus=ide.0 -serial chardev:agent"
        " -netdev tap,id=net,ifname=t0,script=no,downscript=no"
        " -device e1000,netdev=net,mac=02:4e:4d:77:00:01")),
    "tcg, virtio, microvm, network": (replace(TCG, machine="microvm", nic=NIC), expected(
        "microvm", "tcg,thread=multi", KERNEL + STEADY + VIRTIO,
        f"{DRIVE},readonly=on -device virtio-blk-device,drive=root -device virtio-serial-device"
        " -device virtserialport,chardev=agent,name=nearmetal"
        " -netdev tap,id=net,ifname=t0,script=no,downscript=no"
        " -device virtio-net-device,netdev=net,mac=02:4e:4d:77:00:01")),
    "tcg, no steady counter, q35": (replace(TCG, io="emulated", tsc_khz=None), expected(
        "q35", "tcg,thread=multi", KERNEL + " clocksource=hpet tsc=unstable" + EMULATED,
        f"{DRIVE},snapshot=on -device ide-hd,drive=root,bus=ide.0 -serial chardev:agent")),
    "kvm, virtio, q35, 2 processors, network": (replace(KVM, cpus=2, nic=NIC), expected(
        "q35", "kvm", KERNEL + VIRTIO,
        f"{DRIVE},readonly=on -device virtio-blk-pci,drive=root -device virtio-serial-pci"
        " -device virtserialport,chardev=agent,name=nearmetal"
        " -netdev tap,id=net,ifname=t0,script=no,downscript=no"
        " -device virtio-net-pci,netdev=net,mac=02:4e:4d:77:00:01", cpus=2)),
    "kvm, emulated, q35": (replace(KVM, io="emulated"), expected(
        "q35", "kvm", KERNEL + EMULATED,
        f"{DRIVE},snapshot=on -device ide-hd,drive=root,bus=ide.0 -serial chardev:agent")),
    "kvm, virtio, microvm": (replace(KVM, machine="microvm"), expected(
        "microvm", "kvm", KERNEL + VIRTIO,
        f"{DRIVE},readonly=on -device virtio-blk-device,drive=root -device virtio-serial-device"
        " -device virtserialport,chardev=agent,name=nearmetal")),
    "mitigations off": (replace(KVM, mitigations="off"), expected(
        "q35", "kvm", KERNEL + " mitigations=off" + VIRTIO,
        f"{DRIVE},readonly=on -device virtio-blk-pci,drive=root -device virtio-serial-pci"
        " -device virtserialport,chardev=agent,name=nearmetal")),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_the_exact_command(what):
    vm, argv = COMMANDS[what]
    assert qemu_command.command(vm) == argv


def test_a_comma_in_a_path_is_doubled():
    argv = qemu_command.command(replace(TCG, root=Path("/a,b/root"), console=Path("/c,d")))
    assert any("file=/a,,b/root," in word for word in argv)
    assert any("path=/c,,d," in word for word in argv)


def probe(monkeypatch, found):
    monkeypatch.setattr(kvm, "probe", lambda: found)


EMULATING = kvm.classify(900.0)


@pytest.mark.parametrize(("params", "found", "accel", "substrate"), [
    ({}, EMULATING, "tcg", "TCG"),
    ({}, kvm.KvmProbe("absent"), "tcg", "TCG"),
    ({}, kvm.classify(0.4), "kvm", "KVM"),
    ({"accel": "kvm"}, kvm.classify(0.4), "kvm", "KVM"),
    ({"accel": "tcg"}, kvm.classify(0.4), "tcg", "TCG"),
])
def test_the_accelerator(monkeypatch, params, found, accel, substrate):
    probe(monkeypatch, found)
    layer = make_layer("qemu", params)
    assert (layer.accel(), layer.substrate()) == (accel, substrate)


def test_an_unusable_kvm_is_refused_with_the_figure(monkeypatch):
    probe(monkeypatch, EMULATING)
    with pytest.raises(CannotRun, match="0.9 us an instruction") as caught:
        make_layer("qemu", {"accel": "kvm"}).check()
    assert "accel=tcg" in caught.value.remedy


def test_no_qemu_is_refused_with_the_package(monkeypatch):
    monkeypatch.setattr(qemu.shutil, "which", lambda name: None)
    with pytest.raises(CannotRun, match="QEMU is not installed") as caught:
        make_layer("qemu", {"accel": "tcg"}).check()
    assert "qemu-system-x86" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="without root that comes first")
def test_a_kernel_that_is_not_there_is_refused():
    with pytest.raises(CannotRun, match="no kernel /nonexistent"):
        make_layer("qemu", {"accel": "tcg", "kernel": "/nonexistent"}).check()


@pytest.mark.parametrize(("text", "mib"), [
    ("512M", 512), ("2G", 2048), ("256", 256), ("1GiB", 1024), ("300mb", 300),
])
def test_memory_is_read(text, mib):
    assert make_layer("qemu", {"memory": text}).params.memory == mib


@pytest.mark.parametrize("params", [
    {"memory": "lots"}, {"memory": "1M"}, {"io": "scsi"}, {"machine": "pc"}, {"cpus": "0"},
    {"machine": "microvm", "io": "emulated"}, {"cpu": "max -S"}, {"colour": "red"},
])
def test_bad_parameters_are_refused(params):
    with pytest.raises(PathError):
        make_layer("qemu", params)


def test_modules_are_looked_for_where_the_kernel_lies(tmp_path):
    kernel = tmp_path / "boot/vmlinux"
    kernel.parent.mkdir()
    kernel.write_bytes(b"\x7fELF Linux version 9.9-own ")
    built = userland.Userland("id", tmp_path, tmp_path, tmp_path / "k", "1", tmp_path / "m/1",
                              tmp_path)
    order = Order("lab", "m0", Shape(), built, tmp_path)
    assert qemu._modules(kernel, order) is None
    (tmp_path / "lib/modules/9.9-own/kernel").mkdir(parents=True)
    assert qemu._modules(kernel, order) == tmp_path / "lib/modules/9.9-own"
    assert qemu._modules(tmp_path / "k", order) == tmp_path / "m/1"


def test_the_counter_is_measured_the_same_twice():
    first = tsc.host_tsc_khz()
    if first is None:
        pytest.skip("this host has no steady time stamp counter")
    tsc.host_tsc_khz.cache_clear()
    assert tsc.host_tsc_khz() == pytest.approx(first, rel=1e-4)
    assert 5e5 < first < 1e7


# --- machines that boot --------------------------------------------------------------------------


def offset(machine):
    """The best of several readings of the machine's clock: (host, machine, uncertainty), ns."""
    return min((machine.clock() for _ in range(30)), key=lambda reading: reading[2])


@pytest.mark.slow
@pytest.mark.parametrize("path", [
    "qemu(accel=tcg)", "qemu(accel=tcg, io=emulated)", "qemu(accel=tcg, machine=microvm)"])
def test_a_machine_boots_and_works(boot, path, tmp_path):
    machine = boot(path)
    facts = machine.facts()
    assert facts["substrate"] == "TCG" and facts["cpus"] == 1 and facts["clocksource"] in (
        "tsc", "tsc-early", "hpet")
    assert facts["kernel"].startswith("Linux 6.1.") and 380 < facts["memory_mib"] <= 512
    assert facts["qemu"][0].isdigit() and facts["mitigations"]
    threads = {path.read_text().strip(): os.sched_getaffinity(int(path.parent.name))
               for pid in qemu._children(machine.process.pid)
               for path in Path(f"/proc/{pid}/task").glob("*/comm")}
    assert len(next(iter(cpus for name, cpus in threads.items() if "CPU 0" in name))) == 1
    before = offset(machine)
    done = machine.run(["/opt/nearmetal/bin/dgemm", "--help"], timeout=60)
    assert done.status == 0 and b"dgemm" in done.stdout
    source = tmp_path / "source"
    source.write_bytes(os.urandom(60_000 if "emulated" in path else 300_000))  # 20 to 100 KB/s
    machine.put(source, "/usr/local/there")  # the image is read-only, its cover is not
    machine.get("/usr/local/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert machine.run(["ls", "/dev/sda", "/dev/vda"], timeout=30).stdout.strip() == (
        b"/dev/sda" if "emulated" in path else b"/dev/vda")
    assert 100 << 20 < machine.memory_bytes() < 900 << 20
    if time.monotonic_ns() - before[0] < 4e9:
        time.sleep(4)
    after = offset(machine)
    host, guest = after[0] - before[0], after[1] - before[1]
    assert abs(guest - host) <= 1e-3 * host + before[2] + after[2]
    machine.down()
    assert not machine.alive()


@pytest.mark.slow
def test_two_machines_read_one_image_at_once(boot):
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda path: boot(path, memory_mib=256),
                            ["qemu(accel=tcg, io=emulated)", "qemu(accel=tcg, machine=microvm)"])
    argv = ["sh", "-c", "touch /changed && md5sum /opt/nearmetal/bin/nm-agent"]
    sums = [machine.run(argv, timeout=60).stdout for machine in (one, two)]
    assert sums[0] == sums[1] and len(sums[0]) > 32


@pytest.mark.slow
def test_a_panic_before_the_agent_is_a_failure_with_the_console(boot, monkeypatch, tmp_path):
    monkeypatch.setattr(qemu_command, "_KERNEL",
                        (*qemu_command._KERNEL, "rdinit=/nothing", "init=/nothing"))
    with pytest.raises(MachineFailed, match="Kernel panic"):
        boot("qemu(accel=tcg, machine=microvm)", memory_mib=256, boot_timeout=90)
    assert "Kernel panic" in (tmp_path / "t0.console").read_text()


@pytest.mark.slow
def test_a_machine_that_hangs_is_a_failure_in_time(boot, monkeypatch):
    monkeypatch.setattr(qemu_command, "_KERNEL",
                        (*qemu_command._KERNEL, "rdinit=/bin/cat"))  # waits for a key
    start = time.monotonic()
    with pytest.raises(MachineFailed, match="did not come up in 5 s"):
        boot("qemu(accel=tcg, machine=microvm)", memory_mib=256, boot_timeout=5)
    assert time.monotonic() - start < 25


@pytest.mark.slow
def test_what_qemu_says_is_in_the_failure(boot):
    with pytest.raises(MachineFailed, match="unable to find CPU model 'nosuch'"):
        boot("qemu(accel=tcg, cpu=nosuch)")


@pytest.mark.slow
def test_a_panic_while_it_works_is_a_failure_with_the_console(boot):
    machine = boot("qemu(accel=tcg, machine=microvm)", memory_mib=256)
    with pytest.raises(MachineFailed, match="sysrq triggered crash"):
        machine.run(["sh", "-c", "echo c > /proc/sysrq-trigger"], timeout=60)
    assert not machine.alive()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", ["qemu(accel=tcg)", "qemu(accel=tcg, io=emulated)"])
def test_mpi_across_two_machines(path, lab, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("taps need root")
    name, _, params = path.rstrip(")").partition("(")
    params = dict(pair.split("=") for pair in params.split(", "))
    built = userland.ensure(None)
    host, network = Host(lab, built.tree), LabNetwork(lab, 2)

    def one(rank):
        order = Order(lab, f"m{rank}", Shape(1, 384), built, tmp_path, network.port(rank), 180)
        return make_layer(name, params).up(host, order)

    cluster = Cluster.boot(one, 2, network)
    try:
        argv = ["/opt/nearmetal/bin/presta-laten", "--operations", "20", "--tests", "2"]
        done = cluster.mpi(argv, ranks=2, timeout=240)
        assert done.status == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        assert [line["ok"] for line in lines if line["type"] == "verify"] == [True]
        card = "e1000" if "emulated" in path else "virtio-net"
        assert card in cluster.machines[0].facts()["network"]
    finally:
        cluster.down()
