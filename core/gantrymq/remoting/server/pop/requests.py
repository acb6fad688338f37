"""Requests of pop consumers: POP_MESSAGE with long polling, acknowledgements, invisible time, peek, notification.

Codes, remarks and fields are RocketMQ's (PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, PeekMessageProcessor,
NotificationProcessor, PollingInfoProcessor); state and deadlines are `broker/pop/pops.py`. Differences: docs/mapping/rocketmq_pop.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.broker.topics import PERM_READ
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import header_of
from gantrymq.remoting.constants import FLAG_ONEWAY, RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import AckHeader, PopHeader, parse
from gantrymq.remoting.json_bodies import decode
from gantrymq.remoting.server.filters import FilterError, compile_filter
from gantrymq.remoting.server.pop.answers import Pop, PopServices, Seen, Subject, picker
from gantrymq.remoting.server.pop.polls import Poll, Polls
from gantrymq.remoting.server.pop.wire import (
    INVALID_PARAMETER,
    ORDER_QUEUE,
    Answer,
    BatchAck,
    BatchAckBody,
    ChangeHeader,
    NotificationHeader,
    PeekHeader,
    PollingInfoHeader,
    Receipt,
    offsets_of,
    pop_time_of,
    real_topic,
    write,
    write_done,
)
from gantrymq.remoting.server.reply import RecordsReply

if TYPE_CHECKING:
    from gantrymq.administration.groups import Groups
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.pop.leases import Place
    from gantrymq.broker.topics import Topic
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.filters import Filter
    from gantrymq.remoting.server.reads import Waits
    from gantrymq.services import Clock

COUNT_MAX: Final = 32
"""Messages of one pop; RocketMQ refuses more."""

POLL_MS_MAX: Final = 300_000
"""Longest poll."""

LATE_MS: Final = 500
"""A request that is this much older than its own poll time is answered at once (PopMessageRequestHeader.isTimeoutTooMuch)."""

SUBJECTS_MAX: Final = 10_000
"""(group, topic) pairs whose names are kept ready."""

FOUND: Final = int(ResponseCode.SUCCESS)
TIMEOUT: Final = int(ResponseCode.POLLING_TIMEOUT)
FULL: Final = int(ResponseCode.POLLING_FULL)


PopHandler = Handler[RecordsReply, "PopRequests"]


class Refused(GantryError):
    """Answered with `response`, a code that no ErrorCode stands for here."""

    def __init__(self, response: int, text: str) -> None:
        super().__init__(ErrorCode.ILLEGAL_ARGUMENT, text)
        self.response = response


class PopRequests:
    """What the pop requests of all connections share."""

    def __init__(self, services: PopServices, groups: Groups, clock: Clock, waits: Waits) -> None:
        self._services = services
        self.topics = services.topics
        self.pops = services.pops
        self.reading = services.reading
        self.groups = groups
        self.clock = clock
        self.polls = Polls(services.reading, waits, self._queues_of)
        self._subjects: dict[tuple[str, str], Subject] = {}
        self.pops.watch(self._ready)

    def subject(self, group: str, topic: Topic) -> Subject:
        """Names and turn of the group's pops of a topic."""
        found = self._subjects.get((group, topic.name))
        if found is None or found.topic is not topic:
            if len(self._subjects) >= SUBJECTS_MAX:
                self._subjects.clear()
            found = self._subjects[group, topic.name] = Subject(
                self._services, group, topic, partial(self.polls.wake, group, topic.name)
            )
        return found

    def _queues_of(self, group: str, name: str) -> list[tuple[Topic, int]]:
        topic = self.topics.get(name)
        if topic is None:
            return []
        return self.subject(group, topic).all_queues()

    def _ready(self, place: Place) -> None:
        """Entries came back: those of a retry topic concern the topic behind it."""
        topic = place.topic
        prefix = f"{names.RETRY_PREFIX}{place.group}"
        if topic.startswith(prefix) and topic[len(prefix) : len(prefix) + 1] in ("_", "+"):
            topic = topic[len(prefix) + 1 :]
        self.polls.wake(place.group, topic)

    def check(self, group: str, name: str, queue_id: int) -> Topic:
        """The checks that pop, peek, notification and polling info share; in RocketMQ's order."""
        topic = self.topics.get(name)
        if topic is None or topic.system:
            if names.is_own_system_topic(name):
                raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
            raise unknown_topic(name)
        if not topic.config.perm & PERM_READ:
            raise GantryError(ErrorCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.config.read_queues:
            raise Refused(INVALID_PARAMETER, illegal_queue(queue_id, topic, group))
        config = self.groups.configs.get(group) or self.groups.find(group)
        if not config.consume_enable:
            raise GantryError(ErrorCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return topic

    def waiting_ms(self, born_ms: int, poll_ms: int) -> int:
        """How long a poll may still wait; 0 or less: not at all."""
        return min(born_ms + poll_ms - self.clock.now_ms(), POLL_MS_MAX) if poll_ms > 0 else 0


def unknown_topic(name: str) -> GantryError:
    return GantryError(
        ErrorCode.TOPIC_NOT_FOUND,
        f"topic[{name[:255]}] not exist, apply first please! (gantry topic create {name[:255]})",
    )


def illegal_queue(queue_id: int, topic: Topic, group: str) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:"
        f"[{topic.config.read_queues}] consumer:[{group[:255]}]"
    )


def pop(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """POP_MESSAGE; too many answers on the way to this peer: the pop itself waits."""
    if command.flag & FLAG_ONEWAY:
        return
    if reply.full():
        reply.defer(command)
        return
    header = header_of(command, PopHeader)
    now_ms = services.clock.now_ms()
    born_ms = header.born_time or now_ms
    if now_ms - born_ms - header.poll_time > LATE_MS:
        write(reply, command.opaque, Answer(TIMEOUT, b"the broker pop message is timeout too much"))
        return
    if header.max_msg_nums > COUNT_MAX:
        raise Refused(INVALID_PARAMETER, f"the broker pop message's num is greater than {COUNT_MAX}")
    topic = services.check(header.consumer_group, header.topic, header.queue_id)
    try:
        wanted = compile_filter(header.exp_type, header.exp) if header.exp else None
    except FilterError as error:
        raise Refused(int(ResponseCode.SUBSCRIPTION_PARSE_FAILED), error.text) from None
    services.pops.check_room()
    one = Pop(
        reply,
        command.opaque,
        services.subject(header.consumer_group, topic),
        header,
        picker(wanted, services.reading.store),
    )
    reply.read(command, one.find, lambda seen: _popped(command, reply, services, one, wanted, seen))


def _popped(
    command: Command, reply: RecordsReply, services: PopRequests, one: Pop, wanted: Filter | None, seen: Seen
) -> None:
    """Answer, or wait."""
    if one.give(seen):
        return
    header = one.header
    wait_ms = services.waiting_ms(header.born_time or services.clock.now_ms(), header.poll_time)
    if wait_ms <= 0:
        one.empty(TIMEOUT)
    elif services.polls.full(reply, header.consumer_group, header.topic, header.queue_id):
        one.empty(FULL)
    else:
        kind = (header.queue_id, bool(header.order), header.attempt_id if header.order else None, wanted)
        poll = Poll(reply, command, header.queue_id, kind, one.find, one.give, lambda: one.empty(TIMEOUT))
        services.polls.park(poll, header.consumer_group, header.topic, wait_ms)
        if one.more:
            one.go_on()


def notification(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """NOTIFICATION: is there something to pop? Waits as a pop does."""
    header = parse(command.fields, NotificationHeader)
    topic = services.check(header.consumer_group, header.topic, header.queue_id)
    subject = services.subject(header.consumer_group, topic)

    def answer(found: bool, full: bool = False) -> None:
        fields = {"hasMsg": str(found).lower(), "pollingFull": str(full).lower()}
        reply.respond(command, ResponseCode.SUCCESS, None, fields)

    def find(reading: Reading) -> bool:
        return subject.has_message(header.queue_id, header.attempt_id if header.order else None, bool(header.order))

    def give(found: bool) -> bool:
        if found:
            answer(True)
        return found

    if give(find(services.reading)):
        return
    wait_ms = services.waiting_ms(header.born_time or services.clock.now_ms(), header.poll_time)
    full = services.polls.full(reply, header.consumer_group, header.topic, header.queue_id)
    if wait_ms <= 0 or full:
        answer(False, full and wait_ms > 0)
        return
    poll = Poll(
        reply, command, header.queue_id, ("notification", command.opaque, reply), find, give, lambda: answer(False)
    )
    services.polls.park(poll, header.consumer_group, header.topic, wait_ms)


def polling_info(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """POLLING_INFO: how many polls wait for a queue."""
    header = parse(command.fields, PollingInfoHeader)
    services.check(header.consumer_group, header.topic, header.queue_id)
    count = services.polls.count(header.consumer_group, header.topic, header.queue_id)
    reply.respond(command, ResponseCode.SUCCESS, None, {"pollingNum": str(count)})


def peek(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """PEEK_MESSAGE: what a pop would give out; nothing changes."""
    header = parse(command.fields, PeekHeader)
    topic = services.check(header.consumer_group, header.topic, header.queue_id)
    count = min(max(header.max_msg_nums, 1), COUNT_MAX)
    subject = services.subject(header.consumer_group, topic)
    reply.read(
        command,
        lambda reading: subject.peek(reading, header.queue_id, count),
        lambda answer: write(reply, command.opaque, answer),
    )


def acknowledge(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """ACK_MESSAGE. Durable as any acknowledgement here: a record of the log before the answer goes out."""
    header = command.header
    if isinstance(
        header, AckHeader
    ):  # one per message, most often of what the delivery that the receipt names still holds
        pops = services.pops
        place = pops.known(header.consumer_group, header.topic, header.queue_id)
        if place is not None and pops.acknowledge_one(place, header.offset, pop_time_of(header.extra_info)):
            write_done(command, reply)
            return
    _checked(command, reply, services)


def _acknowledge_checked(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """As RocketMQ checks it, and whatever does not count any more."""
    header = header_of(command, AckHeader)
    receipt = Receipt(header.extra_info)
    place = _place(services, header, header.offset, True)
    if place is not None and not _acknowledge(services, place, receipt, header.offset):
        raise GantryError(
            ErrorCode.MESSAGE_ILLEGAL,
            f"offset is illegal, key:{place.topic}@{place.group}@{place.queue_id}, old:{place.cursor.window.floor}, "
            f"commit:{header.offset}, next:-1",
        )
    write_done(command, reply)


def _acknowledge(services: PopRequests, place: Place, receipt: Receipt, offset: int) -> bool:
    """False for an ordered acknowledgement of what was never given out."""
    if receipt.revive_queue == ORDER_QUEUE and offset >= place.cursor.window.next_offset:
        return False
    services.pops.acknowledge(place, (offset,), receipt.pop_ms)
    return True


def _place(services: PopRequests, header: AckHeader | ChangeHeader, offset: int, end_too: bool) -> Place | None:
    """The group's place in the receipt's queue; None if it has none (any more)."""
    reading = services.reading
    topic = services.topics.get(header.topic)
    if topic is None or topic.system:
        raise unknown_topic(header.topic)
    queue_id = header.queue_id
    if not 0 <= queue_id < topic.config.read_queues:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, illegal_queue(queue_id, topic, header.consumer_group))
    place = services.pops.known(header.consumer_group, header.topic, queue_id)
    high = reading.store.visible_end(header.topic, queue_id)
    if 0 <= offset < high + end_too:
        if place is not None and not place.cursor.window.is_done(offset):
            return place
        low = reading.min_offset(header.topic, queue_id)
        if offset >= low:
            return place
    else:
        low = reading.min_offset(header.topic, queue_id)
    raise Refused(
        int(ResponseCode.NO_MESSAGE),
        f"offset is illegal, key:{header.topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
    )


def batch_acknowledge(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """BATCH_ACK_MESSAGE: what is not known (any more) is passed over."""
    body = decode(command.body, BatchAckBody) if command.body else None
    if body is None or not body.acks:
        raise Refused(int(ResponseCode.NO_MESSAGE), "")
    for one in body.acks:
        _batch_acknowledge(services, one)
    write_done(command, reply)


def _batch_acknowledge(services: PopRequests, one: BatchAck) -> None:
    topic = real_topic(one.topic, one.group, one.retry)
    place = services.pops.known(one.group, topic, one.queue_id)
    offsets = offsets_of(one.start, one.bits)
    if place is None or not offsets:
        return
    services.pops.acknowledge(place, offsets, one.pop_time)


def change_invisible(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """CHANGE_MESSAGE_INVISIBLETIME: a new deadline, and with it a new receipt."""
    header = parse(command.fields, ChangeHeader)
    receipt = Receipt(header.extra_info)
    place = _place(services, header, header.offset, False)
    now_ms = services.clock.now_ms()
    pop_ms = -1
    if place is not None:
        pop_ms = services.pops.change(place, header.offset, receipt.pop_ms, header.invisible_time)
    if pop_ms < 0:  # a receipt that counts no more: RocketMQ answers as if it did
        pop_ms = now_ms
    invisible_ms = header.invisible_time
    if receipt.revive_queue == ORDER_QUEUE:  # ordered: the pop time stays, the time counts from it
        invisible_ms = now_ms + header.invisible_time - pop_ms
    fields = {
        "popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(receipt.revive_queue),
    }  # fmt: skip
    reply.respond(command, ResponseCode.SUCCESS, None, fields)


def rollback(command: Command, reply: RecordsReply, services: PopRequests) -> None:
    """POP_ROLLBACK: move what RocksDB holds of pops back into the revive topics (AdminBrokerProcessor.transferPopToFsStore). There is one
    place for them here, so nothing is to be moved; a real broker without popConsumerKVServiceEnable answers the same."""
    write_done(command, reply)


def _with_codes(handler: PopHandler) -> PopHandler:
    def handle(command: Command, reply: RecordsReply, services: PopRequests) -> None:
        try:
            handler(command, reply, services)
        except Refused as error:
            reply.refuse(command, error.response, error.text)

    return handle


_checked: Final = _with_codes(_acknowledge_checked)


def _table() -> dict[int, PopHandler]:
    table: dict[int, PopHandler] = {}
    for code, handler in (
        (RequestCode.POP_MESSAGE, pop),
        (RequestCode.BATCH_ACK_MESSAGE, batch_acknowledge),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change_invisible),
        (RequestCode.PEEK_MESSAGE, peek),
        (RequestCode.NOTIFICATION, notification),
        (RequestCode.POLLING_INFO, polling_info),
        (RequestCode.POP_ROLLBACK, rollback),
    ):
        table[int(code)] = table[int(code) & 0xFFFF] = _with_codes(handler)
    table[int(RequestCode.ACK_MESSAGE)] = table[int(RequestCode.ACK_MESSAGE) & 0xFFFF] = acknowledge
    return table


HANDLERS: Final = _table()
"""The codes are also there with their low 16 bits: that is what a client with binary headers can send of them."""
