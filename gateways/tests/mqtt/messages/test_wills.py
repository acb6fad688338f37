"""Wills that find no room in the log: tried again in batches, bounded in number, bytes and time."""

from __future__ import annotations

import logging

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.messages import wills
from gantrymq_gateways.mqtt.retained import TABLE, row_value
from gantrymq_gateways.mqtt.wire.codec import ConnAck, Connect, Disconnect, Subscribe, encode_packet
from gateways.tests.mqtt.world import Client, World, will


def lose(world: World, count: int, payload: bytes = b"gone", retain: bool = False) -> None:
    """So many clients connect and are lost, all of them while nothing can be stored."""
    for number in range(count):
        topic = f"will/{number}"
        world.client(f"c{number}", will=will(topic, payload + b"%d" % number, retain=retain)).link.lose()
    world.settle()


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_wills_that_wait_are_one_batch_per_attempt(mode: str) -> None:
    world = World(mode)
    world.port.refuse = lambda message: ErrorCode.BUSY
    lose(world, 50)
    assert world.gateway.wills.count == 50
    world.port.submitted.clear()
    for _ in range(20):
        world.advance(100)
    assert 10 <= len(world.port.submitted) <= 20
    assert {len(batch) for batch in world.port.submitted} == {50}
    world.port.refuse = lambda message: None
    world.advance(200)
    assert [message.body for message in world.port.log] == [b"gone%d" % number for number in range(50)]
    assert (world.gateway.wills.count, world.gateway.wills.bytes) == (0, 0)


def test_what_waits_goes_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills, "BATCH_WILLS_MAX", 8)
    world = World()
    world.port.refuse = lambda message: ErrorCode.STORE_FULL
    lose(world, 7)
    monkeypatch.setattr(wills, "BATCH_BYTES_MAX", world.gateway.wills.bytes * 3 // 7)
    lose(world, 2, b"x" * 1000)
    world.port.submitted.clear()
    world.port.refuse = lambda message: None
    world.advance(400)
    assert [len(batch) for batch in world.port.submitted] == [3, 3, 1, 1, 1]
    assert len(world.port.log) == 9


@pytest.mark.parametrize(("name", "limit"), [("WAITING_WILLS_MAX", 10), ("WAITING_BYTES_MAX", 300)])
def test_more_wills_than_may_wait_are_lost_with_a_line(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wills, name, limit)
    world = World()
    world.port.refuse = lambda message: ErrorCode.BUSY
    lose(world, 30)
    kept = world.gateway.wills.count
    assert kept == 10 if name == "WAITING_WILLS_MAX" else 2 <= kept < 30
    assert world.gateway.wills.bytes <= wills.WAITING_BYTES_MAX
    assert sum("its will was not stored" in line for line in caplog.messages) == 30 - kept
    world.port.refuse = lambda message: None
    world.advance(1000)
    assert len(world.port.log) == kept
    assert world.gateway.wills.bytes == 0
    lose(world, 1)
    assert world.port.log[-1].body == b"gone0"


@pytest.mark.parametrize("busy_retry_ms", [10, 100, 7_000])
def test_a_will_is_given_up_after_half_a_minute(busy_retry_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    """Not after a number of attempts: `mqtt.busy_retry_ms` may be anything."""
    world = World(busy_retry_ms=busy_retry_ms)
    world.port.refuse = lambda message: ErrorCode.BUSY
    lose(world, 3)
    world.advance(wills.WILL_RETRY_MS - 1_000)
    assert world.gateway.wills.count == 3
    with caplog.at_level(logging.WARNING):
        world.advance(1_100 + busy_retry_ms)
    assert world.gateway.wills.count == 0
    assert [line for line in caplog.messages if "3 wills were not stored" in line]


def test_a_stop_and_a_refusal_that_stays_end_the_attempts(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.port.refuse = lambda message: ErrorCode.BUSY
    lose(world, 3)
    world.port.refuse = lambda message: ErrorCode.TOPIC_LIMIT if message.body == b"gone1" else None
    world.advance(200)
    assert [message.body for message in world.port.log] == [b"gone0", b"gone2"]
    assert sum("its will was not stored" in line for line in caplog.messages) == 1
    world.port.refuse = lambda message: ErrorCode.BUSY
    lose(world, 3)
    world.gateway.stop()
    world.port.submitted.clear()
    world.advance(1_000)
    assert world.port.submitted == []
    assert "3 wills were not stored, first that of" in caplog.messages[-1]


@pytest.mark.parametrize("mode", ["immediate", "late"])
@pytest.mark.parametrize("code", [ErrorCode.BUSY, ErrorCode.STORE_FULL])
def test_a_will_that_is_tried_again_retains_what_it_says(mode: str, code: ErrorCode) -> None:
    world = World(mode)
    world.port.refuse = lambda message: code
    lose(world, 3, retain=True)
    assert world.gateway.wills.count == 3
    assert len(world.gateway.kept) == 0
    for _ in range(4):
        world.advance(100)
    world.port.refuse = lambda message: None
    for _ in range(20):
        world.advance(100)
    assert world.client("new").subscribe("will/+") == [1]
    assert sorted(world.clients[-1].messages()) == [(f"will/{n}", b"gone%d" % n) for n in range(3)]
    assert (world.gateway.wills.count, world.gateway.wills.bytes, world.gateway.kept.owed) == (0, 0, {})


def test_a_retained_will_is_given_up_after_half_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.port.refuse = lambda message: ErrorCode.STORE_FULL
    lose(world, 1, retain=True)
    world.advance(wills.WILL_RETRY_MS - 1_000)
    assert world.gateway.wills.count == 1
    world.advance(1_200)
    assert (world.gateway.wills.count, world.gateway.kept.owed, len(world.gateway.kept)) == (0, {}, 0)
    assert "its will was not stored: no room for 30 s" in caplog.text


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_a_retained_will_that_waits_yields_to_what_came_later(mode: str) -> None:
    """The client is back and says so: what its topic retains must not fall back to the will."""
    world = World(mode)
    world.port.refuse = lambda message: ErrorCode.STORE_FULL if message.body == b"gone0" else None
    lose(world, 1, retain=True)
    assert world.gateway.wills.count == 1
    world.client("p").publish("will/0", b"back", retain=True)
    world.port.refuse = lambda message: None
    world.advance(1_000)
    client = world.client("new")
    client.subscribe("will/+")
    assert client.messages() == [("will/0", b"back")]
    assert [message.body for message in world.port.log] == [b"back", b"gone0"]
    assert (world.gateway.wills.count, world.gateway.kept.owed) == (0, {})


def test_a_retained_will_yields_to_another_gateway() -> None:
    world = World()
    world.port.refuse = lambda message: ErrorCode.STORE_FULL
    lose(world, 1, retain=True)
    row = ("will/0", row_value("will/0", b"back", 1))
    world.port.put(TABLE, [row], None, lambda token, result: None)
    world.settle()
    world.port.refuse = lambda message: None
    world.advance(1_000)
    assert [message.payload for message in world.gateway.kept.match("will/0")] == [b"back"]
    assert [message.body for message in world.port.log] == [b"gone0"]


@pytest.mark.parametrize("topic", ["/" * 201, "t/" + "x" * 5000])
def test_a_will_that_could_not_be_published_is_refused_with_the_connect(topic: str) -> None:
    """What a PUBLISH may not name, a will may not: levels that every search would walk, a tag that no record holds."""
    client = Client(World())
    client.send(Connect("c", will=will(topic)))
    assert client.packets == [ConnAck(5)]
    assert client.closed


@pytest.mark.parametrize("clean", [True, False])
def test_a_disconnect_behind_a_subscribe_under_way_discards_the_will(clean: bool) -> None:
    """[MQTT-3.14.4-3]: it came before the connection was lost."""
    world = World()
    client = world.client("c", clean=clean, will=will())
    many = Subscribe(1, [(f"t/{number}", 1) for number in range(500)])
    client.link.hand_over(encode_packet(many) + encode_packet(Disconnect()))
    assert not client.closed
    client.link.lose()
    world.settle()
    assert world.port.log == []
