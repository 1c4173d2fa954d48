"""The verdict table for a terminal; plain lines where there is none."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearmetal.report import view, words
from nearmetal.report.findings import Findings, Label

COLOURS = {"better": "green", "worse": "red", "equivalent": "cyan", "inconclusive": "yellow",
           "no data": "dim"}


def verdict_table(findings: Findings, console: Console) -> None:
    """Print each headline figure and its verdicts, then what could not run and why.

    A terminal gets a table that fits 80 columns; anything else plain lines, one a verdict, that
    can be searched with grep. Text is ASCII where the console's encoding is no Unicode one.
    """
    groups = view.groups(findings)
    if console.is_terminal:
        _table(groups, console, view.level(findings))
    else:
        _lines(groups, console)
    _notes(findings, console)


def _ascii(console: Console) -> bool:
    return not (console.encoding or "").lower().startswith("utf")


def _say(console: Console, text: str, style: str = "", plain: bool = False) -> None:
    """A line of prose; unbroken where the output is no terminal."""
    text = words.to_ascii(text) if _ascii(console) else text
    console.print(Text(text, style=style), soft_wrap=plain or not console.is_terminal,
                  highlight=False)


def _mark(label: Label) -> str:
    return f"{label.name}†" if label.cross else label.name


def _cells(row: view.Verdict, ascii_only: bool) -> list[Text]:
    symbol = words.SYMBOLS.get(row.verdict, ("?", "?"))[1 if ascii_only else 0]
    style = COLOURS.get(row.verdict, "")
    cost, span, noise = row.short, words.span_short(row.lo, row.hi), row.noise
    parts = [_mark(row.label), f"{symbol} {row.verdict}", cost, span, noise]
    if ascii_only:
        parts = [words.to_ascii(part) for part in parts]
    styles = ["", style, style, "", "dim"]
    return [Text(part, style=look) for part, look in zip(parts, styles, strict=True)]


def _table(groups: list[view.Group], console: Console, level: str) -> None:
    """Rows under the titles of their figures: one table a figure, all of the same widths."""
    ascii_only = _ascii(console)
    rows = {id(group): [_cells(row, ascii_only) for row in group.rows] for group in groups}
    heads = ("environment", "verdict", "cost", f"{level} % interval", "noise floor")
    widths = [max([len(head), *(len(row[i]) for some in rows.values() for row in some)])
              for i, head in enumerate(heads)]
    spare = console.width - sum(widths[1:]) - 2 * (len(heads) - 1)
    widths[0] = max(8, min(widths[0], spare))
    console.print(_grid(widths, [Text(head, style="dim") for head in heads]))
    for group in groups:
        title = words.to_ascii(group.name) if ascii_only else group.name
        console.print(Text(title, style="bold"), highlight=False)
        for row, cells in zip(group.rows, rows[id(group)], strict=True):
            console.print(_grid(widths, cells))
            if row.verdict == "no data":
                reason = row.words.removeprefix("no data: ")
                _say(console, f"  {reason}", "dim")


def _grid(widths: list[int], cells: list[Text]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for index, width in enumerate(widths):
        grid.add_column(width=width, no_wrap=True, overflow="ellipsis",
                        justify="left" if index < 2 else "right")
    grid.add_row(*cells)
    return grid


def _lines(groups: list[view.Group], console: Console) -> None:
    for group in groups:
        for row in group.rows:
            noise = "" if words.absent(row.noise_lo) else f"; noise floor {row.noise}"
            base = f", against {row.base_label}" if row.base_label else ""
            text = f"{row.verdict:<13} {_mark(row.label)}: {group.name}: {row.words}{base}{noise}"
            _say(console, text, plain=True)


def _notes(findings: Findings, console: Console) -> None:
    crossing = [label for label in findings.subjects if label.cross and label.ran]
    for kind in dict.fromkeys(label.substrate for label in crossing):
        names = [label.name for label in crossing if label.substrate == kind]
        _say(console, f"† {words.joined(names)}: {words.substrate(kind)}.", "yellow")
    for label in view.absentees(findings):
        reason = label.reason or label.state
        _say(console, f"Could not run: {label.name}: {reason} {label.remedy}".strip(), "yellow")
    failed = findings.failed_runs()
    if failed:
        kinds: dict[str, int] = {}
        for run in failed:
            key = f"{run.get('label', '')}, {run.get('workload', '')}: {run.get('status', '')}"
            kinds[key] = kinds.get(key, 0) + 1
        for key, count in kinds.items():
            _say(console, f"Failed: {key}, {count} run{'' if count == 1 else 's'}.", "yellow")
    for label in findings.subjects:
        if label.ran and label.matched not in ("", findings.baseline):
            _say(console, f"{label.name} is compared with {label.matched}.", "dim")
    counts: dict[tuple[str, str], list[int]] = {}
    for row in findings.flagged():
        total = counts.setdefault((row["label"], row["flag"]), [0, 0])
        total[0] += row["count"]
        total[1] += row["of"]
    for (name, flag), (count, of) in counts.items():
        _say(console, f"Flagged: {name}: {flag}, {count} of {of} measurements.", "dim")
