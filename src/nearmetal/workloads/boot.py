"""boot: how long a machine takes to answer its first command, and what memory it costs the host."""

from __future__ import annotations

import json

from nearmetal.machines.base import Completed
from nearmetal.workloads.base import Metric, Site, Workload, register_workload


@register_workload
class Boot(Workload):
    name = "boot"
    summary = "Time from asking for a machine to its first answer, and memory it costs the host."
    source = ""
    metrics = (
        Metric("boot_time", "s", "lower", "time",
               "From asking for the machine to the answer of its first command", headline=True,
               scale="log"),
        Metric("memory", "MiB", "lower", "size",
               "Memory of the host that the machine occupies once it answered", scale="log"),
    )

    def command(self) -> list[str]:
        """The machine's first command; the lab does the rest, no program of ours is run."""
        return ["true"]

    def execute(self, site: Site, timeout: float) -> Completed:
        """Boot one more machine of the site's environment and end it.

        A machine whose memory cannot be seen from the host gives no memory line (never 0).
        Raises what the site raises: MachineFailed, CannotRun.
        """
        seconds, memory = site.boot()
        lines = [{"type": "metric", "metric": "boot_time", "value": seconds, "unit": "s",
                  "better": "lower"}]
        if memory is not None:
            lines.append({"type": "metric", "metric": "memory", "value": memory / 2**20,
                          "unit": "MiB", "better": "lower"})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        return Completed(tuple(self.command()), 0, text.encode(), b"", round(seconds * 1e9))

    def estimate_s(self) -> float:
        return 1.0
