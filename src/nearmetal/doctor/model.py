"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "info", "warn", "bad"]

# Groups in the order they are shown.
GROUPS = ("Machine", "Processor", "Clock", "Memory", "Kernel", "Disturbance", "Counters",
          "Virtualization", "Environments")


@dataclass(frozen=True)
class Finding:
    """One thing about this machine.

    ``state``: "ok" nothing to do; "info" a fact to know; "warn" it can disturb or limit a
    measurement; "bad" it makes measurements wrong, or a thing that looks usable is not.
    ``why`` says why it matters for a measurement, ``remedy`` what to do ("" where nothing is).
    """

    name: str
    group: str
    state: State
    value: str
    why: str = ""
    remedy: str = ""
