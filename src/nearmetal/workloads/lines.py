"""The JSON lines that workloads print, and how they are read.

One object a line on standard output; lines that do not start with ``{`` are chatter and ignored:

    {"type":"metric","metric":"latency","value":1.2,"unit":"us","better":"lower","point":{"bytes":8}}
    {"type":"verify","ok":true,"what":"residual","value":1.7,"limit":16}
    {"type":"elapsed","ns":123456}     the whole run, by the workload's own monotonic clock
    {"type":"info","key":"value"}      facts worth keeping
    {"type":"error","message":"..."}   why it stopped
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from nearmetal.errors import WorkloadFailed
from nearmetal.workloads.base import Measurement, Metric, Outcome

# More ns than any run takes (292 years), and the largest integer that the store can keep.
_MOST_NS = 2**63 - 1


def _plain(value: Any) -> str:
    """A value of the output as text for a message: short, and writable everywhere."""
    return str(value)[:200].encode("utf-8", "replace").decode()


def _objects(stdout: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Not splitlines(): it also splits at characters that may stand in a JSON string.
    for number, line in enumerate(stdout.split("\n"), 1):
        if not line.startswith("{"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise WorkloadFailed(
                f"Line {number} of the output is not JSON: {line[:80]!r}.") from None
        yield number, value


def _finite(value: Any) -> bool:
    """Whether it is a number that a float can hold (True and False are no numbers)."""
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) \
            and math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def _point(number: int, metric: Metric, point: Any) -> dict[str, Any]:
    if not isinstance(point, dict):
        raise WorkloadFailed(f"Line {number}: the point of {metric.name} is not an object.")
    for key, value in point.items():
        if not (_finite(value) or isinstance(value, str | bool)):
            raise WorkloadFailed(f"Line {number}: the point of {metric.name} has {key!r} = "
                                 f"{_plain(value)!r}, which is no number and no text.")
    if metric.axis is not None and not _finite(point.get(metric.axis)):
        raise WorkloadFailed(
            f"Line {number}: the point of {metric.name} gives no number for {metric.axis!r}.")
    return point


def _measurement(number: int, item: dict[str, Any], known: dict[str, Metric]) -> Measurement:
    name, value = item.get("metric"), item.get("value")
    if not isinstance(name, str) or name not in known:
        raise WorkloadFailed(
            f"Line {number} of the output has an unknown metric: {_plain(name)!r}.")
    metric = known[name]
    if not _finite(value):
        raise WorkloadFailed(
            f"Line {number}: {name} is not a finite number: {_plain(value)!r}.")
    # A broken clock gives times of 0 and less; no ratio could be formed with them.
    if value < 0 or (value == 0 and metric.kind != "size"):
        raise WorkloadFailed(f"Line {number}: {name} is {value}, a {metric.kind} that cannot be.")
    for key, expected in (("unit", metric.unit), ("better", metric.better)):
        if item.get(key, expected) != expected:
            raise WorkloadFailed(f"Line {number}: {name} has the {key} "
                                 f"{_plain(item[key])!r}, not {expected!r}.")
    point = _point(number, metric, item.get("point", {}))
    return Measurement(name, float(value), metric.unit, metric.better, point)


def _elapsed(number: int, item: dict[str, Any]) -> int:
    ns = item.get("ns")
    if isinstance(ns, bool) or not isinstance(ns, int) or not 0 <= ns <= _MOST_NS:
        raise WorkloadFailed(f"Line {number}: the elapsed time is no number of ns: {_plain(ns)!r}.")
    return ns


def read(stdout: str, metrics: Sequence[Metric]) -> Outcome:
    """Read a workload's output.

    Raises WorkloadFailed when a check failed, a line cannot be read, a number cannot be (not
    finite, negative, a time or rate of 0), a measurement is there twice, or none came out.
    """
    known = {metric.name: metric for metric in metrics}
    found: dict[tuple[str, str], Measurement] = {}
    info: dict[str, Any] = {}
    elapsed: int | None = None
    for number, item in _objects(stdout):
        kind = item.get("type")
        if kind == "metric":
            one = _measurement(number, item, known)
            key = (one.metric, json.dumps(one.point, sort_keys=True))
            if key in found:
                raise WorkloadFailed(f"Line {number}: {one.metric} is there twice for one point.")
            found[key] = one
        elif kind == "verify":
            if item.get("ok") is not True:
                raise WorkloadFailed(
                    f"Wrong answer: {_plain(item.get('what', 'check'))} is "
                    f"{_plain(item.get('value'))}, the limit is {_plain(item.get('limit'))}.")
        elif kind == "elapsed":
            elapsed = _elapsed(number, item)
        elif kind == "error":
            raise WorkloadFailed(f"The workload stopped: {_plain(item.get('message'))}.")
        elif kind == "info":
            info.update({key: value for key, value in item.items() if key != "type"})
        else:
            raise WorkloadFailed(
                f"Line {number} of the output has an unknown type: {_plain(kind)!r}.")
    if not found:
        raise WorkloadFailed("The output holds no measurement.")
    return Outcome(tuple(found.values()), elapsed, info)
