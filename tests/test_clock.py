from nearmetal.clock import Reading, compare

S = 1_000_000_000


def test_a_clock_that_agrees():
    agreement = compare(Reading(0, 500 * S, 1000), Reading(S, 501 * S, S + 1000))
    assert not agreement.off
    assert abs(agreement.ratio - 1) < 1e-5


def test_a_clock_two_percent_fast_is_off():
    assert compare(Reading(0, 0, 1000), Reading(S, int(1.02 * S), S + 1000)).off


def test_half_a_percent_is_within_the_limit():
    assert not compare(Reading(0, 0, 1000), Reading(S, int(1.005 * S), S + 1000)).off


def test_round_trips_get_the_benefit_of_the_doubt():
    slow = Reading(0, 0, S // 10), Reading(S, int(1.05 * S), S + S // 10)
    assert not compare(*slow).off


def test_nothing_to_compare():
    assert compare(None, Reading(0, 0, 0)) is None
    assert compare(Reading(0, 0, 10), Reading(5, 1, 20)) is None
