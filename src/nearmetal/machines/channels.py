"""The lab's end of an agent's stream: many commands over one pair of byte streams.

One thread reads frames, one writes them; callers wait on conditions, always with a time limit.
"""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, cast

from nearmetal.errors import MachineFailed
from nearmetal.machines import frames
from nearmetal.machines.frames import Frame, Type

ANSWER_LIMIT = 60.0  # s: a machine that says nothing for so long when asked is taken for dead
OUTPUT_LIMIT = 256 * 1024 * 1024  # bytes of output that are kept of one command
_QUEUE_LIMIT = 1024 * 1024


class Channel:
    """One command under way. All fields are guarded by the connection's condition."""

    def __init__(self, number: int, window: int, collect: bool):
        self.number = number
        self.collect = collect
        self.stdin_credit = window
        self.started_ns: int | None = None
        self.pid: int | None = None
        self.ended: frames.Exit | None = None
        self.ended_host_ns = 0
        self.output: tuple[bytearray, bytearray] = (bytearray(), bytearray())

    @property
    def status(self) -> int | None:
        """Exit status, 128 + signal, 127 for a command that did not start; None: it runs."""
        if self.ended is None:
            return None
        if self.ended.error:
            return 127
        return 128 + self.ended.signal if self.ended.signal else self.ended.status


class Connection:
    """Frames to and from one agent. ``on_end`` is called once, when the stream has ended."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO, name: str):
        self.name = name
        self.parser = frames.FrameParser()
        self.ready: frames.Ready | None = None
        self.reason: str | None = None  # why it ended
        self.changed = threading.Condition()
        self._reader, self._writer = reader, writer
        self._channels: dict[int, Channel] = {}
        self._clocks: dict[int, tuple[int, int, int] | None] = {}
        self._last = 0
        self._queue: deque[bytes] = deque()
        self._queued = 0
        for target, what in ((self._read, "reader"), (self._write, "writer")):
            threading.Thread(target=target, name=f"{name}-{what}", daemon=True).start()

    # --- the two threads

    def _read(self) -> None:
        some = getattr(self._reader, "read1", None) or self._reader.read
        reason = "its stream ended"
        try:
            while data := some(65536):
                for frame in self.parser.feed(data):
                    self._take(frame, time.monotonic_ns())
        except frames.FrameError as error:
            reason = f"its stream is garbled: {error}"
        except (OSError, ValueError, MachineFailed) as error:
            reason = f"its stream broke: {error}"
        self.end(reason)

    def _write(self) -> None:
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self._queue or self.reason is not None)
                    if self.reason is not None:
                        return
                    data = b"".join(self._queue)
                    self._queue.clear()
                    self._queued = 0
                    self.changed.notify_all()
                self._writer.write(data)
                self._writer.flush()
        except (OSError, ValueError, MachineFailed) as error:
            self.end(f"its stream broke: {error}")

    def end(self, reason: str) -> None:
        """Mark the connection as ended; all waits on it raise MachineFailed."""
        with self.changed:
            if self.reason is None:
                self.reason = reason
            self.changed.notify_all()

    def _take(self, frame: Frame, now: int) -> None:
        with self.changed:
            if frame.type is Type.READY:
                self.ready = frames.decode_ready(frame)
            elif frame.type is Type.CLOCK:
                answer = frames.decode_clock(frame)
                if answer[0] in self._clocks:
                    self._clocks[answer[0]] = (now, answer[1], answer[2])
            else:
                channel = self._channels.get(frame.channel)
                if channel is not None:
                    self._take_for(channel, frame, now)
            self.changed.notify_all()

    def _take_for(self, channel: Channel, frame: Frame, now: int) -> None:
        if frame.type is Type.STARTED:
            channel.pid = int.from_bytes(frame.payload[:4], "little")
            channel.started_ns = now
        elif frame.type is Type.CREDIT:
            channel.stdin_credit += frames.decode_credit(frame)[1]
        elif frame.type is Type.EXIT:
            channel.ended = frames.decode_exit(frame)
            channel.ended_host_ns = now
            del self._channels[channel.number]
        elif frame.type in (Type.STDOUT, Type.STDERR):
            stream = 1 if frame.type is Type.STDOUT else 2
            channel.output[stream - 1].extend(frame.payload)
            if channel.collect:
                self._give_credit(channel, stream, len(frame.payload))

    # --- for callers

    def _give_credit(self, channel: Channel, stream: int, count: int) -> None:
        """Never waits: credit is small, and the reading thread gives it as well."""
        if channel.ended is None and self.reason is None:
            self._queue.append(frames.encode_credit(channel.number, stream, count))
            self._queued += len(self._queue[-1])
            self.changed.notify_all()

    def failure(self) -> MachineFailed:
        return MachineFailed(f"The machine {self.name!r} went away: {self.reason or 'ended'}.",
                             "Its console is kept.")

    def wait_for(self, what: Callable[[], Any], timeout: float | None) -> bool:
        """Wait, with ``changed`` held, until ``what()``; False when time is over.

        Raises MachineFailed when the machine goes away and ``what()`` is not so."""
        self.changed.wait_for(lambda: what() or self.reason is not None, timeout)
        if what():
            return True
        if self.reason is not None:
            raise self.failure()
        return False

    def send(self, data: bytes, timeout: float = ANSWER_LIMIT) -> None:
        """Queue a frame. Raises MachineFailed when the machine takes nothing for so long."""
        with self.changed:
            if not self.wait_for(lambda: self._queued < _QUEUE_LIMIT, timeout):
                raise MachineFailed(f"The machine {self.name!r} takes no input any more.",
                                    "Its console is kept.")
            if self.reason is not None:
                raise self.failure()
            self._queue.append(data)
            self._queued += len(data)
            self.changed.notify_all()

    def open(self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str,
             kind: frames.Kind, collect: bool) -> Channel:
        """Ask for a command; does not wait for it to start."""
        with self.changed:
            self._last += 1
            window = self.ready.stdin_window if self.ready else 0
            channel = Channel(self._last, window, collect)
            try:
                request = frames.encode_spawn(channel.number, argv, env, cwd, kind)
            except frames.FrameError as error:
                raise MachineFailed(f"{argv!r} cannot be run: {error}.") from None
            self._channels[channel.number] = channel
        self.send(request)
        return channel

    def write_stdin(self, channel: Channel, data: bytes, deadline: float | None) -> bool:
        """Send standard input; False when time is over (``time.monotonic``)."""
        view = memoryview(data)
        while view and channel.ended is None:
            with self.changed:
                left = None if deadline is None else deadline - time.monotonic()
                if not self.wait_for(lambda: channel.stdin_credit > 0
                                     or channel.ended is not None, left):
                    return False
                count = min(len(view), channel.stdin_credit, frames.CHUNK)
                channel.stdin_credit -= count
            self.send(frames.encode(Type.STDIN, channel.number, bytes(view[:count])))
            view = view[count:]
        return True

    def close_stdin(self, channel: Channel) -> None:
        if channel.ended is None:
            self.send(frames.encode(Type.CLOSE, channel.number))

    def kill(self, channel: Channel, number: int = signal.SIGKILL) -> None:
        self.send(frames.encode_kill(channel.number, number), timeout=5.0)

    def take_output(self, channel: Channel, stream: int, most: int) -> bytes:
        """Some output of a channel that is not collected; b"" at its end. Waits without limit,
        as reading a pipe does; the end of the command or of the machine ends the wait."""
        with self.changed:
            kept = channel.output[stream - 1]
            self.changed.wait_for(
                lambda: kept or channel.ended is not None or self.reason is not None)
            data = bytes(kept[:most])
            del kept[:most]
            if data:
                self._give_credit(channel, stream, len(data))
            return data

    def clock(self, timeout: float) -> tuple[int, int, int, int]:
        """(host before, machine monotonic, machine real time, host after), in ns."""
        with self.changed:
            self._last += 1
            token = self._last
            self._clocks[token] = None
        before = time.monotonic_ns()
        try:
            self.send(frames.encode_clock(token), timeout)
            with self.changed:
                if not self.wait_for(lambda: self._clocks[token] is not None, timeout):
                    raise MachineFailed(f"The machine {self.name!r} does not answer.",
                                        "Its console is kept.")
                after, monotonic, real = cast("tuple[int, int, int]", self._clocks[token])
        finally:
            with self.changed:
                del self._clocks[token]
        return before, monotonic, real, after


class _Output(io.RawIOBase):
    """Standard output (1) or error (2) of a command, as a file."""

    def __init__(self, connection: Connection, channel: Channel, stream: int):
        self._connection, self._channel, self._stream = connection, channel, stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._connection.take_output(self._channel, self._stream, len(buffer))
        buffer[:len(data)] = data
        return len(data)


class _Input(io.RawIOBase):
    """Standard input of a command, as a file."""

    def __init__(self, connection: Connection, channel: Channel):
        self._connection, self._channel = connection, channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._channel.ended is not None:
            raise BrokenPipeError("the command has ended")
        if not self._connection.write_stdin(self._channel, bytes(data), None):
            raise BrokenPipeError("the command takes no input")
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(MachineFailed):
                self._connection.close_stdin(self._channel)
        super().close()


class AgentProcess:
    """A command under way on a machine with an agent (see base.Process)."""

    pid = None  # it has no process of its own on the host

    def __init__(self, connection: Connection, channel: Channel, argv: Sequence[str]):
        self.argv = tuple(argv)
        self._connection, self._channel = connection, channel
        self.stdin = cast(BinaryIO, _Input(connection, channel))
        self.stdout = cast(BinaryIO, io.BufferedReader(_Output(connection, channel, 1)))
        self.stderr = cast("BinaryIO | None", io.BufferedReader(_Output(connection, channel, 2)))

    def poll(self) -> int | None:
        """Its status, None while it runs. Raises MachineFailed when the machine went away."""
        if self._channel.ended is None and self._connection.reason is not None:
            raise self._connection.failure()
        return self._channel.status

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired, MachineFailed. Output is not read meanwhile: one who
        waits for a command that prints much reads its output first."""
        with self._connection.changed:
            if not self._connection.wait_for(lambda: self._channel.ended is not None, timeout):
                raise subprocess.TimeoutExpired(self.argv, timeout or 0)
        return cast(int, self._channel.status)

    def kill(self) -> None:
        """Kill it and all that came of it; quiet when it or the machine is gone."""
        if self._channel.ended is None:
            with contextlib.suppress(MachineFailed):
                self._connection.kill(self._channel)

    def close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
