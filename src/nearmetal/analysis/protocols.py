"""How runs become one estimate: the house's way, and the papers' ways by name.

Adding a protocol is one call of :func:`register_protocol`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from nearmetal.analysis.cells import AnalysisError
from nearmetal.analysis.summary import log_moments


class Moments(NamedTuple):
    """Per cell: centre, standard deviation and number of observations, such that the centre's
    standard error is ``sd / sqrt(n)`` with ``n - 1`` degrees of freedom."""

    centre: np.ndarray
    sd: np.ndarray
    n: np.ndarray


@dataclass(frozen=True)
class Protocol:
    """``runs``: how many runs of each it asks for, the first in order of blocks being used
    (None: all there are). ``least``: fewer runs give no estimate. ``scale``: whether means are
    taken of logarithms (geometric) or of the values. ``trim``: how many of the highest, and of
    the lowest, runs are set aside."""

    name: str
    summary: str
    source: str
    runs: int | None = None
    least: int = 2
    scale: Literal["log", "linear"] = "log"
    trim: int = 0

    def moments(self, matrix: np.ndarray) -> Moments:
        """Estimates of each row of a matrix of values (cells x runs)."""
        size = matrix.shape[1]
        if size < self.least:
            nothing = np.full(len(matrix), np.nan)
            return Moments(nothing, nothing, np.full(len(matrix), size))
        if self.scale == "log":
            centre, sd = log_moments(matrix)
            return Moments(centre, sd, np.full(len(matrix), size))
        if self.trim:
            return self._trimmed(matrix)
        sd = np.where(np.ptp(matrix, axis=1) == 0, 0.0, np.std(matrix, axis=1, ddof=1))
        return Moments(matrix.mean(axis=1), sd, np.full(len(matrix), size))

    def _trimmed(self, matrix: np.ndarray) -> Moments:
        """Trimmed mean with Yuen's standard error (from the winsorized variance)."""
        size, cut = matrix.shape[1], self.trim
        share = cut / size
        left = size - 2 * cut
        centre = stats.trim_mean(matrix, share, axis=1)
        ordered = np.sort(matrix, axis=1)
        winsorized = np.clip(matrix, ordered[:, [cut]], ordered[:, [-cut - 1]])
        error2 = (size - 1) * np.var(winsorized, axis=1, ddof=1) / (left * (left - 1))
        return Moments(centre, np.sqrt(error2 * left), np.full(len(matrix), left))


_protocols: dict[str, Protocol] = {}


def register_protocol(protocol: Protocol) -> Protocol:
    """Make a protocol known by its name."""
    if _protocols.setdefault(protocol.name, protocol) != protocol:
        raise ValueError(f"two protocols are called {protocol.name!r}")
    return protocol


def protocols() -> dict[str, Protocol]:
    """All protocols by name."""
    return dict(sorted(_protocols.items()))


def protocol_named(name: str) -> Protocol:
    """The protocol of that name. Raises AnalysisError."""
    if name not in _protocols:
        near = difflib.get_close_matches(name, _protocols, 1)
        hint = (f"Did you mean {near[0]!r}?" if near
                else f"Known protocols: {', '.join(sorted(_protocols))}.")
        raise AnalysisError(f"There is no protocol called {name!r}.", hint)
    return _protocols[name]


register_protocol(Protocol(
    "all", "every run; geometric means, Welch's test on logarithms",
    "Welch 1947; Fleming & Wallace 1986"))
register_protocol(Protocol(
    "papers-50", "50 runs, arithmetic means, Welch's test on the values",
    "Youseff, Wolski, Gorda & Krintz 2006", runs=50, scale="linear"))
register_protocol(Protocol(
    "trimmed-5", "5 runs less the highest and the lowest, mean of the other three, Yuen's test",
    "Ye, Jiang, Chen, Huang & Wang 2010; Yuen 1974", runs=5, least=5, scale="linear", trim=1))
