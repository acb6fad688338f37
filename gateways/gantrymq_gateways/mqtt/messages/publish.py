"""What comes in from publishers: one received chunk -> one batch for the log -> its PUBACKs in one write.

A PUBACK or PUBREC follows the log's acknowledgement alone, in the order of receipt [MQTT-4.6.0-2] [MQTT5-4.6.0-2]. The record of a retained message
is its row of `mqtt_retained`, too (retained.py). What the log refuses is answered with a reason code (5.0) or ends the connection: 3.x has no negative answer. BUSY and STORE_FULL are neither: the rest of the batch is handed over
again a little later and meanwhile the publisher is not read; what came behind waits for it, so that the log has the order of receipt.

QoS 2: the packet identifier is stored in one piece with the record (messages/exchange.py), and taken out again before PUBCOMP. So a publish that
comes again after a crash is known, and answered without being stored twice [MQTT-4.3.3-2] [MQTT5-4.3.3-10].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gantrymq.broker.port import Done
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, Message
from gantrymq_gateways.mqtt.messages import exchange
from gantrymq_gateways.mqtt.messages.deliver import message_qos
from gantrymq_gateways.mqtt.messages.exchange import Inbound, encode_ids
from gantrymq_gateways.mqtt.messages.properties import passed_on, to_native
from gantrymq_gateways.mqtt.retained import TABLE as RETAINED_TABLE
from gantrymq_gateways.mqtt.retained import RetainedStore, RowPlace
from gantrymq_gateways.mqtt.topics.delayed import split_delay
from gantrymq_gateways.mqtt.topics.mapping import LongTopics
from gantrymq_gateways.mqtt.topics.rewrite import NO_REWRITING, Rewriter
from gantrymq_gateways.mqtt.topics.rules import NO_RULES, TopicRules
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.connection import Part
from gantrymq_gateways.mqtt.wire.counts import Counts
from gantrymq_gateways.mqtt.wire.packets import Publish
from gantrymq_gateways.mqtt.wire.reasons import Reason, publish_reason

ORIGIN: Final = "mqtt"

MESSAGE_BYTES: Final = 200
"""Counted for each message on its way to the log besides its body: what the object takes, so that empty ones count too."""
UNACKED_MAX: Final = 2_048
"""Messages of one publisher on their way to the log; beyond it we stop reading from it. It is what five turns store, so that nobody waits for more. And the
collector of garbage goes through all that is under way, 0.8 us a message: with 20,000 of them it held up everybody for 20 ms."""


OUR_FAULT: Final = frozenset(
    {ErrorCode.STORE_FAILED, ErrorCode.FLUSH_TIMEOUT, ErrorCode.UNAVAILABLE, ErrorCode.SHUTTING_DOWN}
)
"""Refusals that say nothing of the message: the client is welcome again at once."""


WAITS: Final = frozenset({ErrorCode.BUSY, ErrorCode.STORE_FULL, ErrorCode.NOT_ALONE})
"""Refusals of a message that is submitted again."""


class Target:
    """Where messages of one MQTT topic and one set of flags go; worked out once."""

    __slots__ = ("delayed", "native", "properties", "row", "tag", "topic")

    def __init__(
        self, topic: str, native: str, tag: str, properties: bytes, delayed: bool = False, row: RowPlace | None = None
    ) -> None:
        self.topic = topic
        self.native = native
        self.tag = tag
        self.properties = properties
        self.delayed = delayed
        """It comes later, and retains nothing."""
        self.row = row
        """Of a retained message without properties of its own: what says that it is a row."""


class PublishPort(Protocol):
    """What publishing needs from the broker."""

    def submit(
        self,
        batch: list[Message],
        token: object,
        on_done: Done,
        sender: object = None,
        *,
        rows: Sequence[tuple[str, str, bytes | None]] = (),
    ) -> None: ...


class Targets:
    """(QoS and retain flags, topic) -> Target, for all publishers of a process."""

    def __init__(
        self, long_topics: LongTopics, rules: TopicRules = NO_RULES, rewriter: Rewriter = NO_REWRITING
    ) -> None:
        self.rules = rules
        self.rewriter = rewriter
        self._long = long_topics
        self.by_flags: list[dict[bytes, Target]] = [{} for _ in range(8)]

    def real(self, topic: bytes) -> str:
        """What `mqtt.rewrite` makes of a topic; behind the time, if it has one."""
        text = topic.decode()
        rest = split_delay(text)[1]
        return text[: len(text) - len(rest)] + self.rewriter.published(rest)

    def find(self, topic: bytes, flags: int) -> Target:
        """Work out and keep a target; raises GantryError if nobody may publish there."""
        delay_s, text = split_delay(self.real(topic))
        native, tag = self.rules.to_native(text)
        pairs = [(props.TAGS, tag), (props.ORIGIN, ORIGIN)]
        if flags & c.FLAG_QOS != 2:
            pairs.append((props.QOS, str(flags >> 1 & 3)))
        if flags & c.FLAG_RETAIN and not delay_s:
            pairs.append((props.RETAIN, "1"))
        if delay_s:
            pairs.append(("TIMER_DELAY_MS", str(delay_s * 1000)))
        row = RowPlace(text, flags >> 1 & 3) if flags & c.FLAG_RETAIN and not delay_s else None
        target = Target(text, native, tag, props.encode(pairs), delay_s > 0, row)
        first_level = text.partition("/")[0]
        if native == names.encode_topic(first_level):
            self._long.note(first_level, native)
        known = self.by_flags[flags]
        if len(known) >= c.TOPIC_CACHE_MAX:
            known.clear()
        known[topic] = target
        return target


PUBACK: Final = 0x40020000
PUBREC: Final = 0x50020000
PUBCOMP: Final = 0x70020000
"""Acknowledgements as numbers: a packet of four bytes with the identifier added. With a reason code they have five."""


def refusal(ack: int, reason: Reason) -> int:
    """The acknowledgement with a reason code: one byte longer."""
    return (ack + 0x10000) << 8 | reason


def encode_acks(acks: list[int]) -> bytes:
    """The packets of such numbers."""
    return b"".join([ack.to_bytes(4 if ack < 1 << 32 else 5, "big") for ack in acks])


class KeptRow:
    """What a message on its way to the log retains. `apart`: the row has no room in the message, and is a record of its own in one piece with it."""

    __slots__ = ("apart", "key", "message", "value")

    def __init__(self, key: str, value: bytes | None, message: Message, apart: bool) -> None:
        self.key = key
        self.value = value
        self.message = message
        self.apart = apart

    @staticmethod
    def of(place: RowPlace, message: Message) -> KeptRow:
        """Make a message the row, too, if it has room for that."""
        value = place.head + message.body if message.body else None
        return KeptRow(place.key, value, message, not place.enter(message))


class _Batch:
    """Messages of one chunk. `open`: answers that are missing. `waiting`: to be submitted (again)."""

    __slots__ = (
        "acks",
        "closed",
        "count",
        "extra",
        "kept",
        "messages",
        "open",
        "opened",
        "size",
        "slots",
        "unanswered",
        "waiting",
    )

    def __init__(self, messages: list[Message], acks: list[int], size: int) -> None:
        self.messages = messages
        self.count = len(messages)
        """Those that were refused included."""
        self.acks = acks
        """Of the messages with QoS 1 and 2, in their order."""
        self.extra: list[int] = []
        """Those without a message: PUBCOMP, and what was received before."""
        self.slots: list[int] | None = None
        """Once something was refused: index in `acks` for each message that is left, -1 for QoS 0."""
        self.kept: list[KeptRow] = []
        """Rows of retained messages that are not answered yet."""
        self.opened: list[int] = []
        """Packet identifiers of QoS 2 that come in with it."""
        self.closed: list[int] = []
        """...and those that the client released."""
        self.unanswered = len(acks)
        self.size = size
        self.open = 1
        self.waiting = False


class InflowHost(Protocol):
    """The connection that publishes."""

    def acknowledge(self, acks: list[int]) -> None:
        """Send acknowledgements (`encode_acks`)."""

    def answered(self) -> None:
        """A batch is done, acknowledgements or none."""

    def hold_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def refused(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None:
        """Close for what the client sent."""

    def fail(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None:
        """Close for what is wrong on our side."""

    def dropped(self, text: str) -> None:
        """A publish was refused, which its acknowledgement says, or nothing if it has none."""

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
        "_port",
        "_retained",
        "_retrying",
        "closed",
        "counts",
        "exchange",
        "five",
        "mark",
        "now_ms",
        "receive_max",
        "targets",
        "unacked",
        "unacked_bytes",
        "unacked_bytes_max",
        "unanswered",
    )

    def __init__(
        self,
        port: PublishPort,
        targets: Targets,
        store: RetainedStore,
        host: InflowHost,
        unacked_bytes_max: int,
        mark: bytes = b"",
        inbound: Inbound | None = None,
    ) -> None:
        """`mark`: encoded properties that every message of this connection gets."""
        self.mark = mark
        self.exchange = inbound if inbound is not None else Inbound()
        self.five = False
        """Refusals are answered with reason codes, and `receive_max` holds."""
        self.receive_max = c.RECEIVE_MAX
        """Open identifiers of QoS 2; with 5.0 publishes of QoS 1 and 2 that are not acknowledged."""
        self.unanswered = 0
        self.now_ms: Callable[[], int] = lambda: 0
        """The wall clock, for messages that expire."""
        self._port = port
        self._retained = store
        self._host = host
        self._batches: list[_Batch] = []
        """At most `UNACKED_MAX`, so that taking one off the front is cheap."""
        self._flying = 0
        """Calls to the port that were not answered."""
        self._held = False
        """A batch was refused: from it on they wait, until nothing is on its way any more and then a little."""
        self._retrying = False
        self.closed = False
        """The client has ended: what is on its way is answered, nothing is tried again."""
        self.targets = targets
        self.unacked = 0
        """Messages handed to the log and not answered by it..."""
        self.unacked_bytes = 0
        """...and their bytes."""
        self.unacked_bytes_max = unacked_bytes_max
        self.counts = Counts()
        """The gateway's, once the door has set them."""

    def is_idle(self) -> bool:
        """Everything handed over was answered."""
        return not self._batches

    def is_flying(self) -> bool:
        """Something handed over was not answered by the port."""
        return self._flying > 0

    def submit(self, publishes: list[Publish], releases: Sequence[int] = ()) -> None:
        """Hand one chunk's messages to the log, and the QoS 2 identifiers that it released. Raises GantryError if a message may not be
        published; those before it go their way."""
        messages: list[Message] = []
        acks: list[int] = []
        opened: list[int] = []
        kept: list[KeptRow] = []
        size = 0
        by_flags, mark = self.targets.by_flags, self.mark
        closed, extra = self._release(releases) if releases else ([], [])
        try:
            for publish in publishes:
                flags = publish.flags & 7
                if flags & 4 and publish.packet_id in self.exchange.ids:
                    extra.append(PUBREC | publish.packet_id)
                    continue
                payload = publish.payload
                target = by_flags[flags].get(publish.topic)
                try:
                    if target is None:
                        target = self.targets.find(publish.topic, flags)
                    message = Message(target.native, payload, target.properties + mark, target.tag)
                    if target.delayed:
                        message.kind = DELAYED
                    if publish.properties is not None:
                        self._tell(message, publish)
                    if target.row is not None:
                        self._keep(target, target.row, publish, message, kept)
                except GantryError as error:
                    letter = self._refused(publish, error, extra)
                    if letter is None:
                        continue
                    message = letter
                messages.append(message)
                size += len(payload) + MESSAGE_BYTES
                if flags & 2:
                    acks.append(PUBACK | publish.packet_id)
                elif flags & 4:
                    acks.append(PUBREC | publish.packet_id)
                    opened.append(publish.packet_id)
                    self.exchange.ids.add(publish.packet_id)
        finally:
            self.counts.published_in += len(publishes)
            self.counts.published_bytes_in += size - len(messages) * MESSAGE_BYTES
            if messages or closed or extra:
                batch = _Batch(messages, acks, size)
                batch.opened, batch.closed, batch.extra, batch.kept = opened, closed, extra, kept
                self._hand_over(batch)

    def _release(self, releases: Sequence[int]) -> tuple[list[int], list[int]]:
        """(identifiers that were open, PUBCOMPs) [MQTT-4.3.3-2] [MQTT5-4.3.3-11]."""
        ids = self.exchange.ids
        closed = []
        answers = []
        for packet_id in releases:
            answer = PUBCOMP | packet_id
            if packet_id in ids:
                ids.discard(packet_id)
                closed.append(packet_id)
            elif self.five:
                answer = refusal(answer, Reason.PACKET_ID_NOT_FOUND)
            answers.append(answer)
        return closed, answers

    def _tell(self, message: Message, publish: Publish) -> None:
        told, keys, sharding_key = to_native(publish.properties or {}, self.now_ms())
        message.properties += told
        message.keys = keys
        message.sharding_key = sharding_key

    def _refused(self, publish: Publish, error: GantryError, extra: list[int]) -> Message | None:
        """A letter that is stored instead, or None: it is answered with a reason. Raises where only closing is left."""
        letter = self._host.letter(publish.topic.decode(), publish.payload, publish.flags & 7, error, "")
        if letter is None and not self.five:
            raise error
        if letter is None:
            self._host.dropped(error.text)
            if publish.flags & 6:
                ack = (PUBACK if publish.flags & 2 else PUBREC) | publish.packet_id
                extra.append(refusal(ack, publish_reason(error.code)))
        return letter

    def take_part(self, part: Part) -> None:
        """Store some of a PUBLISH that is too large for a record. Raises GantryError if that is not to be."""
        error = GantryError(ErrorCode.MESSAGE_TOO_LARGE, "the packet is larger than message.body_bytes_max allows")
        which = f"{part.number}/{part.count}"
        message = self._letter(part.topic.decode(), part.payload, part.flags, error, which)
        acks = [(PUBACK if part.flags & 2 else PUBREC) | part.packet_id] if part.packet_id else []
        self._hand_over(_Batch([message], acks, len(part.payload) + MESSAGE_BYTES))

    def _letter(self, topic: str, payload: bytes, flags: int, error: GantryError, part: str = "") -> Message:
        found = self._host.letter(topic, payload, flags, error, part)
        if found is None:
            raise error
        return found

    def _keep(self, target: Target, row: RowPlace, publish: Publish, message: Message, kept: list[KeptRow]) -> None:
        """Make the message the row that it retains, too. Raises GantryError if that is not to be."""
        self._retained.check_room(row, message.body)
        if publish.properties is not None:
            listed, expires_ms = passed_on(publish.properties, self.now_ms())
            if listed or expires_ms:
                row = RowPlace(target.topic, row.qos, listed, expires_ms)
        found = KeptRow.of(row, message)
        if found.apart:  # it is stored in front of the messages of its batch: those before it must not stand behind it
            for earlier in kept:
                if earlier.key == found.key:
                    earlier.message.lmq = ()
        kept.append(found)

    def _hand_over(self, batch: _Batch) -> None:
        self._batches.append(batch)
        self.unanswered += batch.unanswered
        self.unacked += batch.count
        self.unacked_bytes += batch.size
        if self.unacked_bytes > self.unacked_bytes_max or self.unacked > UNACKED_MAX:
            self._host.hold_reading()
        for row in batch.kept:
            self._retained.storing(row.key, row.value)
        if self._held or self._retrying:
            batch.waiting = True
        else:
            self._submit(batch)

    def _submit(self, batch: _Batch) -> None:
        rows: list[tuple[str, str, bytes | None]] = []
        if self.exchange.key and (batch.opened or batch.closed):
            ids = self._ids_after(batch)
            rows.append((exchange.TABLE, self.exchange.key, encode_ids(ids) if ids else None))
        elif not batch.messages:
            self._answered(batch)
            return
        self._flying += 1
        on_done = self._submitted
        if rows:
            self.exchange.flying += 1
            on_done = self._exchange_submitted
        if batch.kept:
            rows += [(RETAINED_TABLE, row.key, row.value) for row in batch.kept if row.apart]
        if rows:
            self._port.submit(batch.messages, batch, on_done, self, rows=rows)
        else:
            self._port.submit(batch.messages, batch, on_done, self)

    def _ids_after(self, batch: _Batch) -> set[int]:
        """Identifiers that are open once this batch is stored, and those before it."""
        ids = set(self.exchange.stored)
        for earlier in self._batches:
            ids.difference_update(earlier.closed)
            ids.update(earlier.opened)
            if earlier is batch:
                break
        return ids

    def _rows_answered(self, batch: _Batch, results: list[int | ErrorCode]) -> None:
        """What the messages retain counts from now on, or never will; of those that are submitted again it is open."""
        waiting: list[KeptRow] = []
        answers = {id(message): result for message, result in zip(batch.messages, results, strict=True)}
        for row in batch.kept:
            result = answers[id(row.message)]
            if isinstance(result, ErrorCode) and result in WAITS:
                waiting.append(row)
            else:
                self._retained.stored(row.key, row.value, isinstance(result, ErrorCode))
        batch.kept = waiting

    def _drop_rows(self) -> None:
        """What waits is never submitted again."""
        for batch in self._batches:
            if batch.waiting:
                for row in batch.kept:
                    self._retained.stored(row.key, row.value, True)
                batch.kept = []

    def _exchange_submitted(self, batch: _Batch, results: Any) -> None:
        """One piece with a row: all of it was stored, or nothing."""
        if not batch.messages and isinstance(results, GantryError):
            self._flying -= 1
            if results.code in WAITS:
                batch.waiting = self._held = True
                self._host.hold_reading()
            else:
                self._host.fail(f"packet identifiers cannot be stored: {results}", publish_reason(results.code))
            self._landed()
        elif not batch.messages:
            self._flying -= 1
            self._answered(batch)
            self._landed()
        else:
            self._submitted(batch, results)
        self.exchange.landed()

    def _submitted(self, batch: _Batch, results: Any) -> None:
        self._flying -= 1
        if isinstance(results, GantryError):
            results = [results.code] * len(batch.messages)
        if batch.kept:
            self._rows_answered(batch, results)
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
            self._drop_rows()
            self._host.answered()
        elif self._held:
            self._host.retry_later(self._retry)

    def _not_stored(self, batch: _Batch, results: list[int | ErrorCode]) -> None:
        again: list[Message] = []
        slots: list[int] = []
        for message, slot, result in zip(batch.messages, _slots(batch), results, strict=True):
            if not isinstance(result, ErrorCode):
                continue
            replaced: Message | None = message
            if result not in WAITS:
                if result in OUR_FAULT:
                    text = f"a message to {message.topic!r} was not stored: {result.value}"
                    self._host.fail(text, publish_reason(result))
                    return
                replaced = self._replaced(batch, message, slot, result)
                if replaced is None and not self.five:
                    return
            if replaced is not None:
                again.append(replaced)
                slots.append(slot)
        batch.messages, batch.slots = again, slots
        if not again and not (self.exchange.key and (batch.opened or batch.closed)):
            self._answered(batch)
            return
        batch.waiting = True
        self._held = True
        self._host.hold_reading()

    def _replaced(self, batch: _Batch, message: Message, slot: int, code: ErrorCode) -> Message | None:
        """What is stored instead of a message that the log refuses; None: its acknowledgement says why, or the connection ends."""
        text = f"a message to {message.topic!r} was not stored: {code.value}"
        topic = self.targets.rules.to_mqtt(message.topic, message.tag).decode()
        flags = message_qos(message) << 1
        letter = self._host.letter(topic, message.body, flags, GantryError(code, text), "")
        if letter is not None:
            return letter
        if not self.five:
            self._host.refused(text)
            return None
        self._host.dropped(text)
        if slot >= 0:
            ack = batch.acks[slot]
            batch.acks[slot] = refusal(ack, publish_reason(code))
            if ack & 0xF0000000 == PUBREC & 0xF0000000:
                packet_id = ack & 0xFFFF
                batch.opened.remove(packet_id)
                self.exchange.ids.discard(packet_id)
        return None

    def _retry(self) -> None:
        """Submit what waits, oldest first, up to one that is refused again at once."""
        if self.closed:
            self._drop_rows()
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
            done = batches.pop(0)
            self.unacked -= done.count
            self.unacked_bytes -= done.size
            if done.opened or done.closed:
                self._exchanged(done)
            else:
                self.unanswered -= done.unanswered
            if done.acks:
                self._host.acknowledge(done.acks)
            if done.extra:
                self._host.acknowledge(done.extra)
            self._host.answered()
        self._maybe_resume()

    def _exchanged(self, batch: _Batch) -> None:
        """The log has which identifiers came in and which were released."""
        self.exchange.stored = self.exchange.stored.difference(batch.closed).union(batch.opened)
        self.unanswered -= batch.unanswered - len(batch.opened) + len(batch.closed)

    def is_over(self) -> bool:
        """The client has more under way than it was told that it may have [MQTT5-3.3.4-9]."""
        if self.five:
            return self.unanswered > self.receive_max
        return len(self.exchange.ids) > self.receive_max

    def _maybe_resume(self) -> None:
        if (
            not self._held
            and not self._retrying
            and self.unacked <= UNACKED_MAX // 2
            and self.unacked_bytes <= self.unacked_bytes_max // 2
        ):
            self._host.resume_reading()


def _slots(batch: _Batch) -> list[int]:
    """Index in `batch.acks` for each of its messages; -1 for QoS 0."""
    if batch.slots is not None:
        return batch.slots
    slots = []
    count = 0
    for message in batch.messages:
        slots.append(count if message_qos(message) else -1)
        count += slots[-1] >= 0
    return slots
