"""Findings of a made-up study, for the tests of the report."""

from __future__ import annotations

import pytest
import synthetic


@pytest.fixture(scope="session")
def findings():
    """A whole study: gaps, failed runs, flags, a refused environment, two substrates."""
    return synthetic.findings()
