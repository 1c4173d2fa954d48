"""A comparison in plain words, made from labels, metrics and points; it knows no names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

TIMES_FROM = 200.0  # per cent: from here on a cost is told as "3.20 times as much"


def number(value: float) -> str:
    """A percentage or factor for reading: one decimal below 10, three digits above 1000."""
    size = abs(value)
    if not math.isfinite(value):
        return "unboundedly"
    if size >= 999.5:
        return str(int(float(f"{value:.3g}")))
    text = f"{value:.{1 if size < 9.95 else 0}f}"
    return "0" if float(text) == 0 else text


def factor(percent: float) -> str:
    """A cost in per cent as a factor with three digits: 220 -> "3.20"."""
    value = 1 + percent / 100
    if not math.isfinite(value) or value >= 99.95:
        return number(value)
    return f"{value:.{2 if value < 9.995 else 1}f}"


def _singular(word: str) -> str:
    return word[:-2] if word.endswith("sses") else word[:-1] if word.endswith("s") else word


def _count(key: str, value: Any) -> str:
    """A point's value as a person says it: bytes from 1024 on in KiB or MiB, if whole."""
    if key == "bytes":
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value >= 1 << power and value % (1 << power) == 0:
                return f"{value >> power}-{unit}"
    return f"{value}-{_singular(key)}"


def _object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_count(key: str, value: Any) -> bool:
    return key.endswith("s") and isinstance(value, int) and not isinstance(value, bool)


@lru_cache(maxsize=4096)
def subject_of(workload: str, metric: str, point: str, params: str = "{}", title: str = "") -> str:
    """What is compared: "8-byte latency in presta-com", "total time in linpack with n=1000".

    Whole numbers whose key is a plural (``bytes``, ``processes``) go before the metric, other
    keys of the point and all parameters after the workload.
    """
    keys = _object(point)
    before = [_count(key, value) for key, value in keys.items() if _is_count(key, value)]
    after = [f"{key}={value}" for key, value in keys.items() if not _is_count(key, value)]
    after += [f"{key}={value}" for key, value in _object(params).items()]
    name = " ".join([*before, title or metric.replace("_", " ")])
    name += f" in {workload}" if workload and workload != metric else ""
    return f"{name} with {', '.join(after)}" if after else name


def _cost(percent: float) -> str:
    """"31 % more", "12 % less", "3.20 times as much", "the same"."""
    if math.isinf(percent) or percent >= TIMES_FROM:
        return f"{factor(percent)} times as much"
    if number(percent) == "0":
        return "the same"
    return f"{number(abs(percent))} % {'more' if percent > 0 else 'less'}"


def amount(cost: float, low: float, high: float) -> str:
    """A cost and its interval, in per cent: "31 % more (28 to 34)", "12 % less (10 to 14)"."""
    if cost >= TIMES_FROM:
        return f"{_cost(cost)} ({factor(low)} to {factor(high)})"
    if low < 0 < high:
        return f"{_cost(cost)} ({_cost(low)} to {_cost(high)})"
    if cost < 0:
        low, high = -high, -low
    if high >= TIMES_FROM:
        return f"{_cost(cost)} ({number(low)} % more to {_cost(high)})"
    return f"{_cost(cost)} ({number(low)} to {number(high)})"


def sentence(row: Mapping[str, Any] | Any, title: str = "") -> str:
    """One comparison (a row of :func:`nearmetal.analysis.compare`, by attribute) in plain words.

    ``title``: the metric's name for people; the metric's own name if "".
    """
    what = subject_of(row.workload, row.metric, row.point, row.params, title)
    noise = row.role == "aa"
    who = f"{row.base_label} against itself" if noise else row.label
    if row.verdict == "inconclusive":
        text = f"{who} on {what} is inconclusive: {_lacking(row)}"
    elif row.verdict == "equivalent":
        text = (f"{who} costs the same within {100 * row.margin:.3g} % on {what} "
                f"({_cost(row.cost_lo)} to {_cost(row.cost_hi)})")
    else:
        text = f"{who} costs {amount(row.cost_pct, row.cost_lo, row.cost_hi)} on {what}"
    return text + _remarks(row) + "."


def _lacking(row: Any) -> str:
    """What an inconclusive comparison lacks."""
    if not math.isfinite(row.cost_lo):
        return row.reason or "there is no interval"
    text = f"{_cost(row.cost_lo)} to {_cost(row.cost_hi)}"
    if row.p < 1 - row.confidence <= row.p_holm:
        return f"{text}, a difference that many comparisons at once can give by chance"
    return f"{text} is too wide for a margin of {100 * row.margin:.3g} %; run more blocks"


def _remarks(row: Any) -> str:
    text = ""
    if row.within_noise and row.role != "aa" and row.verdict in ("better", "worse"):
        text += ", no more than the baseline differs from itself"
    if row.cross_substrate:
        text += f" [{row.substrate} against {row.base_substrate}]"
    if row.flags:
        text += f" [flagged: {row.flags}]"
    return text
