"""Methods of class tx: publishes and acknowledgements of a channel come into force together, all of them through a crash, or nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import ONE_PIECE, BrokerPort, Done, Outcome
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.amqp.channels.channel import Channel, Handler
from gantrymq_gateways.amqp.messages.publish import Unstored, returned
from gantrymq_gateways.amqp.messages.tracing import trace
from gantrymq_gateways.amqp.messages.transaction import Transaction
from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from gantrymq.model.message import Message
    from gantrymq.net.procedures.driver import Steps


def tx_select(channel: Channel) -> None:
    if channel.confirming:
        raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.door.gateway.config.tx_bytes_max)
    channel.reply("tx.select-ok")


def _begin_anew(channel: Channel) -> Transaction:
    transaction = channel.transaction
    if transaction is None:
        raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")
    channel.transaction = Transaction(channel.door.gateway.config.tx_bytes_max)
    return transaction


def tx_rollback(channel: Channel) -> None:
    _begin_anew(channel)
    channel.reply("tx.rollback-ok")


def tx_commit(channel: Channel) -> Steps:
    transaction = _begin_anew(channel)
    entries = {tag: channel.ledger.open[tag] for tag in transaction.answers if tag in channel.ledger.open}
    acknowledged = [
        (queue.cursor, offset, Outcome.ACK)
        for tag, (queue, offset, _) in entries.items()
        if transaction.answers[tag] is Outcome.ACK and not queue.is_stream
    ]
    unrouted = yield from _store(channel, transaction.messages, acknowledged)
    for copied in transaction.traced:
        trace(channel.door.gateway, channel.door.vhost, copied, channel.door.who())
    for place in unrouted:
        channel.door.gateway.unstored[Unstored.RETURNED if place in transaction.returns else Unstored.UNROUTED] += 1
    if channel.dead:
        return
    for place in unrouted:
        if (event := transaction.returns.get(place)) is not None:
            channel.door.send_frames(returned(channel.number, event, channel.door.frame_max))
    channel.answered([(tag, transaction.answers[tag]) for tag in entries])
    channel.reply("tx.commit-ok")


def _store(channel: Channel, messages: list[Message], acknowledged: list[tuple[int, int, Outcome]]) -> Steps:
    """One batch. Returns the places of messages that no queue wants, which are no reason to refuse the others. Raises GantryError and AmqpError."""
    places = list(range(len(messages)))
    unrouted: list[int] = []
    while places or acknowledged:
        batch = [messages[place] for place in places]
        results: Any = yield partial(_submit, channel.door.gateway.port, batch, channel.door, acknowledged)
        refused = [(place, code) for place, code in zip(places, results, strict=True) if isinstance(code, ErrorCode)]
        for _, code in refused:
            if code is ErrorCode.QUEUE_FULL:  # x-overflow: reject-publish
                raise AmqpError(PRECONDITION_FAILED, "partial tx completion")
            if code not in (ErrorCode.NO_ROUTE, ErrorCode.NOT_ALONE):
                raise GantryError(code)
        nowhere = {place for place, code in refused if code is ErrorCode.NO_ROUTE}
        if not nowhere:
            break
        unrouted += sorted(nowhere)
        places = [place for place in places if place not in nowhere]
    return unrouted


def _submit(
    port: BrokerPort, batch: list[Message], sender: object, settle: list[tuple[int, int, Outcome]], token: Any, on_done: Done
) -> None:  # fmt: skip
    port.submit(batch, token, on_done, sender, settle=settle or ONE_PIECE)


HANDLERS: Final[dict[str, Handler]] = {
    "tx.select": tx_select,
    "tx.commit": tx_commit,
    "tx.rollback": tx_rollback,
}
