"""A shovel: moves the messages of a queue, or of an exchange, from one AMQP broker to another, in or out, as a client of both.

A message is acknowledged at its source once the destination has confirmed it: nothing is lost when either end or this process is killed, and what was on
its way then may be there twice. Order is kept as long as nothing is lost. It declares nothing that it is not told to: a message for which there is no
queue stops it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiormq
from aiormq import exceptions
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

PREFETCH: Final = 200
"""Messages on their way."""
RETRY_S: Final = (1.0, 30.0)
"""Until an end that went away is asked again: at first, at most."""
CONNECT_S: Final = 15.0
"""For an end to let us in."""
FINISH_S: Final = 5.0
"""For what is on its way, when it is told to stop."""
POLL_S: Final = 1.0
"""How often the source is asked what is left."""
ROUTING_HEADERS: Final = ("CC", "BCC")
"""More keys: at the destination they would make copies of what is meant for one queue."""
PASSED: Final = "x-gantry-bridges"
"""Header of what came from an exchange: the ends where it was. It does not come back to one of them."""

CONNECTED, WAITING = "connected", "waiting"

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
class Topology:
    """What is declared at each connection. `tap`: an exchange at the source whose messages with `pattern` the queue gets; `missing`: queues with
    `arguments`, and exchanges of type `kind`, that are not there are made, durable. `ends`: what source and destination are called in PASSED."""

    tap: str = ""
    pattern: str = "#"
    missing: bool = False
    kind: str = "topic"
    arguments: dict[str, Any] = field(default_factory=dict)
    ends: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Shovel:
    """From `queue` at `source` to `key` of `exchange` at `destination` (both empty: the queue of the same name; a message's own key: None).
    `rate`: messages a second, 0 for all there are. `keep_trying`: a refusal is no end, for somebody may lift it."""

    source: str
    queue: str
    destination: str
    exchange: str = ""
    key: str | None = ""
    rate: float = 0.0
    prefetch: int = PREFETCH
    until_empty: bool = False
    topology: Topology = Topology()
    keep_trying: bool = False


class Worker:
    """One shovel at work. `say(text)`: news for people; `moved` counts."""

    def __init__(self, shovel: Shovel, say: Callable[[str], None]) -> None:
        if not shovel.exchange and not shovel.key:
            shovel = replace(shovel, key=shovel.queue)
        self._shovel = shovel
        self._say = say
        self.state = WAITING
        self._stopping = asyncio.Event()
        self._forgetting = False
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

    def stop(self, forget: bool = False) -> None:
        """Finish what is on its way, and let `run` return. `forget`: the queue of a tap goes, with what is in it."""
        self._forgetting = forget
        self._stopping.set()

    def _tell(self, state: str, text: str) -> None:
        self.state = state
        self._say(text)

    async def run(self) -> None:
        """Until cancelled, told to stop, or the source is empty. Raises ShovelError."""
        failures = 0
        while not self._stopping.is_set():
            before = self.moved
            try:
                await self._session()
            except (*FINAL, ShovelError) as error:
                if not self._shovel.keep_trying:
                    raise ShovelError(_words(error)) from error
                failures += 1
                await self._pause(error, RETRY_S[1])
            except PASSING as error:
                failures = 1 if self.moved > before else failures + 1
                first, longest = RETRY_S
                await self._pause(error, min(longest, first * 2.0 ** min(failures - 1, 10)))
            else:
                return

    async def _pause(self, error: Exception, longest_s: float) -> None:
        pause_s = longest_s * random.uniform(0.8, 1.0)
        self._tell(WAITING, f"{_words(error)}; trying again in {pause_s:.0f} s")
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _session(self) -> None:
        """Both connections from their beginning to an end; returns when nothing is left to do."""
        source = await _connected(self._shovel.source, "source")
        try:
            destination = await _connected(self._shovel.destination, "destination")
            try:
                await self._topology(source, destination)
                await self._move(source, destination)
                if self._forgetting and self._shovel.topology.tap:
                    channel = await source.channel()
                    await channel.queue_delete(self._shovel.queue)
            finally:
                await _close(destination)
        finally:
            await _close(source)

    async def _topology(self, source: AbstractConnection, destination: AbstractConnection) -> None:
        """What the messages need on their way, and is not there."""
        shovel, wanted = self._shovel, self._shovel.topology
        if wanted.tap:
            if wanted.missing:
                await _exchange(source, wanted.tap, wanted.kind)
            await _queue(source, shovel.queue, {})
            channel = await source.channel()
            await channel.queue_bind(shovel.queue, wanted.tap, wanted.pattern)
            await channel.close()
        elif wanted.missing:
            await _queue(source, shovel.queue, wanted.arguments)
        if wanted.missing and shovel.exchange:
            await _exchange(destination, shovel.exchange, wanted.kind)
        elif wanted.missing:
            await _queue(destination, shovel.key or shovel.queue, wanted.arguments)

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
        self._tell(CONNECTED, f"connected: {self.left} messages in {shovel.queue!r}")
        consumer = await taking.basic_consume(shovel.queue, lambda message: self._take(message, giving))
        stopping = asyncio.ensure_future(self._stopping.wait())
        ends = [asyncio.ensure_future(asyncio.shield(channel.closing)) for channel in (taking, giving, asking)]
        try:
            while True:
                waits = [*ends, self._failed, stopping]
                done, _ = await asyncio.wait(waits, timeout=POLL_S, return_when="FIRST_COMPLETED")
                if stopping in done:
                    await taking.basic_cancel(consumer.consumer_tag or "")
                    await self._finished()
                    return
                for ended in done:
                    if not ended.cancelled():
                        ended.result()
                    raise exceptions.ConnectionClosed(0, "closed by the other side")
                before = self.moved
                self.left = await self._ready(asking)
                if shovel.until_empty and not self.left and not self._open and self.moved == before:
                    return
        finally:
            for ended in (*ends, stopping):
                ended.cancel()

    async def _finished(self) -> None:
        """What was taken is answered, or took too long: it comes back then."""
        try:
            async with asyncio.timeout(FINISH_S):
                while self._open:  # noqa: ASYNC110  # only while stopping
                    await asyncio.sleep(POLL_S / 50)
        except TimeoutError:
            return

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
            if self._shovel.topology.missing:  # the next connection declares it again
                self._fail(exceptions.ConnectionClosed(0, "a queue at the destination is gone"), error)
                return
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
        if self._shovel.topology.tap and not self._on_its_way(properties):
            return
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
                # A copy of what an exchange gets is published as anybody would: queues may come later.
                mandatory=not (self._shovel.topology.tap and self._shovel.exchange),
            )
        finally:
            del self._flying[name]
            flying.set()

    def _on_its_way(self, properties: Any) -> bool:
        """Note where it was; False: it would go back."""
        source, destination = self._shovel.topology.ends
        headers = properties.headers or {}
        been = headers.get(PASSED)
        been = [str(each) for each in been] if isinstance(been, list) else []
        if destination in been:
            return False
        properties.headers = {**headers, PASSED: [*been, source]}
        return True


async def _connected(url: str, side: str) -> AbstractConnection:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await aiormq.connect(url)
    except TimeoutError as error:
        raise TimeoutError(f"the {side} does not let us in within {CONNECT_S:.0f} s") from error


async def _queue(connection: AbstractConnection, name: str, arguments: dict[str, Any]) -> None:
    """A durable queue, if there is none of that name."""
    channel = await connection.channel()
    try:
        await channel.queue_declare(name, passive=True)
    except exceptions.ChannelNotFoundEntity:
        channel = await connection.channel()
        await channel.queue_declare(name, durable=True, arguments=arguments)
    await channel.close()


async def _exchange(connection: AbstractConnection, name: str, kind: str) -> None:
    """A durable exchange, if there is none of that name."""
    channel = await connection.channel()
    try:
        await channel.exchange_declare(name, exchange_type=kind, passive=True)
    except exceptions.ChannelNotFoundEntity:
        channel = await connection.channel()
        await channel.exchange_declare(name, exchange_type=kind, durable=True)
    await channel.close()


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
