"""Comparisons: known answers, verdicts, what is missing, sentences."""

import time

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_ind

from nearmetal.analysis import AnalysisError, compare, compare_stores, mergeable
from nearmetal.analysis.compare import _family
from nearmetal.analysis.inference import welch
from nearmetal.analysis.protocols import Moments

# Student 1908: extra hours of sleep of ten patients under two drugs; R's data set "sleep"
SLEEP_1 = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SLEEP_2 = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def only(df, **options):
    """The one comparison of a frame."""
    table = compare(df, **options)
    assert len(table) == 1
    return table.iloc[0]


def test_welch_on_students_sleep_data(frame):
    # R: t.test(extra ~ group, sleep): t = -1.8608, df = 17.776, p-value = 0.07939,
    # 95 percent confidence interval -3.3654832 0.2054832
    row = only(frame({"native": np.exp(SLEEP_2), "uml": np.exp(SLEEP_1)}))
    assert row["p"] == pytest.approx(0.07939, abs=5e-6)
    assert np.log([row["lo"], row["hi"]]) == pytest.approx([-3.3654832, 0.2054832], abs=1e-7)
    assert np.log(row["ratio"]) == pytest.approx(-1.58)
    assert row["verdict"] == "inconclusive" and row["method"] == "welch"


def test_paired_design_on_students_sleep_data(frame):
    # R: with paired = TRUE: t = -4.0621, df = 9, p-value = 0.002833, interval -2.4598858 -0.7001142
    row = only(frame({"native": np.exp(SLEEP_2), "uml": np.exp(SLEEP_1)}), design="paired")
    assert row["p"] == pytest.approx(0.002833, abs=5e-7)
    assert np.log([row["lo"], row["hi"]]) == pytest.approx([-2.4598858, -0.7001142], abs=1e-7)
    assert row["verdict"] == "better" and row["method"] == "paired"


def test_a_paired_design_needs_shared_blocks(frame):
    df = frame({"native": [1.0, 1.1, 1.2, 1.3], "uml": [2.0, 2.1, 2.3, 2.2]})
    df.loc[df["label"] == "uml", "block"] += 2
    paired, plain = only(df, design="paired"), only(df)
    assert paired["method"] == "welch" and paired["p"] == plain["p"]


def test_holm_example(frame):
    # Holm 1979's procedure on p = 0.01, 0.04, 0.03, 0.005: adjusted 0.03, 0.06, 0.06, 0.02
    rows = pd.DataFrame({"study": "s", "role": "subject", "p": [0.01, 0.04, np.nan, 0.03, 0.005]})
    rows.loc[5] = ["s", "aa", 0.04]  # a family of its own
    _family(rows)
    assert rows["p_holm"].tolist() == pytest.approx(
        [0.03, 0.06, np.nan, 0.06, 0.02, 0.04], nan_ok=True)


def test_tost_example():
    # Lakens 2017, from Moery & Calin-Jageman 2016: means 5.25 and 5.22, deviations 0.95 and 0.83,
    # n = 95 and 89, bounds of d = 0.43: t(182) = -2.69, p = .004
    bound = 0.43 * np.sqrt((0.95**2 + 0.83**2) / 2)
    one, two = (Moments(*(np.array([part]) for part in triple))
                for triple in ((5.25, 0.95, 95), (5.22, 0.83, 89)))
    tested = welch(one, two, "log", np.expm1(bound), 0.95)
    assert tested.p_tost[0] == pytest.approx(0.004, abs=0.0005)
    assert stats.t.ppf(tested.p_tost[0], 182) == pytest.approx(-2.69, abs=0.005)


@pytest.mark.parametrize("sizes", [(5, 5), (4, 9), (2, 30)])
def test_agrees_with_scipy_and_statsmodels(frame, sizes):
    """Unequal sizes too: they raise nothing and are not significant for that."""
    rng = np.random.default_rng(sum(sizes))
    a, b = (np.exp(rng.normal(3, 0.02, size)) for size in sizes)
    row = only(frame({"native": b, "uml": a}))
    theirs = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    assert row["p"] == pytest.approx(theirs.pvalue)
    assert np.log([row["lo"], row["hi"]]) == pytest.approx(list(theirs.confidence_interval(0.95)))
    tost, _, _ = ttost_ind(np.log(a), np.log(b), -np.log(1.02), np.log(1.02), usevar="unequal")
    assert row["p_tost"] == pytest.approx(tost)
    assert row["ratio"] == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert (row["n"], row["n_base"]) == sizes


def test_hedges_g(frame):
    # two groups one pooled deviation apart: d = 1, times Hedges' correction 1 - 3 / (4 * 8 - 1)
    base = np.exp([1.0, 2.0, 3.0, 4.0, 5.0])
    row = only(frame({"native": base, "uml": base * np.exp(np.sqrt(2.5))}))
    assert row["effect"] == pytest.approx(1 - 3 / 31)
    rate = only(frame({"native": base, "uml": base * np.exp(np.sqrt(2.5))}, better="higher"))
    assert rate["effect"] == pytest.approx(-(1 - 3 / 31))  # faster: costs less


def spread(centre, half, count=10):
    """Values around a centre, their relative deviation about ``half``."""
    return centre * np.exp(half * np.tile([-1, 1], count // 2))


@pytest.mark.parametrize("factor, scatter, verdict", [
    (1.31, 0.01, "worse"), (0.80, 0.01, "better"), (1.0, 0.005, "equivalent"),
    (1.01, 0.002, "equivalent"),  # significant, and smaller than the margin
    (1.03, 0.05, "inconclusive"), (1.0, 0.1, "inconclusive")])
def test_the_four_verdicts(frame, factor, scatter, verdict):
    row = only(frame({"native": spread(5, scatter), "uml": spread(5 * factor, scatter)}))
    assert row["verdict"] == verdict
    if factor == 1.01:
        assert row["p_holm"] < 0.05
    rate = only(frame({"native": spread(5, scatter), "uml": spread(5 / factor, scatter)},
                      better="higher", kind="rate"))
    assert rate["verdict"] == verdict
    assert rate["cost_pct"] == pytest.approx(row["cost_pct"])
    assert (rate["cost_lo"], rate["cost_hi"]) == pytest.approx((row["cost_lo"], row["cost_hi"]))


def test_many_comparisons_at_once_ask_for_more(frame):
    rng = np.random.default_rng(3)
    base = spread(1, 0.02)
    one = frame({"native": base, "uml": base * 1.025})
    alone = only(one)
    assert alone["verdict"] == "worse"
    parts = [one] + [frame({"native": rng.normal(1, 0.02, 10), "uml": rng.normal(1, 0.02, 10)},
                           point=f'{{"bytes":{size}}}') for size in range(1, 40)]
    many = compare(pd.concat(parts)).set_index("point").loc["{}"]
    assert many["p"] == alone["p"] and many["p_holm"] > many["p"]
    assert many["verdict"] == "inconclusive" and "by chance" in many["sentence"]


@pytest.mark.parametrize("values, word", [
    ({"native": [1.0, 1.1], "uml": [2.0]}, "it takes 2 runs of each, there are 1 and 2"),
    ({"native": [1.0, 1.0], "uml": [2.0, 2.0]}, "the same value"),
    ({"native": [0.0, 1.0], "uml": [2.0, 2.1]}, "not positive"),
    ({"native": [1.0, 1.1], "uml": [-2.0, 2.1]}, "not positive"),
    ({"native": [1.0, 1.1], "uml": [None, None]}, "uml was not measured here"),
    ({"uml": [1.0, 1.1]}, "native was not measured here")])
def test_what_cannot_be_compared_is_inconclusive_with_a_reason(frame, values, word):
    for options in ({}, {"design": "paired"}, {"protocol": "papers-50"},
                    {"protocol": "trimmed-5"}):
        row = only(frame(values), **options)
        assert row["verdict"] == "inconclusive"
        assert np.isnan(row["p_holm"]) or options.get("protocol") == "papers-50"
        if not options:
            assert word in row["reason"] and word in row["sentence"]
            assert np.isnan(row[["lo", "hi", "p", "p_tost"]].astype(float)).all()


def test_one_side_without_spread_is_still_compared(frame):
    row = only(frame({"native": [1.0, 1.0, 1.0], "uml": [1.30, 1.31, 1.32]}))
    assert row["verdict"] == "worse" and np.isfinite(row["lo"])


def test_a_point_that_only_the_baseline_has_is_shown(frame):
    small = frame({"native": [1.0, 1.1], "uml": [1.2, 1.3]}, point='{"bytes":8}')
    large = frame({"native": [9.0, 9.1]}, point='{"bytes":64}').assign(run=[90, 91])
    table = compare(pd.concat([small, large]))
    assert list(table["point"]) == ['{"bytes":8}', '{"bytes":64}']
    row = table.iloc[1]
    assert row["label"] == "uml" and row["n"] == 0 and row["n_base"] == 2
    assert np.isnan(row["mean"]) and row["verdict"] == "inconclusive"
    assert row["environment"] == "uml" and not row["cross_substrate"] | (row["substrate"] == "")


def test_each_label_is_compared_with_its_own_baseline(frame):
    df = frame({"native": spread(1, 0.01), "native(cpus=1)": spread(2, 0.01),
                "uml": spread(2, 0.01), "container": spread(1, 0.01)})
    df.loc[df["label"] == "uml", "matched"] = "native(cpus=1)"
    df.loc[df["label"] == "native(cpus=1)", ["role", "matched"]] = ["baseline", ""]
    table = compare(df).set_index("label")
    assert sorted(table.index) == ["container", "uml"]
    assert table.loc["uml", "base_label"] == "native(cpus=1)"
    assert table.loc["uml", "ratio"] == pytest.approx(1)


def test_the_noise_floor_stands_beside_each_verdict(frame):
    df = frame({"native": spread(1, 0.02), "native (A/A)": spread(1.01, 0.02),
                "uml": spread(1.3, 0.02), "other": spread(2.0, 0.02),
                "native(cpus=1)": spread(1, 0.02)})
    df.loc[df["label"] == "other", "matched"] = "native(cpus=1)"
    df.loc[df["label"] == "native(cpus=1)", ["role", "matched"]] = ["baseline", ""]
    table = compare(df).set_index("label")
    noise = table.loc["native (A/A)"]
    for label in ("uml", "other"):  # the other baseline was not run against itself
        assert table.loc[label, "noise_lo"] == noise["cost_lo"] == noise["noise_lo"]
        assert table.loc[label, "noise_label"] == "native"
    assert noise["p_holm"] == noise["p"]
    assert not table.loc["uml", "within_noise"]
    assert noise["sentence"].startswith("native against itself")


def test_comparisons_across_substrates_are_marked(frame):
    df = frame({"native": spread(1, 0.01), "qemu": spread(9, 0.01), "uml": spread(1, 0.01)})
    df.loc[df["label"] == "qemu", "substrate"] = "TCG"
    table = compare(df).set_index("label")
    assert table["cross_substrate"].to_dict() == {"qemu": True, "uml": False}
    assert "[TCG against host CPU]" in table.loc["qemu", "sentence"]


def test_outliers_stay_in_the_comparison(frame):
    base, wild = spread(1, 0.01), np.append(spread(1, 0.01)[:-1], 3.0)
    row = only(frame({"native": base, "uml": wild}))
    assert row["n"] == 10 and row["ratio"] == pytest.approx(stats.gmean(wild) / stats.gmean(base))
    assert row["verdict"] == "inconclusive"


def test_flags_reach_the_verdict(frame):
    df = frame({"native": spread(1, 0.01), "uml": spread(2, 0.01)})
    df.loc[0, "flags"] = "clock"
    row = only(df)
    assert row["flags"] == "clock" and row["sentence"].endswith("[flagged: clock].")


@pytest.mark.parametrize("factor, better, sentence", [
    (1.31, "lower", "uml costs 31 % more (29 to 33) on 8-byte latency in work."),
    (1.31, "higher", "uml costs 24 % less (23 to 25) on 8-byte latency in work."),
    (3.20, "lower", "uml costs 3.20 times as much (3.16 to 3.24) on 8-byte latency in work."),
    (1.00, "lower", "uml costs the same within 2 % on 8-byte latency in work "
                    "(1.4 % less to 1.4 % more).")])
def test_sentences(frame, factor, better, sentence):
    df = frame({"native": spread(1, 0.014), "uml": spread(factor, 0.014)}, better=better,
               point='{"bytes":8}')
    assert only(df)["sentence"] == sentence


def test_a_sentence_names_points_parameters_and_titles(frame):
    df = frame({"native": spread(1, 0.01), "uml": spread(2, 0.01)}, metric="total_time",
               point='{"bytes":1048576,"mode":"uni","processes":2}', params='{"n":1000}')
    assert " on 1-MiB 2-process total time in work with mode=uni, n=1000." in only(df)["sentence"]
    titles = {("work", "total_time"): "bandwidth"}
    assert "2-process bandwidth in" in only(df, titles=titles)["sentence"]


@pytest.mark.parametrize("options", [
    {"margin": 0}, {"margin": float("nan")}, {"confidence": 95}, {"design": "guess"},
    {"protocol": "papers"}])
def test_senseless_questions_are_refused(frame, options):
    with pytest.raises(AnalysisError) as caught:
        compare(frame({"native": [1.0, 2.0], "uml": [1.0, 2.0]}), **options)
    assert caught.value.remedy


def test_an_empty_frame_gives_an_empty_table(frame):
    empty = frame({"native": [1.0]}).iloc[:0]
    assert list(compare(empty)) == list(compare(frame({"native": [1.0], "uml": [1.0]})))
    assert len(compare(empty)) == 0
    assert len(compare(frame({"native": [1.0, 2.0]}), design="paired")) == 0


def test_two_stores_or_any_two_labels(frame):
    one = frame({"native": spread(1, 0.01), "native (A/A)": spread(1, 0.01),
                 "uml": spread(2, 0.01)})
    two = frame({"native": spread(1.1, 0.01), "uml": spread(2, 0.01), "new": spread(3, 0.01)})
    table = compare_stores(one, two, name_a="before", name_b="after").set_index("label")
    assert table.loc["native (after)", "ratio"] == pytest.approx(1.1)
    assert table.loc["uml (after)", "base_label"] == "uml (before)"
    assert table.loc["native (after)", "noise_label"] == "native (before)"
    row = compare_stores(one, one, label_a="native", label_b="uml").set_index("label").loc["uml"]
    assert row["ratio"] == pytest.approx(2) and row["base_label"] == "native"
    alone = compare_stores(one[one["label"] == "uml"], two[two["label"] == "new"]).iloc[0]
    assert alone["ratio"] == pytest.approx(1.5) and alone["label"] == "new"
    again = compare_stores(one, one, label_a="native", label_b="native (A/A)")
    assert again["ratio"].tolist() == pytest.approx([1])
    with pytest.raises(AnalysisError, match="no measurements of 'xen'"):
        compare_stores(one, two, label_a="native", label_b="xen")
    with pytest.raises(AnalysisError, match="in common"):
        compare_stores(one, two[two["label"] == "new"])
    with pytest.raises(AnalysisError, match="One label"):
        compare_stores(one, two, label_a="native")


def test_facts_that_differ_are_named():
    here = {"cpu": "A", "cpus": 2, "volatile.load": 0.1, "kernel": "6.1"}
    there = {"cpu": "B", "cpus": 2, "volatile.load": 9.0}
    assert mergeable(here, dict(here, **{"volatile.load": 3})) == []
    assert mergeable(here, there) == ["cpu ('A' against 'B')", "kernel ('6.1' against None)"]


def test_fifty_thousand_rows_take_under_three_seconds(frame):
    rng = np.random.default_rng(1)
    labels = ["native", "native (A/A)", "uml", "container", "qemu"]
    df = pd.concat([
        frame({label: [1.0] * 10 for label in labels}, point=f'{{"bytes":{size}}}')
        for size in range(20)])
    df = pd.concat([df.assign(params=f'{{"n":{n}}}') for n in range(50)], ignore_index=True)
    df["value"] = np.exp(rng.normal(0, 0.01, len(df)))
    df["run"] = np.arange(len(df))
    assert len(df) == 50_000
    compare(df.head(100))  # loads the libraries
    start = time.process_time()
    table = compare(df)
    assert time.process_time() - start < 3
    assert len(table) == 4000 and (table["n"] == 10).all()
