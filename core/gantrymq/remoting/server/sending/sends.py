"""Sends: from a request's header to a message of the native model, with RocketMQ's checks.

The properties text is looked through once, with `rfind` and no dictionary (the hot path); it goes into the
record as it came, with UNIQ_KEY added where it is missing and CLUSTER behind it, as RocketMQ does.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from gantrymq.broker.topic_budget import NATIVE
from gantrymq.broker.topics import PERM_INHERIT, TopicConfig
from gantrymq.metrics import Counter
from gantrymq.model import message_types, names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import PROPERTIES_BYTES_MAX, TAG_BYTES_MAX
from gantrymq.model.message import HALF, PLAIN, Message
from gantrymq.model.tables import message_rows, retained_rows
from gantrymq.remoting.constants import REGION
from gantrymq.remoting.headers import SendHeaderV2
from gantrymq.remoting.server.sending.specials import kind_of, light_queues, priority_queue, retained, value_of, without
from gantrymq.store.log.run import Run
from gantrymq.store.schedule import TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.administration.groups import Groups
    from gantrymq.broker.rocketmq.settings import Settings
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.broker.topics import Topic, TopicTable
    from gantrymq.metrics import Metrics
    from gantrymq.services import Clock
    from gantrymq.store.message_store import MessageStore

KEPT_FLAGS: Final = sysflag.COMPRESSED | sysflag.MULTI_TAGS | sysflag.COMPRESSION_MASK
"""Bits of sysFlag that a sender decides; host widths and transaction state are ours."""

SPECIAL_FLAGS: Final = sysflag.TRANSACTION_MASK | sysflag.INNER_BATCH
"""Bits of sysFlag that say more of a message than how it is written."""

NO_INNER_BATCH: Final = (
    "the message is an inner batch (sysFlag 128, INNER_NUM), which only a topic with queue.type=BatchCQ takes; there are none here: "
    "send a batch as SEND_BATCH_MESSAGE"
)

Header = SendHeaderV2

NO_LMQ: tuple[str, ...] = ()

CLOSED_TOPICS: Final = frozenset(
    {
        names.SCHEDULE_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", names.AUTO_CREATE_TEMPLATE,
    }
)  # fmt: skip
"""TopicValidator's topics that nobody may send to, TBW102 (SendMessageProcessor refuses it by name), and that of the timers."""

_TAGS: Final = props.TAGS + "\x01"
_KEYS: Final = props.KEYS + "\x01"
_UNIQ: Final = props.UNIQ_KEY + "\x01"
_TAGS_SIZE: Final = len(_TAGS)
_KEYS_SIZE: Final = len(_KEYS)
_TRACED: Final = f"MSG_REGION\x01{REGION}\x02TRACE_ON\x01true\x02"
"""What RocketMQ's broker adds to every message (AbstractSendMessageProcessor.buildMsgContext)."""
_UNIQ_SIZE: Final = len(_UNIQ)
_POP_CK: Final = "POP_CK\x01"
_DISPATCH: Final = props.MULTI_DISPATCH + "\x01"
_REPLY_TO: Final = "REPLY_TO_CLIENT\x01"
_PRIORITY: Final = "_SYS_MSG_PRIORITY_\x01"
_INNER_NUM: Final = "INNER_NUM\x01"
_SHARDING: Final = props.SHARDING_KEY + "\x01"


class UniqueKeys:
    """UNIQ_KEY for messages that come without one: host 4 bytes (IPv6: 16), process 2, instance 4, milliseconds 4,
    counter 2, in hex."""

    def __init__(self, clock: Clock, host: bytes) -> None:
        self._clock = clock
        self._prefix = (host[:-4] + struct.pack(">HI", os.getpid() & 0xFFFF, id(self) & 0xFFFFFFFF)).hex().upper()
        self._start_ms = clock.now_ms()
        self._count = 0

    def make(self) -> str:
        """The next key; 65,536 a millisecond are distinct."""
        self._count = (self._count + 1) & 0xFFFF
        ms = (self._clock.now_ms() - self._start_ms) & 0xFFFFFFFF
        return f"{self._prefix}{ms:08X}{self._count:04X}"


class SendServices:
    """What sends need of the broker. `cluster`: its name; `ensure_topic`: as `Broker.ensure_topic`."""

    def __init__(
        self, cluster: str, table: TopicTable, tables: Tables, store: MessageStore, settings: Settings,
        ensure_topic: Callable[..., Topic], clock: Clock,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.table = table
        self.tables = tables
        self.store = store
        self.settings = settings
        self.ensure_topic = ensure_topic
        self.clock = clock


class Sends:
    """Checks and builds messages. One per broker; `born_host` and the flag for its width come from the
    connection."""

    def __init__(self, services: SendServices, host: bytes, groups: Groups, in_order: Callable[[str], bool]) -> None:
        self._table = services.table
        self._tables = services.tables
        self._store = services.store
        self._settings = services.settings
        self._ensure_topic = services.ensure_topic
        self._groups = groups
        self._in_order = in_order
        self.retries = Counter()
        """Messages that consumers sent back, to be tried again."""
        self.dead_letters = Counter()
        """Messages that went to a dead letter topic."""
        self._topics = services.table.topics
        self.redirected = False
        """Some message since this was reset is not plain: the door answers it differently."""
        self._reply_name = f"{services.cluster}_REPLY_TOPIC"
        self._cluster = f"{props.CLUSTER}\x01{services.cluster}\x02"
        self._own = self._cluster
        """Properties of the broker's own, at the end of each message's."""
        self._note_traces(names.TRACE_TOPIC)
        services.table.watch_names(self._note_traces)
        self.unique = UniqueKeys(services.clock, host)

    def _note_traces(self, name: str) -> None:
        """Consumers that trace leave out messages without a region (AsyncTraceDispatcher), so where there are traces each has one."""
        if name == names.TRACE_TOPIC:
            self._own = self._cluster + (_TRACED if name in self._topics else "")

    def show(self, metrics: Metrics) -> None:
        """Register the counters of what came back."""
        metrics.read("gantry_retries_total", "Messages that consumers sent back", lambda: self.retries.value, "counter")
        metrics.read(
            "gantry_dead_letters_total",
            "Messages that went to a dead letter topic",
            lambda: self.dead_letters.value,
            "counter",
        )

    def message(
        self, header: Header, body: bytes, born_host: bytes, host_flag: int, topic: Topic | None = None
    ) -> Message:
        """The message of a single send; raises GantryError for what is refused. `topic`: looked at already."""
        name = header.topic
        if topic is None:
            topic = self._topics.get(name)
            if topic is None or topic.special:
                return self._special(header, body, born_host, host_flag)
        queue_id = header.queue_id
        if queue_id >= topic.write_queues or queue_id < 0:
            queue_id = self.check_queue(topic, queue_id)
        text = header.properties or ""
        flags = header.sys_flag
        if text and text[-1] != "\x02":
            text += "\x02"
        at = text.rfind(_UNIQ)
        if at == 0 or (at > 0 and text[at - 1] == "\x02"):
            unique = text[at + _UNIQ_SIZE : text.find("\x02", at)]
            marks = text.count("_")
            ordinary = "DELAY" not in text and (marks == 1 or (marks == 3 and _SHARDING in text))
        else:
            unique = value_of(text, _UNIQ)
            marks, ordinary = 0, not text
        kind, lmq = PLAIN, NO_LMQ
        if not ordinary:  # names with a meaning have underscores beside those of UNIQ_KEY and __SHARDINGKEY; but DELAY
            text, queue_id, kind, lmq = self._resolve_special(text, topic, queue_id, header)
        if topic.takes is not None:
            check_type(topic.takes, name, text)
        if flags & SPECIAL_FLAGS:
            check_flags(flags, kind)
        if not unique:
            unique = self.unique.make()
            text = f"{text}{_UNIQ}{unique}\x02"
        keys_text = ""
        at = text.rfind(_KEYS)
        if at == 0 or (at > 0 and text[at - 1] == "\x02"):
            keys_text = text[at + _KEYS_SIZE : text.find("\x02", at)]
        elif at > 0:
            keys_text = value_of(text, _KEYS)
        tag = ""
        at = text.rfind(_TAGS)
        if at == 0 or (at > 0 and text[at - 1] == "\x02"):
            tag = text[at + _TAGS_SIZE : text.find("\x02", at)]
        elif at > 0:
            tag = value_of(text, _TAGS)
        if len(tag) > TAG_BYTES_MAX // 4 and len(tag.encode("utf-8", "surrogatepass")) > TAG_BYTES_MAX:
            raise GantryError(
                ErrorCode.PROPERTIES_TOO_LARGE,
                f"the message is illegal: its tag has over {TAG_BYTES_MAX} bytes",
            )
        message = Message(
            name,
            body,
            (text + self._own).encode("utf-8", "surrogatepass"),
            tag,
            (unique, *keys_text.split()) if keys_text else (unique,),
            queue_id,
            header.born_ms,
        )
        message.born_host = born_host
        message.sys_flag = flags & KEPT_FLAGS | host_flag
        message.flag = header.flag
        message.kind = kind
        message.lmq = lmq
        if header.reconsume_times:
            message.reconsume_times = header.reconsume_times & 0x7FFFFFFF
        if marks != 1:
            message.sharding_key = value_of(text, _SHARDING)
        return message

    def takes_run(self, header: Header) -> bool:
        """Whether the messages of a batch may go into the log as a run."""
        topic = self._topics.get(header.topic)
        if topic is None or not topic.takes_runs() or not 0 <= header.queue_id < topic.write_queues:
            return False
        return not (header.properties or header.sys_flag or header.reconsume_times)

    def takes_rows(self, header: Header) -> bool:
        """Whether messages of that topic and queue may come as rows, which are looked at together."""
        topic = self._topics.get(header.topic)
        if topic is None:
            topic = self.topic_for(header, b"")
        return not (topic.special or topic.compacted or topic.takes) and 0 <= header.queue_id < topic.write_queues

    def run(self, header: Header, born_host: bytes, host_flag: int) -> Run:
        """An empty run for a batch that `takes_run`."""
        run = Run(header.topic, header.queue_id, header.born_ms, self._own.encode())
        run.born_host = born_host
        run.sys_flag |= host_flag
        return run

    def item_limits(self, topic: str) -> tuple[int, int, int]:
        """See `MessageStore.item_limits`."""
        return self._store.item_limits(topic, len(self._own.encode()))

    def _resolve_special(
        self, text: str, topic: Topic, queue_id: int, header: Header
    ) -> tuple[str, int, int, tuple[str, ...]]:
        """(properties, queue, kind, light queues) of a message whose properties may ask for more than to be stored."""
        if "POP_CK" in text:  # a receipt of an earlier delivery (SendMessageProcessor.clearReservedProperties)
            text = without(text, _POP_CK)
        if "INNER_NUM" in text and value_of(text, _INNER_NUM):
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, NO_INNER_BATCH)
        kind, lmq = PLAIN, NO_LMQ
        if "DELAY" in text or "TIMER_D" in text or "TRAN_MSG" in text:
            kind = kind_of(text, header.reconsume_times or 0)
        if kind:
            self.redirected = True
        if "INNER_MULTI_" in text or "GANTRY_DISPATCH" in text:
            text, lmq = light_queues(text)
            if topic.name.startswith(names.RETRY_PREFIX):  # it entered them when it was new (MultiDispatchUtils)
                lmq = NO_LMQ
            elif lmq and kind != PLAIN:  # it enters them together with its topic
                text, lmq = f"{text}{_DISPATCH}{','.join(lmq)}\x02", NO_LMQ
            lmq = tuple([name for name in lmq if name != topic.name])
            for name in lmq:
                self._table.light(name)
        if props.RETAIN_IT in text:
            text, lmq = self._retained(text, topic, header, kind, lmq)
        if "REPLY_TO_CLIENT" in text and value_of(text, _REPLY_TO):
            self._reply_topic()
        if "_SYS_MSG_PRIORITY_" in text:
            queue_id = priority_queue(value_of(text, _PRIORITY), topic.write_queues, queue_id)
        return text, queue_id, kind, lmq

    def _retained(
        self, text: str, topic: Topic, header: Header, kind: int, lmq: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """(properties, light queues) of a message that is to be retained. Raises what refuses it."""
        text, key = retained(text, topic.name, header.sys_flag)
        if not key:
            return text, lmq
        if kind != PLAIN or lmq or topic.special:
            raise GantryError(
                ErrorCode.MESSAGE_ILLEGAL,
                f"{props.RETAIN_IT}: what is delayed, of a transaction, in light queues or of the topics of groups is not retained",
            )
        self._tables.check_room(retained_rows.TABLE, [(key, b"")])
        return text, message_rows.queues_of(retained_rows.TABLE)

    def _reply_topic(self) -> None:
        """Who consumes a request will look for the topic of replies: make it now, with one queue."""
        name = self._reply_name
        if name not in self._topics and names.is_stored_topic(name):
            self._table.create(TopicConfig(name, 1, 1))

    def _special(self, header: Header, body: bytes, born_host: bytes, host_flag: int) -> Message:
        """A message for a new topic, or for one that not everybody may send to."""
        topic = self.topic_for(header, born_host)
        message = self.message(header, body, born_host, host_flag, topic)
        if header.topic.startswith(names.RETRY_PREFIX):
            self._retry(header, message)
        return message

    def _retry(self, header: Header, message: Message) -> None:
        """A consumer sends a message back by itself (SendMessageProcessor.handleRetryAndDLQ): after too many attempts it is dead.

        A group that consumes in order has made its attempts before it sends.
        """
        group = header.topic[len(names.RETRY_PREFIX) :]
        config = self._groups.find(group)
        attempts = config.retry_max_times if header.reconsume_times_max is None else header.reconsume_times_max
        if message.reconsume_times <= attempts and not self._in_order(group):
            self.retries.value += 1
            return
        topic = self._groups.dead_letter_topic(group)
        if topic is None:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"group {group[:80]}: its name leaves no room for {names.DLQ_PREFIX}"
            )
        self.dead_letters.value += 1
        pairs = message.property_map()
        pairs[props.DELAY] = "-1"
        message.properties = props.encode(pairs)
        message.topic = topic.name
        message.queue_id = 0
        message.kind = PLAIN

    def topic_for(self, header: Header, peer: bytes) -> Topic:
        """The topic of a send that is not an ordinary existing one: refuse it, or create it. `peer`: address and port of the connection."""
        name = header.topic
        if names.is_own_system_topic(name) or name.startswith(names.OWN_LIGHT_PREFIX):
            raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
        if name in CLOSED_TOPICS:
            raise GantryError(ErrorCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        names.check_stored_topic(name)
        table = self._table
        topic = table.light(name) if name.startswith(names.LMQ_PREFIX) else table.given_topic(name)
        if topic is not None:
            return topic
        queues = self._pattern(header.default_topic)
        if not queues:
            if name.startswith(
                names.RETRY_PREFIX
            ):  # one queue, whatever may be created (createTopicInSendMessageBackMethod)
                return table.create(TopicConfig(name, 1, 1))
            raise GantryError(
                ErrorCode.TOPIC_NOT_FOUND,
                f"topic[{name}] not exist, apply first please! (gantry topic create {name}; "
                f"topics.auto_create is {str(self._settings.topics_config.auto_create).lower()})",
            )
        return self._ensure_topic(name, True, max(1, min(header.default_queues, queues)), (NATIVE, peer))

    def _pattern(self, template: str) -> int:
        """Queues at most of a topic that comes into being on the pattern of this one; 0: none does so
        (TopicConfigManager.createTopicInSendMessageMethod)."""
        creating = self._settings.topics_config
        if not creating.auto_create:
            return 0
        if template == names.AUTO_CREATE_TEMPLATE:
            return creating.default_queues
        topic = self._topics.get(template)
        config = topic.config if topic is not None else self._table.given.get(template)
        return config.write_queues if config is not None and config.perm & PERM_INHERIT else 0

    def check_queue(self, topic: Topic, queue_id: int) -> int:
        """A queue id that is not simply one of the write queues; -1 lets the broker choose."""
        if queue_id < 0:
            return -1
        # A topic that is being made smaller takes messages for its old queues as long as they are read.
        if queue_id >= max(topic.config.read_queues, topic.config.write_queues):
            raise GantryError(
                ErrorCode.QUEUE_NOT_FOUND,
                f"request queueId[{queue_id}] is illegal, topic {topic.name} has {topic.config.read_queues} read and "
                f"{topic.config.write_queues} write queues",
            )
        return queue_id

    def check(self, message: Message, queue_id: int) -> ErrorCode | None:
        """What the store says of a message of a batch, which goes to queue `queue_id` if it names none; -1: it is the first."""
        if message.queue_id < 0:
            message.queue_id = queue_id if queue_id >= 0 else self._topics[message.topic].queue_for(message)
        return self._store.check(message)


def check_flags(flags: int, kind: int) -> None:
    """What sysFlag says must be so. Raises MESSAGE_ILLEGAL."""
    if flags & sysflag.INNER_BATCH:  # HookUtils.checkInnerBatch
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, NO_INNER_BATCH)
    if kind != HALF:
        raise GantryError(
            ErrorCode.MESSAGE_ILLEGAL,
            f"sysFlag {flags} marks a transaction, but the message has no property {props.TRAN_MSG}=true",
        )


def check_type(wanted: str, topic: str, text: str) -> None:
    """The message's type must be its topic's (RocketMQ's proxy: SendMessageActivity). Raises MESSAGE_ILLEGAL."""
    if message_types.TRANSFER_FLAG in text and value_of(text, message_types.TRANSFER_FLAG + "\x01"):
        return
    found = message_types.of_message(lambda name: value_of(text, name + "\x01"))
    wrong = message_types.conflict(wanted, found)
    if wrong:
        raise GantryError(
            ErrorCode.MESSAGE_ILLEGAL,
            f"{wrong}: topic {topic} (attribute {message_types.ATTRIBUTE}; topics.check_message_type is on)",
        )


def remark_of(code: ErrorCode, message: Message) -> str:
    """What a producer is told when the broker did not store its message."""
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return (
            f"the message is illegal: its body has {len(message.body)} bytes, more than message.body_bytes_max allows"
        )
    if code is ErrorCode.PROPERTIES_TOO_LARGE:
        return (
            f"the message is illegal: its properties have {len(message.properties)} bytes, the limit is "
            f"{PROPERTIES_BYTES_MAX} with the broker's own, and {TAG_BYTES_MAX} for the tag"
        )
    if code is ErrorCode.BUSY:
        return (
            "[OVERLOAD] too many messages wait for the disk (broker.pending_bytes_max), or it does not move "
            "(broker.pending_ms_max); send again later"
        )
    if code is ErrorCode.STORE_FULL:
        return "the store has no space left; free disk space on the broker"
    if code is ErrorCode.STORE_FAILED:
        return "the store stopped after an I/O error; see the broker's log"
    if code in (ErrorCode.TOPIC_NOT_FOUND, ErrorCode.TOPIC_LIMIT):
        return f"topic[{message.topic}] not exist, apply first please! ({code.value})"
    return f"{code.value}: topic {message.topic}"
