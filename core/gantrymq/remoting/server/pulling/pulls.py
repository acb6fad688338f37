"""Pulls: records of a queue as they lie in the log, and long polling for those that are not there yet.

Codes and offsets are RocketMQ's (PullMessageProcessor, DefaultMessageStore.getMessage): SUCCESS with records;
PULL_NOT_FOUND at the end; PULL_RETRY_IMMEDIATELY where nothing looked at passed the filter; PULL_OFFSET_MOVED
outside the queue, with the offset to go on at. Tags are compared by hash, as the queue holds them; the client
compares the tags themselves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.consuming.entries.shared_bodies import SHARED_BYTES_MIN, SharedBodies
from gantrymq.broker.topics import PERM_READ
from gantrymq.model import names, sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import PREFIX, Command, header_of
from gantrymq.remoting.constants import FLAG_ONEWAY, MASTER_ID, VERSION, RequestCode, ResponseCode
from gantrymq.remoting.door import code_of
from gantrymq.remoting.headers import PullHeader
from gantrymq.remoting.server.clients.registry import ClientReply
from gantrymq.remoting.server.filters import ALL, Filter, FilterError, compile_filter, select
from gantrymq.remoting.server.pulling.subscription_calls import SubscriptionCalls
from gantrymq.remoting.server.reply import RecordsReply
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.consuming.commits import OffsetCommits
    from gantrymq.broker.rocketmq.stats import BrokerStats
    from gantrymq.broker.topics import Topic, TopicTable
    from gantrymq.remoting.server.clients.registry import Clients
    from gantrymq.remoting.server.reads import Waits

log = logging.getLogger(__name__)

COUNT_MAX: Final = 1024
"""Records in one answer; RocketMQ's default is 32, which its clients ask for."""

BYTES_DEFAULT: Final = 256 * 1024
"""Without maxMsgBytes, as in RocketMQ (maxTransferBytesOnMessageInMemory)."""

BYTES_MAX: Final = 4 * 1024 * 1024
"""Records of one answer together, whatever maxMsgBytes says; one record alone may be larger."""

SUSPEND_MS_MAX: Final = 300_000
"""Longest poll; RocketMQ's clients ask for 15 to 30 s."""

WAITERS_MAX: Final = 200_000
"""Polls that wait, in all; on one connection: `broker.waiting_pulls_max`."""

_HEADER: Final = (
    b'{"code":%%d,"extFields":{"maxOffset":"%%d","minOffset":"%%d","nextBeginOffset":"%%d","suggestWhichBrokerId":"%d"},'
    b'"flag":1,"language":"JAVA","opaque":%%d,"remark":"%%b","serializeTypeCurrentRPC":"JSON","version":%d}'
) % (MASTER_ID, VERSION)

FOUND: Final = int(ResponseCode.SUCCESS)
NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


class RefusedSubscription(GantryError):
    """The request cannot be filtered as its consumer wants it; `response`: 24, or 25 with the version that it needs."""

    def __init__(self, response: ResponseCode, text: str, group: str = "", version: int = 0) -> None:
        super().__init__(ErrorCode.NOT_FOUND, text)
        self.response = response
        self.group = group
        self.version = version


class Answer:
    """What a look at a queue gave. `status`: RocketMQ's GetMessageStatus, the remark of the answer."""

    __slots__ = ("code", "count", "max_offset", "min_offset", "next_offset", "pieces", "size", "status")

    def __init__(self, code: int, status: bytes, next_offset: int, min_offset: int, max_offset: int) -> None:
        self.code = code
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.pieces: list[bytes] = []
        self.count = 0
        """Messages in `pieces`."""
        self.size = 0
        """Bytes of `pieces`."""


class PullReply(ClientReply, RecordsReply, Protocol):
    """The connection that a pull came over."""

    waiters: set[Waiter]
    """Its pulls that wait."""


class Waiter:
    """A pull that waits for a record. `first_offset`: where it began; `offset`: from where it was not looked
    at yet."""

    __slots__ = (
        "bytes_max",
        "count",
        "first_offset",
        "group",
        "handle",
        "offset",
        "opaque",
        "queue_id",
        "reply",
        "topic",
        "wanted",
    )

    def __init__(
        self, reply: PullReply, opaque: int, topic: Topic, queue_id: int, offset: int, count: int, bytes_max: int,
        wanted: Filter,
    ) -> None:  # fmt: skip
        self.reply = reply
        self.opaque = opaque
        self.topic = topic
        self.queue_id = queue_id
        self.first_offset = self.offset = offset
        self.count = count
        self.bytes_max = bytes_max
        self.wanted = wanted
        self.group = ""
        self.handle = 0


def find(
    reading: Reading, topic: Topic, queue_id: int, offset: int, count: int, bytes_max: int, wanted: Filter
) -> Answer:
    """One look at a queue from `offset` on. May raise `Cold`."""
    store = reading.store
    name = topic.name
    queue = store.queue(name, queue_id)
    compacted = store.compacted.queues
    low = reading.begin(queue, name, queue_id)
    high = store.visible_end(name, queue_id)
    if high <= low and offset != high:
        # An empty queue, or one whose records are all gone.
        return Answer(MOVED, b"NO_MESSAGE_IN_QUEUE", max(low, high), low, high)
    if offset < low:
        return Answer(MOVED, b"OFFSET_TOO_SMALL", low, low, high)
    if offset == high:
        return Answer(NOT_FOUND, b"OFFSET_OVERFLOW_ONE", offset, low, high)
    if offset > high:
        return Answer(MOVED, b"OFFSET_OVERFLOW_BADLY", high, low, high)
    if wanted is ALL and queue is not None and (not compacted or offset >= store.compacted.end(name, queue_id)):
        pieces, taken, size = store.read_queue(queue, offset, count, bytes_max)
        answer = Answer(FOUND, b"FOUND", offset + taken, low, high)
        answer.pieces, answer.count, answer.size = pieces, taken, size
    else:
        found = select(store, name, queue_id, offset, wanted, count, bytes_max)
        answer = Answer(FOUND, b"FOUND", found.next_offset, low, high)
        answer.pieces, answer.count = found.pieces, len(found.offsets)
        answer.size = found.size
    if not answer.pieces:
        answer.code, answer.status, answer.count = RETRY, b"NO_MATCHED_MESSAGE", 0
    return answer


@dataclass(slots=True)
class PullServices:
    """What pulls need of the broker. `waiting_max`: pulls of one connection that may wait."""

    topics: TopicTable
    commits: OffsetCommits
    stats: BrokerStats
    reading: Reading
    waiting_max: int


class Pulls:
    """Pulls of one broker."""

    def __init__(self, services: PullServices, clients: Clients, waits: Waits) -> None:
        self._topics = services.topics
        self._commits = services.commits
        self._offsets = services.commits.offsets
        self._stats = services.stats
        self._reading = services.reading
        self.waiting_max = services.waiting_max
        self._clients = clients
        self._wheel, self._fetch = waits.wheel, waits.read_cold
        self.calls = SubscriptionCalls(clients)
        self._shared = SharedBodies(waits.wheel).shared
        self.waiting = 0
        """Polls that wait now."""

    def commit(self, command: Command, header: PullHeader) -> None:
        """Take over the offset that a pull commits: once, when the pull comes, however long it waits for the disk or for its peer then."""
        if header.commit_offset >= 0:
            topic = self._topic(header)
            names.check_group(header.consumer_group)
            self._commits.commit(header.consumer_group, topic.name, header.queue_id, header.commit_offset)
        header.sys_flag &= ~sysflag.PULL_COMMIT_OFFSET
        command.header = header

    def pull(self, reply: PullReply, command: Command, header: PullHeader) -> None:
        """Answer a pull, or let it wait. Raises what `RemotingDoor.handle` turns into an answer."""
        topic = self._topic(header)
        wanted = self._filter(reply, header)
        if self._offsets.resets and self._reset(reply, command.opaque, header):
            return
        count = min(max(header.max_msg_nums, 1), COUNT_MAX)
        bytes_wanted = header.max_msg_bytes
        bytes_max = BYTES_DEFAULT if bytes_wanted is None or bytes_wanted <= 0 else min(bytes_wanted, BYTES_MAX)

        def read(reading: Reading) -> Answer:
            return find(reading, topic, header.queue_id, header.queue_offset, count, bytes_max, wanted)

        def apply(answer: Answer) -> None:
            if (
                answer.code == NOT_FOUND
                and header.sys_flag & sysflag.PULL_SUSPEND
                and header.suspend_timeout_millis > 0
            ):
                offset = answer.next_offset
                waiter = Waiter(reply, command.opaque, topic, header.queue_id, offset, count, bytes_max, wanted)
                waiter.group = header.consumer_group
                self._check_room(reply)
                self._park(waiter, min(header.suspend_timeout_millis, SUSPEND_MS_MAX))
                return
            if answer.count:
                self._got(header.consumer_group, topic.name, header.queue_id, answer)
            write(reply, command.opaque, answer)

        reply.read(command, read, apply)

    def _check_room(self, reply: PullReply) -> None:
        limit = self.waiting_max
        if len(reply.waiters) >= limit:
            text = f"{limit} pulls of this connection wait already (broker.waiting_pulls_max); open another connection"
            raise GantryError(ErrorCode.BUSY, text)
        if self.waiting >= WAITERS_MAX:
            raise GantryError(ErrorCode.BUSY, f"{WAITERS_MAX} pulls wait already, all connections together")

    def _reset(self, reply: PullReply, opaque: int, header: PullHeader) -> bool:
        """A tool has set the group's offset: the consumer goes on there (PullMessageProcessor: OFFSET_RESET)."""
        name, queue_id = header.topic, header.queue_id
        offset = self._offsets.take_reset(header.consumer_group, name, queue_id)
        if offset >= 0:
            self._commits.write(everything=False)
            low, high = self._reading.min_offset(name, queue_id), self._reading.store.visible_end(name, queue_id)
            write(reply, opaque, Answer(MOVED, b"OFFSET_RESET", offset, low, high))
        return offset >= 0

    def _topic(self, header: PullHeader) -> Topic:
        name = header.topic
        topic = self._topics.get(name)
        if topic is None or topic.system:
            if names.is_own_system_topic(name):
                raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
            raise GantryError(
                ErrorCode.TOPIC_NOT_FOUND,
                f"topic[{name[:255]}] not exist, apply first please! (gantry topic create {name[:255]})",
            )
        if not topic.config.perm & PERM_READ:
            raise GantryError(ErrorCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.config.read_queues:
            raise GantryError(
                ErrorCode.QUEUE_NOT_FOUND,
                f"queueId[{header.queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:"
                f"[{topic.config.read_queues}] consumer:[{header.consumer_group[:255]}]",
            )
        return topic

    def _filter(self, reply: PullReply, header: PullHeader) -> Filter:
        """The request's own subscription, else that of the client behind this connection, else the group's newest."""
        group, topic = header.consumer_group, header.topic
        if topic.startswith(names.RETRY_PREFIX) and topic[len(names.RETRY_PREFIX) :] == group:
            return ALL  # what was delivered once and failed has passed the filter already
        if header.sys_flag & sysflag.PULL_SUBSCRIPTION:
            return compile_filter(header.expression_type, header.subscription)
        subscription = self._clients.subscription(group, topic, reply)
        if subscription is None:
            raise RefusedSubscription(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {group[:255]} sent no heartbeat with topic {topic}, and the "
                "request has no subscription",
            )
        newer = subscription.sub_version < header.sub_version
        if subscription.expression_type in (None, "", "TAG"):
            # The client compares tags itself, so until its heartbeat comes it gets them all, and need not wait for it.
            return ALL if newer else compile_filter(None, subscription.sub_string)
        if newer:
            raise RefusedSubscription(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: the request has version {header.sub_version}, the last heartbeat "
                f"{subscription.sub_version}",
                group,
                header.sub_version,
            )
        return compile_filter(subscription.expression_type, subscription.sub_string)

    def _got(self, group: str, topic: str, queue_id: int, answer: Answer) -> None:
        if answer.size >= SHARED_BYTES_MIN:  # what many slow readers wait for is held once
            name = (topic, queue_id, answer.next_offset)
            answer.pieces = [
                self._shared((name, place), piece) if len(piece) >= SHARED_BYTES_MIN else piece
                for place, piece in enumerate(answer.pieces)
            ]
        self._stats.read_records(topic, group, answer.count, answer.pieces, answer.size)
        self._offsets.handed(group, topic, queue_id, answer.next_offset)

    # Long polling.

    def _park(self, waiter: Waiter, timeout_ms: int) -> None:
        self.waiting += 1
        waiter.reply.waiters.add(waiter)
        wheel = self._wheel
        waiter.handle = wheel.call_at(wheel.now_ms() + timeout_ms, lambda now_ms: self._expired(waiter))
        self._wait(waiter)

    def _wait(self, waiter: Waiter) -> None:
        waiter.topic.wait(waiter.queue_id, waiter, lambda: self._woken(waiter))

    def _woken(self, waiter: Waiter) -> None:
        """A record entered the queue: answer, unless the filter takes none of what came."""
        if waiter not in waiter.reply.waiters:
            return
        try:
            answer = find(
                self._reading,
                waiter.topic,
                waiter.queue_id,
                waiter.offset,
                waiter.count,
                waiter.bytes_max,
                waiter.wanted,
            )
        except Cold as cold:  # it stays among its connection's waiters, and may expire meanwhile
            self._fetch(cold, waiter, self._woken)
            return
        except (GantryError, OSError) as error:  # the disk cannot read what is there: the consumer asks again
            self._fail(waiter, error)
            return
        if answer.code == RETRY and answer.next_offset >= answer.max_offset:
            waiter.offset = answer.next_offset
            self._wait(waiter)
        elif answer.code == NOT_FOUND:
            self._wait(waiter)
        else:
            self._finish(waiter, answer)

    def _expired(self, waiter: Waiter) -> None:
        waiter.handle = 0
        if waiter not in waiter.reply.waiters:
            return
        waiter.topic.unwait(waiter.queue_id, waiter)
        name = waiter.topic.name
        low, high = (
            self._reading.min_offset(name, waiter.queue_id),
            self._reading.store.visible_end(name, waiter.queue_id),
        )
        if waiter.offset > waiter.first_offset:
            answer = Answer(RETRY, b"NO_MATCHED_MESSAGE", waiter.offset, low, high)
        else:
            answer = Answer(NOT_FOUND, b"OFFSET_OVERFLOW_ONE", waiter.offset, low, high)
        self._finish(waiter, answer)

    def _finish(self, waiter: Waiter, answer: Answer) -> None:
        self._forget(waiter)
        if answer.count:
            self._got(waiter.group, waiter.topic.name, waiter.queue_id, answer)
        write(waiter.reply, waiter.opaque, answer)
        waiter.reply.mark()

    def _fail(self, waiter: Waiter, error: GantryError | OSError) -> None:
        log.error("topic %s, queue %d, offset %d: %s", waiter.topic.name, waiter.queue_id, waiter.offset, error)
        self._forget(waiter)
        code = code_of(error.code) if isinstance(error, GantryError) else int(ResponseCode.SYSTEM_ERROR)
        waiter.reply.refuse(Command(int(RequestCode.PULL_MESSAGE), opaque=waiter.opaque), code, str(error))
        waiter.reply.mark()

    def _forget(self, waiter: Waiter) -> None:
        self.waiting -= 1
        waiter.reply.waiters.discard(waiter)
        if waiter.handle:
            self._wheel.cancel(waiter.handle)

    def drop(self, reply: PullReply) -> None:
        """The connection is gone, or its polls are no longer wanted."""
        self.calls.forget(reply)
        for waiter in list(reply.waiters):
            waiter.topic.unwait(waiter.queue_id, waiter)
            self._forget(waiter)


def write(reply: RecordsReply, opaque: int, answer: Answer) -> None:
    """Put an answer into the connection's outbox; records go out as they were read."""
    header = _HEADER % (
        answer.code, answer.max_offset, answer.min_offset, answer.next_offset, opaque, answer.status,
    )  # fmt: skip
    outbox = reply.outbox
    size = len(header)
    if answer.pieces:
        outbox.append(PREFIX.pack(size + 4 + answer.size, size) + header)
        outbox += answer.pieces
        reply.pull_bytes += answer.size
    else:
        outbox.append(PREFIX.pack(size + 4, size) + header)


def pull(command: Command, reply: PullReply, services: Pulls) -> None:
    """PULL_MESSAGE, LITE_PULL_MESSAGE; too many answers on the way to this peer: the pull itself waits."""
    if command.flag & FLAG_ONEWAY:
        return
    header = header_of(command, PullHeader)
    if header.sys_flag & sysflag.PULL_COMMIT_OFFSET:
        services.commit(command, header)
    if reply.full():
        reply.defer(command)
        return
    try:
        services.pull(reply, command, header)
    except RefusedSubscription as error:
        newer = error.response is ResponseCode.SUBSCRIPTION_NOT_LATEST
        if newer and services.calls.ask(reply, error.group, error.version, command):
            return
        reply.refuse(command, error.response, error.text)
    except FilterError as error:
        reply.refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.text)


HANDLERS: Final = {
    int(RequestCode.PULL_MESSAGE): pull,
    int(RequestCode.LITE_PULL_MESSAGE): pull,
}
