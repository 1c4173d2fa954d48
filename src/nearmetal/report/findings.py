"""What a report is made of, and the questions its parts ask of it.

Nothing here names a layer, an environment or a workload: all comes from the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from nearmetal.report import words
from nearmetal.workloads.base import Metric


@dataclass(frozen=True)
class Label:
    """An environment as it is shown: ``place`` is its position in every legend and palette.

    ``role`` is "baseline", "aa" (the baseline against itself) or "subject"; ``cross`` says that
    it runs on another substrate than its baseline; ``matched`` is that baseline's label.
    """

    name: str
    environment: str
    role: str
    substrate: str
    matched: str
    cross: bool
    state: str
    reason: str
    remedy: str
    boot_s: float | None
    facts: Mapping[str, Any]
    place: int

    @property
    def ran(self) -> bool:
        """Whether it came up."""
        return self.state in ("ready", "ok", "")


@dataclass(frozen=True)
class Cell:
    """One figure: a metric of a workload at given parameters and a given point (JSON texts)."""

    workload: str
    params: str
    metric: str
    point: str


@dataclass(frozen=True)
class Findings:
    """All that a report shows.

    ``frame``: a row per measurement; ``summary``: a row per label and cell; ``comparison``: a row
    per label and cell against the label's baseline (see :mod:`nearmetal.analysis`). ``runs``: a
    row per run, failed ones too. ``environments``: path, label, role, state, reason, remedy,
    facts, boot_s of each. ``study``: name, text, seed, title, settings. ``overhead_share``: share
    of the wall time spent outside workloads, 0 to 1. ``started``, ``finished``: UTC, ISO.
    ``metrics``: what is known of each (workload, metric).
    """

    title: str
    frame: pd.DataFrame
    summary: pd.DataFrame
    comparison: pd.DataFrame
    runs: pd.DataFrame
    environments: list[dict[str, Any]]
    study: Mapping[str, Any]
    facts: Mapping[str, Any]
    overhead_share: float | None = None
    seed: int | None = None
    started: str = ""
    finished: str = ""
    metrics: Mapping[tuple[str, str], Metric] = field(default_factory=dict)

    @cached_property
    def labels(self) -> list[Label]:
        """Every environment of the study: the baseline first, then its A/A twin, then the rest."""
        seen = _by_label(self.frame)
        rows = {str(e.get("label") or e.get("path")): dict(e) for e in self.environments}
        for name, row in seen.items():
            rows.setdefault(name, {"label": name, "path": row["environment"], "state": "ready"})
        rank = {"baseline": 0, "aa": 1}
        ordered = sorted(rows.items(), key=lambda item: rank.get(
            item[1].get("role") or seen.get(item[0], {}).get("role"), 2))
        cross = _crossing(self.comparison)
        return [self._label(name, row, seen.get(name, {}), name in cross, place)
                for place, (name, row) in enumerate(ordered)]

    def _label(self, name: str, row: Mapping[str, Any], seen: Mapping[str, Any], cross: bool,
               place: int) -> Label:
        def text(key: str, default: str = "") -> str:
            value = row.get(key)
            value = seen.get(key) if value is None else value
            return default if value is None or value != value else str(value)

        boot = row.get("boot_s")
        return Label(
            name=name, environment=text("path") or text("environment", name),
            role=text("role", "subject"), substrate=text("substrate"), matched=text("matched"),
            cross=cross, state=text("state", "ready"), reason=text("reason"),
            remedy=text("remedy"), boot_s=None if words.absent(boot) else float(boot),
            facts=_facts(row.get("facts")), place=place)

    @cached_property
    def by_name(self) -> dict[str, Label]:
        """Labels by name."""
        return {label.name: label for label in self.labels}

    @property
    def subjects(self) -> list[Label]:
        """The environments that are compared with a baseline."""
        return [label for label in self.labels if label.role == "subject"]

    @property
    def baseline(self) -> str:
        """The name of the first baseline."""
        return next((label.name for label in self.labels if label.role == "baseline"), "baseline")

    @cached_property
    def workloads(self) -> list[tuple[str, str]]:
        """(workload, params), failed ones too: workloads in the order of ``metrics`` (within a
        block it is random), else in the order in which they first ran."""
        parts = [part[["workload", "params"]] for part in (self.frame, self.runs)
                 if {"workload", "params"} <= set(part.columns)]
        pairs = pd.concat(parts).dropna().drop_duplicates() if parts else pd.DataFrame()
        known = dict.fromkeys(workload for workload, _ in self.metrics)
        order = {name: place for place, name in enumerate(known)}
        return sorted((tuple(row) for row in pairs.itertuples(index=False)),
                      key=lambda pair: order.get(pair[0], len(order)))

    def metric(self, workload: str, name: str) -> Metric:
        """What is known of a metric; where nothing is, what its measurements say."""
        known = self.metrics.get((workload, name))
        if known is not None:
            return known
        rows = self.frame[(self.frame.workload == workload) & (self.frame.metric == name)]
        if rows.empty:
            return Metric(name, "", "lower")
        first = rows.iloc[0]
        return Metric(name, first.unit, first.better, first.kind)

    def metrics_of(self, workload: str, params: str) -> list[str]:
        """Metrics of a workload that have a number: declared order first."""
        here = self.summary[(self.summary.workload == workload) & (self.summary.params == params)]
        present = list(dict.fromkeys(here.metric))
        declared = [metric for (name, metric) in self.metrics if name == workload]
        return [m for m in declared if m in present] + [m for m in present if m not in declared]

    @cached_property
    def _points(self) -> dict[tuple[str, str, str], list[str]]:
        """Points of each (workload, params, metric), in the order in which they were printed."""
        keys = ["workload", "params", "metric", "point"]
        found: dict[tuple[str, str, str], list[str]] = {}
        parts = [part[keys] for part in (self.frame, self.summary) if len(part)]
        if parts:
            for row in pd.concat(parts).drop_duplicates().itertuples(index=False):
                found.setdefault((row.workload, row.params, row.metric), []).append(row.point)
        return found

    @cached_property
    def _summaries(self) -> dict[tuple[Cell, str], Any]:
        return _indexed(self.summary)

    @cached_property
    def _comparisons(self) -> dict[tuple[Cell, str], Any]:
        return _indexed(self.comparison)

    def summary_of(self, cell: Cell, label: str) -> Any | None:
        """The summary row (a named tuple) of a label at a cell, or None: no data."""
        return self._summaries.get((cell, label))

    def comparison_of(self, cell: Cell, label: str) -> Any | None:
        """The comparison row (a named tuple) of a label at a cell, or None."""
        return self._comparisons.get((cell, label))

    def cells(self, workload: str, params: str, metric: str) -> list[Cell]:
        """The cells of a metric, along its axis where it has one."""
        axis = self.metric(workload, metric).axis
        points = list(self._points.get((workload, params, metric), []))
        order = {text: index for index, text in enumerate(
            dict.fromkeys(words.point(text, without=axis) for text in points))}
        points.sort(key=lambda text: (order[words.point(text, without=axis)],
                                      _along(text, axis)))
        return [Cell(workload, params, metric, text) for text in points]

    def headlines(self) -> list[Cell]:
        """The figures of the verdict table.

        Every point of a headline metric that has no axis; of a curve one end: where a transfer
        is largest for rates, smallest for times. Without a headline metric, the first of each.
        """
        found: list[Cell] = []
        for workload, params in self.workloads:
            names = self.metrics_of(workload, params)
            chosen = [n for n in names if self.metric(workload, n).headline] or names[:1]
            for name in chosen:
                found += self._ends(workload, params, name)
        return found

    def _ends(self, workload: str, params: str, name: str) -> list[Cell]:
        metric = self.metric(workload, name)
        cells = self.cells(workload, params, name)
        if metric.axis is None:
            return cells
        curves: dict[str, list[Cell]] = {}
        for cell in cells:
            curves.setdefault(words.point(cell.point, without=metric.axis), []).append(cell)
        last = metric.kind == "rate" or metric.better == "higher"
        return [curve[-1 if last else 0] for curve in curves.values()]

    def why_missing(self, label: Label, workload: str, params: str) -> str:
        """Why an environment has no number for a workload: a reason, never an empty text."""
        if not label.ran:
            return label.reason or f"the environment is {label.state}"
        runs = self.runs
        if {"label", "workload", "status"} <= set(runs.columns):
            mine = runs[(runs.label == label.name) & (runs.workload == workload)]
            if "params" in runs.columns:
                mine = mine[mine.params == params]
            failed = mine[mine.status != "ok"]
            reasons = failed["reason"].dropna() if "reason" in failed.columns else []
            reasons = [str(reason) for reason in reasons if str(reason)]
            if reasons:
                return max(set(reasons), key=reasons.count)
            if len(failed):
                return f"{len(failed)} of {len(mine)} runs: {failed.status.iloc[0]}"
            if len(mine):
                return "its runs gave no number here"
        return "it was not run here"

    def failed_runs(self) -> list[dict[str, Any]]:
        """Runs that are not ok, as dicts; a missing column is left out."""
        if "status" not in self.runs.columns:
            return []
        failed = self.runs[self.runs.status != "ok"]
        return [{str(key): value for key, value in row.items()
                 if not (isinstance(value, float) and value != value) and value is not None}
                for row in failed.to_dict("records")]

    def flagged(self) -> list[dict[str, Any]]:
        """Measurements with a flag, counted by label, workload and flag."""
        if "flags" not in self.frame.columns:
            return []
        counts: dict[tuple[str, str, str], int] = {}
        marked = self.frame[self.frame["flags"].fillna("") != ""]
        for row in marked.itertuples():
            for flag in str(row.flags).split(","):
                key = (row.label, row.workload, flag.strip())
                counts[key] = counts.get(key, 0) + 1
        totals = self.frame.groupby(["label", "workload"]).size()
        return [{"label": a, "workload": w, "flag": f, "count": n, "of": int(totals[(a, w)])}
                for (a, w, f), n in sorted(counts.items())]


def _by_label(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    if frame.empty:
        return {}
    keys = [k for k in ("environment", "role", "substrate", "matched") if k in frame.columns]
    first = frame.drop_duplicates("label").set_index("label")[keys]
    return {str(name): dict(row) for name, row in first.iterrows()}


def _crossing(comparison: pd.DataFrame) -> set[str]:
    if comparison.empty or "cross_substrate" not in comparison.columns:
        return set()
    return set(comparison.loc[comparison.cross_substrate.astype(bool), "label"])


def _indexed(table: pd.DataFrame) -> dict[tuple[Cell, str], Any]:
    rows: Iterable[Any] = table.itertuples(index=False)
    return {(Cell(r.workload, r.params, r.metric, r.point), r.label): r for r in rows}


def _facts(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {"facts": value}
    return value if isinstance(value, Mapping) else {}


def _along(text: str, axis: str | None) -> tuple[int, float, str]:
    value = json.loads(text or "{}").get(axis) if axis else None
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))
