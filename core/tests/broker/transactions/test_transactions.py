"""Half messages and their fates over a disk in memory: decisions, checks, refusals, starts, limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gantrymq.broker.config import TransactionsConfig
from gantrymq.broker.topics import TopicConfig
from gantrymq.broker.transactions import transactions
from gantrymq.broker.transactions.half_messages import (
    CHECK_GROUP,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    Half,
    immunity_ms,
    op_bodies,
    op_offsets,
    resumed,
)
from gantrymq.broker.transactions.transactions import DecisionRefused
from gantrymq.metrics import Metrics
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import HALF, Message
from gantrymq.store.cold import Cold
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, decide, full_disk


class Teller:
    """Producers that are asked."""

    def __init__(self, *groups: str) -> None:
        self.groups = set(groups)
        self.asked: list[tuple[str, int]] = []
        self.bodies: list[bytes] = []

    def alive(self, group: str) -> bool:
        return group in self.groups

    def ask(self, half: Half, message: Message) -> bool:
        self.asked.append((half.unique, half.offset))
        self.bodies.append(message.body)
        return True


def half(body: bytes, unique: str, group: str = "g", more: str = "", topic: str = "orders", queue: int = 2) -> Message:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01{unique}\x02TAGS\x01a\x02KEYS\x01k1 k2\x02{more}"
    message = Message(topic, body, text.encode(), "a", (unique, "k1", "k2"), queue, 1)
    message.kind = HALF
    message.sys_flag = sysflag.TRANSACTION_PREPARED
    return message


def prepare(node: Node, body: bytes, unique: str, **more: Any) -> Message:
    message = half(body, unique, **more)
    message.born_ms = node.broker.clock.now_ms()
    (offset,) = node.call("submit", [message])
    assert offset == message.queue_offset
    return message


def end(node: Node, message: Message, commit: bool, group: str = "g", check: bool = False) -> list[Any]:
    box: list[Any] = []
    decide(
        node,
        group,
        message.queue_offset,
        message.physical_offset,
        commit,
        check,
        None,
        lambda token, result: box.append(result),
    )
    node.turn.run_until_quiet()
    if not box:
        node.flush()
    return box


def bodies(node: Node, topic: str = "orders", queue: int = 2) -> list[bytes]:
    units = node.store.units(topic, queue, 0, 1000)
    return [message.body for message in node.store.get_many([unit[:2] for unit in units]) if message is not None]


def started(files: MemoryFileSystem | None = None, sync: bool = False) -> Node:
    node = Node(files or MemoryFileSystem(), sync)
    node.call("ensure_topic", "orders", True)
    return node


def test_a_half_message_is_seen_when_it_is_committed() -> None:
    node = started()
    message = prepare(node, b"pay", "u1")
    assert message.queue_id == 2  # what the sender is told
    assert bodies(node) == []
    (stored,) = node.store.get_many([node.store.units(HALF_TOPIC, 0, 0, 1)[0][:2]])
    assert stored is not None
    assert stored.sys_flag & sysflag.TRANSACTION_MASK == 0
    assert stored.property("REAL_TOPIC") == "orders"
    assert stored.property("REAL_QID") == "2"
    assert stored.property("__transactionId__") == "u1"
    assert end(node, message, True) == [None]
    (unit,) = node.store.units("orders", 2, 0, 10)
    (found,) = node.store.get_many([unit[:2]])
    assert found is not None
    assert found.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT
    assert found.prepared_offset == message.physical_offset
    assert found.properties == stored.properties
    assert (found.tag, found.body, found.born_ms) == ("a", b"pay", message.born_ms)
    assert [hit.physical_offset for hit in node.store.query("orders", "k2", 10, 0, 1 << 60)] == [unit[0]]
    (op,) = node.store.get_many([node.store.units(OP_TOPIC, 0, 0, 1)[0][:2]])
    assert op is not None
    assert (op.tag, op.body) == ("d", b"0,")
    assert node.broker.transactions.pending == 0


def test_a_rollback_leaves_nothing() -> None:
    node = started()
    message = prepare(node, b"pay", "u1")
    assert end(node, message, False) == [None]
    assert bodies(node) == []
    assert node.broker.transactions.pending == 0
    assert node.broker.transactions.decided == {1: 0, 2: 1, 3: 0}


def test_a_fate_is_final() -> None:
    node = started()
    first, second = prepare(node, b"1", "u1"), prepare(node, b"2", "u2")
    end(node, first, True)
    end(node, second, False)
    assert end(node, first, True) == [None]
    assert end(node, second, False) == [None]
    with pytest.raises(DecisionRefused, match="decided already: committed"):
        end(node, first, False)
    with pytest.raises(DecisionRefused, match="decided already: rolled back"):
        end(node, second, True, check=True)
    assert bodies(node) == [b"1"]
    node.stop()
    node = Node(node.files, False)
    for message, commit in ((first, True), (first, False), (second, True)):
        with pytest.raises(DecisionRefused, match="decided already"):
            end(node, message, commit)
    assert bodies(node) == [b"1"]


def test_two_decisions_in_one_turn() -> None:
    node = started()
    message = prepare(node, b"1", "u1")
    box: list[Any] = []
    call = partial(decide, node)
    call("g", 0, message.physical_offset, False, False, None, lambda token, result: box.append(result))
    with pytest.raises(GantryError) as caught:
        call("g", 0, message.physical_offset, True, False, None, lambda token, result: box.append(result))
    assert caught.value.code is ErrorCode.BUSY
    node.turn.run_until_quiet()
    assert box == [None]
    assert bodies(node) == []


def test_the_checks_of_a_decision() -> None:
    node = started()
    message, other = prepare(node, b"1", "u1"), prepare(node, b"2", "u2")
    with pytest.raises(GantryError, match="The producer group wrong"):
        end(node, message, True, group="h")
    call = partial(decide, node)
    with pytest.raises(GantryError, match="The transaction state table offset wrong"):
        call("g", other.queue_offset, message.physical_offset, True, False, None, print)
    for position in (0, message.physical_offset + 1, -5, 1 << 62):
        with pytest.raises(GantryError, match="Find prepared transaction message failed"):
            call("g", 0, position, True, False, None, print)
    assert bodies(node) == []
    assert node.broker.transactions.pending == 2


def test_a_decision_later_than_its_producer_asked_for_waits_for_the_check() -> None:
    node = started()
    message = prepare(node, b"1", "u1", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02")
    node.wheel.advance(10_001)
    with pytest.raises(DecisionRefused, match="wait for the check"):
        end(node, message, True)
    assert end(node, message, True, check=True) == [None]


def test_a_half_message_without_a_group_is_refused() -> None:
    node = started()
    message = half(b"x", "u")
    message.properties = b"TRAN_MSG\x01true\x02"
    assert node.call("submit", [message]) == [ErrorCode.MESSAGE_ILLEGAL]
    message = half(b"x", "u", more="long\x01" + "x" * 32_600 + "\x02")
    assert node.call("submit", [message]) == [ErrorCode.PROPERTIES_TOO_LARGE]
    assert prepare(node, b"1", "u1").queue_offset == 0


def test_a_refused_commit_leaves_it_undecided() -> None:
    node = started()
    message = prepare(node, b"1", "u1")
    node.broker.full = "the disk is full"
    (answer,) = end(node, message, True)
    assert isinstance(answer, GantryError)
    assert answer.code is ErrorCode.STORE_FULL
    node.broker.full = ""
    assert node.broker.transactions.pending == 1
    assert end(node, message, True) == [None]
    assert bodies(node) == [b"1"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_batch_that_was_not_written_decides_nothing(commit: bool) -> None:
    node = started()
    message = prepare(node, b"1", "u1")
    with full_disk(node.files):
        (answer,) = end(node, message, commit)
        assert isinstance(answer, GantryError)
        lost = half(b"2", "u2")
        assert node.call("submit", [lost]) == [ErrorCode.STORE_FULL]
    assert node.broker.transactions.pending == 1
    assert end(node, message, not commit) == [None]
    assert bodies(node) == ([] if commit else [b"1"])
    assert node.broker.transactions.pending == 0


def test_producers_are_asked_and_counted_only_when_they_live() -> None:
    node = started()
    teller = Teller()
    checks = node.broker.transactions.checks
    checks.producers = teller
    message = prepare(node, b"1", "u1")
    young = TransactionsConfig().check_interval_ms
    node.wheel.advance(young)
    assert teller.asked == []
    assert node.broker.transactions.undecided(0, 9)[0][0][1] == 0
    teller.groups.add("g")
    node.wheel.advance(young - 1_000)
    fresh = prepare(node, b"2", "u2")
    node.wheel.advance(1_010)
    assert teller.asked == [("u1", 0)]  # the other one is younger than transactionTimeOut
    assert teller.bodies == [b"1"]
    node.stop()
    node = Node(node.files, False)
    node.broker.transactions.checks.producers = teller = Teller("g")
    assert [checks for _, checks in node.broker.transactions.undecided(0, 9)[0]] == [1, 0]
    assert end(node, message, True, check=True) == [None]
    node.wheel.advance(young + 10)
    assert teller.asked == [("u2", 1)]
    assert end(node, fresh, False, check=True) == [None]
    node.wheel.advance(10 * young)
    assert len(teller.asked) == 1


def test_what_brought_no_decision_is_put_aside_and_can_be_resumed() -> None:
    node = started()
    all_ = node.broker.transactions
    all_.config = TransactionsConfig(check_max=2, check_interval_ms=1_000, timeout_ms=500)
    all_.checks.producers = teller = Teller("g")
    message = prepare(node, b"1", "u1")
    for _ in range(4):
        node.wheel.advance(1_010)
        node.turn.run_until_quiet()
    assert len(teller.asked) == 2
    assert bodies(node, GIVEN_UP_TOPIC, 0) == [b"1"]
    assert all_.pending == 0
    assert all_.decided == {1: 0, 2: 0, 3: 1}
    with pytest.raises(DecisionRefused, match="given up"):
        end(node, message, True)
    (quarantine,) = node.store.query(GIVEN_UP_TOPIC, "u1", 9, 0, 1 << 60)
    again = resumed(quarantine)
    again.kind = HALF
    node.call("submit", [again])
    assert again.property("TRANSACTION_CHECK_TIMES") == ""
    node.wheel.advance(1_010)
    assert len(teller.asked) == 3
    assert end(node, again, True, check=True) == [None]
    assert bodies(node) == [b"1"]


def test_one_older_than_the_log_keeps_messages_is_put_aside() -> None:
    node = started()
    prepare(node, b"1", "u1")
    node.wheel.advance(72 * 3_600_000 + 60_000)
    node.turn.run_until_quiet()
    assert bodies(node, GIVEN_UP_TOPIC, 0) == [b"1"]


def test_a_time_of_its_own_before_the_first_check() -> None:
    assert immunity_ms("10") == 10_000
    assert immunity_ms("-1") == immunity_ms("x") == immunity_ms("") == -1
    node = started()
    node.broker.transactions.checks.producers = teller = Teller("g")
    prepare(node, b"1", "u1", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x0140\x02")
    prepare(node, b"2", "u2")
    node.wheel.advance(30_010)
    assert teller.asked == [("u2", 1)]
    node.wheel.advance(30_000)
    assert teller.asked[1:] == [("u1", 0), ("u2", 1)]


def test_more_than_the_table_holds_wait_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PENDING_MAX", 3)
    node = started()
    all_ = node.broker.transactions
    all_.checks.producers = teller = Teller("g")
    messages = [prepare(node, b"%d" % number, f"u{number}") for number in range(8)]
    assert sorted(all_.table) == [0, 1, 2]
    assert all_.pending == 8
    for number in (0, 5, 6):
        assert end(node, messages[number], number != 6) == [None]
    assert all_.pending == 5
    for _ in range(3):
        node.wheel.advance(30_010)
    assert {unique for unique, _ in teller.asked} == {"u1", "u2", "u3"}
    node = Node(node.files.after_process_crash(), False)
    all_ = node.broker.transactions
    assert sorted(all_.table) == [1, 2, 3]
    assert all_.pending == 5
    for number in (1, 2, 3, 4, 7):
        assert end(node, messages[number], True) == [None]
    assert sorted(bodies(node)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"7"]
    assert all_.pending == 0
    assert all_.kept_bytes == 0


def test_young_messages_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "KEPT_BYTES_MAX", 400)
    node = started()
    messages = [prepare(node, b"%d" % number, f"u{number}") for number in range(4)]
    all_ = node.broker.transactions
    assert 0 < all_.kept_bytes <= 400
    assert [entry.message is not None for entry in all_.table.values()] == [True, False, False, False]
    for message in messages:
        end(node, message, True)
    assert bodies(node) == [b"0", b"1", b"2", b"3"]
    assert all_.kept_bytes == 0


def test_a_real_broker_is_told_what_is_undecided() -> None:
    node = started()
    query = node.broker.offsets.query
    messages = [prepare(node, b"%d" % number, f"u{number}") for number in range(4)]
    for number in (0, 2, 3):
        end(node, messages[number], True)
    node.wheel.advance(2_000)
    assert query(CHECK_GROUP, HALF_TOPIC, 0) == 1
    assert query(CHECK_GROUP, OP_TOPIC, 0) <= 1
    end(node, messages[1], False)
    node.wheel.advance(2_000)
    assert query(CHECK_GROUP, HALF_TOPIC, 0) == 4
    assert query(CHECK_GROUP, OP_TOPIC, 0) == 4
    late = prepare(node, b"late", "late")
    for number in range(50):
        end(node, prepare(node, b"%d" % number, f"v{number}"), True)
    node.wheel.advance(2_000)
    assert query(CHECK_GROUP, HALF_TOPIC, 0) == late.queue_offset == 4
    assert query(CHECK_GROUP, OP_TOPIC, 0) == 4  # all op records from here on may name something above the floor


def test_bodies_of_op_records() -> None:
    assert op_bodies([1, 22, 333]) == [b"1,22,333,"]
    assert op_offsets(b"1,22,x,,333,") == [1, 22, 333]
    many = list(range(100_000, 102_000))
    split = op_bodies(many)
    assert len(split) > 1
    assert max(map(len, split)) <= 4096
    assert [offset for body in split for offset in op_offsets(body)] == many


def test_fates_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "RECENT_MAX", 4)
    node = started()
    messages = [prepare(node, b"%d" % number, f"u{number}") for number in range(9)]
    for message in messages:
        end(node, message, True)
    assert end(node, messages[-1], True) == [None]
    with pytest.raises(DecisionRefused, match="decided already: earlier"):
        end(node, messages[0], True)
    all_ = node.broker.transactions
    assert len(all_._recent) + len(all_._less_recent) <= 6
    assert len(bodies(node)) == 9


def test_metrics() -> None:
    node = started()
    metrics = Metrics()
    all_ = node.broker.transactions
    all_.show(metrics)
    all_.config = TransactionsConfig(check_max=1)
    all_.checks.producers = Teller("g")
    messages = [prepare(node, b"%d" % number, f"u{number}") for number in range(4)]
    end(node, messages[0], True)
    end(node, messages[1], False)
    node.wheel.advance(30_010)
    text = metrics.render()
    for line in (
        "gantry_transactions_pending 2",
        "gantry_transaction_checks_total 2",
        "gantry_transactions_committed_total 1",
        "gantry_transactions_rolled_back_total 1",
        "gantry_transactions_given_up_total 0",
    ):
        assert line + "\n" in text
    node.wheel.advance(30_010)
    node.turn.run_until_quiet()
    assert "gantry_transactions_pending 0\n" in metrics.render()
    assert "gantry_transactions_given_up_total 2\n" in metrics.render()


def test_a_half_message_that_cannot_be_read_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    node = started()
    all_ = node.broker.transactions
    all_.checks.producers = Teller("g")
    message = prepare(node, b"1", "u1")
    all_.drop_message(all_.table[0])
    monkeypatch.setattr(node.store, "read_records", lambda units, bytes_max: ([], len(units)))
    with pytest.raises(GantryError, match="cannot be read any more"):
        end(node, message, True)
    node.wheel.advance(30_010)
    node.turn.run_until_quiet()
    assert all_.decided == {1: 0, 2: 1, 3: 0}
    assert all_.pending == 0


def test_cold_half_messages_are_fetched_before_their_producers_are_asked() -> None:
    node = started()
    all_ = node.broker.transactions
    all_.checks.producers = teller = Teller("g")
    for number in range(3):
        prepare(node, b"%d" % number, f"u{number}")
        all_.drop_message(all_.table[number])
    waiting: list[tuple[Any, Any]] = []
    real_read = node.store.read_records
    warm: set[int] = set()

    def read(units: Any, bytes_max: int) -> Any:
        if units[0][0] not in warm:
            warm.add(units[0][0])
            raise Cold([])
        return real_read(units, bytes_max)

    node.store.read_records = read  # type: ignore[method-assign]
    node.store.fetch = lambda cold, call, again: waiting.append((call, again))  # type: ignore[method-assign]
    node.wheel.advance(30_010)
    for _ in range(3):
        ((call, again),) = waiting
        waiting.clear()
        again(call)
    assert waiting == []
    assert [unique for unique, _ in teller.asked] == ["u0", "u1", "u2"]
    assert [count for _, count in all_.undecided(0, 9)[0]] == [1, 1, 1]


@pytest.mark.parametrize("commit", [True, False])
def test_a_topic_with_a_flush_of_its_own_has_it_for_half_messages_and_decisions_too(commit: bool) -> None:
    node = Node(MemoryFileSystem(), False)
    node.broker.topics.create(TopicConfig("orders", attributes={"flush": "sync"}))
    message = half(b"1", "u1")
    box = node.start("submit", [message])
    assert box == []
    node.flush()
    assert box == [[0]]
    answers: list[Any] = []
    for _ in range(2):
        decide(node, "g", 0, message.physical_offset, commit, True, None, lambda _, done: answers.append(done))
        node.turn.run_until_quiet()
    assert answers == []
    node.flush()
    assert answers == [None, None]
