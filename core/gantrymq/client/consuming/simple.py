"""A consumer that takes messages for a while: the broker hides what it gives out and gives it again unless it is acknowledged in time (pop).

The broker shares a topic's messages out, so members of a group need no balancing, and any number of them may read one queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from gantrymq.client.client import Client, Part
from gantrymq.client.connecting.link import REQUEST_TIMEOUT_S
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.consuming.pulling import Subscription
from gantrymq.client.errors import expect_success, number
from gantrymq.client.records import ReceivedMessage, readable_records
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import RETRY_PREFIX, check_group
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode

RECEIVE_MAX: Final = 32
"""Messages of one receive (maxMsgNums of POP_MESSAGE)."""
INVISIBLE_S: Final = 60.0
"""RocketMQ's popInvisibleTime."""
WAIT_S: Final = 15.0
EMPTY_PAUSE_S: Final = 0.05
"""Before brokers are asked again that answered at once without a message though they were asked to wait."""
SHORT_WAIT_S: Final = 0.2
"""At one of several topics, while others may get something."""
POP_CK: Final = "POP_CK"
ANY_QUEUE: Final = -1
_FROM_FIRST: Final = 1
_FROM_LAST: Final = 0
"""initMode: where a group begins that has no offset."""

_NOTHING: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.NO_MESSAGE}
)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What acknowledges one delivery of one message; made new by every delivery and every `change_invisible`.

    Attributes:
        queue: The queue that the message was taken from.
        offset: Its offset there.
        handle: The broker's text about the delivery (POP_CK).
        expires_ms: From then on the message may be given out again.
    """

    queue: MessageQueue
    offset: int
    handle: str
    expires_ms: int


@dataclass(slots=True)
class Received:
    """A message and its receipt.

    Attributes:
        message: What was sent.
        receipt: What acknowledges this delivery; `SimpleConsumer.change_invisible` replaces it.
    """

    message: ReceivedMessage
    receipt: Receipt

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self.message.body


def retry_flag(topic: str, group: str) -> str:
    """How handles name the kind of topic: 0 the topic itself, 1 the retry topic `%RETRY%group_topic`, 2 `%RETRY%group+topic` (ExtraInfoUtil)."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if topic.startswith(f"{RETRY_PREFIX}{group}+") else "1"


def _map(text: str) -> dict[tuple[str, str], list[int]]:
    """Lists by (retry flag, queue id) of `flag queueId value[,value];...`. Raises ValueError."""
    result: dict[tuple[str, str], list[int]] = {}
    for entry in text.split(";") if text else ():
        flag, queue_id, values = entry.split(" ")
        result[flag, queue_id] = [int(value) for value in values.split(",")]
    return result


def receipts_of(fields: dict[str, str], messages: Sequence[ReceivedMessage], group: str, broker: str) -> list[Receipt]:
    """The receipts of a pop's messages. Raises KeyError, ValueError or IndexError for an answer that does not fit them."""
    popped_ms, invisible_ms, revive = int(fields["popTime"]), int(fields["invisibleTime"]), fields["reviveQid"]
    starts = {key: values[0] for key, values in _map(fields.get("startOffsetInfo", "")).items()}
    offsets = _map(fields.get("msgOffsetInfo", ""))
    seen: dict[tuple[str, str], int] = {}
    receipts = []
    for message in messages:
        key = (retry_flag(message.topic, group), str(message.queue_id))
        handle = message.property(POP_CK)  # a stored handle: the message came through the revive topic
        offset = message.queue_offset
        if key in starts:
            row = seen[key] = seen.get(key, -1) + 1
            listed = offsets.get(key)
            # By its value: records that could not be read are left out. By its place only where it stands in another queue, too (LMQ).
            if listed is not None and len(listed) > row and offset not in listed:
                offset = listed[row]
            handle = f"{starts[key]} {popped_ms} {invisible_ms} {revive} {key[0]} {broker} {key[1]} {offset}"
        elif not handle:
            handle = f"{offset} {popped_ms} {invisible_ms} {revive} {key[0]} {broker} {key[1]} {offset}"
        queue = MessageQueue(message.topic, broker, message.queue_id)
        receipts.append(Receipt(queue, offset, handle, popped_ms + invisible_ms))
    return receipts


class SimpleConsumer(Part):
    """Takes messages: `receive`, then `ack` each before its invisible time ends.

    ```
    async with SimpleConsumer("127.0.0.1:9876", group="workers") as consumer:
        for received in await consumer.receive("jobs", invisible_s=30):
            await consumer.ack(received)
    ```

    Arguments:
        nameserver: `HOST:PORT`, several joined by `;`, or a page that names them; empty: `NAMESRV_ADDR`, else 127.0.0.1:9876.
        group: Whose members share the messages.
        client: Connections to share; None: its own.
        start: Where a group begins that is new: `earliest` or `latest`.
        check_crc: A message whose body does not fit its CRC is left out, with a line of the log that names queue and offset; nobody acknowledges
            it, so it comes again until it is a dead letter.

    Attributes:
        client (Client): Its connections and routes.
        group (str): As given.
    """

    def __init__(
        self,
        nameserver: str = "",
        group: str = "gantry_simple",
        client: Client | None = None,
        *,
        start: str = "earliest",
        check_crc: bool = False,
    ) -> None:
        super().__init__(nameserver, client)
        self._check_crc = check_crc
        check_group(group)
        if start not in ("earliest", "latest"):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"start {start!r}: allowed are earliest and latest")
        self.group = group
        self._mode = _FROM_FIRST if start == "earliest" else _FROM_LAST
        self._subscriptions: dict[str, Subscription] = {}
        self._turn = 0
        self._topic_turn = 0
        self._joined = False
        self._closed = False

    def subscribe(self, topic: str, *, tags: str = "*", sql: str = "") -> None:
        """Filter what `receive` takes of `topic`: tags `a || b`, or an SQL92 filter. Without this it takes everything."""
        self._subscriptions[topic] = Subscription.of(topic, tags, sql)
        if self._joined:
            self.client.members.beat_soon()

    async def _join(self, topic: str) -> None:
        if topic not in self._subscriptions:
            self.subscribe(topic)
        await self.client.routes.route(topic)
        if not self._joined:
            self.client.members.join_consumer(self.group, self)
            self._joined = True
            await self.client.members.beat()

    async def receive(
        self,
        topic: str,
        max_messages: int = RECEIVE_MAX,
        *,
        invisible_s: float = INVISIBLE_S,
        wait_s: float = WAIT_S,
        queue: MessageQueue | None = None,
        order: bool = False,
    ) -> list[Received]:
        """Messages that nobody else of the group sees for `invisible_s`; empty if `wait_s` passes without any.

        One broker answers; with several they are asked in turn, the first ones without waiting. `queue`: of this queue only. `order`: no
        message of a queue while an earlier one is not acknowledged. Raises what a broker answers, or UNAVAILABLE.
        """
        await self._join(topic)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            begun = loop.time()
            brokers = [queue.broker] if queue is not None else await self._brokers(topic)
            for row, broker in enumerate(brokers):
                last = row == len(brokers) - 1
                wait = max(0.0, deadline - loop.time()) if last else 0.0
                if last and len(brokers) > 1:
                    wait = min(wait, 1.0)  # others may get something meanwhile
                place = queue or MessageQueue(topic, broker, ANY_QUEUE)
                found = await self._pop(place, max_messages, invisible_s, wait, order)
                if found:
                    return found
            if loop.time() >= deadline:
                return []
            if loop.time() - begun < EMPTY_PAUSE_S:
                await asyncio.sleep(EMPTY_PAUSE_S)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        """The next message of the subscribed topics, hidden for `INVISIBLE_S`; ends when the consumer is closed. One at a time, so that no
        message waits here while its time runs: `receive` takes more."""
        if not self._subscriptions:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, "nothing is subscribed: call subscribe(topic) before iterating"
            )
        while not self._closed:
            topics = list(self._subscriptions)
            self._topic_turn = (self._topic_turn + 1) % len(topics)
            wait_s = WAIT_S if len(topics) == 1 else SHORT_WAIT_S
            received = await self.receive(topics[self._topic_turn], 1, wait_s=wait_s)
            if received:
                return received[0]
        raise StopAsyncIteration

    async def _brokers(self, topic: str) -> list[str]:
        """Brokers of a topic, a different one first each time."""
        route = await self.client.routes.route(topic)
        brokers = sorted({queue.broker for queue in route.read_queues()})
        if not brokers:
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {topic!r} has no queue that can be read")
        self._turn += 1
        start = self._turn % len(brokers)
        return brokers[start:] + brokers[:start]

    async def _pop(
        self, queue: MessageQueue, count: int, invisible_s: float, wait_s: float, order: bool
    ) -> list[Received]:
        subscription = self._subscriptions[queue.topic]
        fields = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "maxMsgNums": str(max(1, min(count, RECEIVE_MAX))),
            "invisibleTime": str(int(invisible_s * 1000)),
            "pollTime": str(int(wait_s * 1000)),
            "bornTime": str(time.time_ns() // 1_000_000),
            "initMode": str(self._mode),
            "expType": subscription.kind,
            "exp": subscription.expression,
            "order": str(order).lower(),
        }
        what = f"receive from {queue.topic}/{queue.broker}"
        link = await self.client.link_of(queue, master_only=True)
        answer = await link.request(Command(RequestCode.POP_MESSAGE, fields), REQUEST_TIMEOUT_S + wait_s)
        if answer.code in _NOTHING:
            return []
        expect_success(answer, what, link.address)
        messages = readable_records(answer.body, queue.broker, f"{link.address}: {queue}", self._check_crc)
        try:
            receipts = receipts_of(answer.fields, messages, self.group, queue.broker)
        except (KeyError, ValueError, IndexError) as error:
            text = f"{what}: the answer of {link.address} does not fit its messages: {error!r}"
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, text) from None
        received: list[Received] = []
        unwanted: list[Received] = []
        for message, receipt in zip(messages, receipts, strict=True):
            message.topic = message.property(props.RETRY_TOPIC) or queue.topic
            one = Received(message, receipt)
            (received if subscription.wants(message) else unwanted).append(one)
        for one in unwanted:  # the broker compares hashes of tags; another tag of the same hash is not ours
            await self.ack(one)
        return received

    async def ack(self, received: Received | Receipt) -> None:
        """This delivery is done: the message is not given to the group again. Raises what the broker answers, e.g. for an old handle."""
        receipt = received.receipt if isinstance(received, Received) else received
        await self._tell(RequestCode.ACK_MESSAGE, receipt, {}, "ack")

    async def change_invisible(self, received: Received, invisible_s: float) -> Receipt:
        """Hide a message for so long from now on; 0 gives it back at once. Its receipt is replaced; returns the new one."""
        receipt = received.receipt
        fields = {"invisibleTime": str(int(invisible_s * 1000))}
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer, address = await self._tell(code, receipt, fields, "change of invisible time")
        what = f"change of invisible time of {receipt.queue}"
        popped_ms = number(answer, "popTime", what, address)
        invisible_ms = number(answer, "invisibleTime", what, address)
        words = receipt.handle.split(" ")
        # The broker's new check point covers this message alone (ExtraInfoUtil.buildExtraInfo in ChangeInvisibleTimeProcessor's client).
        words[0] = str(receipt.offset)
        words[1:4] = [str(popped_ms), str(invisible_ms), str(number(answer, "reviveQid", what, address))]
        received.receipt = Receipt(receipt.queue, receipt.offset, " ".join(words), popped_ms + invisible_ms)
        return received.receipt

    async def _tell(self, code: RequestCode, receipt: Receipt, more: dict[str, str], what: str) -> tuple[Command, str]:
        queue = receipt.queue
        fields = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "extraInfo": receipt.handle,
            "offset": str(receipt.offset),
            "bname": queue.broker,
            **more,
        }
        place = MessageQueue(_routed_topic(queue.topic, self.group), queue.broker, queue.queue_id)
        link = await self.client.link_of(place, master_only=True)
        answer = await link.request(Command(code, fields))
        return expect_success(answer, f"{what} of {queue}@{receipt.offset}", link.address), link.address

    async def close(self) -> None:
        """Leave the group and close the links, if they are this object's own. What is not acknowledged comes back to the group."""
        self._closed = True
        try:
            if self._joined:
                self._joined = False
                await self.client.members.leave(consumer=self.group)
        finally:
            await super().close()

    # membership.ConsumerMember

    def describe(self) -> dict[str, Any]:
        """See `ConsumerMember`."""
        return {
            "groupName": self.group,
            "consumeType": "CONSUME_POP",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"
            if self._mode == _FROM_FIRST
            else "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [subscription.data() for subscription in self._subscriptions.values()],
            "unitMode": False,
        }

    def members_changed(self) -> None:
        """See `ConsumerMember`: the broker shares the messages out, nothing is to be done here."""

    def serve(self, link: object, command: Command) -> bool:
        """See `ConsumerMember`."""
        return False


def _routed_topic(topic: str, group: str) -> str:
    """The topic whose route leads to a message's broker: pop retry topics are not asked for by name."""
    for mark in ("+", "_"):
        prefix = f"{RETRY_PREFIX}{group}{mark}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic
