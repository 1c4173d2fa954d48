"""The set-up: what it says when it cannot go on, and lock files that fit pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the set-up installs packages, as root")


def setup(tmp_path: Path, *options: str, **stand_ins: str) -> subprocess.CompletedProcess:
    """Run the set-up in a copy of the checkout, with stand-ins for commands on PATH."""
    tools, copy = tmp_path / "tools", tmp_path / "checkout"
    tools.mkdir()
    for name, body in stand_ins.items():
        script = tools / name.replace("_", "-")
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
    (copy / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, copy / name)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
           "NEARMETAL_CACHE": str(tmp_path / "cache")}
    return subprocess.run([copy / "scripts/setup.sh", *options], capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL, env=env)


@pytest.mark.parametrize("options", [["--bogus"], ["--then"], ["--then", "soon"]])
def test_unknown_option(tmp_path, options):
    done = setup(tmp_path, *options)
    assert done.returncode == 2 and done.stderr.startswith("usage:")


def test_needs_root(tmp_path):
    done = setup(tmp_path, id="echo 1000")
    assert done.returncode == 2
    assert "needs root" in done.stderr and "sudo" in done.stderr


def test_needs_debian_on_x86(tmp_path):
    done = setup(tmp_path, id="echo 0", uname="echo riscv64")
    assert done.returncode == 2 and "Debian 12 for x86-64" in done.stderr


@AS_ROOT
def test_packages_that_cannot_be_fetched(tmp_path):
    done = setup(tmp_path, dpkg_query="exit 0",
                 apt_get='echo "E: Could not resolve mirror.example"; exit 100')
    assert done.returncode == 2
    assert "E: Could not resolve mirror.example" in done.stderr
    assert "apt-get update failed." in done.stderr and "run it again" in done.stderr
    assert "packages: installing ca-certificates gcc" in done.stdout


@AS_ROOT
def test_python_packages_that_cannot_be_fetched(tmp_path):
    """Also: a venv that was not finished is made anew."""
    fake_venv = ('case "$*" in *venv*.venv) mkdir -p .venv/bin; '
                 'printf "#!/bin/sh\\necho no index; exit 1\\n" > .venv/bin/python; '
                 'chmod 755 .venv/bin/python ;; esac')
    installed = "".join(f"ii  {name} " for name in packages())
    done = setup(tmp_path, python3=fake_venv, dpkg_query=f"printf '{installed}'")
    assert done.returncode == 2
    assert "no index" in done.stderr and "Python packages cannot be installed" in done.stderr
    assert (tmp_path / "checkout/.venv/.nearmetal-unfinished").exists()


def packages() -> list[str]:
    """The Debian packages that the set-up names."""
    text = (ROOT / "scripts/setup.sh").read_text()
    return text.partition("PACKAGES=(")[2].partition(")")[0].split()


# --- lock files ----------------------------------------------------------------------------------


def locked(name: str) -> dict[str, str]:
    """Versions by package of a lock file; every line pins one."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "://" not in line for line in lines)
    return {plain(line.split("==")[0]): line.split("==")[1] for line in lines}


def plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.mark.parametrize("lock, extra", [("requirements.lock", None),
                                         ("requirements-dev.lock", "dev")])
def test_lock_fits_the_project(lock, extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    versions = locked(lock)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[plain(requirement.name)]), requirement


def test_lock_for_tests_holds_the_other():
    assert locked("requirements.lock").items() <= locked("requirements-dev.lock").items()
