"""What a person sees while a study runs: a live display, or plain lines without a terminal."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nearmetal.plan import Plan, Step


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    whole = int(max(0.0, seconds) + 0.5)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class Estimator:
    """Time left, from the cells measured so far and the plan's guess for the others (s)."""

    def __init__(self, plan: Plan, limit: float | None = None):
        self._plan, self._limit, self._started = plan, limit, time.monotonic()
        self._seen: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._open: dict[tuple[str, str], int] = {
            (item.name, item.params): item.max_blocks for item in plan.study.items}
        self._least = {(item.name, item.params): item.min_blocks for item in plan.study.items}
        self._runs: dict[tuple[str, str, str], int] = defaultdict(int)
        self._first = {self._cell(step): plan.estimate_s(step) for step in plan.block(0)}

    @staticmethod
    def _cell(step: Step) -> tuple[str, str, str]:
        return (step.participant.label, step.item.name, step.item.params)

    def finished(self, step: Step, seconds: float | None) -> None:
        """A run ended; ``seconds`` None when it was already in the store."""
        cell = self._cell(step)
        self._runs[cell] += 1
        if seconds is not None:
            self._seen[cell].append(seconds)

    def enough(self, name: str, params: str) -> None:
        """An item needs no more blocks."""
        self._open[(name, params)] = 0

    def drop(self, label: str) -> None:
        """A participant is out."""
        for cell in [cell for cell in self._first if cell[0] == label]:
            del self._first[cell]

    def left(self) -> float:
        """Seconds left at most: to the greatest number of blocks, or until the study's time is
        over, but never less than the least number of blocks takes."""
        least = most = 0.0
        for cell, guess in self._first.items():
            seen = self._seen.get(cell)
            cost, runs = sum(seen) / len(seen) if seen else guess, self._runs[cell]
            most += cost * max(0, self._open[cell[1:]] - runs)
            least += cost * max(0, min(self._least[cell[1:]], self._open[cell[1:]]) - runs)
        if self._limit is None:
            return most
        return max(least, min(most, self._limit - (time.monotonic() - self._started)))

    def share(self) -> float:
        """Share of the expected time that is behind, 0 to 1."""
        behind = time.monotonic() - self._started
        ahead = self.left()
        return behind / (behind + ahead) if behind + ahead > 0 else 1.0


class Plain:
    """Plain lines: for files, pipes and CI. A line an event and at least one every 15 s."""

    def __init__(self, out: TextIO):
        self._out, self._started, self._last = out, time.monotonic(), 0.0
        self.estimator: Estimator | None = None

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.flush()

    def say(self, text: str) -> None:
        self._last = time.monotonic()
        print(f"[{clock(self._last - self._started):>6}] {text}", file=self._out, flush=True)

    def watch(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.say(f"about {clock(estimator.left())} left at most")

    def begin(self, step: Step) -> None:
        if time.monotonic() - self._last > 15:
            self.say(f"block {step.block + 1}: {step.participant.label}, {step.item.name}"
                     f" - {self._left()}")

    def end(self, step: Step, status: str, reason: str, seconds: float) -> None:
        if status != "ok":
            self.say(f"{step.participant.label}, {step.item.name}: {status}: {reason}")

    def block(self, number: int, runs: int) -> None:
        self.say(f"block {number + 1} done, {runs} runs kept - {self._left()}")

    def _left(self) -> str:
        return f"at most {clock(self.estimator.left())} left" if self.estimator else ""


class Fancy:
    """A live display: what is under way, how far, and how long it can still take."""

    def __init__(self, console: Console):
        self._console, self._started = console, time.monotonic()
        self.estimator: Estimator | None = None
        self._now, self._block, self._kept, self._bad = "starting", 0, 0, 0
        self._lines: list[str] = []
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4,
                          transient=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Fancy:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> Group:
        behind = time.monotonic() - self._started
        left = clock(self.estimator.left()) if self.estimator else "?"
        share = self.estimator.share() if self.estimator else 0.0
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(total=1.0, completed=share, width=30), f"{clock(behind)} gone",
                     f"at most {left} left", f"{self._kept} runs kept",
                     f"{self._bad} failed" if self._bad else "")
        return Group(head, Text(f"  {self._now}", style="dim", overflow="ellipsis", no_wrap=True))

    def say(self, text: str) -> None:
        self._now = text
        self._console.print(Text(text), highlight=False)

    def watch(self, estimator: Estimator) -> None:
        self.estimator = estimator

    def begin(self, step: Step) -> None:
        self._now = f"block {step.block + 1}: {step.participant.label}, {step.item.name}"

    def end(self, step: Step, status: str, reason: str, seconds: float) -> None:
        self._kept += 1
        if status != "ok":
            self._bad += 1
            self.say(f"{step.participant.label}, {step.item.name}: {status}: {reason}")

    def block(self, number: int, runs: int) -> None:
        self._block, self._kept = number + 1, runs


def make(console: Console) -> Plain | Fancy:
    """The display that fits where the output goes."""
    return Fancy(console) if console.is_terminal else Plain(console.file)
