"""The agent, built once, and machines of it on this host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from nearmetal import cleanup
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.host import Host

SOURCES = Path(__file__).parents[2] / "agent"


@pytest.fixture(scope="session")
def agent_build(tmp_path_factory) -> Path:
    """The folder with nm-agent and nm-rsh, built from the sources."""
    build = tmp_path_factory.mktemp("agent")
    subprocess.run(["make", "-s", "-C", SOURCES, f"BUILD={build}"], check=True, timeout=120)
    return build


@pytest.fixture
def lab():
    """A lab's mark; nothing that carries it is left after the test."""
    mark = cleanup.new_mark()
    yield mark
    left = cleanup.clean(mark)
    assert left == [], f"left behind: {[str(one) for one in left]}"


@pytest.fixture
def host(lab) -> Host:
    return Host(lab)


@pytest.fixture
def machine(host, agent_build, tmp_path):
    """A machine that is an agent on this host, with nothing around it."""
    made = AgentMachine(host.spawn([str(agent_build / "nm-agent")]), name="bare",
                        console=tmp_path / "console.log", boot_timeout=20)
    yield made
    made.down()


@pytest.fixture(scope="session")
def small_userland(agent_build, tmp_path_factory):
    """A userland of busybox and the agent alone: enough for all but real workloads."""
    tree = tmp_path_factory.mktemp("userland") / "tree"
    for folder in ("bin", "dev", "proc", "sys", "tmp", "run", "mnt", "etc", "root",
                   "opt/nearmetal/bin"):
        (tree / folder).mkdir(parents=True)
    busybox = Path("/bin/busybox")
    if not busybox.exists():
        pytest.skip("no busybox-static on this machine")
    (tree / "bin/busybox").write_bytes(busybox.read_bytes())
    (tree / "bin/busybox").chmod(0o755)
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        link = tree / "bin" / name
        if not link.exists():
            os.symlink("busybox", link)
    for name in ("nm-agent", "nm-rsh"):
        target = tree / "opt/nearmetal/bin" / name
        target.write_bytes((agent_build / name).read_bytes())
        target.chmod(0o755)
    return SimpleNamespace(id="small", tree=tree)
