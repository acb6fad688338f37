"""What stands in the audit trail, how much of it, and that nothing is lost while the broker is away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gantrymq.auth import audit
from gantrymq.auth.audit import Audit
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.names import AUDIT_TOPIC
from gantrymq.net.testing import ManualClock, ManualWheel


class Port:
    """Takes batches when `works`, answers with `refusal` else."""

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []
        self.refusal: Any = None
        self.slow: list[Any] = []
        self.waits = False

    def submit(self, batch: Sequence[Message], token: Any, on_done: Any, sender: object = None) -> None:
        def answer() -> None:
            if self.refusal is not None:
                on_done(token, self.refusal(len(batch)))
                return
            self.batches.append(list(batch))
            on_done(token, list(range(len(batch))))

        if self.waits:
            self.slow.append(answer)
        else:
            answer()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(message.body) for batch in self.batches for message in batch]


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.audit = Audit(self.wheel, self.clock.now_ms, "host:1")
        self.port = Port()

    def attach(self) -> None:
        self.audit.attach(self.port)  # type: ignore[arg-type]


def test_an_event_says_who_what_where_and_why() -> None:
    world = World()
    world.attach()
    world.audit.login("mqtt", "alice", "192.0.2.1:5", "the user name or password is wrong")
    world.audit.denied("amqp", "bob", "192.0.2.2:6", "write", "exchange orders", "no rule")
    world.audit.changed("remoting", "root", "192.0.2.3:7", "AUTH_CREATE_USER (3001)", "username=bob")
    assert world.port.events == []
    world.wheel.advance(audit.WRITE_MS + 100)
    login, denied, changed = world.port.events
    assert login.pop("atMs") == denied.pop("atMs") == changed.pop("atMs") == 1_700_000_000_000
    assert login == {
        "kind": "login", "door": "mqtt", "user": "alice", "address": "192.0.2.1:5", "action": "password",
        "why": "the user name or password is wrong", "process": "host:1",
    }  # fmt: skip
    assert denied == {
        "kind": "denied", "door": "amqp", "user": "bob", "address": "192.0.2.2:6", "action": "write",
        "resource": "exchange orders", "why": "no rule", "process": "host:1",
    }  # fmt: skip
    assert changed == {
        "kind": "change", "good": True, "door": "remoting", "user": "root", "address": "192.0.2.3:7",
        "action": "AUTH_CREATE_USER (3001)", "resource": "username=bob", "process": "host:1",
    }  # fmt: skip
    assert {(message.topic, message.queue_id) for batch in world.port.batches for message in batch} == {
        (AUDIT_TOPIC, 0)
    }


def test_a_good_login_is_written_once_per_connection_and_a_bad_one_each_time() -> None:
    world = World()
    world.attach()
    for _ in range(3):
        world.audit.login("cloudevents", "alice", "192.0.2.1:5")
        world.audit.login("cloudevents", "alice", "192.0.2.1:5", "wrong")
    world.audit.login("cloudevents", "alice", "192.0.2.1:6")
    world.audit.login("cloudevents", "bob", "192.0.2.1:5")
    world.wheel.advance(1_000)
    assert sum(event.get("good", False) for event in world.port.events) == 3
    assert len(world.port.events) == 6


def test_one_address_is_bounded_and_what_is_left_out_is_counted() -> None:
    world = World()
    world.attach()
    for number in range(audit.BURST + 50):
        world.audit.login("mqtt", f"u{number}", "192.0.2.1:5", "wrong")
    world.audit.login("mqtt", "other", "192.0.2.2:5", "wrong")
    world.wheel.advance(10_000)
    assert len(world.port.events) == audit.BURST + 1
    assert world.audit.left_out == 50
    world.audit.login("mqtt", "again", "192.0.2.1:5", "wrong")
    world.wheel.advance(1_000)
    left_out, again = world.port.events[-2:]
    assert (left_out["kind"], left_out["count"], left_out["address"]) == ("left out", 50, "192.0.2.1")
    assert again["user"] == "again"


def test_names_that_strangers_give_are_cut() -> None:
    world = World()
    world.attach()
    world.audit.login("mqtt", "x" * 60_000, "192.0.2.1:5", "y" * 60_000)
    world.wheel.advance(1_000)
    assert len(world.port.batches[0][0].body) < 1_000


def test_events_wait_for_a_broker_that_is_away_in_their_order() -> None:
    world = World()
    for number in range(3):
        world.audit.changed("remoting", f"u{number}", "192.0.2.1:5", "a", "")
    assert world.audit.waiting == 3
    world.attach()
    world.port.refusal = lambda count: GantryError(ErrorCode.UNAVAILABLE, "away")
    world.wheel.advance(500)
    world.audit.changed("remoting", "u3", "192.0.2.1:5", "a", "")
    world.port.refusal = lambda count: [ErrorCode.BUSY] * count
    world.wheel.advance(1_500)
    assert world.port.events == []
    world.port.refusal = None
    world.wheel.advance(1_500)
    assert [event["user"] for event in world.port.events] == ["u0", "u1", "u2", "u3"]
    assert world.audit.waiting == 0


def test_what_waits_is_bounded_and_one_batch_is_under_way() -> None:
    world = World()
    world.attach()
    world.port.waits = True
    for number in range(audit.WAITING_MAX + 700):
        world.audit.changed("remoting", f"u{number}", f"192.0.{number >> 8}.{number & 255}:5", "a", "")
        if number == 100:
            world.wheel.advance(1_000)
    assert len(world.port.slow) == 1
    assert world.audit.waiting <= audit.WAITING_MAX + audit.BATCH_MAX
    assert world.audit.left_out >= 500
    world.port.waits = False
    world.port.slow.pop()()
    world.wheel.advance(60_000)
    assert world.audit.waiting == 0
    assert max(len(batch) for batch in world.port.batches) <= audit.BATCH_MAX
