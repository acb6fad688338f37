"""WebSocket frames: every split, what RFC 6455 forbids, and what goes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.net.doors import frames
from gantrymq.net.doors.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, FrameError, FrameReader

KEY = b"\x11\x22\x33\x44"


def frame(opcode: int, payload: bytes = b"", fin: bool = True, mask: bool = True, rsv: int = 0) -> bytes:
    """A client's frame."""
    head = bytearray(frames.head_of(opcode, len(payload)))
    head[0] = (128 if fin else 0) | rsv | opcode
    if not mask:
        return bytes(head) + payload
    head[1] |= 128
    return bytes(head) + KEY + frames.unmask(payload, KEY)


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_unmasking_is_the_repeated_xor(data: bytes, number: int) -> None:
    key = number.to_bytes(4, "big")
    assert frames.unmask(data, key) == bytes([byte ^ key[i % 4] for i, byte in enumerate(data)])


STREAM = (
    frame(BINARY, b"abc")
    + frame(PING, b"are you there")
    + frame(BINARY, b"d" * 200, fin=False)
    + frame(PONG)
    + frame(CONTINUATION, b"")
    + frame(BINARY, b"e" * 70_000)
    + frame(CLOSE, b"\x03\xe8bye")
    + b"nothing counts behind it"
)
DATA = b"abc" + b"d" * 200 + b"e" * 70_000


@pytest.mark.parametrize("size", [1, 2, 3, 7, 126, 4096, len(STREAM)])
def test_any_split_gives_the_same_stream(size: int) -> None:
    reader = FrameReader()
    got = b"".join([reader.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size)])
    assert got == DATA
    assert reader.ping == b"are you there"
    assert reader.closed == b"\x03\xe8bye"


def test_data_comes_before_its_frame_is_whole() -> None:
    """Nothing is held: a frame may be as long as it likes."""
    reader = FrameReader()
    data = frame(BINARY, b"x" * 100_000)
    assert reader.feed(data[:50_000]) == b"x" * (50_000 - 14)
    assert reader.held_bytes() == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x", mask=False), 1002),
        (frame(BINARY, b"x", rsv=0x40), 1002),
        (frame(TEXT, b"x"), 1003),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(BINARY, b"x", fin=False) + frame(BINARY, b"y"), 1002),
        (frame(3, b"x"), 1002),
        (frame(11, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(PING, b"x", fin=False), 1002),
        (frame(CLOSE, b"x"), 1002),
        (b"\x82\xfe\x00\x05" + KEY + b"12345", 1002),
        (b"\x82\xff" + (5).to_bytes(8, "big") + KEY + b"12345", 1002),
        (b"\x82\xff" + (1 << 63).to_bytes(8, "big") + KEY, 1002),
    ],
)
def test_what_rfc_6455_forbids(data: bytes, code: int) -> None:
    with pytest.raises(FrameError) as error:
        FrameReader().feed(data)
    assert error.value.code == code


@pytest.mark.parametrize("sizes", [[0], [5], [126], [65_536], [65_537], [10, 20, 65_530], [200_000], [100, 131_072, 5]])
def test_what_goes_out_is_the_same_stream_in_small_frames(sizes: list[int]) -> None:
    pieces = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    data = b"".join(frames.binary_frames(list(pieces)))
    at, got = 0, b""
    while at < len(data):
        assert data[at] == 0x82
        length = data[at + 1]
        at += 2
        if length > 125:
            count = 2 if length == 126 else 8
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        assert 0 < length <= frames.FRAME_BYTES_MAX
        got += data[at : at + length]
        at += length
    assert got == b"".join(pieces)


def test_a_close_frames_text_is_cut_between_characters() -> None:
    data = frames.close_frame(1002, "é" * 100)
    assert len(data) <= 2 + frames.CONTROL_BYTES_MAX
    assert data[4:].decode() == "é" * 61
