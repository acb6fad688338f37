"""Where a group's offsets are kept: at the brokers (clustering), or in a file of this machine (broadcast)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from gantrymq.client.client import Client
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.errors import BrokerError, expect_success, number
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

_log = logging.getLogger(__name__)

COMMIT_S: Final = 5.0
"""Between two commits, as RocketMQ's persistConsumerOffsetInterval."""


def place(queue: MessageQueue) -> dict[str, str]:
    """A queue as request fields name it."""
    return {"topic": queue.topic, "queueId": str(queue.queue_id)}


async def ask_offset(client: Client, queue: MessageQueue, code: RequestCode, fields: dict[str, str]) -> int:
    """The `offset` that a request about a queue is answered with."""
    link = await client.link_of(queue)
    what = f"{code.name} of {queue}"
    answer = expect_success(await link.request(Command(code, {**place(queue), **fields})), what, link.address)
    return number(answer, "offset", what, link.address)


async def min_offset(client: Client, queue: MessageQueue) -> int:
    """Offset of the oldest message."""
    return await ask_offset(client, queue, RequestCode.GET_MIN_OFFSET, {})


async def max_offset(client: Client, queue: MessageQueue) -> int:
    """Offset that the next message will get."""
    return await ask_offset(client, queue, RequestCode.GET_MAX_OFFSET, {})


async def offset_at(client: Client, queue: MessageQueue, at_ms: int) -> int:
    """Offset of the first message stored at or after `at_ms` (milliseconds since the epoch)."""
    return await ask_offset(client, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(at_ms)})


async def find_start(client: Client, queue: MessageQueue, start: str | int) -> int:
    """Where a group begins that has no offset: `earliest`, `latest`, or milliseconds since the epoch. Raises ILLEGAL_ARGUMENT."""
    if isinstance(start, int):
        return await offset_at(client, queue, start)
    if start == "earliest":
        return await min_offset(client, queue)
    if start == "latest":
        return await max_offset(client, queue)
    raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{start!r}: allowed are an offset, earliest and latest")


async def committed(client: Client, group: str, queue: MessageQueue) -> int | None:
    """A group's offset at the broker, None if it has none."""
    fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
    try:
        return await ask_offset(client, queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
    except BrokerError as error:
        if error.response_code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise


async def commit(client: Client, group: str, queue: MessageQueue, offset: int) -> None:
    """Keep a group's offset at the broker; returns when it has it."""
    link = await client.link_of(queue)
    fields = {"consumerGroup": group, **place(queue), "commitOffset": str(offset)}
    answer = await link.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
    expect_success(answer, f"commit of {queue}", link.address)


class OffsetStore(Protocol):
    """Offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset, None if there is none."""

    async def write(self, offsets: Mapping[MessageQueue, int], force: bool = False) -> None:
        """Keep these; what cannot be kept now is logged and comes again with the next call. `force`: also what was kept before (pulls carry
        offsets as well, so the broker may have a later one)."""


class BrokerOffsets:
    """Offsets at the brokers. A write costs one request per queue whose offset is another than at the last one."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._written: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> int | None:
        """See `OffsetStore`."""
        self._written.pop(queue, None)
        return await committed(self._client, self._group, queue)

    async def write(self, offsets: Mapping[MessageQueue, int], force: bool = False) -> None:
        """See `OffsetStore`."""
        for queue, offset in offsets.items():
            if not force and self._written.get(queue) == offset:
                continue
            try:
                await commit(self._client, self._group, queue, offset)
                self._written[queue] = offset
            except GantryError as error:
                _log.warning("group %s: commit of %s at %d: %s", self._group, queue, offset, error)


class FileOffsets:
    """Offsets in a JSON file, `{"topic/broker/queue": offset}`, replaced whole. A file that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, int] = {}
        try:
            kept = json.loads(path.read_text())
            self._offsets = {str(name): int(offset) for name, offset in kept.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError, TypeError) as error:
            _log.warning("%s: offsets cannot be read, beginning without: %r", path, error)

    async def read(self, queue: MessageQueue) -> int | None:
        """See `OffsetStore`."""
        return self._offsets.get(str(queue))

    async def write(self, offsets: Mapping[MessageQueue, int], force: bool = False) -> None:
        """See `OffsetStore`."""
        new = {str(queue): offset for queue, offset in offsets.items()}
        if new.items() <= self._offsets.items():
            return
        self._offsets |= new
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._offsets, indent=1, sort_keys=True))
            os.replace(temporary, self._path)
        except OSError as error:
            _log.warning("%s: offsets cannot be kept: %s", self._path, error)
