"""Rows: batches of a sender that may send the same again, and of one that decides on many batches together (docs/formats/transactions.md).

Rows are ordinary messages of one queue with UNIQ_KEYs that the sender chose: nothing delayed, nothing of a transaction of its own. They are stored in
one append, all or nothing through any crash, so one of them tells of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.model.batch import block
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import HALF, PLAIN
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.headers import SendHeaderV2, parse
from gantrymq.remoting.overview_codes import SEND_HALF_ROWS, SEND_ROWS_ONCE
from gantrymq.remoting.server.sending.batches import answer_batch, submit_batch
from gantrymq.store.log.run import RECORDS_MAX, Run, fits, messages_of, take

if TYPE_CHECKING:
    from typing import Any

    from gantrymq.administration.reading import Reading
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.sending.batches import Batches, BatchReply

TIME_MAX_MS: Final = 2**63 - 1
ONLY_ORDINARY: Final = (
    f"rows are ordinary messages with a UNIQ_KEY, at most {RECORDS_MAX} of one queue: nothing delayed, no compacted, retry or typed topic, "
    "no property with a meaning for the broker"
)


def send_half_rows(command: Command, reply: BatchReply, services: Batches) -> None:
    """SEND_HALF_ROWS: answered as the send of a half message."""
    header = parse(command.fields, SendHeaderV2)
    check_rows(command, header, reply, services)
    message = services.sends.message(header, command.body, reply.born_host, reply.host_flag)
    services.sends.redirected = False
    if message.kind != HALF:
        raise GantryError(
            ErrorCode.MESSAGE_ILLEGAL, "the rows are no half message: TRAN_MSG=true and PGROUP are missing"
        )
    submit_batch(command, reply, services, [message])


def send_rows_once(command: Command, reply: BatchReply, services: Batches) -> None:
    """SEND_ROWS_ONCE: as SEND_BATCH_MESSAGE, and a success with no ids where all of it is stored already."""
    header = parse(command.fields, SendHeaderV2)
    run = rows_of(command, header, reply, services)
    run.grouped = True
    first, last = run.keys_at(0)[0], run.keys_at(len(run.bodies) - 1)[0]

    def find(reading: Reading) -> tuple[bool, bool]:
        query = reading.store.query
        return tuple([bool(query(run.topic, key, 1, 0, TIME_MAX_MS)) for key in (first, last)])  # type: ignore[return-value]

    def apply(stored: tuple[bool, bool]) -> None:
        if stored == (True, True):
            reply.respond(command, ResponseCode.SUCCESS, None, {"queueId": str(run.queue_id), "queueOffset": "-1"})
        elif any(stored):
            raise GantryError(
                ErrorCode.MESSAGE_ILLEGAL,
                f"of the rows {first} to {last} some are stored and some are not: they came in other requests before; send them in those again",
            )
        elif first in services.storing:
            raise GantryError(ErrorCode.BUSY, f"the rows from {first} on are being stored: send them again later")
        else:
            _store(command, reply, services, run, first)

    reply.read(command, find, apply)


def _store(command: Command, reply: BatchReply, services: Batches, run: Run, first: str) -> None:
    if reply.refuses(command):
        return
    size = len(command.body)
    reply.batch_begins(size)
    services.storing.add(first)

    def stored(batch: list[Any], results: Any) -> None:
        services.storing.discard(first)
        reply.batch_ended(size)
        if reply.open:
            answer_batch(command, reply, services, batch, results)
            reply.close_if_over()

    if services.sends.takes_run(SendHeaderV2(run.topic, run.queue_id, 0, 0, 0)):
        services.submit([run], [run], stored, reply, whole=True)
    else:
        batch = messages_of(run, PLAIN)
        services.submit_with(batch, batch, stored, reply, (), [])


def rows_of(command: Command, header: SendHeaderV2, reply: BatchReply, services: Batches) -> Run:
    """The rows of a request. Raises MESSAGE_ILLEGAL where one is no row."""
    limits = _limits_of(header, services)
    run = services.sends.run(header, reply.born_host, reply.host_flag)
    if not take(run, command.body, limits):
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"topic {header.topic}: {ONLY_ORDINARY}")
    return run


def check_rows(command: Command, header: SendHeaderV2, reply: BatchReply, services: Batches) -> None:
    """As `rows_of` for those that are not stored as messages yet."""
    if not block.is_block(command.body):
        rows_of(command, header, reply, services)
    elif not fits(block.parse(command.body, RECORDS_MAX), *_limits_of(header, services)):
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"topic {header.topic}: {ONLY_ORDINARY}")


def _limits_of(header: SendHeaderV2, services: Batches) -> tuple[int, int, int]:
    if not services.sends.takes_rows(header):
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"topic {header.topic}, queue {header.queue_id}: {ONLY_ORDINARY}")
    return services.sends.item_limits(header.topic)


HANDLERS: Final = {SEND_HALF_ROWS: send_half_rows, SEND_ROWS_ONCE: send_rows_once}
