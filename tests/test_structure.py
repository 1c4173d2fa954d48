"""The house rules that a machine can check: data flows one way, and no file grows too large."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nearmetal"
LAYERS_UP = {  # what a folder or file must not import
    "machines": {"study", "plan", "runner", "store", "analysis", "report", "cli", "lab",
                 "workloads"},
    "workloads": {"study", "plan", "runner", "store", "analysis", "report", "cli", "lab"},
    "observe": {"study", "plan", "runner", "store", "analysis", "report", "cli", "lab"},
    "analysis": {"runner", "cli", "lab", "machines", "report", "booter"},
    "report": {"runner", "cli", "lab", "machines", "store", "booter"},
    "store.py": {"runner", "cli", "lab", "machines", "report", "analysis"},
    "plan.py": {"runner", "cli", "lab", "report", "store"},
    "runner.py": {"cli", "lab", "report", "analysis"},
}


def files(place):
    path = SOURCE / place
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ([node.module] if node.module != "nearmetal"
                        else [f"nearmetal.{one.name}" for one in node.names])
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


@pytest.mark.parametrize("place", LAYERS_UP)
def test_nothing_imports_upwards(place):
    for path in files(place):
        used = {name.split(".")[1] for name in imports(path) if name.startswith("nearmetal.")}
        assert not used & LAYERS_UP[place], path.name


@pytest.mark.parametrize("place", ["runner.py", "store.py", "analysis", "report", "plan.py"])
def test_no_layer_or_workload_is_named_outside_its_file(place):
    from nearmetal.machines.base import layers
    from nearmetal.workloads.base import workloads

    # Left out: words that mean something else as well ("container" is a width in Vega-Lite).
    names = {*layers(), *workloads()} - {"boot", "native", "container"}
    pattern = re.compile(rf"""["']({'|'.join(map(re.escape, sorted(names)))})["']""")
    for path in files(place):
        assert not pattern.findall(path.read_text()), path.name


def test_files_and_functions_are_of_a_readable_size():
    sources = [path for folder in ("src", "agent", "workloads", "tests")
               for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".c", ".h", ".f90"}]
    assert len(sources) > 100
    assert [path.name for path in sources if len(path.read_text().splitlines()) > 600] == []
    long = [f"{path.name}: {node.name}" for path in SOURCE.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60]
    assert long == []
