"""The doctor's checks: on machines made of files, and on this one."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path

import pytest

from nearmetal import doctor
from nearmetal.doctor import checks
from nearmetal.doctor.checks import (
    clock,
    counters,
    disturbance,
    environments,
    kernel,
    machine,
    memory,
    processor,
    virtualization,
)
from nearmetal.doctor.model import GROUPS
from nearmetal.doctor.system import System, cpuid, cpuid_vendor
from nearmetal.errors import CannotRun
from nearmetal.machines.base import Layer, LayerParams, layers
from nearmetal.machines.kvm import KvmProbe


def test_this_machine_is_examined_whole():
    found = doctor.examine()
    assert {one.group for one in found} == set(GROUPS)
    assert not [one for one in found if one.name.startswith("Check '")], "a check failed"
    for one in found:
        assert one.state in ("ok", "info", "warn", "bad") and one.value
        if one.state in ("warn", "bad"):
            assert one.why and one.remedy, one
    keys = [(one.group, one.name) for one in found]
    assert len(keys) == len(set(keys))
    asked = {one.name for one in found if one.group == "Environments"}
    assert asked == set(layers())


def test_an_empty_machine_breaks_nothing(fake):
    system, _ = fake
    found = doctor.examine(system)
    assert not [one for one in found if one.name.startswith("Check '")]
    assert all(one.state != "bad" or one.group == "Machine" for one in found)


def test_a_check_that_fails_is_a_finding(monkeypatch):
    def fail(system):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(kernel, "check", fail)
    found = doctor.examine(System())
    broken = [one for one in found if "no such thing" in one.value]
    assert [one.group for one in broken] == ["Kernel"] and broken[0].state == "bad"
    assert any(one.group == "Clock" for one in found)


def test_json_holds_findings_and_facts():
    found = [processor.model(System())]
    said = json.loads(doctor.to_json(found))
    assert said["findings"][0]["name"] == "Model"
    assert said["facts"]["cores"] == doctor.machine_facts()["cores"]


# --- KVM

def test_a_kvm_that_emulates_is_bad_with_its_figure():
    one = virtualization.kvm_finding(KvmProbe("emulated", 912.4, 10.0, "x"))
    assert one.state == "bad"
    assert "912 ns an instruction" in one.value and "unusable" in one.value
    assert "emulates every instruction" in one.why and one.remedy


@pytest.mark.parametrize(("probe", "state"), [
    (KvmProbe("usable", 0.31, 1.2), "ok"), (KvmProbe("absent", detail="no /dev/kvm"), "warn"),
    (KvmProbe("denied", detail="denied"), "warn"), (KvmProbe("broken", detail="hangs"), "bad"),
    (KvmProbe("emulated", None, detail="slow"), "bad"),
])
def test_other_answers_of_kvm(probe, state):
    one = virtualization.kvm_finding(probe)
    assert one.state == state and one.value
    if state == "ok":
        assert "0.31 ns" in one.value


# --- clock

def test_the_cost_of_the_clock_is_a_few_to_thousands_of_ns():
    cost = clock.clock_cost_ns()
    began = time.monotonic_ns()
    for _ in range(2000):
        time.monotonic_ns()
    from_python = (time.monotonic_ns() - began) / 2000
    assert 1 < cost < from_python * 2
    assert clock.cost(20).state == "ok" and clock.cost(1500).state == "warn"


def test_a_slow_clock_source_is_named_with_a_better_one(fake):
    system, write = fake
    write(f"{clock.FOLDER}/current_clocksource", "hpet\n")
    write(f"{clock.FOLDER}/available_clocksource", "hpet tsc acpi_pm \n")
    one = clock.source(system)
    assert one.state == "warn" and "echo tsc" in one.remedy
    write(f"{clock.FOLDER}/current_clocksource", "tsc")
    assert clock.source(system).state == "ok"


# --- processor

def test_governor_turbo_threads_and_nodes(fake):
    system, write = fake
    cpu = "/sys/devices/system/cpu"
    write(f"{cpu}/cpu0/cpufreq/scaling_governor", "powersave\n")
    write(f"{cpu}/cpu0/cpufreq/scaling_driver", "intel_pstate\n")
    write(f"{cpu}/intel_pstate/no_turbo", "0\n")
    write(f"{cpu}/smt/active", "1\n")
    write("/sys/devices/system/node/online", "0-1\n")
    states = {one.name: one for one in processor.check(system)}
    assert states["Frequency scaling"].state == "warn"
    assert states["Frequency scaling"].value == "powersave (intel_pstate)"
    assert states["Turbo"].state == "warn" and "tune" in states["Turbo"].remedy
    assert states["Hardware threads (SMT)"].state == "warn"
    assert states["NUMA"].value == "2 nodes"
    write(f"{cpu}/cpu0/cpufreq/scaling_governor", "performance\n")
    assert processor.frequency(system).state == "ok"


def test_mitigations_are_counted(fake):
    system, write = fake
    folder = "/sys/devices/system/cpu/vulnerabilities"
    write(f"{folder}/meltdown", "Mitigation: PTI\n")
    write(f"{folder}/retbleed", "Vulnerable\n")
    write(f"{folder}/mds", "Not affected\n")
    assert processor.mitigations(system).value == (
        "1 active (meltdown); 1 not mitigated (retbleed)")


# --- memory, kernel, disturbance

def test_memory(fake):
    system, write = fake
    write("/proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n"
                           "SwapTotal: 1048576 kB\nSwapFree: 524288 kB\nHugePages_Total: 4\n"
                           "Hugepagesize: 2048 kB\n")
    write(memory.THP, "[always] madvise never\n")
    write("/sys/kernel/mm/ksm/run", "1\n")
    found = {one.name: one for one in memory.check(system)}
    assert found["Size"].state == "warn" and found["Size"].value.startswith("2.0 GiB, 1.0 GiB")
    assert found["Swap"].value == "1.0 GiB, 512 MiB used" and found["Swap"].state == "warn"
    assert found["Transparent huge pages"].state == "warn"
    assert found["Huge pages set aside"].value == "4 of 2 MiB"
    assert found["Page merging (KSM)"].state == "warn"


@pytest.mark.parametrize(("mounts", "value"), [
    ("c /sys/fs/cgroup cgroup2 rw 0 0\n", "version 2"),
    ("c /sys/fs/cgroup/cpu cgroup rw 0 0\n", "version 1"),
    ("c /a cgroup rw 0 0\nd /b cgroup2 rw 0 0\n", "version 1, with 2 beside it (hybrid)"),
    ("", "none mounted"),
])
def test_cgroups(fake, mounts, value):
    system, write = fake
    write("/proc/mounts", mounts)
    assert kernel.cgroups(system).value == value


def test_load_is_seen_in_proportion_to_the_processors(fake):
    system, write = fake
    write("/sys/devices/system/cpu/online", "0-15")
    write("/proc/loadavg", "3.00 1 1 1/2 3")
    assert disturbance.load(system).state == "ok"
    write("/sys/devices/system/cpu/online", "0-1")
    assert disturbance.load(system).state == "warn"


def test_steal_now_and_since_boot():
    before = {"user": 1000, "idle": 9000, "steal": 0}
    quiet = {"user": 1050, "idle": 9050, "steal": 0}
    robbed = {"user": 1050, "idle": 9040, "steal": 10}
    assert disturbance.steal(before, quiet).state == "ok"
    one = disturbance.steal(before, robbed)
    assert one.state == "warn" and one.value.startswith("10.0% now")
    assert disturbance.steal(before, before).value.startswith("0.0% now")
    assert disturbance.steal({}, {}).state == "info"


# --- counters

def test_what_counters_answer():
    names = ("cycles", "instructions")
    assert counters.pmu(dict.fromkeys(names, 0)).state == "ok"
    none = counters.pmu(dict.fromkeys(names, errno.ENOENT))
    assert none.state == "warn" and "ENOENT" in none.value and "hypervisor" in none.remedy
    denied = counters.pmu(dict.fromkeys(names, errno.EACCES))
    assert denied.value == "denied" and "perf_event_paranoid" in denied.remedy
    some = counters.pmu({"cycles": 0, "instructions": errno.EINVAL})
    assert some.value == "cycles; not instructions"


def test_a_counter_is_really_tried():
    assert counters.try_event(99, 0) in (errno.ENOENT, errno.EINVAL, errno.EACCES, errno.EPERM,
                                         errno.ENOSYS)


# --- machine

def test_hypervisor_is_a_warning_and_bare_metal_is_not(fake):
    system, write = fake
    assert machine.hypervisor(system).state == "ok"
    write("/sys/class/dmi/id/product_name", "KVM")
    one = machine.hypervisor(system)
    assert one.state == "warn" and "KVM" in one.value


def test_cpuid_agrees_with_the_kernel():
    leaf = cpuid(1)
    if leaf is None:
        pytest.skip("CPUID exists on x86-64 only")
    flags = System().cpu_flags()
    assert bool(leaf[2] >> 31) == ("hypervisor" in flags)
    assert bool(leaf[3] >> 26 & 1) == ("sse2" in flags)
    if "hypervisor" in flags:
        assert cpuid_vendor()


def test_disk_space_of_a_folder_that_is_not_there_yet(tmp_path):
    assert str(tmp_path) in machine.disk(tmp_path / "not" / "yet").value


# --- environments

class _Params(LayerParams):
    place: str


class _Fine(Layer):
    name, summary, Params, max_cpus = "fine", "A layer.", _Params, 1

    def substrate(self):
        return "TCG"

    def up(self, carrier, order):
        raise NotImplementedError


class _Unable(Layer):
    name, summary = "unable", "A layer."

    def check(self):
        raise CannotRun("Its tool is missing.", "Install it.")

    def up(self, carrier, order):
        raise NotImplementedError


def test_a_layer_is_asked_even_when_a_parameter_is_required():
    one = environments.layer_finding(_Fine)
    assert one.state == "ok" and one.value == "can run, given place=; on TCG; one processor"


def test_a_layer_that_cannot_run_says_why():
    one = environments.layer_finding(_Unable)
    assert (one.state, one.why, one.remedy) == ("warn", "Its tool is missing.", "Install it.")


def test_the_checks_name_no_layer():
    for path in Path(checks.__path__[0]).glob("*.py"):
        text = path.read_text()
        for name in layers():
            assert f'"{name}"' not in text and f"'{name}'" not in text, (path.name, name)
