import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import PathError
from nearmetal.machines.base import Order, Shape
from nearmetal.machines.path import Environment, parse

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=1, max_size=8)
values = st.text(st.characters(codec="ascii", exclude_characters='"\n\r\x00',
                               exclude_categories=("Cc",)), min_size=1, max_size=10)


def test_reads_a_stack():
    assert parse("qemu(io=virtio, cpus=2) / container") == (
        ("qemu", (("io", "virtio"), ("cpus", "2"))), ("container", ()))


def test_quoted_values_may_hold_anything():
    assert parse('ssh(host="a b/(c)", port=22)') == (
        ("ssh", (("host", "a b/(c)"), ("port", "22"))),)


@given(st.lists(st.tuples(words, st.dictionaries(words, values, max_size=3)),
                min_size=1, max_size=4))
def test_what_is_written_is_read(steps):
    text = "/".join(
        name + ("(" + ",".join(f'{k}="{v}"' for k, v in params.items()) + ")" if params else "")
        for name, params in steps)
    assert parse(text) == tuple((name, tuple(params.items())) for name, params in steps)


@given(st.text(max_size=40))
def test_anything_is_read_or_refused_clearly(text):
    try:
        assert parse(text)
    except PathError as error:
        assert error.message and error.remedy


@pytest.mark.parametrize("text, column", [("a(", "ends"), ("a(b)", "column 4"), ("a/", "ends"),
                                          ("a)b", "column 2"), ("a(b=1 c=2)", "column 7")])
def test_errors_say_where(text, column):
    with pytest.raises(PathError, match=column):
        parse(text)


def test_unknown_layer_suggests(world):
    with pytest.raises(PathError, match="Did you mean 'fake'"):
        Environment.parse("fakee")


def test_unknown_parameter_lists_those_there_are(world):
    with pytest.raises(PathError, match="no parameter 'colour'.*tag, size"):
        Environment.parse("fake(colour=red)")


def test_bad_value_is_named(world):
    with pytest.raises(PathError, match="'size'.*integer"):
        Environment.parse("fake(size=big)")


def test_host_only_layers_stand_first(world):
    assert Environment.parse("fake1/fake").most_cpus(4) == 1
    with pytest.raises(PathError, match="host alone"):
        Environment.parse("fake/fake1")


def test_layers_boot_in_order_and_end_in_reverse(world, tmp_path):
    environment = Environment.parse("fake(tag=a)/fake(tag=b)")
    assert environment.path == "fake(tag=a)/fake(tag=b)"
    machine = environment.up(None, Order("lab", "m1", Shape(), None, tmp_path))
    machine.down()
    assert world.log == [("up", "m1", "a"), ("up", "m1.1", "b"), ("down", "m1.1"), ("down", "m1")]
