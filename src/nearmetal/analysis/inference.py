"""The tests behind a comparison, on many pairs of cells at once.

Each function takes the moments of subjects and baselines (arrays, one element a pair) and gives
the ratio subject / baseline with its interval, the p of "no difference" and the p of the two
one-sided tests (TOST) of "within the margin". What cannot be computed is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from nearmetal.analysis.protocols import Moments


class Tested(NamedTuple):
    """Arrays, one element a pair; ``ratio, lo, hi`` are factors, not per cent."""

    ratio: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    p: np.ndarray
    p_tost: np.ndarray


def _difference(a: Moments, b: Moments, factor: np.ndarray | float = 1.0):
    """a - factor * b: (difference, standard error, Welch-Satterthwaite degrees of freedom)."""
    va, vb = a.sd**2 / a.n, factor**2 * b.sd**2 / b.n
    error2 = va + vb
    df = error2**2 / (va**2 / (a.n - 1) + vb**2 / (b.n - 1))
    # no spread at all: a test would be certain of what was merely never seen to vary
    error = np.where(error2 > 0, np.sqrt(error2), np.nan)
    return a.centre - factor * b.centre, error, df


def on_logs(difference, error, df, margin: float, confidence: float) -> Tested:
    """Student's t on a difference of mean logarithms."""
    half = stats.t.ppf((1 + confidence) / 2, df) * error
    limit = np.log1p(margin)
    below = stats.t.sf((difference + limit) / error, df)
    above = stats.t.cdf((difference - limit) / error, df)
    return Tested(
        np.exp(difference), np.exp(difference - half), np.exp(difference + half),
        2 * stats.t.sf(np.abs(difference) / error, df), np.maximum(below, above))


def _on_values(a: Moments, b: Moments, margin: float, confidence: float) -> Tested:
    """Ratio of arithmetic means: Fieller's interval, tests of a - factor * b."""
    usable = (a.centre > 0) & (b.centre > 0)
    ratio = np.where(usable, a.centre / b.centre, np.nan)
    _, error, df = _difference(a, b, ratio)
    t2 = stats.t.ppf((1 + confidence) / 2, df) ** 2
    square = b.centre**2 - t2 * b.sd**2 / b.n
    rest = a.centre**2 - t2 * a.sd**2 / a.n
    product = a.centre * b.centre
    root = np.sqrt(np.maximum(product**2 - square * rest, 0))
    bounded = usable & (error > 0) & (square > 0)
    lo = np.where(bounded, (product - root) / square, np.nan)
    hi = np.where(bounded, (product + root) / square, np.nan)

    def tail(factor: float, side: int) -> np.ndarray:
        difference, error, df = _difference(a, b, factor)
        return stats.t.sf(side * difference / error, df)

    p = 2 * np.minimum(tail(1.0, 1), tail(1.0, -1))
    p_tost = np.maximum(tail(1 / (1 + margin), 1), tail(1 + margin, -1))
    return Tested(ratio, lo, hi, np.where(usable, p, np.nan), np.where(usable, p_tost, np.nan))


def welch(a: Moments, b: Moments, scale: str, margin: float, confidence: float) -> Tested:
    """Welch's test of subject a against baseline b, on ``scale`` "log" or "linear" (values)."""
    with np.errstate(all="ignore"):
        if scale == "log":
            return on_logs(*_difference(a, b), margin, confidence)
        return _on_values(a, b, margin, confidence)


def paired(differences: Moments, margin: float, confidence: float) -> Tested:
    """Student's test of differences of logarithms within blocks."""
    with np.errstate(all="ignore"):
        error = np.where(differences.sd > 0, differences.sd / np.sqrt(differences.n), np.nan)
        return on_logs(differences.centre, error, differences.n - 1.0, margin, confidence)
