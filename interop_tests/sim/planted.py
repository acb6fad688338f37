"""Faults that are planted in a broker, so that the checker has something to find: one that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gantrymq.broker.transactions.half_messages import COMMIT, ROLLBACK, Half, committed
from gantrymq.model.message import DELAYED, HALF, PLAIN, Message
from interop_tests.sim.node import Node

EVERY = 7
"""A planted fault strikes at each so many calls."""


class Strikes:
    """Counts calls."""

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._calls = 0

    def __call__(self) -> bool:
        """This one is struck."""
        self._calls += 1
        return self._calls % self._every == 0


def forgotten_acknowledgements(node: Node) -> None:
    """What consumers acknowledged is never written."""
    node.broker.cursors.settled.take_bodies = lambda: []  # type: ignore[method-assign]


def turned_fates(node: Node) -> None:
    """Some rollbacks commit."""
    transactions = node.broker.transactions
    decide, strikes = transactions.decide, Strikes(2)

    def turned(half: Half, fate: int, message: Message | None, token: Any, on_done: Any) -> None:
        if fate == ROLLBACK and strikes():
            fate, message = COMMIT, transactions.message_of(half)
        decide(half, fate, message, token, on_done)

    transactions.decide = turned  # type: ignore[method-assign]


def twice_committed(node: Node) -> None:
    """What is committed enters its topic twice."""
    transactions = node.broker.transactions
    decide = transactions.decide

    def doubled(half: Half, fate: int, message: Message | None, token: Any, on_done: Any) -> None:
        decide(half, fate, message, token, on_done)
        if fate == COMMIT and half.offset in transactions.table:
            again = committed(transactions.message_of(half), half)
            again.kind = PLAIN
            node.broker.submit([again], None, lambda token, results: None)

    transactions.decide = doubled  # type: ignore[method-assign]


def visible_halves(node: Node) -> None:
    """Half messages go where they would go when they are committed."""
    node.broker.redirects[HALF] = lambda message: None


def no_delay(node: Node) -> None:
    """Delayed messages do not wait."""
    node.broker.redirects[DELAYED] = lambda message: None


def changed_bodies(node: Node) -> None:
    """Some bodies change on their way to the log."""
    append, strikes = node.store.append, Strikes(50)

    def changing(messages: Sequence[Message], lights: Any) -> int:
        for message in messages:
            if b"|x" in message.body and strikes():
                message.body = message.body[:-1] + b"y"
        return append(messages, lights)

    node.store.append = changing  # type: ignore[method-assign, assignment]


def unwritten(node: Node) -> None:
    """Some sends are acknowledged and not stored."""
    submit, strikes = node.broker.submit, Strikes(30)

    def careless(
        batch: Sequence[Message], token: Any, on_done: Any, sender: object = None, whole: bool = False
    ) -> None:
        if not strikes() or batch[0].kind or batch[0].topic not in node.topics:
            submit(batch, token, on_done, sender, whole)
            return
        for message in batch:
            message.queue_offset = node.store.max_offset(message.topic, message.queue_id)
            message.physical_offset = node.store.written_position
        on_done(token, [message.queue_offset for message in batch])

    node.broker.submit = careless  # type: ignore[method-assign]


def two_holders(node: Node) -> None:
    """Everybody gets every lock."""
    node.doors.locks.lock = lambda group, client_id, queues, now_ms: list(queues)  # type: ignore[method-assign]


def hasty_offsets(node: Node) -> None:
    """Committed offsets are one too high."""
    commit = node.broker.commits.commit
    node.broker.commits.commit = lambda group, topic, queue_id, offset: commit(  # type: ignore[method-assign]
        group, topic, queue_id, offset + 1
    )


def short_leases(node: Node) -> None:
    """What was popped is given out again much too early."""
    leases = node.broker.pops.leases
    add = leases.add

    def short(place: Any, offsets: Any, pop_ms: int, due_ms: int) -> Any:
        return add(place, offsets, pop_ms, min(due_ms, node.wheel.now_ms() + 500))

    leases.add = short  # type: ignore[method-assign]
