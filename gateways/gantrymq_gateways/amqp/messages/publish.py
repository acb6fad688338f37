"""Publishing: one received chunk becomes one batch per channel, and its confirms come back merged.

Two caches keep the work per message at two dictionary look-ups: where basic.publish's arguments lead, and what a content header
means natively. Both are forgotten when full, and a target also when definitions change.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.port import PASSING, BrokerPort, SubmitResult
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, Message
from gantrymq_gateways.amqp.messages.special import Special, SpecialReader, delay_property, keys_property, origin_keys
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, DIRECT_TOPIC, KIND, clean, full_name, local, tag_of
from gantrymq_gateways.amqp.properties.mapping import expires_at, native_target, topic_of
from gantrymq_gateways.amqp.properties.reading import Content, PropertyReader, SpecialListError
from gantrymq_gateways.amqp.wire.codec import ack_frame, content_frames, method_frame, nack_frame, split_publish
from gantrymq_gateways.amqp.wire.constants import (
    ACCESS_REFUSED,
    FRAME_ERROR,
    METHODS,
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    REPLY_CODES,
    AmqpError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq_gateways.amqp.definitions import Definitions
    from gantrymq_gateways.amqp.wire.events import Publish

TARGETS_MAX: Final = 10_000
"""Remembered (exchange, routing key): devices with a key each; some 500 bytes apiece."""
CONTENTS_MAX: Final = 4096
"""Remembered content headers."""
CONTENT_KEY_BYTES_MAX: Final = 256
"""Longer headers hardly repeat, and those with an id or a time never."""


class UnknownExchangeError(Exception):
    """Nobody declared that exchange; perhaps the broker knows a topic of its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Target:
    """Where basic.publish with certain arguments leads. `version`: of the definitions that it was made from."""

    __slots__ = ("delayed", "demand", "exchange", "mandatory", "native", "tag", "topic", "version")

    def __init__(
        self, topic: str, tag: str, native: bytes, exchange: str, demand: str, mandatory: bool, version: int
    ) -> None:
        self.delayed = False
        """`x-delay` counts."""
        self.topic = topic
        self.tag = tag
        self.native = native
        self.exchange = exchange
        self.demand = demand
        self.mandatory = mandatory
        self.version = version


class Unstored(StrEnum):
    """Why a message was not stored, or not yet."""

    UNROUTED = "unrouted"
    """No queue wanted it, and it was dropped, as AMQP has it."""
    RETURNED = "returned"
    """The same of a mandatory one."""
    REFUSED = "refused"
    """Answered with basic.nack or an error."""
    RETRIED = "retried"
    """The broker had no room for it, and nobody waits for a confirm: it is submitted again."""


class Targets:
    """Targets by the raw arguments of basic.publish, shared by all connections of a vhost. `prefix`: what stands in front of its names."""

    def __init__(self, definitions: Definitions, prefix: str = "", unstored: Counter[Unstored] | None = None) -> None:
        self._definitions = definitions
        self.prefix = prefix
        self.unstored: Counter[Unstored] = Counter() if unstored is None else unstored
        """What was not stored that was published to them."""
        self._cache: dict[bytes, Target] = {}

    def find(self, arguments: bytes) -> Target:
        """Raises AmqpError and UnknownExchangeError."""
        target = self._cache.get(arguments)
        if target is None or target.version != self._definitions.version:
            target = self._make(arguments)
            if len(self._cache) >= TARGETS_MAX:
                self._cache.clear()
            self._cache[arguments] = target
        return target

    def _make(self, arguments: bytes) -> Target:
        try:
            exchange, key, mandatory, immediate = split_publish(arguments)
        except ValueError as error:
            raise AmqpError(FRAME_ERROR, str(error), connection=True) from None
        if immediate:
            raise AmqpError(NOT_IMPLEMENTED, "immediate=true", connection=True)
        version = self._definitions.version
        exchange = clean(exchange)
        try:
            if not exchange:
                return self._default(key, mandatory, version)
            exchange = self.prefix + exchange
            tag = tag_of(key)
        except GantryError as error:
            raise AmqpError(PRECONDITION_FAILED, error.text) from error
        found = self._definitions.known_exchange(exchange)
        if found is None:
            raise UnknownExchangeError(exchange)
        if found.internal:
            text = f"cannot publish to internal exchange '{exchange}' in vhost '/'"
            raise AmqpError(ACCESS_REFUSED, text)
        native = native_target(exchange, tag, "")
        target = Target(topic_of(exchange), tag, native, exchange, KIND if mandatory else "", mandatory, version)
        target.delayed = found.rules.delayed
        return target

    def first_of(self, target: Target, arguments: bytes, keys: list[str]) -> Target:
        """Where a message of the default exchange with several keys (full names) lies: with the first queue that there is."""
        _, key, _, _ = split_publish(arguments)
        first = full_name(self.prefix, key)
        for name in (first, *keys):
            queue = self._definitions.queues.get(name)
            if queue is not None and name != first:
                topic, tag = (topic_of(name), "") if queue.shared else (DIRECT_TOPIC, names.encode_word(name))
                native = native_target("", tag, key)
                return Target(topic, tag, native, DEFAULT_EXCHANGE, KIND, target.mandatory, target.version)
            if queue is not None:
                break
        return target

    def _default(self, key: str, mandatory: bool, version: int) -> Target:
        """The default exchange: to the queue named like the key, and nothing is stored if there is none."""
        name = full_name(self.prefix, key)
        queue = self._definitions.queues.get(name)
        names.refuse_nul(key)
        topic, tag, rest = DIRECT_TOPIC, names.encode_word(name), ""
        if queue is not None and queue.shared:
            topic, tag = topic_of(name), ""
            rest = key if names.decode_escapes(topic, "") != name else ""
        return Target(topic, tag, native_target("", tag, rest), DEFAULT_EXCHANGE, KIND, mandatory, version)


class Contents:
    """Native properties by content header, for one user."""

    def __init__(self, user: str) -> None:
        self._reader = PropertyReader(user)
        self.special = SpecialReader(user)
        self._cache: dict[bytes, Content] = {}

    def find(self, raw: bytes) -> Content:
        """Raises AmqpError, and SpecialListError for `special`."""
        content = self._cache.get(raw)
        if content is None:
            content = self._reader.read(raw)
            if content.repeats and len(raw) <= CONTENT_KEY_BYTES_MAX:
                if len(self._cache) >= CONTENTS_MAX:
                    self._cache.clear()
                self._cache[raw] = content
        return content


MESSAGE_BYTES: Final = 512
"""What a message takes beside its body and properties while it waits: empty ones cost their sender credit too."""


class Batch:
    """Messages of one channel that were submitted together. `returns`: mandatory ones by index. `numbered`: the channel was in
    confirm mode, so each message has a sequence number."""

    __slots__ = ("channel", "codes", "done", "messages", "numbered", "returns", "size")

    def __init__(self, channel: PublishingChannel) -> None:
        self.channel = channel
        self.messages: list[Message] = []
        self.returns: dict[int, Publish] = {}
        self.size = 0
        self.numbered = channel.confirming
        self.done = False
        self.codes: list[tuple[int, ErrorCode]] = []
        """What was not stored, by index."""


class Held(Protocol):
    """A channel's transaction."""

    def publish(self, message: Message, mandatory: Publish | None, size: int) -> None:
        """Keep it until the transaction is committed. Raises AmqpError."""


class PublishingChannel:
    """The publishing side of a channel."""

    __slots__ = ("confirmed", "confirming", "dead", "number", "pending", "published", "reply_queue")

    def __init__(self, number: int) -> None:
        self.number = number
        self.dead = False
        """The channel is closed. Its number may be open again (AMQP 1.5.2.5): what is stored late is then not the new one's business."""
        self.reply_queue = ""
        """Where direct replies to this channel go, if it consumes them."""
        self.confirming = False
        self.published = 0
        """Sequence number of the last message since confirm.select."""
        self.confirmed = 0
        self.pending: list[Batch] = []
        """Submitted and not answered yet, in order."""


class Publishers(Protocol):
    """What publishing tells its connection."""

    frame_max: int

    def send_frames(self, frames: bytes) -> None:
        """Into the outbox."""

    def check_keys(self, exchange: str, keys: list[str]) -> None:
        """Further keys of a message need the same right as its own. Raises AmqpError."""

    def publish_failed(self, channel: PublishingChannel, code: ErrorCode) -> None:
        """A message that nobody waits for a confirm of was not stored."""

    def blocked(self, code: ErrorCode) -> None:
        """The broker takes nothing for now."""

    def settled(self, channel: PublishingChannel) -> None:
        """A channel has no open batch any more."""


class Publisher:
    """Batches of one connection."""

    __slots__ = (
        "_again",
        "_batch",
        "_contents",
        "_due",
        "_flying",
        "_held",
        "_now_ms",
        "_owner",
        "_port",
        "_retrying",
        "_targets",
        "bytes_open",
        "submitted",
    )

    def __init__(
        self, port: BrokerPort, targets: Targets, contents: Contents, now_ms: Callable[[], int], owner: Publishers
    ) -> None:
        self._port = port
        self._targets = targets
        self._contents = contents
        self._now_ms = now_ms
        self._owner = owner
        self._batch: Batch | None = None
        self._again: list[Batch] = []
        """Refused for now, and to be submitted again."""
        self._held: list[Batch] = []
        """What came behind it."""
        self._flying = 0
        """Batches submitted and not answered."""
        self._retrying = False
        self._due = False
        """`retry` waits for the answers to what is on its way: it may be refused too."""
        self.bytes_open = 0
        """Messages held or submitted, and not answered."""
        self.submitted = 0
        """Messages since the connection last counted them."""

    def publish(self, channel: PublishingChannel, event: Publish, held: Held | None = None) -> None:
        """Add a message to the batch. Raises AmqpError and UnknownExchangeError; then nothing was added."""
        target = self._targets.find(event.arguments)
        try:
            content = self._contents.find(event.properties)
        except SpecialListError:
            special = self._contents.special.read(event.properties, local(channel.reply_queue), target.delayed)
            message = self._special_message(target, event, special)
        else:
            message = self._message(target, event.body, content, 0)
        size = len(event.body) + len(message.properties) + MESSAGE_BYTES
        if held is not None:
            held.publish(message, event if target.mandatory else None, size)
            return
        batch = self._batch
        if batch is None or batch.channel is not channel:
            self.flush()
            batch = self._batch = Batch(channel)
        if target.mandatory:
            batch.returns[len(batch.messages)] = event
        batch.messages.append(message)
        batch.size += size

    def _message(self, target: Target, body: bytes, content: Content, delay_ms: int) -> Message:
        message = Message(target.topic, body, target.native + content.native, target.tag)
        message.exchange = target.exchange
        message.demand_route = target.demand
        if content.ttl_ms >= 0:
            message.born_ms = self._now_ms()
            message.properties += expires_at(message.born_ms + delay_ms + content.ttl_ms)
        return message

    def _special_message(self, target: Target, event: Publish, special: Special) -> Message:
        """One with further keys, or for later. The queues of a later one are chosen when its time has come, so nothing is returned now."""
        keys = special.keys
        if keys:
            self._owner.check_keys(local(target.exchange), keys)
        if keys and target.exchange == DEFAULT_EXCHANGE:
            keys = [full_name(self._targets.prefix, key) for key in keys]
            target = self._targets.first_of(target, event.arguments, keys)
        message = self._message(target, event.body, special.content, special.delay_ms)
        if keys:
            text = origin_keys(keys)
            message.exchange = f"{target.exchange}\x01{text}"
            message.properties += keys_property(text)
        if special.delay_ms:
            message.kind = DELAYED
            message.demand_route = ""
            message.properties += delay_property(special.delay_ms)
        return message

    def flush(self) -> None:
        """Submit the batch."""
        batch = self._batch
        if batch is None:
            return
        self._batch = None
        self.submitted += len(batch.messages)
        channel = batch.channel
        if batch.numbered:
            channel.published += len(batch.messages)
        self.bytes_open += batch.size
        if self._again or self._held or self._retrying:
            self._held.append(batch)
        else:
            self._submit(batch)

    def retry(self) -> None:
        """Submit again what the broker had no room for, then what came behind it, once nothing is on its way."""
        self._due = self._flying > 0
        if self._due:
            return
        self._retrying = True
        again, self._again = self._again, []
        while again and not self._again:
            batch = again.pop(0)
            self.bytes_open += batch.size
            self._submit(batch)
        self._again += again
        while self._held and not self._again:
            self._submit(self._held.pop(0))
        self._retrying = False

    def holds(self, channel: PublishingChannel) -> bool:
        """Something of the channel waits behind what was refused."""
        return any(batch.channel is channel for batch in self._held)

    def waiting(self) -> int:
        """Messages that wait for `retry`."""
        return sum(len(batch.messages) for batch in self._again + self._held)

    def _submit(self, batch: Batch) -> None:
        batch.channel.pending.append(batch)
        self._flying += 1
        self._port.submit(batch.messages, batch, self._stored, self)

    def _stored(self, batch: Batch, result: list[SubmitResult] | GantryError) -> None:
        batch.done = True
        self._flying -= 1
        self.bytes_open -= batch.size
        if isinstance(result, GantryError):
            code = result.code
            batch.codes = [(index, code) for index in range(len(batch.messages))]
        else:
            batch.codes = [(index, code) for index, code in enumerate(result) if isinstance(code, ErrorCode)]
        channel = batch.channel
        pending = channel.pending
        reached = channel.confirmed
        while pending and pending[0].done:
            batch = pending.pop(0)
            first = reached + 1
            if batch.numbered:
                reached += len(batch.messages)
            if batch.codes:
                self._report(batch, first)
        self._confirm(channel, reached)
        if self._due and not self._flying:
            self.retry()
        if not pending:
            self._owner.settled(channel)

    def _confirm(self, channel: PublishingChannel, upto: int) -> None:
        count = upto - channel.confirmed
        if count > 0 and channel.confirming and not channel.dead:
            self._owner.send_frames(ack_frame(channel.number, upto, count > 1))
        channel.confirmed = max(channel.confirmed, upto)

    def _report(self, batch: Batch, first: int) -> None:
        """Returns, and nacks or errors for what was not stored. Without confirms nobody else would send it again: we do."""
        channel, unstored = batch.channel, self._targets.unstored
        again = Batch(channel)
        again.numbered = False
        for index, code in batch.codes:
            if code is ErrorCode.DUPLICATE:  # it is in its queue already
                continue
            if code is ErrorCode.NO_ROUTE:
                # Not an error: RabbitMQ confirms what no queue wanted, after its basic.return.
                event = batch.returns.get(index)
                unstored[Unstored.UNROUTED if event is None else Unstored.RETURNED] += 1
                if event is not None and not channel.dead:
                    self._return(channel.number, event)
                continue
            is_retried = code in PASSING and not batch.numbered
            unstored[Unstored.RETRIED if is_retried else Unstored.REFUSED] += 1
            if batch.numbered:
                self._confirm(channel, first + index - 1)
                if not channel.dead:
                    self._owner.send_frames(nack_frame(channel.number, first + index, False))
                channel.confirmed = first + index
            if code in PASSING:
                if is_retried:
                    message = batch.messages[index]
                    again.messages.append(message)
                    again.size += len(message.body) + len(message.properties) + MESSAGE_BYTES
                self._owner.blocked(code)
            elif not batch.numbered and code is not ErrorCode.QUEUE_FULL:  # a limit that somebody asked for
                self._owner.publish_failed(channel, code)
        if again.messages:
            self._again.append(again)
            self._due = False  # `blocked` has set a new time for it

    def _return(self, number: int, event: Publish) -> None:
        self._owner.send_frames(returned(number, event, self._owner.frame_max))


def returned(number: int, event: Publish, frame_max: int) -> bytes:
    """basic.return of a mandatory message that no queue wanted."""
    exchange, key, _, _ = split_publish(event.arguments)
    method = method_frame(number, METHODS["basic.return"], (NO_ROUTE, REPLY_CODES[NO_ROUTE], exchange, key))
    return method + content_frames(number, event.properties, event.body, frame_max)
