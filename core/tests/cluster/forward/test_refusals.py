"""What a broker has taken already, while a forward queue is full; records that a queue of another group refuses; waiting in vain."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.forward.receiving import AWAIT_MS
from gantrymq.broker.forward.sending import LEASE_MS
from gantrymq.broker.port import EARLIEST, Route
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import DELAYED, Message
from gantrymq.model.queue_policy import Policy
from gantrymq.net.testing import ManualWheel
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, decide
from tests.broker.queues.test_engine import DeadRoutes
from tests.broker.transactions.test_transactions import half
from tests.cluster.forward.forward_site import ForwardSite, code_of
from tests.cluster.slots.slot_site import KEEPER

MOST = 20


class DeadSite(ForwardSite):
    """Whose queues may have dead letters."""

    def make(self, name: str, files: MemoryFileSystem) -> Node:
        config = BrokerConfig(name=name, metadata_group=KEEPER, forward_records_max=self.most)
        kind = type("DeadNode", (Node,), {"config": config, "routes": {"prefix": DeadRoutes}})
        made: Node = kind(files, False)
        return made


def full(site: ForwardSite) -> None:
    """Group a's forward queue for b takes no more: b wants what has tag a."""
    site.cut("a", "b")
    site.publish("a", *[b"%d" % number for number in range(MOST)])
    site.wait(200)
    assert site.peer("a", "b").full


def of_topic(site: ForwardSite, name: str) -> int:
    """The cursor of a queue at that group, for tag a of topic t alone."""
    light, cursor = site.queue(name, "none")
    assert site.ask(name, "add_route", Route(f"of/{light}", "prefix", "t", "a", light)) is None
    return cursor


def test_a_message_whose_transaction_is_committed_is_not_lost():
    site = ForwardSite("a", "b", most=MOST)
    cursor, own = of_topic(site, "b"), of_topic(site, "a")
    message = half(b"decided", "u1", topic="t", queue=0)
    (offset,) = site.ask("a", "submit", [message])
    full(site)
    answers: list[Any] = []
    node = site.nodes["a"]
    decide(node, "g", offset, message.physical_offset, True, False, None, lambda token, result: answers.append(result))
    site.wait(100)
    assert answers == [None]
    assert site.bodies("a", own)[MOST:] == [b"decided"]
    site.mend("a", "b")
    site.wait(500)
    assert site.bodies("b", cursor)[MOST:] == [b"decided"]


def test_a_delayed_message_that_is_due_waits():
    site = ForwardSite("a", "b", most=MOST)
    _, cursor = site.queue("b", "a")
    _, own = site.queue("a", "a")
    message = Message("t", b"later", b"TAGS\x01a\x02TIMER_DELAY_MS\x01500\x02", "a")
    message.kind = DELAYED
    assert isinstance(site.ask("a", "submit", [message])[0], int)
    full(site)
    site.wait(LEASE_MS)
    assert len(site.bodies("a", own)) == MOST
    site.mend("a", "b")
    site.wait(3_000)
    assert site.bodies("b", cursor)[MOST:] == [b"later"]
    assert site.bodies("a", own) == [b"later"]


def test_a_dead_letter_waits():
    site = DeadSite("a", "b", most=MOST)
    _, cursor = site.queue("b", "a")
    light = site.ask("a", "create_light")
    own = site.ask("a", "open_cursor", f"~{light}", "g", EARLIEST).cursor
    assert site.ask("a", "add_route", Route("q", "prefix", None, "q", light)) is None
    policy = Policy(name="q", message_ttl_ms=500, dead_kind="prefix", dead_target={"tag": "a"})
    assert site.ask("a", "set_policy", own, policy) is None
    site.publish("a", b"dies", tag="q")
    full(site)
    site.wait(LEASE_MS)
    site.mend("a", "b")
    site.wait(3_000)
    assert site.bodies("b", cursor)[MOST:] == [b"dies"]


def test_a_record_that_a_full_queue_of_another_group_refuses_is_a_dead_letter_as_it_was_sent():
    site = DeadSite("a", "b")
    _, cursor = site.queue("b", "q")
    _, dead = site.queue("b", "a")
    policy = Policy(name="q", max_length=1, overflow="reject-publish-dlx", dead_kind="prefix", dead_target={"tag": "a"})
    assert site.ask("b", "set_policy", cursor, policy) is None
    site.publish("b", b"one", tag="q")
    site.wait(200)
    site.publish("a", b"two", tag="q")
    site.wait(200)
    assert site.bodies("b", cursor) == [b"one"]
    assert site.bodies("b", dead) == [b"two"]


def test_nobody_deletes_a_forward_queue_that_records_enter():
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a")
    assert code_of(site.ask("a", "delete_light", site.peer("a", "b").light)) is ErrorCode.NO_PERMISSION
    site.publish("a", b"one")
    site.wait(200)
    assert site.bodies("b", cursor) == [b"one"]


def test_reads_that_wait_in_vain_share_a_timer_and_are_answered_in_time(monkeypatch: pytest.MonkeyPatch):
    site = ForwardSite("a", "b")
    node, timers = site.nodes["b"], []
    call_at = ManualWheel.call_at

    def counted(wheel: ManualWheel, at_ms: int, call: Any) -> Any:
        timers.extend([at_ms] if call == node.broker.receiving._tell_late else [])
        return call_at(wheel, at_ms, call)

    monkeypatch.setattr(ManualWheel, "call_at", counted)
    answers: list[bool] = []
    for _ in range(5):
        for _ in range(20):
            node.broker.receiving.await_progress("a", "life", 1, answers.append)
        node.wheel.advance(50)
    assert len(timers) == 1
    node.wheel.advance(AWAIT_MS - 250)
    assert answers == [False] * 20
    node.wheel.advance(250)
    assert answers == [False] * 100
    assert len(timers) <= 6
    node.broker.receiving.await_progress("a", "life", 1, answers.append)
    node.wheel.advance(AWAIT_MS)
    assert answers[100:] == [False]


def test_a_full_queue_that_refuses_at_another_group_goes_without_and_nobody_is_told():
    """AMQP's reject-publish: the source has answered before the owner reads (docs/decisions/0013)."""
    site = ForwardSite("a", "b")
    _, cursor = site.queue("b", "a", "r1")
    assert site.ask("b", "set_policy", cursor, Policy("q", max_length=1, overflow="reject-publish")) is None
    batch = [Message("t", b"%d" % number, b"TAGS\x01a\x02", "a") for number in range(3)]
    for message in batch:
        message.exchange = "e"
    assert all(isinstance(result, int) for result in site.ask("a", "submit", batch))
    site.wait(200)
    assert site.bodies("b", cursor) == [b"0"]
    assert site.nodes["b"].broker.queues.counts["refused"] == 2
