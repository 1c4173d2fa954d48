"""Stopping looks at precision, and at nothing else."""

import numpy as np
import pytest

from nearmetal.analysis import AnalysisError, enough, half_width, summarize


def test_half_width_by_hand():
    # logs 0 and 0.02: mean 0.01, sd 0.01414, t(1) = 12.706: 12.706 * 0.01414 / sqrt(2) = 0.12706
    assert half_width(np.exp([0, 0.02])) == pytest.approx(np.expm1(0.127062), rel=1e-5)


def test_half_width_agrees_with_the_summary(frame):
    values = [3.1, 2.9, 3.4, 3.0, 3.3]
    for confidence in (0.9, 0.95, 0.99):
        row = summarize(frame({"native": values}), confidence=confidence).iloc[0]
        assert half_width(values, confidence) == pytest.approx(row["half_width"])


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [np.nan, 2.0]])
def test_half_width_that_is_not_known(values):
    assert np.isnan(half_width(values))


def test_half_width_of_equal_or_scaled_values():
    assert half_width([0.1] * 5) == 0
    assert half_width([1, 1.1, 1.2]) == pytest.approx(half_width([1e200, 1.1e200, 1.2e200]))
    assert half_width([1, 1.1, np.nan, 1.2]) == half_width([1, 1.1, 1.2])


def test_stops_at_the_target_and_not_before_the_least(frame):
    rng = np.random.default_rng(5)
    values = {name: np.exp(rng.normal(0, 0.02, 40)) for name in ("native", "uml")}
    stops = [enough(frame({name: part[:blocks] for name, part in values.items()}),
                    0.01, 5, 40).stop for blocks in (1, 2, 4, 5, 8, 12, 16, 20, 25, 30, 39, 40)]
    assert not any(stops[:3]) and any(stops[3:11]) and stops[-1]
    last = enough(frame(values), 0.0001, 5, 40)
    assert last.stop and "limit" in last.why and last.open == 2 and last.blocks == 40
    early = enough(frame({name: part[:3] for name, part in values.items()}), 0.5, 5, 40)
    assert not early.stop and "at least 5" in early.why


def test_the_difference_between_environments_does_not_matter(frame):
    """The same scatter gives the same decision, however far apart the environments are."""
    rng = np.random.default_rng(7)
    for blocks in (2, 5, 9, 15):
        base, other = np.exp(rng.normal(0, 0.02, (2, blocks)))
        said = {enough(frame({"native": base, "uml": other * factor}), 0.02, 3, 30)
                .stop for factor in (0.01, 0.98, 1.0, 1.02, 100)}
        assert len(said) == 1


def test_one_wide_cell_keeps_the_study_going(frame):
    decision = enough(frame({"native": [1, 1.001, 0.999], "uml": [1, 2, 3]}), 0.02, 2, 9)
    assert not decision.stop and decision.open == 1 and decision.cells == 2
    assert decision.half_width > 1


def test_cells_without_relative_precision_do_not_count(frame):
    decision = enough(frame({"native": [1, 1.001, 0.999], "uml": [0, 0, 0]}), 0.02, 2, 9)
    assert decision.stop and decision.cells == 1


def test_nothing_measured_is_not_enough(frame):
    empty = frame({"native": [1.0]}).iloc[:0]
    assert not enough(empty, 0.02, 2, 9).stop


@pytest.mark.parametrize("limits", [(0.02, 1, 5), (0.02, 6, 5), (0, 2, 5), (float("nan"), 2, 5)])
def test_senseless_limits_are_refused(frame, limits):
    with pytest.raises(AnalysisError, match="no stopping rule"):
        enough(frame({"native": [1.0, 2.0]}), *limits)
