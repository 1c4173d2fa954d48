"""The tables of docs/workloads.md are those of the definitions."""

import importlib.util
import re
from pathlib import Path

from nearmetal.workloads.base import workloads

DOCS = Path(__file__).parents[2] / "docs"


def tables():
    spec = importlib.util.spec_from_file_location("workload_tables", DOCS / "workload_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    page = (DOCS / "workloads.md").read_text()
    assert tables().updated(page) == page, "run `python docs/workload_tables.py`"


def test_every_section_is_a_workload_with_its_table():
    page = (DOCS / "workloads.md").read_text()
    sections = re.findall(r"^## ([a-z-]+)$", page, re.M)
    assert len(sections) >= 7 and set(sections) <= set(workloads())
    assert re.findall(r"^<!-- begin (\S+) -->$", page, re.M) == sections
