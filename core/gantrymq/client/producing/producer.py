"""Sends messages: one at a time, many in a pipeline or a batch, in a transaction, as a request, or without wanting an answer.

A send that fails is tried twice more, on another broker or queue where there is one; a message with a sharding key stays with its queue. A
message whose answer was lost is sent again, so consumers may see it twice (same `message_id`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gantrymq.client.client import Client, Part
from gantrymq.client.connecting.link import REQUEST_TIMEOUT_S
from gantrymq.client.messages import OutMessage, SendResult, recall_place
from gantrymq.client.producing import batches, rpc
from gantrymq.client.producing.sending import COMPRESS_OVER, RETRIES, Outgoing, Selector, Sender, Settings
from gantrymq.client.producing.transactions import CheckTransaction, LocalTransaction, TransactionResult, Transactions
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode

WINDOW: Final = 256
"""Sends without an answer per `send_many`: enough to keep a broker busy (it gains nothing above)."""
REPLY_TIMEOUT_S: Final = 3.0
"""Of `request`, as the Java client's send timeout."""


class PartialSendError(GantryError):
    """Some messages of `send_many` were not stored; code and text are those of the first.

    Attributes:
        results (list[SendResult | GantryError]): Per message, in order, where it is or why it was not stored.
    """

    def __init__(self, results: list[SendResult | GantryError]) -> None:
        failed = [(row, result) for row, result in enumerate(results) if isinstance(result, GantryError)]
        row, first = failed[0]
        super().__init__(
            first.code, f"{len(failed)} of {len(results)} messages were not stored; number {row}: {first.text}"
        )
        self.results = results


class Producer(Part):
    """Sends messages. `async with Producer("127.0.0.1:9876") as producer: await producer.send("topic", b"body")`.

    Arguments:
        nameserver: `HOST:PORT`, several joined by `;`, or a page that names them; empty: `NAMESRV_ADDR`, else 127.0.0.1:9876.
        group: Whose members a broker asks what became of a transaction.
        client: Connections to share; None: its own.
        timeout_s: For each attempt.
        retries: Attempts after the first, on another broker or queue where there is one.
        check: Tells what became of a local transaction when a broker asks; takes the half message, returns its `Fate`.
        selector: Chooses the queue of messages without a sharding key.
        accumulate: `send` gathers messages for up to 10 ms, so that many callers share a request.
        avoid_slow: Brokers that failed or were slow are avoided for a while.
        compress_over: Larger bodies are compressed (zlib) where that makes them smaller, bytes.

    Attributes:
        client (Client): Its connections and routes.
    """

    def __init__(
        self,
        nameserver: str = "",
        group: str = "gantry_producer",
        client: Client | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        retries: int = RETRIES,
        *,
        check: CheckTransaction | None = None,
        selector: Selector | None = None,
        accumulate: bool = False,
        avoid_slow: bool = True,
        compress_over: int = COMPRESS_OVER,
    ) -> None:
        super().__init__(nameserver, client)
        self._group = group
        self._sender = Sender(self.client, Settings(group, timeout_s, retries, selector, avoid_slow, compress_over))
        self._transactions = Transactions(self._sender, check)
        self._checks = self._transactions.check if check is not None else None
        self._accumulator = batches.Accumulator(self._sender) if accumulate else None
        self._joined = False

    def _join(self) -> None:
        """Heartbeats begin with the first send."""
        if not self._joined:
            self._joined = True
            self.client.members.join_producer(self._group, self._checks)

    async def start(self, *topics: str) -> None:
        """Be known to the brokers of these topics before the first send: they may then ask this producer what became of transactions that
        another one of its group began."""
        for topic in topics:
            await self.client.routes.publish_route(topic)
        self._join()
        await self.client.members.beat()

    # sending

    async def send(
        self,
        topic: str | OutMessage,
        body: bytes = b"",
        *,
        tag: str = "",
        keys: str | Iterable[str] = "",
        properties: Mapping[str, str] | None = None,
        sharding_key: str = "",
        delay_level: int = 0,
        deliver_at_ms: int = 0,
        deliver_after_s: float = 0.0,
    ) -> SendResult:
        """Returns when the broker has acknowledged. A message that is an `OutMessage` says everything itself. Raises GantryError with the last
        attempt's reason, and ILLEGAL_ARGUMENT for what cannot be sent."""
        if isinstance(topic, OutMessage):
            message = topic
            if body or tag or keys or properties or sharding_key or delay_level or deliver_at_ms or deliver_after_s:
                text = "an OutMessage says everything itself: give body, tag, ... to it, and nothing beside it"
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
        else:
            message = OutMessage(
                topic, body, tag, keys, properties, sharding_key, delay_level=delay_level, deliver_at_ms=deliver_at_ms,
                deliver_after_s=deliver_after_s,
            )  # fmt: skip
        self._join()
        if self._accumulator is not None and _gathers(message):
            return await self._accumulator.send(message)
        return await self._sender.send(await self._sender.prepare(message))

    def post(self, message: OutMessage, done: Callable[[SendResult | GantryError], None]) -> None:
        """Send without waiting: `done` is called on the loop, exactly once, with the result or the last attempt's failure; it must not raise. The
        cheapest way to have many sends under way. At most 65,536 at a time
        wait for an answer of one broker, and 64 MiB in all; further ones fail with BUSY."""
        self._join()
        self._sender.post(message, done)

    async def send_many(self, messages: Sequence[OutMessage], window: int = WINDOW) -> list[SendResult]:
        """Send in a pipeline; results in the order of `messages`.

        Messages of one sharding key and topic are stored in this order, unless a broker refuses one and takes the next. Raises
        `PartialSendError`, which knows what became of each, if some were not stored after all attempts.
        """
        self._join()
        results: list[SendResult | GantryError] = []
        ready: list[Outgoing] = []
        rows: list[int] = []
        for row, message in enumerate(messages):
            try:
                ready.append(await self._sender.prepare(message))
                rows.append(row)
            except GantryError as error:
                results.append(error)
        sent = await self._sender.send_all(ready, window)
        for row, result in zip(rows, sent, strict=True):
            results.insert(row, result)
        fine = [result for result in results if isinstance(result, SendResult)]
        if len(fine) < len(results):
            raise PartialSendError(results)
        return fine

    async def send_batch(self, messages: Sequence[OutMessage]) -> list[SendResult]:
        """Send messages of one topic in one request (several above 1 MiB or 1,000 messages); a request is stored whole or not at all. Raises
        ILLEGAL_ARGUMENT for several topics or delays, else what the first failed request ended with."""
        self._join()
        return await batches.send_batch(self._sender, messages)

    async def send_one_way(self, message: OutMessage) -> str:
        """Hand over without wanting an answer; it may be lost. Returns its `message_id`."""
        self._join()
        outgoing = await self._sender.prepare(message)
        await self._sender.send_one_way(outgoing)
        return outgoing.unique_id

    # transactions, delays, replies

    async def send_transaction(self, message: OutMessage, local: LocalTransaction) -> TransactionResult:
        """Send `message` so that it is seen if and only if the local transaction succeeded.

        The broker stores it hidden; then `local(message, transaction_id)` runs and returns its `Fate`. With UNKNOWN, or when `local` raises (its
        exception is raised here), the broker asks the `check` callback of any producer of the group until that knows.
        """
        self._join()
        return await self._transactions.send(message, local)

    async def recall(self, sent: SendResult | str) -> str:
        """Take a delayed message back before it is delivered, by its result or its recall handle. Returns its `message_id`; raises if it is too
        late or was not delayed."""
        handle = sent if isinstance(sent, str) else sent.recall_handle
        topic, broker, message_id = recall_place(handle)
        what = f"recall of message {message_id}"
        route = await self.client.routes.publish_route(topic)
        fields = {"producerGroup": self._group, "topic": topic, "recallHandle": handle, "bname": broker}
        address = route.address(broker, master_only=True)
        answer = await self.client.ask(address, Command(RequestCode.RECALL_MESSAGE, fields), what)
        return answer.fields.get("msgId", message_id)

    async def request(
        self, topic: str | OutMessage, body: bytes = b"", *, timeout_s: float = REPLY_TIMEOUT_S
    ) -> ReceivedMessage:
        """Send a message and wait for the reply that a consumer of it sends with `reply`. Raises UNAVAILABLE when none comes in time."""
        self._join()
        message = topic if isinstance(topic, OutMessage) else OutMessage(topic, body)
        return await rpc.Calls.of(self.client).request(self._sender, message, timeout_s)

    async def reply(
        self, request: ReceivedMessage, body: bytes, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Answer a message that was sent with `request`, in a handler for example. Raises ILLEGAL_ARGUMENT for any other."""
        self._join()
        return await rpc.send_reply(self._sender, request, body, dict(properties or {}))

    async def close(self) -> None:
        """Send what is gathered, wait for check callbacks, leave the group, and close the links, if they are this object's own."""
        try:
            if self._accumulator is not None:
                await self._accumulator.close()
            await self._transactions.close()
            await self._sender.close()
            if self._joined:
                self._joined = False
                await asyncio.shield(self.client.members.leave(producer=self._group, check=self._checks))
        finally:
            await super().close()


def _gathers(message: OutMessage) -> bool:
    return not (message.delay_level or message.deliver_at_ms or message.deliver_after_s)
