"""OCI bundles: what a carrier offers, and what the runtime is told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import CannotRun, MachineFailed
from nearmetal.machines import oci
from nearmetal.machines.base import Completed, Machine, Order, Shape

# What this script prints on hosts of three kinds, and in a guest.
HYBRID = """uid=0
cpus=0-1
overlay=1
cgroup=v1
controllers= cpu cpuset memory pids
unified=1
"""
DEBIAN_12 = """uid=0
cpus=0-3
overlay=1
cgroup=v2
controllers=cpuset cpu io memory hugetlb pids rdma misc
swap=1
"""
GUEST = "uid=0\ncpus=0\ncgroup=unmounted\ncontrollers=cpuset cpu memory pids\n"
BARE = "uid=0\ncpus=0,2\n"


def order(name="m0", cpus=1, memory_mib=512, lab="20260101-1-aa", port=None) -> Order:
    return Order(lab, name, Shape(cpus, memory_mib), SimpleNamespace(tree=Path("/u")), Path("/w"),
                 port)


def test_number_list_reads_the_kernels_format():
    assert oci.number_list("0,2-4,7\n") == (0, 2, 3, 4, 7)
    assert oci.number_list("") == ()
    with pytest.raises(ValueError):
        oci.number_list("0-x")


@given(st.sets(st.integers(0, 1000), min_size=1))
def test_number_list_reads_any_list(numbers):
    assert set(oci.number_list(",".join(map(str, sorted(numbers))))) == numbers


def test_a_survey_of_each_kind_of_carrier():
    found = oci.read_survey(HYBRID)
    assert (found.cgroup, found.unified, found.overlay, found.swap_limit) == (
        "v1", True, True, False)
    assert found.controllers == {"cpu", "cpuset", "memory", "pids"} and found.cpus == (0, 1)
    found = oci.read_survey(DEBIAN_12)
    assert (found.cgroup, found.unified, found.swap_limit) == ("v2", False, True)
    assert "memory" in found.controllers and len(found.cpus) == 4
    found = oci.read_survey(BARE)
    assert (found.cgroup, found.controllers, found.overlay) == ("none", frozenset(), False)
    assert found.cpus == (0, 2)


def test_a_survey_that_cannot_be_read_is_a_failed_machine():
    with pytest.raises(MachineFailed, match="did not say"):
        oci.read_survey("cpus=0-1\n")


def test_a_carrier_is_asked_once():
    class Asked(Machine):
        asked = 0

        def run(self, argv, **more):
            self.asked += 1
            return Completed(tuple(argv), 0, DEBIAN_12.encode(), b"", 1)

        spawn = put = get = facts = memory_bytes = alive = down = None

    one, other = Asked(), Asked()
    assert oci.survey(one) == oci.survey(one) == oci.survey(other)
    assert (one.asked, other.asked) == (1, 1)
    assert oci.runtime_version(one, ["crun", "--version"]) == "uid=0"
    assert one.asked == 2


def test_without_root_it_cannot_run():
    class User(Machine):
        def run(self, argv, **more):
            return Completed(tuple(argv), 0, b"uid=1000\ncpus=0\n", b"", 1)

        spawn = put = get = facts = memory_bytes = alive = down = None

    with pytest.raises(CannotRun, match="root"):
        oci.survey(User())


def test_limits_where_all_can_be_set():
    limited = oci.limits(oci.read_survey(DEBIAN_12), Shape(2, 512))
    assert limited.resources == {
        "cpu": {"cpus": "0,1", "quota": 200_000, "period": 100_000},
        "memory": {"limit": 512 << 20, "swap": 512 << 20}}
    assert limited.missing == () and limited.memory_mib == 512


def test_swap_is_left_alone_where_it_cannot_be_limited():
    limited = oci.limits(oci.read_survey(HYBRID), Shape(1, 512))
    assert limited.resources["memory"] == {"limit": 512 << 20}


def test_what_cannot_be_limited_is_named():
    carrier = oci.read_survey(BARE)
    limited = oci.limits(carrier, Shape(1, 512))
    assert limited.resources == {} and limited.memory_mib is None
    facts = oci.facts(carrier, limited)
    assert facts["limits"] == "none" and "memory_mib" not in facts
    for what in ("cpuset", "cpu quota", "memory"):
        assert what in facts["limits_missing"]


def test_neighbours_get_different_processors_while_there_are_enough():
    carrier = oci.read_survey(DEBIAN_12)
    got = [oci.limits(carrier, Shape(2, 64), rank).cpus for rank in range(3)]
    assert got == [(0, 1), (2, 3), (0, 1)]


def test_more_processors_than_there_are_cannot_run():
    with pytest.raises(CannotRun, match="5 processors are asked for, its carrier has 4"):
        oci.limits(oci.read_survey(DEBIAN_12), Shape(5, 64))


def test_the_configuration_is_what_a_runtime_reads():
    limited = oci.limits(oci.read_survey(HYBRID), Shape(1, 512))
    made = oci.config(order(), "/run/r", limited, network="")
    assert json.loads(json.dumps(made)) == made
    assert made["root"] == {"path": "/run/r", "readonly": False}
    assert made["process"]["args"] == ["/opt/nearmetal/bin/nm-agent"]
    assert made["process"]["terminal"] is False and "rlimits" not in made["process"]
    assert made["linux"]["cgroupsPath"] == "/nearmetal-20260101-1-aa-m0"
    assert made["linux"]["resources"] == limited.resources
    kinds = [space["type"] for space in made["linux"]["namespaces"]]
    assert kinds == ["pid", "mount", "ipc", "uts", "cgroup", "network"]
    assert "CAP_SYS_ADMIN" not in made["process"]["capabilities"]["bounding"]
    assert {one["destination"] for one in made["mounts"]} >= {"/proc", "/dev/shm", "/tmp", "/run"}


@pytest.mark.parametrize("network, expected", [
    (None, None), ("", {"type": "network"}),
    ("/proc/7/ns/net", {"type": "network", "path": "/proc/7/ns/net"})])
def test_its_network_is_shared_new_or_given(network, expected):
    limited = oci.limits(oci.read_survey(BARE), Shape(1, 64))
    made = oci.config(order(), "/r", limited, network=network)
    found = [one for one in made["linux"]["namespaces"] if one["type"] == "network"]
    assert found == ([expected] if expected else [])


def test_files_in_memory_take_half_the_memory_at_most():
    shm = next(one for one in oci.mounts(512) if one["destination"] == "/dev/shm")
    assert "size=256m" in shm["options"]
    assert any("size=1m" in one["options"] for one in oci.mounts(1))


@given(st.text())
def test_any_name_is_one_part_of_a_path(text):
    safe = oci.safe(text)
    assert safe and "/" not in safe and safe not in (".", "..") and safe.isascii()


def test_names_carry_the_labs_mark():
    assert oci.cgroup_name(order("a b/c")) == "nearmetal-20260101-1-aa-a-b-c"
    assert oci.place(order("a b/c")) == "/run/nearmetal/20260101-1-aa/a-b-c"


def test_cgroup_mounts_suit_crun():
    assert "umount /sys/fs/cgroup/unified" in oci.cgroup_mounts(oci.read_survey(HYBRID))
    assert "mount -t cgroup2" in oci.cgroup_mounts(oci.read_survey(GUEST))
    assert oci.cgroup_mounts(oci.read_survey(DEBIAN_12)) == ""
    assert oci.cgroup_mounts(oci.read_survey(BARE)) == ""


def test_the_guard_pins_and_kills_all():
    limited = oci.limits(oci.read_survey(BARE), Shape(2, 64))
    assert oci.guard(limited) == [
        "taskset", "-c", "0,2", "unshare", "--mount", "--pid", "--fork", "--kill-child",
        "--mount-proc", "--"]
