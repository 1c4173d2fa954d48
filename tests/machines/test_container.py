"""``container``: the commands it makes (no root needed), and real ones (slow)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_oci import BARE, DEBIAN_12, GUEST, HYBRID, order

from nearmetal import cleanup, tools, userland
from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines import container, oci
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.cluster import Cluster
from nearmetal.machines.host import Host
from nearmetal.machines.network import LabNetwork

PORT = SimpleNamespace(rank=1, address="10.77.0.2", prefix=24,
                       enter=lambda: ["nsenter", "-t", "77", "-n", "--"])


def command(survey: str, ordered, root="/u") -> list[str]:
    carrier = oci.read_survey(survey)
    return container.command(carrier, ordered, root,
                             oci.limits(carrier, ordered.shape, oci.rank(ordered)))


def test_the_command_on_a_debian_12_host():
    words = command(DEBIAN_12, order(port=PORT))
    assert words[:5] == ["nsenter", "-t", "77", "-n", "--"]
    assert words[5:8] == ["taskset", "-c", "1"]
    assert words[-4:] == ["container", "/run/nearmetal/20260101-1-aa/m0", "/u",
                          "nearmetal-20260101-1-aa-m0"]
    assert words[-7:-5] == ["/bin/sh", "-c"]


def test_the_script_on_a_debian_12_host():
    lines = container.script(oci.read_survey(DEBIAN_12)).splitlines()
    assert lines[0] == "set -e"
    assert lines[-1] == ('exec crun --root "$1/state" --cgroup-manager=cgroupfs run '
                         '--bundle "$1" "$3"')
    assert not any("cgroup2" in line or "umount" in line for line in lines)
    assert any("-t overlay" in line for line in lines)


@pytest.mark.parametrize("survey, has, has_not", [
    (HYBRID, "umount /sys/fs/cgroup/unified", "cgroup2"),
    (GUEST, "mount -t cgroup2", "-t overlay"),
    (BARE, "--cgroup-manager=disabled", "-t overlay")])
def test_the_script_elsewhere(survey, has, has_not):
    text = container.script(oci.read_survey(survey))
    assert has in text and has_not not in text
    assert subprocess.run(["sh", "-n", "-c", text], check=False).returncode == 0


def test_a_missing_crun_is_named_with_its_package(monkeypatch, tmp_path):
    real = container.shutil.which
    monkeypatch.setattr(container.shutil, "which",
                        lambda name, path=None: None if name == "crun" else real(name, path=path))
    with pytest.raises(CannotRun, match="crun") as error:
        make_layer("container", {}).check()
    assert error.value.remedy == "apt-get install crun"


def test_it_needs_root(monkeypatch):
    monkeypatch.setattr(container.shutil, "which", lambda name, path=None: f"/bin/{name}")
    monkeypatch.setattr(container.os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRun, match="root"):
        make_layer("container", {}).check()


@pytest.mark.parametrize("text, mib", [("512M", 512), ("2G", 2048), ("64", 64), ("1GiB", 1024)])
def test_its_own_limits_win(text, mib):
    made = make_layer("container", {"memory": text, "cpus": "2"}).params.applied(order())
    assert made.shape == Shape(2, mib)
    assert make_layer("container", {"cpus": "2"}).params.applied(
        order(memory_mib=99)).shape == Shape(2, 99)


def test_limits_that_make_no_sense_are_refused():
    for params in ({"memory": "lots"}, {"memory": "1M"}, {"cpus": "0"}):
        with pytest.raises(PathError, match="container"):
            make_layer("container", params)


# --- real ones


@pytest.fixture
def up(lab, small_userland, tmp_path):
    """Boot a container of a small userland; all are ended after the test."""
    made = []

    def one(name="m", memory_mib=128, **params):
        layer = make_layer("container", params)
        layer.check()
        ordered = Order(lab, name, Shape(1, memory_mib), small_userland, tmp_path,
                        boot_timeout=30)
        made.append(layer.up(Host(lab, small_userland.tree), ordered))
        return made[-1]

    yield one
    for machine in made:
        machine.down()


def sh(machine, script: str, timeout: float = 30):
    return machine.run(["sh", "-c", script], timeout=timeout)


slow_as_root = [pytest.mark.slow,
                pytest.mark.skipif(os.geteuid() != 0, reason="containers need root here")]


class TestReal:
    pytestmark = slow_as_root

    def test_it_runs_commands_apart_from_the_host(self, up, small_userland):
        machine = up()
        assert sh(machine, "echo hello").stdout == b"hello\n"
        assert sh(machine, "exit 3").status == 3
        assert sh(machine, "hostname").stdout == b"m\n"
        assert b"nm-agent" in sh(machine, "cat /proc/1/cmdline").stdout
        assert sh(machine, "ls /sys/class/net").stdout == b"lo\n"
        assert sh(machine, "touch /made && ls /made").status == 0
        assert not (small_userland.tree / "made").exists()

    def test_facts_tell_runtime_and_limits(self, up):
        facts = up(memory_mib=96).facts()
        assert facts["runtime"].startswith("crun version")
        assert facts["cpus"] == 1
        if facts["cgroup"] != "none":
            assert facts["memory_mib"] == 96 and "memory 96 MiB" in facts["limits"]

    def test_memory_beyond_the_limit_kills_the_command_alone(self, up):
        machine = up(memory_mib=64)
        if "memory_mib" not in machine.facts() or machine.facts()["cgroup"] == "none":
            pytest.skip("no memory cgroup here")
        done = machine.run(["tail", "-c", "500000000", "/dev/zero"], timeout=60)
        assert done.status == 137
        assert sh(machine, "echo still here").stdout == b"still here\n"

    def test_it_has_its_own_processor(self, up):
        done = sh(up(), "grep Cpus_allowed_list /proc/self/status")
        assert len(oci.number_list(done.stdout.split()[-1].decode())) == 1

    def test_down_leaves_nothing(self, up, lab):
        machine = up()
        pid = machine.process.pid
        assert any(lab in path.name for path in cgroups()) or machine.facts()["cgroup"] == "none"
        machine.down()
        machine.down()
        assert not machine.alive() and not Path(f"/proc/{pid}").exists()
        assert not [path for path in cgroups() if lab in path.name]
        assert not Path("/run/nearmetal", lab).exists()
        assert lab not in Path("/proc/mounts").read_text()
        assert cleanup.leftovers(lab) == []

    def test_a_container_without_an_agent_is_a_failed_machine(self, up, small_userland, lab,
                                                              tmp_path):
        agent = small_userland.tree / "opt/nearmetal/bin/nm-agent"
        aside = agent.with_name("aside")
        agent.rename(aside)
        try:
            with pytest.raises(MachineFailed, match="nm-agent"):
                up()
        finally:
            aside.rename(agent)
        assert not [path for path in cgroups() if lab in path.name]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("layer", ["container", "gvisor"])
def test_mpi_between_two_machines(layer, lab, tmp_path):
    if layer == "gvisor" and tools.find_runsc() is None:
        pytest.skip("runsc is not built (python -m nearmetal.tools)")
    built = userland.ensure(None)
    network = LabNetwork(lab, 2)

    def boot_one(rank: int):
        ordered = Order(lab, f"m{rank}", Shape(1, 512), built, tmp_path, network.port(rank),
                        boot_timeout=60)
        return make_layer(layer, {}).up(Host(lab, built.tree), ordered)

    cluster = Cluster.boot(boot_one, 2, network)
    try:
        done = cluster.mpi(["/opt/nearmetal/bin/presta-laten", "--operations", "50", "--tests",
                            "1"], ranks=2, timeout=90)
        assert done.status == 0, done.stderr.decode(errors="replace")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["ok"] for line in lines if line["type"] == "verify"] == [True]
        assert all(line["value"] > 0 for line in lines if line["type"] == "metric")
        names = {machine.run(["hostname"], timeout=20).stdout for machine in cluster.machines}
        assert names == {b"m0\n", b"m1\n"}
    finally:
        cluster.down()


@pytest.mark.slow
def test_a_container_in_a_virtual_machine_has_its_own_limits(boot):
    """cgroup v2 for certain: the guest's kernel has no other."""
    machine = boot("qemu(memory=384M)/container(memory=64M)")
    facts = machine.facts()
    assert facts["cgroup"] == "v2" and "memory 64 MiB" in facts["limits"]
    assert facts["substrate"] in ("TCG", "KVM") and facts["runtime"].startswith("crun")
    done = machine.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"], timeout=120)
    assert done.status == 137
    assert machine.run(["echo", "still here"], timeout=60).stdout == b"still here\n"


def cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob("nearmetal-*"), *root.glob("*/nearmetal-*")]
