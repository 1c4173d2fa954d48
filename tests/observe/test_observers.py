"""Observers: figures from the kernel's own files; what is not known is missing, with a reason."""

from __future__ import annotations

import errno
import gc
import json
import os
import struct

import pytest

from nearmetal.observe.base import Missing, Observer, Observers, observers, table
from nearmetal.observe.cpu import Cpu
from nearmetal.observe.events import Events, online, scaled
from nearmetal.observe.faults import Faults
from nearmetal.observe.memory import Memory


@pytest.fixture
def file(tmp_path):
    return tmp_path / "proc"


def between(observer, file, before, after):
    file.write_text(before)
    observer.start()
    file.write_text(after)
    return observer.stop()


def test_processor_time(file):
    seen = between(Cpu(file), file,
                   "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1\nctxt 1000\nprocesses 50\n",
                   "cpu  150 0 120 820 0 0 0 10 0 0\ncpu0 1 1\nctxt 1300\nprocesses 52\n")
    assert seen.pop("load_before") >= 0
    assert seen == {"steal_share": 0.1, "busy_share": 0.8, "context_switches": 300.0, "forks": 2.0}


def test_guest_time_is_not_counted_twice(file):
    seen = between(Cpu(file), file, "cpu  0 0 0 0 0 0 0 0 0 0\n", "cpu  50 0 0 50 0 0 0 0 50 0\n")
    assert seen["busy_share"] == 0.5


def test_a_run_shorter_than_a_tick_has_no_shares(file):
    observer = Cpu(file)
    text = "cpu  1 0 0 0 0 0 0 0 0 0\nctxt 5\nprocesses 1\n"
    seen = between(observer, file, text, text)
    assert "steal_share" not in seen and "busy_share" not in seen
    assert "shorter than a tick" in observer.missing["steal_share"]


def test_an_old_kernel_has_no_stolen_time(file):
    observer = Cpu(file)
    seen = between(observer, file, "cpu  0 0 0 0\n", "cpu  10 0 0 10\n")
    assert seen["busy_share"] == 0.5 and "steal_share" not in seen
    assert set(observer.missing) == {"steal_share", "context_switches", "forks"}


def test_faults_and_swap(file):
    observer = Faults(file)
    seen = between(observer, file, "pgfault 100\npgmajfault 5\npswpin 0\n",
                   "pgfault 350\npgmajfault 6\npswpin 8\n")
    assert seen == {"page_faults": 250.0, "major_faults": 1.0, "swapped_in": 8.0}
    assert observer.missing == {"swapped_out": "the kernel does not count pswpout"}


def test_memory(file):
    seen = between(Memory(file), file, "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n",
                   "MemAvailable:  1024 kB\nSwapTotal: 4096 kB\nSwapFree: 1024 kB\n")
    assert seen == {"memory_available_mib": 2.0, "memory_taken_mib": 1.0, "swap_used_mib": 3.0}


def test_a_table_skips_what_is_no_number(file):
    file.write_text("Name: x\nA: 3 kB\n\nB 4\nlonely\n")
    assert table(file) == {"A": 3, "B": 4}


# --- hardware events ---

def counter(*readings):
    """A file that gives readings of (count, enabled, running), one after the other."""
    reader, writer = os.pipe()
    for reading in readings:
        os.write(writer, struct.pack("QQQ", *reading))
    os.close(writer)
    return reader


def processors(monkeypatch, tmp_path, text):
    path = tmp_path / "online"
    path.write_text(text)
    monkeypatch.setattr("nearmetal.observe.events.ONLINE", path)


def test_counts_are_summed_over_processors_and_scaled(monkeypatch, tmp_path):
    processors(monkeypatch, tmp_path, "0-1\n")
    asked = []

    def opener(config, cpu):
        asked.append((config, cpu))
        # Processor 1 counted half of the time: its 300 stand for 600.
        return counter((100, 10, 10), (150, 20, 20)) if cpu == 0 \
            else counter((0, 10, 10), (300, 20, 15))

    observer = Events(opener)
    observer.start()
    seen = observer.stop()
    assert len(asked) == 12 and {cpu for _, cpu in asked} == {0, 1}
    assert seen == dict.fromkeys(Events.figures, 50.0 + 600.0)


def test_a_counter_that_never_ran_is_missing(monkeypatch, tmp_path):
    processors(monkeypatch, tmp_path, "0")
    observer = Events(lambda config, cpu: counter((0, 10, 0), (0, 20, 0)))
    observer.start()
    assert observer.stop() == {}
    assert set(observer.missing) == set(Events.figures)
    assert scaled(5, 10, 0) is None and scaled(5, 10, 5) == 10


def test_a_counter_that_one_event_lacks(monkeypatch, tmp_path):
    processors(monkeypatch, tmp_path, "0")

    def opener(config, cpu):
        if config == 3:
            raise OSError(errno.ENOENT, "no such counter")
        return counter((1, 1, 1), (2, 2, 2))

    observer = Events(opener)
    observer.start()
    assert set(observer.stop()) == set(Events.figures) - {"cache_misses"}
    assert observer.missing == {"cache_misses": "no such counter"}


def test_no_pmu_is_a_reason_for_every_figure_and_leaves_no_file_open(monkeypatch, tmp_path):
    processors(monkeypatch, tmp_path, "0-3")

    def opener(config, cpu):
        raise OSError(errno.ENOENT, "this machine offers no performance counters (PMU)")

    class Absent(Events):
        def __init__(self):
            super().__init__(opener)

    together = Observers({"events": Absent})
    together.start()
    missing = together.stop()["missing"]
    assert set(missing) == set(Events.figures)
    assert set(missing.values()) == {"this machine offers no performance counters (PMU)"}


def test_lists_of_processors():
    assert online("0-1\n") == [0, 1]
    assert online("0,2-4,7") == [0, 2, 3, 4, 7]


# --- all together ---

def test_this_machine_is_observed():
    together = Observers()
    together.start()
    sum(range(200000))
    seen = together.stop()
    json.dumps(seen, allow_nan=False)
    missing = seen.pop("missing", {})
    assert all(isinstance(value, float | int) for value in seen.values())
    named = {name for cls in observers().values() for name in cls.figures}
    assert set(seen) | set(missing) == named
    assert not set(seen) & set(missing)
    assert all(missing.values())
    assert seen["memory_available_mib"] > 0


def test_figures_of_different_observers_do_not_clash():
    names = [name for cls in observers().values() for name in cls.figures]
    assert len(names) == len(set(names))
    assert {"cpu", "events", "faults", "memory"} <= set(observers())


def test_files_are_given_back():
    gc.collect()  # what earlier tests dropped must not be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        together = Observers()
        together.start()
        together.stop()
    assert len(os.listdir("/proc/self/fd")) == before


class Broken(Observer):
    name = "broken"
    figures = {"depth": ("m", "how deep")}

    def start(self):
        raise Missing("no sounding line")

    def stop(self):
        raise AssertionError("must not be asked")


class Late(Broken):
    name = "late"
    figures = {"height": ("m", "how high")}

    def start(self):
        pass

    def stop(self):
        raise OSError(errno.EIO, "the file went away")


def test_one_that_fails_does_not_stop_the_run():
    together = Observers({"broken": Broken, "late": Late, "memory": Memory})
    together.start()
    seen = together.stop()
    assert seen["memory_available_mib"] > 0
    assert seen["missing"]["depth"] == "no sounding line"
    assert "the file went away" in seen["missing"]["height"]
