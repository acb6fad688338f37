"""SEND_BATCH_MESSAGE and SEND_BLOCK: many messages of one queue in one request, stored whole or refused whole.

They are taken apart and checked in slices, one per loop turn; then the whole batch is one append, so its offsets follow one another and
a crash leaves all of it or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.model import names
from gantrymq.model.batch import block
from gantrymq.model.batch.block import ITEM
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import PLAIN
from gantrymq.remoting.codec import header_of
from gantrymq.remoting.constants import REGION, RequestCode, ResponseCode
from gantrymq.remoting.door import code_of
from gantrymq.remoting.headers import SendHeaderV2, parse, parse_send
from gantrymq.remoting.overview_codes import SEND_BLOCK
from gantrymq.remoting.server.reply import SendReply
from gantrymq.remoting.server.sending.sends import remark_of
from gantrymq.remoting.server.sending.specials import kind_of
from gantrymq.store.log.run import RECORDS_MAX, Run, fill, fill_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.model.message import Message
    from gantrymq.remoting.codec import Command, SendResponses
    from gantrymq.remoting.server.sending.sends import Header, Sends

BATCH_STEP: Final = 100
"""Messages taken apart in one slice: two thirds of a millisecond."""

RUN_STEP: Final = 500
"""...of those that are only stored, which cost a third."""

BATCHES_MAX: Final = 32
"""Batches of more than `BATCH_STEP` messages that are being taken apart, whole broker; beyond it BUSY. Each is held twice, 8 MiB."""

NO_SPECIAL_BATCH: Final = "a batch holds neither delayed nor transactional messages"

_SHORT: Final = struct.Struct(">H")

Steps = Generator[None, None, "list[Message]"]
"""Yields between slices; returns the batch."""
Items = Iterator[tuple[int, bytes, str]]
"""Flag, body and properties of each message of a batch."""


class BatchReply(SendReply, Protocol):
    """The connection that a batch came over."""

    def refuses(self, command: Command) -> bool:
        """Too much of this connection waits for the disk: the send is answered so."""

    def batch_begins(self, size: int) -> None:
        """A frame of so many bytes is being worked on, or waits for the disk."""

    def batch_ended(self, size: int) -> None:
        """It is answered now."""

    def close_if_over(self) -> None:
        """At a stop: what was on its way is answered."""


class Batches:
    """What batches of one broker share. `submit`, `submit_with`: the broker's; `in_slices(call)`: later in this turn, or in the next."""

    def __init__(
        self, sends: Sends, responses: SendResponses, messages_max: int, submit: Callable[..., None],
        submit_with: Callable[..., None], in_slices: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self.sends = sends
        self.responses = responses
        self.messages_max = messages_max
        self.submit = submit
        self.submit_with = submit_with
        self.storing: set[str] = set()
        """First UNIQ_KEY of rows that are on their way into the log (rows.py)."""
        self.in_slices = in_slices
        self.open = 0
        """Batches that are being taken apart."""


def send_batch(command: Command, reply: BatchReply, services: Batches) -> None:
    """All or nothing, one answer with the ids of all."""
    if command.code == RequestCode.SEND_MESSAGE:
        header = parse_send(command.fields)
    else:
        header = header_of(command, SendHeaderV2)
    items = items_of(command.body, services.messages_max)
    steps = steps_of(services.sends, header, items, reply.born_host, reply.host_flag)
    if services.sends.takes_run(header):
        steps = run_steps(services.sends, header, command.body, reply, services.messages_max, steps)
    _begin(command, reply, services, steps)


def send_block(command: Command, reply: BatchReply, services: Batches) -> None:
    """As `send_batch`: a block goes into the log as a run, or, where somebody wants its messages one by one, as those."""
    header = parse(command.fields, SendHeaderV2)
    sends = services.sends
    columns = block.parse(command.body, min(RECORDS_MAX, services.messages_max))
    if sends.takes_run(header):
        run = sends.run(header, reply.born_host, reply.host_flag)
        if fill_block(run, columns, *sends.item_limits(header.topic)):
            submit_batch(command, reply, services, [run])
            return
    items = ((0, body, text.decode("utf-8", "replace")) for body, text in columns.messages())
    _begin(command, reply, services, steps_of(sends, header, items, reply.born_host, reply.host_flag))


def _begin(command: Command, reply: BatchReply, services: Batches, steps: Steps) -> None:
    try:
        next(steps)
    except StopIteration as end:
        submit_batch(command, reply, services, end.value)
        return
    if services.open >= BATCHES_MAX:
        steps.close()
        raise GantryError(
            ErrorCode.BUSY, f"[OVERLOAD] {BATCHES_MAX} large batches are being worked on; send again later"
        )
    services.open += 1
    reply.batch_begins(len(command.body))
    services.in_slices(lambda: _step(command, reply, services, steps))


def _step(command: Command, reply: BatchReply, services: Batches, steps: Steps) -> None:
    """The next slice. The frame counts for the connection meanwhile, as if it waited for the disk."""
    if reply.open:
        try:
            next(steps)
        except StopIteration as end:
            _over(command, reply, services)
            submit_batch(command, reply, services, end.value)
        except GantryError as error:
            _over(command, reply, services)
            reply.refuse(command, code_of(error.code), error.text)
        else:
            services.in_slices(lambda: _step(command, reply, services, steps))
            return
        reply.close_if_over()
        return
    steps.close()
    _over(command, reply, services)


def _over(command: Command, reply: BatchReply, services: Batches) -> None:
    services.open -= 1
    reply.batch_ended(len(command.body))


def submit_batch(command: Command, reply: BatchReply, services: Batches, batch: list[Message]) -> None:
    """Store the messages of a request, and answer it."""
    if reply.refuses(command):
        return
    size = len(command.body)
    reply.batch_begins(size)

    def stored(_token: None, results: Any) -> None:
        reply.batch_ended(size)
        if reply.open:
            answer_batch(command, reply, services, batch, results)
            reply.close_if_over()

    services.submit(batch, None, stored, reply, whole=True)


def answer_batch(command: Command, reply: BatchReply, services: Batches, batch: list[Message], results: Any) -> None:
    """One answer with the ids of all, or why they were not stored."""
    failed = results.code if isinstance(results, GantryError) else None
    for result in results if failed is None else ():
        if isinstance(result, ErrorCode):
            failed = result
            break
    if failed is not None:
        reply.refuse(command, code_of(failed), remark_of(failed, batch[0]))
        return
    host = services.responses.host
    places = [
        at
        for message in batch
        for at in (message.positions if isinstance(message, Run) else (message.physical_offset,))
    ]
    body = b""
    if command.code == SEND_BLOCK:
        body = struct.pack(f">{len(places)}q", *places)
        del places[1:]
    ids = ",".join([f"{host}{at:016X}" for at in places])
    first = batch[0]
    fields = {
        "msgId": ids, "queueId": str(first.queue_id), "queueOffset": str(first.queue_offset),
        "MSG_REGION": REGION, "TRACE_ON": "true",
    }  # fmt: skip
    reply.respond(command, ResponseCode.SUCCESS, None, fields, body)


def steps_of(sends: Sends, header: Header, items: Items, born_host: bytes, host_flag: int) -> Steps:
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
    for flag, item, text in items:
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


def run_steps(sends: Sends, header: Header, body: bytes, reply: BatchReply, count_max: int, others: Steps) -> Steps:
    """As `steps_of` for messages that are only stored, as runs; where one is not, `others` looks at all of them."""
    limits = sends.item_limits(header.topic)
    runs: list[Message] = []
    at = left = 0
    while at < len(body):
        if runs:
            yield
        if not left:
            left = RECORDS_MAX
            run = sends.run(header, reply.born_host, reply.host_flag)
            runs.append(run)
        step = min(RUN_STEP, left)
        at = fill(run, body, at, min(step, count_max), *limits)
        if at < 0 or (count_max := count_max - step) < 0:
            runs.clear()
            return (yield from others)
        left -= step
    return runs if runs else (yield from others)


def items_of(body: bytes, count_max: int) -> Items:
    """(flag, body, properties text) of each message in a batch body; raises MESSAGE_ILLEGAL."""
    count = at = 0
    end = len(body)
    while at < end:
        if count >= count_max:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"a batch has at most {count_max} messages")
        count += 1
        try:
            size, _, _, flag, length = ITEM.unpack_from(body, at)
            text_at = at + ITEM.size + length
            text_size = _SHORT.unpack_from(body, text_at)[0] if length >= 0 else -1
        except struct.error:
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"batch body is cut off in the message at byte {at}") from None
        stop = text_at + 2 + text_size
        if length < 0 or size != stop - at or stop > end:
            raise GantryError(
                ErrorCode.MESSAGE_ILLEGAL, f"batch body: message at byte {at} has size {size} and a body of {length}"
            )
        yield flag, body[at + ITEM.size : text_at], body[text_at + 2 : stop].decode("utf-8", "replace")
        at = stop


HANDLERS: Final = {RequestCode.SEND_BATCH_MESSAGE: send_batch, SEND_BLOCK: send_block}
