"""Finding and removing what a killed lab left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearmetal import cleanup

DEAD = "999999999-1-abcd0123"  # no process has this number (pid_max is at most 2^22)
root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, cgroups and namespaces need root")


@pytest.fixture
def lab():
    """The mark of a lab that is dead, and nothing of it left afterwards."""
    mark = f"999999999-1-{os.getpid():08x}"
    yield mark
    cleanup.clean(mark)
    assert cleanup.leftovers(mark) == []


def sleeper(mark: str) -> subprocess.Popen:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, "NEARMETAL_LAB": mark})


def kinds(found) -> list[str]:
    return [one.kind for one in found]


def test_mark_of_this_process_is_alive():
    mark = cleanup.new_mark()
    assert cleanup.MARK.fullmatch(mark)
    assert cleanup.mark_alive(mark)
    assert cleanup.new_mark() != mark


@pytest.mark.parametrize("mark", [DEAD, f"{os.getpid()}-1-abcd", "", "nonsense", "1-2", "a-b-c"])
def test_other_marks_are_dead(mark):
    assert not cleanup.mark_alive(mark)


def test_a_process_that_has_ended_but_is_not_reaped_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                             stdin=subprocess.PIPE)
    mark = f"{child.pid}-{cleanup._stat(child.pid)[19]}-00"
    assert cleanup.mark_alive(mark)
    child.kill()
    deadline = time.monotonic() + 5
    while cleanup.mark_alive(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not cleanup.mark_alive(mark)
    child.wait()


def test_kills_processes_of_a_dead_lab_only(lab):
    live = cleanup.new_mark()
    dead, alive = sleeper(lab), sleeper(live)
    try:
        time.sleep(0.05)
        found = cleanup.leftovers(lab)
        assert [(one.kind, one.name, one.detail) for one in found] == [
            ("process", str(dead.pid), "sleep")]
        assert str(alive.pid) not in [one.name for one in cleanup.leftovers()]
        removed = cleanup.clean(lab)
        assert [str(one) for one in removed] == [f"process {dead.pid} (sleep)"]
        assert dead.wait(5) == -9
        assert alive.poll() is None
        assert cleanup.clean(live) and alive.wait(5) == -9
    finally:
        for child in (dead, alive):
            child.kill()
            child.wait()


def test_never_this_process(lab, monkeypatch):
    code = (f"import os; from nearmetal import cleanup; cleanup.clean({lab!r}); print('lives')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30,
                          env={**os.environ, "NEARMETAL_LAB": lab})
    assert done.stdout == "lives\n", done.stderr


@root
def test_folders_and_mounts(lab):
    place = cleanup.RUN / lab / "m1"
    place.mkdir(parents=True)
    (place.parent / "file").write_text("x")
    subprocess.run(["mount", "-t", "tmpfs", "nearmetal", place], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "nearmetal", place], check=True)  # one on another
    assert kinds(cleanup.leftovers(lab)) == ["mount", "mount", "folder"]
    assert "folder" in kinds(cleanup.clean(lab))
    assert not place.parent.exists()
    assert lab not in Path("/proc/self/mountinfo").read_text()


@root
def test_network_namespaces_by_name(lab):
    name = f"nearmetal-{lab}-x"
    subprocess.run(["ip", "netns", "add", name], check=True)
    assert kinds(cleanup.leftovers(lab)) == ["netns"]
    cleanup.clean(lab)
    assert not (cleanup.NETNS / name).exists()


@root
def test_cgroups_and_what_runs_in_them(lab):
    tops = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
    made = []
    for top in tops:
        if (top / "cgroup.procs").exists():
            folder = top / f"nearmetal-{lab}-m1" / "inner"
            folder.mkdir(parents=True)
            made.append(folder)
    assert made, "this machine has no cgroup file system"
    child = subprocess.Popen(["sleep", "60"])  # without the mark
    (made[0] / "cgroup.procs").write_text(str(child.pid))
    assert kinds(cleanup.leftovers(lab)) == ["cgroup"] * 2 * len(made)
    assert len(cleanup.clean(lab)) == 2 * len(made)
    assert child.wait(5) == -9
    assert not any(folder.parent.exists() for folder in made)


@root
def test_names_of_others_are_left_alone(lab):
    """A mark that ours is the beginning of is another lab's."""
    other = f"{lab}ff"
    folder = cleanup.RUN / other
    folder.mkdir(parents=True)
    try:
        assert cleanup.leftovers(lab) == []
        assert cleanup.clean(lab) == []
        assert folder.exists()
    finally:
        folder.rmdir()
