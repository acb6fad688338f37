"""Clients that come and go, as messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.operate import events
from gantrymq_gateways.mqtt.wire import constants as c
from gateways.tests.mqtt.world import Client, World


def told(watcher: Client) -> list[tuple[str, dict[str, Any]]]:
    return [(topic, json.loads(payload)) for topic, payload in watcher.messages()]


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_coming_and_going(mode: str) -> None:
    world = World(mode, events_topic="events")
    watcher = world.client("w")
    watcher.subscribe("events/clients/+/+")
    world.client("a", user_name="u", keep_alive_s=30).disconnect()
    ((_, here), (topic, gone)) = told(watcher)
    expected = {"clientid": "a", "proto_ver": 4, "keepalive": 30, "clean_start": True, "session_present": False}
    assert expected.items() <= here.items()
    assert here["connected_at"] == here["ts"] == world.clock.now_ms()
    assert (topic, gone["clientid"], gone["reason"]) == ("events/clients/a/disconnected", "a", "disconnect")
    Client(world, level=c.LEVEL_5).connect("b/+ü", clean=False).link.lose()
    world.settle()
    assert [(name, facts["clientid"]) for name, facts in told(watcher)] == [
        ("events/clients/b%2F%2B%C3%BC/connected", "b/+ü"),
        ("events/clients/b%2F%2B%C3%BC/disconnected", "b/+ü"),
    ]
    world.client("c")
    world.client("c")
    reasons = [facts.get("reason") for _, facts in told(watcher)]
    assert reasons == [None, "session_taken_over", None]


def test_nobody_is_told_by_default() -> None:
    world = World()
    world.client("a").disconnect()
    assert world.port.log == []


def test_who_is_refused_neither_came_nor_went() -> None:
    world = World(events_topic="events", connections_max=1)
    world.client("a")
    refused = world.client()
    refused.send_bytes(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01b")
    assert [message.tag for message in world.port.log] == ["clients.a.connected"]


def test_what_cannot_be_stored_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world = World(events_topic="events")
    world.port.refuse = lambda message: ErrorCode.STORE_FULL
    world.client("a")
    assert world.gateway.events.dropped.value == 1
    assert "1 events of clients could not be stored" in caplog.text
    monkeypatch.setattr(events, "WAITING_MAX", 0)
    world.client("b")
    assert world.gateway.events.dropped.value == 2


@pytest.mark.parametrize("topic", ["a/b", "$SYS", "x" * 81, "a b"])
def test_what_is_no_first_level(topic: str) -> None:
    with pytest.raises(ValueError, match="events_topic"):
        MqttConfig(events_topic=topic)
