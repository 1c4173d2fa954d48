"""The lab killed with kill -9 at random moments: nothing finished is lost, nothing is left."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest

STUDY = """
title = "Killed"
baseline = "native"
environments = ["native", "container"]

[machine]
memory = "256M"

[statistics]
min_blocks = 30
max_blocks = 30
seed = 11

[[workload]]
name = "dgemm"
params = { n = 64, repetitions = 1 }

[[workload]]
name = "presta-laten"
params = { operations = 20, tests = 1, processes = [2] }
machines = 2
"""
KILLS = 20
RUNS = 30 * 3 * 2


def lab(*args, **more):
    return subprocess.Popen([sys.executable, "-m", "nearmetal.cli", *map(str, args)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def finished(folder):
    """Runs in the store, having checked that it is whole."""
    path = folder / "results.sqlite"
    if not path.exists():
        return 0
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        orphans = db.execute("SELECT count(*) FROM measurement LEFT JOIN run ON run.id = run "
                             "WHERE run.id IS NULL").fetchone()[0]
        empty = db.execute("SELECT count(*) FROM run WHERE status = 'ok' AND id NOT IN "
                           "(SELECT run FROM measurement)").fetchone()[0]
        assert orphans == empty == 0
        return db.execute("SELECT count(*) FROM run").fetchone()[0]


def left_by(labs):
    """What the labs of these process numbers left: marked processes, cgroups, mounts, folders,
    network names. (A mark begins with its lab's process number; other labs may be at work.)"""
    marks = tuple(f"{pid}-" for pid in labs)
    left = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("NEARMETAL_LAB")
        except (psutil.Error, OSError):
            continue
        if mark and mark.startswith(marks):
            left.append((mark, process.pid, process.name()))
    named = tuple(f"nearmetal-{mark}" for mark in marks)
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        left += [os.path.join(root, one) for one in folders if one.startswith(named)]
    with open("/proc/mounts") as mounts:
        left += [line for line in mounts if any(f"/nearmetal/{mark}" in line for mark in marks)]
    if os.path.isdir("/run/nearmetal"):
        left += [one for one in os.listdir("/run/nearmetal") if one.startswith(marks)]
    if os.path.isdir("/run/netns"):
        left += [one for one in os.listdir("/run/netns") if one.startswith(named)]
    return left


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_lose_nothing_and_leave_nothing(tmp_path):
    study, folder = tmp_path / "killed.toml", tmp_path / "results"
    study.write_text(STUDY)
    chance, kept, labs, seen = random.Random(), 0, [], 0
    for number in range(KILLS):
        started = (folder / "results.sqlite").exists()
        process = (lab("resume", folder) if started
                   else lab("run", study, "--output", folder))
        labs.append(process.pid)
        # The first kills fall into start and boot, the later ones into runs.
        time.sleep(chance.uniform(0.2, 4.0 if number % 2 else 7.0))
        seen += len(left_by([process.pid]))  # what there is to leave
        process.send_signal(signal.SIGKILL)
        output = process.communicate(timeout=30)[0]
        assert "Error" not in output, output
        now = finished(folder)
        assert now >= kept, "a finished run was lost"
        kept = now
    last = (lab("resume", folder) if (folder / "results.sqlite").exists()
            else lab("run", study, "--output", folder))
    labs.append(last.pid)
    output = last.communicate(timeout=400)[0]
    assert last.returncode == 0, output
    assert finished(folder) == RUNS
    with sqlite3.connect(folder / "results.sqlite") as db:
        assert dict(db.execute("SELECT status, count(*) FROM run GROUP BY status")) == {"ok": RUNS}
    done = lab("clean")
    assert done.communicate(timeout=60)[0] is not None and done.returncode == 0
    assert seen > 0 and left_by(labs) == []
