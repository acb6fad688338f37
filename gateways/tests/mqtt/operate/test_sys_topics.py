"""`$SYS/broker/...`: what a gateway says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt import retained
from gantrymq_gateways.mqtt.operate.sys_topics import Load
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.packets import PingReq, Publish
from gateways.tests.mqtt.world import Client, World

ROOT = "$SYS/broker/"


@pytest.fixture(params=["immediate", "late", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=5, directory=tmp_path / "first")
    yield world
    world.close()


def values(client: Client) -> dict[str, str]:
    """Names and values of what arrived; every topic came once."""
    found = client.messages()
    assert all(topic.startswith(ROOT) for topic, _ in found)
    assert len(dict(found)) == len(found)
    return {topic.removeprefix(ROOT): payload.decode() for topic, payload in found}


def test_a_subscriber_finds_the_present_values_at_once(world: World) -> None:
    world.client("p").publish("t/a", "12345", retain=True)
    world.advance(10_000)
    reader = world.client("r")
    reader.subscribe("$SYS/#")
    packets = reader.publishes()
    assert {(p.flags & 1, p.qos) for p in packets} == {(1, 0)}
    found = {p.topic.decode().removeprefix(ROOT): p.payload.decode() for p in packets}
    assert found["version"].startswith("gantrymq version ")
    assert found["uptime"] == "10 seconds"
    assert found["clients/connected"] == "1"  # the reader came after the values
    assert found["retained messages/count"] == "1"
    assert (found["publish/messages/received"], found["publish/bytes/received"]) == ("1", "5")
    assert float(found["load/publish/received/1min"]) > float(found["load/publish/received/15min"]) > 0
    assert len([name for name in found if name.startswith("load/")]) == 9 * 3


def test_afterwards_it_gets_what_changed(world: World) -> None:
    reader = world.client("r")
    reader.subscribe(f"{ROOT}uptime", f"{ROOT}clients/+", f"{ROOT}#")
    reader.take()
    other = world.client("o")
    world.advance(10_000)
    packets = reader.publishes()
    assert {p.flags for p in packets} == {0}  # QoS 0, not retained: the subscription is not new
    names = [p.topic.decode().removeprefix(ROOT) for p in packets]
    assert len(set(names)) == len(names), "filters overlap: each value is sent once"
    assert {"uptime", "clients/connected", "clients/maximum"} <= set(names)
    assert "version" not in names
    other.disconnect()
    world.advance(10_000)
    assert (found := values(reader))["clients/connected"] == "1"
    assert "clients/maximum" not in found
    reader.unsubscribe(f"{ROOT}uptime", f"{ROOT}#")
    world.client("another")
    world.advance(10_000)
    assert values(reader) == {"clients/connected": "2", "clients/total": "2"}
    reader.unsubscribe(f"{ROOT}clients/+")
    world.advance(10_000)
    assert reader.messages() == []


def test_neither_hash_nor_plus_sees_them_and_nothing_is_stored(world: World) -> None:
    reader = world.client("r", clean=False)
    reader.subscribe("#", "+/#", "+/broker/uptime", "+/+/uptime", "$SYS/broker/uptime")
    assert list(values(reader)) == ["uptime"]
    world.advance(10_000)
    assert list(values(reader)) == ["uptime"]
    rows: dict[str, bytes] = {}
    world.broker_port.watch_table(
        retained.TABLE, lambda key, value: None, None, lambda token, result: rows.update(result)
    )
    world.settle()
    assert rows == {}
    assert len(world.gateway.kept) == 0


def test_nobody_else_may_publish_there(world: World) -> None:
    client = world.client("p")
    client.send(Publish(f"{ROOT}uptime".encode(), b"never", 1, 0))
    assert client.closed


def test_a_kept_session_is_told_when_it_comes_back(world: World) -> None:
    reader = world.client("r", clean=False)
    reader.subscribe(f"{ROOT}clients/disconnected")
    reader.disconnect()
    world.advance(10_000)
    again = world.client("r", clean=False)
    assert again.present
    world.advance(10_000)
    assert values(again) == {"clients/disconnected": "0"}


def test_options_of_a_subscription_hold() -> None:
    world = World("immediate")
    reader = world.client("r", level=c.LEVEL_5)
    reader.subscribe((f"{ROOT}uptime", c.OPTION_RETAIN_AS_PUBLISHED | 2))
    reader.take()
    world.advance(10_000)
    assert [(p.flags, p.payload) for p in reader.publishes()] == [(1, b"10 seconds")]


def test_packets_are_counted() -> None:
    world = World("immediate")
    live, kept, sender = world.client("live"), world.client("kept", clean=False), world.client("s")
    live.subscribe("t/#")
    kept.subscribe("t/#", "u")
    world.advance(10_000)
    before = world.gateway.counts
    ins, others, outs, sizes = before.packets_in, before.others_out, before.published_out, before.published_bytes_out
    sender.publish("t/a", "abc", qos=1)
    sender.publish("t/a", "de", qos=0)
    sender.send(PingReq())
    counts = world.gateway.counts
    assert counts.packets_in - ins == 2 + 1 + 2  # PUBLISH, PINGREQ, and two PUBACKs of the subscribers
    assert counts.others_out - others == 2  # PUBACK, PINGRESP
    assert (counts.published_out - outs, counts.published_bytes_out - sizes) == (4, 10)
    assert (counts.connects, counts.sockets) == (3, 3)
    reader = world.client("r")
    world.advance(10_000)
    reader.subscribe(f"{ROOT}subscriptions/count", f"{ROOT}clients/#")
    assert values(reader) == {
        "subscriptions/count": "3",
        "clients/connected": "4",
        "clients/disconnected": "0",
        "clients/total": "4",
        "clients/maximum": "4",
    }


def test_an_interval_of_0_says_nothing_and_another_is_kept() -> None:
    world = World("immediate", sys_interval_s=0)
    reader = world.client("r")
    reader.subscribe("$SYS/#")
    world.advance(60_000)
    assert reader.messages() == []
    world = World("immediate", sys_interval_s=3)
    reader = world.client("r")
    reader.subscribe(f"{ROOT}uptime")
    reader.take()
    world.advance(9_000)
    assert [text for _, text in reader.messages()] == [b"3 seconds", b"6 seconds", b"9 seconds"]


def test_topic_levels_and_rules_change_nothing() -> None:
    world = World("immediate", topic_levels=3, topic_rules="devices/=fleet")
    reader = world.client("r")
    assert reader.subscribe(f"{ROOT}uptime", "$SYS/#") == [1, 1]
    assert f"{ROOT}uptime" in dict(reader.messages())


def test_very_many_subscribers_are_told_over_several_turns() -> None:
    world = World("immediate")
    readers = [world.client(f"r{i}") for i in range(80)]
    for reader in readers:
        reader.subscribe("$SYS/#")
        reader.take()
    world.wheel.advance(10_000)
    assert not all(reader.link.take() for reader in readers), "not all in one turn"
    world.settle()
    for reader in readers:
        reader.take()
    world.advance(10_000)
    assert all("uptime" in values(reader) for reader in readers)


def test_the_broker_comes_back() -> None:
    world = World("immediate")
    world.client("r").subscribe("$SYS/#")
    world.port.lose()
    world.settle()
    world.port.return_()
    world.settle()
    reader = world.client("again")
    reader.subscribe(f"{ROOT}version")
    assert list(values(reader)) == ["version"]


def test_averages_rise_and_fall() -> None:
    load = Load()
    for minute in range(1, 7):
        for step in range(6):
            load.count((minute - 1) * 60 + (step + 1) * 10, 10)
    one, five, fifteen = load.rates
    assert 59 < one < 60
    assert 40 < five < 43  # 60 * (1 - exp(-6 / 5))
    assert 18 < fifteen < 21
    load.count(360, 60)
    assert 21 < load.rates[0] < 23
