"""The tables of a report as plain rows, for the page and for the terminal alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from nearmetal.report import words
from nearmetal.report.findings import Cell, Findings, Label


@dataclass(frozen=True)
class Verdict:
    """An environment at a cell: what was found, in words and in numbers.

    ``cost``, ``lo``, ``hi``, ``noise_lo``, ``noise_hi`` are percentages, positive: costs more.
    ``words`` says why when ``verdict`` is "no data".
    """

    label: Label
    verdict: str
    words: str
    cost: float = math.nan
    lo: float = math.nan
    hi: float = math.nan
    noise_lo: float = math.nan
    noise_hi: float = math.nan
    mean: str = "–"
    base: str = "–"
    base_label: str = ""
    cross: bool = False
    within_noise: bool = False
    n: int = 0

    @property
    def symbol(self) -> str:
        """The mark that stands for the verdict where colour does not show."""
        return words.SYMBOLS.get(self.verdict, ("?", "?"))[0]

    @property
    def noise(self) -> str:
        """The noise floor in words."""
        return words.noise(self.noise_lo, self.noise_hi)

    @property
    def short(self) -> str:
        """The cost for a narrow column."""
        return words.cost_short(self.cost)


@dataclass(frozen=True)
class Group:
    """A headline figure and its verdicts, one an environment."""

    cell: Cell
    title: str
    detail: str
    summary: str
    rows: list[Verdict] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Workload and figure: "osbench: time, page fault"."""
        return f"{self.cell.workload}: {self.title}"

    @property
    def noise(self) -> str:
        """The noise floor of the first row that has one."""
        return next((row.noise for row in self.rows if not words.absent(row.noise_lo)), "–")


def figure_title(cell: Cell) -> str:
    """A figure's name: metric and point, as in "latency, 8 B"."""
    parts = [words.plain(cell.metric), words.point(cell.point)]
    return ", ".join(part for part in parts if part)


def _detail(findings: Findings, cell: Cell, rows: list[Verdict]) -> str:
    """Parameters, direction, and what the baselines measured: "native: 4 170 MB/s"."""
    metric = findings.metric(cell.workload, cell.metric)
    bases = dict.fromkeys(f"{row.base_label}: {row.base} {words.unit(metric.unit)}"
                          for row in rows if row.base_label)
    parts = [words.params(cell.params), f"{metric.better} is better", *bases]
    return " · ".join(part for part in parts if part)


def _verdict(findings: Findings, cell: Cell, label: Label) -> Verdict:
    metric = findings.metric(cell.workload, cell.metric)
    mine = findings.summary_of(cell, label.name)
    row = findings.comparison_of(cell, label.name)
    if row is None or words.absent(row.mean):
        if mine is not None and not words.absent(mine.mean):
            return Verdict(label, "no data", "no data: its baseline has no number here",
                           mean=f"{words.number(mine.mean)} {words.unit(metric.unit)}")
        reason = findings.why_missing(label, cell.workload, cell.params)
        return Verdict(label, "no data", f"no data: {reason}")
    said = words.cost(row.cost_pct, row.cost_lo, row.cost_hi, row.verdict, margin_pct(findings))
    if words.absent(row.cost_pct) and getattr(row, "reason", ""):
        said = f"{said}: {row.reason}"
    return Verdict(
        label, str(row.verdict), said,
        row.cost_pct, row.cost_lo, row.cost_hi, row.noise_lo, row.noise_hi,
        f"{words.number(row.mean)} {words.unit(metric.unit)}", words.number(row.mean_base),
        str(row.base_label), bool(row.cross_substrate),
        row.verdict in ("better", "worse") and bool(getattr(row, "within_noise", False)),
        int(row.n))


def groups(findings: Findings) -> list[Group]:
    """The verdict table: a group for each headline figure, in it every environment that ran."""
    made = []
    for cell in findings.headlines():
        metric = findings.metric(cell.workload, cell.metric)
        rows = [_verdict(findings, cell, label) for label in findings.subjects if label.ran]
        made.append(Group(cell, figure_title(cell), _detail(findings, cell, rows),
                          metric.summary, rows))
    return made


def absentees(findings: Findings) -> list[Label]:
    """Environments that did not come up."""
    return [label for label in findings.labels if not label.ran]


def margin_pct(findings: Findings) -> float:
    """The equivalence margin, in percent (2 where nothing says)."""
    table = findings.comparison
    if "margin" in table.columns and len(table):
        value = float(table.margin.iloc[0])
        if not words.absent(value) and value > 0:
            return value * 100
    return 2.0


def level(findings: Findings) -> str:
    """The confidence of every interval, in percent: "95"."""
    table = findings.comparison
    if "confidence" in table.columns and len(table):
        value = float(table.confidence.iloc[0])
        if not words.absent(value):
            return words.plain_number(100 * value)
    return "95"


@dataclass(frozen=True)
class Answer:
    """What the study says of one environment, on its headline figures."""

    label: Label
    text: str
    cross: bool
    typical: float


def answer(findings: Findings, shown: list[Group]) -> list[Answer]:
    """The study's answer, a clause for each environment: the cheapest first, same substrate
    first."""
    found = []
    for label in findings.subjects:
        rows = [(group, row) for group in shown for row in group.rows
                if row.label.name == label.name and not words.absent(row.cost)]
        if rows:
            typical = median(row.cost for _, row in rows)
            cross = any(row.cross for _, row in rows)
            found.append(Answer(label, _clause(findings, rows, typical), cross, typical))
    return sorted(found, key=lambda item: (item.cross, item.typical))


def _clause(findings: Findings, rows: list[tuple[Group, Verdict]], typical: float) -> str:
    """"costs the same as native on 9 of 17 headline figures, more on 8; the median ..."."""
    counts = {name: sum(row.verdict == name for _, row in rows) for name in words.SYMBOLS}
    group, worst = max(rows, key=lambda item: item[1].cost)
    base = next((row.base_label for _, row in rows if row.base_label), findings.baseline)
    said = [f"{what} on {counts[name]}" for name, what in (
        ("equivalent", f"the same as {base}"), ("worse", "more"), ("better", "less"))
        if counts[name]]
    total = f"{len(rows)} headline figure{'' if len(rows) == 1 else 's'}"
    if not said:
        return (f"is inconclusive against {base} on all {total}: more blocks, or a quieter "
                "machine, would tell")
    text = f"costs {words.joined(said)} of {total}"
    if counts["inconclusive"]:
        text += f" ({counts['inconclusive']} inconclusive)"
    if counts["equivalent"] == len(rows):
        return text
    text += f"; the median cost is {words.cost_short(typical)}"
    if worst.cost > 0:
        text += f", the highest {words.cost_short(worst.cost)} ({group.name})"
    return text


def tally(shown: list[Group], label: Label) -> dict[str, int]:
    """How many headline figures have which verdict."""
    counts = dict.fromkeys(words.SYMBOLS, 0)
    for group in shown:
        for row in group.rows:
            if row.label.name == label.name:
                counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return counts


def detail_rows(findings: Findings, workload: str, params: str) -> list[dict[str, Any]]:
    """Every cell of a workload for every environment that ran; a gap says why."""
    rows = []
    for name in findings.metrics_of(workload, params):
        metric = findings.metric(workload, name)
        for order, cell in enumerate(findings.cells(workload, params, name)):
            for label in findings.labels:
                if label.ran:
                    rows.append(_detail_row(findings, cell, label, metric.unit, order))
    return rows


def _detail_row(findings: Findings, cell: Cell, label: Label, unit: str,
                order: int) -> dict[str, Any]:
    row: dict[str, Any] = {"metric": words.plain(cell.metric), "point": words.point(cell.point),
                           "order": order, "label": label, "unit": words.unit(unit), "n": 0}
    mine = findings.summary_of(cell, label.name)
    if mine is None or words.absent(mine.mean):
        reason = findings.why_missing(label, cell.workload, cell.params)
        return row | {"missing": f"no data: {reason}"}
    # Few scattered values: an interval of the plain mean may reach below 0, which no time does.
    lo, hi = (mine.lo, mine.hi) if not mine.lo <= 0 else (mine.gmean_lo, mine.gmean_hi)
    mean, span = words.with_interval(mine.mean, lo, hi)
    row |= {"n": int(mine.n), "mean": mean, "span": span, "value": mine.mean}
    other = findings.comparison_of(cell, label.name)
    if other is not None:
        row |= {"cost": other.cost_pct, "cost_text": words.cost_short(other.cost_pct),
                "cost_span": words.span_short(other.cost_lo, other.cost_hi),
                "ratio": words.number(other.ratio), "ratio_value": other.ratio,
                "p": words.p_value(other.p_holm), "p_value": other.p_holm,
                "verdict": str(other.verdict), "base": str(other.base_label),
                "symbol": words.SYMBOLS.get(str(other.verdict), ("?", "?"))[0],
                "cross": bool(other.cross_substrate)}
    return row


def unlike(findings: Findings) -> list[str]:
    """Environments whose processors or memory differ from those of their baseline, in words."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for label in findings.subjects:
        base = findings.by_name.get(label.matched)
        if not label.ran or base is None:
            continue
        for key, what in (("cpus", "processors"), ("memory_mib", "MiB of memory")):
            if key in label.facts and key in base.facts and label.facts[key] != base.facts[key]:
                mine, theirs = (_amount(facts[key], what) for facts in (label.facts, base.facts))
                alike.setdefault((key, mine, base.name, theirs), []).append(label.name)
    found = [f"{words.joined(names)}: {mine}; {base}, the baseline: {theirs}."
             for (_, mine, base, theirs), names in alike.items()]
    for label in findings.subjects:
        if label.ran and label.matched and label.matched != findings.baseline:
            found.append(f"{label.name} is compared with {label.matched}, not with "
                         f"{findings.baseline}: like with like.")
    return found


def _amount(value: Any, what: str) -> str:
    if value is None:
        return f"no limit of {what.removeprefix('MiB of ')}"
    return f"{value} {what.removesuffix('s') if value == 1 else what}"


class CostScale:
    """Where a cost (percent) lies on a strip: even around 0, by factors far from it.

    The inverse hyperbolic sine of cost over margin: about even within the margin, logarithmic
    beyond (the "symlog" of plotting tools).
    """

    #: cost in percent, and its label on the strip
    TICKS = ((-90.0, "−90 %"), (-50.0, "−50 %"), (-10.0, "−10 %"), (0.0, "0"), (10.0, "+10 %"),
             (100.0, "2×"), (900.0, "10×"), (9900.0, "100×"), (99900.0, "1000×"))

    def __init__(self, costs: list[float], margin: float, width: float, pad: float = 8):
        good = [c for c in costs if not words.absent(c)] + [-2 * margin, 2 * margin]
        self.margin, self.width, self.pad = margin, width, pad
        self.low, self.high = self._raw(min(good)), self._raw(max(good))

    def _raw(self, cost: float) -> float:
        return math.asinh(cost / self.margin)

    def x(self, cost: float) -> float:
        """The place of a cost, from 0 to the strip's width."""
        share = (self._raw(cost) - self.low) / (self.high - self.low)
        share = min(max(share, 0.0), 1.0)
        return round(self.pad + share * (self.width - 2 * self.pad), 1)

    def ticks(self, apart: float = 30) -> list[tuple[float, str]]:
        """(place, label) of the marks that fit, 0 always among them."""
        zero = self.x(0)
        kept = [(zero, "0")]
        for cost, text in self.TICKS:
            inside = self.low <= self._raw(cost) <= self.high
            if inside and all(abs(self.x(cost) - place) >= apart for place, _ in kept):
                kept.append((self.x(cost), text))
        return sorted(kept)


def cost_scale(findings: Findings, shown: list[Group], width: float) -> CostScale:
    """One scale for all strips of the verdict table, so that they can be compared."""
    costs = [value for group in shown for row in group.rows
             for value in (row.cost, row.lo, row.hi, row.noise_lo, row.noise_hi)]
    return CostScale(costs, margin_pct(findings), width)
