"""Reads queues by offset: the consumer decides where it reads, the broker waits with it for what is new.

Either it reads the queues that it is assigned and takes no part in a group's balancing (`assign`), or it reads its share of its topics as a
member of the group (`subscribe`, RocketMQ's lite pull). Offsets of its group are kept by the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Self

from gantrymq.client import allocation
from gantrymq.client.client import Client, Part
from gantrymq.client.connecting.link import Link
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.balance import Balancer
from gantrymq.client.consuming.offsets import COMMIT_S, commit, committed, find_start, max_offset, min_offset, offset_at
from gantrymq.client.consuming.pulling import PULL_MAX, PullResult, Subscription, parse_tags, pull_once
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command

_log = logging.getLogger(__name__)

ANSWER_S: Final = 1.0
"""How long an answer may be under way beyond the time that a pull was told to wait."""
EMPTY_PAUSE_S: Final = 0.05
"""Before a queue is asked again that answered at once without a message though it was asked to wait."""
WAIT_S: Final = 15.0
NOTHING_ASSIGNED_S: Final = 0.05
"""A member without queues looks again after this long whether it has got some."""


class PullConsumer(Part):
    """Reads assigned or subscribed queues: `pull`, or `async for message in consumer`. Holds at most one answer per queue beyond what `pull` has
    returned.

    Arguments:
        nameserver: `HOST:PORT`, several joined by `;`, or a page that names them; empty: `NAMESRV_ADDR`, else 127.0.0.1:9876.
        group: Whose offsets count; of a subscribed consumer, whose members share the queues.
        client: Connections to share; None: its own.
        tags: Of assigned queues: `a || b`, or `*` for all; the broker filters by hash, this class by the exact tag.
        start: Where a queue begins for which the group has no offset: `earliest` or `latest`.
        sql: Of assigned queues: an SQL92 filter instead of tags.
        strategy: How members share queues: a function of `gantrymq.client.allocation`, the same one in all members.
        auto_commit: Of a subscribed consumer: every 5 s what `pull` had returned before its latest call, and everything when it is closed
            (but not when `async with` ends with an exception).
        check_crc: A message whose body does not fit its CRC is left out, with a line of the log that names queue and offset; it counts as read.

    Attributes:
        client (Client): Its connections and routes.
        group (str): As given.
    """

    def __init__(
        self,
        nameserver: str = "",
        group: str = "gantry_pull",
        client: Client | None = None,
        tags: str = "*",
        start: str = "earliest",
        *,
        sql: str = "",
        strategy: allocation.Strategy = allocation.averagely,
        auto_commit: bool = True,
        check_crc: bool = False,
    ) -> None:
        super().__init__(nameserver, client)
        if start not in ("earliest", "latest"):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"start {start!r}: allowed are earliest and latest")
        self.group = group
        self._tags = parse_tags(tags)
        self._sql = sql
        self._start = start
        self._auto_commit = auto_commit
        self._check_crc = check_crc
        self._positions: dict[MessageQueue, int] = {}
        self._done: dict[MessageQueue, int] = {}
        """Positions before the latest `pull`: what auto commit keeps."""
        self._paused: set[MessageQueue] = set()
        self._asking: dict[asyncio.Task[PullResult], tuple[MessageQueue, int, float]] = {}
        """Requests under way: queue, offset, and when the broker answers at the latest."""
        self._ready: deque[tuple[MessageQueue, int, PullResult]] = deque()
        self._subscriptions: dict[str, Subscription] = {}
        self._balancer = Balancer(self.client, group, lambda: list(self._subscriptions), strategy, self._change)
        self._member = False
        self._closed = False
        self._clean = True
        self._committing: asyncio.Task[None] | None = None

    # which queues, and where

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of `topic` that can be read."""
        return (await self.client.routes.route(topic)).read_queues()

    async def assign(self, queues: Iterable[MessageQueue] | str) -> list[MessageQueue]:
        """Read these queues, or all of a topic, from the group's offsets on; ends the assignment before. Returns the queues."""
        if self._member:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a consumer that has subscribed cannot be assigned queues")
        wanted = await self.queues(queues) if isinstance(queues, str) else list(queues)
        for task in self._asking:
            task.cancel()
        self._asking.clear()
        self._ready.clear()
        self._positions = {}
        for queue in wanted:
            await self._take(queue)
        return wanted

    async def subscribe(self, topic: str, *, tags: str = "*", sql: str = "") -> None:
        """Read this member's share of `topic`; more topics may follow. Returns after a first rebalance. Raises TOPIC_NOT_FOUND."""
        if not self._member and self._positions:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a consumer that was assigned queues cannot subscribe")
        await self.client.routes.route(topic)
        self._subscriptions[topic] = Subscription.of(topic, tags, sql, self._check_crc)
        if self._member:
            await self.client.members.beat()
            self._balancer.wake()
            return
        self.client.members.join_consumer(self.group, self)
        self._member = True
        await self.client.members.beat()
        await self._balancer.start()
        if self._auto_commit:
            self._committing = asyncio.get_running_loop().create_task(self._commit_often())

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._positions)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Give nothing of these queues until `resume`."""
        self._paused |= set(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues."""
        self._paused -= set(queues)

    async def _take(self, queue: MessageQueue) -> None:
        kept = await self.committed(queue)
        self._positions[queue] = await find_start(self.client, queue, self._start) if kept is None else kept

    async def _change(self, topic: str, wanted: list[MessageQueue]) -> bool:
        gone = [queue for queue in self._positions if queue.topic == topic and queue not in wanted]
        if gone and self._auto_commit:
            await self.commit({queue: self._done.get(queue, self._positions[queue]) for queue in gone})
        for queue in gone:
            del self._positions[queue]
            self._done.pop(queue, None)
        for queue in wanted:
            if queue not in self._positions:
                await self._take(queue)
        return True

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that `pull` gives from an assigned queue."""
        return self._positions[queue]

    async def seek(self, queue: MessageQueue, to: int | str) -> int:
        """Go on at an offset, or at `earliest` or `latest`. Returns the offset."""
        offset = await find_start(self.client, queue, to) if isinstance(to, str) else to
        self._positions[queue] = offset
        self._done.pop(queue, None)
        self._ready = deque(item for item in self._ready if item[0] != queue)
        for task in [task for task, (asked, _, _) in self._asking.items() if asked == queue]:
            del self._asking[task]
            task.cancel()  # it waits at the place before, and the queue would not be asked again until it ends
        return offset

    async def seek_to_time(self, queue: MessageQueue, at_ms: int) -> int:
        """Go on at the first message stored at or after `at_ms` (milliseconds since the epoch). Returns the offset."""
        return await self.seek(queue, await offset_at(self.client, queue, at_ms))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the oldest message."""
        return await min_offset(self.client, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return await max_offset(self.client, queue)

    # reading

    async def pull(self, max_messages: int = PULL_MAX, wait_s: float = WAIT_S) -> list[ReceivedMessage]:
        """Messages of one assigned queue, at least one unless `wait_s` passes without any; moves that queue's position behind them.

        With `wait_s` 0 every queue is asked once, and none waits. Raises what a broker answers; after UNAVAILABLE it can simply be
        called again.
        """
        return await self._next(max_messages, wait_s, max_messages)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message, as soon as there is one; ends when the consumer is closed. The one before it then counts as done."""
        while not self._closed:
            messages = await self._next(1, WAIT_S, PULL_MAX)
            if messages:
                return messages[0]
        raise StopAsyncIteration

    async def _next(self, max_messages: int, wait_s: float, ask_max: int) -> list[ReceivedMessage]:
        """See `pull`; `ask_max`: messages of one request, of which the ones beyond `max_messages` are kept for the next call."""
        if not self._positions and not self._member:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "no queue is assigned: call assign() or subscribe() first")
        loop = asyncio.get_running_loop()
        self._done = dict(self._positions)
        deadline = loop.time() + wait_s
        asked = False
        while True:
            messages = self._take_ready(max_messages)
            now = loop.time()
            if messages:
                return messages
            if now < deadline or not asked:
                self._ask(ask_max, deadline)
                asked = True
            elif now >= deadline + ANSWER_S or all(until > deadline for _, _, until in self._asking.values()):
                return []  # whoever was asked has answered; those that wait longer were asked by a call before
            timeout = deadline - now if now < deadline else ANSWER_S
            if not self._asking:  # a member whose queues are all somebody else's, or paused
                await asyncio.sleep(min(timeout, NOTHING_ASSIGNED_S))
                continue
            done, _ = await asyncio.wait(self._asking, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                queue, offset, _ = self._asking.pop(task)
                self._ready.append((queue, offset, task.result()))

    def _ask(self, max_messages: int, until: float) -> None:
        """A request for every assigned queue that has none under way."""
        under_way = {queue for queue, _, _ in self._asking.values()}
        wait_ms = max(0, int((until - asyncio.get_running_loop().time()) * 1000))
        for queue, offset in self._positions.items():
            if queue not in under_way and queue not in self._paused:
                task = asyncio.ensure_future(self._pull_politely(queue, offset, max_messages, wait_ms))
                self._asking[task] = (queue, offset, until)

    async def pull_queue(
        self, queue: MessageQueue, offset: int, max_messages: int = PULL_MAX, wait_s: float = 0.0
    ) -> PullResult:
        """One request for one queue, assigned or not; positions stay. Without `wait_s` an empty queue answers at once."""
        count = max(1, min(max_messages, PULL_MAX))
        subscription = self._subscriptions.get(queue.topic) or Subscription(
            queue.topic, self._tags, self._sql, check_crc=self._check_crc
        )
        return await pull_once(
            self.client, self.group, queue, offset, subscription, count=count, wait_s=wait_s, lite=self._member
        )

    # the group's offsets

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, None if it has none."""
        return await committed(self.client, self.group, queue)

    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Keep offsets for the group, by default the position of every assigned queue. Returns when the brokers
        have them; ours makes them a record of the log within a second (RocketMQ: five), so a crash right after may repeat."""
        for queue, offset in dict(self._positions if offsets is None else offsets).items():
            await commit(self.client, self.group, queue, offset)

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self._commit_done()

    async def _commit_done(self) -> None:
        try:
            await self.commit(self._done)
        except GantryError as error:
            _log.warning("group %s: %s", self.group, error)

    async def close(self) -> None:
        """Stop asking, leave the group, and close the links, if they are this object's own."""
        self._closed = True
        try:
            await self._leave()
        finally:
            await super().close()

    async def _leave(self) -> None:
        if self._member:
            self._member = False
            await self._balancer.stop()
            if self._committing is not None:
                self._committing.cancel()
                await asyncio.wait([self._committing])
                if self._clean:
                    self._done = dict(self._positions)
                await self._commit_done()
            await self.client.members.leave(consumer=self.group)
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.gather(*self._asking, return_exceptions=True)  # a failure concerns nobody any more
        self._asking.clear()

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
            if self._positions.get(queue) != asked or queue in self._paused:
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

    async def __aexit__(self, *exception: object) -> None:
        self._clean = exception[0] is None
        await self.close()

    # membership.ConsumerMember

    def describe(self) -> dict[str, Any]:
        """See `ConsumerMember`."""
        where = "CONSUME_FROM_FIRST_OFFSET" if self._start == "earliest" else "CONSUME_FROM_LAST_OFFSET"
        return {
            "groupName": self.group,
            "consumeType": "CONSUME_ACTIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": where,
            "subscriptionDataSet": [subscription.data() for subscription in self._subscriptions.values()],
            "unitMode": False,
        }

    def members_changed(self) -> None:
        """See `ConsumerMember`."""
        self._balancer.wake()

    def serve(self, link: Link, command: Command) -> bool:
        """See `ConsumerMember`: nothing is asked of those who read when they like."""
        return False
