"""Reads queues by offset: the consumer decides where it reads, the broker waits with it for what is new.

Never takes part in a group's balancing: it reads the queues that it is assigned. Offsets of its group are kept by the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from gantrymq.client.client import Client, Part
from gantrymq.client.errors import BrokerError, expect_success, number
from gantrymq.client.pulling import PULL_MAX, PullResult, Subscription, parse_tags, pull_once
from gantrymq.client.records import ReceivedMessage
from gantrymq.client.routes import MessageQueue
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

_log = logging.getLogger(__name__)

ANSWER_S: Final = 1.0
"""How long an answer may be under way beyond the time that a pull was told to wait."""
EMPTY_PAUSE_S: Final = 0.05
"""Before a queue is asked again that answered at once without a message though it was asked to wait."""


class PullConsumer(Part):
    """Reads assigned queues. `tags`: `a || b`, or `*` for all; the broker filters by hash, this class by the exact tag.

    `start`: where a queue begins for which the group has no offset: `earliest` or `latest`.
    """

    def __init__(
        self,
        nameserver: str = "",
        group: str = "gantry_pull",
        client: Client | None = None,
        tags: str = "*",
        start: str = "earliest",
    ) -> None:
        super().__init__(nameserver, client)
        if start not in ("earliest", "latest"):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"start {start!r}: allowed are earliest and latest")
        self.group = group
        self._tags = parse_tags(tags)
        self._start = start
        self._positions: dict[MessageQueue, int] = {}
        self._asking: dict[asyncio.Task[PullResult], tuple[MessageQueue, int, float]] = {}
        """Requests under way: queue, offset, and when the broker answers at the latest."""
        self._ready: deque[tuple[MessageQueue, int, PullResult]] = deque()

    # which queues, and where

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of `topic` that can be read."""
        return (await self.client.routes.route(topic)).read_queues()

    async def assign(self, queues: Iterable[MessageQueue] | str) -> list[MessageQueue]:
        """Read these queues, or all of a topic, from the group's offsets on; ends the assignment before. Returns the queues."""
        wanted = await self.queues(queues) if isinstance(queues, str) else list(queues)
        for task in self._asking:
            task.cancel()
        self._asking.clear()
        self._ready.clear()
        self._positions = {}
        for queue in wanted:
            kept = await self.committed(queue)
            self._positions[queue] = await self._find(queue, self._start) if kept is None else kept
        return wanted

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that `pull` gives from an assigned queue."""
        return self._positions[queue]

    async def seek(self, queue: MessageQueue, to: int | str) -> int:
        """Go on at an offset, or at `earliest` or `latest`. Returns the offset."""
        offset = await self._find(queue, to) if isinstance(to, str) else to
        self._positions[queue] = offset
        self._ready = deque(item for item in self._ready if item[0] != queue)
        return offset

    async def seek_to_time(self, queue: MessageQueue, at_ms: int) -> int:
        """Go on at the first message stored at or after `at_ms` (milliseconds since the epoch). Returns the offset."""
        fields = {**self._place(queue), "timestamp": str(at_ms)}
        return await self.seek(queue, await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the oldest message."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, self._place(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, self._place(queue))

    # reading

    async def pull(self, max_messages: int = PULL_MAX, wait_s: float = 15.0) -> list[ReceivedMessage]:
        """Messages of one assigned queue, at least one unless `wait_s` passes without any; moves that queue's position behind them.

        With `wait_s` 0 every queue is asked once, and none waits. Raises what a broker answers; after UNAVAILABLE it can simply be
        called again.
        """
        if not self._positions:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "no queue is assigned: call assign() first")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        asked = False
        while True:
            messages = self._take_ready(max_messages)
            now = loop.time()
            if messages:
                return messages
            if now < deadline or not asked:
                self._ask(max_messages, deadline)
                asked = True
            elif now >= deadline + ANSWER_S or all(until > deadline for _, _, until in self._asking.values()):
                return []  # whoever was asked has answered; those that wait longer were asked by a call before
            timeout = deadline - now if now < deadline else ANSWER_S
            done, _ = await asyncio.wait(self._asking, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                queue, offset, _ = self._asking.pop(task)
                self._ready.append((queue, offset, task.result()))

    def _ask(self, max_messages: int, until: float) -> None:
        """A request for every assigned queue that has none under way."""
        under_way = {queue for queue, _, _ in self._asking.values()}
        wait_ms = max(0, int((until - asyncio.get_running_loop().time()) * 1000))
        for queue, offset in self._positions.items():
            if queue not in under_way:
                task = asyncio.ensure_future(self._pull_politely(queue, offset, max_messages, wait_ms))
                self._asking[task] = (queue, offset, until)

    async def pull_queue(
        self, queue: MessageQueue, offset: int, max_messages: int = PULL_MAX, wait_s: float = 0.0
    ) -> PullResult:
        """One request for one queue, assigned or not; positions stay. Without `wait_s` an empty queue answers at once."""
        count = max(1, min(max_messages, PULL_MAX))
        subscription = Subscription(queue.topic, self._tags)
        return await pull_once(self.client, self.group, queue, offset, subscription, count=count, wait_s=wait_s)

    # the group's offsets

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, None if it has none."""
        fields = {"consumerGroup": self.group, **self._place(queue), "setZeroIfNotFound": "false"}
        try:
            return await self._offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except BrokerError as error:
            if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Keep offsets for the group, by default the position of every assigned queue. Returns when the brokers
        have them; ours makes them a record of the log within a second (RocketMQ: five), so a crash right after may repeat."""
        for queue, offset in (self._positions if offsets is None else offsets).items():
            link = await self.client.link_of(queue)
            fields = {"consumerGroup": self.group, **self._place(queue), "commitOffset": str(offset)}
            answer = await link.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
            expect_success(answer, f"commit of {queue}", link.address)

    async def close(self) -> None:
        """Stop asking and close the links, if they are this object's own."""
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.gather(*self._asking, return_exceptions=True)  # a failure concerns nobody any more
        self._asking.clear()
        await super().close()

    async def _pull_politely(self, queue: MessageQueue, offset: int, count: int, wait_ms: int) -> PullResult:
        begun = asyncio.get_running_loop().time()
        result = await self.pull_queue(queue, offset, count, wait_ms / 1000)
        idle = not result.messages and result.next_offset == offset
        if idle and wait_ms and asyncio.get_running_loop().time() - begun < EMPTY_PAUSE_S:
            await asyncio.sleep(EMPTY_PAUSE_S)
        return result

    def _take_ready(self, max_messages: int) -> list[ReceivedMessage]:
        while self._ready:
            queue, asked, result = self._ready.popleft()
            if self._positions.get(queue) != asked:
                continue  # somebody called seek in the meantime
            if result.moved:
                _log.warning(
                    "%s: offset %d is gone, the broker has %d to %d; going on at %d",
                    queue, asked, result.min_offset, result.max_offset, result.next_offset,
                )  # fmt: skip
            messages, rest = result.messages[:max_messages], result.messages[max_messages:]
            if rest:
                position = rest[0].queue_offset
                left = PullResult(rest, result.next_offset, result.min_offset, result.max_offset)
                self._ready.appendleft((queue, position, left))
            else:
                position = result.next_offset
            self._positions[queue] = position
            if messages:
                return messages
        return []

    @staticmethod
    def _place(queue: MessageQueue) -> dict[str, str]:
        return {"topic": queue.topic, "queueId": str(queue.queue_id)}

    async def _find(self, queue: MessageQueue, to: str) -> int:
        if to == "earliest":
            return await self.min_offset(queue)
        if to == "latest":
            return await self.max_offset(queue)
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{to!r}: allowed are an offset, earliest and latest")

    async def _offset(self, queue: MessageQueue, code: RequestCode, fields: dict[str, str]) -> int:
        link = await self.client.link_of(queue)
        what = f"{code.name} of {queue}"
        answer = expect_success(await link.request(Command(code, fields)), what, link.address)
        return number(answer, "offset", what, link.address)
