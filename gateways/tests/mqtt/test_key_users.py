"""At a listener where a pre-shared key is its user's, CONNECT's user name, password and method say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.codec import ConnAck, Connect
from gateways.tests.mqtt.test_owners import guarded
from gateways.tests.mqtt.world import Client, World


def connect(key_user: str, level: int, **said: Any) -> tuple[int, list[Any], str | None]:
    """CONNACK's code, what the audit trail got, and who closed the connection."""
    world = World()
    authority = guarded(world)
    events: list[Any] = []
    authority.audit._put = events.append  # type: ignore[method-assign]
    client = Client(world, level=level)
    client.link.key_user = key_user
    client.send(Connect("c", level=level, **said))
    answer = client.packets.pop(0)
    assert isinstance(answer, ConnAck)
    return answer.code, [(event.good, event.user, event.action) for event in events], client.link.closed_by


@pytest.mark.parametrize("level", [c.LEVEL_3_1_1, c.LEVEL_5])
@pytest.mark.parametrize(
    "said", [{}, {"user_name": "bob", "password": b"pw"}, {"user_name": "alice", "password": b"wrong"}]
)
def test_the_key_is_its_user(level: int, said: dict[str, Any]) -> None:
    assert connect("alice", level, **said) == (0, [(True, "alice", "pre-shared key")], None)


@pytest.mark.parametrize(("level", "code"), [(c.LEVEL_3_1_1, 5), (c.LEVEL_5, 0x87)])
def test_a_key_of_nobody(level: int, code: int) -> None:
    found, events, closed_by = connect("carol", level, user_name="bob", password=b"pw")
    assert (found, events) == (code, [(False, "carol", "pre-shared key")])
    assert closed_by is not None


def test_without_such_a_key_the_password_counts() -> None:
    assert connect("", c.LEVEL_5, user_name="bob", password=b"pw") == (0, [(True, "bob", "password")], None)


def test_no_method_beside_it() -> None:
    code, events, _ = connect("alice", c.LEVEL_5, properties={p.AUTH_METHOD: "SCRAM-SHA-256"})
    assert (code, events) == (0x8C, [(False, "alice", "pre-shared key")])
