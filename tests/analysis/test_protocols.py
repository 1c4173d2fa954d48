"""The papers' protocols, by name."""

import numpy as np
import pytest
from scipy import stats

from nearmetal.analysis import AnalysisError, Protocol, compare, protocols, register_protocol
from nearmetal.analysis.protocols import protocol_named


def test_the_protocols_are_known_by_name():
    assert {"all", "papers-50", "trimmed-5"} <= set(protocols())
    with pytest.raises(AnalysisError) as caught:
        protocol_named("paper-50")
    assert "'papers-50'" in caught.value.remedy
    with pytest.raises(ValueError, match="two protocols"):
        register_protocol(Protocol("all", "another", ""))


def test_fifty_runs_arithmetic_means_welch_on_values(frame):
    rng = np.random.default_rng(50)
    a, b = rng.normal(1.3, 0.2, 60), rng.normal(1.2, 0.1, 60)
    row = compare(frame({"native": b, "uml": a}), protocol="papers-50").iloc[0]
    theirs = stats.ttest_ind(a[:50], b[:50], equal_var=False)
    assert row["p"] == pytest.approx(theirs.pvalue)
    assert row["mean"] == pytest.approx(a[:50].mean()) and row["mean_kind"] == "arithmetic"
    assert row["ratio"] == pytest.approx(a[:50].mean() / b[:50].mean())
    assert (row["n"], row["n_base"]) == (50, 50) and row["reason"] == ""


def test_students_sleep_data_as_the_papers_would_test_it(frame):
    # R: t.test(extra ~ group, sleep): p-value = 0.07939; values that are not positive are allowed
    from_r = ([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
              [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    row = compare(frame({"uml": from_r[0], "native": from_r[1]}), protocol="papers-50").iloc[0]
    assert row["p"] == pytest.approx(0.07939, abs=5e-6)
    assert row["ratio"] == pytest.approx(0.75 / 2.33)
    assert row["reason"] == "10 of the 50 runs that papers-50 asks for"


def test_fiellers_interval_covers_the_ratio_of_means():
    """Known answer by simulation: 95 % intervals hold the true ratio in 95 % of 4000 trials."""
    rng = np.random.default_rng(1954)
    protocol = protocol_named("papers-50")
    from nearmetal.analysis.inference import welch

    one, two = rng.normal(13, 2, (4000, 12)), rng.normal(10, 1, (4000, 9))
    tested = welch(protocol.moments(one), protocol.moments(two), "linear", 0.02, 0.95)
    covered = ((tested.lo <= 1.3) & (1.3 <= tested.hi)).mean()
    assert covered == pytest.approx(0.95, abs=0.015)


def test_five_runs_less_highest_and_lowest(frame):
    a, b = [10.0, 11, 12, 13, 99, 1, 1], [5.0, 5.1, 5.2, 5.3, 0.1]
    row = compare(frame({"native": b, "uml": a}), protocol="trimmed-5").iloc[0]
    assert row["mean"] == 12 and row["mean_base"] == pytest.approx(5.1)
    assert row["mean_kind"] == "trimmed" and (row["n"], row["n_base"]) == (5, 5)
    yuen = stats.ttest_ind(a[:5], b, equal_var=False, trim=0.2)  # SciPy's Yuen test
    assert row["p"] == pytest.approx(yuen.pvalue)
    fewer = compare(frame({"native": b, "uml": a[:4]}), protocol="trimmed-5").iloc[0]
    assert fewer["verdict"] == "inconclusive" and "it takes 5 runs" in fewer["reason"]


def test_a_protocol_is_one_call_away(frame):
    first = register_protocol(Protocol("first-3", "the first three runs", "nobody", runs=3))
    try:
        df = frame({"native": [1, 2, 3, 99], "uml": [2, 4, 6, 1]})
        assert compare(df, protocol="first-3").iloc[0]["ratio"] == pytest.approx(2)
    finally:
        from nearmetal.analysis.protocols import _protocols
        del _protocols[first.name]
