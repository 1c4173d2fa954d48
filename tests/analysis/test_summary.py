"""Summaries against certified and hand-made answers."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from nearmetal.analysis import AnalysisError, outliers, precision, summarize

# NIST Statistical Reference Datasets, univariate: (values, certified mean, certified sd)
MICHELSON = """
850 740 900 1070 930 850 950 980 980 880 1000 980 930 650 760 810 1000 1000 960 960
960 940 960 940 880 800 850 880 900 840 830 790 810 880 880 830 800 790 760 800
880 880 880 860 720 720 620 860 970 950 880 910 850 870 840 840 850 840 840 840
890 810 810 820 800 770 760 740 750 760 910 920 890 860 880 720 840 850 850 780
890 840 780 810 760 810 790 810 820 850 870 870 810 740 810 940 950 800 810 870"""
NIST = {
    "NumAcc1": ([10000001, 10000003, 10000002], 10000002, 1),
    "NumAcc2": ([1.2] + [1.1, 1.3] * 500, 1.2, 0.1),
    "NumAcc3": ([1000000.2] + [1000000.1, 1000000.3] * 500, 1000000.2, 0.1),
    "NumAcc4": ([10000000.2] + [10000000.1, 10000000.3] * 500, 10000000.2, 0.1),
    "Michelso": ([299 + int(word) / 1000 for word in MICHELSON.split()],
                 299.8524, 0.0790105478190518),
}


@pytest.mark.parametrize("name", NIST)
def test_certified_mean_and_deviation(frame, name):
    values, mean, sd = NIST[name]
    row = summarize(frame({"native": values})).iloc[0]
    assert row["n"] == len(values)
    assert row["mean"] == pytest.approx(mean, rel=1e-14)
    # NumAcc4 asks for a deviation 1e-8 of the mean: double precision leaves 8 digits of it
    assert row["sd"] == pytest.approx(sd, rel=1e-8)


def test_the_coefficient_of_variation_is_not_rounded(frame):
    row = summarize(frame({"native": [100, 101, 103]})).iloc[0]
    assert row["cv"] == pytest.approx(0.015074, rel=1e-4)
    assert row["cv"] == pytest.approx(stats.variation([100, 101, 103], ddof=1))


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324 * 2**20])
def test_means_of_huge_and_tiny_values_neither_overflow_nor_vanish(frame, size):
    values = np.array([1.0, 2.0, 4.0] * 100) * size
    row = summarize(frame({"native": values})).iloc[0]
    assert row["gmean"] == pytest.approx(2 * size, rel=1e-9)
    assert row["mean"] == pytest.approx(7 / 3 * size, rel=1e-5)
    assert row["cv"] == pytest.approx(stats.variation([1.0, 2.0, 4.0] * 100, ddof=1), rel=1e-5)
    assert np.isfinite(row[["sd", "lo", "hi", "median"]].astype(float)).all()


def test_missing_is_missing_and_never_zero(frame):
    row = summarize(frame({"native": [10.0, None, np.nan, np.inf, 12.0]})).iloc[0]
    assert (row["n"], row["missing"]) == (2, 3)
    assert row["mean"] == 11 and row["min"] == 10
    empty = summarize(frame({"native": [None, np.nan]})).iloc[0]
    assert empty["n"] == 0 and empty["missing"] == 2
    assert np.isnan(empty["mean"]) and np.isnan(empty["half_width"])
    assert empty["reason"] == "nothing was measured"


def test_a_result_of_one_is_kept(frame):
    row = summarize(frame({"native": [1.0, 1.0, 4.0]})).iloc[0]
    assert row["n"] == 3 and row["mean"] == 2 and row["min"] == 1


def test_outliers_are_counted_and_kept(frame):
    df = frame({"native": [10, 10.1, 9.9, 10.2, 9.8, 50]})
    row = summarize(df).iloc[0]
    assert row["outliers"] == 1 and row["n"] == 6 and row["max"] == 50
    assert row["mean"] == pytest.approx(100 / 6)
    assert list(outliers(df)) == [False] * 5 + [True]
    assert not outliers(frame({"native": [1, 1, 1, 90]})).any()  # four values have no fences


def test_the_mean_of_rates_is_harmonic_and_says_so(frame):
    # 1 MB at 10 MB/s and 1 MB at 40 MB/s: 2 MB in 0.125 s
    row = summarize(frame({"native": [10, 40]}, kind="rate", better="higher")).iloc[0]
    assert row["mean"] == pytest.approx(16) and row["mean_kind"] == "harmonic"
    time = summarize(frame({"native": [10, 40]})).iloc[0]
    assert time["mean"] == 25 and time["mean_kind"] == "arithmetic"


def test_the_interval_of_a_rate_is_that_of_its_times_inverted(frame):
    times = np.array([2.0, 2.1, 1.9, 2.05, 2.2])
    rate = summarize(frame({"native": 1 / times}, kind="rate")).iloc[0]
    time = summarize(frame({"native": times})).iloc[0]
    assert 1 / rate["mean"] == pytest.approx(time["mean"])
    assert (1 / rate["hi"], 1 / rate["lo"]) == pytest.approx((time["lo"], time["hi"]))
    wild = summarize(frame({"native": [1, 100]}, kind="rate")).iloc[0]
    assert np.isnan(wild["hi"]) and "no upper end" in wild["reason"]


def test_the_interval_of_the_mean_is_students(frame):
    values = [3.1, 2.9, 3.4, 3.0, 3.3]
    row = summarize(frame({"native": values}), confidence=0.9).iloc[0]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert (row["lo"], row["hi"]) == pytest.approx(tuple(expected))
    logs = stats.ttest_1samp(np.log(values), 0).confidence_interval(0.9)
    assert (row["gmean_lo"], row["gmean_hi"]) == pytest.approx(tuple(np.exp(logs)))
    assert row["gmean"] == pytest.approx(stats.gmean(values))
    assert row["half_width"] == pytest.approx(row["gmean_hi"] / row["gmean"] - 1)


@pytest.mark.parametrize("values, word", [
    ([3.0], "one run"), ([0.0, 1.0, 2.0], "not positive"), ([-1.0, 2.0], "not positive")])
def test_what_cannot_be_had_is_nan_with_a_reason(frame, values, word):
    row = summarize(frame({"native": values})).iloc[0]
    assert np.isnan(row["half_width"]) and word in row["reason"]
    assert row["mean"] == pytest.approx(np.mean(values))
    rate = summarize(frame({"native": values}, kind="rate")).iloc[0]
    if min(values) <= 0:
        assert np.isnan(rate["mean"])


def test_equal_values_have_an_interval_of_no_width(frame):
    row = summarize(frame({"native": [0.1] * 7})).iloc[0]
    assert row["sd"] == 0 and row["lo"] == row["hi"] and row["half_width"] == 0


def test_several_values_of_a_run_become_one(frame):
    df = frame({"native": [1.0, 3.0, 5.0]})
    df["run"] = [1, 1, 2]
    row = summarize(df).iloc[0]
    assert row["n"] == 2 and row["mean"] == 3.5
    rate = summarize(df.assign(kind="rate")).iloc[0]
    assert rate["n"] == 2 and rate["max"] == 5 and rate["min"] == pytest.approx(1.5)


def test_flags_are_carried_along(frame):
    df = frame({"native": [1.0, 2.0, 3.0]})
    df["flags"] = ["clock", "", "clock,slow"]
    row = summarize(df).iloc[0]
    assert row["flags"] == "clock,slow" and row["flagged"] == 2 and row["n"] == 3


def test_points_come_in_their_natural_order(frame):
    df = pd.concat([frame({"native": [1.0, 2.0]}, point=f'{{"bytes":{size}}}')
                    for size in (1024, 8, 64)]).assign(run=range(6))
    assert list(summarize(df)["point"]) == ['{"bytes":8}', '{"bytes":64}', '{"bytes":1024}']


def test_an_empty_frame_gives_an_empty_table(frame):
    empty = frame({"native": [1.0]}).iloc[:0]
    assert len(summarize(empty)) == 0 and len(precision(empty)) == 0
    assert "gmean_lo" in summarize(empty)


def test_a_frame_without_values_is_refused_by_name(frame):
    with pytest.raises(AnalysisError, match="no column value"):
        summarize(frame({"native": [1.0]}).drop(columns="value"))


def test_columns_may_be_categories_or_arrow(frame):
    df = frame({"native": [1.0, 2.0], "uml": [2.0, 3.0]})
    plain = summarize(df)
    other = summarize(df.astype({"label": "category", "metric": "string", "point": "category"}))
    pd.testing.assert_frame_equal(plain, other)
