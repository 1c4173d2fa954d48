"""The doctor's table at 80 columns."""

from __future__ import annotations

import io

from rich.console import Console

from nearmetal.doctor import Finding, examine, render


def shown(findings, width=80) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    render(findings, console)
    return console.file.getvalue()


def test_it_fits_and_groups_come_in_order():
    text = shown(examine())
    assert max(len(line) for line in text.splitlines()) <= 80
    heads = [line.strip() for line in text.splitlines() if line and line[0].isupper()]
    assert heads.index("Machine") < heads.index("Clock") < heads.index("Environments")


def test_remedies_show_for_what_is_wrong_only():
    text = shown([
        Finding("Fine", "Clock", "ok", "tsc", "WHYFINE", ""),
        Finding("Wrong", "Clock", "bad", "hpet", "It is slow.", "Use another."),
        Finding("Odd", "Newgroup", "warn", "value", "Because.", "Do so."),
    ])
    assert "WHYFINE" not in text
    assert "BAD" in text and "It is slow." in text and "Do: Use another." in text
    assert "1 bad: Wrong. 1 warning." in text
    assert text.index("Newgroup") > text.index("Clock")


def test_brackets_in_values_are_no_markup():
    assert "[always] madvise" in shown([Finding("[b]x", "Memory", "ok", "[always] madvise")])
