"""Charts are valid Vega-Lite, tell environments apart alike everywhere, and show gaps."""

from __future__ import annotations

import dataclasses
import json
import re

import altair as alt
import pandas as pd
import pytest
import synthetic

from nearmetal import analysis
from nearmetal.report import charts, figures


@pytest.fixture(scope="module")
def built(findings):
    return [chart for workload, params in findings.workloads
            for chart in charts.build(findings, workload, params)]


def encodings(spec):
    return [layer["encoding"] for layer in spec["layer"]]


def test_every_workload_has_a_chart(findings, built):
    for workload, _ in findings.workloads:
        assert any(chart.id.startswith(workload) for chart in built)


@pytest.mark.parametrize("workload", ["presta-laten", "dgemm", "osbench"])
def test_altair_accepts_the_specifications(built, workload):
    chart = next(chart for chart in built if chart.id.startswith(workload))
    alt.Chart.from_dict(charts.paper(chart.spec), validate=True)


def test_identifiers_are_unique_and_safe(built):
    names = [chart.id for chart in built]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", name) for name in names)


def test_every_mark_has_its_interval(built):
    for chart in built:
        rows = chart.spec["datasets"]["rows"]
        assert rows
        assert all(row["lo"] < row["value"] < row["hi"] for row in rows)


def test_an_environment_looks_the_same_in_every_chart(findings, built):
    found = charts.styles(findings)
    for chart in built:
        for encoding in encodings(chart.spec):
            if "shape" not in encoding:
                continue
            names = encoding["shape"]["scale"]["domain"]
            assert encoding["shape"]["scale"]["range"] == [found[n].shape for n in names]
            assert encoding["stroke"]["scale"]["range"] == [found[n].colour for n in names]


def test_other_substrates_are_hollow_and_dashed(findings):
    found = charts.styles(findings)
    assert found["qemu(io=virtio)"].fill == "var(--paper)" and found["qemu(io=virtio)"].dash
    assert found["container"].fill == found["container"].colour


def test_no_two_environments_look_alike(findings):
    looks = [(s.colour, s.shape, s.fill, s.dash) for s in charts.styles(findings).values()]
    assert len(set(looks)) == len(looks)


def test_axes_are_logarithmic_where_the_metric_says_so(findings):
    curve = charts.build(findings, "presta-com", "{}")[0]
    assert encodings(curve.spec)[0]["x"]["scale"] == {
        "type": "log", "base": 2, "nice": False, "padding": 14}
    assert encodings(curve.spec)[0]["y"]["scale"]["type"] == "log"
    dots = charts.build(findings, "linpack", '{"n":3000}')[0]
    assert encodings(dots.spec)[1]["x"]["scale"].get("type") != "log"


def test_an_axis_that_does_not_start_at_zero_says_so(findings):
    dots = charts.build(findings, "dgemm", "{}")[0]
    assert "does not start at 0" in json.dumps(dots.spec)


def test_gaps_are_named_with_their_reason(findings):
    notes = charts.build(findings, "presta-laten", "{}")[0].notes
    assert notes == ("uml: no data: No answer in 60 s.",)
    curve = charts.build(findings, "presta-com", "{}")[0]
    assert curve.notes[0].startswith("qemu(io=emulated) from 2 MiB to 8 MiB: no data: ")


def test_paper_has_no_variables_left(built):
    assert "var(" not in json.dumps(charts.paper(built[0].spec))


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("mode", [0, 1])
def test_colours_stand_out_from_their_paper(mode):
    paper = {name: pair for name, *pair in charts.THEME}["paper"][mode]
    for pair in charts.PALETTE:
        high, low = sorted((luminance(pair[mode]), luminance(paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3


def test_figures_are_written_in_three_formats(findings, tmp_path):
    few = findings.frame[findings.frame.workload.isin(["dgemm", "presta-laten"])]
    findings = dataclasses.replace(
        findings, frame=few, runs=findings.runs.iloc[:0], summary=analysis.summarize(few),
        comparison=analysis.compare(few))
    files = figures.write(findings, tmp_path)
    assert {file.suffix for file in files} == {".svg", ".png", ".pdf"}
    heads = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    for file in files:
        data = file.read_bytes()
        assert data.startswith(heads[file.suffix]) and len(data) > 1500
    drawn = (tmp_path / "figures" / "verdicts.svg").read_text()
    assert "container" in drawn and "var(" not in drawn


def test_a_single_run_is_a_dot_without_an_interval():
    one = synthetic.findings(blocks=1)
    for workload, params in one.workloads:
        for chart in charts.build(one, workload, params):
            marks = [layer["mark"]["type"] for layer in chart.spec["layer"]]
            assert "point" in marks and "rule" not in marks


@pytest.mark.parametrize(("name", "added"), [
    ("call", ""), ("call_p99", "p99"), ("call_mean_p99", "p99"), ("other_p99", "")])
def test_variants_of_a_metric(name, added):
    assert charts.variant(name, ["call", "call_p99", "call_mean", "call_mean_p99"]) == added


def test_metrics_of_unlike_size_do_not_share_a_linear_axis(findings):
    metrics = dict(findings.metrics) | {
        ("linpack", "solve"): dataclasses.replace(findings.metrics[("linpack", "total")],
                                                  name="solve")}
    frame = findings.frame[findings.frame.metric == "total"]
    small = frame.assign(metric="solve", value=frame.value / 500)
    both = pd.concat([findings.frame, small])
    found = dataclasses.replace(findings, frame=both, metrics=metrics,
                                summary=analysis.summarize(both))
    names = [chart.title for chart in charts.build(found, "linpack", '{"n":3000}')]
    assert "total and factor" in names and "solve" in names
