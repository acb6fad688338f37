"""What comes in from publishers: one received chunk -> one batch for the log -> its PUBACKs in one write.

A PUBACK follows the log's acknowledgement alone, in the order of receipt [MQTT-4.6.0-2], and for a retained message also the table's. MQTT
3.1.1 has no negative answer: what the log refuses ends the connection. BUSY and STORE_FULL are neither: the rest of the batch is handed over
again a little later and meanwhile the publisher is not read; what came behind waits for it, so that the log has the order of receipt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from gantrymq.broker.port import Done
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt import retained
from gantrymq_gateways.mqtt.messages.deliver import message_qos
from gantrymq_gateways.mqtt.retained import RetainedStore
from gantrymq_gateways.mqtt.topics.mapping import LongTopics
from gantrymq_gateways.mqtt.topics.rules import NO_RULES, TopicRules
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Publish
from gantrymq_gateways.mqtt.wire.connection import Part

ORIGIN: Final = "mqtt"

MESSAGE_BYTES: Final = 200
"""Counted for each message on its way to the log besides its body: what the object takes, so that empty ones count too."""


OUR_FAULT: Final = frozenset(
    {ErrorCode.STORE_FAILED, ErrorCode.FLUSH_TIMEOUT, ErrorCode.UNAVAILABLE, ErrorCode.SHUTTING_DOWN}
)
"""Refusals that say nothing of the message: the client is welcome again at once."""


class Target:
    """Where messages of one MQTT topic and one set of flags go; worked out once."""

    __slots__ = ("native", "properties", "tag", "topic")

    def __init__(self, topic: str, native: str, tag: str, properties: bytes) -> None:
        self.topic = topic
        self.native = native
        self.tag = tag
        self.properties = properties


class PublishPort(Protocol):
    """What publishing needs from the broker."""

    def submit(self, batch: list[Message], token: object, on_done: Done, sender: object = None) -> None: ...

    def put(self, table: str, items: list[tuple[str, bytes | None]], token: object, on_done: Done) -> None: ...


class Targets:
    """(QoS and retain flags, topic) -> Target, for all publishers of a process."""

    def __init__(self, long_topics: LongTopics, rules: TopicRules = NO_RULES) -> None:
        self.rules = rules
        self._long = long_topics
        self.by_flags: list[dict[bytes, Target]] = [{} for _ in range(8)]

    def find(self, topic: bytes, flags: int) -> Target:
        """Work out and keep a target; raises GantryError if nobody may publish there."""
        text = topic.decode()
        native, tag = self.rules.to_native(text)
        pairs = [(props.TAGS, tag), (props.ORIGIN, ORIGIN)]
        if not flags & c.FLAG_QOS:
            pairs.append((props.QOS, "0"))
        if flags & c.FLAG_RETAIN:
            pairs.append((props.RETAIN, "1"))
        target = Target(text, native, tag, props.encode(pairs))
        first_level = text.partition("/")[0]
        if native == names.encode_topic(first_level):
            self._long.note(first_level, native)
        known = self.by_flags[flags]
        if len(known) >= c.TOPIC_CACHE_MAX:
            known.clear()
        known[topic] = target
        return target


class _Batch:
    """Messages of one chunk. `open`: answers that are missing. `waiting`: to be submitted (again)."""

    __slots__ = ("acks", "messages", "open", "size", "waiting")

    def __init__(self, messages: list[Message], acks: list[int], size: int) -> None:
        self.messages = messages
        self.acks = acks
        """Packet identifiers of the QoS 1 messages."""
        self.size = size
        self.open = 1
        self.waiting = False


class InflowHost(Protocol):
    """The connection that publishes."""

    def acknowledge(self, packet_ids: list[int]) -> None: ...

    def answered(self) -> None:
        """A batch is done, acknowledgements or none."""

    def hold_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def refused(self, text: str) -> None:
        """Close for what the client sent."""

    def fail(self, text: str) -> None:
        """Close for what is wrong on our side."""

    def letter(self, topic: str, payload: bytes, flags: int, error: GantryError, part: str) -> Message | None:
        """What is stored instead of a PUBLISH that is refused; None: nothing, the connection ends."""

    def retry_later(self, retry: Callable[[], None]) -> None: ...


class Inflow:
    """The publishing side of one connection."""

    __slots__ = (
        "_batches",
        "_flying",
        "_held",
        "_host",
        "_mark",
        "_port",
        "_retained",
        "_retrying",
        "closed",
        "targets",
        "unacked_bytes",
        "unacked_bytes_max",
    )

    def __init__(
        self,
        port: PublishPort,
        targets: Targets,
        store: RetainedStore,
        host: InflowHost,
        unacked_bytes_max: int,
        mark: bytes = b"",
    ) -> None:
        """`mark`: encoded properties that every message of this connection gets."""
        self._mark = mark
        self._port = port
        self._retained = store
        self._host = host
        self._batches: deque[_Batch] = deque()
        self._flying = 0
        """Calls to the port that were not answered."""
        self._held = False
        """A batch was refused: from it on they wait, until nothing is on its way any more and then a little."""
        self._retrying = False
        self.closed = False
        """The client has ended: what is on its way is answered, nothing is tried again."""
        self.targets = targets
        self.unacked_bytes = 0
        self.unacked_bytes_max = unacked_bytes_max

    def is_idle(self) -> bool:
        """Everything handed over was answered."""
        return not self._batches

    def is_flying(self) -> bool:
        """Something handed over was not answered by the port."""
        return self._flying > 0

    def submit(self, publishes: list[Publish]) -> None:
        """Hand one chunk's messages to the log. Raises GantryError if one may not be published; those before it go their way."""
        messages: list[Message] = []
        acks: list[int] = []
        kept: dict[str, bytes | None] = {}
        size = 0
        by_flags, mark = self.targets.by_flags, self._mark
        try:
            for publish in publishes:
                flags = publish.flags & 7
                payload = publish.payload
                target = by_flags[flags].get(publish.topic)
                if target is None:
                    try:
                        target = self.targets.find(publish.topic, flags)
                    except GantryError as error:
                        messages.append(self._letter(publish.topic.decode(), payload, flags, error))
                        size += len(payload) + MESSAGE_BYTES
                        if flags & 2:
                            acks.append(publish.packet_id)
                        continue
                if flags & 1:
                    self._keep(target, payload, flags >> 1, kept)
                messages.append(Message(target.native, payload, target.properties + mark, target.tag))
                size += len(payload) + MESSAGE_BYTES
                if flags & 2:
                    acks.append(publish.packet_id)
        finally:
            if messages:
                self._hand_over(_Batch(messages, acks, size), kept)

    def take_part(self, part: Part) -> None:
        """Store some of a PUBLISH that is too large for a record. Raises GantryError if that is not to be."""
        error = GantryError(ErrorCode.MESSAGE_TOO_LARGE, "the packet is larger than message.body_bytes_max allows")
        which = f"{part.number}/{part.count}"
        message = self._letter(part.topic.decode(), part.payload, part.flags, error, which)
        acks = [part.packet_id] if part.packet_id else []
        self._hand_over(_Batch([message], acks, len(part.payload) + MESSAGE_BYTES), {})

    def _letter(self, topic: str, payload: bytes, flags: int, error: GantryError, part: str = "") -> Message:
        found = self._host.letter(topic, payload, flags, error, part)
        if found is None:
            raise error
        return found

    def _keep(self, target: Target, payload: bytes, qos: int, kept: dict[str, bytes | None]) -> None:
        self._retained.check_room(target.topic, payload)
        kept[retained.row_key(target.topic)] = retained.row_value(target.topic, payload, qos)

    def _hand_over(self, batch: _Batch, kept: dict[str, bytes | None]) -> None:
        self._batches.append(batch)
        self.unacked_bytes += batch.size
        if self.unacked_bytes > self.unacked_bytes_max:
            self._host.hold_reading()
        if kept:
            batch.open += 1
        if self._held or self._retrying:
            batch.waiting = True
        else:
            self._submit(batch)
        if kept:
            self._flying += 1
            items = list(kept.items())
            for key, value in items:
                self._retained.storing(key, value)
            self._port.put(retained.TABLE, items, (batch, items), self._kept)

    def _submit(self, batch: _Batch) -> None:
        self._flying += 1
        self._port.submit(batch.messages, batch, self._submitted, self)

    def _kept(self, token: tuple[_Batch, list[tuple[str, bytes | None]]], result: object) -> None:
        self._flying -= 1
        batch, items = token
        failed = isinstance(result, GantryError)
        for key, value in items:
            self._retained.stored(key, value, failed)
        if failed:
            self._host.fail(f"retained messages cannot be stored: {result}")
        else:
            self._answered(batch)
        self._landed()

    def _submitted(self, batch: _Batch, results: Any) -> None:
        self._flying -= 1
        if isinstance(results, GantryError):
            results = [results.code] * len(batch.messages)
        try:
            min(results)  # One comparison in C per message: it fails if there is an ErrorCode among several numbers.
            stored = type(results[0]) is int
        except TypeError:
            stored = False
        if stored:
            self._answered(batch)
        else:
            self._not_stored(batch, results)
        self._landed()

    def _landed(self) -> None:
        """A call was answered."""
        if self._flying:
            return
        if self.closed:
            self._host.answered()
        elif self._held:
            self._host.retry_later(self._retry)

    def _not_stored(self, batch: _Batch, results: list[int | ErrorCode]) -> None:
        again: list[Message] = []
        for message, result in zip(batch.messages, results, strict=True):
            if result is ErrorCode.BUSY or result is ErrorCode.STORE_FULL:
                again.append(message)
            elif isinstance(result, ErrorCode):
                text = f"a message to {message.topic!r} was not stored: {result.value}"
                if result in OUR_FAULT:
                    self._host.fail(text)
                    return
                flags = 0 if message_qos(message) == 0 else c.FLAG_QOS
                topic = self.targets.rules.to_mqtt(message.topic, message.tag).decode()
                letter = self._host.letter(topic, message.body, flags, GantryError(result, text), "")
                if letter is None:
                    self._host.refused(text)
                    return
                again.append(letter)
        batch.messages = again
        batch.waiting = True
        self._held = True
        self._host.hold_reading()

    def _retry(self) -> None:
        """Submit what waits, oldest first, up to one that is refused again at once."""
        if self.closed:
            return
        self._held = False
        self._retrying = True
        while not self._held:
            batch = next((batch for batch in self._batches if batch.waiting), None)
            if batch is None:
                break
            batch.waiting = False
            self._submit(batch)
        self._retrying = False
        self._maybe_resume()

    def _answered(self, batch: _Batch) -> None:
        batch.open -= 1
        batches = self._batches
        while batches and not batches[0].open:
            done = batches.popleft()
            self.unacked_bytes -= done.size
            if done.acks:
                self._host.acknowledge(done.acks)
            self._host.answered()
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        if not self._held and not self._retrying and self.unacked_bytes <= self.unacked_bytes_max // 2:
            self._host.resume_reading()
