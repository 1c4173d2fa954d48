"""A serial line of User Mode Linux as an agent's stream: its input must never overrun.

When a terminal of Linux holds 3968 bytes that nobody has read yet, it asks its driver to stop
(n_tty.c, TTY_THRESHOLD_THROTTLE). UML's driver then takes its descriptor off the list it waits
on, and never puts it back (line_throttle, deactivate_chan; UML 6.1 to 6.12): from then on the
guest is deaf. So no more than ``ON_THE_WAY`` bytes are sent before the agent has shown, by
answering a CLOCK frame sent after them, that it has read them.
"""

from __future__ import annotations

import io
import threading
from typing import Any, BinaryIO, cast

from nearmetal.machines.base import Process
from nearmetal.machines.frames import Frame, FrameParser, Type, decode_clock, encode, encode_clock

ON_THE_WAY = 3000  # bytes, with room below 3968 for the CLOCK frame itself
PIECE = 2048  # longest STDIN payload that is sent in one frame
ANSWER_LIMIT = 60.0  # s
_TOKENS_FROM = 1 << 63  # tokens of our own, apart from those of the lab's connection


def paced(data: bytes, parser: FrameParser) -> list[bytes]:
    """The frames in ``data``, STDIN frames cut to ``PIECE`` bytes of payload each.

    ``parser`` (synchronised) keeps a frame that is not whole yet for the next call.
    """
    return [piece for frame in parser.feed(data) for piece in _pieces(frame)]


def _pieces(frame: Frame) -> list[bytes]:
    if frame.type is not Type.STDIN:
        return [encode(frame.type, frame.channel, frame.payload)]
    return [encode(frame.type, frame.channel, frame.payload[at:at + PIECE])
            for at in range(0, len(frame.payload), PIECE)]


class _Answers(io.RawIOBase):
    """The line's output, passed on as it is; looks out for answers to our CLOCK frames."""

    def __init__(self, stream: BinaryIO):
        self._some = getattr(stream, "read1", None) or stream.read
        self._parser = FrameParser()
        self._answered = 0
        self._ended = False
        self._changed = threading.Condition()

    def readable(self) -> bool:
        return True

    def read1(self, size: int = 65536) -> bytes:
        try:
            data = self._some(size)
        except BaseException:
            self._end()
            raise
        if not data:
            self._end()
            return data
        for frame in self._parser.feed(data):
            if frame.type is Type.CLOCK and (token := decode_clock(frame)[0]) >= _TOKENS_FROM:
                with self._changed:
                    self._answered = max(self._answered, token)
                    self._changed.notify_all()
        return data

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, token: int) -> None:
        """Until ``token`` is answered. Raises OSError when it never will be."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._answered >= token or self._ended, ANSWER_LIMIT)
            if not done or self._answered < token:
                raise OSError("the serial line is dead" if self._ended else
                              f"the agent took no input for {ANSWER_LIMIT:g} s")


class _Paced(io.RawIOBase):
    """The line's input: writes no more than the guest can hold."""

    def __init__(self, stream: BinaryIO, answers: _Answers):
        self._stream, self._answers = stream, answers
        self._parser = FrameParser(synchronised=True)
        self._token = _TOKENS_FROM
        self._sent = 0  # bytes since the last answered CLOCK frame

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        for piece in paced(bytes(data), self._parser):
            if self._sent and self._sent + len(piece) > ON_THE_WAY:
                self._settle()
            if len(piece) > ON_THE_WAY:
                raise OSError(f"a request of {len(piece)} bytes; a serial line of UML takes "
                              f"{ON_THE_WAY} (a shorter command or environment, or a script)")
            self._stream.write(piece)
            self._sent += len(piece)
        self._stream.flush()
        return len(data)

    def _settle(self) -> None:
        self._token += 1
        self._stream.write(encode_clock(self._token))
        self._stream.flush()
        self._answers.wait(self._token)
        self._sent = 0


class PacedLine:
    """A process whose standard streams are a UML serial line (see base.Process)."""

    def __init__(self, process: Process):
        self._process = process
        self.pid = getattr(process, "pid", None)
        answers = _Answers(process.stdout)
        self.stdout = cast(BinaryIO, answers)
        self.stdin = cast(BinaryIO, _Paced(process.stdin, answers))
        self.stderr = process.stderr

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        close = getattr(self._process, "close", None)
        if close is not None:
            close()
