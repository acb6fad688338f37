"""Sends messages: one at a time, many in a pipeline, or without wanting an answer.

A send that fails is tried twice more, on another broker or queue where there is one; a message with a sharding key stays with its queue. A
message whose answer was lost is sent again, so consumers may see it twice (same `message_id`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gantrymq.client.client import Client, Part
from gantrymq.client.errors import BrokerError
from gantrymq.client.link import REQUEST_TIMEOUT_S, Done, Link
from gantrymq.client.messages import OutMessage, SendResult, UniqueIds, check_message, encode_properties
from gantrymq.client.routes import DEFAULT_QUEUES, MessageQueue, Route
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUTO_CREATE_TEMPLATE, java_hash
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

RETRIES: Final = 2
"""RocketMQ's retryTimesWhenSendFailed."""
WINDOW: Final = 256
"""Sends without an answer per `send_many`: enough to keep a broker busy (it gains nothing above)."""
BUSY_PAUSE_S: Final = 0.1
"""Before a message is sent again that a broker refused because it is busy; grows with the attempts."""

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


class PartialSendError(GantryError):
    """Some messages of `send_many` were not stored. `results`: per message, in order, its SendResult or its GantryError."""

    def __init__(self, results: list[SendResult | GantryError]) -> None:
        failed = [(row, result) for row, result in enumerate(results) if isinstance(result, GantryError)]
        row, first = failed[0]
        super().__init__(
            first.code, f"{len(failed)} of {len(results)} messages were not stored; number {row}: {first.text}"
        )
        self.results = results


class _Round:
    """One attempt for some messages: how many answers are missing, and what became of the others."""

    def __init__(self) -> None:
        self.open = 0
        self.results: dict[int, SendResult | GantryError] = {}
        self.final: set[int] = set()
        """Rows that another attempt would only fail for in the same way, after the same wait."""
        self._waiter: asyncio.Future[None] | None = None
        self._enough = 0

    def done_for(self, row: int, queue: MessageQueue, unique_id: str, address: str) -> Done:
        def done(answer: Command | GantryError) -> None:
            self.open -= 1
            self.results[row] = _result(answer, queue, unique_id, address)
            if self._waiter is not None and self.open <= self._enough and not self._waiter.done():
                self._waiter.set_result(None)

        return done

    async def wait(self, open_max: int) -> None:
        """Until at most `open_max` answers are missing."""
        while self.open > open_max:
            self._enough = open_max
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._waiter = None


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
            unique_id, fields["msgId"], place, int(fields["queueOffset"]), answer.code == ResponseCode.SUCCESS
        )
    except (KeyError, ValueError):
        return GantryError(ErrorCode.MESSAGE_ILLEGAL, f"send to {queue}: answer of {address} without ids: {fields!r}")


class Producer(Part):
    """Sends messages. `async with Producer("127.0.0.1:9876") as producer: await producer.send("topic", b"body")`."""

    def __init__(
        self,
        nameserver: str = "",
        group: str = "gantry_producer",
        client: Client | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        retries: int = RETRIES,
    ) -> None:
        super().__init__(nameserver, client)
        self._group = group
        self._timeout_s = timeout_s
        self._retries = retries
        self._ids = UniqueIds()
        self._turn = 0

    async def send(
        self,
        topic: str | OutMessage,
        body: bytes = b"",
        *,
        tag: str = "",
        keys: str | Iterable[str] = "",
        properties: Mapping[str, str] | None = None,
        sharding_key: str = "",
    ) -> SendResult:
        """Returns when the broker has acknowledged. Raises GantryError with the last attempt's reason."""
        if isinstance(topic, OutMessage):
            message = topic
        else:
            message = OutMessage(topic, body, tag, keys, properties, sharding_key)
        result = (await self._send_all([message], 1))[0]
        if isinstance(result, GantryError):
            raise result
        return result

    async def send_many(self, messages: Sequence[OutMessage], window: int = WINDOW) -> list[SendResult]:
        """Send in a pipeline; results in the order of `messages`.

        Messages of one sharding key and topic are stored in this order, unless a broker refuses one and takes the next. Raises
        `PartialSendError`, which knows what became of each, if some were not stored after all attempts.
        """
        results = await self._send_all(messages, window)
        fine = [result for result in results if isinstance(result, SendResult)]
        if len(fine) < len(results):
            raise PartialSendError(results)
        return fine

    async def send_one_way(self, message: OutMessage) -> str:
        """Hand over without wanting an answer; it may be lost. Returns its `message_id`."""
        check_message(message)
        route = await self.client.routes.publish_route(message.topic)
        queue = self._choose(message, route, "")
        link = await self.client.links.get(route.address(queue.broker, master_only=True), self._timeout_s)
        command, unique_id = self._command(message, queue)
        link.one_way(command)
        await link.writable()
        return unique_id

    async def _send_all(self, messages: Sequence[OutMessage], window: int) -> list[SendResult | GantryError]:
        results: dict[int, SendResult | GantryError] = {}
        rows: list[int] = []
        for row, message in enumerate(messages):
            try:
                check_message(message)
                rows.append(row)
            except GantryError as error:
                results[row] = error
        failed_brokers: dict[int, str] = {}
        ids: dict[int, str] = {}
        for attempt in range(self._retries + 1):
            if attempt:
                if any(_code(results[row]) is ErrorCode.BUSY for row in rows):
                    await asyncio.sleep(BUSY_PAUSE_S * attempt)
                await self._refresh({messages[row].topic for row in rows})
            round_ = await self._round(messages, rows, failed_brokers, ids, window, attempt)
            results |= round_.results
            rows = [row for row in rows if _code(results[row]) in _RETRY and row not in round_.final]
            if not rows:
                break
        return [results[row] for row in range(len(messages))]

    async def _refresh(self, topics: set[str]) -> None:
        for topic in topics:
            try:
                await self.client.routes.publish_route(topic, fresh=True)
            except GantryError:
                continue  # the round itself will say so, per message

    async def _round(
        self,
        messages: Sequence[OutMessage],
        rows: Sequence[int],
        failed_brokers: dict[int, str],
        ids: dict[int, str],
        window: int,
        attempt: int,
    ) -> _Round:
        round_ = _Round()
        links: dict[str, Link | GantryError] = {}
        routes: dict[str, Route] = {}
        for row in rows:
            message = messages[row]
            try:
                route = routes.get(message.topic) or await self.client.routes.publish_route(message.topic)
            except GantryError as error:
                round_.results[row] = error
                if error.code is ErrorCode.UNAVAILABLE:  # every nameserver was asked until the time was up
                    round_.final.add(row)
                continue
            routes[message.topic] = route
            try:
                queue = self._choose(message, route, failed_brokers.get(row, ""))
                failed_brokers[row] = queue.broker  # whoever tries again takes another
                address = route.address(queue.broker, master_only=True)
                link = links.get(address)
                if link is None:
                    link = links[address] = await self._link(address, attempt)
                if isinstance(link, GantryError):
                    raise link
                command, ids[row] = self._command(message, queue, ids.get(row, ""))
            except GantryError as error:
                round_.results[row] = error
                continue
            round_.open += 1
            link.post(command, round_.done_for(row, queue, ids[row], address), self._timeout_s)
            if round_.open >= window:
                await round_.wait(window - max(1, window // 4))
                await link.writable()
        await round_.wait(0)
        return round_

    async def _link(self, address: str, attempt: int) -> Link | GantryError:
        """In the first attempt a broker that is down is not waited for: another may be up."""
        try:
            return await self.client.links.get(address, self._timeout_s, patient=attempt > 0)
        except GantryError as error:
            return error

    def _choose(self, message: OutMessage, route: Route, not_broker: str) -> MessageQueue:
        queues = route.write_queues()
        if not queues:
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {message.topic!r} has no queue that can be written")
        if message.sharding_key:
            return queues[abs(java_hash(message.sharding_key)) % len(queues)]
        self._turn += 1
        queue = queues[self._turn % len(queues)]
        if queue.broker == not_broker:
            others = [other for other in queues if other.broker != not_broker]
            if others:
                queue = others[self._turn % len(others)]
        return queue

    def _command(self, message: OutMessage, queue: MessageQueue, unique_id: str = "") -> tuple[Command, str]:
        now_ms = message.born_ms or time.time_ns() // 1_000_000
        own_id = (message.properties or {}).get(props.UNIQ_KEY, "")
        unique_id = unique_id or own_id or self._ids.next(now_ms)
        fields = {
            "a": self._group,
            "b": queue.topic,
            "c": AUTO_CREATE_TEMPLATE,
            "d": str(DEFAULT_QUEUES),
            "e": str(queue.queue_id),
            "f": "0",
            "g": str(now_ms),
            "h": str(message.flag),
            "i": encode_properties(message, unique_id),
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker,
        }
        return Command(RequestCode.SEND_MESSAGE_V2, fields, message.body), unique_id


def _code(result: SendResult | GantryError) -> ErrorCode | None:
    return result.code if isinstance(result, GantryError) else None
