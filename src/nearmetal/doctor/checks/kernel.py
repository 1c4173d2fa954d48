"""The kernel: version, options, cgroups."""

from __future__ import annotations

from nearmetal.doctor.facts import boot_options
from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System

GROUP = "Kernel"


def check(system: System) -> list[Finding]:
    options = boot_options(system)
    return [
        Finding("Version", GROUP, "info", system.kernel(),
                "It is the baseline's operating system; results hold for it."),
        Finding("Options that matter", GROUP, "info", options or "none given",
                "They change what system calls, timers and processors do."),
        cgroups(system),
    ]


def cgroups(system: System) -> Finding:
    kinds = {line.split()[2] for line in (system.read("/proc/mounts") or "").splitlines()
             if len(line.split()) > 2}
    why = "Limits of memory and processors are set through them."
    if "cgroup2" in kinds and "cgroup" in kinds:
        return Finding("Control groups", GROUP, "info", "version 1, with 2 beside it (hybrid)", why)
    if "cgroup2" in kinds:
        return Finding("Control groups", GROUP, "ok", "version 2", why)
    if "cgroup" in kinds:
        return Finding("Control groups", GROUP, "ok", "version 1", why)
    return Finding("Control groups", GROUP, "warn", "none mounted", why,
                   "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
