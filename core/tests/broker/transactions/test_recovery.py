"""What a start finds undecided: a real broker's directory, one that a real broker went on with, and half messages that retention moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig, TransactionsConfig
from gantrymq.broker.tables.tables import Rows
from gantrymq.broker.transactions import recovery as transaction_start
from gantrymq.broker.transactions.half_messages import (
    CHECK_GROUP,
    HALF_TOPIC,
    OP_PROPERTIES,
    OP_TOPIC,
    Half,
    committed,
    to_half,
)
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KeepingNode
from tests.broker.node import Node
from tests.broker.transactions.test_transactions import bodies, end, half, prepare, started
from tests.store.rocketmq_fixture import unpack


def offsets(half_offset: int, op_offset: int) -> Rows:
    return [
        ("offset", f"{topic}@{CHECK_GROUP}", json.dumps({"0": offset}).encode())
        for topic, offset in ((HALF_TOPIC, half_offset), (OP_TOPIC, op_offset))
    ]


def opened(root: Path, rows: Rows) -> tuple[Broker, MessageStore, ManualTurn]:
    clock = ManualClock()
    turn = ManualTurn()
    store = MessageStore(OsFileSystem(), root, StoreConfig(), clock)
    store.load()
    broker = Broker(store, clock, turn, ManualWheel(clock), {}, BrokerConfig(), TopicsConfig(), GatewayConfig(), False)
    broker.open(take_over=lambda: rows)
    turn.run_until_quiet()
    return broker, store, turn


@pytest.mark.parametrize("lookups", [4096, 0])
@pytest.mark.parametrize(
    ("half_offset", "op_offset", "undecided"),
    [
        (5, 1, []),
        (0, 0, []),  # killed before its offsets were written: op records, copies and what was given up say the same
        (0, 1, [1]),  # a decision without its op record: the commit is found in its topic, the rollback nowhere
        (2, 1, []),
    ],
)
def test_a_real_brokers_store_is_taken_over(
    tmp_path: Path,
    half_offset: int,
    op_offset: int,
    undecided: list[int],
    lookups: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_start, "LOOKUPS_MAX", lookups)
    unpack("killed", tmp_path / "store")
    broker, store, _ = opened(tmp_path, offsets(half_offset, op_offset))
    if not lookups and half_offset < 5:
        undecided = sorted({*undecided, 4})  # what was given up by a real broker is not found by reading the log
    assert [entry.offset for entry, _ in broker.transactions.undecided(0, 10)[0]] == undecided
    assert broker.transactions.pending == len(undecided)
    ops = store.max_offset(OP_TOPIC, 0)
    broker.close()
    store.close()
    broker, store, _ = opened(tmp_path, [])
    assert [entry.offset for entry, _ in broker.transactions.undecided(0, 10)[0]] == undecided
    assert store.max_offset(OP_TOPIC, 0) == ops  # all was noted the first time
    store.close()


def real_half(unique: str, checks: int = 0) -> Message:
    message = half(unique.encode(), unique, more=f"TRANSACTION_CHECK_TIMES\x01{checks}\x02" if checks else "")
    message.born_ms = 1_000
    to_half(message, unique)
    return message


def op(*numbers: int) -> Message:
    return Message(OP_TOPIC, "".join(f"{number}," for number in numbers).encode(), OP_PROPERTIES, "d", (), 0)


class Visited(Node):
    """Somebody else wrote into the log between two lives of ours."""

    def __init__(self, files: MemoryFileSystem, visit: Callable[[MessageStore], None]) -> None:
        self.visit = visit
        super().__init__(files, False)

    def prepare(self) -> None:
        self.visit(self.store)


def append(store: MessageStore, *messages: Message) -> list[Message]:
    store.append(messages, [()] * len(messages))
    return list(messages)


@pytest.mark.parametrize("lookups", [4096, 0])
def test_a_real_broker_went_on_meanwhile(lookups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_start, "LOOKUPS_MAX", lookups)
    node = started()
    ours = [prepare(node, b"%d" % number, f"u{number}") for number in range(4)]
    end(node, ours[0], True)
    node.stop()

    def visit(store: MessageStore) -> None:
        append(
            store, committed(ours[1], Half.read(ours[1], ours[1].physical_offset))
        )  # and killed before its op record
        append(store, op(2))
        copy = real_half("u3", checks=1)
        copy.born_ms = ours[3].born_ms
        append(store, copy, real_half("new"), real_half("gone"))
        (lost,) = append(store, real_half("lost"))
        append(store, committed(lost, Half.read(lost, lost.physical_offset)), op(6))
        append(store, real_half("lost", checks=2))

    node = Visited(node.files, visit)
    all_ = node.broker.transactions
    assert [entry.unique for entry, _ in all_.undecided(0, 10)[0]] == ["u3", "new"]
    assert [checks for _, checks in all_.undecided(0, 10)[0]] == [1, 0]
    assert [entry.offset for entry, _ in all_.undecided(0, 10)[0]] == [4, 5]  # the copy counts
    assert sorted(bodies(node)) == [b"0", b"1", b"lost"]
    node = Node(node.files.after_process_crash(), False)
    assert [entry.offset for entry, _ in node.broker.transactions.undecided(0, 10)[0]] == [4, 5]
    node.wheel.advance(2_000)
    assert node.broker.offsets.query(CHECK_GROUP, HALF_TOPIC, 0) == 4


def test_a_decision_on_a_copy_is_one_on_what_was_copied() -> None:
    """A real broker that was killed less than five seconds after a check has not written that its offsets went on."""
    node = started()
    ours = [prepare(node, b"%d" % number, f"u{number}") for number in range(3)]
    node.stop()

    def visit(store: MessageStore) -> None:
        copies = [real_half(f"u{number}", checks=1) for number in range(2)]
        for copy, first in zip(copies, ours, strict=False):
            copy.born_ms = first.born_ms
        stored = append(store, *copies, real_half("u2"))  # the last one is no copy: its producer sent it again
        append(
            store, committed(stored[0], Half.read(stored[0], stored[0].physical_offset)), op(3, 4)
        )  # u1: rolled back

    node = Visited(node.files, visit)
    assert [entry.offset for entry, _ in node.broker.transactions.undecided(0, 10)[0]] == [2, 5]
    assert bodies(node) == [b"u0"]


def test_a_copy_that_was_made_long_after_what_it_copies_was_committed() -> None:
    """Checked again and again, as nobody was there who knew."""
    node = started()
    first = prepare(node, b"0", "u0")
    node.stop()

    class Later(Visited):
        def prepare(self) -> None:
            append(self.store, committed(first, Half.read(first, first.physical_offset)))
            self.broker.clock.advance(3_600_000)
            copy = real_half("u0", checks=9)
            copy.born_ms = first.born_ms
            append(self.store, copy)

    node = Later(node.files, lambda store: None)
    assert node.broker.transactions.undecided(0, 10)[0] == []
    assert bodies(node) == [b"0"]


def test_offsets_of_a_real_broker_decide_what_lies_below_them() -> None:
    node = started()
    for number in range(3):
        prepare(node, b"%d" % number, f"u{number}")
    node.stop()
    again = Node(node.files, False)
    again.broker.put("offset", [(key, value) for _, key, value in offsets(2, 0)], None, None)
    again.turn.run_until_quiet()
    again.store.close()
    last = Node(again.files, False)
    assert [entry.offset for entry, _ in last.broker.transactions.undecided(0, 10)[0]] == [2]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_undecided_one_outlives_its_segment(restarted: bool) -> None:
    node = KeepingNode(MemoryFileSystem())
    node.broker.transactions.config = TransactionsConfig(check_interval_ms=86_400_000)
    node.call("ensure_topic", "orders", True)
    kept, dropped = prepare(node, b"pay", "u1"), prepare(node, b"no", "u2")
    assert end(node, dropped, False) == [None]
    node.send(200)
    assert node.retain(hours=2) >= 2
    assert node.store.log_min_position > kept.physical_offset
    assert node.store.get(kept.physical_offset) is None
    node.broker.transactions.table[0].message = None
    if restarted:
        node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert [entry.position for entry, _ in node.broker.transactions.undecided(0, 9)[0]] == [kept.physical_offset]
    assert end(node, kept, True, check=True) == [None]
    assert bodies(node) == [b"pay"]
    node.send(200, first=1_000)
    node.retain(hours=2)
    assert node.broker.cursors.moved.count == 0  # decided: nobody needs it any more
