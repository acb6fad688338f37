"""A shovel: moves the messages of a queue from one AMQP broker to another, in or out, as a client of both.

A message is acknowledged at its source once the destination has confirmed it: nothing is lost when either end or this process is killed, and what was on
its way then may be there twice. Order is kept as long as nothing is lost. It declares nothing: a message for which there is no queue stops it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import aiormq
from aiormq import exceptions
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

PREFETCH: Final = 200
"""Messages on their way."""
RETRY_S: Final = (1.0, 30.0)
"""Until an end that went away is asked again: at first, at most."""
POLL_S: Final = 1.0
"""How often the source is asked what is left."""
ROUTING_HEADERS: Final = ("CC", "BCC")
"""More keys: at the destination they would make copies of what is meant for one queue."""

FINAL: Final = (
    exceptions.AuthenticationError,
    exceptions.ProbableAuthenticationError,
    exceptions.ConnectionNotAllowed,
    exceptions.ChannelAccessRefused,
    exceptions.ChannelLockedResource,
    exceptions.ChannelNotFoundEntity,
    exceptions.ChannelPreconditionFailed,
    exceptions.IncompatibleProtocolError,
)
"""Trying again does not help."""
PASSING: Final = (exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError, asyncio.TimeoutError)


class ShovelError(Exception):
    """Why it cannot go on, for people."""


@dataclass(frozen=True, slots=True)
class Shovel:
    """From `queue` at `source` to `key` of `exchange` at `destination` (both empty: the queue of the same name; a message's own key: None).
    `rate`: messages a second, 0 for all there are."""

    source: str
    queue: str
    destination: str
    exchange: str = ""
    key: str | None = ""
    rate: float = 0.0
    prefetch: int = PREFETCH
    until_empty: bool = False


class Worker:
    """One shovel at work. `say(text)`: news for people; `moved` counts."""

    def __init__(self, shovel: Shovel, say: Callable[[str], None]) -> None:
        if not shovel.exchange and not shovel.key:
            shovel = replace(shovel, key=shovel.queue)
        self._shovel = shovel
        self._say = say
        self.moved = 0
        self.left = 0
        """Ready at the source, when it was last asked."""
        self._open = 0
        """Taken, and not acknowledged."""
        self._next_s = 0.0
        self._line = asyncio.Lock()
        """Messages are handed over in the order in which they came."""
        self._flying: dict[str, asyncio.Event] = {}
        """By message id: aiormq tells the returned by it, so none is on its way twice."""
        self._failed: asyncio.Future[None] = asyncio.Future()

    async def run(self) -> None:
        """Until cancelled, or the source is empty. Raises ShovelError."""
        failures = 0
        while True:
            before = self.moved
            try:
                await self._session()
            except FINAL as error:
                raise ShovelError(_words(error)) from error
            except PASSING as error:
                failures = 1 if self.moved > before else failures + 1
                first, longest = RETRY_S
                pause_s = min(longest, first * 2.0 ** (failures - 1)) * random.uniform(0.8, 1.0)
                self._say(f"{_words(error)}; trying again in {pause_s:.0f} s")
                await asyncio.sleep(pause_s)
            else:
                return

    async def _session(self) -> None:
        """Both connections from their beginning to an end; returns when nothing is left to do."""
        shovel = self._shovel
        source = await aiormq.connect(shovel.source)
        try:
            destination = await aiormq.connect(shovel.destination)
            try:
                await self._move(source, destination)
            finally:
                await _close(destination)
        finally:
            await _close(source)

    async def _move(self, source: AbstractConnection, destination: AbstractConnection) -> None:
        shovel = self._shovel
        self._failed = asyncio.get_running_loop().create_future()
        self._flying.clear()
        taking, giving = (
            await source.channel(publisher_confirms=False),
            await destination.channel(on_return_raises=True),
        )
        asking = await source.channel(publisher_confirms=False)
        await taking.basic_qos(prefetch_count=shovel.prefetch)
        self.left = await self._ready(asking)
        self._say(f"connected: {self.left} messages in {shovel.queue!r}")
        await taking.basic_consume(shovel.queue, lambda message: self._take(message, giving))
        ends = [asyncio.ensure_future(asyncio.shield(channel.closing)) for channel in (taking, giving, asking)]
        try:
            while True:
                done, _ = await asyncio.wait([*ends, self._failed], timeout=POLL_S, return_when="FIRST_COMPLETED")
                for ended in done:
                    if not ended.cancelled():
                        ended.result()
                    raise exceptions.ConnectionClosed(0, "closed by the other side")
                before = self.moved
                self.left = await self._ready(asking)
                if shovel.until_empty and not self.left and not self._open and self.moved == before:
                    return
        finally:
            for ended in ends:
                ended.cancel()

    async def _ready(self, channel: AbstractChannel) -> int:
        found = await channel.queue_declare(self._shovel.queue, passive=True)
        return found.message_count or 0

    async def _take(self, message: DeliveredMessage, giving: AbstractChannel) -> None:
        """One message: to the other side, and when it has it, away from here."""
        self._open += 1
        try:
            await self._hand_over(message, giving)
            if (tag := message.delivery_tag) is not None:
                await message.channel.basic_ack(tag)
            self.moved += 1
        except exceptions.PublishError as error:
            to = f"exchange {self._shovel.exchange!r}" if self._shovel.exchange else f"queue {self._shovel.key!r}"
            self._fail(
                ShovelError(f"nobody at the destination gets what is sent to {to}, key {message.routing_key!r}"), error
            )
        except exceptions.DeliveryError as error:
            self._fail(exceptions.ConnectionClosed(0, "the destination refused a message for now"), error)
        except (*FINAL, *PASSING) as error:
            self._fail(error, error)
        finally:
            self._open -= 1

    def _fail(self, error: Exception, cause: Exception) -> None:
        if not self._failed.done():
            error.__cause__ = cause if cause is not error else None
            self._failed.set_exception(error)

    async def _pace(self) -> None:
        if not self._shovel.rate:
            return
        now_s = asyncio.get_running_loop().time()
        due_s = max(self._next_s, now_s)
        self._next_s = due_s + 1 / self._shovel.rate
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)

    async def _hand_over(self, message: DeliveredMessage, giving: AbstractChannel) -> None:
        properties = message.header.properties
        if not self._shovel.exchange and properties.headers:
            properties.headers = {key: value for key, value in properties.headers.items() if key not in ROUTING_HEADERS}
        properties.user_id = None  # the destination takes no other user's than its own
        key = self._shovel.key if self._shovel.key is not None else message.routing_key
        name = str(properties.message_id) if properties.message_id else str(message.delivery_tag)
        async with self._line:
            await self._pace()
            while (other := self._flying.get(name)) is not None:
                await other.wait()
            flying = self._flying[name] = asyncio.Event()
        # Nothing waits between here and the frame's way out: the next in line comes behind it.
        try:
            await giving.basic_publish(
                message.body,
                exchange=self._shovel.exchange,
                routing_key=key or "",
                properties=properties,
                mandatory=True,
            )
        finally:
            del self._flying[name]
            flying.set()


async def _close(connection: AbstractConnection) -> None:
    try:
        async with asyncio.timeout(5):
            await connection.close()
    except (*PASSING, RuntimeError):
        return  # it is gone


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def shovel(
    options: Shovel, say: Callable[[str], None], every_s: float, progress: Callable[[int, int], None]
) -> int:
    """Run one, with `progress(moved, left)` now and then. Returns how many messages it moved. Raises ShovelError."""
    worker = Worker(options, say)

    async def tell() -> None:
        while True:
            await asyncio.sleep(every_s)
            progress(worker.moved, worker.left)

    # One for the whole run: nothing waits for it.
    telling = asyncio.ensure_future(tell())
    try:
        await worker.run()
    finally:
        telling.cancel()
    return worker.moved


def run(
    source: str, queue: str, destination: str, exchange: str, key: str | None, rate: float, prefetch: int, until_empty: bool,
    say: Callable[[str], None], every_s: float,
) -> bool:  # fmt: skip
    """For the command line: what happens is said in words. False: it could not go on. Raises KeyboardInterrupt."""
    moved = [0]

    def progress(count: int, left: int) -> None:
        moved[0] = count
        say(f"{count} messages moved, {left} left")

    options = Shovel(source, queue, destination, exchange, key, rate, prefetch, until_empty)
    try:
        count = asyncio.run(shovel(options, say, every_s, progress))
    except ShovelError as error:
        say(str(error))
        return False
    say(f"{count} messages moved")
    return True
