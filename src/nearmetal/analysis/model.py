"""Models of a curve: what a cost will be at sizes that were not measured.

Candidates of several families are fitted by least squares (statsmodels), compared by leaving
one size out, and the simplest within one standard error of the best is taken (Breiman et al.
1984). Predictions carry intervals; outside the measured range they are refused, or flagged.
Adding a family is one call of :func:`register_family`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import WLS

from nearmetal.analysis.cells import CELL, AnalysisError

FEWEST_SIZES = 5  # as Extra-P asks; fewer cannot tell the families apart
EXPONENTS = tuple(Fraction(text) for text in (
    "-1", "-1/2", "0", "1/4", "1/3", "1/2", "2/3", "3/4", "1", "3/2", "2", "3"))
LOG_POWERS = (0, 1, 2)
EXACT = 1e-9  # relative errors below this are rounding


@dataclass(frozen=True)
class Candidate:
    """A formula linear in its coefficients. ``design``: sizes -> matrix (sizes x coefficients).

    ``as_time``: the formula gives x / y (the time of a transfer of x at the rate y), not y.
    """

    family: str
    formula: str
    names: tuple[str, ...]
    design: Callable[[np.ndarray], np.ndarray] = field(compare=False, repr=False)
    as_time: bool = False


Builder = Callable[[np.ndarray], list[Candidate]]
_families: dict[str, Builder] = {}


def register_family(name: str) -> Callable[[Builder], Builder]:
    """Decorator: a function from the sizes measured to candidates. Of equals, the family
    registered first is taken."""
    def register(builder: Builder) -> Builder:
        _families[name] = builder
        return builder
    return register


def families() -> list[str]:
    """Names of all families, in order of preference."""
    return list(_families)


def _columns(*columns: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.column_stack([np.ones_like(x), *(column(x) for column in columns)])


@register_family("constant")
def _constant(sizes: np.ndarray) -> list[Candidate]:
    return [Candidate("constant", "a", ("a",), _columns())]


@register_family("hockney")
def _hockney(sizes: np.ndarray) -> list[Candidate]:
    """Hockney 1994: a transfer takes a start-up time and a time per byte."""
    return [Candidate("hockney", "alpha + beta * x", ("alpha", "beta"), _columns(lambda x: x))]


@register_family("hockney-rate")
def _hockney_rate(sizes: np.ndarray) -> list[Candidate]:
    """The same, seen as a rate: bandwidth = x / (alpha + beta * x)."""
    if (sizes <= 0).any():
        return []
    return [Candidate("hockney-rate", "x / (alpha + beta * x)", ("alpha", "beta"),
                      _columns(lambda x: x), as_time=True)]


@register_family("lg-quadratic")
def _lg_quadratic(sizes: np.ndarray) -> list[Candidate]:
    """Ye et al. 2010, equations 1 and 2: y = a + b lg(N) + c lg(N)^2, lg = log10."""
    if (sizes <= 0).any():
        return []
    return [Candidate("lg-quadratic", "a + b * lg(x) + c * lg(x)^2", ("a", "b", "c"),
                      _columns(np.log10, lambda x: np.log10(x) ** 2))]


def _term(exponent: Fraction, power: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x ** float(exponent) * np.log2(x) ** power


@register_family("extra-p")
def _extra_p(sizes: np.ndarray) -> list[Candidate]:
    """Calotoiu et al. 2013: the normal form with one term, c0 + c1 * x^i * log2(x)^j."""
    if (sizes <= 0).any():
        return []
    found = []
    for exponent in EXPONENTS:
        for power in LOG_POWERS:
            if exponent == 0 and power == 0:
                continue
            parts = [f"x^({exponent})"] if exponent else []
            parts += [f"log2(x)^{power}"] if power else []
            found.append(Candidate("extra-p", " * ".join(["c0 + c1", *parts]), ("c0", "c1"),
                                   _columns(_term(exponent, power))))
    return found


@register_family("two-regimes")
def _two_regimes(sizes: np.ndarray) -> list[Candidate]:
    """Two start-up times and two times per byte, as MPI's eager and rendezvous protocols have
    (LogGP: Alexandrov et al. 1995); the change lies between two sizes measured."""
    found = []
    for at in range(3, len(sizes) - 2):
        change = float(sizes[at])
        found.append(Candidate(
            "two-regimes", f"alpha1 + beta1 * x below {change:g}, alpha2 + beta2 * x from there",
            ("alpha1", "beta1", "alpha2", "beta2"),
            lambda x, change=change: np.column_stack([
                x < change, np.where(x < change, x, 0.0),
                x >= change, np.where(x >= change, x, 0.0)]).astype(float)))
    return found


@dataclass(frozen=True)
class Model:
    """A fitted formula.

    ``coefficients`` by name; ``x_min, x_max``: the sizes it was fitted on, ``points`` how many
    different ones; ``cv_error``: root mean square of the errors at sizes left out, a fraction of
    the measured value (``error`` "relative") or in its unit ("absolute"); ``r2`` of the fit;
    ``rivals``: formulas that cross-validation cannot tell from it; ``table``: all candidates.
    """

    candidate: Candidate
    coefficients: dict[str, float]
    error: str
    x_min: float
    x_max: float
    points: int
    n: int
    cv_error: float
    r2: float
    table: pd.DataFrame = field(compare=False, repr=False)
    rivals: tuple[_Fitted, ...] = field(compare=False, repr=False, default=())
    _fitted: _Fitted = field(compare=False, repr=False, default=None)

    @property
    def family(self) -> str:
        return self.candidate.family

    @property
    def formula(self) -> str:
        return self.candidate.formula

    def predict(self, x: Sequence[float] | float, *, confidence: float = 0.95,
                allow_extrapolation: bool = False) -> pd.DataFrame:
        """Predictions at sizes ``x``: columns ``x, y, lo, hi`` (the interval of one further
        run), ``rivals_lo, rivals_hi`` (range over this and the rival formulas: what the choice
        of formula is worth) and ``extrapolated``.

        Raises AnalysisError outside the sizes measured unless ``allow_extrapolation``.
        """
        sizes = np.atleast_1d(np.asarray(x, float))
        outside = (sizes < self.x_min) | (sizes > self.x_max)
        if outside.any() and not allow_extrapolation:
            raise AnalysisError(
                f"{sizes[outside][0]:g} lies outside the sizes measured, "
                f"{self.x_min:g} to {self.x_max:g}.",
                "Measure there, or allow extrapolation: the rows are then marked.")
        y, lo, hi = self._fitted.predict(sizes, confidence)
        others = np.array([y, *(rival.predict(sizes, confidence)[0] for rival in self.rivals)])
        return pd.DataFrame({
            "x": sizes, "y": y, "lo": lo, "hi": hi, "rivals_lo": others.min(axis=0),
            "rivals_hi": others.max(axis=0), "extrapolated": outside})


@dataclass(frozen=True)
class _Fitted:
    """One candidate after fitting: statsmodels' results and its errors at left-out sizes."""

    candidate: Candidate
    results: Any
    scales: np.ndarray  # the design's columns are divided by these, to be of like size
    relative: bool
    errors: np.ndarray  # one a size: root mean square over its runs

    @property
    def coefficients(self) -> dict[str, float]:
        return dict(zip(self.candidate.names, map(float, self.results.params / self.scales),
                        strict=True))

    @property
    def cv_error(self) -> float:
        return float(np.sqrt(np.mean(self.errors**2)))

    def cv_spread(self) -> float:
        """Standard error of ``cv_error``, from the spread of the squared errors."""
        squares = self.errors**2
        if not self.cv_error:
            return 0.0
        return float(np.std(squares, ddof=1) / np.sqrt(len(squares)) / (2 * self.cv_error))

    def predict(self, x: np.ndarray, confidence: float) -> tuple[np.ndarray, ...]:
        design = self.candidate.design(x) / self.scales
        centre = design @ self.results.params
        weights = 1 / centre**2 if self.relative else np.ones(len(x))
        frame = self.results.get_prediction(design, weights=weights).summary_frame(
            alpha=1 - confidence)
        lo, hi = frame["obs_ci_lower"].to_numpy(), frame["obs_ci_upper"].to_numpy()
        if self.candidate.as_time:
            # a time whose interval reaches 0 leaves the rate without an upper end
            with np.errstate(divide="ignore"):
                return x / centre, x / hi, np.where(lo > 0, x / lo, np.nan)
        return centre, lo, hi


def _fit_one(candidate: Candidate, x: np.ndarray, y: np.ndarray, relative: bool) -> _Fitted | None:
    """Fit one candidate; None where the sizes cannot determine it."""
    design = candidate.design(x)
    response = x / y if candidate.as_time else y
    weights = response**-2.0 if relative else np.ones(len(y))
    scales = np.sqrt((weights[:, None] * design**2).sum(axis=0))
    if not np.isfinite(scales).all() or not scales.all() or len(y) <= design.shape[1]:
        return None
    design = design / scales
    if np.linalg.matrix_rank(np.sqrt(weights)[:, None] * design, tol=1e-7) < design.shape[1]:
        return None
    results = WLS(response, design, weights=weights).fit()
    for _ in range(2 if relative else 0):
        # weights from the measured values favour values that happen to be small: refit by the
        # fitted values
        if (results.fittedvalues <= 0).any():
            break
        results = WLS(response, design, weights=results.fittedvalues**-2.0).fit()
    errors = _left_out(results, x, y, candidate, relative)
    return _Fitted(candidate, results, scales, relative, errors)


def _left_out(results: Any, x: np.ndarray, y: np.ndarray, candidate: Candidate,
              relative: bool) -> np.ndarray:
    """Errors of predicting each size from the others, in closed form from the hat matrix."""
    orthogonal, _ = np.linalg.qr(results.model.wexog)
    roots = np.sqrt(results.model.weights)
    errors = []
    for size in np.unique(x):
        at = np.flatnonzero(x == size)
        part = orthogonal[at]
        inner = np.eye(len(at)) - part @ part.T
        if np.linalg.det(inner) < 1e-12:  # only this size holds a coefficient up
            return np.full(len(np.unique(x)), np.inf)
        error = np.linalg.solve(inner, results.wresid[at]) / roots[at]
        if candidate.as_time:
            time = x[at] / y[at] - error
            error = y[at] - np.where(time > 0, x[at] / np.where(time > 0, time, 1), np.inf)
        errors.append(np.sqrt(np.mean((error / y[at] if relative else error) ** 2)))
    return np.array(errors)


def fit(
    x: Sequence[float], y: Sequence[float], *, families: Sequence[str] | None = None,
    error: Literal["relative", "absolute"] = "relative",
) -> Model:
    """Fit all candidates to runs ``y`` at sizes ``x`` (sizes may repeat) and choose one.

    ``families``: names of :func:`families` to try, all by default. ``error``: whether runs
    scatter in proportion to their value, or equally everywhere. Missing values are left out.
    Raises AnalysisError with fewer than 5 different sizes, or values that are not positive under
    relative error.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    sizes = np.unique(x)
    if len(sizes) < FEWEST_SIZES:
        raise AnalysisError(
            f"A model needs at least {FEWEST_SIZES} different sizes, there are {len(sizes)}.",
            "Measure more sizes.")
    relative = error == "relative"
    if relative and (y <= 0).any():
        raise AnalysisError("A value is not positive: errors cannot be relative to it.",
                            'Fit with error="absolute".')
    unknown = [name for name in families or () if name not in _families]
    if unknown:
        raise AnalysisError(f"There is no family called {unknown[0]!r}.",
                            f"Known families: {', '.join(_families)}.")
    candidates = [one for name, build in _families.items() if families is None or name in families
                  for one in build(sizes) if not (one.as_time and (y <= 0).any())]
    fitted = [one for one in (_fit_one(each, x, y, relative) for each in candidates)
              if one is not None and np.isfinite(one.cv_error)]
    if not fitted:
        raise AnalysisError("No formula can be determined from these sizes.",
                            "Measure more sizes.")
    return _choose(fitted, x, y, error)


def _choose(fitted: list[_Fitted], x: np.ndarray, y: np.ndarray, error: str) -> Model:
    best = min(fitted, key=lambda one: one.cv_error)
    rounding = EXACT * (1.0 if error == "relative" else float(np.abs(y).max()))
    limit = max(best.cv_error + best.cv_spread(), rounding)
    near = [one for one in fitted if one.cv_error <= limit]
    fewest = min(len(one.candidate.names) for one in near)
    simple = [one for one in near if len(one.candidate.names) == fewest]
    least = min(one.cv_error for one in simple)
    chosen = next(one for one in simple if one.cv_error <= least * (1 + 1e-6) + rounding)
    table = pd.DataFrame([
        {"family": one.candidate.family, "formula": one.candidate.formula,
         "coefficients": len(one.candidate.names), "cv_error": one.cv_error,
         "near": one in near, "chosen": one is chosen} for one in fitted])
    predicted = (x / chosen.results.fittedvalues if chosen.candidate.as_time
                 else chosen.results.fittedvalues)
    total = float(((y - y.mean()) ** 2).sum())
    return Model(
        chosen.candidate, chosen.coefficients, error, float(x.min()), float(x.max()),
        len(np.unique(x)), len(y), chosen.cv_error,
        1 - float(((y - predicted) ** 2).sum()) / total if total else float("nan"),
        table.sort_values("cv_error", ignore_index=True),
        tuple(one for one in near if one is not chosen), chosen)


def fit_frame(df: pd.DataFrame, axis: str, **options: Any) -> pd.DataFrame:
    """A model of every curve in a frame of measurements along ``axis`` (a key of the points).

    One row a (label, workload, params, metric, rest of the point): ``family, formula,
    coefficients, cv_error, r2, x_min, x_max, n, model`` (a :class:`Model`, None where none could
    be fitted) and ``reason`` (then why). ``options`` go to :func:`fit`.
    """
    points = {text: json.loads(text) for text in df["point"].unique()}
    with_axis = df[df["point"].map(lambda text: axis in points[text])]
    rest = {text: json.dumps({key: value for key, value in point.items() if key != axis},
                             sort_keys=True, separators=(",", ":"))
            for text, point in points.items()}
    frame = with_axis.assign(
        _x=with_axis["point"].map(lambda text: points[text][axis]).astype(float),
        point=with_axis["point"].map(rest))
    keys = [name for name in CELL if name in frame]
    rows = []
    for key, part in frame.groupby(keys, sort=True, dropna=False):
        row = dict(zip(keys, key, strict=True), axis=axis, n=len(part))
        try:
            model = fit(part["_x"], part["value"], **options)
        except AnalysisError as why:
            rows.append({**row, "model": None, "reason": why.message})
            continue
        rows.append({**row, "family": model.family, "formula": model.formula,
                     "coefficients": model.coefficients, "cv_error": model.cv_error,
                     "r2": model.r2, "x_min": model.x_min, "x_max": model.x_max,
                     "model": model, "reason": ""})
    columns = [*keys, "axis", "n", "family", "formula", "coefficients", "cv_error", "r2", "x_min",
               "x_max", "model", "reason"]
    return pd.DataFrame(rows, columns=columns)
