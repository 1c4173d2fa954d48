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
            spec = charts.standing_alone(findings, chart, workload, params)
            written += _write(spec, folder / chart.id)
    return written


def _write(spec: dict[str, Any], stem: Path) -> list[Path]:
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE)
    files = [stem.with_name(stem.name + end) for end in (".svg", ".png", ".pdf")]
    files[0].write_text(drawn, encoding="utf-8")
    files[1].write_bytes(vl_convert.svg_to_png(drawn, scale=PNG_SCALE))
    files[2].write_bytes(vl_convert.svg_to_pdf(drawn))
    return files


def verdict_figure(findings: Findings) -> dict[str, Any] | None:
    """All headline figures as one chart of costs with intervals and the margin, or None."""
    rows, gaps = [], []
    for group in view.groups(findings):
        for row in group.rows:
            place = {"figure": group.name, "environment": row.label.name}
            if words.absent(row.cost):
                gaps.append(place | {"text": f"no data: {row.label.name}"})
            else:
                rows.append(place | {"cost": row.cost, "lo": row.lo, "hi": row.hi})
    if not rows:
        return None
    return charts.paper(charts.costs(findings, rows, gaps, view.margin_pct(findings), WIDTH))
