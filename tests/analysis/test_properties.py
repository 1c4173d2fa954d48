"""What must hold for any measurements, and how often the intervals hold the truth."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nearmetal.analysis import compare, half_width, summarize
from nearmetal.analysis.inference import paired, welch
from nearmetal.analysis.protocols import Moments, protocol_named
from nearmetal.analysis.summary import log_moments, reach

quick = settings(max_examples=10, deadline=None,
                 suppress_health_check=[HealthCheck.too_slow])
positive = st.floats(1e-3, 1e6)
samples = st.lists(positive, min_size=2, max_size=8)
anything = st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
                    max_size=6)
NUMBERS = ["ratio", "lo", "hi", "p", "p_tost", "effect", "cost_pct"]


def one(frame, base, subject, **options):
    return compare(frame({"native": base, "uml": subject}), **options).iloc[0]


@quick
@given(samples, samples)
def test_swapping_subject_and_baseline_inverts_the_ratio(frame, a, b):
    assume(min(a) < max(a) or min(b) < max(b))
    there, back = one(frame, a, b), one(frame, b, a)
    assert back["ratio"] == pytest.approx(1 / there["ratio"])
    assert (back["lo"], back["hi"]) == pytest.approx((1 / there["hi"], 1 / there["lo"]))
    assert back["p"] == pytest.approx(there["p"], nan_ok=True)
    assert back["p_tost"] == pytest.approx(there["p_tost"], nan_ok=True, abs=1e-12)
    assert back["effect"] == pytest.approx(-there["effect"], nan_ok=True)
    other = {"better": "worse", "worse": "better"}
    assert back["verdict"] == other.get(there["verdict"], there["verdict"])


@quick
@given(samples, samples, st.integers(-60, 60))
def test_scaling_both_changes_nothing(frame, a, b, power):
    assume(min(a) < max(a) or min(b) < max(b))
    scale = 2.0**power
    before = one(frame, a, b)
    after = one(frame, [scale * value for value in a], [scale * value for value in b])
    assert before["verdict"] == after["verdict"]
    for name in NUMBERS:
        assert after[name] == pytest.approx(before[name], rel=1e-6, abs=1e-9, nan_ok=True), name


@quick
@given(samples, samples, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(frame, a, b, random):
    df = frame({"native": a, "native (A/A)": b, "uml": b})
    order = list(range(len(df)))
    random.shuffle(order)
    for function in (summarize, compare):
        pd.testing.assert_frame_equal(function(df), function(df.iloc[order]), check_exact=True)


@quick
@given(samples, samples, st.floats(0.001, 0.5), st.floats(1.01, 20))
def test_a_wider_margin_never_takes_equivalence_away(frame, a, b, margin, more):
    narrow, wide = one(frame, a, b, margin=margin), one(frame, a, b, margin=margin * more)
    assert not narrow["p_tost"] < wide["p_tost"]
    if narrow["verdict"] == "equivalent":
        assert wide["verdict"] == "equivalent"


@quick
@given(st.lists(st.floats(-0.02, 0.02), min_size=4, max_size=8))
def test_the_verdict_is_monotone_in_the_cost(frame, scatter):
    """The dearer the subject, the later its verdict in this order; never back."""
    assume(max(scatter) - min(scatter) > 1e-6)
    order = {"better": 0, "equivalent": 1, "worse": 2}
    base = np.exp(scatter)
    factors = (0.5, 0.9, 0.97, 0.99, 1.0, 1.01, 1.03, 1.1, 2.0)
    values = {"native": base} | {f"uml {at}": base * by for at, by in enumerate(factors)}
    seen = compare(frame(values))["verdict"].tolist()
    ranks = [order[verdict] for verdict in seen if verdict in order]
    assert ranks == sorted(ranks)
    assert "worse" not in seen[:4] and "better" not in seen[5:]


@quick
@given(anything, anything, st.sampled_from(["all", "papers-50", "trimmed-5"]),
       st.sampled_from(["welch", "paired"]), st.sampled_from(["higher", "lower"]))
def test_no_values_crash_it(frame, a, b, protocol, design, better):
    assume(a or b)
    df = frame({"native": a, "native (A/A)": b, "uml": b}, better=better)
    for row in compare(df, protocol=protocol, design=design).itertuples():
        assert row.verdict in ("better", "worse", "equivalent", "inconclusive")
        assert row.sentence and (np.isfinite(row.p) or row.verdict == "inconclusive")
        assert np.isfinite(row.p) or row.reason
    table = summarize(df)
    assert (table["n"] + table["missing"] == df.groupby("label").size().to_numpy()).all()


@quick
@given(samples, st.integers(-300, 300))
def test_half_width_does_not_depend_on_the_unit(values, power):
    before = half_width(values)
    after = half_width([value * 2.0**power for value in values])
    assert after == pytest.approx(before, rel=1e-6, abs=1e-12, nan_ok=True)


TRIALS = 4000


@pytest.mark.parametrize("sizes", [(5, 5), (10, 10), (4, 15)])
@pytest.mark.parametrize("deviations", [(0.02, 0.02), (0.01, 0.2)])
def test_95_percent_intervals_hold_the_true_ratio(sizes, deviations):
    """Log-normal runs, unequal scatter and sizes: 94 to 96 % (Welch's df are approximate)."""
    rng = np.random.default_rng(1947)
    moments = [protocol_named("all").moments(np.exp(rng.normal(centre, sd, (TRIALS, size))))
               for centre, sd, size in zip((np.log(1.3), 0), deviations, sizes, strict=True)]
    tested = welch(*moments, "log", 0.02, 0.95)
    covered = ((tested.lo <= 1.3) & (1.3 <= tested.hi)).mean()
    assert covered == pytest.approx(0.95, abs=0.012)


def test_a_true_null_is_called_different_in_5_percent():
    rng = np.random.default_rng(5)
    moments = [protocol_named("all").moments(np.exp(rng.normal(0, 0.02, (TRIALS, 10))))
               for _ in range(2)]
    assert (welch(*moments, "log", 0.02, 0.95).p < 0.05).mean() == pytest.approx(0.05, abs=0.01)


def test_a_true_difference_of_the_margin_is_called_equivalent_in_5_percent():
    """The size of the equivalence test at its boundary (Schuirmann 1987)."""
    rng = np.random.default_rng(1987)
    moments = [protocol_named("all").moments(np.exp(rng.normal(centre, 0.01, (TRIALS, 10))))
               for centre in (np.log(1.02), 0)]
    said = (welch(*moments, "log", 0.02, 0.95).p_tost < 0.05).mean()
    assert said == pytest.approx(0.05, abs=0.01)


def test_drift_that_blocks_share_is_what_pairing_removes():
    """Both designs keep their promise under drift; the paired one is far narrower."""
    rng = np.random.default_rng(20)
    drift = rng.normal(0, 0.05, (TRIALS, 10))
    runs = [drift + rng.normal(centre, 0.005, (TRIALS, 10)) for centre in (np.log(1.1), 0)]
    apart = welch(*(protocol_named("all").moments(np.exp(part)) for part in runs),
                  "log", 0.02, 0.95)
    logs = runs[0] - runs[1]
    together = paired(Moments(logs.mean(axis=1), logs.std(axis=1, ddof=1),
                              np.full(TRIALS, 10.0)), 0.02, 0.95)
    covered = [((part.lo <= 1.1) & (1.1 <= part.hi)).mean() for part in (apart, together)]
    assert covered[0] >= 0.95 and covered[1] == pytest.approx(0.95, abs=0.012)
    assert np.median(together.hi - together.lo) < 0.25 * np.median(apart.hi - apart.lo)


@pytest.mark.parametrize("least, floor", [(3, 0.88), (5, 0.90), (10, 0.92)])
def test_what_stopping_by_precision_costs(least, floor):
    """Stopping at a half width of 1 % (deviation 2 %) covers a little less than 95 %, the less
    the smaller the minimum; docs/statistics.md quotes these floors."""
    rng = np.random.default_rng(1965)
    runs = np.exp(rng.normal(0, 0.02, (TRIALS, 40)))
    done, covered, used = np.zeros(TRIALS, bool), np.zeros(TRIALS, bool), np.zeros(TRIALS)
    for size in range(least, 41):
        centre, sd = log_moments(runs[:, :size])
        half = reach(sd, size, 0.95)
        stop = ~done & ((np.expm1(half) <= 0.01) | (size == 40))
        covered[stop], used[stop] = np.abs(centre[stop]) <= half[stop], size
        done |= stop
    assert floor < covered.mean() < 0.95
    assert least < used.mean() < 40
