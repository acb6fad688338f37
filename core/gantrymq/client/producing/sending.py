"""The machinery behind a producer: which queue a message goes to, its frame, its answer, and what is tried again.

A send that fails is tried twice more, on another broker or queue where there is one; a message with a sharding key or a queue of its own stays
there. Brokers that failed or were slow are avoided for a while (`faults`).
"""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import randrange
from typing import Any, Final

from gantrymq.client.client import Client
from gantrymq.client.connecting.faults import BrokerFaults
from gantrymq.client.connecting.link import REQUEST_TIMEOUT_S, Link, shape_of
from gantrymq.client.connecting.routes import DEFAULT_QUEUES, MessageQueue, Route
from gantrymq.client.errors import BrokerError
from gantrymq.client.messages import OutMessage, SendResult, UniqueIds, encode_properties, is_plain
from gantrymq.client.producing.checks import check_message
from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUTO_CREATE_TEMPLATE, java_hash
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.overview_codes import SEND_BLOCK

RETRIES: Final = 2
"""RocketMQ's retryTimesWhenSendFailed."""
AGAIN_TIMEOUTS: Final = 1.2
"""All further attempts together have so many times the timeout of the first: with its default an error comes within 7 s."""
BUSY_PAUSE_S: Final = 0.1
"""Before a message is sent again that a broker refused because it is busy; grows with the attempts."""
COMPRESS_OVER: Final = 4096
"""RocketMQ's compressMsgBodyOverHowmuch, bytes."""
COMPRESS_LEVEL: Final = 5
POSTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bodies of posted messages without an answer: nobody waits for room there, so further ones are refused."""
THREAD_OVER: Final = 64 * 1024
"""Larger bodies are compressed in a thread: over a millisecond."""

Selector = Callable[[OutMessage, Sequence[MessageQueue]], MessageQueue]
"""Chooses a message's queue among the topic's writable ones, which are sorted by broker and number."""

_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)  # fmt: skip
_RETRY: Final = frozenset(
    {ErrorCode.UNAVAILABLE, ErrorCode.BUSY, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.NO_PERMISSION, ErrorCode.SHUTTING_DOWN}
)
"""Failures that another broker, or a little later the same one, may not have."""


@dataclass(slots=True)
class Settings:
    """Settings of a `Producer`; see there."""

    group: str = "gantry_producer"
    timeout_s: float = REQUEST_TIMEOUT_S
    retries: int = RETRIES
    selector: Selector | None = None
    avoid_slow: bool = True
    compress_over: int = COMPRESS_OVER


@dataclass(slots=True)
class Outgoing:
    """A message on its way. `code`: SEND_MESSAGE_V2 or a relative; `extra`: properties beyond the message's own."""

    message: OutMessage
    unique_id: str
    body: bytes
    sys_flag: int = 0
    code: int = RequestCode.SEND_MESSAGE_V2
    extra: str = ""
    broker: str = ""
    """The last one that it was sent to."""
    properties: str | None = None
    """Encoded already: a batch's, whose messages have their own."""


_PLACE: Final = struct.Struct(">q")
_MANY: Final = frozenset({RequestCode.SEND_BATCH_MESSAGE, SEND_BLOCK})


class _Round:
    """One attempt for some messages: how many answers are missing, and what became of the others."""

    def __init__(self) -> None:
        self.open = 0
        self.results: dict[int, SendResult | GantryError] = {}
        self.final: set[int] = set()
        """Rows that another attempt would only fail for in the same way, after the same wait."""
        self._waiter: asyncio.Future[None] | None = None
        self._enough = 0

    def answered(self, row: int, result: SendResult | GantryError) -> None:
        self.open -= 1
        self.results[row] = result
        if self._waiter is not None and self.open <= self._enough and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, open_max: int) -> None:
        """Until at most `open_max` answers are missing."""
        while self.open > open_max:
            self._enough = open_max
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._waiter = None


def _ids(first: str, places: bytes) -> str:
    """Ids of all messages of a block, whose places stand in the answer's body; else what the answer has."""
    if not places:
        return first
    return ",".join([f"{first[:-16]}{place:016X}" for (place,) in _PLACE.iter_unpack(places)])


def _result(
    answer: Command | GantryError, queue: MessageQueue, unique_id: str, address: str
) -> SendResult | GantryError:
    if isinstance(answer, GantryError):
        return answer
    if answer.code not in _STORED:
        return BrokerError(answer, f"send to {queue}", address)
    fields = answer.fields
    try:
        number = int(fields["queueId"])
        place = queue if number == queue.queue_id else MessageQueue(queue.topic, queue.broker, number)
        return SendResult(
            unique_id, _ids(fields["msgId"], answer.body), place, int(fields["queueOffset"]), answer.code == ResponseCode.SUCCESS,
            fields.get("recallHandle", ""), fields.get("transactionId", ""),
        )  # fmt: skip
    except (KeyError, ValueError):
        return GantryError(ErrorCode.MESSAGE_ILLEGAL, f"send to {queue}: answer of {address} without ids: {fields!r}")


TURNS_MAX: Final = 10_000
"""Topics whose next queue is remembered: some 150 bytes each. Then they all begin anew."""
HEADERS_MAX: Final = 10_000
"""Queues whose header is kept: some 400 bytes each. Then they are all made anew."""


class _Sending:
    """A message that waits for its answer, `answered`; then `done` gets what became of it."""

    __slots__ = ("asked_at", "done", "link", "outgoing", "queue", "sender")

    def __init__(
        self,
        sender: Sender,
        link: Link,
        outgoing: Outgoing,
        queue: MessageQueue,
        done: Callable[[SendResult | GantryError], None],
    ) -> None:
        self.sender = sender
        self.link = link
        self.outgoing = outgoing
        self.queue = queue
        self.done = done
        self.asked_at = link.clock_s()

    def answered(self, answer: Command | GantryError) -> None:
        result = _result(answer, self.queue, self.outgoing.unique_id, self.link.address)
        self.judge(result)
        self.done(result)

    def judge(self, result: SendResult | GantryError) -> None:
        """Remember how the broker did."""
        sender = self.sender
        if sender.settings.avoid_slow:
            now = self.link.clock_s()
            if isinstance(result, SendResult):
                sender.faults.sent(self.queue.broker, (now - self.asked_at) * 1000, now * 1000)
            elif result.code in _RETRY:
                sender.faults.failed(self.queue.broker, now * 1000)


class _Posted(_Sending):
    """One that nobody waits for: what fails is tried again in the background."""

    __slots__ = ()

    def answered(self, answer: Command | GantryError) -> None:
        result = _result(answer, self.queue, self.outgoing.unique_id, self.link.address)
        self.judge(result)
        if isinstance(result, GantryError) and result.code in _RETRY and self.sender.settings.retries:
            self.sender.send_again(self.outgoing, result, self._end)
        else:
            self._end(result)

    def _end(self, result: SendResult | GantryError) -> None:
        self.sender.posted_bytes -= len(self.outgoing.body)
        self.done(result)


class Sender:
    """Sends what a producer hands it. One per producer, on the client's loop."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.faults = BrokerFaults()
        self._ids = UniqueIds()
        self.takes_blocks = True
        """False once a broker has refused one: RocketMQ's know batches of items only."""
        self._turns: dict[str, int] = {}
        """By topic, or topics that are sent to by turns would each get one queue."""
        self._headers: dict[MessageQueue, bytes] = {}
        """See `_header`."""
        self.posted_bytes = 0
        """Of posted messages without an answer."""
        self._tasks: set[asyncio.Task[None]] = set()

    # preparing

    def new_id(self) -> str:
        """A new UNIQ_KEY."""
        return self._ids.next(time.time_ns() // 1_000_000)

    def new_ids(self, count: int) -> str:
        """The first of so many UNIQ_KEYs; see `UniqueIds.run`."""
        return self._ids.run(time.time_ns() // 1_000_000, count)

    async def prepare(self, message: OutMessage) -> Outgoing:
        """Check, name and compress a message. Raises as `check_message` does."""
        check_message(message)
        own_id = (message.properties or {}).get(props.UNIQ_KEY, "")
        outgoing = Outgoing(message, own_id or self.new_id(), message.body)
        if len(message.body) > self.settings.compress_over:
            await self._compress(outgoing)
        return outgoing

    async def _compress(self, outgoing: Outgoing) -> None:
        body = outgoing.message.body
        if len(body) > THREAD_OVER:
            packed = await asyncio.to_thread(zlib.compress, body, COMPRESS_LEVEL)
        else:
            packed = zlib.compress(body, COMPRESS_LEVEL)
        if len(packed) < len(body):
            outgoing.body = packed
            outgoing.sys_flag |= sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB

    # sending

    async def send(self, outgoing: Outgoing) -> SendResult:
        """Send one message; raises what the last attempt ended with."""
        result = await self._send_quickly(outgoing)
        if isinstance(result, GantryError) and _code(result) in _RETRY and self.settings.retries:
            result = (await self._attempts([outgoing], {0: result}, 1, 1))[0]
        if isinstance(result, GantryError):
            raise result
        return result

    def post(self, message: OutMessage, done: Callable[[SendResult | GantryError], None]) -> None:
        """Send a message and call `done` with what became of it; needs no task as long as nothing fails or is asked for first."""
        try:
            check_message(message)
        except GantryError as error:
            done(error)
            return
        size = len(message.body)
        if self.posted_bytes and self.posted_bytes + size > POSTED_BYTES_MAX:
            text = f"posted messages of {POSTED_BYTES_MAX} bytes wait for an answer"
            done(GantryError(ErrorCode.BUSY, text))
            return
        route = self.client.routes.fresh_route(message.topic)
        if route is None or size > self.settings.compress_over:
            self._send_later(message, done)
            return
        own_id = message.properties.get(props.UNIQ_KEY, "") if message.properties else ""
        outgoing = Outgoing(message, own_id or self.new_id(), message.body)
        try:
            queue = self._choose(outgoing, route)
            link = self.client.links.open_link(route.address(queue.broker, master_only=True))
            if link is None:
                self._send_later(message, done)
                return
            header, values = self._header(outgoing, queue)
        except GantryError as error:
            done(error)
            return
        self.posted_bytes += size
        posted = _Posted(self, link, outgoing, queue, done)
        link.post_header(header, values, outgoing.body, posted.answered, self.settings.timeout_s)

    def _send_later(self, message: OutMessage, done: Callable[[SendResult | GantryError], None]) -> None:
        size = len(message.body)
        self.posted_bytes += size

        async def work() -> None:
            result: SendResult | GantryError
            try:
                result = await self.send(await self.prepare(message))
            except GantryError as error:
                result = error
            self.posted_bytes -= size
            done(result)

        self._in_background(work())

    def send_again(
        self, outgoing: Outgoing, failure: GantryError, done: Callable[[SendResult | GantryError], None]
    ) -> None:
        """Try further, in the background; `failure`: what the first attempt ended with."""
        self._in_background(self._send_again(outgoing, failure, done))

    async def _send_again(
        self, outgoing: Outgoing, failure: GantryError, done: Callable[[SendResult | GantryError], None]
    ) -> None:
        done((await self._attempts([outgoing], {0: failure}, 1, 1))[0])

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for posted messages that needed more than one step."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def send_all(self, outgoing: Sequence[Outgoing], window: int) -> list[SendResult | GantryError]:
        """Send many, `window` at a time without an answer; what became of each."""
        return await self._attempts(outgoing, {}, window, 0)

    async def send_one_way(self, outgoing: Outgoing) -> None:
        """Hand over without wanting an answer. Raises if there is no route or no connection."""
        route = await self.client.routes.publish_route(outgoing.message.topic)
        queue = self._choose(outgoing, route)
        link = await self.client.links.get(route.address(queue.broker, master_only=True), self.settings.timeout_s)
        link.one_way(self._command(outgoing, queue))
        await link.writable()

    async def _send_quickly(self, outgoing: Outgoing) -> SendResult | GantryError:
        """The first attempt of a single message, which nearly always is the only one."""
        try:
            route = await self.client.routes.publish_route(outgoing.message.topic)
        except GantryError as error:
            if error.code is ErrorCode.UNAVAILABLE:  # every nameserver was asked until the time was up
                raise
            return error
        try:
            queue = self._choose(outgoing, route)
            header, values = self._header(outgoing, queue)
            link = await self._link(
                route.address(queue.broker, master_only=True), queue.broker, 0, self.settings.timeout_s
            )
        except GantryError as error:
            return error
        if isinstance(link, GantryError):
            return link
        future: asyncio.Future[SendResult | GantryError] = asyncio.get_running_loop().create_future()

        def done(result: SendResult | GantryError) -> None:
            if not future.done():
                future.set_result(result)

        sending = _Sending(self, link, outgoing, queue, done)
        link.post_header(header, values, outgoing.body, sending.answered, self.settings.timeout_s)
        await link.writable()
        return await future

    async def _attempts(
        self, outgoing: Sequence[Outgoing], results: dict[int, SendResult | GantryError], window: int, done: int
    ) -> list[SendResult | GantryError]:
        """Attempts from number `done` on; `results`: what the ones before ended with."""
        rows = list(range(len(outgoing)))
        loop = asyncio.get_running_loop()
        timeout_s, end = self.settings.timeout_s, 0.0
        for attempt in range(done, self.settings.retries + 1):
            if attempt:
                end = end or loop.time() + timeout_s * AGAIN_TIMEOUTS
                timeout_s = min(timeout_s, end - loop.time())
                if timeout_s <= 0:
                    break
                if any(_code(results[row]) is ErrorCode.BUSY for row in rows):
                    await asyncio.sleep(BUSY_PAUSE_S * attempt)
                await self._refresh({outgoing[row].message.topic for row in rows})
            round_ = await self._round(outgoing, rows, window, attempt, timeout_s)
            results |= round_.results
            rows = [row for row in rows if _code(results[row]) in _RETRY and row not in round_.final]
            if not rows:
                break
        return [results[row] for row in range(len(outgoing))]

    async def _refresh(self, topics: set[str]) -> None:
        for topic in topics:
            try:
                await self.client.routes.publish_route(topic, fresh=True)
            except GantryError:
                continue  # the round itself will say so, per message

    async def _round(
        self, outgoing: Sequence[Outgoing], rows: Sequence[int], window: int, attempt: int, timeout_s: float
    ) -> _Round:
        round_ = _Round()
        links: dict[str, Link | GantryError] = {}
        routes: dict[str, Route] = {}
        for row in rows:
            one = outgoing[row]
            topic = one.message.topic
            try:
                route = routes.get(topic) or await self.client.routes.publish_route(topic)
            except GantryError as error:
                round_.results[row] = error
                if error.code is ErrorCode.UNAVAILABLE:  # every nameserver was asked until the time was up
                    round_.final.add(row)
                continue
            routes[topic] = route
            try:
                queue = self._choose(one, route)
                address = route.address(queue.broker, master_only=True)
                link = links.get(address)
                if link is None:
                    link = links[address] = await self._link(address, queue.broker, attempt, timeout_s)
                if isinstance(link, GantryError):
                    raise link
                header, values = self._header(one, queue)
            except GantryError as error:
                round_.results[row] = error
                continue
            round_.open += 1
            sending = _Sending(self, link, one, queue, _row_done(round_, row))
            link.post_header(header, values, one.body, sending.answered, timeout_s)
            if round_.open >= window:
                await round_.wait(window - max(1, window // 4))
                await link.writable()
        await round_.wait(0)
        return round_

    async def _link(self, address: str, broker: str, attempt: int, timeout_s: float) -> Link | GantryError:
        """In the first attempt a broker that is down is not waited for: another may be up."""
        try:
            return await self.client.links.get(address, timeout_s, patient=attempt > 0)
        except GantryError as error:
            if self.settings.avoid_slow:
                self.faults.failed(broker, asyncio.get_running_loop().time() * 1000)
            return error

    def _choose(self, outgoing: Outgoing, route: Route) -> MessageQueue:
        message = outgoing.message
        queues = route.write_queues()
        if not queues:
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {message.topic!r} has no queue that can be written")
        if message.queue is not None:
            chosen = message.queue
        elif message.sharding_key:  # SelectMessageQueueByHash
            chosen = queues[abs(java_hash(message.sharding_key)) % len(queues)]
        elif self.settings.selector is not None:
            chosen = self.settings.selector(message, queues)
        else:
            turn = self._turns.get(message.topic)
            if turn is None:
                if len(self._turns) >= TURNS_MAX:
                    self._turns.clear()
                # Anywhere, as RocketMQ's clients: of many short programs each would begin at the same queue.
                turn = randrange(len(queues))
            self._turns[message.topic] = turn = turn + 1
            chosen = queues[turn % len(queues)]
            if chosen.broker == outgoing.broker or self.faults.any:
                now_ms = asyncio.get_running_loop().time() * 1000
                if chosen.broker == outgoing.broker or not self.faults.is_available(chosen.broker, now_ms):
                    chosen = self._choose_again(queues, outgoing.broker, now_ms, turn) or chosen
        outgoing.broker = chosen.broker  # whoever tries again takes another
        return chosen

    def _choose_again(
        self, queues: Sequence[MessageQueue], not_broker: str, now_ms: float, turn: int
    ) -> MessageQueue | None:
        """A queue of a broker that is well and was not tried last, else of one that was not tried last."""
        others = [queue for queue in queues if queue.broker != not_broker]
        well = [queue for queue in others if self.faults.is_available(queue.broker, now_ms)]
        found = well or others
        return found[turn % len(found)] if found else None

    def _header(self, outgoing: Outgoing, queue: MessageQueue) -> tuple[bytes, tuple[object, ...]]:
        """Header of a send, and what belongs in its places but the last one, the opaque's (`Link.post_header`). What is alike in all messages of a
        queue that have no property but UNIQ_KEY is encoded once."""
        message, unique_id = outgoing.message, outgoing.unique_id
        plain = is_plain(message) and unique_id.isalnum() and not (outgoing.extra or outgoing.sys_flag or message.flag)
        if not plain or outgoing.properties is not None or outgoing.code != RequestCode.SEND_MESSAGE_V2:
            return shape_of(self._command(outgoing, queue)), ()
        header = self._headers.get(queue)
        if header is None:
            if len(self._headers) >= HEADERS_MAX:
                self._headers.clear()
            bare = Outgoing(OutMessage(message.topic, b"", born_ms=1), "", b"", properties="")
            header = shape_of(self._command(bare, queue))
            header = header.replace(b'"g":"1"', b'"g":"%d"').replace(b'"i":""', b'"i":"UNIQ_KEY\\u0001%b\\u0002"')
            self._headers[queue] = header
        born_ms = message.born_ms or time.time_ns() // 1_000_000
        return header, (born_ms, unique_id.encode())

    def _command(self, outgoing: Outgoing, queue: MessageQueue) -> Command:
        message = outgoing.message
        properties = outgoing.properties
        if properties is None:
            properties = encode_properties(message, outgoing.unique_id) + outgoing.extra
        fields = {
            "a": self.settings.group,
            "b": queue.topic,
            "c": AUTO_CREATE_TEMPLATE,
            "d": str(DEFAULT_QUEUES),
            "e": str(queue.queue_id),
            "f": str(outgoing.sys_flag),
            "g": str(message.born_ms or time.time_ns() // 1_000_000),
            "h": str(message.flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if outgoing.code in _MANY else "false",
            "n": queue.broker,
        }
        return Command(outgoing.code, fields, outgoing.body)


def _row_done(round_: _Round, row: int) -> Callable[[SendResult | GantryError], None]:
    return lambda result: round_.answered(row, result)


def _code(result: SendResult | GantryError) -> ErrorCode | None:
    return result.code if isinstance(result, GantryError) else None
