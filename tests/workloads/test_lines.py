"""Reading what workloads print: numbers come out right, or the run failed; nothing else."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.errors import WorkloadFailed
from nearmetal.workloads.base import Metric, Outcome
from nearmetal.workloads.lines import read

TIME = Metric("time", "s", "lower", "time")
CURVE = Metric("rate", "MB/s", "higher", "rate", axis="bytes", axis_scale="log2")
SIZE = Metric("memory", "MiB", "lower", "size")
METRICS = (TIME, CURVE, SIZE)
GOOD = '{"type":"metric","metric":"time","value":1.5,"unit":"s","better":"lower"}'


def fails(*lines: str) -> str:
    with pytest.raises(WorkloadFailed) as caught:
        read("\n".join(lines), METRICS)
    return caught.value.message


def test_a_whole_output():
    outcome = read("\n".join([
        "Hello, this is chatter.", GOOD,
        '{"type":"metric","metric":"rate","value":10,"point":{"bytes":8}}',
        '{"type":"metric","metric":"rate","value":20,"point":{"bytes":16}}',
        '{"type":"verify","ok":true,"what":"sum","value":0,"limit":0}',
        '{"type":"info","mpi":"MPICH"}', '{"type":"info","ranks":2}',
        '{"type":"elapsed","ns":123}']), METRICS)
    assert [(one.metric, one.value, one.unit, one.better, dict(one.point))
            for one in outcome.measurements] == [
        ("time", 1.5, "s", "lower", {}), ("rate", 10.0, "MB/s", "higher", {"bytes": 8}),
        ("rate", 20.0, "MB/s", "higher", {"bytes": 16})]
    assert outcome.workload_ns == 123
    assert outcome.info == {"mpi": "MPICH", "ranks": 2}


def test_a_wrong_answer_is_a_failed_run_even_with_good_numbers():
    text = fails(GOOD, '{"type":"verify","ok":false,"what":"residual","value":99,"limit":16}')
    assert text == "Wrong answer: residual is 99, the limit is 16."


@pytest.mark.parametrize("ok", ["null", "1", '"true"', "[]"])
def test_only_true_is_true(ok):
    assert "Wrong answer" in fails(GOOD, f'{{"type":"verify","ok":{ok}}}')


@pytest.mark.parametrize(("value", "words"), [
    ("NaN", "finite"), ("Infinity", "finite"), ("null", "finite"), ("true", "finite"),
    ('"1"', "finite"), ("1" + "0" * 400, "finite"), ("-1", "cannot be"), ("0", "cannot be"),
])
def test_what_is_no_measurement(value, words):
    assert words in fails(f'{{"type":"metric","metric":"time","value":{value}}}')


def test_a_size_may_be_zero():
    outcome = read('{"type":"metric","metric":"memory","value":0}', METRICS)
    assert outcome.measurements[0].value == 0.0


@pytest.mark.parametrize(("line", "words"), [
    ('{"type":"metric","metric":"speed","value":1}', "unknown metric: 'speed'"),
    ('{"type":"metric","value":1}', "unknown metric"),
    ('{"type":"metric","metric":"time","value":1,"unit":"ms"}', "unit 'ms', not 's'"),
    ('{"type":"metric","metric":"time","value":1,"better":"higher"}', "better 'higher'"),
    ('{"type":"metric","metric":"time","value":1,"point":[]}', "not an object"),
    ('{"type":"metric","metric":"time","value":1,"point":{"a":[1]}}', "no number and no text"),
    ('{"type":"metric","metric":"time","value":1,"point":{"a":NaN}}', "no number and no text"),
    ('{"type":"metric","metric":"rate","value":1}', "no number for 'bytes'"),
    ('{"type":"metric","metric":"rate","value":1,"point":{"bytes":"8"}}', "no number for 'bytes'"),
    ('{"type":"metrics","metric":"time","value":1}', "unknown type: 'metrics'"),
    ('{"type":"elapsed","ns":-1}', "elapsed"),
    ('{"type":"elapsed","ns":1.5}', "elapsed"),
    ('{"type":"elapsed","ns":true}', "elapsed"),
    ('{"type":"elapsed","ns":99999999999999999999}', "elapsed"),
    ('{"type":"error","message":"no memory"}', "The workload stopped: no memory."),
    ('{"type":"metric","metric":"time","val', "not JSON"),
    ("{" * 100000, "not JSON"),
])
def test_a_bad_line_names_itself(line, words):
    assert words in fails(GOOD, line)


def test_the_same_point_twice_is_refused():
    assert "twice" in fails(GOOD, GOOD)


def test_an_output_without_a_number():
    assert fails("nothing here") == "The output holds no measurement."
    assert fails("") == "The output holds no measurement."


def test_text_that_cannot_be_written_does_not_spread():
    message = fails(r'{"type":"error","message":"\ud800"}')
    message.encode("utf-8")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8)
keys = st.sampled_from(["type", "metric", "value", "unit", "better", "point", "ok", "what",
                        "limit", "ns", "message", "key"])
known_values = st.sampled_from(["metric", "verify", "elapsed", "info", "error", "time", "rate",
                                "memory", "s", "MB/s", "lower", "higher", {}, {"bytes": 8}, True])
objects = st.dictionaries(keys, known_values | json_values, max_size=8).map(json.dumps)
lines = st.one_of(objects, objects.map(lambda text: text[:-1]), st.text(), st.just(GOOD),
                  st.text().map(lambda text: "{" + text))


@settings(deadline=None)
@given(st.lists(lines, max_size=6).map("\n".join))
def test_whatever_is_printed_gives_an_outcome_or_a_failed_run(text):
    try:
        outcome = read(text, METRICS)
    except WorkloadFailed as error:
        assert error.message
        error.message.encode("utf-8")
        return
    assert isinstance(outcome, Outcome)
    assert outcome.measurements
    for one in outcome.measurements:
        assert math.isfinite(one.value) and one.value >= 0
        json.dumps(dict(one.point), allow_nan=False)
    assert outcome.workload_ns is None or 0 <= outcome.workload_ns < 2**63
    json.dumps(dict(outcome.info))


positive = st.floats(min_value=1e-300, max_value=1e300)


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 2**40), positive, min_size=1, max_size=20))
def test_numbers_come_back_as_they_were_printed(values):
    text = "\n".join(json.dumps({"type": "metric", "metric": "rate", "value": value,
                                 "point": {"bytes": size}}) for size, value in values.items())
    outcome = read(text, METRICS)
    assert {one.point["bytes"]: one.value for one in outcome.measurements} == values
