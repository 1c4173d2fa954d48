"""The report's rows: truth of the made-up study comes through, gaps stay gaps."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd
import pytest
import synthetic

from nearmetal.report import view, words
from nearmetal.report.findings import Cell


def row_of(findings, workload, metric, label):
    rows = [row for group in view.groups(findings) for row in group.rows
            if group.cell.workload == workload and group.cell.metric == metric
            and row.label.name == label]
    assert rows
    return rows[0]


def test_order_of_labels_is_baseline_its_twin_and_the_rest(findings):
    names = [label.name for label in findings.labels]
    assert names[0] == "native"
    assert [label.role for label in findings.labels][:3].count("subject") == 0
    assert names[-1] == "qemu(accel=kvm, io=virtio)"
    assert not findings.by_name["qemu(accel=kvm, io=virtio)"].ran


def test_known_costs_are_found(findings):
    assert row_of(findings, "stream", "bandwidth", "container").verdict == "equivalent"
    gvisor = row_of(findings, "osbench", "time", "gvisor")
    assert gvisor.verdict == "worse"
    assert gvisor.lo < 500 < gvisor.hi
    assert "times as much" in gvisor.words


def test_every_headline_has_every_environment_that_ran(findings):
    groups = view.groups(findings)
    ran = [label.name for label in findings.subjects if label.ran]
    assert len({group.cell.workload for group in groups}) == 7
    for group in groups:
        assert [row.label.name for row in group.rows] == ran


def test_a_missing_cell_is_no_data_with_its_reason_never_zero(findings):
    row = row_of(findings, "presta-laten", "latency", "uml")
    assert row.verdict == "no data"
    assert row.words == "no data: No answer in 60 s."
    assert row.mean == "–" and math.isnan(row.cost)
    details = [r for r in view.detail_rows(findings, "presta-laten", "{}")
               if r["label"].name == "uml"]
    assert details and all("value" not in r and "no data" in r["missing"] for r in details)


def test_cross_substrate_is_marked(findings):
    assert row_of(findings, "dgemm", "rate", "qemu(io=virtio)").cross
    assert not row_of(findings, "dgemm", "rate", "uml").cross
    assert row_of(findings, "dgemm", "rate", "uml").base_label == "native(cpus=1)"


def test_noise_floor_stands_beside_each_verdict(findings):
    row = row_of(findings, "dgemm", "rate", "container")
    assert row.noise_lo < row.noise_hi
    assert row.noise.endswith("%")


def test_headline_of_a_curve_is_one_end(findings):
    cells = findings.headlines()
    assert Cell("presta-laten", "{}", "latency", '{"processes":2}') in cells
    assert sum(cell.workload == "presta-com" for cell in cells) == 2
    assert all('"bytes":8388608' in cell.point for cell in cells if cell.workload == "presta-com")


def test_answer_is_cheapest_first_and_other_substrates_last(findings):
    names = [a.label.name for a in view.answer(findings, view.groups(findings))]
    assert names == ["container", "gvisor", "uml", "qemu(io=virtio)", "qemu(io=emulated)"]


def test_unlike_machines_are_told(findings):
    text = " ".join(view.unlike(findings))
    assert "no limit of memory" in text
    assert "uml is compared with native(cpus=1)" in text


def test_failed_runs_and_flags(findings):
    failed = findings.failed_runs()
    assert len(failed) == 3 and {run["status"] for run in failed} == {"timeout"}
    flags = findings.flagged()
    assert {row["label"] for row in flags} == {"qemu(io=emulated)"}
    assert all(0 < row["count"] < row["of"] for row in flags)


def test_the_scale_of_costs_keeps_order_and_marks_zero():
    scale = view.CostScale([-40, -3, 0, 1, 30, 5000], 2.0, 230)
    places = [scale.x(cost) for cost in (-40, -3, 0, 1, 30, 5000)]
    assert places == sorted(places) and len(set(places)) == 6
    assert 0 <= places[0] and places[-1] <= 230
    assert (scale.x(0), "0") in scale.ticks()


def test_a_metric_that_nobody_declared_is_still_shown(findings):
    bare = dataclasses.replace(findings, metrics={})
    groups = view.groups(bare)
    assert {group.cell.workload for group in groups} == {w for w, _ in bare.workloads}


@pytest.mark.parametrize("blocks", [1, 2])
def test_few_blocks_give_no_interval_and_no_crash(blocks):
    few = synthetic.findings(blocks=blocks)
    rows = [row for group in view.groups(few) for row in group.rows]
    assert rows
    if blocks == 1:
        assert {row.verdict for row in rows} <= {"inconclusive", "no data"}
        assert all(words.absent(row.lo) for row in rows)


def test_nothing_measured_at_all(findings):
    empty = dataclasses.replace(
        findings, frame=findings.frame.iloc[:0], summary=findings.summary.iloc[:0],
        comparison=findings.comparison.iloc[:0], runs=pd.DataFrame())
    assert view.groups(empty) == []
    assert view.answer(empty, []) == []
