import json

import pytest
from fakes import FakeBoots, NoObserver, Quiet

from nearmetal import plan, study
from nearmetal.errors import MachineFailed
from nearmetal.machines.base import Completed
from nearmetal.runner import Runner
from nearmetal.store import Store


@pytest.fixture
def go(world, study_text, tmp_path):
    """Carry out a study on fake machines: go(text, boots) -> (summary, store)."""
    def carry_out(text=study_text, boots=None, store=None):
        made = study.parse("s.toml", text)
        store = store or Store.create(tmp_path, name="s", title="S", text=text, file="s.toml",
                                      seed=7, settings={}, facts={}, version="0")
        runner = Runner(plan.make(made, 7), store, boots or FakeBoots(world), Quiet(), NoObserver)
        return runner.run(), store

    return carry_out


def runs(log):
    return [entry[1] for entry in log if entry[0] == "run" and entry[2] != "true"]


def test_order_commands_and_rows(world, go, study_text):
    world.answers = {"fake": 10.0, "fake (A/A)": 10.5, "fake(tag=slow)": 5.0}
    summary, store = go()
    made = plan.make(study.parse("s.toml", study_text), 7)
    expected = [step.participant.label for number in range(3) for step in made.block(number)]
    assert runs(world.log) == expected
    assert sorted(entry[1] for entry in world.log if entry[0] == "boot") == sorted(
        ["fake", "fake (A/A)", "fake(tag=slow)"])
    assert sum(entry[0] == "down" for entry in world.log) == 3
    assert all(entry[2:] == ("spin", "3") for entry in world.log
               if entry[0] == "run" and entry[2] != "true")
    frame = store.frame()
    assert list(frame["label"]) == expected
    assert set(zip(frame["label"], frame["value"], strict=True)) == {
        ("fake", 10.0), ("fake (A/A)", 10.5), ("fake(tag=slow)", 5.0)}
    assert list(frame["position"]) == [0, 1, 2] * 3
    assert (summary.runs, summary.failed, summary.exit_status) == (9, [], 0)


def test_what_cannot_run_is_named_and_the_rest_goes_on(world, go):
    world.refuse = {"slow"}
    summary, store = go()
    assert summary.refused == {"fake(tag=slow)": ("no slow here.", "Install it.")}
    assert summary.exit_status == 0 and summary.runs == 6
    row = [one for one in store.environments() if one["label"] == "fake(tag=slow)"][0]
    assert (row["state"], row["reason"], row["remedy"]) == (
        "refused", "no slow here.", "Install it.")


def test_a_wrong_answer_is_a_failed_run_with_its_raw_output(world, go):
    wrong = json.dumps({"type": "verify", "ok": False, "what": "residual", "value": 9, "limit": 1})
    world.answers["fake(tag=slow)"] = Completed(("spin",), 1, wrong.encode(), b"", 5, 5)
    summary, store = go()
    bad = store.runs().query("status != 'ok'")
    assert list(bad["label"]) == ["fake(tag=slow)"] * 3
    assert bad["reason"].str.contains("residual is 9").all()
    assert (bad["stdout"] == wrong).all()
    assert summary.exit_status == 1 and len(summary.failed) == 3
    assert set(store.frame()["label"]) == {"fake", "fake (A/A)"}


@pytest.mark.parametrize("output", [b"", b"{]", b'{"type":"metric","metric":"speed","value":NaN}',
                                    b'{"type":"metric","metric":"colour","value":1}', b"\xff\xfe"])
def test_output_that_cannot_be_read_is_never_a_number(world, go, output):
    world.answers["fake"] = Completed(("spin",), 0, output, b"", 5, 5)
    _, store = go()
    assert "fake" not in set(store.frame()["label"])
    assert set(store.runs().query("label == 'fake'")["status"]) == {"failed"}


def test_a_machine_that_dies_fails_its_run_and_is_booted_again(world, go):
    deaths = []

    def answer(machine):
        if not deaths:
            deaths.append(machine)
            machine.up = False
            return MachineFailed("The machine went away.")
        return 5.0

    world.answers["fake(tag=slow)"] = answer
    summary, store = go()
    slow = store.runs().query("label == 'fake(tag=slow)'")
    assert sorted(slow["status"]) == ["failed", "ok", "ok"]
    assert sum(entry[:2] == ("boot", "fake(tag=slow)") for entry in world.log) == 2
    assert summary.exit_status == 1


def test_a_machine_that_never_boots_is_given_up_and_nothing_is_dropped(world, go):
    boots = FakeBoots(world)
    boots.fail["fake(tag=slow)"] = 99
    summary, store = go(boots=boots)
    assert "panicked" in summary.given_up["fake(tag=slow)"]
    slow = store.runs().query("label == 'fake(tag=slow)'")
    assert len(slow) == 3 and "ok" not in set(slow["status"])
    assert [one["state"] for one in store.environments()] == ["ready", "ready", "failed"]
    assert len(store.frame()) == 6


def test_a_run_over_its_time_is_cut_off(world, go):
    world.answers["fake"] = Completed(("spin",), None, b"", b"", 9, 9, timed_out=True)
    summary, store = go()
    assert set(store.runs().query("label == 'fake'")["status"]) == {"timeout"}
    assert summary.exit_status == 1


def test_machines_are_ended_when_the_lab_is_interrupted(world, go):
    def answer(machine):
        raise KeyboardInterrupt

    world.answers["fake"] = answer
    with pytest.raises(KeyboardInterrupt):
        go()
    assert sum(entry[0] == "down" for entry in world.log) == 3


def test_resume_continues_to_the_same_number(world, study_text, tmp_path, go):
    _, store = go()
    whole = store.runs()[["block", "position", "label"]]
    store._db.execute("DELETE FROM measurement WHERE run > 4")
    store._db.execute("DELETE FROM run WHERE id > 4")
    world.log.clear()
    _, store = go(store=store)
    assert runs(world.log) == list(whole["label"][4:])
    assert store.runs()[["block", "position", "label"]].equals(whole)


def test_fresh_machines_for_each_run(world, go, study_text):
    summary, _ = go(study_text + "fresh = true\n")
    assert sum(entry[0] == "boot" for entry in world.log) == 3 + 9
    assert sum(entry[0] == "down" for entry in world.log) == 3 + 9


def test_mpi_goes_to_a_cluster_of_the_workloads_size(world, go, study_text):
    go(study_text.replace('"spin"', '"spin2"'))
    assert {entry[2] for entry in world.log if entry[0] == "boot"} == {2}
    assert ("run", "fake", "mpi", "2", "spin", "3") in world.log


def test_a_finished_study_boots_nothing_again(world, go):
    _, store = go()
    world.log.clear()
    summary, _ = go(store=store)
    assert world.log == [] and summary.runs == 0


def test_a_resumed_study_decides_on_the_blocks_before_alone(world, go, study_text):
    """Later blocks that are already there must not end an item earlier than it ended before."""
    text = study_text.replace("max_blocks = 3", "max_blocks = 6\ntarget = 0.05")
    values = {"fake": iter([10.0, 20.0, 10.0] + [14.0] * 9)}
    world.answers["fake"] = lambda machine: next(values["fake"])
    _, store = go(text)
    whole = store.runs()[["block", "position", "label"]]
    assert whole["block"].max() > 3
    store._db.execute("DELETE FROM measurement WHERE run = (SELECT max(id) FROM run)")
    store._db.execute("DELETE FROM run WHERE id = (SELECT max(id) FROM run)")
    world.answers["fake"] = 14.0
    _, store = go(text, store=store)
    assert store.runs()[["block", "position", "label"]].equals(whole)
