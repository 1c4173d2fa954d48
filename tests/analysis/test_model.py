"""Models recover the functions that made the data, and do not guess in silence."""

import numpy as np
import pandas as pd
import pytest

from nearmetal.analysis import AnalysisError
from nearmetal.analysis.model import Candidate, _families, families, fit, fit_frame, register_family

MACHINES = np.arange(2.0, 17.0)
BYTES = 2.0 ** np.arange(3, 24)


def noisy(x, y, scatter=0.02, runs=5, seed=1):
    """``runs`` runs at each size, their relative deviation ``scatter``."""
    rng = np.random.default_rng(seed)
    x, y = np.repeat(x, runs), np.repeat(y, runs)
    return x, y * np.exp(rng.normal(0, scatter, x.size))


def lg_quadratic(n, a, b, c):
    return a + b * np.log10(n) + c * np.log10(n) ** 2


@pytest.mark.parametrize("truth", [(0.8598, -1.089, 0.4687), (20.45, 34.58, -15.26)])
def test_the_equations_of_the_2010_paper_come_back(truth):
    model = fit(MACHINES, lg_quadratic(MACHINES, *truth))
    assert model.family == "lg-quadratic"
    assert list(model.coefficients.values()) == pytest.approx(truth, rel=1e-8)
    assert model.cv_error < 1e-9 and model.r2 == pytest.approx(1)


def test_a_start_up_time_and_a_time_per_byte():
    model = fit(*noisy(BYTES, 2 + BYTES * 1e-3))
    assert model.family == "hockney"
    assert model.coefficients["alpha"] == pytest.approx(2, rel=0.02)
    assert model.coefficients["beta"] == pytest.approx(1e-3, rel=0.02)
    assert model.cv_error == pytest.approx(0.02, rel=0.3)


def test_the_same_as_bandwidth():
    model = fit(*noisy(BYTES, BYTES / (2 + BYTES * 1e-3)))
    assert model.family == "hockney-rate"
    assert model.coefficients["alpha"] == pytest.approx(2, rel=0.02)
    assert model.coefficients["beta"] == pytest.approx(1e-3, rel=0.02)
    row = model.predict(4096).iloc[0]
    assert row["lo"] < 4096 / (2 + 4.096) < row["hi"]


def test_eager_and_rendezvous():
    truth = np.where(BYTES < 65536, 2 + BYTES * 1e-3, 50 + BYTES * 6e-4)
    model = fit(*noisy(BYTES, truth))
    assert model.family == "two-regimes" and "65536" in model.formula
    assert model.coefficients == pytest.approx(
        {"alpha1": 2, "beta1": 1e-3, "alpha2": 50, "beta2": 6e-4}, rel=0.1)


@pytest.mark.parametrize("function, formula", [
    (lambda n: 3 + 0.2 * n * np.log2(n), "c0 + c1 * x^(1) * log2(x)^1"),
    (lambda n: 5 + 0.01 * n**2, "c0 + c1 * x^(2)"),
    (lambda n: 1 + 90 / n, "c0 + c1 * x^(-1)"),
    (lambda n: 4 + 3 * np.log2(n), "c0 + c1 * log2(x)^1")])
def test_terms_of_extra_ps_normal_form(function, formula):
    sizes = 2.0 ** np.arange(1, 10)
    model = fit(*noisy(sizes, function(sizes), scatter=0.002))
    assert (model.family, model.formula) == ("extra-p", formula)


def test_what_does_not_depend_on_the_size_is_constant():
    model = fit(*noisy(MACHINES, np.full(MACHINES.size, 5.0)))
    assert model.family == "constant"
    assert model.coefficients["a"] == pytest.approx(5, rel=0.01)


def test_leaving_a_size_out_is_what_it_says():
    """The closed form agrees with fitting again without that size, runs repeated or not."""
    for runs in (1, 3):
        x, y = noisy(MACHINES, 3 + MACHINES, scatter=0.1, runs=runs)
        model = fit(x, y, families=["hockney"], error="absolute")
        squares = []
        for size in MACHINES:
            line = np.polyfit(x[x != size], y[x != size], 1)
            squares.append(np.mean((y[x == size] - np.polyval(line, size)) ** 2))
        assert model.cv_error == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-6)


def test_extrapolation_is_refused_or_marked():
    model = fit(*noisy(MACHINES, lg_quadratic(MACHINES, 20.45, 34.58, -15.26), scatter=0.005))
    with pytest.raises(AnalysisError, match="64 lies outside the sizes measured, 2 to 16") as why:
        model.predict([4, 64])
    assert why.value.remedy
    table = model.predict([4, 64], allow_extrapolation=True)
    assert table["extrapolated"].tolist() == [False, True]
    width = table["hi"] - table["lo"]
    assert width[1] > 1.5 * width[0]


def test_prediction_intervals_hold_further_runs():
    """95 % intervals hold one further run in about 95 % of trials, at small and large sizes."""
    rng = np.random.default_rng(9)
    held = []
    for seed in range(40):
        model = fit(*noisy(BYTES, 2 + BYTES * 1e-3, runs=2, seed=seed), families=["hockney"])
        table = model.predict(BYTES)
        further = (2 + BYTES * 1e-3) * np.exp(rng.normal(0, 0.02, BYTES.size))
        held.append((table["lo"] <= further) & (further <= table["hi"]))
    assert np.mean(held) == pytest.approx(0.95, abs=0.025)
    assert np.mean([row[:5] for row in held]) == pytest.approx(0.95, abs=0.05)


def test_rivals_show_what_the_choice_of_formula_is_worth():
    model = fit(*noisy(2.0 ** np.arange(1, 7), np.array([1, 1.5, 1.9, 2.6, 2.9, 3.6]), 0.1))
    assert model.rivals and model.table["near"].sum() == len(model.rivals) + 1
    row = model.predict(1024, allow_extrapolation=True).iloc[0]
    assert row["rivals_lo"] <= row["y"] <= row["rivals_hi"]
    assert row["rivals_hi"] - row["rivals_lo"] > 0


@pytest.mark.parametrize("x, y, options, words", [
    ([1, 2, 3, 4], [1, 2, 3, 4], {}, "at least 5 different sizes, there are 4"),
    ([1] * 9, range(1, 10), {}, "there are 1"),
    ([1, 2, 3, 4, 5], [1, 2, 0, 4, 5], {}, "not positive"),
    ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], {"families": ["spline"]}, "no family called 'spline'")])
def test_too_little_or_unusable_data_is_refused(x, y, options, words):
    with pytest.raises(AnalysisError, match=words) as caught:
        fit(x, list(y), **options)
    assert caught.value.remedy


def test_missing_values_and_zeros_under_absolute_error():
    x = np.append(MACHINES, [3.0, np.nan])
    model = fit(x, np.append(MACHINES - 2, [np.nan, 5.0]), error="absolute")
    assert model.n == MACHINES.size and model.family == "hockney"
    assert model.coefficients == pytest.approx({"alpha": -2, "beta": 1})


def test_a_family_is_one_function_away():
    @register_family("wave")
    def _wave(sizes):
        return [Candidate("wave", "a + b * sin(x)", ("a", "b"),
                          lambda x: np.column_stack([np.ones_like(x), np.sin(x)]))]
    try:
        assert families()[-1] == "wave"
        assert fit(MACHINES, 5 + np.sin(MACHINES)).family == "wave"
    finally:
        del _families["wave"]


def test_every_curve_of_a_frame(frame):
    parts = []
    for size in BYTES[:8]:
        point = f'{{"bytes":{int(size)},"mode":"uni"}}'
        parts.append(frame({"native": [2 + size / 9, 2.01 + size / 9]}, point=point))
    parts.append(frame({"uml": [3.0, 3.1]}, point='{"bytes":8,"mode":"uni"}'))
    parts.append(frame({"uml": [3.0, 3.1]}, point='{"processes":2}'))
    table = fit_frame(pd.concat(parts, ignore_index=True), "bytes").set_index("label")
    row = table.loc["native"]
    assert row["family"] == "hockney" and row["point"] == '{"mode":"uni"}' and row["n"] == 16
    assert row["model"].predict(100)["y"][0] == pytest.approx(2 + 100 / 9, rel=0.01)
    assert table.loc["uml", "model"] is None
    assert "at least 5 different sizes" in table.loc["uml", "reason"]
    assert len(table) == 2
