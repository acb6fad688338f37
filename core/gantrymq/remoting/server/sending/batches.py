"""SEND_BATCH_MESSAGE: many messages of one queue in one request, stored whole or refused whole.

They are taken apart and checked in slices, one per loop turn; then the whole batch is one append, so its offsets follow one another and
a crash leaves all of it or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import PLAIN
from gantrymq.remoting.codec import header_of
from gantrymq.remoting.constants import REGION, RequestCode, ResponseCode
from gantrymq.remoting.door import code_of
from gantrymq.remoting.headers import SendHeader, SendHeaderV2, parse
from gantrymq.remoting.server.sending.sends import remark_of
from gantrymq.remoting.server.sending.specials import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.model.message import Message
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.broker_door import BrokerConnection
    from gantrymq.remoting.server.sending.sends import Header, Sends

BATCH_STEP: Final = 100
"""Messages taken apart in one slice: two thirds of a millisecond."""

BATCHES_MAX: Final = 32
"""Batches of more than `BATCH_STEP` messages that are being taken apart, whole broker; beyond it BUSY. Each is held twice, 8 MiB."""

NO_SPECIAL_BATCH: Final = "a batch holds neither delayed nor transactional messages"

_ITEM: Final = struct.Struct(">iiiii")
"""One message of a batch body: total size, magic, body CRC (both ignored, as RocketMQ does), flag, body
length."""
_SHORT: Final = struct.Struct(">H")

Steps = Generator[None, None, "list[Message]"]
"""Yields between slices; returns the batch."""


class Batches:
    """Batches that are being taken apart; one per broker."""

    def __init__(self) -> None:
        self.open = 0


def send_batch(door: BrokerConnection, command: Command) -> None:
    """All or nothing, one answer with the ids of all."""
    header: SendHeader | SendHeaderV2
    if command.code == RequestCode.SEND_MESSAGE:
        header = parse(command.fields, SendHeader)
    else:
        header = header_of(command, SendHeaderV2)
    shared = door.shared
    count_max = shared.broker.config.batch_messages_max
    steps = steps_of(shared.sends, header, command.body, door.born_host, door.host_flag, count_max)
    try:
        next(steps)
    except StopIteration as end:
        _submit(door, command, end.value)
        return
    batches = shared.batches
    if batches.open >= BATCHES_MAX:
        steps.close()
        raise GantryError(
            ErrorCode.BUSY, f"[OVERLOAD] {BATCHES_MAX} large batches are being worked on; send again later"
        )
    batches.open += 1
    door.batch_begins(len(command.body))
    shared.turn.in_slices(lambda: _step(door, command, steps))


def _step(door: BrokerConnection, command: Command, steps: Steps) -> None:
    """The next slice. The frame counts for the connection meanwhile, as if it waited for the disk."""
    if door.open:
        try:
            next(steps)
        except StopIteration as end:
            _over(door, command)
            _submit(door, command, end.value)
        except GantryError as error:
            _over(door, command)
            door.refuse(command, code_of(error.code), error.text)
        else:
            door.shared.turn.in_slices(lambda: _step(door, command, steps))
            return
        door.link.mark()
        door.close_if_over()
        return
    steps.close()
    _over(door, command)


def _over(door: BrokerConnection, command: Command) -> None:
    door.shared.batches.open -= 1
    door.batch_ended(len(command.body))


def _submit(door: BrokerConnection, command: Command, batch: list[Message]) -> None:
    if door.refuses(command):
        return
    size = len(command.body)
    door.batch_begins(size)

    def stored(_token: None, results: Any) -> None:
        door.batch_ended(size)
        if door.open:
            _answer(door, command, batch, results)
            door.link.mark()
            door.close_if_over()

    door.shared.broker.submit(batch, None, stored, door, whole=True)


def _answer(door: BrokerConnection, command: Command, batch: list[Message], results: Any) -> None:
    failed = results.code if isinstance(results, GantryError) else None
    for result in results if failed is None else ():
        if isinstance(result, ErrorCode):
            failed = result
            break
    if failed is not None:
        door.refuse(command, code_of(failed), remark_of(failed, batch[0]))
        return
    host = door.shared.responses.host
    ids = ",".join([f"{host}{message.physical_offset:016X}" for message in batch])
    first = batch[0]
    fields = {
        "msgId": ids, "queueId": str(first.queue_id), "queueOffset": str(first.queue_offset),
        "MSG_REGION": REGION, "TRACE_ON": "true",
    }  # fmt: skip
    door.connection.respond(command, ResponseCode.SUCCESS, None, fields)


def steps_of(sends: Sends, header: Header, body: bytes, born_host: bytes, host_flag: int, count_max: int) -> Steps:
    """The messages of a batch, all for one queue; refused as a whole, so checked as a whole. Raises what refuses it."""
    if header.topic.startswith(names.RETRY_PREFIX):
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}")
    common = header.properties or ""
    if kind_of(common) != PLAIN:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, NO_SPECIAL_BATCH)
    if common and common[-1] != "\x02":
        common += "\x02"
    queue_id = header.queue_id
    messages: list[Message] = []
    for flag, item, text in items_of(body, count_max):
        if messages and not len(messages) % BATCH_STEP:
            yield
        # The message's own pairs behind the batch's: the last of a name counts, so each keeps its own
        # UNIQ_KEY, the one that the producer got back. (RocketMQ appends the batch's, and all messages
        # show that.)
        one = SendHeaderV2(
            header.topic, queue_id, header.sys_flag, header.born_ms, flag, common + text,
            default_topic=header.default_topic, default_queues=header.default_queues,
            reconsume_times=header.reconsume_times,
        )  # fmt: skip
        message = sends.message(one, item, born_host, host_flag)
        if message.kind:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, NO_SPECIAL_BATCH)
        code = sends.check(message, messages[0].queue_id if messages else -1)
        if code is not None:
            raise GantryError(code, f"message {len(messages)} of the batch: {remark_of(code, message)}")
        messages.append(message)
    if not messages:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, "the batch is empty")
    return messages


def items_of(body: bytes, count_max: int) -> Iterator[tuple[int, bytes, str]]:
    """(flag, body, properties text) of each message in a batch body; raises MESSAGE_ILLEGAL."""
    count = at = 0
    end = len(body)
    while at < end:
        if count >= count_max:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"a batch has at most {count_max} messages")
        count += 1
        try:
            size, _, _, flag, length = _ITEM.unpack_from(body, at)
            text_at = at + _ITEM.size + length
            text_size = _SHORT.unpack_from(body, text_at)[0] if length >= 0 else -1
        except struct.error:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"batch body is cut off in the message at byte {at}") from None
        stop = text_at + 2 + text_size
        if length < 0 or size != stop - at or stop > end:
            raise GantryError(
                ErrorCode.MESSAGE_ILLEGAL, f"batch body: message at byte {at} has size {size} and a body of {length}"
            )
        yield flag, body[at + _ITEM.size : text_at], body[text_at + 2 : stop].decode("utf-8", "replace")
        at = stop


HANDLERS: Final[dict[int, Callable[[BrokerConnection, Command], None]]] = {RequestCode.SEND_BATCH_MESSAGE: send_batch}
