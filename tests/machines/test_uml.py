"""``uml``: the kernel's command line, the paced serial line, and real guests."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal import cleanup
from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines import frames
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.frames import FrameParser, Type
from nearmetal.machines.host import Host
from nearmetal.machines.network import LabNetwork
from nearmetal.machines.uml import command, kernel_command
from nearmetal.machines.uml_line import ON_THE_WAY, PIECE, PacedLine, paced

real = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("linux.uml") is None,
    reason="needs root and Debian's user-mode-linux")


def test_kernel_command_puts_the_agents_options_last():
    words = kernel_command(Path("/r"), Path("/f"), 256, None)
    assert words[0] == "linux.uml"
    assert words[words.index("--") + 1:] == ["--init", "--tty", "/dev/ttyS0"]
    assert {"mem=256M", "hostfs=/r", "ro", "ssl0=fd:0,fd:1", "con0=null,fd:2"} <= set(words)
    assert any(word.startswith("console=") for word in words)
    assert not any(word.startswith("vec0") for word in words)


def test_kernel_command_with_a_network():
    words = kernel_command(Path("/r"), Path("/f"), 256, "t1", "02:00:00:00:00:02")
    assert "vec0:transport=tap,ifname=t1,depth=128,gro=1,mac=02:00:00:00:00:02" in words


def test_the_command_enters_the_ports_namespace_first():
    port = SimpleNamespace(tap=lambda: (["nsenter", "-t", "7", "-n", "--"], "t0"), mac="m", rank=0,
                           address="10.77.0.1", prefix=24)
    order = Order("lab", "m0", Shape(memory_mib=100), None, Path("/w"), port)
    words = command(order, Path("/run/nearmetal/lab/m0"), "/tree", 100)
    assert words[:5] == ["nsenter", "-t", "7", "-n", "--"]
    assert "--kill-child" in words and "164" in words


def test_it_has_one_processor_and_stands_on_the_host():
    layer = make_layer("uml", {"memory": "256"})
    assert layer.max_cpus == 1 and layer.on_host_only and layer.substrate() is None
    with pytest.raises(PathError, match="memory"):
        make_layer("uml", {"memory": "8"})


def test_a_missing_kernel_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    with pytest.raises(CannotRun) as caught:
        make_layer("uml", {}).check()
    assert "user-mode-linux" in caught.value.remedy


@given(st.lists(st.tuples(st.sampled_from([Type.STDIN, Type.CREDIT, Type.SPAWN]),
                          st.integers(1, 9), st.binary(max_size=3 * PIECE)), max_size=8),
       st.integers(1, 5000))
def test_pacing_changes_nothing_but_the_cuts(wanted, step):
    data = b"".join(frames.encode(*one) for one in wanted)
    parser = FrameParser(synchronised=True)
    pieces = [piece for at in range(0, len(data), step)
              for piece in paced(data[at:at + step], parser)]
    got: dict[tuple, bytes] = {}
    order = []
    for frame in FrameParser(synchronised=True).feed(b"".join(pieces)):
        if frame.type is Type.STDIN:
            assert len(frame.payload) <= PIECE
            got[frame.channel] = got.get(frame.channel, b"") + frame.payload
        else:
            order.append((frame.type, frame.channel, frame.payload))
    assert order == [one for one in wanted if one[0] is not Type.STDIN]
    for channel, payload in got.items():
        assert payload == b"".join(p for t, c, p in wanted if t is Type.STDIN and c == channel)


class _Guest:
    """A serial line that goes deaf when more than 3968 bytes lie unread, as UML's does."""

    def __init__(self):
        self.lock, self.unread, self.taken, self.deaf = threading.Lock(), b"", b"", False
        self.out = os.pipe()
        self.stdin = SimpleNamespace(write=self.write, flush=lambda: None)
        self.stdout = io.BufferedReader(io.FileIO(self.out[0], "rb"))
        self.stderr = None
        self.ended = threading.Event()
        os.write(self.out[1], b"noise" + frames.MAGIC)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def write(self, data):
        with self.lock:
            self.unread += data
            self.deaf = self.deaf or len(self.unread) > 3968
        return len(data)

    def read(self):
        parser = FrameParser(synchronised=True)
        while not self.ended.wait(0.002):
            with self.lock:
                data, self.unread = self.unread, b""
            for frame in parser.feed(data):
                if frame.type is Type.CLOCK:
                    token = int.from_bytes(frame.payload, "little")
                    answer = frames._CLOCK.pack(token, 1, 2)
                    os.write(self.out[1], frames.encode(Type.CLOCK, 0, answer))
                else:
                    self.taken += frame.payload
        os.close(self.out[1])


@pytest.fixture
def guest():
    made = _Guest()
    yield made
    made.ended.set()
    made.thread.join(5)


def test_a_paced_line_never_overruns_the_guest(guest):
    line = PacedLine(guest)
    reader = threading.Thread(target=lambda: all(iter(lambda: line.stdout.read1(4096), b"")),
                              daemon=True)
    reader.start()
    payload = os.urandom(60_000)
    for at in range(0, len(payload), 16384):
        line.stdin.write(frames.encode(Type.STDIN, 3, payload[at:at + 16384]))
    deadline = time.monotonic() + 10
    while len(guest.taken) < len(payload) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert guest.taken == payload and not guest.deaf


def test_a_line_that_ends_wakes_its_writer(guest):
    line = PacedLine(guest)
    guest.ended.set()
    threading.Thread(target=lambda: all(iter(lambda: line.stdout.read1(4096), b"")),
                     daemon=True).start()
    with pytest.raises(OSError, match="serial line is dead"):
        line.stdin.write(frames.encode(Type.STDIN, 3, bytes(4 * ON_THE_WAY)))


def test_a_request_that_no_line_can_hold_is_refused(guest):
    with pytest.raises(OSError, match="serial line of UML"):
        PacedLine(guest).stdin.write(frames.encode(Type.SPAWN, 1, bytes(ON_THE_WAY)))


@pytest.fixture
def boot(lab, small_userland, tmp_path):
    """A function that boots a guest; all are ended after the test."""
    made = []

    def one(name="m", port=None, **params):
        workdir = tmp_path / name
        workdir.mkdir(exist_ok=True)
        order = Order(lab, name, Shape(memory_mib=128), small_userland, workdir, port, 60)
        machine = make_layer("uml", params).up(Host(lab, small_userland.tree), order)
        made.append(machine)
        return machine

    yield one
    for machine in made:
        machine.down()


def sh(machine, script: str) -> str:
    done = machine.run(["sh", "-c", script], timeout=30)
    return done.stdout.decode() + done.stderr.decode()


@real
@pytest.mark.slow
def test_a_guest_runs_commands_on_a_root_it_cannot_change(boot, lab, small_userland):
    machine = boot()
    assert sh(machine, "uname -m; echo ok").split() == ["x86_64", "ok"]
    assert "hostfs" in sh(machine, "mount")
    assert "ead-only" in sh(machine, "mount -o remount,rw /; touch /made 2>&1")
    assert not (small_userland.tree / "made").exists()
    assert sh(machine, "for d in /tmp /run /dev/shm; do touch $d/x && echo w; done").split() == [
        "w", "w", "w"]
    facts = machine.facts()
    assert facts["cpus"] == 1 and facts["clocksource"] == "timer"
    assert 90 <= facts["memory_mib"] <= 128
    assert 5 << 20 < machine.memory_bytes() < 300 << 20
    assert Path("/run/nearmetal", lab, "m").exists()
    machine.down()
    assert not Path("/run/nearmetal", lab).exists()
    assert b"Linux version 6" in machine.console.read_bytes()


@real
@pytest.mark.slow
def test_much_input_and_output_arrive_whole(boot):
    machine = boot()
    data = os.urandom(300_000)
    done = machine.run(["cat"], timeout=60, stdin=data)
    assert done.status == 0 and done.stdout == data
    assert sh(machine, "echo still here") == "still here\n"


@real
@pytest.mark.slow
def test_its_clock_agrees_with_the_hosts(boot):
    machine = boot()
    first = min((machine.clock() for _ in range(10)), key=lambda clock: clock[2])
    time.sleep(3)
    second = min((machine.clock() for _ in range(10)), key=lambda clock: clock[2])
    host, guest = second[0] - first[0], second[1] - first[1]
    assert abs(guest / host - 1) < 0.01 + (first[2] + second[2]) / host


@real
@pytest.mark.slow
def test_a_guest_that_panics_is_a_failed_machine_with_its_console(boot):
    machine = boot()
    with pytest.raises(MachineFailed) as caught:
        machine.run(["sh", "-c", "echo c > /proc/sysrq-trigger"], timeout=30)
    assert not machine.alive()
    assert "went away" in caught.value.message
    assert b"sysrq triggered crash" in machine.console.read_bytes()


@real
@pytest.mark.slow
def test_two_guests_on_a_lab_network(boot, lab):
    network = LabNetwork(lab, 2)
    try:
        machines = [boot(f"m{rank}", network.port(rank)) for rank in range(2)]
        assert [machine.address for machine in machines] == ["10.77.0.1", "10.77.0.2"]
        assert " 0% packet loss" in sh(machines[0], "ping -c 3 -W 5 10.77.0.2")
        assert network.port(1).mac in sh(machines[1], "ip link show eth0")
        assert "lab network" in machines[0].facts()["network"]
        for machine in machines:
            machine.down()
    finally:
        network.down()


@real
@pytest.mark.slow
def test_a_kernel_that_does_not_start_is_told_with_its_console(boot, small_userland, monkeypatch):
    monkeypatch.setattr("nearmetal.machines.uml.KERNEL", "/bin/false")
    with pytest.raises(MachineFailed, match="ended while it booted"):
        boot()


@real
@pytest.mark.slow
def test_a_command_longer_than_the_line_holds(boot):
    machine = boot()
    words = [f"word {number} 'quoted'" for number in range(600)]
    done = machine.run(["printf", "%s\\n", *words], timeout=30, env={"A": "b c" * 2000})
    assert done.status == 0 and done.argv[0] == "printf"
    assert done.stdout.decode().splitlines() == words
    done = machine.run(["sh", "-c", 'printf %s "$A"'], timeout=30, env={"A": "b c" * 2000})
    assert done.stdout == b"b c" * 2000
    assert machine.run(["no-such-program", "x" * 5000], timeout=30).status == 127


LAB = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from nearmetal import cleanup
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.host import Host
mark, tree = cleanup.new_mark(), Path(sys.argv[1])
order = Order(mark, "m", Shape(memory_mib=128), SimpleNamespace(tree=tree), Path(sys.argv[2]), None)
machine = make_layer("uml", {}).up(Host(mark, tree), order)
machine.spawn(["sh", "-c", "while :; do :; done"])
print(mark, flush=True)
time.sleep(600)
"""


def kernels_of(mark: str) -> list[str]:
    """UML processes of a lab, its guest's programs among them, by the words they were started
    with (a guest's program has an environment of its own)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


@real
@pytest.mark.slow
def test_nothing_of_a_guest_survives_a_killed_lab(small_userland, tmp_path):
    lab = subprocess.Popen([sys.executable, "-c", LAB, small_userland.tree, tmp_path],
                           stdout=subprocess.PIPE)
    mark = lab.stdout.readline().decode().strip()
    lab.stdout.close()
    try:
        assert len(kernels_of(mark)) >= 3
    finally:
        lab.kill()
        lab.wait(20)
    deadline = time.monotonic() + 5
    while kernels_of(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kernels_of(mark) == []
    left = cleanup.clean(mark)
    assert [one.kind for one in left] == ["folder"]
    assert cleanup.leftovers(mark) == []
