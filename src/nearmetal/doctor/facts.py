"""The facts of a machine that two stores must share before their results are merged."""

from __future__ import annotations

import os
import time
from typing import TypeAlias

from nearmetal.doctor.system import System, cpu_list

Scalar: TypeAlias = str | int | float | bool | None

# Boot options that change what a measurement sees. Others (root=, UUIDs) say nothing about it.
BOOT_OPTIONS = (
    "mitigations", "isolcpus", "nohz_full", "rcu_nocbs", "nosmt", "hugepages", "hugepagesz",
    "default_hugepagesz", "transparent_hugepage", "intel_pstate", "amd_pstate", "idle",
    "processor.max_cstate", "intel_idle.max_cstate", "clocksource", "tsc", "nokaslr", "nopti",
    "preempt", "maxcpus", "mem",
)


def machine_facts(system: System | None = None) -> dict[str, Scalar]:
    """What this machine is, as JSON scalars.

    Keys without a prefix are stable: two stores may be merged only where they agree. Keys that
    begin with ``volatile.`` describe the moment (load, steal since boot, free memory, ...) and
    are for the record only. An unknown fact is None.
    """
    system = system or System()
    info = system.cpuinfo()
    total = system.meminfo().get("MemTotal")
    return {
        "cpu_model": info.get("model name"),
        "cpu_family": "/".join(info.get(k, "?") for k in ("cpu family", "model", "stepping")),
        "microcode": info.get("microcode"),
        "cores": system.online_cpus(),
        "smt": smt_active(system),
        "numa_nodes": numa_nodes(system),
        "memory_gib": None if total is None else round(total / 1024**2),
        "kernel": system.kernel(),
        "kernel_options": boot_options(system),
        "hypervisor": system.hypervisor() or "none",
        "clocksource": system.read(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "mitigations": mitigations(system),
        "governor": system.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": turbo(system),
        "thp": system.chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "aslr": system.number("/proc/sys/kernel/randomize_va_space"),
        **{f"volatile.{key}": value for key, value in _volatile(system).items()},
    }


def _volatile(system: System) -> dict[str, Scalar]:
    load = (system.read("/proc/loadavg") or "").split()
    ticks = system.cpu_ticks()
    memory = system.meminfo()
    uptime = (system.read("/proc/uptime") or "").split()
    return {
        "load": float(load[0]) if load else None,
        "steal_share": round(ticks["steal"] / sum(ticks.values()), 6) if "steal" in ticks else None,
        "memory_available_mib": memory["MemAvailable"] // 1024
        if "MemAvailable" in memory else None,
        "swap_used_mib": (memory["SwapTotal"] - memory["SwapFree"]) // 1024
        if "SwapFree" in memory else None,
        "uptime_s": float(uptime[0]) if uptime else None,
        "boot_id": system.read("/proc/sys/kernel/random/boot_id"),
        "hostname": os.uname().nodename if system.live else None,
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def boot_options(system: System) -> str:
    """The options of the kernel's command line that change what a measurement sees."""
    words = (system.read("/proc/cmdline") or "").split()
    return " ".join(word for word in words if word.partition("=")[0] in BOOT_OPTIONS)


def smt_active(system: System) -> bool | None:
    """Whether two hardware threads of one core are in use; None: not known."""
    active = system.number("/sys/devices/system/cpu/smt/active")
    if active is not None:
        return bool(active)
    shared = system.read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    return len(cpu_list(shared)) > 1 if shared else None


def numa_nodes(system: System) -> int | None:
    """The number of memory nodes; None: not known."""
    listed = system.read("/sys/devices/system/node/online")
    return len(cpu_list(listed)) if listed else None


def turbo(system: System) -> bool | None:
    """Whether the processor may run above its base frequency; None: not known here."""
    off = system.number("/sys/devices/system/cpu/intel_pstate/no_turbo")
    if off is not None:
        return not off
    boost = system.number("/sys/devices/system/cpu/cpufreq/boost")
    return None if boost is None else bool(boost)


def vulnerabilities(system: System) -> dict[str, str]:
    """Name of a processor fault -> the kernel's words, those that affect this machine only."""
    folder = "/sys/devices/system/cpu/vulnerabilities"
    found = {name: system.read(f"{folder}/{name}") or "" for name in system.names(folder)}
    return {name: text for name, text in found.items() if text and text != "Not affected"}


def mitigations(system: System) -> str:
    """All of :func:`vulnerabilities` in one line, sorted by name; "none" when there is nothing."""
    found = vulnerabilities(system)
    return "; ".join(f"{name}: {text}" for name, text in sorted(found.items())) or "none"
