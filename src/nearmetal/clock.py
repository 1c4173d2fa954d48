"""Whether a machine's clock agrees with the lab's.

A guest clock that runs fast or slow makes every time that a workload reports wrong. Each run is
bracketed by two readings of the machine's monotonic clock; since a reading takes a round trip, the
lab's own elapsed time is known as an interval, and only a disagreement outside it counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from nearmetal.machines.base import Machine

LIMIT = 0.01  # a clock that disagrees by more than 1 % is flagged


@dataclass(frozen=True)
class Reading:
    """The machine's clock, read between two readings of the lab's; all ns."""

    before: int
    machine: int
    after: int


def read(machine: Machine) -> Reading | None:
    """Read the machine's clock; None where it has none to ask."""
    before = time.monotonic_ns()
    value = machine.clock_ns()
    after = time.monotonic_ns()
    return None if value is None else Reading(before, value, after)


@dataclass(frozen=True)
class Agreement:
    """``ratio``: machine time over lab time; ``off``: beyond the limit even when the round trips
    are given the benefit of the doubt."""

    ratio: float
    off: bool


def compare(first: Reading | None, last: Reading | None, limit: float = LIMIT) -> Agreement | None:
    """How far two readings agree; None when a reading is missing or they are too close to tell."""
    if first is None or last is None:
        return None
    machine = last.machine - first.machine
    least, most = last.before - first.after, last.after - first.before
    if least <= 0:
        return None
    ratio = machine / ((least + most) / 2)
    return Agreement(ratio, machine < least * (1 - limit) or machine > most * (1 + limit))
