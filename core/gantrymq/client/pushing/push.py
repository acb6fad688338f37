"""A consumer whose handlers are called with messages: reads its share of the queues of its group, keeps offsets, balances, retries.

In a group (clustering) the queues are shared between the members, what fails comes back over the group's retry topic and becomes a dead letter
in the end. In broadcast every member reads everything, offsets are kept in a file here, and what fails is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from gantrymq.client import allocation
from gantrymq.client.client import Client, Part
from gantrymq.client.connecting.link import Link
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.balance import Balancer, lock_queues, unlock_queues
from gantrymq.client.consuming.offsets import COMMIT_S, BrokerOffsets, FileOffsets, OffsetStore, find_start
from gantrymq.client.consuming.pulling import PullResult, Subscription
from gantrymq.client.pushing import buffers, inspection
from gantrymq.client.pushing.buffers import QueueBuffer
from gantrymq.client.pushing.delivery import (
    CONCURRENCY,
    CONSUME_TIMEOUT_S,
    SUSPEND_S,
    ConcurrentDelivery,
    Delivery,
    OrderlyDelivery,
    Terms,
)  # fmt: skip
from gantrymq.client.pushing.handlers import RECONSUME_MAX, BatchHandler, Handler, Subscribed
from gantrymq.client.pushing.pull_run import PullRun
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import RETRY_PREFIX, check_group
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import ResponseCode

_log = logging.getLogger(__name__)

PULL_BATCH: Final = 256
"""Messages of one pull; a stock RocketMQ broker gives at most 32."""
EMPTY_PAUSE_S: Final = 0.05
"""Before a queue is pulled again that answered at once without a message though it was asked to wait."""
FAILED_PAUSE_S: Final = 0.1
FAILED_PAUSE_MAX_S: Final = 3.0
"""Before a pull is tried again that failed: doubled each time."""
QUIET_S: Final = 1.0
"""A queue that moves to another member waits this long for handler calls under way."""
CLOSE_S: Final = 10.0
"""`close` waits this long for handler calls under way."""
LOCK_S: Final = 20.0
LOCKED_S: Final = 30.0
"""Locks of orderly queues are renewed this often, and count for this long; the broker's last 60 s."""
BACKGROUND_MAX: Final = 64
"""Requests of tools that are answered at a time: people ask them."""
DEFAULT_GROUP: Final = "gantry_push"
DEFAULT_OFFSET_DIRECTORY: Final = "~/.gantrymq/offsets"

H = TypeVar("H", bound=Callable[..., Any])


class PushConsumer(Part):
    """Calls handlers with messages.

    ```
    consumer = PushConsumer("127.0.0.1:9876", group="billing")

    @consumer.subscribe("orders", tags="paid || refunded")
    async def handle(message): ...

    async with consumer: await asyncio.Event().wait()
    ```

    Arguments:
        nameserver: `HOST:PORT`, several joined by `;`, or a page that names them; empty: `NAMESRV_ADDR`, else 127.0.0.1:9876.
        group: Whose members share the queues; without one it is `gantry_push`, with a warning.
        client: Connections to share; None: its own.
        orderly: Handle the messages of a queue one after the other, under the broker's lock.
        broadcast: Every member reads everything; what fails is logged and dropped.
        start: Where a queue begins for which the group has no offset: `latest`, `earliest`, or milliseconds since the epoch.
        strategy: How members share queues: a function of `gantrymq.client.allocation`, the same one in all members.
        concurrency: Handler calls at a time.
        batch: Above 1 handlers get lists of up to so many messages.
        pull_batch: Messages of one pull; a stock RocketMQ broker gives at most 32.
        reconsume_max: Attempts beyond the first before a message becomes a dead letter; None: 16, orderly: no limit.
        consume_timeout_s: A handler call that takes longer is cancelled and counts as failed.
        suspend_s: Pause of an orderly queue after a failure.
        queue_messages_max: Messages of one queue that wait here; then it is not pulled.
        offset_directory: Broadcast's offsets, one file per group.
        check_crc: A message whose body does not fit its CRC is left out, with a line of the log that names queue and offset; it counts as handled.

    Attributes:
        client (Client): Its connections and routes.
        group (str): As given, or `gantry_push`.
        orderly (bool): As given.
        broadcast (bool): As given.
        start_at (str | int): `start` as given.
        concurrency (int): As given.
        started_ms (int): When `start` was called; 0 before.
    """

    def __init__(
        self,
        nameserver: str = "",
        group: str = "",
        client: Client | None = None,
        *,
        orderly: bool = False,
        broadcast: bool = False,
        start: str | int = "latest",
        strategy: allocation.Strategy = allocation.averagely,
        concurrency: int = CONCURRENCY,
        batch: int = 1,
        pull_batch: int = PULL_BATCH,
        reconsume_max: int | None = None,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        suspend_s: float = SUSPEND_S,
        queue_messages_max: int = buffers.MESSAGES_MAX,
        offset_directory: str | Path = DEFAULT_OFFSET_DIRECTORY,
        check_crc: bool = False,
    ) -> None:
        super().__init__(nameserver, client)
        self._check_crc = check_crc
        self._group_is_default = not group
        group = group or DEFAULT_GROUP
        check_group(group)
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"start {start!r}: allowed are earliest, latest and a time")
        self.group = group
        self.orderly = orderly
        self.broadcast = broadcast
        self.start_at = start
        self.concurrency = concurrency
        self.started_ms = 0
        self._subscribed: dict[str, Subscribed] = {}
        self._batch = batch
        self._pull_batch = pull_batch
        self._messages_max = queue_messages_max
        self._buffers: dict[MessageQueue, QueueBuffer] = {}
        self._pulls: dict[QueueBuffer, asyncio.Task[None]] = {}
        self._pool = ThreadPoolExecutor(concurrency, "gantrymq-handler")  # starts threads when they are needed
        unlimited = orderly and reconsume_max is None
        self._terms = Terms(
            self.client, group, self._subscribed.get, self._pool,
            -1 if unlimited else RECONSUME_MAX if reconsume_max is None else reconsume_max,
            not broadcast, concurrency, batch, consume_timeout_s,
        )  # fmt: skip
        self._suspend_s = suspend_s
        self._delivery: Delivery | None = None
        path = Path(offset_directory).expanduser() / f"{group}.json"
        self._offsets: OffsetStore = FileOffsets(path) if broadcast else BrokerOffsets(self.client, group)
        self._balancer = Balancer(self.client, group, self._topics, None if broadcast else strategy, self._change)
        self._background: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._running = False

    # what is subscribed

    def subscribe(
        self, topic: str, handler: Handler | BatchHandler | None = None, *, tags: str = "*", sql: str = ""
    ) -> Callable[[H], H]:
        """Call `handler` with messages of `topic`: those with one of the tags `a || b`, or those that an SQL92 filter takes. Without `handler` this
        decorates one. May be called again for the same topic, and while the consumer runs."""
        subscription = Subscription.of(topic, tags, sql, self._check_crc)

        def keep(function: H) -> H:
            self._subscribed[topic] = Subscribed.of(subscription, function, self._batch > 1)
            if self._running:
                self.client.members.beat_soon()
                self._balancer.wake()
            return function

        if handler is not None:
            keep(handler)
        return keep

    def unsubscribe(self, topic: str) -> None:
        """Read `topic` no more; its queues go to other members."""
        if self._subscribed.pop(topic, None) is not None and self._running:
            self.client.members.beat_soon()
            self._in_background(self._change(topic, []))

    def _subscription(self, topic: str) -> Subscription | None:
        if topic == RETRY_PREFIX + self.group:
            return Subscription(topic, check_crc=self._check_crc)
        found = self._subscribed.get(topic)
        return found.subscription if found is not None else None

    def _topics(self) -> list[str]:
        return [*self._subscribed, *([] if self.broadcast else [RETRY_PREFIX + self.group])]

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return sorted(self._buffers)

    def in_hand(self) -> int:
        """Messages that wait here or are being handled."""
        return sum(map(len, self._buffers.values()))

    # life

    async def start(self) -> None:
        """Join the group and begin. Returns after the first rebalance; raises ALREADY_EXISTS if the client has a consumer of this group."""
        if self._running:
            return
        if not self._subscribed:
            _log.warning(
                "group %s: nothing is subscribed, so nothing is consumed until subscribe() is called", self.group
            )
        if self._group_is_default:
            _log.warning(
                "no group was given: this consumer shares the messages of %s with all that named none; give group=",
                self.group,
            )
        for topic in self._subscribed:
            try:
                await self.client.routes.route(topic)
            except GantryError as error:
                if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                    raise
                _log.warning("group %s: topic %s does not exist yet", self.group, topic)
        self.client.members.join_consumer(self.group, self)
        self._running = True
        self.started_ms = time.time_ns() // 1_000_000
        terms = self._terms
        self._delivery = OrderlyDelivery(terms, self._suspend_s) if self.orderly else ConcurrentDelivery(terms)
        await self.client.members.beat()
        await self._balancer.start()
        self._in_background(self._commit_often())
        if self.orderly and not self.broadcast:
            self._in_background(self._lock_often())

    async def __aenter__(self) -> PushConsumer:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Pull no more, wait for handler calls under way (10 s at most), keep the offsets, leave the group."""
        try:
            if self._running:
                await self._leave()
        finally:
            self._pool.shutdown(wait=False)
            await super().close()

    async def _leave(self) -> None:
        self._running = False
        await self._balancer.stop()
        assert self._delivery is not None
        self._delivery.clear()
        await self._end(self._pulls.values())
        self._pulls.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_S
        for buffer in self._buffers.values():
            await buffer.quiet(max(0.0, until - loop.time()))
        await self._end(self._background)
        await self.commit()
        if self.orderly and not self.broadcast:
            await unlock_queues(self.client, self.group, self._buffers)
        for buffer in self._buffers.values():
            buffer.drop()
        self._buffers.clear()
        await self.client.members.leave(consumer=self.group)

    async def commit(self) -> None:
        """Keep the offsets now; otherwise that happens every 5 s."""
        await self._offsets.write({queue: buffer.floor for queue, buffer in self._buffers.items()})

    @staticmethod
    async def _end(tasks: Any) -> None:
        ending = [task for task in tasks if task is not asyncio.current_task()]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()

    # balancing

    async def _change(self, topic: str, wanted: list[MessageQueue]) -> bool:
        async with self._changing:
            return await self._change_now(topic, wanted)

    async def _change_now(self, topic: str, wanted: list[MessageQueue]) -> bool:
        gone = [
            queue
            for queue, buffer in self._buffers.items()
            if queue.topic == topic and (queue not in wanted or buffer.dropped)
        ]
        settled = all(await asyncio.gather(*[self._give_up(queue) for queue in gone]))
        subscription = self._subscription(topic)
        fresh = [queue for queue in wanted if queue not in self._buffers]
        if subscription is None or not fresh:
            return settled
        if self.orderly and not self.broadcast:
            held = await lock_queues(self.client, self.group, fresh)
            settled &= len(held) == len(fresh)
            fresh = [queue for queue in fresh if queue in held]
        for queue in fresh:
            settled &= await self._take(queue)
        return settled

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            offset = await self._offsets.read(queue)
            if offset is None:
                is_retry = queue.topic.startswith(RETRY_PREFIX)
                offset = await find_start(self.client, queue, "earliest" if is_retry else self.start_at)
        except GantryError as error:
            _log.warning("group %s: %s is not read yet: %s", self.group, queue, error)
            return False
        buffer = self._buffers[queue] = QueueBuffer(queue, offset, self._messages_max)
        if self.orderly:
            buffer.locked_until = asyncio.get_running_loop().time() + LOCKED_S
        self._pulls[buffer] = asyncio.get_running_loop().create_task(self._pull(buffer))
        _log.info("group %s: reads %s from %d on", self.group, queue, offset)
        return True

    async def _give_up(self, queue: MessageQueue) -> bool:
        """Hand a queue to another member; False if a handler call of an orderly one takes too long: it stays until the next round."""
        buffer = self._buffers[queue]
        buffer.drop(buffer.reset_to)
        pull = self._pulls.pop(buffer, None)
        if pull is not None:
            pull.cancel()
        if not await buffer.quiet(QUIET_S) and self.orderly:
            return False
        floor = buffer.floor
        del self._buffers[queue]
        await self._offsets.write({queue: floor}, force=buffer.reset_to is not None)
        if self.orderly and not self.broadcast:
            await unlock_queues(self.client, self.group, [queue])
        _log.info("group %s: gave up %s at %d", self.group, queue, floor)
        return True

    async def _lock_often(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOCK_S)
            asked_at = loop.time()
            held = await lock_queues(self.client, self.group, [q for q, b in self._buffers.items() if not b.dropped])
            for queue, buffer in self._buffers.items():
                if queue in held:
                    buffer.locked_until = asked_at + LOCKED_S

    # reading

    async def _pull(self, buffer: QueueBuffer) -> None:
        """One queue, as long as it is ours."""
        loop = asyncio.get_running_loop()
        run = PullRun(
            self.client, self.group, buffer, self._subscription, self._deliver, count=self._pull_batch,
            commits=not self.broadcast,
        )  # fmt: skip
        pause = FAILED_PAUSE_S
        while not buffer.dropped:
            await buffer.room()
            before = buffer.pulls
            subscription = self._subscription(buffer.queue.topic)
            try:
                empty = await run.go(subscription) if subscription is not None else None
            except GantryError as error:
                if buffer.pulls > before:
                    pause = FAILED_PAUSE_S
                _log.warning("group %s: pull of %s, again in %.1f s: %s", self.group, buffer.queue, pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, FAILED_PAUSE_MAX_S)
                continue
            pause = FAILED_PAUSE_S
            if subscription is None:
                await asyncio.sleep(EMPTY_PAUSE_S)
            elif empty is not None and empty.moved:
                self._moved(buffer, empty)
            elif (
                empty is not None
                and empty.next_offset == run.asked_offset
                and loop.time() - run.asked_at < EMPTY_PAUSE_S
            ):
                await asyncio.sleep(EMPTY_PAUSE_S)

    def _deliver(self, buffer: QueueBuffer, messages: list[ReceivedMessage]) -> None:
        if self._delivery is not None:
            self._delivery.add(buffer, messages)

    def _moved(self, buffer: QueueBuffer, result: PullResult) -> None:
        """Messages expired, or the queue was reset at the broker: what waits here is of another place."""
        _log.warning(
            "group %s: %s: the broker has %d to %d and refuses offset %d; going on at %d", self.group, buffer.queue,
            result.min_offset, result.max_offset, buffer.next_offset, result.next_offset,
        )  # fmt: skip
        buffer.drop(result.next_offset)
        self._in_background(self.reset({buffer.queue: result.next_offset}))

    # membership.ConsumerMember

    def describe(self) -> dict[str, Any]:
        """See `ConsumerMember`."""
        where = {"latest": "CONSUME_FROM_LAST_OFFSET", "earliest": "CONSUME_FROM_FIRST_OFFSET"}
        subscriptions = [found for topic in self._topics() if (found := self._subscription(topic)) is not None]
        return {
            "groupName": self.group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "BROADCASTING" if self.broadcast else "CLUSTERING",
            "consumeFromWhere": where.get(str(self.start_at), "CONSUME_FROM_TIMESTAMP"),
            "subscriptionDataSet": [subscription.data() for subscription in subscriptions],
            "unitMode": False,
        }

    def members_changed(self) -> None:
        """See `ConsumerMember`."""
        self._balancer.wake()

    def serve(self, link: Link, command: Command) -> bool:
        """See `ConsumerMember`: offsets reset, asked for, and what runs here."""
        if len(self._background) >= BACKGROUND_MAX:
            link.answer(command, ResponseCode.SYSTEM_BUSY, f"{BACKGROUND_MAX} requests are being answered already")
            return True
        work = inspection.answer(self, link, command)
        if work is not None:
            self._in_background(work)
        return work is not None

    async def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues that are read here, now and for the group."""
        ended = {}
        for queue, offset in offsets.items():
            buffer = self._buffers.get(queue)
            if buffer is not None:
                buffer.drop(offset)
                ended[queue] = buffer
        async with self._changing:
            for queue, buffer in ended.items():
                if self._buffers.get(queue) is buffer:  # a rebalance may have seen it first, and done the same
                    given_up = await self._give_up(queue)
                    if given_up and (self.broadcast or not self.orderly):
                        await self._take(queue)
                    else:  # needs its lock again
                        self._balancer.wake()

    def states(self) -> dict[MessageQueue, QueueBuffer]:
        """The queues that are read here, for tools."""
        return self._buffers

    def subscriptions(self) -> list[Subscription]:
        """What is subscribed, the retry topic included."""
        return [found for topic in self._topics() if (found := self._subscription(topic)) is not None]

    def handler_of(self, topic: str) -> Subscribed | None:
        """The handler of a topic."""
        return self._subscribed.get(topic)

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Where plain functions run."""
        return self._pool
