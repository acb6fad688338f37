"""What a broker has taken already, while a forward queue is full; and records that a queue of another group refuses."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.forward.sending import LEASE_MS
from gantrymq.broker.port import EARLIEST, Route
from gantrymq.model.message import DELAYED, Message
from gantrymq.model.queue_policy import Policy
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, decide
from tests.broker.queues.test_engine import DeadRoutes
from tests.broker.transactions.test_transactions import half
from tests.cluster.forward.forward_site import ForwardSite
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
