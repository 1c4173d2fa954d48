"""The worked example in docs/statistics.md gives the numbers that it shows."""

import doctest
import re
from pathlib import Path

import pandas as pd

DOCUMENT = Path(__file__).parents[2] / "docs" / "statistics.md"


def examples(text: str) -> str:
    """The fenced examples of a document, one after the other."""
    return "\n\n".join(re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_the_worked_example():
    text = examples(DOCUMENT.read_text())
    test = doctest.DocTestParser().get_doctest(text, {}, DOCUMENT.name, str(DOCUMENT), 0)
    assert len(test.examples) > 20
    assert sum(bool(example.want) for example in test.examples) >= 8
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    with pd.option_context("display.width", 100, "display.max_columns", 20):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
