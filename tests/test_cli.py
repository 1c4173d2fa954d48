"""The commands as a person meets them: exit status, one clear message, no traceback."""

import json
import os
import subprocess
import sys

import pytest

from nearmetal.store import RunRecord, Store, now
from nearmetal.workloads.base import Measurement, Metric


def nearmetal(*args, cwd=None, **env):
    return subprocess.run([sys.executable, "-m", "nearmetal.cli", *map(str, args)], cwd=cwd,
                          capture_output=True, text=True, timeout=120,
                          env={**os.environ, "COLUMNS": "80", **env})


GOOD = """
title = "T"
baseline = "native"
environments = ["native", "container"]
[statistics]
seed = 3
[[workload]]
name = "dgemm"
"""


@pytest.fixture
def results(tmp_path):
    """A results folder with two labels and made-up values, as a store that ran."""
    folder = tmp_path / "r"
    stats = {"margin": 0.02, "confidence": 0.95, "protocol": "all", "target": 0.02}
    with Store.create(folder, name="t", title="T", text="x", file="t.toml", seed=1,
                      settings={"statistics": stats}, facts={"cpu": "a", "volatile.load": 1},
                      version="0") as store:
        store.add_metrics("w", [Metric("t", "s", "lower", summary="time", headline=True)])
        for label, role, base in (("a", "baseline", 1.0), ("b", "subject", 1.5)):
            store.put_environment(label=label, path=label, role=role, matched="a",
                                  substrate="host CPU", state="ready")
            for block in range(6):
                value = base * (1 + block / 1000)
                store.add_run(
                    RunRecord(block, 0, label, "w", "{}", "ok", now()),
                    lambda _, value=value: [Measurement("t", value, "s", "lower")])
    return folder


def test_dry_run_shows_the_plan_and_boots_nothing(tmp_path):
    (tmp_path / "s.toml").write_text(GOOD)
    done = nearmetal("run", "s.toml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("native (A/A)", "container", "dgemm", "runs, about", "First block"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == [tmp_path / "s.toml"]


@pytest.mark.parametrize("text, words", [
    ("title = 3 3", "line 1"), (GOOD.replace("dgemm", "dgem"), "Did you mean 'dgemm'"),
    (GOOD + "params = { m = 1 }", "It takes"), (GOOD.replace('"container"', '"kontainer"'),
                                                "Did you mean 'container'")])
def test_malformed_studies_are_one_clear_message(tmp_path, text, words):
    (tmp_path / "s.toml").write_text(text)
    done = nearmetal("run", "s.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_debug_shows_the_traceback(tmp_path):
    done = nearmetal("--debug", "run", "nowhere.toml", cwd=tmp_path)
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("args", [["report", "x"], ["resume", "x"], ["export", "x", "y.csv"],
                                  ["compare", "x", "y"]])
def test_missing_stores_are_named(tmp_path, args):
    done = nearmetal(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert "no store at 'x'" in done.stderr and "Traceback" not in done.stderr


def test_without_root_one_clear_message(tmp_path):
    (tmp_path / "s.toml").write_text(GOOD)
    code = ("import os; os.geteuid = lambda: 1000\n"
            "from nearmetal.cli import main; main()")
    done = subprocess.run([sys.executable, "-c", code, "run", "s.toml"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "needs root" in done.stderr and "Traceback" not in done.stderr


def test_export_in_three_formats(results, tmp_path):
    import pandas as pd

    for ending, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        out = tmp_path / f"out{ending}"
        assert "12 measurements" in nearmetal("export", results, out).stdout
        frame = read(out)
        assert len(frame) == 12 and set(frame["label"]) == {"a", "b"}
    nearmetal("export", results, tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert len(data["measurements"]) == 12 and data["study"]["seed"] == 1
    done = nearmetal("export", results, tmp_path / "out.xls")
    assert done.returncode == 2 and ".parquet" in done.stderr


def test_compare_two_environments(results):
    done = nearmetal("compare", f"{results}:a", f"{results}:b")
    assert done.returncode == 0, done.stderr
    assert "1.500" in done.stdout and "worse" in done.stdout
    done = nearmetal("compare", f"{results}:a", f"{results}:c")
    assert done.returncode == 2 and "It has: a, b" in done.stderr


def test_machines_that_differ_are_named_and_refused(results, tmp_path):
    import shutil
    import sqlite3

    other = tmp_path / "other"
    shutil.copytree(results, other)
    with sqlite3.connect(other / "results.sqlite") as db:
        db.execute("UPDATE study SET facts = ?", (json.dumps({"cpu": "b", "volatile.load": 9}),))
    for args in (("compare", results, other),
                 ("merge", results, other, "--to", tmp_path / "m.csv")):
        done = nearmetal(*args)
        assert done.returncode == 2
        assert "cpu" in done.stderr and "load" not in done.stderr
    assert not (tmp_path / "m.csv").exists()
    assert nearmetal("compare", results, other, "--across-machines").returncode == 0
    done = nearmetal("merge", results, results, "--to", tmp_path / "m.csv")
    assert "24 measurements" in done.stdout


def test_report_is_written_anew(results):
    done = nearmetal("report", results, "--no-figures")
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
    assert (results / "report.html").stat().st_size > 10_000


def test_list_names_layers_and_workloads():
    done = nearmetal("list")
    assert done.returncode == 0, done.stderr
    for name in ("native", "qemu", "uml", "linpack", "osbench"):
        assert name in done.stdout
