"""``native``: apart from the host in all but its kernel and processors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearmetal import cleanup
from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines.affinity import processors
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.host import Host

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root")


@pytest.fixture
def boot(lab, small_userland, tmp_path):
    """A function that boots a native machine; all are ended after the test."""
    made = []

    def one(name: str = "m", port=None, cpus: int = 1, **params: str):
        workdir = tmp_path / name
        workdir.mkdir()
        order = Order(lab, name, Shape(cpus=cpus), small_userland, workdir, port,
                      boot_timeout=30)
        machine = make_layer("native", params).up(Host(lab, small_userland), order)
        made.append(machine)
        return machine

    yield one
    for machine in made:
        machine.down()


def sh(machine, script: str) -> str:
    done = machine.run(["sh", "-c", script], timeout=20)
    assert done.status == 0, done.stderr
    return done.stdout.decode().strip()


def test_it_is_apart_from_the_host(boot, small_userland):
    machine = boot()
    assert sh(machine, "hostname") == "m"
    assert sh(machine, "ls -d /proc/[0-9]* | wc -l").isdigit()
    assert "nm-agent" in sh(machine, "tr '\\0' ' ' < /proc/1/cmdline")
    assert sh(machine, "cd /sys/class/net; echo *") == "lo"
    assert sh(machine, "touch /made /tmp/made /dev/shm/made; ls /tmp /dev/shm | grep -c made"
              ) == "2"
    assert not (small_userland.tree / "made").exists()
    assert not Path("/tmp/made").exists() and not Path("/dev/shm/made").exists()
    assert sh(machine, "cat /sys/class/net/lo/operstate; ip addr show lo | grep -c 127.0.0.1"
              ).endswith("1")


def test_two_do_not_share_files(boot):
    first, second = boot("a"), boot("b")
    sh(first, "echo x > /dev/shm/x; echo x > /tmp/x; echo x > /x")
    assert sh(second, "ls /x /tmp/x /dev/shm/x 2>/dev/null | wc -l") == "0"


def test_facts(boot):
    machine = boot()
    facts = machine.facts()
    assert facts["cpus"] == 1 and facts["memory_mib"] is None
    assert facts["kernel"] == f"Linux {os.uname().release}"
    assert facts["network"] == "none" and 0 < facts["boot_s"] < 20
    assert facts["clocksource"] == Path(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    assert 0 < machine.memory_bytes() < 100 << 20
    assert sh(machine, "nproc") == "1"


def test_nothing_is_left_after_down(boot, lab):
    machine = boot()
    place = Path("/run/nearmetal") / lab
    assert place.is_dir()
    assert lab not in Path("/proc/self/mountinfo").read_text()  # mounts are its own
    machine.down()
    machine.down()
    assert not place.exists()
    assert cleanup.leftovers(lab) == []
    assert not machine.alive()


def test_processors(boot):
    count = len(os.sched_getaffinity(0))
    assert sh(boot("m", cpus=count), "nproc") == str(count)
    assert sh(boot("n"), "nproc") == "1"
    with pytest.raises(CannotRun, match=f"{count + 1} processors"):
        boot("o", cpus=count + 1)


def test_a_parameter_wins_over_the_shape(lab, small_userland, tmp_path):
    count = len(os.sched_getaffinity(0))
    order = Order(lab, "m", Shape(cpus=count), small_userland, tmp_path, boot_timeout=30)
    machine = make_layer("native", {"cpus": "1"}).up(Host(lab, small_userland), order)
    assert machine.facts()["cpus"] == 1
    machine.down()
    with pytest.raises(PathError):
        make_layer("native", {"cpus": "0"})


def test_machines_on_a_network_get_processors_in_turn(monkeypatch):
    class At:
        def __init__(self, rank):
            self.rank = rank

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5})
    assert processors(2) == [2, 3]
    assert [processors(1, At(rank)) for rank in range(4)] == [[2], [3], [5], [2]]
    assert [processors(2, At(rank)) for rank in range(3)] == [[2, 3], [2, 5], [3, 5]]
    with pytest.raises(CannotRun):
        processors(4)


def test_a_userland_without_an_agent(lab, tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    order = Order(lab, "m", Shape(), None, tmp_path, boot_timeout=10)  # type: ignore[arg-type]
    with pytest.raises(MachineFailed, match="(?s)ended while it booted.*mount"):
        make_layer("native", {}).up(Host(lab, tree), order)
    assert cleanup.leftovers(lab) == []


LAB = """
import sys, tempfile, time
from pathlib import Path
from types import SimpleNamespace
from nearmetal import cleanup
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.cluster import Cluster
from nearmetal.machines.host import Host
from nearmetal.machines.network import LabNetwork
mark, userland = cleanup.new_mark(), SimpleNamespace(tree=Path(sys.argv[1]))
host, network = Host(mark, userland), LabNetwork(mark, 2)
network.port(1).tap()
def one(rank):
    order = Order(mark, f"m{rank}", Shape(), userland, Path(sys.argv[2]), network.port(rank), 30)
    return make_layer("native", {}).up(host, order)
cluster = Cluster.boot(one, 2, network)
cluster._listen()
for machine in cluster.machines:
    machine.spawn(["sh", "-c", "setsid sleep 600 & sleep 600"])
print(mark, flush=True)
time.sleep(600)
"""


def namespaces() -> set[str]:
    """Network namespaces that some process or name holds."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    return found | {path.name for path in Path("/run/netns").glob("nearmetal-*")}


def processes_of(mark: str) -> list[cleanup.Leftover]:
    """Those alive: a dead one that nobody has reaped has no environment."""
    return [one for one in cleanup.leftovers(mark) if one.kind == "process"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_survives_a_killed_lab(small_userland, tmp_path, number):
    before = namespaces()
    lab = subprocess.Popen([sys.executable, "-c", LAB, small_userland.tree, tmp_path],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    mark = lab.stdout.readline().decode().strip()
    lab.stdout.close()
    try:
        started = time.monotonic() + 5  # the last ones may still be on their way
        while time.monotonic() < started and len(processes_of(mark)) < 12:
            time.sleep(0.05)
        assert len(processes_of(mark)) >= 12
        assert len(namespaces() - before) >= 3
    finally:
        lab.send_signal(number)
        lab.wait(20)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and (processes_of(mark) or namespaces() - before):
        time.sleep(0.05)
    assert processes_of(mark) == []
    assert not [one for one in cleanup.leftovers(mark) if one.kind != "folder"]
    assert mark not in Path("/proc/self/mountinfo").read_text()
    cleanup.clean(mark)
    assert cleanup.leftovers(mark) == []
