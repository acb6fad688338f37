"""Transactional messages: a half message that nobody sees, a local transaction, and its fate.

The broker keeps the half message until it hears commit or rollback. Where neither comes (the process died, the answer was lost) it asks any
producer of the group, again and again, through the check callback.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from gantrymq.client.connecting.link import Link
from gantrymq.client.errors import expect_success
from gantrymq.client.messages import OutMessage, SendResult, parse_offset_message_id
from gantrymq.client.producing.sending import Sender
from gantrymq.client.records import ReceivedMessage, readable_records
from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode

_log = logging.getLogger(__name__)

CHECKS_MAX: Final = 2000
"""Check callbacks that run at a time (checkRequestHoldMax); the broker repeats the question of any further one."""


class Fate(IntEnum):
    """What becomes of a half message.

    Attributes:
        UNKNOWN: Not known yet: the broker will ask the check callback.
        COMMIT: Consumers see it.
        ROLLBACK: Nobody ever sees it.
    """

    UNKNOWN = 0
    COMMIT = sysflag.TRANSACTION_COMMIT
    ROLLBACK = sysflag.TRANSACTION_ROLLBACK


LocalTransaction = Callable[[OutMessage, str], Fate | Awaitable[Fate]]
"""(message, transaction id) to its fate. A plain function runs in a thread."""
CheckTransaction = Callable[[ReceivedMessage], Fate | Awaitable[Fate]]
"""The half message to its fate, as far as it is known by now. A plain function runs in a thread."""


class TransactionResult(NamedTuple):
    """What became of a message of `Producer.send_transaction`.

    Attributes:
        sent: The half message's place.
        fate: What was decided; UNKNOWN: the broker will ask.
    """

    sent: SendResult
    fate: Fate

    @property
    def transaction_id(self) -> str:
        """What the callbacks know the transaction by."""
        return self.sent.transaction_id or self.sent.message_id


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a callback: a coroutine function runs here, a plain one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result


class Transactions:
    """The transactional side of a producer."""

    def __init__(self, sender: Sender, check: CheckTransaction | None) -> None:
        self._sender = sender
        self._check = check
        self._checking: set[asyncio.Task[None]] = set()

    async def send(self, message: OutMessage, local: LocalTransaction) -> TransactionResult:
        """Store `message` as a half message, run `local`, tell the broker its result. See `Producer.send_transaction`."""
        if message.delay_level or message.deliver_at_ms or message.deliver_after_s:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a transactional message cannot be delayed")
        outgoing = await self._sender.prepare(message)
        outgoing.sys_flag |= sysflag.TRANSACTION_PREPARED
        group = self._sender.settings.group
        outgoing.extra = f"{props.TRAN_MSG}\x01true\x02{props.PRODUCER_GROUP}\x01{group}\x02"
        sent = await self._sender.send(outgoing)
        result = TransactionResult(sent, Fate.UNKNOWN)
        if (
            not sent.durable
        ):  # the half message may not survive: DefaultMQProducerImpl rolls it back without running anything
            fate = Fate.ROLLBACK
        else:
            fate = Fate(await call(local, message, result.transaction_id) or Fate.UNKNOWN)
        await self._end(message.topic, sent, result.transaction_id, fate)
        return TransactionResult(sent, fate)

    async def _end(self, topic: str, sent: SendResult, transaction_id: str, fate: Fate) -> None:
        """Tell the broker. It answers a decision; where that answer does not come it will ask again, so nothing is raised."""
        if fate is Fate.UNKNOWN:
            return
        address, position = parse_offset_message_id(sent.offset_message_id)
        what = f"end of transaction {transaction_id}"
        fields = _end_fields(self._sender.settings.group, topic, sent.queue_offset, position, fate)
        fields |= {"msgId": sent.message_id, "transactionId": transaction_id, "bname": sent.queue.broker}
        try:
            link = await self._sender.client.link_of(sent.queue, master_only=True)
            expect_success(await link.request(Command(RequestCode.END_TRANSACTION, fields)), what, link.address)
        except GantryError as error:
            _log.warning("%s: %s: %s; the broker will ask", address, what, error)

    def check(self, link: Link, command: Command) -> None:
        """A broker's CHECK_TRANSACTION_STATE."""
        if self._check is None or len(self._checking) >= CHECKS_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._answer(link, command))
        self._checking.add(task)
        task.add_done_callback(self._checking.discard)

    async def _answer(self, link: Link, command: Command) -> None:
        assert self._check is not None
        message = readable_records(command.body, "", f"{link.address}: a transaction check")[0]
        try:
            fate = Fate(await call(self._check, message) or Fate.UNKNOWN)
        except Exception:
            _log.exception("%s: the check callback failed for message %s", link.address, message.message_id)
            return
        asked = command.fields
        group = message.property(props.PRODUCER_GROUP)
        topic = message.property(props.REAL_TOPIC) or message.topic
        fields = _end_fields(group, topic, asked.get("tranStateTableOffset"), asked.get("commitLogOffset"), fate)
        fields |= {"msgId": message.message_id, "transactionId": asked.get("transactionId") or message.message_id}
        fields["fromTransactionCheck"] = "true"
        if "bname" in asked:
            fields["bname"] = asked["bname"]
        link.one_way(Command(RequestCode.END_TRANSACTION, fields))

    async def close(self) -> None:
        """Wait for running check callbacks."""
        if self._checking:
            await asyncio.wait(self._checking)


def _end_fields(group: str, topic: str, queue_offset: object, position: object, fate: Fate) -> dict[str, str]:
    return {
        "producerGroup": group,
        "topic": topic,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(position),
        "commitOrRollback": str(int(fate)),
        "fromTransactionCheck": "false",
    }
