"""Frames: any bytes in any pieces give the same frames, or a FrameError, and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearmetal.machines import frames
from nearmetal.machines.frames import Frame, FrameError, FrameParser, Type, encode

a_frame = st.builds(Frame, st.sampled_from(Type), st.integers(0, 2**32 - 1),
                    st.binary(max_size=200))
some_frames = st.lists(a_frame, max_size=10)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


def stream(items: list[Frame]) -> bytes:
    return b"".join(encode(one.type, one.channel, one.payload) for one in items)


@given(some_frames, st.lists(st.integers(0, 10**6), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(items, cuts):
    parser = FrameParser(synchronised=True)
    found = [frame for part in pieces(stream(items), cuts) for frame in parser.feed(part)]
    assert found == items


@given(st.binary(max_size=2000), some_frames, st.lists(st.integers(0, 10**6), max_size=20))
@example(frames.MAGIC[:-1], [], [5])
@example(frames.MAGIC[:8] * 3, [Frame(Type.CLOCK, 0, b"")], [1, 2, 3])
def test_noise_before_the_magic_is_kept_and_no_frame(noise, items, cuts):
    if frames.MAGIC in noise + frames.MAGIC[:-1]:
        return
    parser = FrameParser()
    data = noise + frames.MAGIC + stream(items)
    found = [frame for part in pieces(data, cuts) for frame in parser.feed(part)]
    assert found == items
    assert parser.noise == noise


@given(st.binary(max_size=3000), st.booleans())
def test_any_bytes_give_frames_or_a_frame_error(data, synchronised):
    parser = FrameParser(synchronised)
    try:
        found = list(parser.feed(data))
    except FrameError:
        return
    assert all(len(frame.payload) <= frames.MAX_PAYLOAD for frame in found)
    assert synchronised or frames.MAGIC in data or not found


def test_a_length_that_no_frame_has_is_refused_before_its_bytes_come():
    parser = FrameParser(synchronised=True)
    with pytest.raises(FrameError, match="4294967295"):
        list(parser.feed(struct.pack("<IIB", 2**32 - 1, 0, Type.STDOUT)))


def test_an_unknown_type_is_refused_before_its_bytes_come():
    with pytest.raises(FrameError, match="unknown type 0"):
        list(FrameParser(synchronised=True).feed(struct.pack("<IIB", 100, 0, 0)))


def test_noise_is_bounded():
    parser = FrameParser()
    for _ in range(40):
        assert list(parser.feed(b"x" * 10_000)) == []
    assert len(parser.noise) == frames.NOISE_KEPT
    assert list(parser.feed(frames.MAGIC + encode(Type.CLOCK, 7))) == [Frame(Type.CLOCK, 7, b"")]


@pytest.mark.parametrize("argv", [[], ["a\0b"], ["true", "x" * frames.MAX_PAYLOAD]])
def test_commands_that_cannot_be_asked_for(argv):
    with pytest.raises(FrameError):
        frames.encode_spawn(1, argv)


@pytest.mark.parametrize("decode, kind", [(frames.decode_ready, Type.READY),
                                          (frames.decode_exit, Type.EXIT),
                                          (frames.decode_credit, Type.CREDIT),
                                          (frames.decode_clock, Type.CLOCK)])
@given(payload=st.binary(max_size=40))
def test_decoders_refuse_what_has_the_wrong_length(decode, kind, payload):
    try:
        decode(Frame(kind, 0, payload))
    except FrameError as error:
        assert kind.name in str(error)


def test_the_c_side_agrees_on_constants():
    """agent/frame.h is the other half of this module."""
    from pathlib import Path

    header = (Path(__file__).parents[2] / "agent/frame.h").read_text()
    for kind in Type:
        assert f"FRAME_{kind.name} = '{chr(kind)}'" in header
    assert f"#define FRAME_VERSION {frames.VERSION}u" in header
    assert f"#define FRAME_MAGIC_LEN {len(frames.MAGIC)}u" in header
    assert f"#define FRAME_MAX ({frames.MAX_PAYLOAD // 1024}u * 1024)" in header
    text = "".join(f"\\{byte:03o}" if byte < 32 else chr(byte) for byte in frames.MAGIC)
    assert f'#define FRAME_MAGIC "{text}"' in header
