"""A frame of measurements, sorted into cells.

A *cell* holds the values of one label at one point of one metric: one value a run. Cells are
kept as one flat array with offsets, and handed out as matrices (cells x values) of equal size,
so that SciPy's functions run on thousands of cells at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nearmetal.errors import NearmetalError

PLACE = ["study", "workload", "params", "metric", "point"]
CELL = [*PLACE, "label"]
ABOUT = ["environment", "role", "matched", "substrate", "unit", "better", "kind"]
NEEDED = ["run", "workload", "metric", "label", "value"]
DEFAULTS = {
    "study": "", "params": "{}", "point": "{}", "block": 0, "position": 0, "environment": "",
    "role": "subject", "matched": "", "substrate": "", "unit": "", "better": "lower",
    "kind": "time", "flags": "",
}


class AnalysisError(NearmetalError):
    """A frame that cannot be analysed, or a question that has no answer in it."""


@dataclass(frozen=True)
class Cells:
    """``about``: one row a cell (keys, meta data, ``n``, ``missing``, ``flags``, ``flagged``);
    ``values`` and ``blocks``: flat arrays, those of cell i at ``starts[i]``, ``n`` of them, in
    the order of their blocks."""

    about: pd.DataFrame
    values: np.ndarray
    blocks: np.ndarray
    starts: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        return self.about["n"].to_numpy()

    def by_size(self, limit: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of (cell numbers, matrix of their values), cells of equal size together.

        ``limit``: only the first so many values of each cell. Empty cells are left out.
        """
        counts = self.counts if limit is None else np.minimum(self.counts, limit)
        for size in np.unique(counts[counts > 0]):
            which = np.flatnonzero(counts == size)
            yield which, self.values[self.starts[which, None] + np.arange(size)]


def _complete(df: pd.DataFrame) -> pd.DataFrame:
    lacking = [name for name in NEEDED if name not in df.columns]
    if lacking:
        raise AnalysisError(
            f"The frame has no column {', '.join(lacking)}.",
            "Give it as nearmetal.load() returns it.")
    texts = [*CELL, *ABOUT, "flags"]
    columns = [*dict.fromkeys([*texts, "run", "block", "position"])]
    frame = pd.DataFrame(index=pd.RangeIndex(len(df)))
    for name in columns:
        given = df[name].to_numpy() if name in df.columns else DEFAULTS[name]
        frame[name] = given
        if name in texts:
            frame[name] = frame[name].astype(object).where(frame[name].notna(), DEFAULTS.get(name))
    values = pd.to_numeric(pd.Series(df["value"].to_numpy()), errors="coerce").to_numpy(float)
    frame["value"] = np.where(np.isfinite(values), values, np.nan)
    return frame


def _one_a_run(frame: pd.DataFrame) -> pd.DataFrame:
    """Several values of a run at one point become one: harmonic for rates, else arithmetic."""
    keys = [*CELL, "run"]
    again = frame.duplicated(keys, keep=False)
    if not again.any():
        return frame
    rows = frame[again]
    rate = rows["kind"].eq("rate") & rows["value"].gt(0)
    work = rows["value"].where(~rate, 1 / rows["value"])
    mean = work.groupby([rows[key] for key in keys]).transform("mean")
    # one value that is not positive has no harmonic mean: those runs stay arithmetic
    plain = rows["value"].groupby([rows[key] for key in keys]).transform("mean")
    whole = rate.groupby([rows[key] for key in keys]).transform("all")
    frame = frame.copy()
    frame.loc[again, "value"] = np.where(whole, 1 / mean, plain)
    return frame.drop_duplicates(keys)


def _natural(text: str) -> str:
    """A sorting key by which 8 comes before 16 inside a text."""
    return re.sub(r"\d+", lambda found: found[0].zfill(24), str(text))


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    """By cell (points and parameters in their natural order), then in the order of the runs."""
    ranks = {}
    for name in ("params", "point"):
        known = sorted(frame[name].unique(), key=lambda text: (_natural(text), text))
        ranks[f"_{name}"] = frame[name].map({text: at for at, text in enumerate(known)})
    keys = [f"_{name}" if f"_{name}" in ranks else name for name in CELL]
    frame = frame.assign(**ranks).sort_values(
        [*keys, "block", "position", "run", "value"], kind="stable", ignore_index=True)
    return frame.drop(columns=list(ranks))


def _flags(frame: pd.DataFrame, codes: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
    """Per cell: the flags of its runs, and how many runs carry any."""
    marked = frame["flags"].to_numpy() != ""
    found: list[set[str]] = [set() for _ in range(count)]
    for code, text in zip(codes[marked], frame["flags"].to_numpy()[marked], strict=True):
        found[code].update(part.strip() for part in str(text).split(",") if part.strip())
    return [",".join(sorted(some)) for some in found], np.bincount(codes[marked], minlength=count)


def sort_cells(df: pd.DataFrame) -> Cells:
    """Sort a frame of measurements (as ``nearmetal.load`` returns) into cells.

    A value that is missing or not finite is counted as missing and left out: never 0. The order
    of the rows does not matter. Raises AnalysisError when a needed column is lacking.
    """
    frame = _sorted(_one_a_run(_complete(df)))
    codes = frame.groupby(CELL, sort=False, dropna=False).ngroup().to_numpy()
    count = int(codes.max()) + 1 if len(codes) else 0
    first = np.flatnonzero(np.diff(codes, prepend=-1))
    about = frame.loc[first, [*CELL, *ABOUT]].reset_index(drop=True)
    present = frame["value"].notna().to_numpy()
    sizes = np.bincount(codes[present], minlength=count)
    about["n"] = sizes
    about["missing"] = np.bincount(codes[~present], minlength=count)
    about["flags"], about["flagged"] = _flags(frame, codes, count)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if count else np.zeros(0, int)
    return Cells(about, frame["value"].to_numpy()[present], frame["block"].to_numpy()[present],
                 starts.astype(int))
