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
from collections.abc import Sequence
from typing import Any

from nearmetal.errors import WorkloadFailed
from nearmetal.workloads.base import Measurement, Metric, Outcome


def _objects(stdout: str):
    for number, line in enumerate(stdout.splitlines(), 1):
        if not line.startswith("{"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise WorkloadFailed(f"Line {number} of the output is not JSON: {line[:80]!r}.") from None
        if not isinstance(value, dict):
            raise WorkloadFailed(f"Line {number} of the output is not an object.")
        yield number, value


def _measurement(number: int, item: dict[str, Any], known: dict[str, Metric]) -> Measurement:
    name, value, point = item.get("metric"), item.get("value"), item.get("point", {})
    if not isinstance(name, str) or name not in known:
        raise WorkloadFailed(f"Line {number} of the output has an unknown metric: {name!r}.")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WorkloadFailed(f"Line {number}: {name} is not a finite number: {value!r}.")
    if not isinstance(point, dict):
        raise WorkloadFailed(f"Line {number}: the point of {name} is not an object.")
    metric = known[name]
    if item.get("unit", metric.unit) != metric.unit:
        raise WorkloadFailed(f"Line {number}: {name} is in {item['unit']!r}, not {metric.unit!r}.")
    return Measurement(name, float(value), metric.unit, metric.better, point)


def read(stdout: str, metrics: Sequence[Metric]) -> Outcome:
    """Read a workload's output.

    Raises WorkloadFailed when a check failed, a line cannot be read, or no number came out.
    """
    known = {metric.name: metric for metric in metrics}
    found: list[Measurement] = []
    info: dict[str, Any] = {}
    elapsed: int | None = None
    for number, item in _objects(stdout):
        kind = item.get("type")
        if kind == "metric":
            found.append(_measurement(number, item, known))
        elif kind == "verify" and item.get("ok") is not True:
            raise WorkloadFailed(
                f"Wrong answer: {item.get('what', 'check')} is {item.get('value')!r}, "
                f"the limit is {item.get('limit')!r}.")
        elif kind == "elapsed" and isinstance(item.get("ns"), int) and item["ns"] >= 0:
            elapsed = item["ns"]
        elif kind == "error":
            raise WorkloadFailed(f"The workload stopped: {item.get('message')}.")
        elif kind == "info":
            info.update({key: value for key, value in item.items() if key != "type"})
    if not found:
        raise WorkloadFailed("The output holds no measurement.")
    return Outcome(tuple(found), elapsed, info)
