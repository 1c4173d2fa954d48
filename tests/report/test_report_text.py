"""The verdict table of the terminal: fits, complete, searchable."""

from __future__ import annotations

import io

from rich.console import Console

from nearmetal.report import text


def shown(findings, **options):
    out = io.TextIOWrapper(io.BytesIO(), encoding=options.pop("encoding", "utf-8"))
    text.verdict_table(findings, Console(file=out, color_system=None, **options))
    out.flush()
    return out.buffer.getvalue().decode(out.encoding)


def test_a_terminal_of_80_columns(findings):
    lines = shown(findings, width=80, force_terminal=True).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["container", "=", "equivalent"] for line in lines)
    assert any("qemu(io=virtio)†" in line and "✗ worse" in line for line in lines)
    assert any("95 % interval" in line for line in lines)
    assert any(line.startswith("Could not run: qemu(accel=kvm") for line in lines)
    assert any("No answer in 60 s." in line for line in lines)


def test_lines_where_there_is_no_terminal(findings):
    lines = shown(findings, width=80, force_terminal=False).splitlines()
    found = [line for line in lines if line.startswith("worse") and "boot: time" in line]
    assert len(found) == 5
    assert "noise floor" in found[0] and "against native" in found[0]
    assert "Failed: uml, presta-laten: timeout, 3 runs." in lines


def test_an_ascii_terminal_gets_ascii(findings):
    for terminal in (True, False):
        assert shown(findings, width=80, force_terminal=terminal, encoding="ascii").isascii()


def test_a_narrow_terminal_does_not_break_rows(findings):
    lines = shown(findings, width=60, force_terminal=True).splitlines()
    assert max(map(len, lines)) <= 60
