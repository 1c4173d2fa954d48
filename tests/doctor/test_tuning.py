"""Tuning on machines made of files: what is written is undone."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearmetal.doctor import tuning
from nearmetal.doctor.tuning import OPERATIONS, Operation, TuningError, tune, undo

ASLR = "/proc/sys/kernel/randomize_va_space"
SWAP = "/proc/sys/vm/swappiness"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
GOVERNOR = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"


@pytest.fixture
def machine(fake, tmp_path):
    """(system, write, state file) of a machine with some controls."""
    system, write = fake
    write(ASLR, "2\n")
    write(SWAP, "60\n")
    write(THP, "[always] madvise never\n")
    for cpu in (0, 1):
        write(GOVERNOR.format(cpu), "powersave\n" if cpu else "schedutil\n")
        write(GOVERNOR.format(cpu).replace("scaling_governor", "scaling_available_governors"),
              "performance powersave schedutil\n")
    return system, write, tmp_path / "state" / "tuning.json"


def test_tune_then_undo_restores_every_value(machine):
    system, _, state = machine
    before = {name: system.chosen(name)
              for name in (ASLR, SWAP, THP, GOVERNOR.format(0), GOVERNOR.format(1))}
    lines = tune(system=system, state=state)
    assert system.read(ASLR) == "0" and system.read(SWAP) == "1" and system.read(THP) == "madvise"
    assert {system.read(GOVERNOR.format(cpu)) for cpu in (0, 1)} == {"performance"}
    assert any(line.startswith("frequency governor: powersave, schedutil -> performance")
               for line in lines)
    assert any(line == "NMI watchdog: no control here" for line in lines)
    assert json.loads(state.read_text())["files"][ASLR] == {"was": "2", "set": "0"}
    undo(system=system, state=state)
    assert {name: system.chosen(name) for name in before} == before
    assert not state.exists()
    assert undo(system=system, state=state) == ["Nothing to undo."]


def test_show_writes_nothing(machine):
    system, _, state = machine
    lines = tune(True, system=system, state=state)
    assert system.read(ASLR) == "2" and not state.exists()
    assert any("2 -> 0" in line for line in lines)


def test_tuning_twice_still_undoes_to_the_first(machine):
    system, write, state = machine
    tune(system=system, state=state)
    write(SWAP, "30")
    tune(system=system, state=state)
    assert system.read(SWAP) == "1"
    undo(system=system, state=state)
    assert system.read(SWAP) == "60" and system.read(ASLR) == "2"


def test_what_somebody_changed_since_is_left_alone(machine):
    system, write, state = machine
    tune(system=system, state=state)
    write(ASLR, "1")
    lines = undo(system=system, state=state)
    assert system.read(ASLR) == "1" and system.read(SWAP) == "60"
    assert any("somebody" in line for line in lines)


def test_values_that_are_as_good_are_kept(machine):
    system, write, state = machine
    write(THP, "always madvise [never]")
    write(SWAP, "0")
    tune(system=system, state=state)
    assert system.chosen(THP) == "never" and system.read(SWAP) == "0"


def test_a_governor_that_is_not_offered_is_not_written(machine):
    system, write, state = machine
    for cpu in (0, 1):
        write(GOVERNOR.format(cpu).replace("scaling_governor", "scaling_available_governors"),
              "powersave")
    lines = tune(system=system, state=state)
    assert "frequency governor: no control here" in lines
    assert system.read(GOVERNOR.format(0)) == "schedutil"


def test_nothing_is_written_when_the_record_cannot_be(machine):
    system, _, state = machine
    state.parent.write_text("a file where a folder should be")
    with pytest.raises(TuningError) as caught:
        tune(system=system, state=state)
    assert "saved" in caught.value.message and caught.value.remedy
    assert system.read(ASLR) == "2"


def test_a_refused_write_is_said_and_not_recorded(machine, monkeypatch):
    system, _, state = machine
    real = tuning._write
    monkeypatch.setattr(tuning, "_write", lambda s, name, value:
                        "Operation not permitted" if name == ASLR else real(s, name, value))
    lines = tune(system=system, state=state)
    assert any("refused (Operation not permitted)" in line for line in lines)
    files = json.loads(state.read_text())["files"]
    assert ASLR not in files and SWAP in files


def test_an_undo_that_is_refused_can_be_tried_again(machine, monkeypatch):
    system, _, state = machine
    tune(system=system, state=state)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_write", lambda s, name, value: "Operation not permitted")
        assert any("refused" in line for line in undo(system=system, state=state))
    undo(system=system, state=state)
    assert system.read(ASLR) == "2" and not state.exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 9, "files": {}}',
                                  '{"format": 1, "files": {"a": 3}}', "\0"])
def test_a_record_that_is_no_record_is_an_error(machine, text):
    system, _, state = machine
    state.parent.mkdir()
    state.write_text(text)
    with pytest.raises(TuningError, match="not a record"):
        undo(system=system, state=state)
    with pytest.raises(TuningError):
        tune(system=system, state=state)
    assert system.read(ASLR) == "2"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["tune", "undo", "change"]),
                          st.sampled_from(["2", "1", "7"])), max_size=8), st.data())
def test_undo_after_any_history_restores_what_was_not_changed_since(fake, tmp_path, history, data):
    system, write = fake
    state = tmp_path / "tuning.json"
    state.unlink(missing_ok=True)
    operation = (Operation("x", ("/proc/x",), "0", "why"),)
    write("/proc/x", "5")
    saved = None  # what an undo has to restore
    for action, value in history:
        if action == "change":
            write("/proc/x", value)
        elif action == "tune":
            now = system.read("/proc/x")
            saved = saved if saved is not None or now == "0" else now
            tune(system=system, state=state, operations=operation)
            assert system.read("/proc/x") == "0"
        else:
            untouched = system.read("/proc/x") == "0" and saved is not None
            expected = saved if untouched else system.read("/proc/x")
            undo(system=system, state=state)
            assert system.read("/proc/x") == expected
            saved = None


def test_operations_have_names_and_reasons():
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))
    assert all(operation.why and operation.paths for operation in OPERATIONS)


def test_the_state_file_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("NEARMETAL_STATE", str(tmp_path / "s.json"))
    assert tuning.state_file() == tmp_path / "s.json"
