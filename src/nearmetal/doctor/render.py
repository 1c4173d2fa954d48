"""Findings as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearmetal.doctor.facts import machine_facts
from nearmetal.doctor.model import GROUPS, Finding

MARKS = {"ok": ("ok", "green"), "info": ("-", "dim"), "warn": ("warn", "yellow"),
         "bad": ("BAD", "bold red")}
NAME_WIDTH = 22


def to_json(findings: Sequence[Finding]) -> str:
    """``{"findings": [{name, group, state, value, why, remedy}], "facts": {...}}``."""
    return json.dumps({"findings": [asdict(one) for one in findings], "facts": machine_facts()},
                      indent=2)


def _order(group: str) -> int:
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


def render(findings: Sequence[Finding], console: Console) -> None:
    """Print a table for each group; why and remedy where something should be done."""
    for group in sorted({one.group for one in findings}, key=_order):
        table = Table(box=None, padding=(0, 1), show_header=False, title=group, expand=True,
                      title_justify="left", title_style="bold", pad_edge=False)
        table.add_column(width=4, no_wrap=True)
        table.add_column(width=NAME_WIDTH)
        table.add_column(ratio=1)
        for one in findings:
            if one.group == group:
                _row(table, one)
        console.print(table)
        console.print()
    console.print(_summary(findings))


def _row(table: Table, one: Finding) -> None:
    mark, style = MARKS[one.state]
    value = Text(one.value)
    if one.state in ("warn", "bad"):
        value.stylize("bold" if one.state == "bad" else "")
        if one.why:
            value.append(f"\n{one.why}", style="dim")
        if one.remedy:
            value.append("\nDo: ", style="cyan")
            value.append(one.remedy)
    table.add_row(Text(mark, style=style), one.name, value)


def _summary(findings: Sequence[Finding]) -> Text:
    bad = [one.name for one in findings if one.state == "bad"]
    warn = sum(one.state == "warn" for one in findings)
    text = Text()
    if bad:
        text.append(f"{len(bad)} bad: {', '.join(bad)}. ", style="bold red")
    text.append(f"{warn} warning{'' if warn == 1 else 's'}. " if warn else "No warnings. ",
                style="yellow" if warn else "green")
    text.append("'nearmetal tune --show' says what can be quietened here, and undone.")
    return text
