"""Sends that are turned aside (delayed and half messages), whose answers say more, and the recall of messages with a time of their own.

A handle is RocketMQ's: base64 (URL alphabet) of `v1 TOPIC BROKER TIME UNIQ_KEY` (RecallMessageHandle.HandleV1).
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gantrymq.model import message_types
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, HALF
from gantrymq.model.names import RETRY_PREFIX
from gantrymq.remoting.codec import PREFIX, Command, response
from gantrymq.remoting.constants import FLAG_ONEWAY, REGION, RequestCode, ResponseCode
from gantrymq.remoting.door import code_of
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.sending.sends import remark_of
from gantrymq.store.schedule import TIMER_MARK, number_of

if TYPE_CHECKING:
    from gantrymq.broker.delay.delays import Delays
    from gantrymq.broker.topics import TopicTable
    from gantrymq.model.message import Message
    from gantrymq.remoting.codec import SendResponses
    from gantrymq.remoting.server.reply import SendReply
    from gantrymq.services import Clock

ILLEGAL_OPERATION: Final = 604
"""ResponseCode.ILLEGAL_OPERATION: a handle that names nothing that could be recalled here."""
_URL_ALPHABET: Final = bytes.maketrans(b"+/", b"-_")
HANDLE_CHARS_MAX: Final = 4096
"""A topic, a broker's name and a key: far shorter."""


class RecallHeader(msgspec.Struct, rename="camel"):
    """RECALL_MESSAGE."""

    topic: str
    recall_handle: str
    producer_group: str = ""


class Handle(NamedTuple):
    """What a recall handle says; `at_ms`: TIMER_OUT_MS + 1."""

    topic: str
    broker: str
    at_ms: int
    unique: str

    def text(self) -> str:
        """As a producer gets it."""
        return handle_bytes(self.topic, self.broker, self.at_ms, self.unique).decode()


def handle_bytes(topic: str, broker: str, at_ms: int, unique: str) -> bytes:
    """`Handle.text`, encoded."""
    words = f"v1 {topic} {broker} {at_ms} {unique}"
    return binascii.b2a_base64(words.encode("utf-8", "surrogatepass"), newline=False).translate(_URL_ALPHABET)


def parse_handle(text: str) -> Handle:
    """Raises ValueError for what is no handle."""
    if len(text) > HANDLE_CHARS_MAX:
        raise ValueError("recall handle is invalid")
    try:
        words = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError):
        raise ValueError("recall handle is invalid") from None
    if words[0] != "v1" or len(words) < 5:
        raise ValueError("recall handle is invalid")
    return Handle(words[1], words[2], number_of(words[3]), words[4])


@dataclass(slots=True)
class Recalls:
    """What delayed messages and their recall need of the broker."""

    topics: TopicTable
    delays: Delays
    clock: Clock
    broker_name: str
    responses: SendResponses

    def refusal(self, message: Message) -> str:
        """Why a message of that kind is illegal."""
        if message.kind != DELAYED:
            return remark_of(ErrorCode.MESSAGE_ILLEGAL, message)
        longest_ms = self.delays.config.max_delay_s * 1000
        return (
            f"timer message illegal, the delay time should not be bigger than the max delay {longest_ms}ms (timer.max_delay_s), "
            "DELAY and TIMER_* must be numbers; or if set del msg, the delay time should be bigger than the current time"
        )

    def stored_frame(self, opaque: int, message: Message, topic: str, queue_id: int) -> bytes:
        """SendMessageResponseHeader of a message that waits: the topic's queue, and the place where it waits; of a timer its handle, of a half
        message its `transactionId`, which producers hand to the application (TransactionSendResult)."""
        responses = self.responses
        if queue_id < 0:
            queue_id = message.queue_id if message.topic == topic else number_of(message.property(props.REAL_QUEUE_ID))
        if message.kind == HALF:
            unique = message.keys[0] if message.keys else ""
            if unique.isascii() and unique.isalnum():
                more = b'"transactionId":"%b",' % unique.encode()
            else:  # something in it may have to be escaped
                more = b'"transactionId":%b,' % json.dumps(message.property(props.UNIQ_KEY)).encode()
        elif message.tag.startswith(TIMER_MARK) and not topic.startswith(RETRY_PREFIX):
            # SendMessageProcessor.attachRecallHandle: one millisecond more, so that the order falls into the same second
            at_ms = int(message.tag[len(TIMER_MARK) :].partition(" ")[0]) + 1
            unique = message.keys[0] if message.keys else ""
            more = b'"recallHandle":"%b",' % handle_bytes(topic, self.broker_name, at_ms, unique)
        else:
            return responses.frame(opaque, message.physical_offset, queue_id, message.queue_offset)
        header = responses.wider % (more, message.physical_offset, queue_id, message.queue_offset, opaque)
        return PREFIX.pack(len(header) + 4, len(header)) + header


def submit_redirected(reply: SendReply, services: Recalls, batch: list[Message], commands: list[Command]) -> None:
    """Take the messages that are not plain out of a batch of sends and submit them by themselves."""
    rows = [row for row, message in enumerate(batch) if message.kind]
    if not rows:
        return
    asked = [(batch[row], commands[row], batch[row].topic, batch[row].queue_id) for row in rows]
    for row in reversed(rows):
        del batch[row], commands[row]

    def answer(results: Any) -> None:
        if isinstance(results, GantryError):
            results = [results.code] * len(asked)
        for (message, command, topic, queue_id), result in zip(asked, results, strict=True):
            if command.flag & FLAG_ONEWAY:
                continue
            if isinstance(result, ErrorCode):
                remark = (
                    services.refusal(message) if result is ErrorCode.MESSAGE_ILLEGAL else remark_of(result, message)
                )
                frame = response(command, code_of(result), remark)
            else:
                frame = services.stored_frame(command.opaque, message, topic, queue_id)
            reply.outbox.append(frame)

    reply.submit([message for message, _, _, _ in asked], answer)


def recall(command: Command, reply: SendReply, services: Recalls) -> None:
    """RECALL_MESSAGE, with the checks of RocketMQ's RecallMessageProcessor; unlike there, a message that is not pending any more is
    said to be so."""
    header = parse(command.fields, RecallHeader)
    delays = services.delays
    if not delays.config.recall:
        reply.refuse(command, ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden (timer.recall=false)")
        return
    topic = services.topics.get(header.topic)
    if topic is None:
        reply.refuse(command, ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic[:255]}] not exist")
        return
    if topic.takes is not None and (wrong := message_types.conflict(topic.takes, message_types.DELAY)):
        reply.refuse(command, ResponseCode.MESSAGE_ILLEGAL, wrong)
        return
    try:
        handle = parse_handle(header.recall_handle)
    except ValueError as error:
        reply.refuse(command, ILLEGAL_OPERATION, str(error))
        return
    left_ms = handle.at_ms - services.clock.now_ms()
    wrong = ""
    if handle.topic != header.topic:
        wrong = "topic not match"
    elif handle.broker != services.broker_name:
        wrong = "broker service not available"
    elif not 0 < left_ms < delays.config.max_delay_s * 1000:
        wrong = "timestamp invalid"
    if wrong:
        reply.refuse(command, ILLEGAL_OPERATION, f"recall failed, {wrong}")
        return

    def done(result: bool | ErrorCode) -> None:
        if not reply.open:
            return
        if isinstance(result, ErrorCode):
            reply.refuse(command, code_of(result), f"recall failed, {result.value}")
        elif not result:
            reply.refuse(command, ILLEGAL_OPERATION, "recall failed, the message does not wait (any more)")
        else:
            fields = {"msgId": handle.unique, "MSG_REGION": REGION}
            reply.respond(command, ResponseCode.SUCCESS, None, fields)

    place = handle.topic, handle.unique, handle.at_ms
    reply.read(
        command,
        lambda reading: reading.delayed(*place),
        lambda known: delays.recall(known, *place, header.producer_group, reply.born_host, done),
    )


HANDLERS: Final = {RequestCode.RECALL_MESSAGE: recall}
