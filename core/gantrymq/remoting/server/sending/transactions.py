"""Requests about transactions: decisions of producers, questions to them, and what people ask (docs/mapping/rocketmq_transactions.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.broker.transactions.checks import Producers
from gantrymq.broker.transactions.half_messages import GIVEN_UP_TOPIC, HALF_TOPIC, Half, resumed, whole
from gantrymq.broker.transactions.transactions import DecisionRefused
from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import HALF, Message
from gantrymq.remoting.codec import header_of
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.door import code_of
from gantrymq.remoting.headers import EndTransactionHeader, HeaderError, parse
from gantrymq.remoting.overview_codes import LIST_OWN_TRANSACTIONS, LIST_TRANSACTIONS
from gantrymq.remoting.server.sending.sends import remark_of
from gantrymq.store.log import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.administration.reading import Reading
    from gantrymq.broker.transactions.transactions import Transactions
    from gantrymq.remoting.codec import Command, SendResponses
    from gantrymq.remoting.server.clients.registry import Clients, Member
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.services import Clock

ILLEGAL_OPERATION: Final = 604
"""ResponseCode.ILLEGAL_OPERATION: a decision that comes too late."""

LISTED_MAX: Final = 256
"""Rows in one answer: a millisecond of the loop."""
SAME_KEY_MAX: Final = 64
TIME_MAX_MS: Final = 2**63 - 1
_ID_DIGITS: Final = (32, 56)


class ResumeCheckHeader(msgspec.Struct, rename="camel"):
    """RESUME_CHECK_HALF_MESSAGE: offset message id of a message in TRANS_CHECK_MAX_TIME_TOPIC."""

    msg_id: str
    topic: str | None = None


class ListHeader(msgspec.Struct, rename="camel"):
    """LIST_TRANSACTIONS: from a half topic offset on, of a group (empty: all), with a transaction id (empty: all)."""

    start: int = 0
    count: int = LISTED_MAX
    group: str = ""
    transaction_id: str = ""


class ListOwnHeader(msgspec.Struct, rename="camel"):
    """LIST_OWN_TRANSACTIONS: from a half topic offset on, of groups whose names begin with `prefix`."""

    prefix: str
    start: int = 0


@dataclass(slots=True)
class TransactionServices:
    """What decisions and questions about transactions need of the broker. `submit`: as `Broker.submit`."""

    transactions: Transactions
    clients: Clients
    clock: Clock
    submit: Callable[..., None]


def end(command: Command, reply: Reply, services: TransactionServices) -> None:
    """END_TRANSACTION; `unknown` is not answered, as in RocketMQ: the check will ask again."""
    header = header_of(command, EndTransactionHeader)
    if header.commit_or_rollback not in (sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK):
        if header.commit_or_rollback:  # EndTransactionRequestHeader.checkFields
            raise HeaderError(
                f"commitOrRollback {header.commit_or_rollback}: allowed are 0, 8 (commit) and 12 (rollback)"
            )
        return
    offset, commit = header.tran_state_table_offset, header.commit_or_rollback == sysflag.TRANSACTION_COMMIT

    def decide(found: tuple[Half, Message | None]) -> None:
        transactions = services.transactions
        reply.check(command, "pub", found[0].topic)
        try:
            transactions.end(
                found, header.producer_group, offset, commit, header.from_transaction_check, (command, reply), _ended
            )
        except DecisionRefused as error:
            reply.refuse(command, ILLEGAL_OPERATION, error.text)

    reply.read(command, lambda reading: reading.half(offset, header.commit_log_offset, commit), decide)


def _ended(token: tuple[Command, Reply], result: object) -> None:
    command, reply = token
    if isinstance(result, GantryError):
        reply.refuse(command, code_of(result.code), result.text)
    else:
        reply.respond(command)


def resume(command: Command, reply: Reply, services: TransactionServices) -> None:
    """RESUME_CHECK_HALF_MESSAGE: what was given up becomes a half message again, once."""
    header = parse(command.fields, ResumeCheckHeader)
    digits = header.msg_id
    try:
        if len(digits) not in _ID_DIGITS:
            raise ValueError
        position = int(digits[-16:], 16)
    except ValueError:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT, f"msgId {digits[:80]!r} is no offset message id of 32 or 56 hexadecimal digits"
        ) from None

    def find(reading: Reading) -> Message:
        message = reading.store.get(position)
        if message is None or message.topic != GIVEN_UP_TOPIC:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"there is no message of {GIVEN_UP_TOPIC} with id {digits}")
        refuse_known(reading, message)
        return message

    def submit(message: Message) -> None:
        resuming = services.transactions.resuming
        if position in resuming:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"message {digits} is being resumed already")
        again = resumed(message)
        again.kind = HALF
        resuming.add(position)
        services.submit([again], (command, reply, resuming, again, position), _resumed)

    reply.read(command, find, submit)


def refuse_known(reading: Reading, message: Message) -> None:
    """A message that was resumed before, or reached its topic, has a fate. Raises ILLEGAL_ARGUMENT."""
    store = reading.store
    unique = message.property(props.UNIQ_KEY)
    topic = message.property(props.REAL_TOPIC)
    if not unique or not topic:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT, "the message was no half message: it has no UNIQ_KEY or REAL_TOPIC"
        )
    for half in store.query(HALF_TOPIC, unique, SAME_KEY_MAX, message.store_ms, TIME_MAX_MS):
        if half.physical_offset > message.physical_offset:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"transaction {unique} was resumed already")
    for found in store.query(topic, unique, SAME_KEY_MAX, 0, TIME_MAX_MS):
        if found.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"transaction {unique} is committed already")


def _resumed(token: tuple[Command, Reply, set[int], Message, int], results: Any) -> None:
    command, reply, resuming, message, position = token
    resuming.discard(position)
    result = results.code if isinstance(results, GantryError) else results[0]
    if isinstance(result, ErrorCode):
        reply.refuse(command, code_of(result), remark_of(result, message))
    else:
        reply.respond(command)


def list_undecided(command: Command, reply: Reply, services: TransactionServices) -> None:
    """LIST_TRANSACTIONS: a page of rows and where to go on."""
    header = parse(command.fields, ListHeader)
    transactions = services.transactions
    rows, following = transactions.undecided(max(header.start, 0), max(1, min(header.count, LISTED_MAX)))
    clients = services.clients
    body = {
        "pending": transactions.pending, "next": following, "now": services.clock.now_ms(),
        "transactions": [
            {
                "transactionId": half.unique, "group": half.group, "topic": half.topic, "offset": half.offset,
                "position": half.position, "born": half.born_ms, "stored": half.store_ms, "checks": checks,
                "producers": len(clients.producers.get(half.group, ())),
            }
            for half, checks in rows
            if header.group in ("", half.group) and header.transaction_id in ("", half.unique)
        ],
    }  # fmt: skip
    reply.respond(command, body=msgspec.json.encode(body))


def list_own(command: Command, reply: Reply, services: TransactionServices) -> None:
    """LIST_OWN_TRANSACTIONS: as `list_undecided`, of the groups that begin so."""
    header = parse(command.fields, ListOwnHeader)
    rows, following = services.transactions.undecided(max(header.start, 0), LISTED_MAX)
    found = [
        {"group": half.group, "topic": half.topic, "offset": half.offset, "position": half.position}
        for half, _ in rows
        if half.group.startswith(header.prefix)
    ]
    reply.respond(command, body=msgspec.json.encode({"next": following, "transactions": found}))


class ProducerClients(Producers):
    """Producers of the Remoting door, one after the other."""

    def __init__(self, clients: Clients, responses: SendResponses, broker_name: str) -> None:
        self._clients = clients
        self._responses = responses
        self._broker_name = broker_name
        self._turn = 0

    def alive(self, group: str) -> bool:
        """See `Producers`."""
        return bool(self._clients.producers.get(group))

    def ask(self, half: Half, message: Message) -> bool:
        """CHECK_TRANSACTION_STATE to the next producer of the group that takes it."""
        members: list[Member] = list(self._clients.producers.get(half.group, {}).values())
        if not members:
            return False
        fields = {
            "topic": HALF_TOPIC, "tranStateTableOffset": str(half.offset), "commitLogOffset": str(half.position),
            "msgId": half.unique, "transactionId": half.unique,
            "offsetMsgId": f"{self._responses.host}{half.position:016X}",
            "bname": self._broker_name,
        }  # fmt: skip
        body = as_sent(message, half)
        self._turn += 1
        for number in range(len(members)):
            member = members[(self._turn + number) % len(members)]
            if member.push(RequestCode.CHECK_TRANSACTION_STATE, fields, body):
                return True
        return False


def as_sent(message: Message, half: Half) -> bytes:
    """The half message as a record of its own topic, which is what its producer shall see."""
    shown = Message(half.topic, message.body, message.properties, "", (), 0, message.born_ms)
    shown.queue_id = whole(message.property(props.REAL_QUEUE_ID))
    shown.dispatch = message.dispatch
    shown.flag, shown.sys_flag = message.flag, message.sys_flag
    shown.born_host, shown.store_host = message.born_host, message.store_host
    shown.store_ms, shown.reconsume_times = message.store_ms, message.reconsume_times
    shown.queue_offset, shown.physical_offset = half.offset, half.position
    return record.encode(shown)


HANDLERS: Final = {
    RequestCode.END_TRANSACTION: end,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume,
    LIST_TRANSACTIONS: list_undecided,
    LIST_OWN_TRANSACTIONS: list_own,
}
