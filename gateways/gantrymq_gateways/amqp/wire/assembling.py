"""Content that comes frame by frame (AMQP 4.2.6): a header, then bodies, and how many bytes of what is begun and not complete a connection,
and all of a process together, may hold.

Clients send the frames of several channels in turns, so that all bodies of a connection may be begun at a time; only what has come counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gantrymq_gateways.amqp.wire import constants as c
from gantrymq_gateways.amqp.wire.codec import CONTENT, CONTENT_OVERHEAD
from gantrymq_gateways.amqp.wire.constants import AmqpError

ASSEMBLING_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a connection may always hold, all its channels together: 2,047 channels could begin 8 GiB."""

ASSEMBLING_BODIES_MAX: Final = 64
"""Largest bodies that a connection may hold while the process has room: as many channels as a busy client publishes on."""

PROCESS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""All connections together; beyond it those over ASSEMBLING_BYTES_MAX lose channels. One may hold 64 bodies of 15 MiB, the largest."""


@dataclass(slots=True)
class Total:
    """What all connections of a process hold."""

    size: int = 0


@dataclass(slots=True)
class Content:
    """What a channel has of a message that is not complete."""

    publish: bytes | None = None
    """Arguments of its basic.publish; None: no message is begun."""
    properties: bytes | None = None
    """None: its header has not come."""
    size: int = 0
    """Of the whole body, as the header says."""
    body: bytearray = field(default_factory=bytearray)
    begun: int = 0
    """Number of the body that is not complete."""

    def is_complete(self) -> bool:
        """All of it has come."""
        return self.properties is not None and len(self.body) == self.size


def expected_content(content: Content) -> AmqpError:
    """Another frame came where its content goes on."""
    wanted = "header" if content.properties is None else "body"
    text = f"expected content {wanted} for class {c.CLASS_BASIC}, got non content {wanted} frame instead"
    return AmqpError(c.UNEXPECTED_FRAME, text, connection=True)


class Assembling:
    """What one connection holds. `body_bytes_now()`: the largest body for now, asked for those that need several frames."""

    __slots__ = ("_begun", "_bodies", "_bytes_max", "_largest", "_largest_now", "_total", "size")

    def __init__(self, total: Total, body_bytes_max: int, body_bytes_now: Callable[[], int] | None = None) -> None:
        self._total = total
        self._largest = body_bytes_max
        self._largest_now = body_bytes_now
        self._bytes_max = max(ASSEMBLING_BYTES_MAX, ASSEMBLING_BODIES_MAX * body_bytes_max)
        self._bodies = 0
        self._begun: dict[int, None] = {}
        """Numbers of bodies that are not complete, the oldest first."""
        self.size = 0

    def receive(self, content: Content, is_header: bool, payload: bytes, frame_bytes_max: int) -> None:
        """A header or body frame of a message that is begun. Raises AmqpError for the channel or the connection."""
        if is_header != (content.properties is None):
            raise expected_content(content)
        if is_header:
            self._header(content, payload, frame_bytes_max)
        else:
            self._body(content, payload)

    def _header(self, content: Content, payload: bytes, frame_bytes_max: int) -> None:
        class_id, _weight, size = CONTENT.unpack_from(payload)
        if class_id != c.CLASS_BASIC:
            text = f"expected content header for class {c.CLASS_BASIC}, got one for class {class_id} instead"
            raise AmqpError(c.UNEXPECTED_FRAME, text, connection=True)
        now = self._largest_now if size > frame_bytes_max else None
        limit = now() if now is not None else self._largest
        if size > limit:
            text = f"message size {size} is larger than configured max size {limit}"
            raise AmqpError(c.PRECONDITION_FAILED, text)
        content.properties = payload[CONTENT_OVERHEAD:]
        content.size = size

    def _body(self, content: Content, payload: bytes) -> None:
        body = content.body
        body += payload
        self.add(len(payload))
        if len(body) > content.size:
            text = f"content body of {len(body)} octets is longer than the {content.size} that its header announced"
            raise AmqpError(c.FRAME_ERROR, text, connection=True)
        if len(body) < content.size:
            if not content.begun:
                self._bodies = content.begun = self._bodies + 1
                self._begun[content.begun] = None
            if limit := self.exceeded():
                text = f"bodies of over {limit} octets are begun on this connection and not complete"
                raise AmqpError(c.RESOURCE_ERROR, text)

    def take(self, content: Content) -> tuple[bytes, bytes, bytes]:
        """Arguments, properties and body of the message that is complete; the channel may begin another."""
        whole = content.publish or b"", content.properties or b"", bytes(content.body)
        self.forget(content)
        return whole

    def forget(self, content: Content) -> None:
        """What has come of it is dropped, or was taken."""
        content.publish = content.properties = None
        content.size = 0
        self.add(-len(content.body))
        content.body = bytearray()
        if content.begun:
            del self._begun[content.begun]
            content.begun = 0

    def oldest(self) -> int:
        """A negative number that stays the same while the same body waits for its peer; 0: none does."""
        return -next(iter(self._begun)) if self._begun else 0

    def add(self, size: int) -> None:
        """Bytes came (or, negative, are free again)."""
        self.size += size
        self._total.size += size

    def exceeded(self) -> int:
        """The limit that the connection is beyond; 0: none."""
        limit = self._bytes_max if self._total.size <= PROCESS_BYTES_MAX else ASSEMBLING_BYTES_MAX
        return limit if self.size > limit else 0
