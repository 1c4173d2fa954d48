"""The worked example of docs/add-a-workload.md, taken from the page and carried out."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nearmetal import study
from nearmetal.workloads import base

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "add-a-workload.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def pi(monkeypatch):
    """The definition, registered for the test alone."""
    monkeypatch.setattr(base, "_workloads", dict(base.workloads()))
    exec(compile(blocks("python")[0], str(PAGE), "exec"), {"__name__": "pi_example"})
    return base.workloads()["pi"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The program, compiled by the Makefile as it is, beside the others' sources."""
    for tool in ("make", "gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; `make setup` installs it")
    folder = tmp_path_factory.mktemp("pi") / "workloads"
    shutil.copytree(ROOT / "workloads", folder, ignore=shutil.ignore_patterns("build"))
    (folder / "pi.c").write_text(blocks("c")[0])
    done = subprocess.run(["make", "-C", str(folder), "build/pi"], capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    plan = subprocess.run(["make", "-C", str(folder), "-n", "install"], check=True,
                          capture_output=True, text=True, timeout=20).stdout
    assert re.search(r"^install -m 755 .*\bbuild/pi\b", plan, re.M)
    return folder / "build"


def test_its_own_test_passes(pi, compiled):
    def run(name, *arguments):
        return subprocess.run([str(compiled / name), *arguments], capture_output=True, text=True,
                              timeout=30)

    namespace = {}
    exec(compile(blocks("python")[1], str(PAGE), "exec"), namespace)
    namespace["test_pi"](run)


def test_the_study_of_the_page_is_valid(pi):
    made = study.parse("page.toml", blocks("toml")[0])
    assert [item.workload.params.steps for item in made.items] == [1_000_000, 10_000_000]


def test_it_keeps_the_rules_for_definitions(pi):
    assert pi.Params().steps == 100_000_000
    assert all(field.description for field in pi.Params.model_fields.values())
    assert [metric.name for metric in pi.metrics if metric.headline] == ["rate"]


def test_the_printed_lines_of_the_page_are_the_programs(compiled):
    shown = [line.strip() for line in PAGE.read_text().splitlines()
             if line.startswith('    {"type"')]
    done = subprocess.run([str(compiled / "pi"), "--steps", "1000000"], capture_output=True,
                          text=True, timeout=30)

    def shape(line):
        return re.findall(r'"(\w+)":', line)[:4]

    assert [shape(line) for line in done.stdout.splitlines()] == [shape(line) for line in shown]
