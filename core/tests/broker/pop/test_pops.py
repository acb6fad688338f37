"""Pop consumers at the broker: retention, moved records, what a real broker owed, dead letters on a full disk, limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gantrymq.broker.pop import leases as pop_leases
from gantrymq.broker.pop import revive as pop_revive
from gantrymq.broker.pop import selection as pop_selection
from gantrymq.broker.pop.dead_letters import AGAIN_MS
from gantrymq.broker.pop.leases import Place
from gantrymq.broker.pop.pops import INVISIBLE_MS_MAX
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.message import Message
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KeepingNode
from tests.broker.node import Node

GROUP, TOPIC = "g", "t"


def place_of(node: Node, topic: str = TOPIC, from_first: bool = True) -> Place:
    return node.broker.pops.place(GROUP, topic, 0, from_first)


def pop(node: Node, count: int = 32, invisible_ms: int = 60_000, topic: str = TOPIC) -> list[Message]:
    """Messages of one pop; `reconsume_times` shows deliveries before."""
    pops, place = node.broker.pops, place_of(node, topic)
    found = pops.select(place, count, 1 << 20, None)
    if found is None:
        return []
    pops.take(place, found, pops.pop_ms(), invisible_ms, False, None)
    node.turn.run_until_quiet()
    data, at, messages = b"".join(found.pieces), 0, []
    while at < len(data):
        messages.append(record.decode(data, at))
        at += messages[-1].size
    assert [message.queue_offset for message in messages] == list(found.offsets)
    return messages


def acknowledge(node: Node, offsets: list[int], topic: str = TOPIC) -> int:
    """With the receipt that counts now."""
    place = place_of(node, topic)
    pops = node.broker.pops
    done = 0
    for offset in offsets:
        lease = pops.leases.by_id.get(place.cursor.window.inflight.get(offset, 0))
        done += pops.acknowledge(place, (offset,), lease.pop_ms if lease is not None else 0)
    node.turn.run_until_quiet()
    return done


def pass_ms(node: Node, ms: int) -> None:
    node.wheel.advance(ms)
    node.turn.run_until_quiet()


def node_with_topic(kind: type[Node] = KeepingNode) -> Any:
    node = KeepingNode(MemoryFileSystem())
    node.broker.topics.create(TopicConfig(TOPIC, 1, 1))
    return node


def test_a_groups_backlog_is_not_live() -> None:
    node = node_with_topic()
    node.send(10)
    assert acknowledge(node, [message.queue_offset for message in pop(node)]) == 10
    node.send(300, first=10)
    assert node.retain(hours=2) > 0
    first = node.broker.min_offset(TOPIC, 0)
    assert first > 10
    assert pop(node, 1)[0].queue_offset == first
    acknowledge(node, [first])
    assert node.broker.offsets.query(GROUP, TOPIC, 0) == first + 1


@pytest.mark.parametrize("restart", [False, True])
def test_what_is_popped_and_not_acknowledged_outlives_retention(restart: bool) -> None:
    node = node_with_topic()
    bodies = node.send(300)
    popped = [message.queue_offset for _ in range(10) for message in pop(node, invisible_ms=1000)]
    assert popped == list(range(300))
    acknowledge(node, [offset for offset in popped if offset not in (3, 50)])
    if restart:
        node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert node.retain(hours=2) > 0
    assert node.broker.min_offset(TOPIC, 0) > 50
    pass_ms(node, 2_000)
    again = pop(node)
    assert [message.queue_offset for message in again] == [3, 50]
    assert [message.body for message in again] == [bodies[3], bodies[50]]
    assert [message.reconsume_times for message in again] == [1, 1]
    assert acknowledge(node, [3, 50]) == 2
    assert node.broker.offsets.query(GROUP, TOPIC, 0) == 300


def test_answers_span_no_more_than_batch_acknowledgements_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_selection, "SPAN_MAX", 20)
    node = node_with_topic()
    node.send(64)
    pop(node, invisible_ms=100)
    pop(node, invisible_ms=60_000)
    acknowledge(node, [*range(1, 30), *range(32, 64)])
    node.send(2, first=64)
    pass_ms(node, 200)
    assert [message.queue_offset for message in pop(node)] == [0]
    assert [message.queue_offset for message in pop(node)] == [30, 31]
    assert [message.queue_offset for message in pop(node)] == [64, 65]


def test_many_deadlines_at_once_come_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_leases, "EXPIRED_MAX", 5)
    node = node_with_topic()
    node.send(30)
    for _ in range(10):
        pop(node, 3, invisible_ms=100)
    window = place_of(node).cursor.window
    node.wheel.advance(100)
    assert 0 < len(window.returned) < 30
    pass_ms(node, 1_000)
    assert window.returned == list(range(30))
    assert node.broker.pops.leases.entries == 0


def test_invisible_time_is_bounded() -> None:
    node = node_with_topic()
    node.send(1)
    pop(node, invisible_ms=1 << 60)
    pass_ms(node, INVISIBLE_MS_MAX - 1_000)
    assert pop(node) == []
    pass_ms(node, 1_100)
    assert len(pop(node)) == 1


def test_dead_letters_wait_for_room_on_the_disk() -> None:
    node = node_with_topic()
    node.broker.put("group", [(GROUP, json.dumps({"groupName": GROUP, "retryMaxTimes": 0}).encode())], None, None)
    node.send(2)
    pop(node, invisible_ms=100)
    node.broker.full = "the disk is full"
    pass_ms(node, 200)
    assert pop(node) == []
    assert node.store.max_offset(f"%DLQ%{GROUP}", 0) == 0
    node.broker.full = ""
    pass_ms(node, AGAIN_MS + 100)
    assert node.store.max_offset(f"%DLQ%{GROUP}", 0) == 2
    assert node.broker.offsets.query(GROUP, TOPIC, 0) == 2
    assert pop(node) == []


REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


OTHERS_REVIVE = "rmq_sys_REVIVE_LOG_elsewhere"
"""Of another cluster: looked for when the broker starts."""


def revive(node: Node, tag: str, topic: str = REVIVE, **value: Any) -> None:
    body = json.dumps({"bn": "broker-a", "c": GROUP, "t": TOPIC, "q": 0, **value}).encode()
    text = b"TAGS\x01%b\x02" % tag.encode()
    (result,) = node.call("submit", [Message(topic, body, text, tag, queue_id=0)])
    assert isinstance(result, int)


def owing(now_ms: int, node: Node) -> None:
    """Five popped, three acknowledged, one in a batch."""
    node.broker.topics.create(TopicConfig(REVIVE, 8, 8))
    node.send(6)
    revive(node, "ck", so=0, pt=now_ms, it=10_000, n=5, bm=0, d=[0, 1, 2, 3, 4])
    revive(node, "ack", so=0, pt=now_ms, ao=1)
    revive(node, "bAck", so=0, pt=now_ms, ao=-1, aol=[2, 4])
    revive(node, "ack", so=0, pt=now_ms - 5, ao=3)
    revive(node, "nonsense")


RETRY = f"%RETRY%{GROUP}_{TOPIC}"


@pytest.mark.parametrize("missing", ["it", "so", "pt", "n"])
def test_a_checkpoint_that_lacks_something_does_not_stay_pending(missing: str) -> None:
    node = node_with_topic()
    node.broker.topics.create(TopicConfig(REVIVE, 8, 8))
    node.send(6)
    value = {"so": 0, "pt": node.clock.now_ms(), "it": 10_000, "n": 5}
    revive(node, "ck", **{name: number for name, number in value.items() if name != missing})
    pass_ms(node, 10_000 + pop_revive.LATER_MS + 100)
    assert not node.broker.pops._revive._pending
    cursor = node.broker.cursors.find(f"{REVIVE}/0", pop_revive.CURSOR_GROUP)
    assert cursor is not None
    assert cursor.window.floor == 1


@pytest.mark.parametrize("crash", [False, True])
def test_what_a_real_broker_owed_is_delivered_again(crash: bool) -> None:
    node = node_with_topic()
    owing(node.clock.now_ms(), node)
    pass_ms(node, 5_000)
    if crash:
        node = KeepingNode(node.files.after_process_crash(), node.clock)
    assert node.store.max_offset(RETRY, 0) == 0
    pass_ms(node, 5_000 + pop_revive.LATER_MS + 100)
    messages = pop(node, topic=RETRY)
    assert [(message.body[:8], message.reconsume_times) for message in messages] == [(b"00000000", 1), (b"00000003", 1)]
    assert messages[0].property("1ST_POP_TIME")
    assert node.broker.offsets.query(pop_revive.GROUP, REVIVE, 0) == 4  # a real broker goes on behind it
    node = KeepingNode(node.files.after_process_crash(), node.clock)
    pass_ms(node, 60_000)
    assert node.store.max_offset(RETRY, 0) == 2
    assert node.broker.cursors.find(f"{REVIVE}/0", pop_revive.CURSOR_GROUP) is not None


def checkpoint(node: Node, offset: int, invisible_ms: int = 1_000, topic: str = REVIVE) -> None:
    """One message popped."""
    revive(node, "ck", topic, so=offset, pt=node.clock.now_ms(), it=invisible_ms, n=1, bm=0, d=[0])


def again(node: Node) -> KeepingNode:
    """Killed when its offsets were records, and started again."""
    pass_ms(node, 1_000)
    return KeepingNode(node.files.after_process_crash(), node.clock)


def test_checkpoints_that_a_real_broker_worked_off_stay_so() -> None:
    """Its committed offset is the last one's: it goes on behind it (PopReviveService.consumeReviveMessage)."""
    node = node_with_topic()
    node.send(2)
    node.broker.topics.create(TopicConfig(OTHERS_REVIVE, 8, 8))
    for offset in (0, 1):
        checkpoint(node, offset, topic=OTHERS_REVIVE)
    node.broker.commits.commit(pop_revive.GROUP, OTHERS_REVIVE, 0, 0)
    node = again(node)
    pass_ms(node, 60_000)
    assert [message.body[:8] for message in pop(node, topic=RETRY)] == [b"00000001"]


def test_checkpoints_that_fire_later_are_found_wherever_the_real_broker_had_them_sent() -> None:
    """Another cluster's name, more queues than usual, and no record there yet."""
    node = node_with_topic()
    node.send(1)
    node.broker.topics.create(TopicConfig(OTHERS_REVIVE, 16, 16))
    node = again(node)
    body = json.dumps(
        {"bn": "broker-a", "c": GROUP, "t": TOPIC, "q": 0, "so": 0, "pt": 0, "it": 1, "n": 1, "d": [0]}
    ).encode()
    (result,) = node.call("submit", [Message(OTHERS_REVIVE, body, b"TAGS\x01ck\x02", "ck", queue_id=15)])
    assert result == 0
    pass_ms(node, 60_000)
    assert [message.body[:8] for message in pop(node, topic=RETRY)] == [b"00000000"]


def test_a_real_broker_that_comes_back_passes_no_checkpoint_over() -> None:
    node = node_with_topic()
    node.send(2)
    node.broker.topics.create(TopicConfig(REVIVE, 8, 8))
    checkpoint(node, 0)
    checkpoint(node, 1, 600_000)
    pass_ms(node, 60_000)
    assert node.store.max_offset(RETRY, 0) == 1
    assert node.broker.offsets.query(pop_revive.GROUP, REVIVE, 0) + 1 == 1


def test_checkpoints_that_a_real_broker_worked_off_meanwhile_stay_so() -> None:
    node = node_with_topic()
    node.send(4)
    node.broker.topics.create(TopicConfig(REVIVE, 8, 8))
    checkpoint(node, 0)
    pass_ms(node, 60_000)
    assert node.store.max_offset(RETRY, 0) == 1
    for offset in (1, 2, 3):
        checkpoint(node, offset)
    node.broker.commits.commit(pop_revive.GROUP, REVIVE, 0, 2)
    node = again(node)
    pass_ms(node, 60_000)
    assert [message.body[:8] for message in pop(node, topic=RETRY)] == [b"00000000", b"00000003"]
    node = again(node)
    pass_ms(node, 60_000)
    assert node.store.max_offset(RETRY, 0) == 2


def test_an_offset_beyond_the_end_passes_no_checkpoint_over() -> None:
    """Left by a broker whose log lost its tail."""
    node = node_with_topic()
    node.send(1)
    node.broker.commits.commit(pop_revive.GROUP, REVIVE, 0, 7)
    node = again(node)
    node.broker.topics.create(TopicConfig(REVIVE, 8, 8))
    checkpoint(node, 0, 100_000)
    node = again(node)
    pass_ms(node, 200_000)
    assert [message.body[:8] for message in pop(node, topic=RETRY)] == [b"00000000"]


def test_checkpoints_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_revive, "CHECKPOINTS_MAX", 2)
    monkeypatch.setattr(pop_revive, "READ_MAX", 1)
    node = node_with_topic()
    node.broker.topics.create(TopicConfig(REVIVE, 8, 8))
    node.send(6)
    now_ms = node.clock.now_ms()
    for offset in range(5):
        revive(node, "ck", so=offset, pt=now_ms, it=1_000, n=1, bm=0, d=[0])
    assert len(node.broker.pops._revive._pending) == 2
    for _ in range(5):
        pass_ms(node, 5_000)
    assert node.store.max_offset(RETRY, 0) == 5


def test_counts_after_a_restart_go_on() -> None:
    node = node_with_topic()
    node.send(1)
    for times in range(3):
        assert [message.reconsume_times for message in pop(node, invisible_ms=100)] == [times]
        pass_ms(node, 200)
    node.stop()
    node = KeepingNode(node.files, node.clock)
    assert [message.reconsume_times for message in pop(node)] == [3]


def test_a_wall_clock_set_back_while_stopped_makes_no_lease_longer() -> None:
    """Found by the simulation: a message stayed invisible for the hour that the clock had been set back."""
    node = node_with_topic()
    node.send(1)
    assert len(pop(node, invisible_ms=10_000)) == 1
    pass_ms(node, 4_000)
    node.stop()
    node.clock.wall_ms -= 3_600_000
    node = KeepingNode(node.files, node.clock)
    pass_ms(node, 5_900)
    assert pop(node) == []
    pass_ms(node, 200)
    assert [message.reconsume_times for message in pop(node)] == [1]


@pytest.mark.parametrize("crash", [False, True])
def test_leases_across_a_restart(crash: bool) -> None:
    node = node_with_topic()
    node.send(8)
    held = pop(node, 4, invisible_ms=10_000)
    assert acknowledge(node, [1]) == 1
    place = place_of(node)
    receipts = {
        offset: node.broker.pops.leases.by_id[lease].pop_ms for offset, lease in place.cursor.window.inflight.items()
    }
    assert set(receipts) == {0, 2, 3}
    pass_ms(node, 4_000)
    if crash:
        node = KeepingNode(node.files.after_process_crash(), node.clock)
        assert [message.reconsume_times for message in pop(node)] == [1] * 7
        return
    node.stop()
    node = KeepingNode(node.files, node.clock)
    assert not node.broker.tables.rows("pop_lease")
    fresh = pop(node, invisible_ms=60_000)
    assert [(message.queue_offset, message.reconsume_times) for message in fresh] == [(n, 0) for n in range(4, 8)]
    assert node.broker.pops.acknowledge(place_of(node), (held[0].queue_offset,), receipts[0]) == 1
    pass_ms(node, 5_900)
    assert pop(node) == []
    pass_ms(node, 200)
    assert [(message.queue_offset, message.reconsume_times) for message in pop(node)] == [(2, 1), (3, 1)]


def test_the_quick_way_gives_out_what_the_general_way_does(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_with_topic()
    node.broker.topics.create(TopicConfig("other", 1, 1))
    messages = [Message(name, bytes(7 * at), queue_id=0) for at in range(40) for name in (TOPIC, "other")]
    node.broker.submit(messages, None, lambda *_: None)
    node.turn.run_until_quiet()
    queue = node.store.queue(TOPIC, 0)
    quick_way, taken = pop_selection._quick, []

    def looked(place: Place, count: int, bytes_max: int) -> tuple[object, ...]:
        found = node.broker.pops.select(place, count, bytes_max, None)
        assert found is not None
        return b"".join(found.pieces), list(found.offsets), found.end, found.back, found.gone, found.counts

    def quick(*arguments: Any) -> Any:
        taken.append(quick_way(*arguments))
        return taken[-1]

    place = place_of(node)
    for lost in (False, True):
        if lost:  # its record is not there any more
            assert len(queue.pending) == 3 * 40
            queue.pending[3 * 12 + 1] = HOLE_SIZE
        for count, bytes_max in ((1, 1), (5, 1 << 20), (32, 1000), (32, 1 << 20), (100, 1 << 20)):
            with monkeypatch.context() as patch:
                patch.setattr(pop_selection, "_quick", quick)
                found = looked(place, count, bytes_max)
                patch.setattr(pop_selection, "_quick", lambda *_: None)
                assert found == looked(place, count, bytes_max)
    assert [one is not None for one in taken[:5]] == [True] * 5
    assert taken[-1] is None
    assert len(pop(node, 5)) == 5
    pass_ms(node, 120_000)
    assert [message.reconsume_times for message in pop(node, 7)] == [1] * 5 + [0] * 2
