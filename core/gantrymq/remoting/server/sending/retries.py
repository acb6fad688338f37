"""Messages that consumers send back: retries and dead letters (RocketMQ's AbstractSendMessageProcessor.consumerSendMsgBack).

A message that could not be consumed is stored once more, in its group's retry topic, where it arrives after a delay that grows
with each attempt; after the last attempt it goes to the group's dead letter topic. Nobody moves it from there but people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.topics import PERM_WRITE
from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, Message
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.door import code_of
from gantrymq.remoting.headers import SendBackHeader, parse
from gantrymq.remoting.server.sending.sends import KEPT_FLAGS, remark_of
from gantrymq.remoting.server.sending.specials import TIMER_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.administration.groups import Groups
    from gantrymq.broker.topics import Topic
    from gantrymq.model.groups import GroupConfig
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import SendReply
    from gantrymq.remoting.server.sending.sends import Sends

RETRY_LEVEL_FIRST: Final = 3
"""Delay level of the first retry (10 s); each further one waits a level longer."""

UNDECIDED_TOPICS: Final = frozenset({names.SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"})
"""Records that nobody can have consumed: sending one back would make it visible before its time."""


@dataclass(slots=True)
class Returns:
    """What messages that come back need of the broker. `sent_back(topic, group)` counts."""

    groups: Groups
    sends: Sends
    sent_back: Callable[[str, str], None]


def send_back(command: Command, reply: SendReply, services: Returns) -> None:
    """CONSUMER_SEND_MSG_BACK."""
    header = parse(command.fields, SendBackHeader)
    reply.read(
        command,
        lambda reading: reading.store.get(header.offset) if header.offset >= 0 else None,
        lambda stored: _send_back(command, reply, services, header, stored),
    )


def _send_back(
    command: Command, reply: SendReply, services: Returns, header: SendBackHeader, stored: Message | None
) -> None:
    group = services.groups.find(header.group)
    if group.retry_queue_nums <= 0:  # the group wants no retries: nothing to do, and that is no failure
        reply.respond(command)
        return
    topic = writable(services.groups.retry_topic(group, header.unit_mode == "true"), names.RETRY_PREFIX + header.group)
    if stored is None or stored.topic in UNDECIDED_TOPICS or names.is_own_system_topic(stored.topic):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"look message by offset failed, {header.offset}")
    if _is_another(stored, header.origin_msg_id or ""):
        text = f"look message by offset failed, {header.offset}: another message stands there"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    reply.check(command, "sub", stored.topic)
    attempts = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
    dead = stored.reconsume_times >= attempts or header.delay_level < 0
    if dead:
        topic = writable(services.groups.dead_letter_topic(header.group), names.DLQ_PREFIX + header.group)
    level = 0 if dead else header.delay_level or RETRY_LEVEL_FIRST + stored.reconsume_times
    message = returned(stored, topic.name, level)
    origin = stored.property(props.RETRY_TOPIC) or stored.topic
    message.queue_id = 0 if dead else stored.queue_offset % _retry_queues(group, topic)

    def answer(results: Any) -> None:
        result = results.code if isinstance(results, GantryError) else results[0]
        if isinstance(result, ErrorCode):
            reply.refuse(command, code_of(result), remark_of(result, message))
            return
        if dead:
            services.sends.dead_letters.value += 1
        else:
            services.sends.retries.value += 1
        services.sent_back(origin, header.group)
        reply.respond(command)

    reply.submit([message], answer)


def _is_another(stored: Message, message_id: str) -> bool:
    """The consumer's id of its message is neither the record's key nor made of its place: the message was lost, with the machine's power, after it
    had been delivered, and what came next stands where it was. Ids of another length are not understood, and no reason to refuse."""
    unique = stored.property(props.UNIQ_KEY)
    if len(message_id) != len(unique) or message_id == unique:
        return False
    return not message_id.upper().endswith(f"{stored.physical_offset:016X}")


def _retry_queues(group: GroupConfig, topic: Topic) -> int:
    """A topic made before the group's configuration changed may have fewer queues."""
    return max(min(group.retry_queue_nums, topic.write_queues), 1)


def writable(topic: Topic | None, name: str) -> Topic:
    """The topic, if there is one that takes messages."""
    if topic is None:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"topic[{name[:80]}] not exist: its name is too long")
    if not topic.config.perm & PERM_WRITE:
        raise GantryError(ErrorCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    return topic


def returned(stored: Message, topic: str, level: int) -> Message:
    """The message as it goes to its group's retry topic after delay `level`, or with level 0 to the dead letters.

    It keeps what its sender gave it; RETRY_TOPIC and ORIGIN_MESSAGE_ID say where it first stood.
    """
    pairs = stored.property_map()
    pairs.setdefault(props.RETRY_TOPIC, stored.topic)
    pairs[props.WAIT] = "false"
    pairs[props.DELAY] = str(level)
    if level:  # a level rules over a time of delivery (HookUtils.checkIfTimerMessage)
        for name in (*TIMER_PROPERTIES, props.REAL_TOPIC, props.REAL_QUEUE_ID):
            pairs.pop(name, None)
    if not pairs.get(props.ORIGIN_MESSAGE_ID, "").strip():
        pairs[props.ORIGIN_MESSAGE_ID] = f"{stored.store_host.hex().upper()}{stored.physical_offset:016X}"
    keys = (pairs.get(props.UNIQ_KEY, ""), *pairs.get(props.KEYS, "").split())
    message = Message(
        topic, stored.body, props.encode(pairs), stored.tag, tuple([key for key in keys if key]), 0, stored.born_ms
    )
    message.born_host = stored.born_host
    message.sys_flag = stored.sys_flag & (KEPT_FLAGS | sysflag.BORN_HOST_V6)
    message.flag = stored.flag
    message.reconsume_times = stored.reconsume_times + 1
    if level > 0:
        message.kind = DELAYED
    return message


HANDLERS: Final = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
