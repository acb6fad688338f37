"""Server side of one Remoting connection, sans-IO: bytes in, requests out; answers gathered for one write.

Knows nothing of what requests mean (`door.py` and the doors built on it do).
"""

from __future__ import annotations

from typing import Final

from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameError, FrameReader
from gantrymq.remoting.constants import FLAG_ONEWAY, Language, ResponseCode

REMARK_CHARS_MAX: Final = 2000
"""A remark quotes what the peer sent; it must not echo megabytes."""


class Connection:
    """Requests of a peer, and the outbox. After `error` is set the stream is lost: answer, then close."""

    __slots__ = ("_opaque", "error", "outbox", "reader")

    def __init__(self, typed: bool = False) -> None:
        self.reader = FrameReader(typed)
        self.outbox: list[bytes] = []
        self.error = ""
        """What was wrong with the stream; nothing is read after it."""
        self._opaque = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished frame."""
        return self.reader.pending_bytes

    def receive_data(self, data: bytes) -> list[Command]:
        """Commands that `data` completes, responses of the peer included. Never raises; see `error`."""
        if self.error:
            return []
        try:
            return self.reader.feed(data)
        except FrameError as error:
            self.error = str(error)
            return error.commands

    def give_up(self, why: str) -> None:
        """Read nothing more, and forget the frame that is unfinished."""
        self.error = why
        self.reader = FrameReader()

    def respond(
        self,
        request: Command,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer `request`; nothing is written for a one-way request."""
        if request.flag & FLAG_ONEWAY:
            return
        if remark is not None and len(remark) > REMARK_CHARS_MAX:
            remark = remark[:REMARK_CHARS_MAX] + "..."
        try:
            frame = codec.response(request, code, remark, fields, body)
        except ValueError as error:
            frame = codec.response(request, ResponseCode.SYSTEM_ERROR, f"the answer cannot be written: {error}")
        self.outbox.append(frame)

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a one-way request to the peer."""
        self._opaque += 1
        command = Command(code, fields, body, self._opaque, FLAG_ONEWAY, None, Language.JAVA)
        self.outbox.append(codec.encode(command))

    def request(self, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        """Send a request to the peer; its answer will have the opaque that is returned."""
        self._opaque += 1
        self.outbox.append(codec.encode(Command(code, fields, body, self._opaque, 0, None, Language.JAVA)))
        return self._opaque

    def data_to_send(self) -> bytes:
        """Take and clear the outbox."""
        outbox = self.outbox
        if not outbox:
            return b""
        data = outbox[0] if len(outbox) == 1 else b"".join(outbox)
        outbox.clear()
        return data
