"""What this machine is: virtual or not, memory, swap, disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System, cpuid_vendor
from nearmetal.userland import cache_dir

GROUP = "Machine"
DISK_GIB = 4  # userland, tools, a build and results


def check(system: System) -> list[Finding]:
    return [hypervisor(system), disk(cache_dir()), root()]


def hypervisor(system: System) -> Finding:
    name = system.hypervisor()
    if name is None:
        return Finding("Virtualization of this machine", GROUP, "ok", "none seen: bare metal",
                       "Results speak of this hardware itself.")
    vendor = cpuid_vendor() if system.live else None
    product = system.read("/sys/class/dmi/id/product_name")
    detail = ", ".join(text for text in (f"CPUID says {vendor}" if vendor else "", product or "")
                       if text)
    return Finding(
        "Virtualization of this machine", GROUP, "warn",
        f"it is itself a virtual machine: {name}" + (f" ({detail})" if detail else ""),
        "The baseline is virtualized too: other guests take time from it, page tables and traps "
        "cost more, and what runs inside is nested.",
        "Say so beside results; repeat on bare metal before speaking of hardware.")


def disk(folder: Path) -> Finding:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    enough = free >= DISK_GIB
    return Finding("Disk space", GROUP, "ok" if enough else "bad",
                   f"{free:.1f} GiB free under {folder}",
                   "The userland, its images and every run's raw output are kept.",
                   "" if enough else f"Free {DISK_GIB} GiB, or set NEARMETAL_CACHE elsewhere.")


def root() -> Finding:
    if os.geteuid() == 0:
        return Finding("User", GROUP, "ok", "root")
    return Finding("User", GROUP, "bad", f"uid {os.geteuid()}",
                   "Namespaces, mounts and cgroups need root.", "Run nearmetal as root.")
