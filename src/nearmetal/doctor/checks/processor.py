"""The processor: model, features, threads, frequency."""

from __future__ import annotations

from nearmetal.doctor.facts import numa_nodes, smt_active, turbo, vulnerabilities
from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System

GROUP = "Processor"
FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile", "vmx", "svm", "fsgsbase",
            "invpcid", "constant_tsc", "nonstop_tsc")
CPUFREQ = "/sys/devices/system/cpu/cpu0/cpufreq"


def check(system: System) -> list[Finding]:
    return [model(system), features(system), smt(system), numa(system), frequency(system),
            boost(system), mitigations(system)]


def model(system: System) -> Finding:
    cores = system.online_cpus()
    name = system.cpuinfo().get("model name", "unknown")
    few = cores < 2
    return Finding("Model", GROUP, "warn" if few else "info",
                   f"{name}, {cores} processor{'s' if cores > 1 else ''}",
                   "Machines of one cluster share processors when there are too few: their "
                   "waiting is then part of the result." if few else "",
                   "Give it two processors or more." if few else "")


def features(system: System) -> Finding:
    flags = system.cpu_flags()
    have = [name for name in FEATURES if name in flags]
    return Finding("Features", GROUP, "info", " ".join(have) or "unknown",
                   "Libraries choose their code by these; a guest that is shown fewer runs "
                   "other code.")


def smt(system: System) -> Finding:
    active = smt_active(system)
    if active is None:
        return Finding("Hardware threads (SMT)", GROUP, "info", "not shown by this kernel")
    if not active:
        return Finding("Hardware threads (SMT)", GROUP, "ok", "one a core, as far as shown")
    return Finding("Hardware threads (SMT)", GROUP, "warn", "two or more a core",
                   "What runs on the other thread of a core halves its speed.",
                   "echo off > /sys/devices/system/cpu/smt/control (until the next boot)")


def numa(system: System) -> Finding:
    nodes = numa_nodes(system)
    if nodes is None or nodes == 1:
        return Finding("NUMA", GROUP, "ok", "one node" if nodes else "not shown by this kernel")
    return Finding("NUMA", GROUP, "warn", f"{nodes} nodes",
                   "Memory of another node is slower; where pages fall changes from run to run.",
                   "Run the lab on one node: numactl --cpunodebind=0 --membind=0 nearmetal ...")


def frequency(system: System) -> Finding:
    governor = system.read(f"{CPUFREQ}/scaling_governor")
    name = "Frequency scaling"
    if governor is None:
        virtual = system.hypervisor() is not None
        return Finding(name, GROUP, "info" if virtual else "ok",
                       "no control here" + ("; the host may scale unseen" if virtual else ""),
                       "A processor that changes its speed changes every time measured on it.")
    driver = system.read(f"{CPUFREQ}/scaling_driver") or "unknown driver"
    good = governor == "performance"
    return Finding(name, GROUP, "ok" if good else "warn", f"{governor} ({driver})",
                   "Short programs run before the processor has reached its speed.",
                   "" if good else "nearmetal tune (sets 'performance'; --undo restores)")


def boost(system: System) -> Finding:
    on = turbo(system)
    if on is None:
        return Finding("Turbo", GROUP, "info", "no control here",
                       "Turbo depends on heat and on neighbours; it makes early runs faster.")
    return Finding("Turbo", GROUP, "warn" if on else "ok", "on" if on else "off",
                   "Turbo depends on heat and on neighbours; it makes early runs faster.",
                   "nearmetal tune (switches it off; --undo restores)" if on else "")


def mitigations(system: System) -> Finding:
    found = vulnerabilities(system)
    active = [name for name, text in found.items() if "itigation" in text]
    open_ = [name for name, text in found.items() if text.startswith("Vulnerable")]
    said = []
    if active:
        said.append(f"{len(active)} active ({', '.join(active)})")
    if open_:
        said.append(f"{len(open_)} not mitigated ({', '.join(open_)})")
    return Finding("Mitigations", GROUP, "info", "; ".join(said) or "none needed",
                   "They make system calls, traps and guest exits slower; a guest kernel adds "
                   "its own.")
