import io

import pytest

from nearmetal import plan, progress, study


@pytest.fixture
def planned(world, study_text):
    text = study_text.replace("max_blocks = 3", "max_blocks = 5")
    return plan.make(study.parse("s.toml", text), 7)


def test_clock():
    assert [progress.clock(s) for s in (0, 59.6, 61, 3600, -3)] == [
        "0:00", "1:00", "1:01", "1:00:00", "0:00"]


def test_time_left_follows_what_was_measured(planned):
    estimator = progress.Estimator(planned)
    for step in planned.block(0):
        estimator.finished(step, 2.0)
    assert estimator.left() == pytest.approx(3 * 4 * 2.0)
    estimator.drop("fake(tag=slow)")
    assert estimator.left() == pytest.approx(2 * 4 * 2.0)
    estimator.enough("spin", "{}")
    assert estimator.left() == 0


def test_the_least_number_of_blocks_counts_beyond_the_time_limit(planned):
    estimator = progress.Estimator(planned, limit=0.0)
    for step in planned.block(0):
        estimator.finished(step, 2.0)
    assert estimator.left() == pytest.approx(3 * 2 * 2.0)


def test_plain_lines_say_what_failed(planned):
    out = io.StringIO()
    with progress.Plain(out) as display:
        display.watch(progress.Estimator(planned))
        step = planned.block(0)[0]
        display.begin(step)
        display.end(step, "failed", "wrong answer", 1.0)
        display.block(0, 3)
    assert "wrong answer" in out.getvalue() and "block 1 done, 3 runs kept" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_the_display_that_fits(planned):
    from rich.console import Console

    assert isinstance(progress.make(Console(file=io.StringIO())), progress.Plain)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress.make(console) as display:
        display.watch(progress.Estimator(planned))
        display.begin(planned.block(0)[0])
        display.say("native: up")
    assert "left" in console.file.getvalue()
