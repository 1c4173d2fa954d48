"""What was measured, cell by cell: means, spread, intervals, precision.

The functions are SciPy's; this module only lays them over the frame. docs/statistics.md gives
the reasons and the literature.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from nearmetal.analysis.cells import CELL, Cells, sort_cells

STATISTICS = [
    "n", "missing", "mean", "mean_kind", "lo", "hi", "median", "sd", "cv", "gmean", "gmean_lo",
    "gmean_hi", "half_width", "min", "max", "outliers", "flags", "flagged", "reason",
]
FENCE = 1.5  # Tukey 1977: beyond 1.5 interquartile ranges outside the quartiles
FEWEST_FOR_FENCES = 5


def _unit_scale(matrix: np.ndarray) -> np.ndarray:
    """A power of two a row, of the size of its values: dividing by it is exact, and keeps sums
    and squares of very large or very small values within range."""
    _, exponent = np.frexp(np.abs(matrix).max(axis=1))
    return np.ldexp(1.0, np.clip(exponent, -1000, 1000))


def mean_interval(matrix: np.ndarray, confidence: float) -> tuple[np.ndarray, ...]:
    """Arithmetic mean of each row and its Student interval: (mean, lo, hi); n < 2 gives NaN."""
    mean, size = matrix.mean(axis=1), matrix.shape[1]
    if size < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    half = stats.t.ppf((1 + confidence) / 2, size - 1) * stats.sem(matrix, axis=1)
    half = np.where(np.ptp(matrix, axis=1) == 0, 0.0, half)
    return mean, mean - half, mean + half


def log_moments(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the logarithms of each row; NaN where a value is not
    positive. Rows of equal values have a deviation of exactly 0."""
    positive = (matrix > 0).all(axis=1)
    logs = np.log(np.where(positive[:, None], matrix, np.nan))
    deviation = (np.std(logs, axis=1, ddof=1) if matrix.shape[1] > 1
                 else np.full(len(matrix), np.nan))
    same = positive & (np.ptp(matrix, axis=1) == 0) & (matrix.shape[1] > 1)
    return logs.mean(axis=1), np.where(same, 0.0, deviation)


def outside_fences(matrix: np.ndarray) -> np.ndarray:
    """Which values lie outside Tukey's fences of their row; none in rows of fewer than 5."""
    if matrix.shape[1] < FEWEST_FOR_FENCES:
        return np.zeros(matrix.shape, bool)
    low, high = np.quantile(matrix, [0.25, 0.75], axis=1)
    reach = FENCE * (high - low)
    return (matrix < (low - reach)[:, None]) | (matrix > (high + reach)[:, None])


def _rows(matrix: np.ndarray, rate: np.ndarray, confidence: float) -> dict[str, np.ndarray]:
    scale = _unit_scale(matrix)
    unit = matrix / scale[:, None]
    mean, lo, hi = mean_interval(unit, confidence)
    harmonic = rate & (matrix > 0).all(axis=1)
    if harmonic.any():
        inverse, low, high = mean_interval(1 / unit[harmonic], confidence)
        # an interval of the reciprocals that reaches 0 bounds the harmonic mean on one side only
        mean[harmonic], lo[harmonic] = 1 / inverse, 1 / high
        hi[harmonic] = np.where(low > 0, 1 / np.where(low > 0, low, 1), np.nan)
    mean, lo, hi = (np.where(rate & ~harmonic, np.nan, part) for part in (mean, lo, hi))
    size = matrix.shape[1]
    sd = np.std(unit, axis=1, ddof=1) if size > 1 else np.full(len(unit), np.nan)
    sd = np.where((np.ptp(unit, axis=1) == 0) & (size > 1), 0.0, sd)
    centre, deviation = log_moments(matrix)
    half = reach(deviation, size, confidence)
    average = unit.mean(axis=1)
    return {
        "mean": mean * scale, "lo": lo * scale, "hi": hi * scale,
        "median": np.median(unit, axis=1) * scale, "sd": sd * scale,
        "cv": np.divide(sd, np.abs(average), out=np.full_like(sd, np.nan), where=average != 0),
        "gmean": np.exp(centre), "gmean_lo": np.exp(centre - half),
        "gmean_hi": np.exp(centre + half), "half_width": np.expm1(half),
        "min": matrix.min(axis=1), "max": matrix.max(axis=1),
        "outliers": outside_fences(matrix).sum(axis=1).astype(float),
    }


def reach(deviation: np.ndarray, size: int, confidence: float) -> np.ndarray:
    """Half width of the interval of the mean logarithm."""
    if size < 2:
        return np.full_like(deviation, np.nan)
    return stats.t.ppf((1 + confidence) / 2, size - 1) * deviation / np.sqrt(size)


def _reasons(table: pd.DataFrame) -> np.ndarray:
    """Why a number is missing, in plain words; "" where none is."""
    rate = table["kind"].to_numpy() == "rate"
    return np.select(
        [table["n"] == 0, table["n"] < 2, table["min"] <= 0,
         rate & table["hi"].isna()],
        ["nothing was measured", "one run only: no interval",
         "a value is not positive: no geometric" + " or harmonic mean",
         "too few or too scattered runs: the interval of the mean has no upper end"],
        default="")


def table_of(cells: Cells, confidence: float = 0.95) -> pd.DataFrame:
    """The summary of cells, in their order; see :func:`summarize`."""
    table = cells.about.copy()
    names = [name for name in STATISTICS if name not in
             ("n", "missing", "mean_kind", "flags", "flagged", "reason")]
    columns = {name: np.full(len(table), np.nan) for name in names}
    rate = (table["kind"] == "rate").to_numpy()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for which, matrix in cells.by_size():
            for name, part in _rows(matrix, rate[which], confidence).items():
                columns[name][which] = part
    for name, column in columns.items():
        table[name] = column
    table["outliers"] = table["outliers"].fillna(0).astype(int)
    table["mean_kind"] = np.where(rate, "harmonic", "arithmetic")
    table["reason"] = _reasons(table)
    return table


def summarize(df: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """One row a cell (study, workload, params, metric, point, label) of a frame of measurements.

    Columns beside the keys and ``environment, role, matched, substrate, unit, better, kind``:

    - ``n`` runs with a value, ``missing`` without one;
    - ``mean`` (``mean_kind``: harmonic for rates, else arithmetic), its Student interval
      ``lo, hi`` (of a rate: the reciprocals' interval, inverted), ``median, sd, min, max``, in
      the metric's unit; ``cv`` = sd / arithmetic mean, a fraction;
    - ``gmean, gmean_lo, gmean_hi``: geometric mean and interval (Student on logarithms), always
      positive: the ones for logarithmic axes; ``half_width``: gmean_hi / gmean - 1;
    - ``outliers``: how many lie outside Tukey's fences; they are counted, never dropped;
    - ``flags`` of the runs, ``flagged``: how many runs carry one; ``reason``: why a number is
      NaN, or "".
    """
    table = table_of(sort_cells(df), confidence)
    return table[[*CELL, *[name for name in table if name not in CELL]]]


def precision(df: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Relative half width (a fraction) of the geometric mean's interval, one row a cell.

    Columns: the cell's keys, ``n`` and ``half_width`` (NaN: not known yet).
    """
    return summarize(df, confidence)[[*CELL, "n", "half_width"]]


def outliers(df: pd.DataFrame) -> pd.Series:
    """True for each row of ``df`` whose value lies outside Tukey's fences of its cell."""
    keys = [name for name in CELL if name in df.columns]
    groups = df["value"].groupby([df[key] for key in keys], dropna=False)
    low, high = groups.transform("quantile", 0.25), groups.transform("quantile", 0.75)
    reach = FENCE * (high - low)
    outside = (df["value"] < low - reach) | (df["value"] > high + reach)
    return (outside & (groups.transform("count") >= FEWEST_FOR_FENCES)).rename("outlier")
