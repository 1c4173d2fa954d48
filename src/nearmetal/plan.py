"""The plan of a study: who takes part, in which order, and when it is enough.

Pure: it boots nothing. Blocks are randomised from the study's seed and the block's number, so a
killed study continues with the same order.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from nearmetal.analysis.stopping import half_width
from nearmetal.machines.base import Shape
from nearmetal.machines.path import Environment
from nearmetal.study import Item, Study

# How much slower a workload is expected to be where instructions are emulated; for estimates only.
_SLOWER = {"TCG": 12.0}


@dataclass(frozen=True)
class Participant:
    """An environment in a study. ``role`` is "baseline", "aa" (the baseline again, against
    itself) or "subject"; ``matched`` the label of the baseline that it is compared with."""

    label: str
    environment: Environment
    role: str
    matched: str
    shape: Shape

    @property
    def path(self) -> str:
        return self.environment.path


@dataclass(frozen=True)
class Step:
    """One run to be made: position in its block, participant, item."""

    block: int
    position: int
    participant: Participant
    item: Item

    @property
    def key(self) -> tuple[int, str, str, str]:
        return (self.block, self.participant.label, self.item.name, self.item.params)


@dataclass(frozen=True)
class Plan:
    """Participants and the order of runs of a study, from its seed."""

    study: Study
    seed: int
    participants: tuple[Participant, ...]

    def takes_part(self, participant: Participant, item: Item) -> bool:
        """Whether a participant runs an item; baselines run whatever is compared with them."""
        if item.environments is None or participant.role != "subject":
            return True
        return participant.path in item.environments

    def block(self, number: int, items: Iterable[Item] | None = None) -> list[Step]:
        """The runs of a block (from 0) in their random order."""
        wanted = list(self.study.items if items is None else items)
        order = list(self.study.items)
        source = hashlib.sha256(f"{self.seed}:{number}".encode()).digest()
        chance = random.Random(source)
        chance.shuffle(order)
        steps: list[tuple[Participant, Item]] = []
        for item in order:
            who = list(self.participants)
            chance.shuffle(who)  # drawn even for items left out: the order never shifts
            if item in wanted:
                steps += [(one, item) for one in who if self.takes_part(one, item)]
        return [Step(number, position, one, item) for position, (one, item) in enumerate(steps)]

    def estimate_s(self, step: Step) -> float:
        """Expected seconds of one run, before anything was measured."""
        slower = _SLOWER.get(step.participant.environment.substrate(), 1.0)
        return step.item.workload.estimate_s() * slower + 0.05

    def runs(self) -> tuple[int, int]:
        """Least and greatest number of runs."""
        least = most = 0
        for item in self.study.items:
            who = sum(self.takes_part(one, item) for one in self.participants)
            least, most = least + who * item.min_blocks, most + who * item.max_blocks
        return least, most

    def estimate_total_s(self) -> tuple[float, float]:
        """Least and greatest expected seconds of the runs, boots excluded."""
        least = most = 0.0
        for step in self.block(0):
            cost = self.estimate_s(step)
            least, most = least + cost * step.item.min_blocks, most + cost * step.item.max_blocks
        return least, most


def make(study: Study, seed: int) -> Plan:
    """The plan of a study.

    The baseline takes part twice (A/A). An environment that cannot have the study's processors is
    compared with a baseline of as many as it can have, which takes part too.
    """
    memory = study.machine.memory

    def shape(environment: Environment, wanted: int) -> Shape:
        return Shape(environment.most_cpus(wanted), memory)

    base = study.baseline
    full = shape(base, study.machine.cpus)
    found = [Participant(base.path, base, "baseline", base.path, full),
             Participant(f"{base.path} (A/A)", base, "aa", base.path, full)]
    matched = {full.cpus: base.path}
    for environment in study.environments:
        own = shape(environment, study.machine.cpus)
        if own.cpus not in matched:
            label = f"{base.path}, {own.cpus} CPU{'s' if own.cpus > 1 else ''}"
            matched[own.cpus] = label
            found.append(Participant(label, base, "baseline", label, Shape(own.cpus, memory)))
        found.append(Participant(environment.path, environment, "subject", matched[own.cpus], own))
    return Plan(study, seed, tuple(found))


def precise(frame: pd.DataFrame, item: Item, target: float, confidence: float) -> bool:
    """Whether every headline figure of an item is known to the target's relative half width.

    Looks at precision only, never at a difference between environments.
    """
    metrics = [metric.name for metric in item.workload.metrics if metric.headline]
    cells = frame[(frame["workload"] == item.name) & (frame["params"] == item.params)
                  & frame["metric"].isin(metrics)]
    if cells.empty:
        return False
    for _, cell in cells.groupby(["label", "metric", "point"]):
        if (cell["value"] <= 0).any():  # no ratio can be formed: more blocks would not help
            continue
        width = half_width(cell["value"].to_numpy(), confidence)
        if not width <= target:  # NaN: not known yet
            return False
    return True


def still_wanted(study: Study, frame: pd.DataFrame, blocks: int, late: bool) -> list[Item]:
    """The items that need another block after ``blocks`` blocks.

    An item ends at its greatest number of blocks, or, past its least number, when it is precise
    enough or the study's time is over (``late``).
    """
    stats = study.statistics
    return [item for item in study.items
            if blocks < item.min_blocks
            or (blocks < item.max_blocks and not late
                and not precise(frame, item, stats.target, stats.confidence))]
