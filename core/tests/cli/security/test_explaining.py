"""Questions in a door's words."""

from __future__ import annotations

import pytest

from gantrymq.cli.security.explaining import Door, question


@pytest.mark.parametrize(
    ("door", "resource", "topic", "asked"),
    [
        (None, "topic:orders", "", {"resource": "topic:orders"}),
        (None, "mqtt:plant/7", "", {"resource": "mqtt:plant/7", "topic": "plant"}),
        (Door.MQTT, "plant/+/#", "", {"resource": "mqtt:plant/+/#", "topic": "plant"}),
        (Door.MQTT, "mqtt:a b/7", "", {"resource": "mqtt:a b/7", "topic": "a%20b"}),
        (Door.MQTT, "+/7", "", {"resource": "mqtt:+/7", "topic": ""}),
        (Door.MQTT, "$share/g/plant/7", "", {"resource": "mqtt:plant/7", "topic": "plant"}),
        (Door.MQTT, "plant/7", "all", {"resource": "mqtt:plant/7", "topic": "all"}),
        (Door.CLOUDEVENTS, "orders", "", {"resource": "topic:orders"}),
        (Door.REMOTING, "group:readers", "", {"resource": "group:readers"}),
        (Door.AMQP, "queue:q", "", {"resource": "queue:q", "vhost": "/v"}),
    ],
)
def test_questions(door: Door | None, resource: str, topic: str, asked: dict[str, str]) -> None:
    assert question(door, "pub", resource, "/v", topic) == {"action": "pub"} | asked
