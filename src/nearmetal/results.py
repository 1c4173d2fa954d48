"""From a store to what is shown of it: analysis applied, nothing measured."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from nearmetal.analysis.compare import compare, compare_stores, mergeable
from nearmetal.analysis.summary import summarize
from nearmetal.errors import NearmetalError
from nearmetal.report.findings import Findings
from nearmetal.store import Store, StoreError


def findings(path: Path | str) -> Findings:
    """The findings of a store. Raises StoreError when there is no store."""
    with Store(path) as store:
        study, frame, sessions = store.study(), store.frame(), store.sessions()
        stats, metrics = study["settings"]["statistics"], store.metrics()
        titles = {key: metric.summary or metric.name for key, metric in metrics.items()}
        return Findings(
            title=study["title"], frame=frame,
            summary=summarize(frame, confidence=stats["confidence"]),
            comparison=compare(frame, margin=stats["margin"], confidence=stats["confidence"],
                               protocol=stats["protocol"], titles=titles),
            runs=store.runs(), environments=store.environments(), study=study,
            facts=study["facts"], overhead_share=store.overhead_share(), seed=study["seed"],
            started=study["started"],
            finished=(sessions[-1]["ended"] or "") if sessions else "", metrics=metrics)


def compare_labels(first: str, second: str, *, labels: tuple[str | None, str | None],
                   force: bool = False) -> pd.DataFrame:
    """Compare two stores, or two environments of one or two stores.

    ``labels`` picks an environment in each (None: every label that both have). Raises StoreError,
    naming the facts, when the machines of the two stores differ, unless ``force``.
    """
    with Store(first) as one, Store(second) as two:
        differing = mergeable(one.facts(), two.facts())
        if differing and not force:
            raise StoreError(
                "The two stores come from machines that differ: "
                f"{'; '.join(map(str, differing))}.",
                "Compare stores of one machine, or add --across-machines to compare all the same.")
        frames = [one.frame(), two.frame()]
        stats = one.study()["settings"]["statistics"]
    picked = []
    for frame, label, path in zip(frames, labels, (first, second), strict=True):
        if label is not None:
            known = sorted(set(frame["label"]))
            frame = frame[frame["label"] == label]
            if frame.empty:
                raise StoreError(f"{str(path)!r} has no environment {label!r}.",
                                 f"It has: {', '.join(known) or 'none'}.")
        picked.append(frame)
    return compare_stores(picked[0], picked[1], margin=stats["margin"],
                          confidence=stats["confidence"])


def export(path: Path | str, out: Path) -> int:
    """Write a store's measurements to ``out`` (.csv, .parquet or .json); returns their number."""
    with Store(path) as store:
        frame, study = store.frame(), store.study()
        environments = store.environments()
    try:
        if out.suffix == ".csv":
            frame.to_csv(out, index=False)
        elif out.suffix == ".parquet":
            frame.to_parquet(out, index=False)
        elif out.suffix == ".json":
            out.write_text(json.dumps({
                "study": {key: study[key] for key in ("name", "title", "seed", "started",
                                                      "version", "settings", "facts")},
                "environments": environments,
                "measurements": json.loads(frame.to_json(orient="records"))}, indent=1))
        else:
            raise NearmetalError(f"Cannot export to {out.name!r}: the ending says the format.",
                                 "Use .csv, .parquet or .json.")
    except OSError as error:
        raise NearmetalError(f"Cannot write {str(out)!r}: {error.strerror}.",
                             "Give a place that exists and has room.") from None
    return len(frame)


def merge(paths: list[str], out: Path) -> int:
    """Merge the measurements of several stores of one machine into one table (as export).

    Raises StoreError, naming the facts, when the machines differ.
    """
    frames, facts = [], None
    for path in paths:
        with Store(path) as store:
            if facts is not None and (differing := mergeable(facts, store.facts())):
                raise StoreError(f"Refusing to merge: {str(path)!r} comes from another machine: "
                                 f"{'; '.join(map(str, differing))}.",
                                 "Merge stores of one machine only; `compare` shows them apart.")
            facts = store.facts() if facts is None else facts
            frames.append(store.frame().assign(store=str(path)))
    merged = pd.concat(frames, ignore_index=True)
    writers = {".csv": merged.to_csv, ".parquet": merged.to_parquet}
    if out.suffix not in writers:
        raise NearmetalError(f"Cannot merge into {out.name!r}.", "Use .csv or .parquet.")
    writers[out.suffix](out, index=False)
    return len(merged)
