"""A machine that is served by nm-agent over the standard streams of a process.

Every layer that has an agent inside does the same: it prepares files, starts a process on its
carrier whose standard input and output are the agent's stream, and wraps it in AgentMachine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from nearmetal.errors import MachineFailed
from nearmetal.machines import frames
from nearmetal.machines.base import Completed, Machine, Process
from nearmetal.machines.channels import (
    ANSWER_LIMIT,
    OUTPUT_LIMIT,
    AgentProcess,
    Channel,
    Connection,
)
from nearmetal.machines.process import tree_memory_bytes

KILL_LIMIT = 15.0  # s: a command that is not gone so long after SIGKILL means a hung machine
_TAIL = 2000

_FACTS = r"""
echo cpus=$(grep -c '^processor' /proc/cpuinfo)
echo affinity=$(sed -n 's/^Cpus_allowed:[[:space:]]*//p' /proc/self/status)
echo memory_kib=$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
echo kernel=$(uname -s) $(uname -r)
echo clocksource=$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource 2>/dev/null)
"""


class AgentMachine(Machine):
    """A machine with an agent.

    ``process`` carries the agent's stream; its standard error is appended to ``console``, and so
    is what comes before the agent's greeting. ``on_down`` is called once when the machine is
    ended (working folders, cgroups). ``extra_facts`` win over what is asked inside.

    Raises MachineFailed with the console's tail when no agent answers in ``boot_timeout`` s.
    """

    def __init__(
        self,
        process: Process,
        *,
        name: str,
        environment: str = "",
        root: str = "/",
        address: str | None = None,
        console: Path | None = None,
        on_down: Callable[[], None] | None = None,
        boot_timeout: float = 120.0,
        extra_facts: Mapping[str, Any] | None = None,
    ):
        self.name, self.environment, self.root = name, environment, root
        self.address, self.console = address, console
        self.process = process
        self._extra_facts = dict(extra_facts or {})
        self._on_down = on_down
        self._down = False
        self._down_lock = threading.Lock()
        self._stderr = bytearray()
        self._facts: dict[str, Any] | None = None
        began = time.monotonic_ns()
        self._stderr_thread = self._follow_stderr()
        self._connection = Connection(process.stdout, process.stdin, name)
        try:
            self._wait_ready(boot_timeout)
        except BaseException:
            self.down()
            raise
        self.boot_ns = time.monotonic_ns() - began

    def _follow_stderr(self) -> threading.Thread | None:
        stream = self.process.stderr
        if stream is None:
            return None

        def follow() -> None:
            some = getattr(stream, "read1", None) or stream.read
            with contextlib.suppress(OSError, ValueError, MachineFailed):
                while data := some(65536):
                    self._stderr.extend(data)
                    del self._stderr[:-65536]
                    self._append_console(data)

        thread = threading.Thread(target=follow, name=f"{self.name}-stderr", daemon=True)
        thread.start()
        return thread

    def _append_console(self, data: bytes) -> None:
        if self.console is not None and data:
            with contextlib.suppress(OSError), self.console.open("ab") as file:
                file.write(data)

    def _wait_ready(self, timeout: float) -> None:
        connection = self._connection
        try:
            with connection.changed:
                up = connection.wait_for(lambda: connection.ready is not None, timeout)
        except MachineFailed:
            time.sleep(0.1)  # its last words may still be on their way
            self._append_console(connection.parser.noise)
            raise MachineFailed(f"The machine {self.name!r} ended while it booted: "
                                f"{connection.reason}.{self._tail()}",
                                "Its console is kept.") from None
        self._append_console(connection.parser.noise)
        if not up:
            raise MachineFailed(
                f"The machine {self.name!r} did not come up in {timeout:g} s.{self._tail()}",
                "Its console is kept; a slow host may need a longer boot_timeout.")
        if connection.ready and connection.ready.version != frames.VERSION:
            raise MachineFailed(f"The agent of {self.name!r} speaks version "
                                f"{connection.ready.version}, the lab {frames.VERSION}.",
                                "Build the userland again.")

    def console_tail(self) -> str:
        """The last lines of its console, or of what it said on standard error."""
        text = b""
        if self.console is not None:
            with contextlib.suppress(OSError), self.console.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _TAIL))
                text = file.read()
        if not text:
            text = bytes(self._stderr[-_TAIL:]) or self._connection.parser.noise[-_TAIL:]
        return text.decode(errors="replace").strip()

    def _tail(self) -> str:
        tail = self.console_tail() if hasattr(self, "_connection") else ""
        return f" The console's end: {tail}" if tail else ""

    def _failed(self, error: MachineFailed) -> MachineFailed:
        return MachineFailed(error.message + self._tail(), error.remedy)

    # --- commands

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> AgentProcess:
        """Start a command; a program that is not there gives a process with status 127."""
        connection = self._connection
        try:
            channel = connection.open(argv, env, cwd, frames.Kind.EXEC, collect=False)
            with connection.changed:
                started = connection.wait_for(
                    lambda: channel.started_ns is not None or channel.ended is not None,
                    ANSWER_LIMIT)
        except MachineFailed as error:
            raise self._failed(error) from None
        if not started:
            connection.end(f"it did not start a command in {ANSWER_LIMIT:g} s")
            raise self._failed(connection.failure())
        return AgentProcess(connection, channel, argv)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: str = "/",
    ) -> Completed:
        """Run a command to its end, or kill it and all that came of it after ``timeout`` s.

        ``machine_ns`` is the time from fork to exit by the machine's monotonic clock. Raises
        MachineFailed when the machine goes away, or answers nothing when the command is killed.
        """
        try:
            return self._run(argv, timeout, env, stdin, cwd, frames.Kind.EXEC)
        except MachineFailed as error:
            raise self._failed(error) from None

    def _run(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None,
             stdin: bytes, cwd: str, kind: frames.Kind) -> Completed:
        connection = self._connection
        deadline = time.monotonic() + timeout
        began = time.monotonic_ns()
        channel = connection.open(argv, env, cwd, kind, collect=True)
        in_time = connection.write_stdin(channel, stdin, deadline)
        if in_time:
            connection.close_stdin(channel)
            with connection.changed:
                in_time = connection.wait_for(
                    lambda: channel.ended is not None or self._too_much(channel),
                    max(0.0, deadline - time.monotonic()))
        if channel.ended is None:
            self._kill(channel)
            if self._too_much(channel):
                raise MachineFailed(f"{argv[0]!r} printed more than {OUTPUT_LIMIT >> 20} MiB.")
        return self._completed(argv, channel, began, not in_time)

    @staticmethod
    def _too_much(channel: Channel) -> bool:
        return len(channel.output[0]) + len(channel.output[1]) > OUTPUT_LIMIT

    def _kill(self, channel: Channel) -> None:
        connection = self._connection
        connection.kill(channel)
        with connection.changed:
            gone = connection.wait_for(lambda: channel.ended is not None, KILL_LIMIT)
        if not gone:
            connection.end(f"it hangs: a command was not gone {KILL_LIMIT:g} s after its kill")
            raise connection.failure()

    @staticmethod
    def _completed(argv: Sequence[str], channel: Channel, began: int,
                   timed_out: bool) -> Completed:
        ended = cast(frames.Exit, channel.ended)
        stderr = bytes(channel.output[1])
        if ended.error:
            stderr += f"{argv[0]}: {os.strerror(ended.error)}\n".encode()
        return Completed(
            argv=tuple(argv), status=None if timed_out else channel.status,
            stdout=bytes(channel.output[0]), stderr=stderr,
            host_ns=channel.ended_host_ns - began,
            machine_ns=None if ended.error else ended.elapsed_ns,
            max_rss_kib=None if ended.error else ended.max_rss_kib, timed_out=timed_out)

    # --- files and facts

    def put(self, source: Path, target: str, mode: int = 0o644, timeout: float = 300.0) -> None:
        """Copy a file of the host to the machine, whole or not at all."""
        words = [target, f"{mode:o}"]
        done = self._run(words, timeout, None, source.read_bytes(), "/", frames.Kind.PUT)
        self._check_file(done, target)

    def get(self, source: str, target: Path, timeout: float = 300.0) -> None:
        """Copy a file of the machine to the host, whole or not at all."""
        done = self._run([source], timeout, None, b"", "/", frames.Kind.GET)
        self._check_file(done, source)
        aside = target.with_name(target.name + ".part")
        aside.write_bytes(done.stdout)
        aside.replace(target)

    def _check_file(self, done: Completed, path: str) -> None:
        if done.status != 0:
            why = done.stderr.decode(errors="replace").strip() or (
                os.strerror(errno.ETIMEDOUT) if done.timed_out else f"status {done.status}")
            raise MachineFailed(f"The file {path!r} of {self.name!r} cannot be copied: {why}.")

    def clock(self, timeout: float = ANSWER_LIMIT) -> tuple[int, int, int]:
        """(host's monotonic clock, machine's monotonic clock, uncertainty), in ns.

        The machine's clock was read within ``uncertainty`` of the host's moment given.
        """
        before, monotonic, _, after = self._connection.clock(timeout)
        return (before + after) // 2, monotonic, (after - before) // 2

    def clock_ns(self) -> int:
        """The machine's monotonic clock now, in ns."""
        return self.clock()[1]

    def facts(self) -> dict[str, Any]:
        if self._facts is None:
            done = self.run(["/bin/sh", "-c", _FACTS], timeout=ANSWER_LIMIT)
            said = dict(line.split("=", 1) for line in done.stdout.decode().splitlines()
                        if "=" in line)
            self._facts = _read_facts(said)
            self._facts["network"] = f"lab network, {self.address}" if self.address else "none"
            self._facts["boot_s"] = round(self.boot_ns / 1e9, 3)
        return {**self._facts, **self._extra_facts}

    def memory_bytes(self) -> int | None:
        pid = getattr(self.process, "pid", None)
        return tree_memory_bytes(pid) if pid else None

    def alive(self) -> bool:
        if self._down or self._connection.reason is not None:
            return False
        try:
            return self.process.poll() is None
        except MachineFailed:  # its carrier is gone
            return False

    def down(self) -> None:
        with self._down_lock:
            if self._down:
                return
            self._down = True
        self._connection.end("it was ended")
        with contextlib.suppress(MachineFailed, OSError):
            self.process.kill()
        with contextlib.suppress(MachineFailed, subprocess.TimeoutExpired):
            self.process.wait(5.0)
        if self._stderr_thread is not None:
            self._stderr_thread.join(2.0)
        close = getattr(self.process, "close", None)
        if close is not None:
            close()
        if self._on_down is not None:
            self._on_down()


def _read_facts(said: Mapping[str, str]) -> dict[str, Any]:
    mask = said.get("affinity", "").replace(",", "")
    try:
        cpus = int(mask, 16).bit_count()
    except ValueError:
        cpus = int(said.get("cpus") or 0)
    online = int(said.get("cpus") or 0)
    memory = said.get("memory_kib", "")
    return {
        "cpus": min(cpus, online) if online else cpus,
        "memory_mib": int(memory) // 1024 if memory.isdigit() else None,
        "kernel": said.get("kernel", ""),
        "clocksource": said.get("clocksource", ""),
    }
