"""What the tests of the programs share."""

from __future__ import annotations

import json
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "workloads"
MPI = {"presta-com", "presta-laten"}


def lines_of(text: str, kind: str) -> list[dict]:
    """The objects of one type that a program printed."""
    items = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [item for item in items if item["type"] == kind]
