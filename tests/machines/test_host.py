"""The host as a machine, and processes that carry a lab's mark and die with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearmetal import cleanup
from nearmetal.errors import CannotRun, MachineFailed
from nearmetal.machines import process as processes
from nearmetal.machines.host import Host


def is_gone(pid: int, within: float = 5.0) -> bool:
    """Whether the process is dead (reaped or not), soon."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if cleanup._stat(pid)[:1] in ([], ["Z"], ["X"]):
            return True
        time.sleep(0.01)
    return False


def test_run(host):
    done = host.run(["sh", "-c", "echo $A; cat; echo err >&2; exit 3"], timeout=10,
                    env={"A": "b"}, stdin=b"in")
    assert (done.status, done.stdout, done.stderr) == (3, b"b\nin", b"err\n")
    assert done.host_ns == done.machine_ns > 0
    assert host.run(["sh", "-c", "kill -9 $$"], timeout=10).status == 137


def test_time_limit_kills_the_whole_tree(host):
    began = time.monotonic()
    done = host.run(["sh", "-c", "echo $$; sleep 600 & setsid sleep 600 & wait"], timeout=0.5)
    assert done.timed_out and done.status is None
    assert time.monotonic() - began < 6
    assert is_gone(int(done.stdout))


def test_every_process_carries_the_mark(host, lab):
    process = host.spawn(["sleep", "60"])
    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    assert f"NEARMETAL_LAB={lab}".encode() in environment
    process.kill()
    assert process.wait(5) == 137
    process.kill()
    process.close()


def test_a_missing_program_is_named(host):
    with pytest.raises(CannotRun, match="no-such-program"):
        host.spawn(["no-such-program"])


def test_short_commands(lab):
    assert processes.do(["echo", "x"], lab) == b"x\n"
    with pytest.raises(MachineFailed, match="status 4: why"):
        processes.do(["sh", "-c", "echo why >&2; exit 4"], lab)
    with pytest.raises(MachineFailed, match="more than 0.2 s"):
        processes.do(["sleep", "60"], lab, timeout=0.2)


def test_files_facts_and_clock(host, tmp_path):
    source = tmp_path / "a"
    source.write_bytes(b"content")
    host.put(source, str(tmp_path / "b"), 0o700)
    host.get(str(tmp_path / "b"), tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"content"
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700
    facts = host.facts()
    assert facts["cpus"] == len(os.sched_getaffinity(0)) and facts["kernel"].startswith("Linux ")
    assert abs(host.clock_ns() - time.monotonic_ns()) < 1e9
    assert host.alive() and host.memory_bytes() is None


def test_the_root_is_the_userlands_tree(lab, tmp_path):
    class Built:
        tree = tmp_path

    assert Host(lab, Built()).root == str(tmp_path)  # type: ignore[arg-type]
    assert Host(lab, tmp_path).root == str(tmp_path)


def test_processes_die_with_a_killed_lab_even_when_a_thread_asked_for_them():
    """The thread that asks may end long before; only the death of the whole lab kills."""
    code = """
import threading, time
from nearmetal.machines.host import Host
host, made = Host("1-1-aa"), []
thread = threading.Thread(target=lambda: made.append(host.spawn(["sleep", "600"])))
thread.start(); thread.join(); time.sleep(0.2)
assert made[0].poll() is None
print(made[0].pid, flush=True)
time.sleep(600)
"""
    lab = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pid = int(lab.stdout.readline())
    assert not is_gone(pid, 0.05)
    lab.send_signal(signal.SIGKILL)
    lab.wait(5)
    assert is_gone(pid)
    lab.stdout.close()


def test_memory_of_a_tree(host):
    process = host.spawn(["sh", "-c", f"{sys.executable} -c 'x = bytes(range(256)) * 400000; "
                                      "import time; print(1, flush=True); time.sleep(60)' & wait"])
    assert process.stdout.readline() == b"1\n"
    assert process.memory_bytes() > 100_000_000
    process.kill()
    process.close()
    assert processes.tree_memory_bytes(process.pid) is None
