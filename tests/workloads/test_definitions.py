"""The definitions: parameters with bounds and words, metrics with axes, and the same defaults as
the programs have."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from nearmetal.workloads.base import BIN, workloads

OURS = ["boot", "dgemm", "linpack", "osbench", "presta-com", "presta-laten", "stream"]
PROGRAMS = [name for name in OURS if name != "boot"]


def make(name, **params):
    cls = workloads()[name]
    return cls(cls.Params(**params))


def test_all_are_registered():
    assert set(OURS) <= set(workloads())


@pytest.mark.parametrize("name", OURS)
def test_each_says_what_it_is(name):
    cls = workloads()[name]
    assert cls.summary.endswith(".")
    assert 1 <= sum(metric.headline for metric in cls.metrics) <= 2
    assert len({metric.name for metric in cls.metrics}) == len(cls.metrics)
    for metric in cls.metrics:
        assert metric.summary and metric.unit
        assert (metric.kind == "rate") == (metric.better == "higher")
    for key, field in cls.Params.model_fields.items():
        assert field.description, f"{name}.{key} has no description"
    assert 0 < make(name).estimate_s() < 120
    assert isinstance(make(name).command(), list)


def test_the_defaults_are_the_papers():
    com, lu = make("presta-com"), make("linpack")
    assert (com.params.min, com.params.max, com.params.operations) == (2**5, 2**23, 1000)
    assert com.ranks() == 2  # one pair
    assert (lu.params.n, lu.params.variant) == (3000, "dgefa")
    assert make("presta-laten").params.operations == 1000


@pytest.mark.parametrize(("name", "params"), [
    ("linpack", {"n": 0}), ("linpack", {"variant": "mkl"}), ("linpack", {"size": 3}),
    ("linpack", {"core": "a b"}), ("presta-com", {"min": 64, "max": 32}),
    ("presta-com", {"processes": 3}), ("presta-com", {"operations": 0}),
    ("presta-laten", {"processes": [3]}), ("presta-laten", {"processes": []}),
    ("presta-laten", {"processes": "2,x"}), ("presta-laten", {"bytes": 4}),
    ("osbench", {"tests": ["sleep"]}), ("osbench", {"seconds": 0}), ("stream", {"elements": 1}),
    ("dgemm", {"threads": 0}), ("boot", {"n": 1}),
])
def test_what_is_out_of_bounds_is_refused(name, params):
    with pytest.raises(ValidationError):
        make(name, **params)


def test_lists_may_be_written_as_text():
    assert make("presta-laten", processes="2, 4").params.processes == (2, 4)
    assert make("presta-laten", processes=2).ranks() == 2
    assert make("presta-laten", processes=[2, 8, 4]).ranks() == 8
    assert make("osbench", tests="syscall,fault").params.tests == ("syscall", "fault")
    assert len(make("osbench", tests="all").params.tests) == 7


def test_a_limit_bounds_the_estimate():
    slow, quick = make("presta-com"), make("presta-com", seconds=0.1)
    assert quick.estimate_s() < 19 * 2 * 0.1 + 0.5 < slow.estimate_s()


def help_of(run, name):
    """Options of a program and their defaults, from its --help."""
    text = run(name, "--help").stdout
    found = {}
    for line in re.sub(r"\n {20,}", " ", text).splitlines():
        match = re.match(r"  --(\S+) .*?(?:\[([^\]]*)\])?$", line)
        if match and match[1] != "help":
            found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_takes_the_same_options_with_the_same_defaults(run, name):
    there = help_of(run, name)
    more = {"variant": "blas"} if name == "linpack" else {}
    command = make(name, **more).command()
    assert command[0] == f"{BIN}/{name}"
    given = {key[2:]: value for key, value in zip(command[1::2], command[2::2], strict=True)}
    assert set(given) == set(there)
    given.pop("processes", None)  # the program's own default must run with two processes
    if given.get("tests", "").startswith("syscall"):
        given["tests"] = "all"
    given.pop("variant", None)
    assert given == {key: there[key] for key in given}
