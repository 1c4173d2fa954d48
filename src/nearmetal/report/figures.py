"""The charts as files for papers: SVG, PNG and PDF, on light paper, each with its own legend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from nearmetal.report import charts, view, words
from nearmetal.report.findings import Findings

WIDTH, PNG_SCALE = 440, 3
#: The release of Vega-Lite that Altair writes for, as vl-convert names it.
VEGALITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def write(findings: Findings, out_dir: Path) -> list[Path]:
    """Write every chart to ``out_dir/figures`` and return the files, three a chart."""
    folder = Path(out_dir) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    verdicts = verdict_figure(findings)
    if verdicts:
        written += _write(verdicts, folder / "verdicts")
    for workload, params in findings.workloads:
        for chart in charts.build(findings, workload, params, legend=True, width=WIDTH):
            spec = charts.paper(_titled(chart, workload, params))
            written += _write(spec, folder / chart.id)
    return written


def _titled(chart: charts.Chart, workload: str, params: str) -> dict[str, Any]:
    shown = words.params(params)
    title = {"text": f"{workload}{f' ({shown})' if shown else ''}: {chart.title}",
             "anchor": "start", "frame": "group", "fontSize": 13, "offset": 10,
             "color": "var(--ink)", "fontWeight": "bold"}
    under = chart.spec.get("title")
    if isinstance(under, dict):
        title |= {"subtitle": under["text"], "subtitleColor": "var(--muted)",
                  "subtitleFontSize": 11, "subtitlePadding": 5}
    return chart.spec | {"title": title, "background": "var(--paper)", "padding": 10}


def _write(spec: dict[str, Any], stem: Path) -> list[Path]:
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE)
    files = [stem.with_name(stem.name + end) for end in (".svg", ".png", ".pdf")]
    files[0].write_text(drawn, encoding="utf-8")
    files[1].write_bytes(vl_convert.svg_to_png(drawn, scale=PNG_SCALE))
    files[2].write_bytes(vl_convert.svg_to_pdf(drawn))
    return files


def verdict_figure(findings: Findings) -> dict[str, Any] | None:
    """All headline figures as one chart of costs with intervals and the margin, or None."""
    shown = view.groups(findings)
    rows = [{"figure": g.name, "environment": row.label.name,
             "cost": row.cost, "lo": row.lo, "hi": row.hi}
            for g in shown for row in g.rows if not words.absent(row.cost)]
    if not rows:
        return None
    return charts.paper(charts.costs(findings, rows, view.margin_pct(findings), WIDTH))
