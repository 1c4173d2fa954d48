"""Frames of measurements, made from plain lists."""

import gc

import pandas as pd
import pytest

ROLES = {"native": "baseline", "native (A/A)": "aa"}


def build(values: dict, *, better="lower", kind="time", metric="latency", point="{}", **columns):
    """``values``: label -> list of values, one a block. Other columns as in nearmetal.load()."""
    rows, run = [], 0
    for label, series in values.items():
        for block, value in enumerate(series):
            run += 1
            rows.append({
                "run": run, "study": "s", "block": block, "position": 0, "environment": label,
                "role": ROLES.get(label, "subject"), "label": label, "matched": "native",
                "substrate": "host CPU", "workload": "work", "params": "{}", "metric": metric,
                "unit": "us", "better": better, "kind": kind, "point": point, "value": value,
                "flags": "", **columns})
    return pd.DataFrame(rows)


@pytest.fixture(scope="session")
def frame():
    """The function that builds a frame."""
    return build


@pytest.fixture(scope="module", autouse=True)
def _fast_collection():
    """statsmodels' multipletests collects garbage at each call: give it little to look at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
