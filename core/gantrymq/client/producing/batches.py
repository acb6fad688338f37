"""Many messages in one request: explicit batches, and sends that are gathered for a moment (RocketMQ's ProduceAccumulator)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.messages import KEYS_SEPARATOR, OutMessage, SendResult, encode_properties
from gantrymq.client.producing.checks import check_message
from gantrymq.client.producing.sending import Outgoing, Sender
from gantrymq.model import properties as props
from gantrymq.model.batch import block
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.overview_codes import SEND_BLOCK

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Of one request; a RocketMQ broker's limit is 4 MiB by default, and a request that is tried again should not be large."""
BATCH_MAX: Final = 1000
"""Messages of one request."""
ROW_BYTES: Final = 64
"""What a message of a block has beside its columns: lengths, id, names of properties."""
HOLD_S: Final = 0.01
HOLD_BYTES: Final = 32 * 1024
"""A gathered batch leaves after this time or at this size (holdMs, holdSize)."""
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of all gathered messages without an answer; further sends wait (totalHoldSize)."""

#  total size 4 | magic 4 (0) | CRC 4 (0) | flag 4 | body length 4, body | properties length 2, properties
_HEAD: Final = struct.Struct(">IIIiI")
_SHORT: Final = struct.Struct(">H")
_COLUMNS: Final = frozenset({props.UNIQ_KEY, props.TAGS, props.KEYS})


def encode_part(message: OutMessage, unique_id: str) -> bytes:
    """One message of a batch's body. Raises as `encode_properties` does."""
    properties = encode_properties(message, unique_id).encode("utf-8", "surrogatepass")
    size = _HEAD.size + len(message.body) + _SHORT.size + len(properties)
    head = _HEAD.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join([head, message.body, _SHORT.pack(len(properties)), properties])


def check_batch(messages: Sequence[OutMessage]) -> None:
    """Raise ILLEGAL_ARGUMENT for what cannot share a request: several topics or queues, delays, sharding keys that differ (MessageBatch)."""
    if not messages:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a batch has at least one message")
    first = messages[0]
    for message in messages:
        check_message(message)
        if (message.topic, message.queue, message.sharding_key) != (first.topic, first.queue, first.sharding_key):
            text = "the messages of a batch have one topic, and one queue or sharding key if any"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
        if message.delay_level or message.deliver_at_ms or message.deliver_after_s:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a batch has no delayed messages: send them one by one")


async def send_batch(sender: Sender, messages: Sequence[OutMessage]) -> list[SendResult]:
    """All in one request, or in several if they are too many for one. Raises what the first failed request ended with."""
    check_batch(messages)
    if sender.takes_blocks and all(map(_is_ordinary, messages)):
        return await _send_blocks(sender, messages)
    results: list[SendResult] = []
    ids: list[str] = []
    parts: list[bytes] = []
    size = 0
    for message in messages:
        unique_id = sender.new_id()
        part = encode_part(message, unique_id)
        if parts and (size + len(part) > BATCH_BYTES_MAX or len(parts) >= BATCH_MAX):
            results += await _send_parts(sender, messages[0], ids, b"".join(parts))
            ids, parts, size = [], [], 0
        ids.append(unique_id)
        parts.append(part)
        size += len(part)
    return results + await _send_parts(sender, messages[0], ids, b"".join(parts))


def _is_ordinary(message: OutMessage) -> bool:
    """Whether it may stand in a block: tag, keys and id are columns there."""
    if message.flag or message.priority >= 0:
        return False
    return not message.properties or _COLUMNS.isdisjoint(message.properties)


async def _send_blocks(sender: Sender, messages: Sequence[OutMessage]) -> list[SendResult]:
    results: list[SendResult] = []
    columns: tuple[list[bytes], ...] = ([], [], [], [])
    size = 0
    for message in messages:
        row = _columns_of(message)
        more = sum(map(len, row)) + ROW_BYTES
        if size and (size + more > BATCH_BYTES_MAX or len(columns[0]) >= BATCH_MAX):
            results += await _send_block(sender, messages[0], columns)
            columns, size = ([], [], [], []), 0
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        size += more
    return results + await _send_block(sender, messages[0], columns)


def _columns_of(message: OutMessage) -> tuple[bytes, bytes, bytes, bytes]:
    """Body, properties, tag and keys."""
    keys = message.keys if isinstance(message.keys, str) else KEYS_SEPARATOR.join(message.keys)
    pairs = b""
    if message.properties or message.sharding_key:
        pairs = encode_properties(replace(message, tag="", keys=""), "").encode("utf-8", "surrogatepass")
    return message.body, pairs, message.tag.encode("utf-8", "surrogatepass"), keys.encode("utf-8", "surrogatepass")


async def _send_block(sender: Sender, first: OutMessage, columns: Sequence[list[bytes]]) -> list[SendResult]:
    count = len(columns[0])
    one = sender.new_ids(count)
    prefix, number = one[: block.PREFIX_DIGITS], int(one[block.PREFIX_DIGITS :], 16)
    ids = [f"{prefix}{at:0{block.NUMBER_DIGITS}X}" for at in range(number, number + count)]
    data = block.encode(prefix.encode(), number, *columns)
    try:
        return await _send_parts(sender, first, ids, data, SEND_BLOCK)
    except GantryError as error:
        if error.code is not ErrorCode.NOT_SUPPORTED:
            raise
        sender.takes_blocks = False  # a broker of RocketMQ
        return await _send_parts(sender, first, ids, block.as_items(data))


async def _send_parts(
    sender: Sender, first: OutMessage, ids: list[str], body: bytes, code: int = RequestCode.SEND_BATCH_MESSAGE
) -> list[SendResult]:
    message = OutMessage(first.topic, b"", sharding_key=first.sharding_key, queue=first.queue)
    outgoing = Outgoing(message, ids[0], body, code=code, properties="")
    result = await sender.send(outgoing)
    places = result.offset_message_id.split(",")
    if len(places) != len(ids):  # a broker with batch queues stores one record for all of them
        places = [places[0]] * len(ids)
    return [
        SendResult(unique_id, places[row], result.queue, result.queue_offset + row, result.durable)
        for row, unique_id in enumerate(ids)
    ]


class _Bucket:
    """Messages of one topic, or of one queue or sharding key of it, that leave together."""

    __slots__ = ("ids", "message", "parts", "size", "timer", "waiters")

    def __init__(self, message: OutMessage) -> None:
        self.message = message
        self.ids: list[str] = []
        self.parts: list[bytes] = []
        self.size = 0
        self.waiters: list[asyncio.Future[SendResult]] = []
        self.timer: asyncio.TimerHandle | None = None


class Accumulator:
    """Gathers sends: each still returns when its message is stored, but they share requests."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._buckets: dict[tuple[str, str, MessageQueue | None], _Bucket] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._held = 0
        self._room = asyncio.Condition()

    async def send(self, message: OutMessage) -> SendResult:
        """Send with others. Raises as `Producer.send` does; a failed request fails all of its messages."""
        check_batch([message])
        unique_id = self._sender.new_id()
        part = encode_part(message, unique_id)
        if self._held + len(part) > HELD_BYTES_MAX:
            async with self._room:
                await self._room.wait_for(lambda: not self._held or self._held + len(part) <= HELD_BYTES_MAX)
        self._held += len(part)
        key = (message.topic, message.sharding_key, message.queue)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(message)
            bucket.timer = asyncio.get_running_loop().call_later(HOLD_S, self._leave, key)
        bucket.ids.append(unique_id)
        bucket.parts.append(part)
        bucket.size += len(part)
        waiter: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        bucket.waiters.append(waiter)
        if bucket.size >= HOLD_BYTES or len(bucket.parts) >= BATCH_MAX:
            self._leave(key)
        return await waiter

    def _leave(self, key: tuple[str, str, MessageQueue | None]) -> None:
        bucket = self._buckets.pop(key)
        if bucket.timer is not None:
            bucket.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._send(bucket))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, bucket: _Bucket) -> None:
        try:
            results = await _send_parts(self._sender, bucket.message, bucket.ids, b"".join(bucket.parts))
            for waiter, result in zip(bucket.waiters, results, strict=True):
                if not waiter.done():
                    waiter.set_result(result)
        except Exception as error:  # each waiter raises it
            for waiter in bucket.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        finally:
            async with self._room:
                self._held -= bucket.size
                self._room.notify_all()

    async def close(self) -> None:
        """Send what is gathered and wait for its answers."""
        for key in list(self._buckets):
            self._leave(key)
        if self._sending:
            await asyncio.wait(self._sending)
