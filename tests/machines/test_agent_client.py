"""The agent and the lab's end of its stream, on this host."""

from __future__ import annotations

import os
import pty
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearmetal.errors import MachineFailed
from nearmetal.machines import frames
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.frames import FrameParser, Type


def gone(pattern: str, within: float = 5.0) -> bool:
    """Whether no process has ``pattern`` among its arguments, soon."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found = False
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                found = found or pattern.encode() in words
        if not found:
            return True
        time.sleep(0.02)
    return False


def unique_sleep() -> str:
    return f"{random.randrange(10_000, 99_999)}.{random.randrange(10_000, 99_999)}"


# --- commands

def test_status_output_and_times(machine):
    done = machine.run(["sh", "-c", "echo out; echo err >&2; sleep 0.2; exit 7"], timeout=10)
    assert (done.status, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert 0.2e9 <= done.machine_ns <= done.host_ns < 5e9
    assert 100 < done.max_rss_kib < 100_000
    assert not done.timed_out


def test_machine_time_agrees_with_timing_from_outside(machine):
    done = machine.run(["sleep", "1"], timeout=10)
    assert done.machine_ns == pytest.approx(1e9, rel=0.02)


def test_environment_and_standard_input(machine):
    done = machine.run(["sh", "-c", 'echo "$WORD"; cat'], timeout=10, env={"WORD": "größer"},
                       stdin=b"in\0put")
    assert done.stdout == "größer\n".encode() + b"in\0put"


def test_working_folder(machine, tmp_path):
    process = machine.spawn(["pwd"], cwd=str(tmp_path))
    assert process.stdout.read() == f"{tmp_path}\n".encode()
    assert process.wait(5) == 0


def test_death_by_signal(machine):
    assert machine.run(["sh", "-c", "kill -SEGV $$"], timeout=10).status == 139


def test_no_such_program(machine):
    done = machine.run(["no-such-program"], timeout=10)
    assert done.status == 127 and b"No such file" in done.stderr and done.machine_ns is None
    assert machine.run(["true"], timeout=10).status == 0


def test_no_such_working_folder(machine):
    assert machine.spawn(["true"], cwd="/no/such/folder").wait(5) == 127


def test_time_limit_kills_the_whole_tree(machine):
    word = unique_sleep()
    script = f"(setsid sleep {word} &) ; sleep {word} & sleep {word}"
    began = time.monotonic()
    done = machine.run(["sh", "-c", script], timeout=0.5)
    assert done.timed_out and done.status is None
    assert time.monotonic() - began < 5
    assert gone(word)


def test_time_limit_with_input_that_nobody_takes(machine):
    done = machine.run(["sleep", "60"], timeout=0.5, stdin=b"x" * 1_000_000)
    assert done.timed_out


def test_input_that_nobody_takes_does_not_matter_when_the_command_ends(machine):
    assert machine.run(["true"], timeout=20, stdin=b"x" * 1_000_000).status == 0
    assert machine.run(["sh", "-c", "exec <&-; sleep 0.2"], timeout=20,
                       stdin=b"x" * 1_000_000).status == 0


def test_orphans_that_hold_the_output_do_not_hold_the_command(machine):
    word = unique_sleep()
    done = machine.run(["sh", "-c", f"sleep {word} & echo done"], timeout=10)
    assert (done.status, done.stdout) == (0, b"done\n")
    assert done.host_ns < 3e9
    machine.down()
    assert gone(word)


def test_large_output_in_both_streams(machine):
    script = "head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait"
    done = machine.run(["sh", "-c", script], timeout=60)
    assert (len(done.stdout), len(done.stderr)) == (20_000_000, 20_000_000)


def test_large_input_comes_back(machine):
    data = random.Random(1).randbytes(5_000_000)
    assert machine.run(["cat"], timeout=60, stdin=data).stdout == data


def test_many_at_once(machine):
    results: dict[int, bytes] = {}

    def one(number: int) -> None:
        word = f"{number}\n".encode() * 20_000
        results[number] = machine.run(["cat"], timeout=60, stdin=word).stdout == word

    threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == dict.fromkeys(range(24), True)


def test_a_stream_that_nobody_reads_holds_up_no_other(machine):
    noisy = machine.spawn(["yes"])
    quiet = machine.spawn(["sh", "-c", "yes >&2"])
    time.sleep(0.3)
    assert machine.run(["echo", "through"], timeout=10).stdout == b"through\n"
    assert noisy.stdout.read(4) == b"y\ny\n"
    for process in (noisy, quiet):
        process.kill()
        assert process.wait(10) == 137


def test_conversation_with_a_process(machine):
    process = machine.spawn(["sh", "-c", "while read line; do echo got $line; done"])
    assert process.poll() is None
    for word in (b"one", b"two"):
        process.stdin.write(word + b"\n")
        assert process.stdout.readline() == b"got " + word + b"\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.stdin.close()
    assert process.wait(10) == 0
    assert process.stdout.read() == b""
    with pytest.raises(BrokenPipeError):
        machine.spawn(["no-such-program"]).stdin.write(b"x")


# --- files, clock, facts

def test_files(machine, tmp_path):
    source, there, back = tmp_path / "a", tmp_path / "there", tmp_path / "back"
    source.write_bytes(random.Random(2).randbytes(1_000_000))
    machine.put(source, str(there), 0o754)
    assert there.stat().st_mode & 0o777 == 0o754
    machine.get(str(there), back)
    assert back.read_bytes() == source.read_bytes()
    source.write_bytes(b"")
    machine.put(source, str(there))
    assert there.read_bytes() == b""
    assert not list(tmp_path.glob("*.part"))


def test_files_that_cannot_be_copied(machine, tmp_path):
    source = tmp_path / "a"
    source.write_bytes(b"x")
    with pytest.raises(MachineFailed, match="No such file"):
        machine.put(source, "/no/such/folder/a")
    with pytest.raises(MachineFailed, match="No such file"):
        machine.get("/no/such/file", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_clock_is_this_machines(machine):
    host, there, uncertainty = machine.clock()
    assert abs(host - there) <= uncertainty + 1000
    first = machine.clock_ns()
    assert first < machine.clock_ns()


def test_facts_and_memory(machine):
    facts = machine.facts()
    assert facts["cpus"] == len(os.sched_getaffinity(0))
    assert facts["kernel"] == f"Linux {os.uname().release}"
    assert facts["memory_mib"] > 100
    assert 50_000 < machine.memory_bytes() < 50_000_000


# --- machines that do not come up, or go away

def test_no_agent_in_time_shows_the_console(host, tmp_path):
    console = tmp_path / "console.log"
    process = host.spawn(["sh", "-c", "echo BIOS; echo panic: no root >&2; sleep 60"])
    with pytest.raises(MachineFailed, match="(?s)0.5 s.*panic: no root"):
        AgentMachine(process, name="m", console=console, boot_timeout=0.5)
    assert b"BIOS" in console.read_bytes()
    assert process.poll() is not None


def test_a_process_that_ends_while_it_boots(host, tmp_path):
    ended: list[bool] = []
    with pytest.raises(MachineFailed, match="(?s)ended while it booted.*cannot mount"):
        AgentMachine(host.spawn(["sh", "-c", "echo cannot mount >&2; exit 1"]), name="m",
                     console=tmp_path / "c", boot_timeout=20, on_down=lambda: ended.append(True))
    assert ended == [True]


def test_noise_before_the_agent(host, agent_build, tmp_path):
    script = f"head -c 100000 /dev/urandom; echo booting; exec {agent_build}/nm-agent"
    made = AgentMachine(host.spawn(["sh", "-c", script]), name="m", console=tmp_path / "c",
                        boot_timeout=20)
    assert made.run(["echo", "x"], timeout=10).stdout == b"x\n"
    assert b"booting\n" in (tmp_path / "c").read_bytes()
    made.down()


def test_a_machine_that_dies_under_a_command(machine):
    def end() -> None:
        time.sleep(0.3)
        machine.process.kill()

    threading.Thread(target=end).start()
    with pytest.raises(MachineFailed, match="went away"):
        machine.run(["sleep", "60"], timeout=30)
    assert not machine.alive()
    with pytest.raises(MachineFailed):
        machine.run(["true"], timeout=5)
    with pytest.raises(MachineFailed):
        machine.spawn(["true"])
    with pytest.raises(MachineFailed):
        machine.clock_ns()


def test_a_machine_that_garbles_its_stream(host, agent_build):
    script = f"{agent_build}/nm-agent < /dev/null; echo kernel panic, or some such"
    made = AgentMachine(host.spawn(["sh", "-c", script]), name="m", boot_timeout=20)
    with pytest.raises(MachineFailed):
        made.run(["true"], timeout=5)
    made.down()


def test_a_hung_machine_is_given_up(host, agent_build, monkeypatch):
    monkeypatch.setattr("nearmetal.machines.agent.KILL_LIMIT", 0.5)
    made = AgentMachine(host.spawn([str(agent_build / "nm-agent")]), name="m", boot_timeout=20)
    os.kill(made.process.pid, 19)  # SIGSTOP: alive, and silent
    began = time.monotonic()
    with pytest.raises(MachineFailed, match="hangs"):
        made.run(["true"], timeout=0.3)
    assert time.monotonic() - began < 5
    assert not made.alive()
    made.down()
    made.down()
    assert made.process.poll() is not None


# --- the agent alone

def test_when_its_stream_ends_it_kills_all_that_it_started(agent_build):
    word = unique_sleep()
    agent = subprocess.Popen([agent_build / "nm-agent"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    script = f"(setsid sleep {word} &) ; env -i sleep {word} & exec sleep {word}"
    agent.stdin.write(frames.encode_spawn(1, ["sh", "-c", script]))
    agent.stdin.flush()
    time.sleep(0.4)
    assert not gone(word, 0.05)
    agent.stdin.close()
    assert agent.wait(10) == 0
    assert gone(word)
    agent.stdout.close()


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(
    st.binary(max_size=300),
    st.builds(lambda kind, channel, payload: frames.encode(kind, channel, payload),
              st.sampled_from([kind for kind in Type if kind is not Type.KILL]),
              st.integers(0, 3), st.binary(max_size=64)),
    st.builds(lambda channel, kind: frames.encode_spawn(channel, ["/bin/true"], kind=kind),
              st.integers(0, 3), st.sampled_from([frames.Kind.EXEC, frames.Kind.GET])),
), max_size=8))
def test_any_bytes_leave_the_agent_ended_in_order(agent_build, parts):
    done = subprocess.run([agent_build / "nm-agent"], input=b"".join(parts), capture_output=True,
                          timeout=20)
    assert done.returncode == 0, done.stderr
    parser = FrameParser()
    kinds = [frame.type for frame in parser.feed(done.stdout)]
    assert parser.noise == b""
    assert kinds[0] is Type.READY


def test_a_terminal_is_set_raw(agent_build):
    lab, guest = pty.openpty()
    agent = subprocess.Popen([agent_build / "nm-agent", "--tty", os.ttyname(guest)])
    try:
        parser, found = FrameParser(), []

        def until(kind: Type) -> None:
            deadline = time.monotonic() + 10
            while kind not in [frame.type for frame in found] and time.monotonic() < deadline:
                found.extend(parser.feed(os.read(lab, 65536)))

        until(Type.READY)
        all_bytes = bytes(range(256)) * 4
        os.write(lab, frames.encode_spawn(1, ["cat"]) + frames.encode(Type.STDIN, 1, all_bytes)
                 + frames.encode(Type.CLOSE, 1))
        until(Type.EXIT)
        echoed = b"".join(frame.payload for frame in found if frame.type is Type.STDOUT)
        assert echoed == all_bytes
        ready = frames.decode_ready(found[0])
        assert ready.stdin_window == 16 * 1024
    finally:
        os.close(guest)
        os.close(lab)
        assert agent.wait(10) == 0


def test_wrong_options_are_named(agent_build):
    done = subprocess.run([agent_build / "nm-agent", "--nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and "usage:" in done.stderr
    done = subprocess.run([agent_build / "nm-agent", "--tty", "/proc"], capture_output=True,
                          text=True, timeout=30)
    assert done.returncode == 1 and "/proc: Is a directory" in done.stderr


# --- the agent on a network

def free_namespace(host, script: str):
    return host.spawn(["unshare", "--net", "sh", "-c", f"ip link set lo up; {script}"])


def test_rsh_relays_streams_and_status(host, agent_build):
    script = f"""
    {agent_build}/nm-agent --listen 127.0.0.1:7077 >/dev/null &
    printf 'a b' | {agent_build}/nm-rsh -x -l root 127.0.0.1 'cat; echo " $0" "two words"' >&2
    {agent_build}/nm-rsh 127.0.0.1 exit 5; echo $?
    {agent_build}/nm-rsh 127.0.0.1 'kill -9 $$'; echo $?
    head -c 3000000 /dev/zero | {agent_build}/nm-rsh 127.0.0.1 cat | wc -c
    kill $!"""
    done = host.run(["unshare", "--net", "sh", "-c", f"ip link set lo up; {script}"], timeout=30)
    assert done.stderr == b"a b /bin/sh two words\n"
    assert done.stdout == b"5\n137\n3000000\n"


def test_rsh_without_an_agent_there(host, agent_build):
    argv = ["unshare", "--net", str(agent_build / "nm-rsh"), "10.1.2.3", "true"]
    done = host.run(argv, timeout=30)
    assert done.status == 255 and b"nm-rsh: 10.1.2.3: " in done.stderr
    assert host.run([str(agent_build / "nm-rsh"), "onlyhost"], timeout=30).status == 255


def test_what_rsh_started_ends_with_it(host, agent_build):
    word = unique_sleep()
    process = free_namespace(host, f"""{agent_build}/nm-agent --listen 127.0.0.1:7077 &
        {agent_build}/nm-rsh 127.0.0.1 'setsid sleep {word} & sleep {word}' & rsh=$!
        sleep 0.5; echo started; read line; kill -9 $rsh; read line""")
    while process.stdout.readline() != b"started\n":
        assert process.poll() is None
    assert not gone(word, 0.05)
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert gone(word)
    process.kill()
    process.close()


def test_the_address_must_be_one(agent_build):
    for where in ("nonsense", "localhost:7077", "1.2.3.4:7077"):
        done = subprocess.run([agent_build / "nm-agent", "--listen", where], capture_output=True,
                              text=True, timeout=10)
        assert done.returncode == 1 and where in done.stderr
