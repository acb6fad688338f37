"""Reads one range of one queue and hands out Arrow batches: the part of the source that runs in the executors.

Several pulls are under way at a time. A pull that brings less than expected (a stock broker gives 32 messages, large bodies fill the
4 MiB early) makes the ones behind it useless: they are asked for again from where it ended, in steps of what the broker gives.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from gantrymq.client.connecting.routes import loads
from gantrymq.client.consuming.pulling import PULL_MAX, PullResult, Subscription, parse_pull, pull_fields
from gantrymq.client.errors import expect_success
from gantrymq.client.records import crc_is_wrong, decode_records
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.decoding.columns import Decoder, Queue
from gantrymq.spark.decoding.views import View
from gantrymq.spark.planning.dividing import QueueRange
from gantrymq.spark.planning.offsets import lost
from gantrymq.spark.planning.selecting import Selection
from gantrymq.spark.wire import Metadata, Patience, Wire, wire

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Pull bodies are decoded together from this size on: a call has a fixed cost of 0.2 ms, and above some MiB the cache is left."""
AHEAD: Final = 3 * PULL_MAX
"""Messages asked for ahead of what was decoded: the broker works while this process decodes."""
PIPELINE_MAX: Final = 32
"""Requests under way for one queue, where a broker gives few messages a time."""
COMPACTED: Final = ("cleanup.policy", "COMPACTION")
GROW_AFTER: Final = 16
"""Full pulls in a row before a larger step is tried again."""


class Puller:
    """Raw bodies of a range, in order, through faults of the connection. `position`: offset behind the last body given."""

    def __init__(
        self, queue_range: QueueRange, nameservers: list[str], group: str, subscription: Subscription, strict: bool
    ) -> None:
        self._range = queue_range
        self._nameservers = nameservers
        self._group = group
        self._subscription = subscription
        self._filters = subscription.expression != "*"
        self._strict = strict
        self._address = queue_range.address
        self._patience = Patience()
        self._wire: Wire | None = None
        self._open: deque[tuple[int, int, int]] = deque()
        """(opaque, offset, count) of the pulls under way."""
        self._next = queue_range.start
        self._step = PULL_MAX
        self._full = 0
        self.position = queue_range.start

    def bodies(self) -> Iterator[bytes]:
        """Yields raw records; `position` is behind them when they are given. Raises DataLossError (if strict) and what a broker refuses."""
        try:
            while self.position < self._range.end:
                try:
                    body = self._pull()
                except GantryError as error:
                    self._restart(error)
                    continue
                if body:
                    self._patience.success()
                    yield body
        finally:
            self._abandon()

    def _pull(self) -> bytes:
        self._ask()
        assert self._wire is not None
        opaque, offset, count = self._open.popleft()
        answer = self._wire.receive(opaque)
        result, body = parse_pull(answer, self._range.queue, self._wire.address)
        if result.moved or (not body and result.next_offset <= offset):
            self._moved(offset, result)
            return b""
        self.position = min(result.next_offset, self._range.end)
        self._adapt(result.next_offset - offset, count)
        self._ask()  # the broker works on the next while the caller decodes this one
        return body

    def _ask(self) -> None:
        if self._wire is None:
            self._wire = wire(self._address)
        # Behind a filter nobody knows how far a pull goes.
        depth = 1 if self._filters else max(2, min(AHEAD // self._step, PIPELINE_MAX))
        commands: list[Command] = []
        places: list[tuple[int, int]] = []
        while len(self._open) + len(commands) < depth and self._next < self._range.end:
            count = min(self._step, self._range.end - self._next)
            fields = pull_fields(self._group, self._range.queue, self._next, count, self._subscription, 0)
            commands.append(Command(RequestCode.PULL_MESSAGE, fields))
            places.append((self._next, count))
            self._next += count
        if commands:
            opaques = self._wire.post(commands)
            self._open += [(opaque, *place) for opaque, place in zip(opaques, places, strict=True)]

    def _adapt(self, got: int, count: int) -> None:
        if got == count:
            self._full += 1
            if self._full >= GROW_AFTER and self._step < PULL_MAX:
                self._step, self._full = min(self._step * 2, PULL_MAX), 0
            return
        self._abandon()
        if not self._filters:
            self._step, self._full = max(1, min(got, PULL_MAX)), 0

    def _moved(self, offset: int, result: PullResult) -> None:
        """The broker has nothing at `offset`: it is outside of what it keeps, or at its end though the end was promised."""
        self._abandon()
        last = min(max(result.min_offset, offset + 1), self._range.end) - 1
        why = f"the broker begins at offset {result.min_offset}"
        if result.max_offset <= offset:
            last, why = self._range.end - 1, f"the broker ends at offset {result.max_offset}"
        elif result.min_offset <= offset:  # inside, and yet nothing: a pull of one more moment may find it
            raise GantryError(
                ErrorCode.UNAVAILABLE, f"pull of {self._range.queue} at {offset}: the broker gave nothing"
            )
        error = lost(self._range.queue, offset, last, why)
        if self._strict:
            raise error
        _log.warning("%s", error)
        self.position = self._next = last + 1

    def _restart(self, error: GantryError) -> None:
        self._abandon()
        self._wire = None
        self._patience.wait(error)
        try:
            self._address = Metadata(self._nameservers).route(self._range.topic).address(self._range.broker)
        except GantryError as why:
            _log.warning("route of topic %s: %s; trying %s again", self._range.topic, why, self._address)

    def _abandon(self) -> None:
        if self._wire is not None and self._wire.is_open:
            for opaque, _, _ in self._open:
                self._wire.abandon(opaque)
        self._open.clear()
        self._next = self.position


class Holes:
    """Without a filter every offset has its message: a hole is lost data, but in a topic that is compacted."""

    def __init__(self, queue_range: QueueRange, nameservers: list[str]) -> None:
        self._range = queue_range
        self._nameservers = nameservers
        self._allowed: bool | None = None
        """Not asked before there is one."""

    def check(self, offsets: Any, begin: int, end: int) -> None:
        """Raise DataLossError for the first hole between `begin` and `end`."""
        inside = offsets[(offsets >= begin) & (offsets < end)]
        if len(inside) == end - begin or self._are_allowed():
            return
        expected = begin
        for offset in [*inside.tolist(), end]:
            if offset != expected:
                raise lost(self._range.queue, expected, offset - 1, "the broker gave the messages around them")
            expected = offset + 1

    def _are_allowed(self) -> bool:
        if self._allowed is None:
            self._allowed = self._ask()
        return self._allowed

    def _ask(self) -> bool:
        topic = self._range.topic
        try:
            address = Metadata(self._nameservers).route(topic).address(self._range.broker)
            answer = wire(address).request(Command(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}))
            body = expect_success(answer, f"configuration of topic {topic!r}", address).body
        except GantryError as error:
            _log.warning("whether topic %s is compacted, which would allow the hole in it: %s", topic, error)
            return False
        return COMPACTED in (loads(body).get("attributes") or {}).items()


def read_range(
    queue_range: QueueRange, schema: pa.Schema, nameservers: list[str], group: str, tags: tuple[str, ...], strict: bool,
    check_crc: bool = False, sql: str = "", columns: str = "", selection: Selection | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Arrow batches of a range, rows in offset order; `columns`: the view that `schema` is of (decoding/views.py). With `strict` a missing offset raises DataLossError, unless `tags` or `sql` filter or the topic is compacted; with
    `check_crc` so does a body that does not fit its CRC, which else is left out with a warning."""
    queue = queue_range.queue
    view = View(columns, schema, selection)
    decoder = Decoder(Queue(queue.topic, queue.broker, queue.queue_id), view.decoded, tags)
    puller = Puller(queue_range, nameservers, group, Subscription(queue.topic, frozenset(tags), sql), strict)
    whole = Holes(queue_range, nameservers) if strict and not tags and not sql else None
    bodies: list[bytes] = []
    size, expected = 0, queue_range.start
    for body in puller.bodies():
        if check_crc:
            body = whole_bodies(body, queue_range, strict)
        bodies.append(body)
        size += len(body)
        if size >= BLOCK_BYTES:
            yield from view.batches(_decode(decoder, bodies, queue_range, expected, puller.position, whole))
            bodies, size, expected = [], 0, puller.position
    if bodies or whole is not None:
        yield from view.batches(_decode(decoder, bodies, queue_range, expected, queue_range.end, whole))


def whole_bodies(data: bytes, queue_range: QueueRange, strict: bool) -> bytes:
    """The records of a pull without those whose body does not fit its CRC; raises DataLossError for the first if `strict`."""
    for message in decode_records(data):
        if crc_is_wrong(message.body_crc, message.raw_body):
            break
    else:
        return data
    parts: list[bytes] = []
    at = 0
    for message in decode_records(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if crc_is_wrong(message.body_crc, message.raw_body):
            offset = message.queue_offset
            error = lost(queue_range.queue, offset, offset, "the CRC of its body is wrong")
            if strict:
                raise error
            _log.warning("%s", error)
        else:
            parts.append(data[at : at + size])
        at += size
    return b"".join(parts)


def _decode(
    decoder: Decoder, bodies: list[bytes], queue_range: QueueRange, begin: int, end: int, holes: Holes | None
) -> Iterator[pa.RecordBatch]:
    """Batches of one block that was pulled for offsets `begin` to `end`."""
    batches, offsets = decoder.decode(bodies, begin, end)
    if holes is not None:
        holes.check(offsets, begin, end)
    yield from batches
