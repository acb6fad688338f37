"""While a broker group is away clean sessions go on, and client ids that the server assigns are those of groups that answer."""

from __future__ import annotations

import pytest

from gantrymq.broker.tables.slot_table import slot_of
from gantrymq_gateways.mqtt.sessions.lifecycle import names_of
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.codec import ConnAck, Connect
from gateways.tests.mqtt.world import Client, World


def of_client_ids(name: str) -> bool:
    return name.startswith("lease/mqtt:")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [c.LEVEL_3_1_1, c.LEVEL_5])
def test_a_clean_session_needs_nobody_who_is_away(level: int, qos: int) -> None:
    world = World()
    world.port.unanswered = lambda name: True
    client = world.client("c", level=level)
    assert client.subscribe(("t/#", qos)) == [qos]
    world.client("p").publish("t/a", b"1", qos)
    assert client.messages() == [("t/a", b"1")]
    again = world.client("c", level=level)
    assert client.closed, "taken over"
    assert not again.present


@pytest.mark.parametrize(
    ("fields", "comes_in"),
    [
        ({}, True),
        ({"clean": False}, False),
        ({"level": c.LEVEL_5}, True),
        ({"level": c.LEVEL_5, "clean": False}, False),
        ({"level": c.LEVEL_5, "properties": {p.SESSION_EXPIRY: 60}}, False),
    ],
)
def test_what_lasts_waits_for_its_group(fields: dict[str, object], comes_in: bool) -> None:
    world = World()
    world.port.unanswered = of_client_ids
    client = Client(world, level=fields.get("level", c.LEVEL_3_1_1))  # type: ignore[arg-type]
    client.send(Connect("c", **{"level": client.level, **fields}))  # type: ignore[arg-type]
    (answer,) = client.packets
    assert isinstance(answer, ConnAck)
    assert (answer.code == 0) is comes_in
    assert ("mqtt:c" in world.port.leases) is comes_in


def test_assigned_client_ids_are_those_of_groups_that_answer() -> None:
    world = World()
    world.port.unanswered = lambda name: slot_of(name) % 3 == 0
    for _ in range(30):
        client = Client(world).connect("", level=c.LEVEL_5, properties={p.SESSION_EXPIRY: 60})
        client_id = client.connack.properties[p.ASSIGNED_CLIENT_ID]
        assert not any(map(world.port.unanswered, names_of(client_id)))
        assert client.subscribe(("t/#", 2)) == [2]


def test_where_nobody_answers_an_assigned_client_id_is_refused_as_any_other() -> None:
    world = World()
    world.port.unanswered = of_client_ids
    client = Client(world, level=c.LEVEL_5)
    client.send(Connect("", level=c.LEVEL_5, properties={p.SESSION_EXPIRY: 60}))
    (answer,) = client.packets
    assert isinstance(answer, ConnAck)
    assert answer.code == 0x88


def test_a_gateway_that_starts_is_there_all_the_same() -> None:
    first = World()
    first.port.unanswered = lambda name: name.startswith("lease/mqtt-gateway:")
    assert World(port=first.port).gateway.ready
