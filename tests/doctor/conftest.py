"""Machines made of files."""

from __future__ import annotations

import pytest

from nearmetal.doctor.system import System


@pytest.fixture
def fake(tmp_path):
    """A machine made of files: returns (System, function that writes a file under its root)."""
    root = tmp_path / "machine"
    root.mkdir()

    def write(name: str, text: str) -> None:
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return System(root), write
