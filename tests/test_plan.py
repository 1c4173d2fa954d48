import pandas as pd

from nearmetal import plan, study


def made(text, seed=7):
    return plan.make(study.parse("s.toml", text), seed)


def test_the_baseline_takes_part_twice(world, study_text):
    assert [(one.label, one.role, one.matched) for one in made(study_text).participants] == [
        ("fake", "baseline", "fake"), ("fake (A/A)", "aa", "fake"),
        ("fake(tag=slow)", "subject", "fake")]


def test_fewer_cpus_get_a_baseline_of_their_own(world, study_text):
    text = study_text.replace("cpus = 1", "cpus = 2").replace('"fake(tag=slow)"', '"fake1"')
    assert [(one.label, one.shape.cpus, one.matched) for one in made(text).participants] == [
        ("fake", 2, "fake"), ("fake (A/A)", 2, "fake"), ("fake, 1 CPU", 1, "fake, 1 CPU"),
        ("fake1", 1, "fake, 1 CPU")]


def test_blocks_hold_everyone_once_in_an_order_of_the_seed(world, study_text):
    one, same, other = made(study_text), made(study_text), made(study_text, seed=8)
    orders = [[step.participant.label for step in one.block(number)] for number in range(12)]
    assert all(sorted(order) == ["fake", "fake (A/A)", "fake(tag=slow)"] for order in orders)
    assert len({tuple(order) for order in orders}) > 3
    assert orders == [[s.participant.label for s in same.block(n)] for n in range(12)]
    assert orders != [[s.participant.label for s in other.block(n)] for n in range(12)]


def test_items_left_out_do_not_shift_the_order(world, study_text):
    text = study_text + '[[workload]]\nname = "spin2"\n'
    whole = made(text)
    only = [item for item in whole.study.items if item.name == "spin2"]
    for number in range(6):
        full = [s.participant.label for s in whole.block(number) if s.item.name == "spin2"]
        assert [s.participant.label for s in whole.block(number, only)] == full


def frame(values):
    return pd.DataFrame([{"workload": "spin", "params": "{}", "metric": "speed", "point": "{}",
                          "label": label, "value": value}
                         for label, row in values.items() for value in row])


def test_stops_by_precision_whatever_the_difference(world, study_text):
    text = study_text.replace("max_blocks = 3", "max_blocks = 9\ntarget = 0.05")
    study_made = study.parse("s.toml", text)
    item = study_made.items[0]
    precise = frame({"a": [10, 10.1, 9.9], "b": [90, 90.5, 89.5]})
    noisy = frame({"a": [10, 12, 8], "b": [10, 10.1, 9.9]})
    assert plan.still_wanted(study_made, precise, 2, False) == [item]  # not before the least
    assert plan.still_wanted(study_made, precise, 3, False) == []
    assert plan.still_wanted(study_made, noisy, 3, False) == [item]
    assert plan.still_wanted(study_made, noisy, 3, True) == []  # out of time
    assert plan.still_wanted(study_made, noisy, 9, False) == []


def test_counts_and_estimates(world, study_text):
    planned = made(study_text)
    assert planned.runs() == (9, 9)
    least, most = planned.estimate_total_s()
    assert 0 < least <= most
