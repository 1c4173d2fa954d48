"""``gvisor``: the commands it makes (no root needed), and real sandboxes (slow)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_oci import DEBIAN_12, order

from nearmetal import cleanup, tools
from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines import gvisor, oci
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.host import Host

PINNED = "runsc version v0.0.0-20260905035102-160fafc42237"
OLD = "runsc version 0.0~20221219.0"
PORT = SimpleNamespace(rank=1, address="10.77.0.2", prefix=24,
                       enter=lambda: ["nsenter", "-t", "77", "-n", "--"])


def limited(cpus=1):
    return gvisor.without_cpuset(oci.limits(oci.read_survey(DEBIAN_12), Shape(cpus, 512)))


def test_the_options_of_the_pinned_runsc():
    assert gvisor.options(PINNED, "systrap", "sandbox", "/p") == [
        "-platform=systrap", "-network=sandbox", "-root=/p/state", "-log=/p/runsc.log",
        "-overlay2=root:memory"]


def test_debians_old_runsc_has_another_overlay_option():
    assert gvisor.options(OLD, "ptrace", "sandbox", "/p")[-1] == "-overlay"


def test_the_command_on_a_port_sets_its_address_again():
    words = gvisor.command(order(port=PORT), limited(), True, ["runsc", "run"])
    assert words[:8] == ["nsenter", "-t", "77", "-n", "--", "taskset", "-c", "0"]
    assert words[-4:] == ["gvisor", "10.77.0.2/24", "runsc", "run"]
    assert subprocess.run(["sh", "-n", "-c", gvisor._SCRIPT], check=False).returncode == 0


def test_without_a_port_it_has_a_network_of_its_own_and_in_a_guest_the_guests():
    assert gvisor.command(order(), limited(), True, ["x"])[:3] == ["unshare", "--net", "--"]
    assert gvisor.command(order(), limited(), True, ["x"])[-2:] == ["lo", "x"]
    inside = gvisor.command(order(), limited(), False, ["x"])
    assert inside[0] == "taskset" and inside[-2:] == ["", "x"]


@pytest.mark.parametrize("address, does", [
    ("", []), ("lo", ["link set lo up"]),
    ("10.77.0.2/24", ["link set lo up", "addr replace 10.77.0.2/24 dev eth0"])])
def test_the_script_prepares_the_network_and_tells_the_status(tmp_path, address, does):
    ip = tmp_path / "ip"
    ip.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/log\n")
    ip.chmod(0o755)
    done = subprocess.run(["/bin/sh", "-ec", gvisor._SCRIPT, "gvisor", address, "sh", "-c",
                           "exit 5"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False,
                          capture_output=True, text=True, timeout=20)
    log = tmp_path / "log"
    assert (log.read_text().splitlines() if log.exists() else []) == does
    assert done.returncode == 5 and "runsc ended with status 5" in done.stderr


def test_processors_are_left_to_affinity():
    assert limited(2).resources["cpu"] == {"quota": 200_000, "period": 100_000}
    assert limited(2).cpus == (0, 1) and limited().missing == ()
    assert gvisor.first_command(2) == ["taskset", "0x3", oci.AGENT]


def test_the_platform_that_runsc_has():
    auto, systrap = make_layer("gvisor", {}), make_layer("gvisor", {"platform": "systrap"})
    assert (auto._platform(PINNED), auto._platform(OLD)) == ("systrap", "ptrace")
    assert make_layer("gvisor", {"platform": "ptrace"})._platform(PINNED) == "ptrace"
    with pytest.raises(CannotRun, match="no systrap"):
        systrap._platform(OLD)
    with pytest.raises(PathError, match="platform"):
        make_layer("gvisor", {"platform": "magic"})


def test_a_missing_runsc_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(gvisor, "require", lambda tools: None)
    monkeypatch.setattr(tools, "find_runsc", lambda: None)
    with pytest.raises(CannotRun, match="not built") as error:
        make_layer("gvisor", {}).check()
    assert "python -m nearmetal.tools" in error.value.remedy


# --- real ones


@pytest.fixture
def up(lab, small_userland, tmp_path):
    """Boot a sandbox with a small userland; all are ended after the test."""
    if tools.find_runsc() is None:
        pytest.skip("runsc is not built (python -m nearmetal.tools)")
    made = []

    def one(name="m", memory_mib=256, **params):
        layer = make_layer("gvisor", params)
        layer.check()
        ordered = Order(lab, name, Shape(1, memory_mib), small_userland, tmp_path,
                        boot_timeout=60)
        made.append(layer.up(Host(lab, small_userland.tree), ordered))
        return made[-1]

    yield one
    for machine in made:
        machine.down()


def sh(machine, script: str, timeout: float = 60):
    return machine.run(["sh", "-c", script], timeout=timeout)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes need root here")
class TestReal:
    @pytest.mark.parametrize("platform", ["systrap", "ptrace"])
    def test_it_runs_commands_on_its_own_kernel(self, up, small_userland, platform):
        if platform not in ("ptrace", make_layer("gvisor", {})._platform(_version())):
            pytest.skip(f"this runsc has no {platform} platform")
        machine = up(platform=platform)
        assert sh(machine, "echo hello").stdout == b"hello\n"
        assert sh(machine, "exit 3").status == 3
        assert b"Starting gVisor" in sh(machine, "dmesg").stdout
        assert sh(machine, "nproc").stdout == b"1\n"
        assert b"127.0.0.1" in sh(machine, "ip addr").stdout
        assert sh(machine, "touch /made && ls /made").status == 0
        assert not (small_userland.tree / "made").exists()
        facts = machine.facts()
        assert facts["platform"] == platform and facts["runtime"].startswith("runsc version")

    def test_memory_beyond_the_limit_is_a_failed_run_or_machine(self, up, lab):
        machine = up(memory_mib=96)
        if machine.facts()["cgroup"] == "none":
            pytest.skip("no memory cgroup here")
        try:
            done = machine.run(["tail", "-c", "500000000", "/dev/zero"], timeout=60)
        except MachineFailed as error:  # the sandbox's own kernel is what the host killed
            assert "runsc ended with status" in str(error)
            assert not machine.alive()
        else:
            assert done.status not in (0, None)
        machine.down()
        assert cleanup.leftovers(lab) == []

    def test_down_leaves_nothing(self, up, lab):
        machine = up()
        assert machine.memory_bytes() > 1 << 20
        pid = machine.process.pid
        machine.down()
        machine.down()
        assert not machine.alive() and not Path(f"/proc/{pid}").exists()
        root = Path("/sys/fs/cgroup")
        left = [*root.glob(f"nearmetal-{lab}-*"), *root.glob(f"*/nearmetal-{lab}-*")]
        assert left == [] and not Path("/run/nearmetal", lab).exists()
        assert cleanup.leftovers(lab) == []


def _version() -> str:
    program = tools.find_runsc()
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True,
                          timeout=30).stdout.splitlines()[0]
