import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nearmetal.doctor.facts import boot_options, machine_facts, mitigations, turbo
from nearmetal.doctor.system import System, cpu_list


def test_facts_of_this_machine_are_json_scalars_and_stable():
    first, second = machine_facts(), machine_facts()
    assert json.loads(json.dumps(first)) == first
    stable = {k: v for k, v in first.items() if not k.startswith("volatile.")}
    assert stable == {k: v for k, v in second.items() if not k.startswith("volatile.")}
    assert first["cores"] >= 1 and first["memory_gib"] >= 1 and first["kernel"]


def test_unknown_facts_are_none_and_never_zero(tmp_path):
    facts = machine_facts(System(Path(tmp_path)))
    assert facts["memory_gib"] is None
    assert facts["turbo"] is None
    assert facts["volatile.load"] is None
    assert facts["volatile.steal_share"] is None


def test_facts_of_a_fake_machine(fake):
    system, write = fake
    write("/proc/cpuinfo", "processor: 0\nmodel name\t: Abacus\nflags : fpu tsc\n\nprocessor: 1\n"
                           "model name : Other\n")
    write("/proc/meminfo", "MemTotal:  8250000 kB\nMemAvailable: 4125000 kB\n")
    write("/proc/cmdline", "root=/dev/sda1 quiet mitigations=off isolcpus=2")
    write("/sys/devices/system/cpu/online", "0-2,7\n")
    write("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")
    write("/sys/devices/system/cpu/vulnerabilities/mds", "Not affected\n")
    write("/sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI\n")
    facts = machine_facts(system)
    assert facts["cpu_model"] == "Abacus"
    assert facts["cores"] == 4
    assert facts["memory_gib"] == 8
    assert facts["kernel_options"] == "mitigations=off isolcpus=2"
    assert facts["hypervisor"] == "none"
    assert facts["turbo"] is False and turbo(system) is False
    assert facts["mitigations"] == mitigations(system) == "meltdown: Mitigation: PTI"


def test_hypervisor_from_dmi_when_cpuid_says_nothing(fake):
    system, write = fake
    write("/proc/cpuinfo", "flags : fpu\n")
    assert system.hypervisor() is None
    write("/sys/class/dmi/id/sys_vendor", "QEMU\n")
    assert system.hypervisor() == "QEMU"
    write("/sys/hypervisor/type", "xen\n")
    assert system.hypervisor() == "Xen"


def test_boot_options_leave_out_what_differs_on_every_machine(fake):
    system, write = fake
    write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=12 ro nosmt")
    assert boot_options(system) == "nosmt"


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_list_reads_what_the_kernel_would_write(numbers):
    text, run = [], []
    for n in [*sorted(numbers), -5]:
        if run and n != run[-1] + 1:
            text.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        run.append(n)
    assert cpu_list(",".join(text)) == sorted(numbers)
