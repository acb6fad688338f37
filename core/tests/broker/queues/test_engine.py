"""Queues with a policy: expiry, limits, dead letters, delivery limit, lifetime; with consumers and without, through crashes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, FIND, CursorDetails, Outcome, Route, Terms
from gantrymq.broker.queues import companions, engine
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, full_disk
from tests.broker.test_port import PrefixRoutes
from tests.store.crash_states import CrashFiles, cut_everywhere

HUGE = 1 << 30


class Letters:
    """Dead letters of a test: tag = target's `tag`, properties say from where and why."""

    def copy(
        self, message: Message, queue: str, target: dict[str, Any], reason: str, now_ms: int
    ) -> tuple[Message, frozenset[str]] | None:
        trail = " ".join([message.property("TRAIL"), f"{queue}:{reason}"]).strip()
        tag = target["tag"]
        made = Message(
            target.get("topic", "t"), message.body, props.encode({props.TAGS: tag, "TRAIL": trail}), tag, (), 0
        )
        made.demand_route = "prefix"
        return made, frozenset(step.partition(":")[0] for step in trail.split(" ")) if target.get(
            "once"
        ) else frozenset()


class DeadRoutes(PrefixRoutes):
    dead_letters = Letters()

    @staticmethod
    def queue_name(rows: Callable[[str], Mapping[str, bytes]], light: int) -> str:
        """Of a queue that has a route: its tag."""
        found = [json.loads(row) for key, row in rows("route").items() if json.loads(row)[3] == light]
        return f"{found[0][2]} of the door" if found else ""


class QueueNode(Node):
    routes: ClassVar[Mapping[str, Callable[[], Any]]] = {"prefix": DeadRoutes}

    def now(self, ms: int) -> None:
        """Let so much time pass."""
        for _ in range(ms // 10):
            self.wheel.advance(10)
            self.turn.run_until_quiet()


def message(tag: str, body: bytes, expires_ms: int = 0) -> Message:
    pairs = {props.TAGS: tag}
    if expires_ms:
        pairs[props.EXPIRES_AT] = str(expires_ms)
    made = Message("t", body, props.encode(pairs), tag, (), 0)
    made.exchange = "e"
    return made


class Queue:
    """A light queue for one tag."""

    def __init__(self, node: QueueNode, tag: str, policy: Policy | None = None) -> None:
        self.node = node
        self.tag = tag
        self.light = node.call("create_light")
        node.call("ensure_topic", "t", True)
        node.call("add_route", Route("r" + tag, "prefix", "t", tag, self.light))
        self.cursor = node.call("open_cursor", f"~{self.light}", "g", EARLIEST).cursor
        if policy is not None:
            node.call("set_policy", self.cursor, policy)

    def send(self, *bodies: bytes, expires_ms: int = 0) -> Any:
        return self.node.call("submit", [message(self.tag, body, expires_ms) for body in bodies])

    def ready(self) -> int:
        (info,) = self.node.call("stats", [self.cursor])
        return int(info.ready)

    def take(self, count: int = 100) -> list[Any]:
        return list(self.node.call("acquire", self.cursor, 1, count, HUGE))

    def bodies(self) -> list[bytes]:
        return [delivery.message.body for delivery in self.take()]

    def settle(self, deliveries: Iterable[Any], outcome: Outcome) -> None:
        self.node.port.settle([(self.cursor, delivery.offset, outcome) for delivery in deliveries])
        self.node.turn.run_until_quiet()


def dead(**options: Any) -> Policy:
    """A policy with dead letters to tag `dead`."""
    return Policy(name="q", dead_kind="prefix", dead_target={"tag": "dead"}, **options)


@pytest.fixture
def node() -> QueueNode:
    return QueueNode(MemoryFileSystem(), sync=False)


def trails(queue: Queue) -> list[str]:
    return [delivery.message.property("TRAIL") for delivery in queue.take()]


# Expiry.


def test_the_queues_own_time_to_live(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(message_ttl_ms=500))
    queue.send(b"0")
    node.now(300)
    queue.send(b"1")
    node.now(300)
    assert queue.ready() == 1
    node.now(300)
    assert node.broker.cursors.by_id[queue.cursor].window.ready(2) == 0, "without anybody who asks"
    queue.send(b"2")
    assert queue.bodies() == [b"2"]


def test_what_a_consumer_holds_expires_when_it_comes_back(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(message_ttl_ms=500))
    queue.send(b"0", b"1")
    first, second = queue.take()
    node.now(1000)
    queue.settle([first], Outcome.REQUEUE)
    node.now(20)
    assert queue.ready() == 0
    queue.settle([second], Outcome.ACK)
    assert node.broker.queues.counts == {"expired": 1}


def test_a_messages_own_expiry_is_exact_behind_the_head(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=1000))
    now_ms = node.broker.clock.now_ms()
    queue.send(b"0")
    queue.send(b"1", expires_ms=now_ms + 300)
    queue.send(b"2")
    queue.send(b"3", expires_ms=now_ms + 100)
    node.now(200)
    assert queue.ready() == 3
    node.now(200)
    assert queue.ready() == 2
    assert queue.bodies() == [b"0", b"2"]
    queue.send(b"4")
    assert queue.bodies() == [b"4"]


def test_who_asks_for_one_gets_one_behind_those_that_are_over(node: QueueNode) -> None:
    """While something before them is not answered."""
    queue = Queue(node, "a", Policy(message_ttl_ms=60_000))
    queue.send(b"0")
    queue.send(b"1", b"2", expires_ms=node.broker.clock.now_ms() + 100)
    queue.send(b"3")
    held = queue.take(1)
    node.now(500)
    assert [[delivery.message.body for delivery in queue.take(1)] for _ in range(2)] == [[b"3"], []]
    queue.settle(held, Outcome.REQUEUE)
    queue.send(b"4")
    assert queue.bodies() == [b"0", b"4"]


def test_who_asks_for_one_gets_one_behind_the_limit(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=2))
    queue.send(b"0")
    queue.take()
    queue.send(*[b"%d" % number for number in range(1, 6)])
    assert [[delivery.message.body for delivery in queue.take(1)] for _ in range(3)] == [[b"4"], [b"5"], []]


def test_expired_in_a_consumers_hands(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=1000))
    queue.send(b"0", expires_ms=node.broker.clock.now_ms() + 100)
    deliveries = queue.take()
    node.now(200)
    queue.settle(deliveries, Outcome.REQUEUE)
    node.now(20)
    assert queue.ready() == 0


def test_own_expiries_are_found_again_after_a_start() -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = Queue(node, "a", Policy(max_length=1000))
    queue.send(b"0")
    queue.send(b"1", expires_ms=node.broker.clock.now_ms() + 5_000)
    node.stop()
    again = QueueNode(files, sync=False)
    again.now(100)
    (info,) = again.call("stats", [queue.cursor])
    assert info.ready == 2
    again.now(6_000)
    (info,) = again.call("stats", [queue.cursor])
    assert info.ready == 1


# Dead letters.


def test_every_reason_has_its_dead_letter(node: QueueNode) -> None:
    sink = Queue(node, "dead")
    queue = Queue(node, "a", dead(message_ttl_ms=500, delivery_limit=1, max_length=3))
    queue.send(b"0", b"1")
    rejected, returned = queue.take()
    queue.settle([rejected], Outcome.DROP)
    queue.settle([returned], Outcome.REQUEUE)
    queue.settle(queue.take(), Outcome.REQUEUE)
    queue.send(b"2", b"3", b"4", b"5")
    node.now(20)
    assert queue.ready() == 3
    node.now(600)
    found = [(delivery.message.body, delivery.message.property("TRAIL")) for delivery in sink.take()]
    assert found == [
        (b"0", "q:rejected"), (b"1", "q:delivery_limit"), (b"2", "q:maxlen"),
        (b"3", "q:expired"), (b"4", "q:expired"), (b"5", "q:expired"),
    ]  # fmt: skip
    assert queue.ready() == 0
    (info,) = node.call("stats", [queue.cursor])
    assert info.unacked == 0


def test_nobody_takes_the_dead_letters(node: QueueNode) -> None:
    queue = Queue(node, "a", dead())
    queue.send(b"0", b"1")
    end = node.store.written_position
    queue.settle(queue.take(), Outcome.DROP)
    assert queue.ready() == 0
    assert [node.store.max_offset("t", 0), node.broker.queues.counts.get("dead")] == [2, None]
    assert node.store.written_position > end, "their acknowledgements"
    window = node.broker.cursors.by_id[queue.cursor].window
    assert window.floor == 2


def test_the_topic_of_dead_letters_is_made_where_only_a_binding_is_known(node: QueueNode) -> None:
    """Over several broker groups an exchange's topic is where it was declared, its bindings are everywhere."""
    light = node.call("create_light")
    policy = Policy(name="a", dead_kind="prefix", dead_target={"tag": "dead", "topic": "x"})
    queue = Queue(node, "a", policy)
    queue.send(b"0")
    queue.settle(queue.take(), Outcome.DROP)
    assert node.broker.topics.get("x") is None, "nobody has bound it: it takes nothing"
    node.call("add_route", Route("rx", "prefix", "x", "dead", light))
    queue.send(b"1")
    queue.settle(queue.take(), Outcome.DROP)
    sink = node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
    assert [found.message.body for found in node.call("acquire", sink, 1, 10, HUGE)] == [b"1"]


def test_a_topic_of_dead_letters_that_cannot_be_made_takes_nothing(
    node: QueueNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.call("add_route", Route("rx", "prefix", "x", "dead", node.call("create_light")))
    queue = Queue(node, "a", Policy(name="a", dead_kind="prefix", dead_target={"tag": "dead", "topic": "x"}))
    queue.send(b"0", b"1")
    settings = node.broker.settings
    settings.topics_config = replace(settings.topics_config, auto_create=False)
    queue.settle(queue.take(), Outcome.DROP)
    assert [queue.ready(), node.broker.topics.get("x")] == [0, None]
    assert [record.levelname for record in caplog.records if "dead letters cannot be made" in record.message] == [
        "WARNING"
    ]


def test_what_went_round_does_not_enter_again(node: QueueNode) -> None:
    policy = Policy(name="a", dead_kind="prefix", dead_target={"tag": "a", "once": True})
    queue = Queue(node, "a", policy)
    queue.send(b"0")
    queue.settle(queue.take(), Outcome.DROP)
    assert queue.ready() == 0


def test_a_full_disk_delays_dead_letters(node: QueueNode) -> None:
    sink = Queue(node, "dead")
    queue = Queue(node, "a", dead())
    queue.send(b"0")
    taken = queue.take()
    with full_disk(node.files):
        queue.settle(taken, Outcome.DROP)
        assert (queue.ready(), sink.ready()) == (0, 0)
    node.now(1_500)
    assert trails(sink) == ["q:rejected"]


class Story:
    """Rejects and expires; every number is in one of the two queues at any moment of a power loss."""

    def __init__(self, files: CrashFiles, seed: int) -> None:
        self.files = files
        self.lot = random.Random(seed)
        self.stored = False

    def run(self) -> None:
        node = QueueNode(self.files, sync=True)
        Queue(node, "dead")
        queue = Queue(node, "a", dead(message_ttl_ms=2_000, max_length=6))
        queue.send(*[b"%d" % number + b"-" * 600 for number in range(6)])
        node.flush()
        self.stored = True
        for _ in range(8):
            got = queue.take(self.lot.randrange(1, 3))
            queue.settle(got, self.lot.choice((Outcome.DROP, Outcome.REQUEUE)))
            node.now(self.lot.choice((10, 500)))
            if self.lot.random() < 0.4:
                node.flush()
            if self.lot.random() < 0.2:
                node.background()

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        node = QueueNode(files, sync=True)
        if not self.stored:
            return
        found: list[bytes] = []
        for light in ("~1", "~2"):
            cursor = node.call("open_cursor", light, "g", EARLIEST).cursor
            deliveries = node.call("acquire", cursor, 1, 100, HUGE)
            found += [delivery.message.body.rstrip(b"-") for delivery in deliveries]
        assert sorted(found) == [b"%d" % number for number in range(6)], found


def test_no_power_loss_loses_or_doubles_a_dead_letter() -> None:
    cut_everywhere(lambda files: Story(files, 1), 1, 11)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [2, 3])
def test_no_power_loss_loses_or_doubles_a_dead_letter_whatever_the_moment(seed: int) -> None:
    cut_everywhere(lambda files: Story(files, seed), seed, 2)


# Limits.


def test_the_oldest_goes_where_there_are_too_many(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=2))
    assert queue.send(*[b"%d" % number for number in range(5)]) == [0, 1, 2, 3, 4]
    assert queue.ready() == 2
    assert queue.bodies() == [b"3", b"4"]
    queue.send(b"5", b"6", b"7")
    assert queue.ready() == 2, "what is not acknowledged does not count"


@pytest.mark.parametrize("policy", [Policy(max_length=2), Policy(max_bytes=2)])
def test_what_comes_back_counts_again(node: QueueNode, policy: Policy) -> None:
    queue = Queue(node, "a", policy)
    queue.send(b"0", b"1")
    taken = queue.take()
    queue.send(b"2", b"3")
    queue.settle(taken, Outcome.REQUEUE)
    assert queue.bodies() == [b"2", b"3"], "nobody has asked how many there are"
    queue.send(b"4")
    node.port.release(1)
    node.turn.run_until_quiet()
    assert queue.bodies() == [b"3", b"4"]


def test_consumers_take_what_they_can_of_what_comes_back(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=1))
    got: list[list[bytes]] = []
    node.port.watch(queue.cursor, lambda cursor: node.port.acquire(cursor, 2, 2, HUGE, None, taken))

    def taken(_token: Any, result: Any) -> None:
        got.append([delivery.message.body for delivery in result])

    node.turn.run_until_quiet()
    queue.send(b"0", b"1")
    assert got == [[b"0", b"1"]]
    queue.send(b"2")
    held = queue.take()
    node.port.watch(queue.cursor, lambda cursor: None)
    node.port.release(2)
    queue.settle(held, Outcome.REQUEUE)
    assert [delivery.message.body for delivery in node.call("acquire", queue.cursor, 3, 1, HUGE)] == [b"0"]
    node.now(100)
    assert queue.bodies() == [b"2"]


@pytest.mark.parametrize("policy", [Policy(max_length=2), Policy(max_bytes=2)])
def test_what_a_crash_gives_back_is_too_much(policy: Policy) -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = Queue(node, "a", policy)
    queue.send(b"0", b"1")
    queue.take()
    queue.send(b"2", b"3")
    again = QueueNode(files.after_process_crash(), sync=False)
    assert [delivery.message.body for delivery in again.call("acquire", queue.cursor, 1, 10, HUGE)] == [b"2", b"3"]


def test_a_shorter_limit_cuts_what_is_there(node: QueueNode) -> None:
    queue = Queue(node, "a")
    queue.send(b"0", b"1", b"2")
    node.call("set_policy", queue.cursor, Policy(max_length=1))
    node.now(100)
    assert queue.bodies() == [b"2"]


def test_bytes_count_bodies(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_bytes=10))
    queue.send(b"1234", b"5678")
    assert queue.ready() == 2
    queue.send(b"9abc")
    assert queue.ready() == 2
    queue.send(b"x" * 11)
    assert queue.ready() == 0


def test_bytes_are_counted_again_after_a_start() -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = Queue(node, "a", Policy(max_bytes=10))
    queue.send(b"1234", b"5678")
    node.stop()
    again = QueueNode(files, sync=False)
    again.now(100)
    again.call("submit", [message("a", b"9abc")])
    (info,) = again.call("stats", [queue.cursor])
    assert info.ready == 2


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_refuses(node: QueueNode, overflow: Any) -> None:
    sink = Queue(node, "dead")
    other = Queue(node, "ab")
    queue = Queue(node, "a", dead(max_length=2, overflow=overflow))
    full = ErrorCode.QUEUE_FULL
    assert queue.send(b"0", b"1", b"2", b"3") == [0, 1, full, full]
    assert other.send(b"4") == [full], "the other queue has it nevertheless"
    assert other.bodies() == [b"4"]
    assert queue.bodies() == [b"0", b"1"]
    assert queue.send(b"5") == [3 if overflow == "reject-publish" else 6]
    assert trails(sink) == ([] if overflow == "reject-publish" else ["q:maxlen"] * 3)


@pytest.mark.parametrize("piece", [False, True])
def test_whom_nobody_tells_stores_in_the_topic_and_the_full_queue_goes_without(node: QueueNode, piece: bool) -> None:
    queue = Queue(node, "a", Policy(max_length=1, overflow="reject-publish"))
    other = Queue(node, "ab")
    box: list[Any] = []
    batch = [message("ab", body) for body in (b"0", b"1")]
    for sent in batch:
        sent.exchange = None
    node.port.submit(batch, None, lambda token, result: box.append(result), rows=[("mine", "k", b"v")] if piece else [])
    node.turn.run_until_quiet()
    assert [isinstance(result, ErrorCode) for result in box[0]] == [False, False]
    assert (queue.bodies(), other.bodies()) == ([b"0"], [b"0", b"1"])


def test_a_full_queue_refuses_a_whole_piece(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=1, overflow="reject-publish"))
    box: list[Any] = []
    batch = [message("a", b"0"), message("a", b"1")]
    node.port.submit(batch, None, lambda token, result: box.append(result), rows=[("mine", "k", b"v")])
    node.turn.run_until_quiet()
    assert box == [[ErrorCode.NOT_ALONE, ErrorCode.QUEUE_FULL]]
    assert queue.ready() == 0
    assert queue.send(b"2") == [0]


def test_a_consumer_that_waits_gets_more_than_the_limit(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(max_length=1))
    got: list[bytes] = []

    def ready(cursor: int) -> None:
        node.port.acquire(cursor, 1, 100, HUGE, None, taken)

    def taken(_token: Any, result: Any) -> None:
        got.extend(delivery.message.body for delivery in result)

    node.port.watch(queue.cursor, ready)
    node.turn.run_until_quiet()
    queue.send(b"0", b"1", b"2")
    assert got == [b"0", b"1", b"2"]


# Lifetime.


def test_a_queue_that_nobody_uses_goes_with_its_doors_row(node: QueueNode) -> None:
    node.call("put", "mine", [("q", b"row")])
    queue = Queue(node, "a", Policy(name="q", expires_ms=1_000, row=("mine", "q")))
    node.now(900)
    queue.take()
    node.now(900)
    node.port.watch(queue.cursor, lambda cursor: None)
    node.now(3_000)
    assert node.call("stats", [queue.cursor]) != [None]
    node.port.watch(queue.cursor, None)
    node.now(900)
    assert node.call("stats", [queue.cursor]) != [None]
    assert node.call("open_cursor", f"~{queue.light}", "g", FIND).cursor == queue.cursor, (
        "who only looks does not use it"
    )
    node.now(200)
    assert node.call("stats", [queue.cursor]) == [None]
    assert node.call("watch_table", "mine", None) == {}
    assert node.broker.tables.rows("queue") == {}
    assert node.broker.queues.by_light == {}


def test_a_policy_is_checked(node: QueueNode) -> None:
    queue = Queue(node, "a")
    for policy in (Policy(dead_kind="other"),):
        box = node.start("set_policy", queue.cursor, policy)
        assert isinstance(box[0], GantryError)
        assert box[0].code is ErrorCode.ILLEGAL_ARGUMENT
    box = node.start("set_policy", 99, Policy())
    assert box[0].code is ErrorCode.NOT_FOUND


def test_an_auto_delete_queue_goes_with_the_gateway_of_its_last_consumer(node: QueueNode) -> None:
    queue = Queue(node, "a", Policy(name="q", auto_delete=True, row=("x", "q")))
    kept = Queue(node, "b", Policy(name="k"))
    node.call("put", "x", [("q", b"row")])
    ports = [LocalBrokerPort(node.broker) for _ in range(2)]
    for port in ports:
        for each in (queue, kept):
            port.take_seat(each.cursor, Terms(), lambda seat, active: None, None, lambda token, result: None)
    ports[0].close()
    node.turn.run_until_quiet()
    assert queue.ready() == 0
    ports[1].close()
    node.turn.run_until_quiet()
    assert node.call("stats", [queue.cursor]) == [None]
    assert node.broker.tables.rows("x") == {}
    assert kept.ready() == 0
    never = Queue(node, "c", Policy(name="n", auto_delete=True))
    LocalBrokerPort(node.broker).close()
    assert never.ready() == 0


def test_details_say_how_much_of_the_log_a_queue_holds_back(node: QueueNode) -> None:
    queue = Queue(node, "a")
    assert node.call("details", [queue.cursor, 99]) == [CursorDetails(0, 0, 0, 0, 0), None]
    queue.send(b"1", b"2")
    queue.settle(queue.take(1), Outcome.ACK)
    queue.take(1)
    (details,) = node.call("details", [queue.cursor])
    assert (details.ready, details.unacked, details.end) == (0, 1, 2)
    assert 0 < details.pinned < node.broker.store.written_position


def test_a_queue_has_its_doors_name(node: QueueNode) -> None:
    queue, other = Queue(node, "a", Policy(name="jobs")), Queue(node, "b")
    names = [node.broker.queues.name_of(name) for name in (f"~{queue.light}", f"~{other.light}", "t/0", "~99")]
    assert names == ["jobs", "b of the door", "t/0", "~99"]


# Dead letters in pieces.


def test_rejections_of_a_turn_are_stored_in_pieces_and_in_order(
    node: QueueNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they cost four times as much."""
    sink = Queue(node, "dead")
    queue = Queue(node, "a", dead(delivery_limit=0))
    numbers = [b"%d" % number for number in range(1_000)]
    queue.send(*numbers)
    pieces: list[int] = []
    append = node.store.append

    def counting(batch: list[Message], *rest: Any) -> Any:
        pieces.append(sum(message.topic == "t" for message in batch))
        return append(batch, *rest)

    monkeypatch.setattr(node.store, "append", counting)
    taken = queue.take(1_000)
    outcomes = [Outcome.DROP if number < 600 else Outcome.REQUEUE for number in range(1_000)]
    node.port.settle([(queue.cursor, each.offset, how) for each, how in zip(taken, outcomes, strict=True)])
    node.turn.run_until_quiet()
    assert [size for size in pieces if size] == [256, 256, 88 + 256, 144]
    found = sink.take(2_000)
    assert [delivery.message.body for delivery in found] == numbers
    assert [delivery.message.property("TRAIL") for delivery in found[599:601]] == ["q:rejected", "q:delivery_limit"]
    (info,) = node.call("stats", [queue.cursor])
    assert (info.ready, info.unacked) == (0, 0)


def test_large_dead_letters_of_one_moment_fit_a_piece(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 of them were more than one piece may have, and were tried for ever."""
    monkeypatch.setattr(companions, "BYTES_MAX", 100_000)
    monkeypatch.setattr(engine, "BURY_BYTES", 25_000)
    sink = Queue(node, "dead")
    queue = Queue(node, "a", dead(message_ttl_ms=500))
    queue.send(*[b"%03d" % number + bytes(2_000) for number in range(260)])
    node.now(1_000)
    assert queue.ready() == 0
    assert [delivery.message.body[:3] for delivery in sink.take(300)] == [b"%03d" % number for number in range(260)]


def test_what_was_rejected_as_the_server_stops_is_a_dead_letter_after_the_start() -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    Queue(node, "dead")
    queue = Queue(node, "a", dead())
    queue.send(*[b"%d" % number for number in range(600)])
    taken = queue.take(600)
    node.port.settle([(queue.cursor, delivery.offset, Outcome.DROP) for delivery in taken])
    node.stop()
    node = QueueNode(files, sync=False)
    (sink, left) = (node.call("open_cursor", light, "g", EARLIEST).cursor for light in ("~1", "~2"))
    assert [info.ready for info in node.call("stats", [sink, left])] == [600, 0]


@pytest.mark.parametrize("letters", [True, False])
def test_a_policy_that_changes_finds_what_is_on_its_way(node: QueueNode, letters: bool) -> None:
    sink = Queue(node, "dead")
    queue = Queue(node, "a", dead())
    queue.send(b"0")
    taken = queue.take()
    with full_disk(node.files):
        queue.settle(taken, Outcome.DROP)
    node.call("set_policy", queue.cursor, dead(max_length=5) if letters else Policy(name="q"))
    node.now(1_500)
    assert trails(sink) == (["q:rejected"] if letters else [])
    assert node.broker.cursors.by_id[queue.cursor].window.floor == 1
