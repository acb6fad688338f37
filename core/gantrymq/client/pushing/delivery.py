"""Runs a push consumer's handlers: many at a time, or one at a time per queue.

No task per message: a few workers take deliveries from one list and end when it is empty; a handler that does not wait never needs a second one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from gantrymq.client.client import Client
from gantrymq.client.pushing.buffers import QueueBuffer
from gantrymq.client.pushing.handlers import DEAD_LETTER, RetryLater, Subscribed, call_handler, restore_topic, send_back
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import GantryError

_log = logging.getLogger(__name__)

CONCURRENCY: Final = 20
"""Handler calls at a time, as RocketMQ's consumeThreadMin."""
AGAIN_S: Final = 5.0
"""Before a message is handled again that could not be sent back (the broker is down), as in the Java client."""
SUSPEND_S: Final = 1.0
"""Before an orderly queue goes on after a failure (suspendCurrentQueueTimeMillis)."""
CONSUME_TIMEOUT_S: Final = 900.0
"""A handler call that takes longer is cancelled and counts as failed (consumeTimeout)."""
LOOKS: Final = 8
"""A call is cancelled late by an eighth of its time at most."""
SLICE_S: Final = 0.005
"""A worker lets others have the loop after this long."""
LOCK_POLL_S: Final = 0.1
"""An orderly queue whose lock was lost looks again after this long."""


@dataclass(slots=True)
class Terms:
    """What both kinds of delivery need to know about their consumer."""

    client: Client
    group: str
    find: Callable[[str], Subscribed | None]
    """Handler of a topic."""
    pool: ThreadPoolExecutor
    """Where plain functions run."""
    reconsume_max: int
    """Negative: no limit."""
    gives_back: bool
    """False in broadcast: what fails is dropped and logged."""
    concurrency: int = CONCURRENCY
    batch: int = 1
    timeout_s: float = CONSUME_TIMEOUT_S


class Delivery(Protocol):
    """What a push consumer hands messages to."""

    def add(self, buffer: QueueBuffer, messages: list[ReceivedMessage]) -> None:
        """Messages of a pull, which the buffer has taken in."""

    def clear(self) -> None:
        """Begin no further handler call."""


class _Calls:
    """Handler calls with their time limit: one timer looks at all of them now and then, so that a call costs no timer of its own."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._due: dict[asyncio.Task[None], float] = {}
        """Loop time by the worker that runs a call."""
        self._late: set[asyncio.Task[None]] = set()
        """Workers whose call was cancelled for it."""
        self._looking = False

    def worker(self) -> asyncio.Task[None]:
        """The task that asks."""
        task: asyncio.Task[None] | None = asyncio.current_task(self._loop)
        assert task is not None
        return task

    async def failure(
        self, task: asyncio.Task[None], subscribed: Subscribed, messages: list[ReceivedMessage]
    ) -> RetryLater | None:
        """Run the handler; None if it succeeded, else when to try again. `task`: the `worker`."""
        self._due[task] = self._loop.time() + self._terms.timeout_s
        if not self._looking:
            self._looking = True
            self._loop.call_later(self._terms.timeout_s / LOOKS, self._check)
        try:
            if subscribed.is_coroutine:
                await subscribed.handler(messages if subscribed.takes_batches else messages[0])
            else:
                await call_handler(subscribed, messages, self._terms.pool)
        except RetryLater as later:
            return later
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            task.uncancel()
            _log.warning("%s: the handler took over %g s", messages[0], self._terms.timeout_s)
            return RetryLater(3)  # as DefaultMQPushConsumer's cleanExpireMsg
        except Exception:
            _log.warning("%s: the handler failed", messages[0], exc_info=True)
            return RetryLater()
        finally:
            del self._due[task]
            self._late.discard(task)
        return None

    def _check(self) -> None:
        now = self._loop.time()
        for task in [task for task, due in self._due.items() if due <= now and task not in self._late]:
            self._late.add(task)
            task.cancel()
        self._looking = bool(self._due)
        if self._looking:
            self._loop.call_later(self._terms.timeout_s / LOOKS, self._check)


def _unwanted(messages: list[ReceivedMessage]) -> RetryLater:
    _log.warning("%s: nothing is subscribed to its topic any more", messages[0])
    return RetryLater()


class ConcurrentDelivery:
    """Messages in any order, up to `concurrency` handler calls at a time."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._calls = _Calls(terms)
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[QueueBuffer, list[ReceivedMessage]]] = deque()
        """Bounded by the buffers, which hold the same messages."""
        self._workers: set[asyncio.Task[None]] = set()
        self._kicked = False

    def add(self, buffer: QueueBuffer, messages: list[ReceivedMessage]) -> None:
        """See `Delivery`."""
        batch = self._terms.batch
        for at in range(0, len(messages), batch):
            self._ready.append((buffer, messages[at : at + batch]))
        if not self._kicked:
            self._kick()

    def clear(self) -> None:
        """See `Delivery`."""
        self._ready.clear()

    def _kick(self) -> None:
        """One more worker, and another look once that one has run until it had to wait."""
        self._kicked = bool(self._ready) and len(self._workers) < self._terms.concurrency
        if self._kicked:
            task = self._loop.create_task(self._work())
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        if len(self._ready) > 1:
            self._loop.call_soon(self._kick)
        else:
            self._kicked = False
        worker = self._calls.worker()
        until = self._loop.time() + SLICE_S
        while self._ready:
            buffer, messages = self._ready.popleft()
            if buffer.dropped:
                continue
            buffer.begin()
            try:
                for message in messages:
                    restore_topic(message, self._terms.group)
                subscribed = self._terms.find(messages[0].topic)
                later = await self._calls.failure(worker, subscribed, messages) if subscribed else _unwanted(messages)
                if later is None:
                    for message in messages:
                        buffer.done(message.queue_offset)
                else:
                    await self._failed(buffer, messages, later)
            finally:
                buffer.end()
            if self._loop.time() > until:
                await asyncio.sleep(0)
                until = self._loop.time() + SLICE_S

    async def _failed(self, buffer: QueueBuffer, messages: list[ReceivedMessage], later: RetryLater) -> None:
        if not self._terms.gives_back:
            _log.warning("%s: dropped: broadcast messages are not delivered again", messages[0])
        for message in messages:
            if self._terms.gives_back:
                await self._give_back(buffer, message, later)
            else:
                buffer.done(message.queue_offset)

    async def _give_back(self, buffer: QueueBuffer, message: ReceivedMessage, later: RetryLater) -> None:
        if buffer.dropped:  # the next member gets it anyway
            return
        terms = self._terms
        try:
            await send_back(terms.client, terms.group, message, buffer.queue, later.delay_level, terms.reconsume_max)
        except GantryError as error:
            _log.warning("%s: could not be sent back, it is handled again in %g s: %s", message, AGAIN_S, error)
            message.reconsume_times += 1
            self._loop.call_later(AGAIN_S, self._again, buffer, message)
            return
        buffer.done(message.queue_offset)

    def _again(self, buffer: QueueBuffer, message: ReceivedMessage) -> None:
        if not buffer.dropped:
            self.add(buffer, [message])


class OrderlyDelivery:
    """Messages of a queue in their order, one handler call at a time per queue, and only while the broker's lock is held. What fails is handled
    again before anything behind it."""

    def __init__(self, terms: Terms, suspend_s: float = SUSPEND_S) -> None:
        self._terms = terms
        self._suspend_s = suspend_s
        self._calls = _Calls(terms)
        self._loop = asyncio.get_running_loop()
        self._ready: dict[QueueBuffer, deque[ReceivedMessage]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(terms.concurrency)

    def add(self, buffer: QueueBuffer, messages: list[ReceivedMessage]) -> None:
        """See `Delivery`."""
        waiting = self._ready.get(buffer)
        if waiting is not None:
            waiting.extend(messages)
            return
        self._ready[buffer] = deque(messages)
        task = self._loop.create_task(self._work(buffer))
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    def clear(self) -> None:
        """See `Delivery`."""
        for waiting in self._ready.values():
            waiting.clear()

    async def _work(self, buffer: QueueBuffer) -> None:
        waiting = self._ready[buffer]
        until = self._loop.time() + SLICE_S
        try:
            while waiting and not buffer.dropped:
                if self._terms.gives_back and self._loop.time() >= buffer.locked_until:
                    await asyncio.sleep(LOCK_POLL_S)
                    continue
                messages = [waiting[row] for row in range(min(self._terms.batch, len(waiting)))]
                if await self._handle(buffer, messages):
                    for message in messages:
                        if waiting:  # else cleared in the meantime
                            waiting.popleft()
                        buffer.done(message.queue_offset)
                else:
                    await asyncio.sleep(self._suspend_s)
                if self._loop.time() > until:
                    await asyncio.sleep(0)
                    until = self._loop.time() + SLICE_S
        finally:
            del self._ready[buffer]

    async def _handle(self, buffer: QueueBuffer, messages: list[ReceivedMessage]) -> bool:
        """True if the queue may go on behind these messages."""
        for message in messages:
            restore_topic(message, self._terms.group)
        subscribed = self._terms.find(messages[0].topic)
        if subscribed is None:
            _unwanted(messages)
            return False
        buffer.begin()
        try:
            async with self._slots:
                later = await self._calls.failure(self._calls.worker(), subscribed, messages)
            if later is None:
                return True
            return await self._failed(buffer, messages, later)
        finally:
            buffer.end()

    async def _failed(self, buffer: QueueBuffer, messages: list[ReceivedMessage], later: RetryLater) -> bool:
        terms = self._terms
        for message in messages:
            message.reconsume_times += 1
        times = messages[0].reconsume_times
        if later.delay_level != DEAD_LETTER and (terms.reconsume_max < 0 or times <= terms.reconsume_max):
            return False
        if not terms.gives_back:
            return True
        try:
            for message in messages:
                await send_back(terms.client, terms.group, message, buffer.queue, DEAD_LETTER, 0)
        except GantryError as error:
            _log.warning("%s: could not become a dead letter, it is handled again: %s", messages[0], error)
            return False
        return True
