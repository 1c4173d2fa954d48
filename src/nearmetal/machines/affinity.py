"""Which of the host's processors a machine runs on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearmetal.errors import CannotRun

if TYPE_CHECKING:
    from nearmetal.machines.network import Port


def processors(count: int, port: Port | None = None) -> list[int]:
    """``count`` processors that this process may use, numbered as the kernel does.

    Machines on a lab network get the next ones in turn by their rank, so that two MPI processes
    that poll do not share one as long as there are enough. Raises CannotRun.
    """
    usable = sorted(os.sched_getaffinity(0))
    if count > len(usable):
        raise CannotRun(f"{count} processors are asked for, this machine has {len(usable)}.",
                        "Ask for fewer in the study's [machine] cpus.")
    first = (port.rank if port else 0) * count
    return sorted(usable[(first + i) % len(usable)] for i in range(count))
