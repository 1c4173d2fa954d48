"""Frames: what the lab and the agent say to each other over any byte stream.

A frame is u32 length of the payload, u32 channel, u8 type, payload, little endian; the same as
``agent/frame.h``, which says what each type carries. The agent's side starts with ``MAGIC`` and a
READY frame. Before it anything may come (a serial line prints rubbish while a machine boots) and
is kept as noise; after it nothing but frames may come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"\x02nearmetal\x03agent\x01"
VERSION = 1
MAX_PAYLOAD = 256 * 1024
CHUNK = 32 * 1024
NOISE_KEPT = 64 * 1024

_HEADER = struct.Struct("<IIB")
_SPAWN = struct.Struct("<BII")
_READY = struct.Struct("<III")
_EXIT = struct.Struct("<iiiQQ")
_CREDIT = struct.Struct("<BI")
_CLOCK = struct.Struct("<QQQ")


class FrameError(ValueError):
    """Bytes that are no frame: the two sides are out of step."""


class Type(IntEnum):
    """Kinds of frames; see ``agent/frame.h``."""

    SPAWN = ord("S")
    STDIN = ord("I")
    CLOSE = ord("E")
    KILL = ord("K")
    READY = ord("R")
    STARTED = ord("P")
    STDOUT = ord("1")
    STDERR = ord("2")
    EXIT = ord("X")
    CREDIT = ord("C")
    CLOCK = ord("T")


class Kind(IntEnum):
    """What a SPAWN asks for: a command, or a file to write or to read."""

    EXEC = 0
    PUT = 1
    GET = 2


@dataclass(frozen=True)
class Frame:
    type: Type
    channel: int
    payload: bytes


@dataclass(frozen=True)
class Ready:
    """The agent's greeting; windows in bytes."""

    version: int
    stdin_window: int
    output_window: int


@dataclass(frozen=True)
class Exit:
    """How a command ended. ``error`` is the errno of a start that failed, else 0; ``elapsed_ns``
    by the machine's monotonic clock; ``max_rss_kib`` of its largest process."""

    status: int
    signal: int
    error: int
    elapsed_ns: int
    max_rss_kib: int


def encode(kind: Type, channel: int, payload: bytes = b"") -> bytes:
    """One frame. Raises FrameError when the payload is too long."""
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame of {len(payload)} bytes; the most is {MAX_PAYLOAD}")
    return _HEADER.pack(len(payload), channel, kind) + payload


def encode_spawn(channel: int, argv: Sequence[str], env: Mapping[str, str] | None = None,
                 cwd: str = "/", kind: Kind = Kind.EXEC) -> bytes:
    """The frame that starts ``argv``. Raises FrameError (empty, too long, a NUL inside)."""
    words = [cwd, *argv, *(f"{key}={value}" for key, value in (env or {}).items())]
    if not argv or any("\0" in word for word in words):
        raise FrameError("a command needs a name, and no NUL bytes")
    text = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
    return encode(Type.SPAWN, channel, _SPAWN.pack(kind, len(argv), len(env or {})) + text)


def encode_credit(channel: int, stream: int, count: int) -> bytes:
    return encode(Type.CREDIT, channel, _CREDIT.pack(stream, count))


def encode_kill(channel: int, number: int) -> bytes:
    return encode(Type.KILL, channel, struct.pack("<I", number))


def encode_clock(token: int) -> bytes:
    return encode(Type.CLOCK, 0, struct.pack("<Q", token))


def _unpack(form: struct.Struct, frame: Frame) -> tuple[int, ...]:
    if len(frame.payload) != form.size:
        raise FrameError(f"{frame.type.name} with {len(frame.payload)} bytes, not {form.size}")
    return form.unpack(frame.payload)


def decode_ready(frame: Frame) -> Ready:
    return Ready(*_unpack(_READY, frame))


def decode_exit(frame: Frame) -> Exit:
    return Exit(*_unpack(_EXIT, frame))


def decode_credit(frame: Frame) -> tuple[int, int]:
    """(stream, bytes)."""
    stream, count = _unpack(_CREDIT, frame)
    return stream, count


def decode_clock(frame: Frame) -> tuple[int, int, int]:
    """(token, monotonic ns, real time ns)."""
    token, monotonic, real = _unpack(_CLOCK, frame)
    return token, monotonic, real


class FrameParser:
    """Bytes in, frames out."""

    def __init__(self, synchronised: bool = False) -> None:
        self.synchronised = synchronised
        self._noise = b""
        self._buffer = bytearray()

    @property
    def noise(self) -> bytes:
        """What came before the magic; until it came, all that has come. Its last 64 KiB."""
        if self.synchronised:
            return self._noise
        return (self._noise + bytes(self._buffer))[-NOISE_KEPT:]

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that ``data`` completes. Raises FrameError at the first that is none."""
        self._buffer += data
        if not self.synchronised:
            self._synchronise()
        while self.synchronised and len(self._buffer) >= _HEADER.size:
            length, channel, kind = _HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise FrameError(f"a frame of {length} bytes; the most is {MAX_PAYLOAD}")
            try:
                known = Type(kind)
            except ValueError:
                raise FrameError(f"a frame of unknown type {kind}") from None
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size:end])
            del self._buffer[:end]
            yield Frame(known, channel, payload)

    def _synchronise(self) -> None:
        at = self._buffer.find(MAGIC)
        if at >= 0:
            cut, keep_from, self.synchronised = at, at + len(MAGIC), True
        else:  # the magic may be half there
            cut = keep_from = max(0, len(self._buffer) - len(MAGIC) + 1)
        self._noise = (self._noise + bytes(self._buffer[:cut]))[-NOISE_KEPT:]
        del self._buffer[:keep_from]
