"""The page is complete in itself, escapes what it shows, and says everything it must."""

from __future__ import annotations

import base64
import csv
import dataclasses
import gzip
import io
import re
from html import unescape

import pytest

from nearmetal.report import html


@pytest.fixture(scope="module")
def page(findings):
    return html.render(findings)


def test_it_is_small_and_asks_for_nothing(page):
    assert len(page.encode()) < 6_000_000
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r'(src|href)="(?!#|data:|figures/)', markup)
    assert "url(" not in markup and "@import" not in markup
    assert "default-src 'none'; script-src 'sha256-" in unescape(page)


def test_verdicts_come_first_and_in_words(page):
    order = [page.index(f'id="{name}"') for name in
             ("verdicts", "w-presta-com", "machine", "deviations", "method", "raw")]
    assert order == sorted(order)
    assert re.search(r"costs [0-9.]+ times as much \([0-9.]+ to [0-9.]+\)", page)
    for word in ("better", "worse", "equivalent", "inconclusive"):
        assert f"</span> {word}</span>" in page


def test_what_it_shows_is_escaped(page):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#39;console&#39;)" in page
    assert "<b>of nothing</b>" not in page


def test_gaps_and_deviations_are_told(page):
    assert "no data: No answer in 60 s." in page
    assert "it emulates every one." in page
    assert "Run on a machine with hardware virtualization" in page
    assert "its clock disagrees" in page
    assert "not a figure of hardware" in page
    assert "18.4 %" in page and "seed 7" in page


def test_the_raw_numbers_are_all_inside(findings, page):
    packed = re.search(r'data:application/gzip;base64,([^"]+)"', page).group(1)
    text = gzip.decompress(base64.b64decode(packed)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(findings.frame)
    assert float(rows[0]["value"]) == findings.frame["value"].iloc[0]


def test_names_that_are_hostile_do_no_harm(findings):
    evil = '"><script>x()</script>'
    frame = findings.frame.assign(label=findings.frame.label.replace("container", evil))
    summary = findings.summary.assign(label=findings.summary.label.replace("container", evil))
    page = html.render(dataclasses.replace(findings, title=evil, frame=frame, summary=summary))
    assert "<script>x()" not in page


def test_figures_beside_it_are_linked_only_if_they_exist(findings, tmp_path):
    first = html.write(findings, tmp_path).read_text()
    assert "figures/" not in first
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "dgemm-rate.svg").write_text("<svg/>")
    assert 'href="figures/dgemm-rate.svg"' in html.write(findings, tmp_path).read_text()


def test_a_study_without_a_single_number_still_has_a_report(findings):
    empty = dataclasses.replace(
        findings, frame=findings.frame.iloc[:0], summary=findings.summary.iloc[:0],
        comparison=findings.comparison.iloc[:0])
    page = html.render(empty)
    assert "No environment could be compared" in page
    assert "No run of this workload gave a number" in page
