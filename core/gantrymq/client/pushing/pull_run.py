"""The pulls of one queue of a push consumer: each is asked for in the call that takes in what the one before it brought.

No task, future or coroutine per pull. A run ends where something else comes first (no room, no message, another subscription, no link, a
failure); its owner sees to that and begins the next run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gantrymq.client.client import Client
from gantrymq.client.connecting.link import REQUEST_TIMEOUT_S, Link, shape_of
from gantrymq.client.consuming.pulling import (
    PullResult,
    Subscription,
    parse_pull,
    pull_fields,
    pull_offsets,
    wanted_records,
)
from gantrymq.client.pushing.buffers import QueueBuffer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

PULL_WAIT_S: Final = 15.0
"""How long a broker holds a pull of an empty queue (brokerSuspendMaxTimeMillis)."""


class PullRun:
    """Pulls of `buffer`'s queue. `find`: its topic's subscription; `count`: messages of one pull; `commits`: pulls carry the group's offset along;
    `deliver(buffer, messages)` gets what the buffer has taken in."""

    def __init__(
        self,
        client: Client,
        group: str,
        buffer: QueueBuffer,
        find: Callable[[str], Subscription | None],
        deliver: Callable[[QueueBuffer, list[ReceivedMessage]], None],
        *,
        count: int,
        commits: bool,
    ) -> None:
        self.asked_offset = -1
        """Of the last pull."""
        self.asked_at = 0.0
        """Loop time."""
        self._client = client
        self._group = group
        self._buffer = buffer
        self._find = find
        self._deliver = deliver
        self._count = count
        self._commits = commits
        self._subscription: Subscription | None = None
        self._header = b""
        """Of a pull with this subscription; places for its offset, the group's offset and the opaque."""
        self._link: Link | None = None
        self._ended: asyncio.Future[PullResult | None] = asyncio.get_running_loop().create_future()

    async def go(self, subscription: Subscription) -> PullResult | None:
        """Pull until a run ends: the answer without messages that ended it, or None where it did not end with an answer. Raises what the broker
        answers, or UNAVAILABLE."""
        if subscription != self._subscription:
            self._subscription = subscription
            self._header = self._shape(subscription)
        self._link = await self._client.link_of(self._buffer.queue)
        self._ended = asyncio.get_running_loop().create_future()
        self._ask()
        return await self._ended

    def _shape(self, subscription: Subscription) -> bytes:
        wait_ms, commit = int(PULL_WAIT_S * 1000), 0 if self._commits else -1
        fields = pull_fields(self._group, self._buffer.queue, 0, self._count, subscription, wait_ms, commit)
        header = shape_of(Command(RequestCode.PULL_MESSAGE, fields)).replace(
            b'"queueOffset":"0"', b'"queueOffset":"%d"'
        )
        return header.replace(b'"commitOffset":"0"', b'"commitOffset":"%d"') if self._commits else header

    def _values(self, offset: int, floor: int) -> tuple[int, ...]:
        return (offset, floor) if self._commits else (offset,)

    def _ask(self) -> None:
        buffer, link = self._buffer, self._link
        assert link is not None
        self.asked_offset = buffer.next_offset
        self.asked_at = link.clock_s()
        values = self._values(buffer.next_offset, buffer.floor)
        link.post_header(self._header, values, b"", self._answered, REQUEST_TIMEOUT_S + PULL_WAIT_S)

    def _answered(self, answer: Command | GantryError) -> None:
        if self._ended.done():  # its owner was cancelled
            return
        if self._buffer.dropped:
            self._ended.set_result(None)
            return
        try:
            if isinstance(answer, GantryError):
                raise answer
            empty = self._take_in(answer)
        except Exception as error:  # its owner raises it
            self._ended.set_exception(error)
            return
        if empty is not None:
            self._ended.set_result(empty)
        elif self._may_go_on():
            self._ask()
        else:
            self._ended.set_result(None)

    def _take_in(self, answer: Command) -> PullResult | None:
        """The answer if it brought no message; else they are delivered."""
        buffer, link, subscription = self._buffer, self._link, self._subscription
        assert link is not None
        assert subscription is not None
        queue = buffer.queue
        following = pull_offsets(answer, queue, link.address)[0]
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            return parse_pull(answer, queue, link.address)[0]
        found = answer.code == ResponseCode.SUCCESS
        messages = wanted_records(answer.body, queue, subscription, link.address) if found else []
        buffer.add(messages)
        buffer.next_offset = following
        buffer.pulls += 1
        buffer.last_pull_ms = time.time_ns() // 1_000_000
        if not messages:
            return parse_pull(answer, queue, link.address)[0]
        self._deliver(buffer, messages)
        return None

    def _may_go_on(self) -> bool:
        buffer, link = self._buffer, self._link
        if buffer.dropped or buffer.is_full():
            return False
        found = self._find(buffer.queue.topic)
        if found is not self._subscription and found != self._subscription:
            return False
        return link is not None and link.is_open and self._client.open_link_of(buffer.queue) is link
