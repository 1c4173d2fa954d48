"""Hardware virtualization: proved by timing it."""

from __future__ import annotations

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System
from nearmetal.machines import kvm

GROUP = "Virtualization"
WHY = ("With it a guest's instructions run on the processor itself; without it they are "
       "translated in software (TCG) and comparisons cross substrates.")


def check(system: System) -> list[Finding]:
    flags = system.cpu_flags()
    found = [Finding("Processor extension", GROUP, "info",
                     "VT-x" if "vmx" in flags else "AMD-V" if "svm" in flags else "not shown",
                     "KVM and Xen need it to run guests at full speed.")]
    if system.live:
        found.append(kvm_finding(kvm.probe()))
    return found


def kvm_finding(probe: kvm.KvmProbe) -> Finding:
    """What the timed probe of /dev/kvm says, with the measured cost of an instruction."""
    if probe.state == "usable":
        speed = f"native: {probe.ns_per_instruction:.2g} ns an instruction" if (
            probe.ns_per_instruction is not None) else "at the speed of the processor"
        if probe.exit_us is not None:
            speed += f", {probe.exit_us:.2g} us an exit"
        return Finding("KVM", GROUP, "ok", speed, WHY)
    if probe.state == "emulated" and probe.ns_per_instruction is not None:
        times = probe.ns_per_instruction / 0.5
        return Finding(
            "KVM", GROUP, "bad",
            f"{probe.ns_per_instruction:.0f} ns an instruction: this KVM is unusable",
            f"It opens and creates guests, but emulates every instruction, about {times:.0f} "
            "times slower than a processor: its results would say nothing about virtualization.",
            "Use accel=tcg here ('auto' does), or a machine with working (nested) "
            "virtualization.")
    remedies = {"absent": "Load the kvm module, or ask the provider for nested virtualization.",
                "denied": "Run as root, or join the group 'kvm'."}
    return Finding("KVM", GROUP, "bad" if probe.state in ("broken", "emulated") else "warn",
                   probe.detail or probe.state, WHY,
                   remedies.get(probe.state, "Use accel=tcg here."))
