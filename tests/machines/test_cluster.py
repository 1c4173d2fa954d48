"""Clusters: booted together, ended together, MPI across them."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from nearmetal import userland
from nearmetal.errors import MachineFailed
from nearmetal.machines.base import Completed, Order, Shape, make_layer
from nearmetal.machines.cluster import Cluster
from nearmetal.machines.host import Host
from nearmetal.machines.network import LabNetwork


class Recorder:
    """A machine or a network that records what is done to it."""

    address: str | None = None
    root = "/"

    def __init__(self, log: list[str], name: str):
        self.log, self.name, self.up = log, name, True

    def run(self, argv, *, timeout, env=None, stdin=b""):
        self.log.append(" ".join(argv))
        return Completed(tuple(argv), 0, b"", b"", 1)

    def alive(self) -> bool:
        return self.up

    def down(self) -> None:
        self.log.append(f"down {self.name}")


def test_machines_boot_in_parallel_and_keep_their_rank():
    all_here = threading.Barrier(3, timeout=10)

    def one(rank: int) -> Recorder:
        all_here.wait()
        return Recorder([], f"m{rank}")

    cluster = Cluster.boot(one, 3)  # type: ignore[arg-type]
    assert [machine.name for machine in cluster.machines] == ["m0", "m1", "m2"]
    assert cluster.size == 3 and cluster.alive()
    cluster.machines[1].up = False  # type: ignore[attr-defined]
    assert not cluster.alive()


def test_when_one_fails_all_are_ended_machines_first():
    log: list[str] = []

    def one(rank: int) -> Recorder:
        if rank == 1:
            raise MachineFailed("no")
        time.sleep(0.05)
        return Recorder(log, f"m{rank}")

    with pytest.raises(MachineFailed, match="no"):
        Cluster.boot(one, 3, Recorder(log, "network"))  # type: ignore[arg-type]
    assert sorted(log[:2]) == ["down m0", "down m2"] and log[2:] == ["down network"]


def test_down_twice_is_once():
    log: list[str] = []
    cluster = Cluster([Recorder(log, "m")], Recorder(log, "network"))  # type: ignore[list-item]
    cluster.down()
    cluster.down()
    assert log == ["down m", "down network"]
    assert not cluster.alive()


def test_mpi_on_one_machine_needs_no_network():
    log: list[str] = []
    cluster = Cluster([Recorder(log, "m")])  # type: ignore[list-item]
    cluster.mpi(["prog", "--x", "1"], ranks=4, timeout=1)
    assert log == ["/opt/nearmetal/mpi/bin/mpiexec.hydra -launcher fork -n 4 prog --x 1"]


def test_mpi_on_machines_without_a_network_is_refused():
    cluster = Cluster([Recorder([], "a"), Recorder([], "b")])  # type: ignore[list-item]
    with pytest.raises(MachineFailed, match="'a' has no place on a lab network"):
        cluster.mpi(["prog"], ranks=2, timeout=1)


@pytest.fixture
def cluster(lab, tmp_path):
    """Two native machines of the real userland."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    built = userland.ensure(None)
    host, network = Host(lab, built), LabNetwork(lab, 2)

    def one(rank: int):
        workdir = tmp_path / f"m{rank}"
        workdir.mkdir()
        order = Order(lab, f"m{rank}", Shape(), built, workdir, network.port(rank), 60)
        return make_layer("native", {}).up(host, order)

    made = Cluster.boot(one, 2, network)
    yield made
    made.down()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mpi_across_two_machines(cluster):
    done = cluster.mpi(["hostname"], ranks=4, timeout=60)
    assert done.status == 0, done.stderr
    assert sorted(done.stdout.split()) == [b"m0", b"m0", b"m1", b"m1"]
    argv = ["/opt/nearmetal/bin/presta-laten", "--operations", "100", "--tests", "2"]
    done = cluster.mpi(argv, ranks=2, timeout=120)
    assert done.status == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    assert [line["ok"] for line in lines if line["type"] == "verify"] == [True]
    latency = {line["metric"]: line["value"] for line in lines if line["type"] == "metric"}
    assert 0.5 < latency["latency_median"] < 5000  # us: over a socket, not over shared memory


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_time_limit_kills_all_ranks_on_all_machines(cluster):
    began = time.monotonic()
    done = cluster.mpi(["sleep", "612.25"], ranks=4, timeout=2)
    assert done.timed_out and time.monotonic() - began < 10
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [machine.run(["sh", "-c", script], timeout=10).stdout
                for machine in cluster.machines]
        if not any(b"612.25 " in one for one in left):
            break
        time.sleep(0.1)
    assert not any(b"sleep 612.25" in one for one in left), left
    assert cluster.mpi(["true"], ranks=2, timeout=60).status == 0  # and it still serves


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_machine_that_dies_under_mpi_ends_the_run(cluster):
    threading.Timer(1.0, cluster.machines[1].process.kill).start()
    began = time.monotonic()
    done = cluster.mpi(["sleep", "60"], ranks=2, timeout=20)
    assert done.status != 0
    assert time.monotonic() - began < 30
    deadline = time.monotonic() + 5
    while cluster.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not cluster.alive()
    with pytest.raises(MachineFailed):
        cluster.mpi(["true"], ranks=2, timeout=10)
