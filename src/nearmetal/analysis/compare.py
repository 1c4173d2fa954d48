"""Each environment against its baseline: ratio, interval, tests, verdict, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from nearmetal.analysis.cells import CELL, PLACE, AnalysisError, Cells, sort_cells
from nearmetal.analysis.inference import Tested, paired, welch
from nearmetal.analysis.protocols import Moments, Protocol, protocol_named
from nearmetal.analysis.sentences import sentence
from nearmetal.analysis.summary import table_of

COLUMNS = [
    *PLACE, "environment", "label", "role", "substrate", "base_label", "base_substrate",
    "cross_substrate", "unit", "better", "kind", "n", "n_base", "mean", "mean_base", "mean_kind",
    "ratio", "lo", "hi", "cost_pct", "cost_lo", "cost_hi", "p", "p_holm", "p_tost", "effect",
    "margin", "confidence", "protocol", "method", "noise_lo", "noise_hi", "noise_label",
    "within_noise", "verdict", "flags", "reason", "sentence",
]
SHARED_BLOCKS = 0.9  # a paired design needs this share of the blocks in common


def compare(
    df: pd.DataFrame, *, margin: float = 0.02, confidence: float = 0.95, protocol: str = "all",
    design: Literal["welch", "paired"] = "welch",
    titles: Mapping[tuple[str, str], str] | None = None,
) -> pd.DataFrame:
    """Compare every label with its matched baseline, point by point.

    ``df``: measurements as ``nearmetal.load`` returns them. ``margin``: the equivalence margin,
    a fraction; ratios from 1/(1+margin) to 1+margin are "the same". ``protocol``: a name of
    :func:`nearmetal.analysis.protocols`. ``design``: "welch", or "paired" (by block, where at
    least 90 % of the blocks are shared; other pairs stay Welch, see ``method``). ``titles``:
    (workload, metric) -> name for people, for the sentences.

    One row a (study, workload, params, metric, point, label). ``ratio, lo, hi`` are factors
    (subject / baseline); ``cost_pct, cost_lo, cost_hi`` per cent, + means that the subject costs
    more; ``p`` of no difference, ``p_holm`` after Holm over the study's comparisons (A/A rows
    are a family of their own), ``p_tost`` of the equivalence test; ``effect``: Hedges' g, signed
    as the cost; ``noise_lo, noise_hi``: the interval of the baseline against itself, per cent.
    ``verdict``: "equivalent" (within the margin, whether or not a difference is significant),
    else "better" or "worse" (p_holm < 1 - confidence), else "inconclusive". A number that
    cannot be had is NaN with a ``reason``. Raises AnalysisError.
    """
    if not margin > 0 or not 0.5 < confidence < 1:
        raise AnalysisError(
            f"A margin of {margin} with a confidence of {confidence} makes no test.",
            "Give fractions: a margin above 0, a confidence between 0.5 and 1.")
    if design not in ("welch", "paired"):
        raise AnalysisError(f"There is no design called {design!r}.", "Known: welch, paired.")
    chosen = protocol_named(protocol)
    cells = sort_cells(df)
    table = table_of(cells, confidence)
    rows = _pairs(cells.about)
    moments = _moments(cells, chosen)
    one, two = _pick(moments, rows["cell"]), _pick(moments, rows["base"])
    rows["margin"], rows["confidence"], rows["protocol"] = margin, confidence, chosen.name
    _describe(rows, table, chosen, moments)
    tested = welch(one, two, chosen.scale, margin, confidence)
    rows["method"] = "welch"
    if design == "paired" and chosen.scale == "log":
        tested = _use_pairs(tested, cells, rows, margin, confidence)
    _numbers(rows, tested, one, two)
    _family(rows)
    _noise(rows)
    rows["verdict"] = _verdicts(rows)
    rows["reason"] = _reasons(rows, table, chosen, one, two)
    names = titles or {}
    rows["sentence"] = [sentence(row, names.get((row.workload, row.metric), ""))
                        for row in rows.itertuples(index=False)]
    return rows[COLUMNS].reset_index(drop=True)


def _pairs(about: pd.DataFrame) -> pd.DataFrame:
    """Which cell is compared with which: columns ``cell`` and ``base``, -1 where there is none.

    A point that the baseline has and the label lacks makes a row too, so that what is missing
    is seen.
    """
    cells = about.assign(cell=np.arange(len(about)))
    asked = (cells["role"] != "baseline") | (cells["matched"] != "")
    subjects = cells[asked & (cells["label"] != cells["matched"])]
    where = ["study", "workload", "params"]
    bases = cells.rename(columns={"label": "base_label", "cell": "base",
                                  "substrate": "base_substrate"})
    subjects = subjects.rename(columns={"matched": "base_label"})
    who = subjects[[*where, "label", "base_label", "environment", "role", "substrate"]]
    expected = who.drop_duplicates([*where, "label"]).merge(
        bases[[*PLACE, "base_label", "unit", "better", "kind"]], on=[*where, "base_label"])
    have = pd.MultiIndex.from_frame(subjects[CELL])
    lacking = expected[~pd.MultiIndex.from_frame(expected[CELL]).isin(have)].assign(cell=-1)
    rows = pd.concat([subjects, lacking], ignore_index=True) if len(lacking) else subjects
    rows = rows.merge(bases[[*PLACE, "base_label", "base", "base_substrate"]],
                      how="left", on=[*PLACE, "base_label"])
    rows["base"] = rows["base"].fillna(-1).astype(int)
    rows["base_substrate"] = rows["base_substrate"].fillna("")
    rows["cross_substrate"] = (rows["base"] >= 0) & (rows["substrate"] != rows["base_substrate"])
    rank = about[PLACE].drop_duplicates().assign(_rank=lambda places: np.arange(len(places)))
    rows = rows.merge(rank, how="left", on=PLACE)
    return rows.sort_values(["_rank", "label"], ignore_index=True).drop(columns="_rank")


def _moments(cells: Cells, protocol: Protocol) -> Moments:
    """Moments of every cell, and one of nothing at the end (for index -1)."""
    size = len(cells.about) + 1
    centre, sd, n = np.full(size, np.nan), np.full(size, np.nan), np.zeros(size)
    with np.errstate(over="ignore", invalid="ignore"):
        for which, matrix in cells.by_size(protocol.runs):
            centre[which], sd[which], n[which] = protocol.moments(matrix)
    return Moments(centre, sd, n)


def _pick(moments: Moments, which: pd.Series) -> Moments:
    return Moments(*(part[which.to_numpy()] for part in moments))


def _with_none(column: pd.Series, nothing: Any) -> np.ndarray:
    return np.append(column.to_numpy(), nothing)


def _describe(rows: pd.DataFrame, table: pd.DataFrame, protocol: Protocol, moments: Moments):
    """What is known of both sides apart from tests: counts, means, flags."""
    cell, base = rows["cell"].to_numpy(), rows["base"].to_numpy()
    count = _with_none(table["n"], 0)
    used = count if protocol.runs is None else np.minimum(count, protocol.runs)
    house = protocol.scale == "log"
    mean = _with_none(table["mean"], np.nan) if house else moments.centre
    rows["n"], rows["n_base"] = used[cell], used[base]
    rows["mean"], rows["mean_base"] = mean[cell], mean[base]
    rows["mean_kind"] = (np.where(rows["kind"] == "rate", "harmonic", "arithmetic") if house
                         else "trimmed" if protocol.trim else "arithmetic")
    flags = _with_none(table["flags"], "")
    rows["flags"] = [",".join(sorted({*one.split(","), *two.split(",")} - {""}))
                     for one, two in zip(flags[cell], flags[base], strict=True)]


def _use_pairs(tested: Tested, cells: Cells, rows: pd.DataFrame, margin: float,
               confidence: float) -> Tested:
    """The tests, by block where enough blocks are shared."""
    differences = _by_block(cells, rows)
    use = differences.n >= 2
    rows.loc[use, "method"] = "paired"
    other = paired(differences, margin, confidence)
    return Tested(*(np.where(use, new, old) for new, old in zip(other, tested, strict=True)))


def _by_block(cells: Cells, rows: pd.DataFrame) -> Moments:
    """Differences of mean logarithms within blocks, one element a row; n = 0 where less than
    90 % of the blocks are shared, or a value is not positive."""
    with np.errstate(all="ignore"):
        logs = pd.DataFrame({
            "cell": np.repeat(np.arange(len(cells.about)), cells.counts),
            "block": cells.blocks, "log": np.log(cells.values)})
    means = logs.groupby(["cell", "block"], as_index=False)["log"].mean()
    both = rows[["cell", "base"]].rename_axis("row").reset_index().merge(means, on="cell").merge(
        means.rename(columns={"cell": "base", "log": "base_log"}), on=["base", "block"])
    both["difference"] = both["log"] - both["base_log"]
    found = both.groupby("row")["difference"].agg(["mean", "std", "count", "min", "max"])
    found = found.reindex(range(len(rows)))
    blocks = _with_none(means.groupby("cell")["block"].size().reindex(
        range(len(cells.about)), fill_value=0), 0)
    most = np.maximum(blocks[rows["cell"]], blocks[rows["base"]])
    usable = (found["count"] >= SHARED_BLOCKS * most) & np.isfinite(found["std"])
    sd = np.where(found["min"] == found["max"], 0.0, found["std"])
    return Moments(found["mean"].to_numpy(), sd, np.where(usable, found["count"], 0.0))


def _numbers(rows: pd.DataFrame, tested: Tested, one: Moments, two: Moments) -> None:
    """Ratio, cost, p and effect size as columns."""
    from statsmodels.stats.meta_analysis import effectsize_smd  # here: it loads slowly

    for name, part in tested._asdict().items():
        rows[name] = part
    higher = (rows["better"] == "higher").to_numpy()
    with np.errstate(all="ignore"):
        rows["cost_pct"] = 100 * (np.where(higher, 1 / tested.ratio, tested.ratio) - 1)
        rows["cost_lo"] = 100 * (np.where(higher, 1 / tested.hi, tested.lo) - 1)
        rows["cost_hi"] = 100 * (np.where(higher, 1 / tested.lo, tested.hi) - 1)
        if len(rows):
            effect, _ = effectsize_smd(one.centre, one.sd, one.n, two.centre, two.sd, two.n)
        else:
            effect = np.array([])
    some = np.isfinite(tested.p) & np.isfinite(effect)
    rows["effect"] = np.where(some, np.where(higher, -1, 1) * effect, np.nan)


def _family(rows: pd.DataFrame) -> None:
    """Holm's correction: over all comparisons of a study; A/A rows among themselves."""
    from statsmodels.stats.multitest import multipletests  # here: it loads slowly

    rows["p_holm"] = np.nan
    for _, part in rows.groupby(["study", rows["role"] == "aa"], sort=False):
        p = part["p"].dropna()
        if len(p):
            rows.loc[p.index, "p_holm"] = multipletests(p.to_numpy(), method="holm")[1]


def _noise(rows: pd.DataFrame) -> None:
    """The A/A interval at the same point, of the row's own baseline or, where that was not run
    against itself, of another (``noise_label`` says which)."""
    aa = rows.loc[rows["role"] == "aa", [*PLACE, "base_label", "cost_lo", "cost_hi"]]
    aa = aa.rename(columns={"cost_lo": "noise_lo", "cost_hi": "noise_hi"})
    aa = aa.assign(noise_label=aa["base_label"])
    for keys in ([*PLACE, "base_label"], PLACE):
        found = rows[keys].merge(aa.drop_duplicates(keys), how="left", on=keys)
        for name in ("noise_lo", "noise_hi", "noise_label"):
            new = pd.Series(found[name].to_numpy(), index=rows.index)
            rows[name] = rows[name].where(rows[name].notna(), new) if name in rows else new
    rows["noise_label"] = rows["noise_label"].fillna("")
    rows["within_noise"] = ((rows["noise_lo"] <= rows["cost_lo"])
                            & (rows["cost_hi"] <= rows["noise_hi"]))


def _verdicts(rows: pd.DataFrame) -> np.ndarray:
    alpha = 1 - rows["confidence"]
    different = rows["p_holm"] < alpha
    return np.select(
        [rows["p_tost"] < alpha, different & (rows["cost_pct"] > 0), different],
        ["equivalent", "worse", "better"], default="inconclusive")


def _reasons(rows: pd.DataFrame, table: pd.DataFrame, protocol: Protocol, one: Moments,
             two: Moments) -> list[str]:
    """Why a number is NaN, or how the runs fall short of the protocol; "" where neither."""
    least = _with_none(table["min"], np.nan)
    lowest = np.fmin(least[rows["cell"].to_numpy()], least[rows["base"].to_numpy()])
    fewest = np.minimum(rows["n"], rows["n_base"])
    known = np.isfinite(rows["lo"]) & np.isfinite(rows["p"])
    reasons = []
    for at, row in enumerate(rows.itertuples(index=False)):
        if not row.base_label:
            text = "no baseline is named"
        elif not row.n_base:
            text = f"{row.base_label} was not measured here"
        elif not row.n:
            text = f"{row.label} was not measured here"
        elif fewest.iat[at] < protocol.least:
            text = f"it takes {protocol.least} runs of each, there are {row.n} and {row.n_base}"
        elif not known.iat[at]:
            text = _why_unknown(lowest[at], one.sd[at], two.sd[at])
        elif protocol.runs and fewest.iat[at] < protocol.runs:
            text = f"{fewest.iat[at]} of the {protocol.runs} runs that {protocol.name} asks for"
        else:
            text = ""
        reasons.append(text)
    return reasons


def _why_unknown(lowest: float, sd: float, sd_base: float) -> str:
    if lowest <= 0:
        return "a value is not positive: no ratio"
    if sd == 0 and sd_base == 0:
        return "all runs gave the same value: no interval can be made"
    return "the runs are too few or too scattered: the interval has no end"


def compare_stores(
    df_a: pd.DataFrame, df_b: pd.DataFrame, *, label_a: str | None = None,
    label_b: str | None = None, name_a: str = "a", name_b: str = "b", **options: Any,
) -> pd.DataFrame:
    """Compare two stores, or any two labels of one or two stores; b is the subject, a the base.

    With ``label_a`` and ``label_b``: that label of ``df_b`` against that of ``df_a`` (both
    frames may be the same). With neither: each label that both have, b's against a's, shown as
    "label (name)"; or, when each frame holds one label only, the one against the other.
    ``options`` go to :func:`compare`, whose frame is returned; whether the two stores' machines
    are alike is for :func:`mergeable` to say. Raises AnalysisError when there is nothing to
    compare.
    """
    couples = _couples(df_a, df_b, label_a, label_b)
    parts = []
    for one, two in couples:
        base = f"{one} ({name_a})" if one == two else one
        subject = f"{two} ({name_b})" if one == two else two
        parts.append(_as_role(df_a[df_a["label"] == one], base, "baseline", base))
        parts.append(_as_role(df_b[df_b["label"] == two], subject, "subject", base))
        again = df_a[(df_a["role"] == "aa") & (df_a["matched"] == one) & (df_a["label"] != two)]
        parts.append(_as_role(again, f"{base} (A/A)", "aa", base))
    return compare(pd.concat(parts, ignore_index=True), **options)


def _couples(df_a: pd.DataFrame, df_b: pd.DataFrame, label_a: str | None,
             label_b: str | None) -> list[tuple[str, str]]:
    """Pairs of labels (baseline, subject) to compare. Raises AnalysisError."""
    if (label_a is None) != (label_b is None):
        raise AnalysisError("One label is named, the other is not.", "Name both, or neither.")
    known = [sorted(set(df["label"])) for df in (df_a, df_b)]
    if label_a is not None:
        for label, labels in zip((label_a, label_b), known, strict=True):
            if label not in labels:
                raise AnalysisError(f"There are no measurements of {label!r}.",
                                    f"There are: {', '.join(labels) or 'none'}.")
        return [(label_a, label_b)]
    if len(known[0]) == len(known[1]) == 1:
        return [(known[0][0], known[1][0])]
    again = set(df_a.loc[df_a["role"] == "aa", "label"])
    couples = [(label, label) for label in known[0] if label in known[1] and label not in again]
    if not couples:
        raise AnalysisError("The two stores have no environment in common.",
                            f"They hold: {', '.join(sorted({*known[0], *known[1]})) or 'none'}.")
    return couples


def _as_role(df: pd.DataFrame, label: str, role: str, matched: str) -> pd.DataFrame:
    return df.assign(label=label, role=role, matched=matched, study="")


def mergeable(facts_a: Mapping[str, Any], facts_b: Mapping[str, Any]) -> list[str]:
    """The facts in which two machines differ: "cpu_model ('A' against 'B')"; [] when none.

    Keys that begin with ``volatile.`` describe a moment and are left out. A fact that only one
    side knows is a difference.
    """
    differing = []
    for key in sorted({*facts_a, *facts_b}):
        if key.startswith("volatile.") or key == "volatile":
            continue
        one, two = facts_a.get(key), facts_b.get(key)
        if one != two:
            differing.append(f"{key} ({one!r} against {two!r})")
    return differing
