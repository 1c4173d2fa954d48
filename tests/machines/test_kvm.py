"""The KVM probe: classification of a figure, and that it never hangs or raises."""

import stat
import subprocess
import sys
import time

import pytest

from nearmetal.machines import kvm


@pytest.mark.parametrize(("ns", "state"), [
    (0.3, "usable"), (1.0, "usable"), (19.9, "usable"), (20.1, "emulated"), (900.0, "emulated"),
])
def test_a_figure_is_classified(ns, state):
    assert kvm.classify(ns).state == state
    assert kvm.classify(ns).usable is (state == "usable")


def test_the_detail_names_the_figure():
    assert "0.9 us an instruction" in kvm.classify(900.0).detail
    assert "0.31 ns an instruction" in kvm.classify(0.31).detail


def test_no_device_is_absent(tmp_path):
    found = kvm.probe_device(str(tmp_path / "kvm"))
    assert found.state == "absent" and found.ns_per_instruction is None


def test_a_device_that_is_no_kvm_is_broken(tmp_path):
    false = tmp_path / "kvm"
    false.write_bytes(b"")
    found = kvm.probe_device(str(false))
    assert found.state == "broken" and "does not work" in found.detail


def test_a_probe_that_hangs_is_killed(monkeypatch, tmp_path):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(kvm.sys, "executable", str(slow))
    monkeypatch.setattr(kvm, "WATCHDOG_S", 0.3)
    start = time.monotonic()
    found = kvm.probe_device("/dev/null")
    assert found.state == "broken" and "hung" in found.detail
    assert time.monotonic() - start < 2


def test_a_probe_that_dies_is_broken(monkeypatch):
    monkeypatch.setattr(kvm.sys, "executable", "/bin/false")
    found = kvm.probe_device("/dev/null")
    assert found.state == "broken" and "status 1" in found.detail


def test_this_machine_gets_a_state_within_the_limit():
    start = time.monotonic()
    found = kvm.probe_device()
    assert time.monotonic() - start < 7
    assert found.state in ("usable", "emulated", "absent", "denied", "broken")
    measured = found.ns_per_instruction is not None
    assert measured is (found.state in ("usable", "emulated"))
    if measured:
        assert 0.05 < found.ns_per_instruction < 1e6
        assert found.exit_us > 0


def test_the_result_is_kept():
    assert kvm.probe() is kvm.probe()


def test_the_probe_runs_by_hand_with_the_standard_library_only():
    done = subprocess.run([sys.executable, "-I", kvm.__file__, "/nonexistent/kvm"],
                          capture_output=True, timeout=10)
    assert done.returncode == 0 and b'"broken"' in done.stdout
