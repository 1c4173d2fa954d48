"""The workload programs, compiled once a session, and a way to run them on the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from program_lines import SOURCES


@pytest.fixture(scope="session")
def programs(tmp_path_factory) -> Path:
    """The folder of the compiled programs."""
    for tool in ("make", "gcc", "gfortran", "mpicc.mpich", "mpiexec.mpich"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; `make setup` installs it")
    build = tmp_path_factory.mktemp("programs")
    done = subprocess.run(["make", "-C", str(SOURCES), f"BUILD={build}", "-j2"],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return build


@pytest.fixture
def run(programs):
    """``run("linpack", "--n", "50", ranks=None) -> CompletedProcess`` with text output."""

    def one(name: str, *arguments: str, ranks: int | None = None, timeout: float = 60):
        argv = [str(programs / name), *arguments]
        if ranks:
            argv = ["mpiexec.mpich", "-n", str(ranks), *argv]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)

    return one
