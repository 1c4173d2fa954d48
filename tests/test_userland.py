"""The userland: what is rebuilt when, what a killed build leaves, which words errors have.

Fast tests run the real code with small stand-ins for mmdebstrap, make, mke2fs and the like on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal import userland
from nearmetal import userland_recipe as recipe
from nearmetal.userland_recipe import UserlandError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="building a root file system needs root")
TARGETS = "Debian|bookworm|main|http://mirror.example/debian/\n"

# Each stand-in appends its name to $CALLS. mmdebstrap waits while $HOLD exists.
STAND_INS = {
    "mmdebstrap": """
mkdir -p tree/etc tree/bin; echo half > tree/bin/sh
while [ -e "$HOLD" ]; do sleep 0.05; done
[ -z "$MM_FAILS" ] || { echo "$MM_FAILS"; exit 25; }
echo "I: installing essential packages..."
mkdir -p kernel/boot kernel/lib/modules/6.1.0-1-amd64
echo kernel > kernel/boot/vmlinuz-6.1.0-1-amd64
echo "base-files 12" > packages.txt; echo whole > tree/bin/sh; cat > sources.list""",
    "make": """
for word; do case $word in DESTDIR=*) root=${word#DESTDIR=} ;; esac; done
cp "$2"/*.c "$root/opt/nearmetal/bin/" && ! grep -q BROKEN "$2"/*.c || { echo "x.c:1: oh"; exit 2; }
""",
    "mke2fs": 'while [ $# -gt 2 ]; do shift; done; echo image > "$1"',
    "apt-get": f"printf '{TARGETS}'",
    "depmod": "", "gcc": "echo gcc 12", "gfortran": "echo gfortran 12",
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with stand-ins for the tools, a small checkout, and an empty cache."""
    tools, source = tmp_path / "tools", tmp_path / "checkout"
    tools.mkdir()
    for name, body in STAND_INS.items():
        script = tools / name
        script.write_text(f'#!/bin/sh\necho {name} >> "$CALLS"\n{body}\n')
        script.chmod(0o755)
    for name in recipe.PROGRAM_FOLDERS:
        (source / name).mkdir(parents=True)
        (source / name / "Makefile").write_text("all:\n")
        (source / name / f"{name}.c").write_text("int main(void) { return 0; }\n")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("HOLD", str(tmp_path / "hold"))
    monkeypatch.setenv("NEARMETAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NEARMETAL_SOURCE", str(source))
    monkeypatch.setattr(userland, "_in_use", {})
    monkeypatch.setattr(recipe, "BASE_BYTES", 0)
    monkeypatch.setattr(recipe, "FINAL_BYTES", 0)
    Host = namedtuple("Host", "cache source hold calls")
    return Host(tmp_path / "cache", source, tmp_path / "hold",
                lambda: (tmp_path / "calls").read_text().split())


def in_another_process() -> subprocess.Popen:
    """A process that builds the userland and prints each step."""
    return subprocess.Popen([sys.executable, "-m", "nearmetal.userland"], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def wait_for(condition, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


# --- keys ----------------------------------------------------------------------------------------


def test_recipe_key_follows_the_recipe(monkeypatch):
    before = recipe.recipe_key()
    assert before == recipe.recipe_key() and len(before) == 12
    monkeypatch.setattr(recipe, "PACKAGES", (*recipe.PACKAGES, "hello"))
    assert recipe.recipe_key() != before


@pytest.mark.parametrize("change", [
    lambda root: (root / "agent/agent.c").write_text("int main(void) { return 1; }\n"),
    lambda root: (root / "agent/agent.c").rename(root / "agent/other.c"),
    lambda root: (root / "workloads/new.f90").write_text(""),
    lambda root: (root / "workloads/Makefile").write_text("all: x\n"),
])
def test_sources_key_follows_sources(host, change):
    before = recipe.sources_key(host.source)
    change(host.source)
    assert recipe.sources_key(host.source) != before


def test_sources_key_ignores_products(host):
    before = recipe.sources_key(host.source)
    (host.source / "agent/build").mkdir()
    (host.source / "agent/build/main.c").write_text("made")
    (host.source / "agent/agent.o").write_text("made")
    (host.source / "workloads/stream").write_text("made")
    (host.source / "workloads/.stream.c.swp").write_text("editor")
    assert recipe.sources_key(host.source) == before


# --- apt's sources -------------------------------------------------------------------------------


def test_targets_of_debian_main_alone():
    text = TARGETS + ("Debian|bookworm-security|main|http://mirror.example/sec/\n"
                      "Debian|bookworm|contrib|http://mirror.example/debian/\n"
                      "Other|bookworm|main|http://other.example/\n") + TARGETS
    assert recipe.parse_targets(text) == (
        "deb http://mirror.example/debian/ bookworm main\n"
        "deb http://mirror.example/sec/ bookworm-security main\n")


@pytest.mark.parametrize("text, words", [
    ("", "no package lists"),
    ("|bookworm|main|http://mirror.example/\n", "no package lists"),
    ("Debian|trixie|main|http://mirror.example/\n", "only trixie"),
])
def test_targets_that_will_not_do(text, words):
    with pytest.raises(UserlandError, match=words) as caught:
        recipe.parse_targets(text)
    assert caught.value.remedy


@given(st.text())
def test_targets_any_text(text):
    try:
        assert " bookworm main\n" in recipe.parse_targets(text)
    except UserlandError as error:
        assert error.remedy


# --- building ------------------------------------------------------------------------------------


@AS_ROOT
def test_builds_once(host):
    assert userland.find() is None
    steps = []
    built = userland.ensure(steps.append)
    assert (built.tree / "bin/sh").read_text() == "whole\n"
    assert (built.tree / "opt/nearmetal/bin/agent.c").exists()
    assert (built.tree / "etc/hosts").read_text().startswith("127.0.0.1 localhost")
    assert (built.tree / "etc/resolv.conf").read_text() == ""
    assert all((built.tree / name).is_dir() for name in recipe.MOUNT_POINTS)
    assert built.image.read_text() == "image\n" and built.kernel.read_text() == "kernel\n"
    assert built.kernel_version == "6.1.0-1-amd64" and built.modules.is_dir()
    assert any("installing essential packages" in step for step in steps)
    assert not list((host.cache / "build").iterdir())

    calls = len(host.calls())
    assert userland.ensure() == built == userland.find()
    assert len(host.calls()) == calls


@AS_ROOT
def test_changed_source_leaves_debian_alone(host):
    first = userland.ensure()
    (host.source / "workloads/workloads.c").write_text("int main(void) { return 2; }\n")
    assert userland.find() is None
    second = userland.ensure()
    assert second.id != first.id and second.tree != first.tree
    assert host.calls().count("mmdebstrap") == 1
    assert (first.tree / "opt/nearmetal/bin/workloads.c").read_text().count("0") == 1
    assert "2" in (second.tree / "opt/nearmetal/bin/workloads.c").read_text()


@AS_ROOT
def test_source_that_does_not_compile(host):
    source = host.source / "agent/agent.c"
    source.write_text("BROKEN")
    with pytest.raises(UserlandError, match="Compiling agent failed.*x.c:1: oh"):
        userland.ensure()
    assert "mmdebstrap" not in host.calls()
    assert not list((host.cache / "build").iterdir())
    source.write_text("int main(void) { return 0; }\n")
    assert userland.ensure().tree.is_dir()


@AS_ROOT
def test_two_at_once_build_once(host):
    host.hold.touch()
    first = in_another_process()
    wait_for(lambda: (host.cache / "build").is_dir()
             and any((host.cache / "build").glob("base-*/tree/bin/sh")))
    second = in_another_process()
    line = second.stdout.readline()
    assert f"waiting for another build of the userland (process {first.pid})" in line
    host.hold.unlink()
    assert first.wait(30) == 0 and second.wait(30) == 0
    assert host.calls().count("mmdebstrap") == 1
    assert first.stdout.read().splitlines()[-1] == second.stdout.read().splitlines()[-1]


@AS_ROOT
def test_killed_build_leaves_nothing_that_matters(host):
    host.hold.touch()
    build = in_another_process()
    wait_for(lambda: any(host.cache.glob("build/base-*/tree/bin/sh")))
    build.send_signal(signal.SIGKILL)
    build.wait(10)
    wait_for(lambda: not processes_in(host.cache))
    assert userland.find() is None
    assert not list((host.cache / "base").iterdir()) if (host.cache / "base").exists() else True
    host.hold.unlink()
    built = userland.ensure()
    assert (built.tree / "bin/sh").read_text() == "whole\n"
    assert not list((host.cache / "build").iterdir())


def processes_in(folder: Path) -> list[int]:
    """Processes whose working folder lies in ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = os.readlink(entry)
        except OSError:
            continue
        if where.startswith(str(folder)):
            found.append(int(entry.parts[2]))
    return found


# --- what errors say -----------------------------------------------------------------------------


@AS_ROOT
@pytest.mark.parametrize("output, words", [
    ("E: cp: No space left on device", "disk is full"),
    ("E: Could not resolve 'mirror.example'", "cannot be reached"),
    ("E: mount: Operation not permitted", "forbids"),
    ("E: something else", "status 25: E: something else"),
])
def test_words_of_a_failure(host, monkeypatch, output, words):
    monkeypatch.setenv("MM_FAILS", output)
    with pytest.raises(UserlandError, match=words) as caught:
        userland.ensure()
    assert caught.value.remedy
    assert userland.find() is None


def test_needs_root(host, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserlandError, match="needs root") as caught:
        userland.ensure()
    assert "root" in caught.value.remedy


def test_needs_tools(host, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mke2fs" else name)
    with pytest.raises(UserlandError, match="needs mke2fs") as caught:
        userland.ensure()
    assert "apt-get install e2fsprogs" in caught.value.remedy


def test_needs_space(host, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(recipe, "FINAL_BYTES", 10**18)
    with pytest.raises(UserlandError, match="are free") as caught:
        userland.ensure()
    assert "NEARMETAL_CACHE" in caught.value.remedy


def test_needs_sources(host, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARMETAL_SOURCE", str(tmp_path / "nowhere"))
    with pytest.raises(UserlandError, match="sources") as caught:
        userland.ensure()
    assert "NEARMETAL_SOURCE" in caught.value.remedy


def test_cache_that_cannot_be_written(host, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARMETAL_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(UserlandError, match="cannot be written") as caught:
        userland.ensure()
    assert "NEARMETAL_CACHE" in caught.value.remedy


def test_command_prints_no_traceback(host, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["userland"])
    assert userland.main() == 2
    assert "needs root" in capsys.readouterr().err


# --- age -----------------------------------------------------------------------------------------


def change(host, text: str) -> None:
    (host.source / "agent/agent.c").write_text(text)


@AS_ROOT
def test_old_ones_go_and_used_ones_stay(host):
    host.hold.touch()
    first = userland_after(host, "// 0")
    user = subprocess.Popen(
        [sys.executable, "-c", "from nearmetal import userland; userland.find(); print('up', "
         "flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdout.readline() == "up\n"
    try:
        second = userland_after(host, "// 1")
        for number in range(2, 2 + userland.KEEP):
            userland_after(host, f"// {number}")
        assert first.image.exists() and not second.tree.parent.exists()
        change(host, "// 0")
        assert userland.find() == first
        with pytest.raises(UserlandError, match="in use"):
            userland.remove()
    finally:
        user.communicate("\n", timeout=10)
    release()
    userland.remove()
    assert userland.find() is None
    assert not list(host.cache.glob("base/*"))


def userland_after(host, text: str) -> userland.Userland:
    """Build from changed sources; this process holds on to none of it."""
    change(host, text)
    host.hold.unlink(missing_ok=True)
    built = userland.ensure()
    release()
    return built


def release() -> None:
    for lock in userland._in_use.values():
        lock.close()
    userland._in_use.clear()


@AS_ROOT
def test_without_sources_the_last_one_serves(host, monkeypatch, tmp_path):
    built = userland.ensure()
    monkeypatch.setenv("NEARMETAL_SOURCE", str(tmp_path / "nowhere"))
    assert userland.find() == built == userland.ensure()


@AS_ROOT
def test_half_of_a_userland_is_none(host):
    built = userland.ensure()
    built.image.unlink()
    assert userland.find() is None
    release()
    assert userland.ensure().image.exists()
    (built.tree.parent / "userland.json").write_text('{"id"')
    assert userland.find() is None


# --- the real one --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    """The real userland, from the cache or built."""
    if os.geteuid() != 0:
        pytest.skip("building a root file system needs root")
    return userland.ensure()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_is_idempotent(real):
    began = time.monotonic()
    assert userland.ensure() == real
    assert time.monotonic() - began < 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_programs_run_in_the_root(real):
    programs = sorted(path.name for path in (real.tree / recipe.BIN).iterdir())
    assert {"nm-agent", "nm-rsh", "presta-com", "presta-laten", "linpack", "dgemm", "stream",
            "osbench"} <= set(programs)
    for name in programs:
        if name.startswith("nm-"):
            continue
        done = subprocess.run(["chroot", real.tree, f"/{recipe.BIN}/{name}", "--help"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert name in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_mpi_starts_two_ranks(real):
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
         'mount -t tmpfs none "$0/dev/shm" && mount -t proc none "$0/proc" && '
         f'chroot "$0" /{recipe.MPI}/bin/mpiexec.hydra -n 2 /bin/echo rank', str(real.tree)],
        capture_output=True, text=True, timeout=60)
    assert done.stdout == "rank\nrank\n", done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_image_holds_the_tree(real):
    check = subprocess.run(["e2fsck", "-fn", real.image], capture_output=True, text=True,
                           timeout=120)
    assert check.returncode == 0, check.stdout
    features = subprocess.run(["dumpe2fs", "-h", real.image], capture_output=True, text=True,
                              timeout=60).stdout
    assert "has_journal" not in features
    for name in (f"{recipe.BIN}/stream", "etc/hosts"):
        inside = subprocess.run(["debugfs", "-R", f"cat /{name}", real.image],
                                capture_output=True, timeout=60).stdout
        assert inside == (real.tree / name).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_kernel_and_modules(real):
    assert real.kernel.read_bytes()[0x202:0x206] == b"HdrS"
    known = (real.modules / "modules.dep").read_text()
    for module in ("virtio_blk", "virtio_net", "virtio_console", "e1000", "ata_piix", "ext4"):
        assert f"/{module}.ko:" in known, module


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_build_killed_leaves_no_process_and_no_mount(real, tmp_path, monkeypatch):
    monkeypatch.setenv("NEARMETAL_CACHE", str(tmp_path))
    build = in_another_process()
    wait_for(lambda: any(tmp_path.glob("build/base-*/tree/usr")), 120)
    build.send_signal(signal.SIGKILL)
    build.wait(10)
    wait_for(lambda: not processes_in(tmp_path))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert userland.find() is None
    assert not list(tmp_path.glob("base/*"))
