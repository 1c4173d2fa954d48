"""The programs themselves, run on the host with small parameters."""

from __future__ import annotations

import subprocess
import time

import pytest
from program_lines import MPI, lines_of

from nearmetal.errors import WorkloadFailed
from nearmetal.workloads.base import workloads

SMALL = {
    "linpack": {"n": 120}, "dgemm": {"n": 96, "repetitions": 2},
    "stream": {"elements": 20000, "repetitions": 3}, "osbench": {"seconds": 0.002},
    "presta-com": {"max": 64, "operations": 50, "tests": 2},
    "presta-laten": {"processes": (2,), "operations": 50, "tests": 2},
}
NAMES = sorted(SMALL)


def ranks_of(name):
    return 2 if name in MPI else None


def small(name, **more):
    cls = workloads()[name]
    return cls(cls.Params(**{**SMALL[name], **more}))


def carry_out(run, workload, *extra):
    name, *arguments = workload.command()
    return run(name.rpartition("/")[2], *arguments, *extra, ranks=workload.ranks())


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_comes_out_once_a_point(run, name):
    workload = small(name)
    before = time.monotonic_ns()
    done = carry_out(run, workload)
    outside = time.monotonic_ns() - before
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    outcome = workload.parse(done.stdout)
    assert {one.metric for one in outcome.measurements} == {m.name for m in workload.metrics}
    points = 2 if name == "presta-com" else 1
    assert len(outcome.measurements) == points * len(workload.metrics)
    assert all(one.value > 0 for one in outcome.measurements)
    assert 0 < outcome.workload_ns < outside
    assert lines_of(done.stdout, "verify")


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_answer_is_found_printed_and_told_by_the_status(run, name):
    workload = small(name)
    done = carry_out(run, workload, "--corrupt")
    assert done.returncode == 1
    assert any(item["ok"] is False for item in lines_of(done.stdout, "verify"))
    with pytest.raises(WorkloadFailed, match="Wrong answer"):
        workload.parse(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_help_tells_every_option_and_needs_no_launcher(run, name):
    done = run(name, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert "usage:" in done.stdout and "--corrupt" not in done.stdout
    assert all(len(line) <= 140 for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("arguments", "words"), [
    (["--bogus", "1"], "there is no option '--bogus'"),
    (["stray"], "there is no option 'stray'"),
    (["--seconds"], "needs a value"),
])
def test_a_wrong_command_line_gives_one_sentence_and_status_2(run, name, arguments, words):
    if arguments == ["--seconds"] and name not in (*MPI, "osbench"):
        arguments = [{"stream": "--elements"}.get(name, "--n")]
    done = run(name, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("linpack", ["--n", "0"], "must be from 1 to 40000"),
    ("linpack", ["--n", "12x"], "needs a whole number"),
    ("linpack", ["--n", "99999999999999999999"], "needs a whole number"),
    ("linpack", ["--variant", "mkl"], "must be dgefa or blas"),
    ("osbench", ["--tests", "syscall,sleep"], "there is no test 'sleep'"),
    ("osbench", ["--tests", ""], "there is no test ''"),
    ("osbench", ["--seconds", "nan"], "needs a number"),
    ("presta-com", ["--mode", "all"], "must be uni, bi or both"),
    ("presta-com", ["--min", "64", "--max", "32"], "is smaller than"),
    ("presta-laten", ["--processes", "3"], "even numbers"),
    ("presta-laten", ["--pairs", "all"], "must be neighbour or half"),
])
def test_a_bad_value_is_named(run, name, arguments, words):
    done = run(name, *arguments)
    assert done.returncode == 2 and words in done.stderr


def test_too_few_processes_are_named(run):
    done = run("presta-laten", "--processes", "4", ranks=2)
    assert done.returncode != 0 and "needs as many MPI processes, there are 2" in done.stderr
    done = run("presta-com", "--max", "32", ranks=1)
    assert done.returncode != 0 and "an even number of MPI processes" in done.stderr


def test_a_program_that_cannot_write_does_not_end_well(programs):
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(programs / "stream"), "--elements", "1000"], stdout=full)
    assert done.returncode == 1


def test_a_time_limit_lowers_the_operations_and_says_so(run):
    workload = small("presta-com", max=64, operations=10**6, tests=1, seconds=0.02, mode="uni")
    before = time.monotonic()
    outcome = workload.parse(carry_out(run, workload).stdout)
    assert time.monotonic() - before < 20
    assert 2 <= outcome.info["uni_operations_64"] < 10**6
    workload = small("presta-laten", operations=10**6, tests=1, seconds=0.02)
    outcome = workload.parse(carry_out(run, workload).stdout)
    assert 4 <= outcome.info["operations_2"] < 10**6


@pytest.mark.parametrize("pairs", ["neighbour", "half"])
def test_four_processes_make_two_pairs(run, pairs):
    workload = small("presta-laten", processes=(2, 4), operations=10, tests=1, pairs=pairs)
    outcome = workload.parse(carry_out(run, workload).stdout)
    assert {one.point["processes"] for one in outcome.measurements} == {2, 4}
    workload = small("presta-com", processes=4, max=32, operations=10, tests=1, pairs=pairs)
    outcome = workload.parse(carry_out(run, workload).stdout)
    assert outcome.info["ranks"] == 4


def test_bandwidth_and_operation_time_tell_the_same(run):
    workload = small("presta-com", min=256, max=256)
    values = {one.metric: one.value
              for one in workload.parse(carry_out(run, workload).stdout).measurements}
    assert values["uni_bandwidth"] == pytest.approx(256 / values["uni_optime"], rel=1e-6)
    assert values["bi_bandwidth"] == pytest.approx(2 * 256 / values["bi_optime"], rel=1e-6)
    assert values["uni_bandwidth_max"] >= values["uni_bandwidth"] * (1 - 1e-6)


def test_openblas_is_asked_for_a_core_and_threads(run):
    outcome = small("dgemm", core="Prescott", threads=2).parse(
        carry_out(run, small("dgemm", core="Prescott", threads=2)).stdout)
    assert outcome.info["blas_core"] == "Prescott"
    assert outcome.info["blas_threads"] == 2
    done = carry_out(run, small("dgemm", core="Pentium99"))
    assert done.returncode == 1 and "not for Pentium99" in done.stdout


def test_only_the_chosen_tests_run(run):
    workload = small("osbench", tests=("clock", "fault"))
    outcome = workload.parse(carry_out(run, workload).stdout)
    assert [one.metric for one in outcome.measurements] == [
        "clock", "clock_p99", "fault", "fault_p99"]


def test_the_median_is_not_above_the_tail(run):
    values = {one.metric: one.value for one in small("osbench").parse(
        carry_out(run, small("osbench")).stdout).measurements}
    for name in ("syscall", "clock", "handoff", "switch", "fault", "mmap", "forkexec"):
        assert values[name] <= values[f"{name}_p99"]
