"""The report as one HTML file that needs no network: styles, scripts, data and charts inlined."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

import nearmetal
from nearmetal.report import charts, view, words
from nearmetal.report.figures import VEGALITE
from nearmetal.report.findings import Findings

TEMPLATES = Path(__file__).parent / "templates"
#: Width of the strips of the verdict table, in pixels; failed runs shown in full.
STRIP, FAILED = 200, 60
#: Facts of a machine that every environment has, in the order of the table.
FACTS = (("cpus", "Processors"), ("memory_mib", "Memory, MiB"), ("kernel", "Kernel"),
         ("clocksource", "Clock source"), ("network", "Network"))
FLAGS = {"clock": "its clock disagrees with the lab's by more than 1 %",
         "steal": "processor time was stolen by others while it ran"}
#: Markers of the legend, drawn in a box of 26 by 13 around (13, 6.5).
SHAPES = {
    "square": "M9.3 2.8h7.4v7.4h-7.4z", "triangle-up": "M13 2l4.6 8.2h-9.2z",
    "diamond": "M13 1.3l5 5.2-5 5.2-5-5.2z", "triangle-down": "M13 11l4.6-8.2h-9.2z",
    "cross": "M11.4 1.8h3.2v3.1h3.1v3.2h-3.1v3.1h-3.2v-3.1h-3.1v-3.2h3.1z",
    "triangle-right": "M17.5 6.5l-8.2 4.6v-9.2z", "triangle-left": "M8.5 6.5l8.2 4.6v-9.2z",
}


def write(findings: Findings, out_dir: Path) -> Path:
    """Write ``out_dir/report.html`` and return it.

    Figures that lie in ``out_dir/figures`` already (see :mod:`nearmetal.report.figures`) are
    linked below their charts; the report does not need them.
    """
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / "report.html"
    target.write_text(render(findings, out_dir), encoding="utf-8")
    return target


def render(findings: Findings, out_dir: Path | None = None) -> str:
    """The report's text; see :func:`write`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.ChainableUndefined)
    sections = _sections(findings, out_dir)
    scripts = _vega(), _asset("report.js")
    page = environment.get_template("report.html.j2").render(
        **_context(findings, sections), **_verdicts(findings), css=_css(),
        vega=Markup(scripts[0]), script=Markup(scripts[1]), policy=_policy(scripts))
    return page


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script, from vl-convert."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGALITE)
    notice = ("/* Vega, Vega-Lite and vega-embed, (c) the University of Washington Interactive "
              "Data Lab and contributors, BSD 3-Clause. */\n")
    return _inline("(() => {" + notice + bundle + "})();")


def _inline(script: str) -> str:
    """A script that cannot end the element that holds it."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return _inline((TEMPLATES / name).read_text(encoding="utf-8"))


def _css() -> Markup:
    """The style sheet, with the palette of the charts in both modes; print is light."""
    light = "".join(f"--e{i}:{a};" for i, (a, _) in enumerate(charts.PALETTE, 1))
    dark = "".join(f"--e{i}:{b};" for i, (_, b) in enumerate(charts.PALETTE, 1))
    themes = [f"--{name}:{colour};" for name, colour, _ in charts.THEME]
    darks = [f"--{name}:{colour};" for name, _, colour in charts.THEME]
    text = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    return Markup(f":root{{{light}{''.join(themes)}}}\n"
                  f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}"
                  f"{''.join(darks)}}}}}\n{text}")


def _policy(scripts: tuple[str, ...]) -> str:
    """A content security policy: these scripts, no network, nothing else."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{h}'" for h in hashes)
    return (f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
            "img-src data:; base-uri 'none'; form-action 'none'")


def _json(value: Any) -> Markup:
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def _identifier(workload: str, params: str) -> str:
    text = workload if params == "{}" else f"{workload}-{params}"
    return "w-" + re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def _sections(findings: Findings, out_dir: Path | None) -> list[dict[str, Any]]:
    """A section for each workload: its charts, their legend, its table."""
    made = []
    for workload, params in findings.workloads:
        drawn = [_chart(chart, out_dir) for chart in charts.build(findings, workload, params)]
        used = {name for chart in drawn for name in chart["labels"]}
        rows = view.detail_rows(findings, workload, params)
        made.append({
            "id": _identifier(workload, params), "name": workload, "params": words.params(params),
            "charts": drawn, "rows": rows, "points": any(row["point"] for row in rows),
            "labels": [label.name for label in findings.labels if label.name in used],
            "key": (workload, params)})
    return made


def _chart(chart: charts.Chart, out_dir: Path | None) -> dict[str, Any]:
    files = [(end.upper(), f"figures/{chart.id}.{end}") for end in ("svg", "png", "pdf")
             if out_dir and (out_dir / "figures" / f"{chart.id}.{end}").exists()]
    return {"id": f"c-{chart.id}", "title": chart.title, "subtitle": chart.subtitle,
            "spec": chart.spec, "labels": chart.labels, "notes": chart.notes,
            "files": files, "json": _json(chart.spec)}


def _verdicts(findings: Findings) -> dict[str, Any]:
    groups = view.groups(findings)
    scale = view.cost_scale(findings, groups, STRIP)
    return {"groups": groups, "answer": view.answer(findings, groups), "scale": scale,
            "ticks": scale.ticks()}


def _context(findings: Findings, sections: list[dict[str, Any]]) -> dict[str, Any]:
    frame = findings.frame
    crossing = [label for label in findings.subjects if label.cross]
    return {
        "f": findings, "words": words, "version": nearmetal.__version__,
        "styles": charts.styles(findings), "shapes": SHAPES, "sections": sections,
        "all_charts": [chart for section in sections for chart in section["charts"]],
        "anchors": {section["key"]: section["id"] for section in sections},
        "blocks": frame.block.nunique() if len(frame) else 0, "when": _when(findings),
        "ran": [label for label in findings.labels if label.ran],
        "absent": view.absentees(findings), "unlike": view.unlike(findings),
        "compared": [label for label in findings.subjects if label.ran],
        "margin": words.plain_number(view.margin_pct(findings)), "crossing": crossing,
        "caution": _caution(crossing), "caution_short": _caution_short(crossing),
        "failed": findings.failed_runs(),
        "failed_shown": FAILED, "flagged": _flagged(findings), "flag_words": FLAGS,
        "fact_columns": FACTS, "fact_keys": {key for key, _ in FACTS},
        "fact_groups": _fact_groups(findings), "more_facts": [label for label in findings.labels
                       if label.ran and set(label.facts) - {key for key, _ in FACTS}],
        "settings": _grouped(_settings(findings)), "level": view.level(findings),
        "about": str(_settings(findings).get("about") or ""), "method_text": _method(findings),
        "csv_gz": base64.b64encode(gzip.compress(
            frame.to_csv(index=False).encode(), mtime=0)).decode(),
        "comparison_csv": base64.b64encode(
            findings.comparison.to_csv(index=False).encode()).decode(),
        "file_stem": re.sub(r"[^A-Za-z0-9]+", "-", str(findings.study.get("name") or "study")),
        "colophon": f"Made by nearmetal {nearmetal.__version__}. This file is complete in itself "
                    "and asks nothing of any network.",
    }


def _fact_groups(findings: Findings) -> dict[str, dict[str, Any]]:
    """Facts of this machine, those named "group.fact" in groups of their own."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in findings.facts.items():
        group, _, name = str(key).rpartition(".")
        groups.setdefault(group, {})[name] = value
    return groups


def _flagged(findings: Findings) -> list[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Flagged measurements of each (label, flag), a row a workload."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in findings.flagged():
        found.setdefault((row["label"], row["flag"]), []).append(row)
    return list(found.items())


def _caution(crossing: list[Any]) -> str:
    kinds = list(dict.fromkeys(words.substrate(label.substrate) for label in crossing))
    return (f"Compared across substrates ({'; '.join(kinds)}). The cost shown is mostly that of "
            "the other substrate; such figures compare with one another, not with the baseline's "
            "hardware.")


def _caution_short(crossing: list[Any]) -> str:
    kinds = list(dict.fromkeys(words.substrate(label.substrate) for label in crossing))
    text = words.joined(kinds)
    return f"{text[:1].upper()}{text[1:]}:"


def _settings(findings: Findings) -> dict[str, Any]:
    settings = findings.study.get("settings")
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except ValueError:
            return {"settings": settings}
    return settings if isinstance(settings, dict) else {}


def _grouped(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by the table of the study file that they stand in; what says nothing left out."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            groups[key] = {name: one for name, one in value.items() if one is not None}
        elif value is not None and key != "about":
            groups.setdefault("", {})[key] = value
    return dict(sorted(item for item in groups.items() if item[1]))


def _stopping(settings: dict[str, Any]) -> str:
    """When blocks end, with the study's own numbers where it gives them."""
    rules = settings.get("statistics", settings)
    rules = rules if isinstance(rules, dict) else {}
    target, least, most = (rules.get(key) for key in ("target", "min_blocks", "max_blocks"))
    text = "Blocks are added until the intervals are as narrow as the study asks"
    if not words.absent(target):
        text += f" (a half width of {words.plain_number(100 * target)}{words.THIN}%)"
    bounds = [f"at least {least}"] if least else []
    bounds += [f"at most {most}"] if most else []
    text += f", {words.joined(bounds)} of them" if bounds else ", or its limit is reached"
    if not words.absent(rules.get("time_limit")):
        text += f", for no longer than {words.duration(rules['time_limit'])} once the least is done"
    return text + ("; a workload may have limits of its own. The rule looks at precision only, "
                   "never at the sign or the significance of a difference.")


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _when(findings: Findings) -> str:
    start, end = _time(findings.started), _time(findings.finished)
    if start is None:
        return str(findings.started)
    text = f"{start.day} {start:%B %Y, %H:%M} UTC"
    if end is None or (end - start).total_seconds() < 0:
        return text
    return f"{text} · took {words.duration((end - start).total_seconds())}"


def _method(findings: Findings) -> list[str]:
    """The method in prose, from the study's own settings."""
    margin = words.plain_number(view.margin_pct(findings))
    count = findings.frame.block.nunique() if len(findings.frame) else 0
    seed = "" if findings.seed is None else f" (seed {findings.seed})"
    texts = [
        f"Environments were measured in {count} blocks. In a block every environment runs every "
        f"workload once, in random order{seed}, on the same machine and close in time, so that a "
        "drift of the machine falls on all alike. Every environment runs the same binaries from "
        "the same userland: only what lies under them differs.",
        _stopping(_settings(findings)),
        "Each cost is the ratio of geometric means to the baseline's, with its "
        f"{view.level(findings)} % interval. "
        "Differences are tested by Welch's t-test, p-values adjusted after Holm over the whole "
        f"family; equivalence by two one-sided tests at a margin of {margin} %. “p ≥ 0.05” is "
        "never called “the same”. Means in the tables are arithmetic for times and sizes, harmonic "
        "for rates; outliers are counted, never dropped; a missing number stays missing.",
        "The baseline is also measured against itself, as if it were one more environment: the "
        "interval of that comparison is the noise floor printed beside each verdict.",
    ]
    if not words.absent(findings.overhead_share):
        share = words.number(100 * float(findings.overhead_share or 0), 3)
        texts.append(f"Of the study's wall time {share} % was spent outside workloads: booting, "
                     "moving files, storing results.")
    return texts
