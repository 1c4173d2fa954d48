from pathlib import Path

import pytest

from nearmetal import study
from nearmetal.study import StudyError


def test_reads_all(world, study_text):
    made = study.parse("studies/test.toml", study_text)
    assert made.name == "test"
    assert made.baseline.path == "fake"
    assert [one.path for one in made.environments] == ["fake(tag=slow)"]
    assert made.machine.memory == 64
    assert [(item.name, item.params, item.min_blocks, item.max_blocks) for item in made.items] == [
        ("spin", "{}", 3, 3)]


@pytest.mark.parametrize("old, new, line, key, remedy", [
    ('title = "A test"', "title = ", 2, "not TOML", "Mend the line"),
    ('baseline = "fake"', 'base = "fake"', 3, "base", "Did you mean 'baseline'"),
    ('baseline = "fake"', 'baseline = "fak"', 3, "baseline", "Did you mean 'fake'"),
    ('"fake(tag=slow)"', '"fake(tag"', 4, "environments", "Write it as in"),
    ("cpus = 1", "cpus = 0", 7, "machine.cpus", "Mend"),
    ('memory = "64M"', 'memory = "lots"', 8, "machine.memory", "512M"),
    ("max_blocks = 3", "max_blocks = 2", 12, "statistics.max_blocks", "Raise it"),
    ("seed = 7", 'protocol = "best"', 13, "statistics.protocol", "Known protocols"),
    ('name = "spin"', 'name = "spinn"', 16, r"workload\[1\].name", "Did you mean 'spin'"),
    ('name = "spin"', 'name = "spin"\nparams = { m = 3 }', 17, r"params", "It takes: n"),
    ('name = "spin"', 'name = "spin"\nparams = { n = 0 }', 17, r"params", "greater than"),
    ('name = "spin"', 'name = "spin"\ntimeout = "1y"', 17, "timeout", "90s"),
    ('name = "spin"', 'name = "spin"\nenvironments = ["fake(tag=x)"]', 17, "environments",
     "at the top"),
])
def test_errors_name_file_line_key_and_remedy(world, study_text, old, new, line, key, remedy):
    assert old in study_text
    with pytest.raises(StudyError) as caught:
        study.parse("s.toml", study_text.replace(old, new, 1))
    assert caught.match(rf"s\.toml, line {line}\b")
    assert caught.match(key)
    assert remedy in str(caught.value)


def test_varied_parameters_make_a_point_each(world, study_text):
    made = study.parse("s.toml", study_text + "vary = { n = [1, 2] }\n")
    assert [item.params for item in made.items] == ['{"n": 1}', '{"n": 2}']


def test_the_same_workload_twice_is_refused(world, study_text):
    with pytest.raises(StudyError, match="listed twice"):
        study.parse("s.toml", study_text + '[[workload]]\nname = "spin"\n')


def test_missing_file():
    with pytest.raises(StudyError, match="no study file"):
        study.read(Path("nowhere.toml"))


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("studies/*.toml")),
                         ids=lambda path: path.name)
def test_every_study_we_ship_is_valid(path):
    assert study.read(path).items
