"""WebSocket frames of a server (RFC 6455 section 5), without I/O: bytes of the peer -> payload as it comes, and back.

Only binary data is taken, and as a stream: where frames and messages end means nothing to what is inside, so a frame is handed on as its bytes
come and none is ever held whole. (wsproto 1.3 takes 20 us for a frame of 140 bytes, this 3: the payload's stream needs no message objects.)

    0                   1                   2                   3
    F R R R opcode  M length   [16 or 64 more bits of length]  masking key  payload
"""

from __future__ import annotations

from typing import Final

from gantrymq.net.held.outbound import LARGE_BYTES, Piece

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

CONTROL_BYTES_MAX: Final = 125
"""RFC 6455 5.5."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
"""Close codes, RFC 6455 7.4.1."""

FRAME_BYTES_MAX: Final = 64 * 1024
"""Payload of a frame that we send: browsers and libraries hold a frame whole, and some take no message over 1 MiB."""


class FrameError(Exception):
    """The peer broke RFC 6455, or sends what is not taken here. `code`: for the close frame."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class FrameReader:
    """What a client sends."""

    __slots__ = ("_control", "_fragment", "_head", "_key", "_left", "_opcode", "closed", "ping")

    def __init__(self) -> None:
        self._head = b""
        """The begin of a frame whose header is not whole."""
        self._left = 0
        """Bytes of payload still to come."""
        self._opcode = -1
        """Of the frame that these belong to; -1: none is open."""
        self._key = b""
        """Masking key, turned to the next byte."""
        self._control = b""
        self._fragment = False
        """More frames of the message follow."""
        self.ping: bytes | None = None
        """Payload of the last ping that was not answered (RFC 6455 5.5.3: the last is enough)."""
        self.closed: bytes | None = None
        """Payload of the close frame: nothing counts after it."""

    def held_bytes(self) -> int:
        """Bytes of a header or a control frame that is not whole."""
        return len(self._head) + len(self._control)

    def feed(self, data: bytes) -> bytes:
        """The data in these bytes. Raises FrameError."""
        if self._head:
            data = self._head + data
            self._head = b""
        found: list[bytes] = []
        at, size = 0, len(data)
        while at < size and self.closed is None:
            if self._opcode < 0:
                begin = self._begin(data, at)
                if not begin:
                    self._head = data[at:]
                    break
                at = begin
            chunk = data[at : at + self._left]
            at += len(chunk)
            self._left -= len(chunk)
            if chunk:
                chunk = unmask(chunk, self._key)
                turn = len(chunk) & 3
                self._key = self._key[turn:] + self._key[:turn]
            if self._opcode >= CLOSE:
                self._control += chunk
            elif chunk:
                found.append(chunk)
            if not self._left:
                self._end()
        return found[0] if len(found) == 1 else b"".join(found)

    def _begin(self, data: bytes, at: int) -> int:
        """Read a header; where its payload begins, 0 if it is not whole."""
        if len(data) < at + 2:
            return 0
        first, second = data[at], data[at + 1]
        opcode, length = first & 15, second & 127
        _check(first, second, opcode, length, self._fragment)
        start = at + 2
        if length > CONTROL_BYTES_MAX:
            count = 2 if length == 126 else 8
            if len(data) < start + count:
                return 0
            length = int.from_bytes(data[start : start + count], "big")
            if length < (126 if count == 2 else 65_536) or length >> 63:
                raise FrameError(PROTOCOL_ERROR, "the length is not written in the fewest bytes (RFC 6455 5.2)")
            start += count
        if len(data) < start + 4:
            return 0
        if opcode < CLOSE:
            self._fragment = not first & 128
        self._opcode, self._left, self._key = opcode, length, data[start : start + 4]
        return start + 4

    def _end(self) -> None:
        opcode, self._opcode = self._opcode, -1
        if opcode < CLOSE:
            return
        control, self._control = self._control, b""
        if opcode == PING:
            self.ping = control
        elif opcode == CLOSE:
            if len(control) == 1:
                raise FrameError(PROTOCOL_ERROR, "a close frame with half a code (RFC 6455 5.5.1)")
            self.closed = control


def _check(first: int, second: int, opcode: int, length: int, fragment: bool) -> None:
    """Raise FrameError unless a header's first two bytes may come now."""
    if first & 0x70:
        raise FrameError(PROTOCOL_ERROR, "reserved bits are set and no extension was agreed on (RFC 6455 5.2)")
    if not second & 128:
        raise FrameError(PROTOCOL_ERROR, "a client's frame is not masked (RFC 6455 5.1)")
    if opcode in (CLOSE, PING, PONG):
        if not first & 128 or length > CONTROL_BYTES_MAX:
            raise FrameError(PROTOCOL_ERROR, "a control frame is in parts or has over 125 bytes (RFC 6455 5.5)")
    elif opcode == TEXT:
        raise FrameError(UNSUPPORTED_DATA, "text is not taken, only binary data")
    elif opcode == CONTINUATION:
        if not fragment:
            raise FrameError(PROTOCOL_ERROR, "a continuation of nothing (RFC 6455 5.4)")
    elif opcode != BINARY:
        raise FrameError(PROTOCOL_ERROR, f"reserved opcode {opcode} (RFC 6455 5.2)")
    elif fragment:
        raise FrameError(PROTOCOL_ERROR, "a message begins inside another (RFC 6455 5.4)")


def unmask(data: bytes, key: bytes) -> bytes:
    """XOR with the repeated key (RFC 6455 5.3), as two large numbers: one operation in C."""
    size = len(data)
    keys = (key * ((size >> 2) + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(size, "little")


def head_of(opcode: int, size: int) -> bytes:
    """Header of a whole frame that we send, which is not masked (RFC 6455 5.1)."""
    if size <= CONTROL_BYTES_MAX:
        return bytes((128 | opcode, size))
    if size < 65_536:
        return bytes((128 | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((128 | opcode, 127)) + size.to_bytes(8, "big")


def binary_frames(pieces: list[Piece]) -> list[Piece]:
    """The pieces of one write as binary frames of at most `FRAME_BYTES_MAX`; large ones are cut without a copy."""
    frames: list[Piece] = []
    small: list[Piece] = []
    size = 0

    def put() -> None:
        nonlocal size
        if size:
            frames.append(head_of(BINARY, size))
            frames.extend(small)
            small.clear()
            size = 0

    for piece in pieces:
        if size + len(piece) <= FRAME_BYTES_MAX:
            small.append(piece)
            size += len(piece)
            continue
        put()
        view = memoryview(piece) if len(piece) >= LARGE_BYTES else piece
        for at in range(0, len(piece), FRAME_BYTES_MAX):
            part = view[at : at + FRAME_BYTES_MAX]
            small.append(part)
            size += len(part)
            if size == FRAME_BYTES_MAX:
                put()
    put()
    return frames


def close_frame(code: int, text: str = "") -> bytes:
    """A close frame; its text is cut where it does not fit."""
    payload = code.to_bytes(2, "big") + text.encode()[: CONTROL_BYTES_MAX - 2].decode("utf-8", "ignore").encode()
    return head_of(CLOSE, len(payload)) + payload
