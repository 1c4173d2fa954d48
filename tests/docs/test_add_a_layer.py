"""The worked example of docs/add-a-layer.md, taken from the page and run."""

import re
from pathlib import Path

import pytest

from nearmetal.machines import base

PAGE = Path(__file__).parents[2] / "docs" / "add-a-layer.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def noaslr(monkeypatch):
    monkeypatch.setattr(base, "_layers", dict(base.layers()))
    exec(compile(blocks()[0], str(PAGE), "exec"), {"__name__": "noaslr_example"})


def test_the_example_is_known_by_its_name(noaslr):
    from nearmetal.machines.path import Environment

    assert [layer.name for layer in Environment.parse("native/noaslr").layers] == [
        "native", "noaslr"]


@pytest.mark.slow
def test_the_example_boots_and_its_own_test_passes(noaslr, boot):
    namespace = {}
    exec(compile(blocks()[1], str(PAGE), "exec"), namespace)
    namespace["test_randomisation_is_off"](boot)
