"""Charts of a workload's metrics, as Vega-Lite specifications.

A metric with an axis becomes curves, one chart for each value of the rest of its point; metrics
without one become dots, those of one unit together. Every mark is a mean with its interval.
Colours are CSS variables (``var(--e1)``), so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt

from nearmetal.report import words
from nearmetal.report.findings import Cell, Findings, Label
from nearmetal.workloads.base import Metric

#: Colours of subjects, in order: on light paper, on dark. After Okabe and Ito (2008), darkened
#: or lightened to keep a contrast of 3:1; told apart by every common colour vision.
PALETTE = (
    ("#0072B2", "#4AA8E0"), ("#D55E00", "#F0803C"), ("#00825F", "#2DBE94"),
    ("#A8568B", "#DC94BE"), ("#946C00", "#E6B23C"), ("#3D4FB8", "#93A0F5"),
    ("#8C3B3B", "#D98A8A"), ("#4C7A1F", "#9CC76A"),
)
SHAPES = ("square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right",
          "triangle-left")
#: Colours of everything else: name, light, dark.
THEME = (("ink", "#1c1f23", "#e8e6e1"), ("muted", "#676d75", "#9aa0a8"),
         ("line", "#dcdad5", "#34383d"), ("paper", "#ffffff", "#16181b"))
FONT = "Inter, 'Liberation Sans', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
#: Height of a dot, and of a chart of curves, in pixels.
DOT, CURVE = 15, 260
#: A linear axis whose values span more than this factor becomes logarithmic.
WIDE = 20
#: Another substrate whose values lie further off than this factor is drawn apart.
APART = 3
#: Metrics of one unit share a chart of dots up to so many rows.
TOGETHER = 8


@dataclass(frozen=True)
class Style:
    """How an environment is drawn, everywhere in a report."""

    colour: str
    fill: str
    shape: str
    dash: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """One chart: its Vega-Lite specification and what to say around it."""

    id: str
    title: str
    subtitle: str
    spec: dict[str, Any]
    labels: tuple[str, ...]
    notes: tuple[str, ...]


def styles(findings: Findings) -> dict[str, Style]:
    """The style of each environment by name; the same in every chart, legend and table."""
    found: dict[str, Style] = {}
    subject = baseline = 0
    for label in findings.labels:
        dash: tuple[int, ...] = (5, 3) if label.cross else ()
        if label.role == "subject":
            colour = f"var(--e{subject % len(PALETTE) + 1})"
            shape = SHAPES[subject % len(SHAPES)]
            subject += 1
        else:
            colour = "var(--ink)" if label.role == "baseline" and not baseline else "var(--muted)"
            shape = "circle"
            dash = () if colour == "var(--ink)" else (1, 2)
            baseline += label.role == "baseline"
        hollow = label.cross or label.role == "aa"
        found[label.name] = Style(colour, "var(--paper)" if hollow else colour, shape, dash)
    return found


def paper(spec: Any) -> Any:
    """The same specification with the colours of light paper instead of CSS variables."""
    colours = {f"e{i}": light for i, (light, _) in enumerate(PALETTE, 1)}
    colours |= {name: light for name, light, _ in THEME}
    text = re.sub(r"var\(--([a-z0-9]+)\)", lambda m: colours[m.group(1)], json.dumps(spec))
    return json.loads(text)


def build(findings: Findings, workload: str, params: str, *, legend: bool = False,
          width: int | str = "container") -> list[Chart]:
    """The charts of a workload. ``legend`` draws one inside (for figures that stand alone)."""
    charts: list[Chart] = []
    singles = []
    for name in findings.metrics_of(workload, params):
        metric = findings.metric(workload, name)
        if _is_curve(findings, workload, params, metric):
            charts += _curves(findings, workload, params, metric, legend, width)
        else:
            singles.append(metric)
    for names in _families(findings, workload, params, singles):
        charts += _dots(findings, workload, params, names, legend, width)
    return charts


def _is_curve(findings: Findings, workload: str, params: str, metric: Metric) -> bool:
    """Whether a metric was measured at more than one place of its axis."""
    cells = findings.cells(workload, params, metric.name)
    return bool(metric.axis) and len({json.loads(c.point).get(metric.axis) for c in cells}) > 1


def variant(name: str, names: Iterable[str]) -> str:
    """What a metric's name adds to another's: "p99" for call_p99 beside call, else ""."""
    bases = [base for base in names if name.startswith(f"{base}_")]
    return name.removeprefix(f"{max(bases, key=len)}_") if bases else ""


def _families(findings: Findings, workload: str, params: str,
              metrics: list[Metric]) -> list[list[str]]:
    """Metrics that share a chart of dots: same unit, scale, direction and variant, and on a linear
    axis of like size, up to TOGETHER rows."""
    names = [metric.name for metric in metrics]
    found: list[tuple[tuple, float, list[str], int]] = []
    for metric in metrics:
        key = (metric.unit, metric.scale, metric.better, variant(metric.name, names))
        cells = findings.cells(workload, params, metric.name)
        means = [row.mean for cell in cells for label in findings.labels
                 if not label.cross and (row := findings.summary_of(cell, label.name))]
        size = max((abs(mean) for mean in means if not words.absent(mean)), default=0.0)
        for index, (other, like, some, rows) in enumerate(found):
            near = metric.scale == "log" or max(size, like) <= APART * min(size, like)
            if other == key and near and rows + len(cells) <= TOGETHER:
                found[index] = (key, like, [*some, metric.name], rows + len(cells))
                break
        else:
            found.append((key, size, [metric.name], len(cells)))
    return [some for *_, some, _ in found]


def _identifier(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(p for p in parts if p and p != "{}")).strip("-")


def _row(findings: Findings, cell: Cell, label: Label, metric: Metric) -> dict[str, Any] | None:
    found = findings.summary_of(cell, label.name)
    if found is None or words.absent(found.mean):
        return None
    lo = None if words.absent(found.lo) else found.lo
    hi = None if words.absent(found.hi) else found.hi
    if metric.scale == "log" and lo is not None and lo <= 0:
        lo = getattr(found, "gmean_lo", found.mean)  # a log axis has no place for 0
    mean, span = words.with_interval(found.mean, found.lo, found.hi)
    unit = words.unit(metric.unit)
    return {"environment": label.name, "value": found.mean, "lo": lo, "hi": hi,
            "mean": f"{mean} {unit}", "interval": f"{span} {unit}",
            "n": int(found.n), "substrate": label.substrate}


def _tooltip(*first: alt.Tooltip) -> list[alt.Tooltip]:
    return [alt.Tooltip("environment:N", title="Environment"), *first,
            alt.Tooltip("mean:N", title="Mean"), alt.Tooltip("interval:N", title="Interval"),
            alt.Tooltip("n:Q", title="Blocks"), alt.Tooltip("substrate:N", title="Runs on")]


def _scales(found: dict[str, Style], names: list[str], legend: bool) -> dict[str, Any]:
    """The encodings of colour, fill and shape, one merged legend."""
    shown = alt.Legend(title=None, orient="bottom", columns=3, symbolSize=70, labelLimit=260,
                       symbolStrokeWidth=1.5,
                       symbolDash=[1, 0], symbolOpacity=1) if legend else None

    def scale(values: list[Any]) -> alt.Scale:
        return alt.Scale(domain=names, range=values)

    return {
        "stroke": alt.Stroke("environment:N", legend=shown,
                             scale=scale([found[n].colour for n in names])),
        "fill": alt.Fill("environment:N", legend=shown,
                         scale=scale([found[n].fill for n in names])),
        "shape": alt.Shape("environment:N", legend=shown,
                           scale=scale([found[n].shape for n in names])),
    }


def _is_log(metric: Metric, values: list[float]) -> bool:
    """Whether values want a log axis: the metric says so, or they span more than it can show."""
    good = [value for value in values if value is not None]
    return min(good) > 0 and (metric.scale == "log" or max(good) / min(good) > WIDE)


def _value_scale(log: bool, values: list[float]) -> alt.Scale:
    """Log, or from 0 unless all values lie within a factor of 1.5."""
    if log:
        return alt.Scale(type="log", nice=False, padding=12)
    good = [value for value in values if value is not None]
    if _from_zero(good):
        return alt.Scale(zero=True, nice=True)
    return alt.Scale(zero=False, nice=True, padding=8)


def _from_zero(values: list[float]) -> bool:
    return min(values) <= 0 or max(values) / min(values) > 1.5


def _hint(metric: Metric) -> str:
    return f"{metric.better} is better"


def _number_axis(log: bool, title: str, ticks: int, values: list[float],
                 **more: Any) -> alt.Axis:
    """An axis of values; a log axis is labelled at 1, 2 and 5 when it is short, else at 1."""
    if not log:
        return alt.Axis(title=title, tickCount=ticks, **more)
    good = [v for v in values if v is not None and v > 0]
    decades = math.log10(max(good) / min(good)) if good else 0
    steps = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.5 else (1,)
    low, high = (math.floor(math.log10(min(good))), math.ceil(math.log10(max(good))))
    stride = max(1, math.ceil((high - low) / 7))
    powers = [power for power in range(low - 1, high + 1) if power % stride == 0]
    marks = [step * 10.0**power for power in powers for step in steps]
    return alt.Axis(title=title, values=marks, labelExpr=_VALUES, **more)


_VALUES = ("datum.value >= 10000 ? format(datum.value, '~s') : "
           "format(datum.value, ',~g')")
_BYTES = ("datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? "
          "datum.value / 1024 + ' KiB' : datum.value < 1073741824 ? "
          "datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'")


def _along_axis(metric: Metric, values: list[float]) -> alt.X:
    """The axis of a curve: measured points alone are labelled, powers of 4 of a long log2 axis."""
    name = metric.axis or ""
    title = f"{name} (log scale)" if metric.axis_scale != "linear" else name
    axis: dict[str, Any] = {"title": title, "grid": False, "labelOverlap": "greedy",
                            "labelSeparation": 6}
    if metric.axis_scale == "linear":
        axis |= {"values": values} if len(values) <= 16 else {}
        return alt.X("x:Q", axis=alt.Axis(**axis), scale=alt.Scale(nice=False, padding=14))
    step = max(1, math.ceil(len(values) / 8))
    axis["values"] = values[::-1][::step][::-1]
    if name == "bytes":
        axis["labelExpr"] = _BYTES
    scale = alt.Scale(type="log", base=2 if metric.axis_scale == "log2" else 10, nice=False,
                      padding=14)
    return alt.X("x:Q", axis=alt.Axis(**axis), scale=scale)


def _curves(findings: Findings, workload: str, params: str, metric: Metric, legend: bool,
            width: int | str) -> list[Chart]:
    panels: dict[str, list[Cell]] = {}
    for cell in findings.cells(workload, params, metric.name):
        panels.setdefault(words.point(cell.point, without=metric.axis), []).append(cell)
    shown = [label for label in findings.labels if label.role != "aa" and label.ran]
    charts = []
    for panel, cells in panels.items():
        rows, notes = _curve_rows(findings, metric, cells, shown)
        if not rows:
            continue
        names = [label.name for label in shown
                 if any(row["environment"] == label.name for row in rows)]
        spec = _curve_spec(findings, metric, rows, names, legend, width)
        title = words.plain(metric.name) + (f", {panel}" if panel else "")
        charts.append(Chart(_identifier(workload, params, metric.name, panel), title,
                            metric.summary, spec, tuple(names), tuple(notes)))
    return charts


def _curve_rows(findings: Findings, metric: Metric, cells: list[Cell],
                shown: list[Label]) -> tuple[list[dict[str, Any]], list[str]]:
    rows, notes = [], []
    for label in shown:
        missing = []
        for cell in cells:
            row = _row(findings, cell, label, metric)
            at = json.loads(cell.point).get(metric.axis)
            if row is None:
                missing.append(words.quantity(metric.axis or "", at))
            elif isinstance(at, int | float):
                rows.append(row | {"x": at, "at": words.quantity(metric.axis or "", at),
                                   "size": 110 if label.name == findings.baseline else 40})
        if missing:
            where = "" if len(missing) == len(cells) else (
                f" at {missing[0]}" if len(missing) == 1 else f" from {missing[0]}"
                f" to {missing[-1]}")
            reason = findings.why_missing(label, cells[0].workload, cells[0].params)
            notes.append(f"{label.name}{where}: no data: {reason}")
    return rows, notes


def _curve_spec(findings: Findings, metric: Metric, rows: list[dict[str, Any]],
                names: list[str], legend: bool, width: int | str) -> dict[str, Any]:
    found = styles(findings)
    scales = _scales(found, names, legend)
    values = [row[key] for row in rows for key in ("lo", "hi", "value")]
    log = " on a log scale" if _is_log(metric, values) else ""
    title = f"{words.plain(metric.name)} ({words.unit(metric.unit)}{log}), {_hint(metric)}"
    y = alt.Y("value:Q", scale=_value_scale(bool(log), values),
              axis=_number_axis(bool(log), "", 6, values))
    x = _along_axis(metric, sorted({row["x"] for row in rows}))
    dashes = alt.StrokeDash("environment:N", legend=None, scale=alt.Scale(
        domain=names, range=[list(found[name].dash) or [1, 0] for name in names]))
    base = alt.Chart(alt.NamedData("rows")).encode(x=x)
    line = base.mark_line(strokeWidth=1.4, opacity=0.85, fill=None).encode(
        y=y, stroke=scales["stroke"], strokeDash=dashes)
    bars = _bars(rows, x=x, y=alt.Y("lo:Q"), y2="hi:Q", stroke=scales["stroke"])
    dots = base.mark_point(strokeWidth=1.4, opacity=1).encode(
        # a larger mark of the baseline shows around those that cover it
        y=y, size=alt.Size("size:Q", scale=None, legend=None),
        tooltip=_tooltip(alt.Tooltip("at:N", title=metric.axis or "")), **scales)
    return _finish(alt.layer(line, *bars, dots), width, CURVE, title, rows=rows)


def _dots(findings: Findings, workload: str, params: str, names: list[str], legend: bool,
          width: int | str) -> list[Chart]:
    """Dots with intervals: a line for each environment, in groups for each metric and point.

    Where another substrate would squeeze a linear axis, it gets a chart of its own.
    """
    metric = findings.metric(workload, names[0])
    groups: list[tuple[str, Cell]] = []
    for name in names:
        for cell in findings.cells(workload, params, name):
            parts = [words.plain(name)] if len(names) > 1 else []
            parts += [words.point(cell.point)] if words.point(cell.point) else []
            groups.append((", ".join(parts), cell))
    present = [label for label in findings.labels if label.ran]
    means = [found.mean for _, cell in groups for label in present
             if (found := findings.summary_of(cell, label.name))]
    means = [mean for mean in means if not words.absent(mean)]
    if not means:
        return []
    parts = [(present, "")]
    other = [label for label in present if label.cross]
    apart = min(means) <= 0 or max(means) / min(means) > APART
    if other and metric.scale != "log" and metric.kind != "size" and apart:
        where = words.joined(list(dict.fromkeys(label.substrate for label in other)))
        parts = [([label for label in present if not label.cross], ""), (other, f"on {where}")]
    charts = []
    for labels, suffix in parts:
        rows, gaps, notes = _dot_rows(findings, metric, groups, labels)
        if rows:
            spec = _dot_spec(findings, metric, rows, gaps, [label.name for label in labels],
                             [group for group, _ in groups], legend, width)
            charts.append(_dot_chart(findings, workload, params, names, labels, suffix, spec,
                                     notes))
    return charts


def _dot_chart(findings: Findings, workload: str, params: str, names: list[str],
               labels: list[Label], suffix: str, spec: dict[str, Any],
               notes: list[str]) -> Chart:
    title = words.joined([words.plain(name) for name in names])
    summaries = [findings.metric(workload, name).summary for name in names]
    subtitle = "; ".join(s for s in dict.fromkeys(summaries) if s)
    if len(title) > 48:
        extra = variant(names[0], findings.metrics_of(workload, params))
        title = f"{len(names)} metrics{f', {extra}' if extra else ''}"
        subtitle = words.joined([words.plain(name) for name in names])
    if suffix:
        title += f", {suffix}"
        subtitle = "; ".join(dict.fromkeys(words.substrate(label.substrate) for label in labels))
    return Chart(_identifier(workload, params, *names[:3], suffix), title, subtitle, spec,
                 tuple(label.name for label in labels), tuple(notes))


def _dot_rows(findings: Findings, metric: Metric, groups: list[tuple[str, Cell]],
              labels: list[Label]) -> tuple[list[dict], list[dict], list[str]]:
    rows, gaps, notes = [], [], []
    for label in labels:
        missing = False
        for group, cell in groups:
            row = _row(findings, cell, label, metric)
            if row:
                rows.append(row | {"group": group})
            else:
                missing = True
                gaps.append({"group": group, "environment": label.name, "text": "no data"})
        if missing:
            cell = groups[0][1]
            reason = findings.why_missing(label, cell.workload, cell.params)
            notes.append(f"{label.name}: no data: {reason}")
    return rows, gaps, notes


def _dot_spec(findings: Findings, metric: Metric, rows: list[dict[str, Any]],
              gaps: list[dict[str, Any]], names: list[str], groups: list[str], legend: bool,
              width: int | str) -> dict[str, Any]:
    found = styles(findings)
    scales = _scales(found, names, legend)
    values = [row[key] for row in rows for key in ("lo", "hi", "value")]
    several = len(groups) > 1
    log = " on a log scale" if _is_log(metric, values) else ""
    title = f"{words.unit(metric.unit)}{log}, {_hint(metric)}"
    if not log and not _from_zero([v for v in values if v is not None]):
        title += "; the axis does not start at 0"
    x = alt.X("value:Q", scale=_value_scale(bool(log), values),
              axis=_number_axis(bool(log), title, 5, values, orient="bottom"))
    if several:
        y: dict[str, Any] = {
            "y": alt.Y("group:N", sort=groups, scale=alt.Scale(paddingInner=0.18),
                       axis=alt.Axis(title=None, ticks=False, domain=False, grid=True,
                                     tickBand="extent", labelLimit=160)),
            "yOffset": alt.YOffset("environment:N", sort=names, scale=alt.Scale(domain=names))}
    else:
        y = {"y": alt.Y("environment:N", sort=names, scale=alt.Scale(domain=names),
                        axis=alt.Axis(title=None, ticks=False, domain=False, labelLimit=150))}
    base = alt.Chart(alt.NamedData("rows"))
    bars = _bars(rows, x=alt.X("lo:Q"), x2="hi:Q", stroke=scales["stroke"], **y)
    extra = (alt.Tooltip("group:N", title="Figure"),) if several else ()
    dots = base.mark_point(size=44, strokeWidth=1.5, opacity=1).encode(
        x=x, tooltip=_tooltip(*extra), **scales, **y)
    chart = alt.layer(*bars, dots)
    if gaps:
        chart += alt.Chart(alt.NamedData("gaps")).mark_text(
            align="left", fontSize=10, fontStyle="italic", fill="var(--muted)").encode(
            x=alt.value(6), text="text:N", **y)
    step = DOT if len(groups) <= 4 else DOT - 4
    height = len(groups) * (len(names) * step + 10)
    return _finish(chart, width, height, None, rows=rows, gaps=gaps)


def _bars(rows: list[dict[str, Any]], **encoding: Any) -> list[alt.Chart]:
    """Intervals as a layer; no layer where none is known, as of a single run."""
    known = [row for row in rows if not (words.absent(row["lo"]) or words.absent(row["hi"]))]
    rules = alt.Chart(alt.Data(values=known)).mark_rule(strokeWidth=1.5)
    return [rules.encode(**encoding)] if known else []


def _finish(chart: alt.LayerChart, width: int | str, height: int,
            title: str | None, **data: list[dict[str, Any]]) -> dict[str, Any]:
    """The chart as a dict with its data; Altair's own check of it is left to the tests: slow."""
    made = chart.properties(width=width, height=height)
    if title:
        made = made.properties(title=alt.TitleParams(
            title, anchor="start", fontSize=11, fontWeight="normal", color="var(--muted)",
            offset=8, frame="group"))
    spec = made.to_dict(validate=False)
    spec["datasets"] = data
    spec["config"] = _config()
    spec["background"] = "transparent"
    if width == "container":
        spec["autosize"] = {"type": "fit-x", "contains": "padding", "resize": True}
    return spec


def _config() -> dict[str, Any]:
    axis = {"labelColor": "var(--ink)", "titleColor": "var(--muted)", "gridColor": "var(--line)",
            "domainColor": "var(--line)", "tickColor": "var(--line)", "labelFontSize": 11,
            "titleFontSize": 11, "titleFontWeight": "normal", "labelFont": FONT,
            "titleFont": FONT, "tickSize": 4, "labelPadding": 5, "titlePadding": 8}
    return {"axis": axis, "view": {"stroke": None}, "font": FONT,
            "legend": {"labelColor": "var(--ink)", "labelFontSize": 11, "rowPadding": 4},
            "rule": {"strokeCap": "butt"}}


def costs(findings: Findings, rows: list[dict[str, Any]], gaps: list[dict[str, Any]],
          margin: float, width: int) -> dict[str, Any]:
    """Costs (percent) of environments on several figures, the equivalence margin as a band.

    ``rows``: figure, environment, cost, lo, hi; ``gaps``: figure, environment, text.
    """
    names = [label.name for label in findings.subjects
             if any(row["environment"] == label.name for row in rows)]
    gaps = [gap for gap in gaps if gap["environment"] in names]
    figures = list(dict.fromkeys(row["figure"] for row in rows))
    scales = _scales(styles(findings), names, legend=True)
    ticks = [-90, -50, -10, -2, 0, 2, 10, 30, 100, 300, 1000, 3000, 10000, 30000]
    x = alt.X("cost:Q", scale=alt.Scale(type="symlog", constant=margin, padding=8),
              axis=alt.Axis(title="cost in % of the baseline, with its interval; "
                                  "the band is the margin of equivalence",
                            values=ticks, labelOverlap="greedy", labelExpr=(
                                "datum.value == 0 ? '0' : format(datum.value, '+,d')")))
    y = {"y": alt.Y("figure:N", sort=figures, axis=alt.Axis(
            title=None, ticks=False, domain=False, grid=True, tickBand="extent", labelLimit=260)),
         "yOffset": alt.YOffset("environment:N", sort=names, scale=alt.Scale(domain=names))}
    band = alt.Chart(alt.NamedData("band")).mark_rect(
        color="var(--line)", opacity=0.7).encode(x="a:Q", x2="b:Q")
    base = alt.Chart(alt.NamedData("rows"))
    bars = _bars(rows, x=alt.X("lo:Q"), x2="hi:Q", stroke=scales["stroke"], **y)
    dots = base.mark_point(size=44, strokeWidth=1.5, opacity=1).encode(x=x, **scales, **y)
    texts = alt.Chart(alt.NamedData("gaps")).mark_text(
        align="left", fontSize=9, fontStyle="italic", fill="var(--muted)").encode(
        x=alt.value(6), text="text:N", **y)
    height = len(figures) * (len(names) * 9 + 6)
    spec = _finish(alt.layer(band, *bars, dots, texts), width, height, None, rows=rows, gaps=gaps,
                   band=[{"a": -margin, "b": margin}])
    title = {"text": f"What each environment costs against its baseline: {findings.title}",
             "anchor": "start", "frame": "bounds", "fontSize": 13, "offset": 10,
             "color": "var(--ink)"} | _subtitle([], findings, names)
    return spec | {"title": title, "background": "var(--paper)", "padding": 10}


def _subtitle(lines: list[str], findings: Findings, names: Iterable[str]) -> dict[str, Any]:
    """Lines below a figure's title; the last says what hollow marks are, where there are any."""
    crossing = [findings.by_name[name] for name in names if findings.by_name[name].cross]
    kinds = dict.fromkeys(words.substrate(label.substrate) for label in crossing)
    lines = lines + [f"hollow marks: {kind}" for kind in kinds]
    if not lines:
        return {}
    return {"subtitle": lines, "subtitleColor": "var(--muted)", "subtitleFontSize": 11,
            "subtitlePadding": 5}


def standing_alone(findings: Findings, chart: Chart, workload: str, params: str) -> dict[str, Any]:
    """A chart's specification with a title of its own, on paper, for a figure in a file."""
    shown = words.params(params)
    title = {"text": f"{workload}{f' ({shown})' if shown else ''}: {chart.title}",
             "anchor": "start", "frame": "group", "fontSize": 13, "offset": 10,
             "color": "var(--ink)", "fontWeight": "bold"}
    under = chart.spec.get("title")
    lines = [under["text"]] if isinstance(under, dict) else []
    title |= _subtitle(lines, findings, chart.labels)
    return paper(chart.spec | {"title": title, "background": "var(--paper)", "padding": 10})
