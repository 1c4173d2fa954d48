"""When there are enough blocks: a rule on precision alone.

The rule sees the width of each cell's interval and the number of blocks. It never sees a
difference between environments, its sign or its significance: stopping on those would turn
chance into findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nearmetal.analysis.cells import AnalysisError
from nearmetal.analysis.summary import log_moments, reach, summarize


@dataclass(frozen=True)
class Decision:
    """``stop`` and ``why``; ``blocks`` carried out; ``half_width`` of the least precise cell
    (a fraction, NaN: not known); ``open``: how many cells miss the target, of ``cells``."""

    stop: bool
    why: str
    blocks: int
    half_width: float
    open: int
    cells: int


def half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Relative half width (a fraction) of the interval of the geometric mean of ``values``.

    NaN with fewer than two values or one that is not positive. Missing values are left out.
    """
    kept = np.asarray(values, float)
    kept = kept[np.isfinite(kept)]
    if len(kept) < 2 or (kept <= 0).any():
        return float("nan")
    _, deviation = log_moments(kept[None, :])
    return float(np.expm1(reach(deviation, len(kept), confidence))[0])


def enough(
    frame: pd.DataFrame, target: float, min_blocks: int, max_blocks: int,
    confidence: float = 0.95,
) -> Decision:
    """Whether to stop after the blocks in ``frame``.

    Stop at ``max_blocks``; not before ``min_blocks``; between them when every cell's relative
    half width is at most ``target`` (a fraction). A cell with a value that is not positive has
    no relative precision and does not count. Give only the rows whose precision matters: the
    headline metrics, the environments that can still run. Raises AnalysisError when the limits
    make no sense.
    """
    if not 2 <= min_blocks <= max_blocks or not target > 0:
        raise AnalysisError(
            f"Blocks {min_blocks} to {max_blocks} with target {target} is no stopping rule.",
            "It needs 2 <= min_blocks <= max_blocks and a target above 0.")
    blocks = int(frame["block"].nunique()) if len(frame) else 0
    widths = np.array([])
    if len(frame):
        table = summarize(frame, confidence)
        widths = table.loc[~(table["min"] <= 0), "half_width"].to_numpy()
    missed = int((~(widths <= target)).sum())
    worst = float(widths.max()) if len(widths) and np.isfinite(widths).all() else float("nan")

    def decide(stop: bool, why: str) -> Decision:
        return Decision(stop, why, blocks, worst, missed, len(widths))

    if blocks >= max_blocks:
        return decide(True, f"the limit of {max_blocks} blocks is reached")
    if blocks < min_blocks:
        return decide(False, f"{blocks} of at least {min_blocks} blocks")
    if missed or not len(frame):
        return decide(False, f"{missed} of {len(widths)} cells are wider than {target:.3g}")
    return decide(True, f"every interval's half width is at most {target:.3g}")
