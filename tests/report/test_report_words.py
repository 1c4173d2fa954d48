"""Rounding and wording: what is printed must say what was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.report import words

NAN = float("nan")


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (None, "–"), (NAN, "–"), (math.inf, "–"), (1, "1.000"), (0.03127, "0.03127"),
    (12345.6, "12\u202f346"), (-2.5, "−2.500"), (1.234e-7, "1.234 × 10^−7"),
])
def test_number(value, text):
    assert words.number(value) == text


def test_interval_keeps_two_digits_of_the_half_width():
    assert words.with_interval(12.34567, 12.3, 12.4) == ("12.346", "12.300 to 12.400")
    assert words.with_interval(5120.4, 4900.0, 5300.0) == ("5\u202f120", "4\u202f900 to 5\u202f300")
    assert words.with_interval(3.0, NAN, NAN) == ("3.000", "–")
    assert words.with_interval(NAN, NAN, NAN) == ("–", "–")


@pytest.mark.parametrize(("args", "text"), [
    ((31.2, 28.1, 34.4, "worse"), "costs 31 % more (28 to 34)"),
    ((-12.2, -14.0, -10.0, "better"), "costs 12 % less (10 to 14)"),
    ((1140.0, 1090.0, 1190.0, "worse"), "costs 12.4 times as much (11.9 to 12.9)"),
    ((0.2, -0.4, 0.9, "equivalent"), "costs the same within 2 % (0.4 % less to 0.9 % more)"),
    ((0.8, 0.3, 1.2, "equivalent"), "costs the same within 2 % (0.3 to 1.2 % more)"),
    ((-0.8, -1.2, -0.3, "equivalent"), "costs the same within 2 % (0.3 to 1.2 % less)"),
    ((1.0, -3.0, 5.0, "inconclusive"), "may cost 3.0 % less to 5.0 % more"),
    ((150.0, 90.0, 260.0, "inconclusive"), "may cost 90 % more to 3.6 times as much"),
    ((NAN, NAN, NAN, "inconclusive"), "cannot be told"),
    ((5.0, NAN, NAN, "inconclusive"), "costs 5.0 % more, give or take an unknown amount"),
])
def test_cost(args, text):
    assert words.cost(*args, 2.0).replace(words.THIN, " ") == text


@pytest.mark.parametrize(("key", "value", "text"), [
    ("bytes", 8, "8 B"), ("bytes", 8388608, "8 MiB"), ("bytes", 1536, "1.5 KiB"),
    ("processes", 4, "4 processes"), ("processes", 1, "1 process"), ("operation", "fork", "fork"),
    ("pinned", True, "pinned: true"),
])
def test_quantity(key, value, text):
    assert words.quantity(key, value) == text


def test_point_and_params_take_rubbish():
    assert words.point("{}") == ""
    assert words.point('{"bytes":8,"way":"both"}', without="bytes") == "both"
    assert "not json" in words.point("not json")
    assert words.params('{"n":3000}') == "n = 3000"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e6), st.floats(0, 1e6),
       st.sampled_from(["better", "worse", "equivalent", "inconclusive"]))
def test_any_cost_has_words(cost, below, above, verdict):
    text = words.cost(cost, cost - below, cost + above, verdict, 2.0)
    assert text and "nan" not in text.lower() and "inf" not in text.lower()


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_prints(value):
    assert words.number(value)
    assert words.percent(value)
    assert words.to_ascii(words.cost_short(value)).isascii()
    assert words.duration(value)
