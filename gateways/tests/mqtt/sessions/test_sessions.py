"""Sessions over the door: publish, subscribe, both kinds of sessions, restarts. Each runs with answers early, late and shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.port import Outcome
from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt import retained
from gantrymq_gateways.mqtt.messages import exchange
from gantrymq_gateways.mqtt.messages.deliver import FETCH_BYTES_MAX
from gantrymq_gateways.mqtt.tables import FILTER_TABLE
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    encode_publish_head,
)
from gateways.tests.mqtt.world import Client, World, will

MIB = 1 << 20
FAKE = ["immediate", "late", "shuffled"]
REAL = ["local", "remote"]


@pytest.fixture(params=FAKE)
def fake_world(request: pytest.FixtureRequest) -> World:
    """Over the port in memory: the test looks inside."""
    return World(request.param, seed=7)


@pytest.fixture(params=FAKE + REAL)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Over every port there is: the test sees what clients see."""
    world = World(request.param, seed=7, directory=tmp_path / "first")
    yield world
    world.close()


def test_publish_becomes_a_native_record(fake_world: World) -> None:
    fake_world.client("p").publish("factory/line1/temp", "21.5")
    (message,) = fake_world.port.log
    assert (message.topic, message.tag, message.body) == ("factory", "line1.temp", b"21.5")
    assert message.property_map() == {props.TAGS: "line1.temp", props.ORIGIN: "mqtt"}


def test_qos_0_and_retain_are_properties(fake_world: World) -> None:
    fake_world.client("p").publish("a", qos=0, retain=True)
    found = fake_world.port.log[0].property_map()
    assert found.pop(props.ROW).endswith(" a/")
    assert found == {props.ORIGIN: "mqtt", props.QOS: "0", props.RETAIN: "1"}


def test_pubacks_come_in_receive_order(fake_world: World) -> None:
    client = fake_world.client("p")
    for first in (1, 4):
        client.link.hand_over(b"".join([_publish(i) for i in range(first, first + 3)]))
    fake_world.settle()
    assert client.take() == [Ack(c.PUBACK, i) for i in range(1, 7)]
    assert [len(batch) for batch in fake_world.port.submitted] == [3, 3]


def _publish(packet_id: int, topic: bytes = b"t") -> bytes:
    return codec.encode_packet(Publish(topic, b"%d" % packet_id, 2, packet_id))


def test_live_messages_reach_clean_sessions(world: World) -> None:
    sub = world.client("s")
    assert sub.subscribe(("a/+/c", 0), ("a/#", 1), ("other", 2)) == [0, 1, 2]
    pub = world.client("p")
    pub.publish("a/b/c", "1")
    pub.publish("a", "2", qos=0)
    pub.publish("b", "3")
    got = sub.publishes()
    assert [(p.topic, p.payload, p.qos, p.retain, p.dup) for p in got] == [
        (b"a/b/c", b"1", 1, False, False),  # both filters match: once, at the higher QoS
        (b"a", b"2", 0, False, False),
    ]


def test_unsubscribe_ends_delivery(world: World) -> None:
    sub = world.client("s")
    sub.subscribe("a", "b")
    sub.unsubscribe("a", "unknown")
    pub = world.client("p")
    pub.publish("a")
    pub.publish("b")
    assert sub.messages() == [("b", b"x")]


def test_packets_pipelined_behind_connect(fake_world: World) -> None:
    client = fake_world.client()
    client.send(
        Connect("c"),
        Subscribe(1, [("t", 1)]),
        Publish(b"t", b"me", 2, 2),
        Publish(b"t", b"too", 0, 0),
        Disconnect(),
    )
    taken = client.take()
    assert taken[:2] == [ConnAck(0), SubAck(1, [1])] or fake_world.port.mode != "immediate"
    assert client.closed
    assert [m.body for m in fake_world.port.log] == [b"me", b"too"]


def test_persistent_session_gets_what_came_meanwhile(world: World) -> None:
    sub = world.client("s", clean=False)
    assert not sub.present
    sub.subscribe("a/#")
    sub.disconnect()
    pub = world.client("p")
    for i in range(5):
        pub.publish(f"a/{i}", str(i))
    sub = world.client("s", clean=False)
    assert sub.present
    assert sub.messages() == [(f"a/{i}", b"%d" % i) for i in range(5)]
    pub.publish("a/live", "6")
    assert sub.messages() == [("a/live", b"6")]


def test_persistent_session_survives_kill(world: World) -> None:
    sub = world.client("s", clean=False, acks=False)
    sub.subscribe("a/#", "a/+")
    pub = world.client("p")
    for i in range(3):
        pub.publish(f"a/{i}", str(i))
    first = sub.publishes()
    assert [p.payload for p in first] == [b"0", b"1", b"2"]
    sub.send(Ack(c.PUBACK, first[0].packet_id))
    world = world.restart()
    pub = world.client("p")
    pub.publish("a/3", "3")
    sub = world.client("s", clean=False)
    assert sub.present
    assert [(p.payload, p.dup) for p in sub.publishes()] == [(b"1", True), (b"2", True), (b"3", False)]
    world.restart().client("s", clean=False).take()
    again = world.restart().client("s", clean=False)
    assert again.messages() == []


def test_unacknowledged_come_again_with_dup_and_their_packet_id(world: World) -> None:
    sub = world.client("s", clean=False, acks=False)
    sub.subscribe("a")
    pub = world.client("p")
    pub.publish("a", "1")
    pub.publish("a", "2")
    sent = sub.publishes()
    sub.link.lose()
    world.settle()
    sub = world.client("s", clean=False)
    again = sub.publishes()
    assert [(p.payload, p.packet_id, p.dup) for p in again] == [(p.payload, p.packet_id, True) for p in sent]


def test_clean_connect_ends_the_stored_session(world: World) -> None:
    sub = world.client("s", clean=False)
    sub.subscribe("a")
    sub.disconnect()
    world.client("s").disconnect()
    world.client("p").publish("a")
    sub = world.client("s", clean=False)
    assert not sub.present
    assert sub.messages() == []


def test_overlapping_filters_of_a_persistent_session_deliver_once(fake_world: World) -> None:
    sub = fake_world.client("s", clean=False)
    sub.subscribe(("a/#", 0), ("a/b", 1), ("+/b", 0))
    pub = fake_world.client("p")
    for i in range(10):
        pub.publish("a/b", str(i))
        pub.publish("a/c", str(i))
    got = sub.publishes()
    assert [(p.topic, p.payload, p.qos) for p in got] == [
        (topic, b"%d" % i, qos) for i in range(10) for topic, qos in ((b"a/b", 1), (b"a/c", 0))
    ]
    assert all(not cursor.leased for cursor in fake_world.port.cursors.values())


def test_unsubscribing_one_of_two_overlapping_filters_loses_nothing(world: World) -> None:
    sub = world.client("s", clean=False)
    sub.subscribe("a/#", "a/b")
    sub.disconnect()
    pub = world.client("p")
    pub.publish("a/b", "1")
    sub = world.client("s", clean=False, acks=False)
    assert [p.payload for p in sub.publishes()] == [b"1"]
    sub.unsubscribe("a/#")
    sub.link.lose()
    world.settle()
    sub = world.client("s", clean=False)
    assert sub.messages() == [("a/b", b"1")]


def test_sessions_share_the_queue_of_a_filter(fake_world: World) -> None:
    one = fake_world.client("one", clean=False)
    two = fake_world.client("two", clean=False)
    one.subscribe("a/#")
    two.subscribe("a/#")
    assert len(fake_world.port.lights) == 1
    fake_world.client("p").publish("a/b")
    assert one.messages() == two.messages() == [("a/b", b"x")]
    one.unsubscribe("a/#")
    two.unsubscribe("a/#")
    fake_world.advance(50_000)
    assert fake_world.port.lights
    fake_world.advance(50_000)
    assert not fake_world.port.lights
    assert not fake_world.port.routes
    assert not fake_world.port.tables["mqtt_filter"]


def test_sessions_that_come_at_once_share_a_queue(fake_world: World) -> None:
    clients = [fake_world.client(f"s{i}", clean=False) for i in range(5)]
    for client in clients:
        client.link.hand_over(codec.encode_packet(Subscribe(1, [("a/#", 1)])))
    fake_world.settle()
    assert all(client.take() == [SubAck(1, [1])] for client in clients)
    assert len(fake_world.port.lights) == 1
    fake_world.client("p").publish("a")
    assert all(client.messages() == [("a", b"x")] for client in clients)


def test_long_topics_can_be_retained(world: World) -> None:
    topic = "first" * 60 + "/level/" + ("x" * 40 + "/") * 95
    world.client("p").publish(topic, "kept", retain=True)
    world = world.restart()
    sub = world.client("s")
    sub.subscribe("+/level/#")
    assert sub.messages() == [(topic, b"kept")]
    world.client("p").publish(topic, "live")
    assert sub.messages() == [(topic, b"live")]


def test_qos_0_subscription_of_a_persistent_session_keeps_nothing(world: World) -> None:
    sub = world.client("s", clean=False)
    sub.subscribe(("a", 0))
    sub.disconnect()
    pub = world.client("p")
    pub.publish("a", "missed")
    sub = world.client("s", clean=False)
    pub.publish("a", "live")
    assert sub.messages() == [("a", b"live")]


def test_takeover_closes_the_old_connection(world: World) -> None:
    watcher = world.client("w")
    watcher.subscribe("will/#")
    old = world.client("s", clean=False, acks=False, will=will())
    old.subscribe("a")
    world.client("p").publish("a", "1")
    assert len(old.publishes()) == 1
    new = world.client("s", clean=False)
    assert old.closed
    assert not new.closed
    assert new.present
    assert [(p.payload, p.dup) for p in new.publishes()] == [(b"1", True)]
    assert watcher.messages() == [("will/t", b"gone")]


def test_two_connects_at_once_leave_one(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    for client in clients:
        client.link.hand_over(_connect("same"))
    world.settle()
    assert [client.closed for client in clients] == [True, True, False]
    clients[2].subscribe("a")
    clients[2].publish("a")
    assert clients[2].messages() == [("a", b"x")]


def _connect(client_id: str, **fields: object) -> bytes:
    return codec.encode_packet(Connect(client_id, **fields))  # type: ignore[arg-type]


def test_will_is_published_on_every_end_but_disconnect(world: World) -> None:
    watcher = world.client("w")
    watcher.subscribe("will/t")
    world.client("a", will=will(payload=b"lost")).link.lose()
    world.client("b", will=will(payload=b"kept")).disconnect()
    world.client("c", will=will(payload=b"violation")).send_bytes(b"\xf0\x00")
    world.client("d", will=will(payload=b"eof")).link.peer_closes()
    world.client("e", will=will(payload=b"silent"), keep_alive_s=2)
    world.settle()
    assert [m[1] for m in watcher.messages()] == [b"lost", b"violation", b"eof"]
    world.advance(2_900)
    assert watcher.messages() == []
    world.advance(200)
    assert watcher.messages() == [("will/t", b"silent")]


def test_retained_will(world: World) -> None:
    world.client("a", will=will(retain=True)).link.lose()
    world.settle()
    sub = world.client("s")
    sub.subscribe("will/#")
    (got,) = sub.publishes()
    assert (got.payload, got.retain) == (b"gone", True)


def test_retained_messages(world: World) -> None:
    pub = world.client("p")
    live = world.client("live")
    live.subscribe("r/#")
    pub.publish("r/1", "old", retain=True)
    pub.publish("r/1", "new", retain=True)
    pub.publish("r/2", "zero", qos=0, retain=True)
    assert [(p.payload, p.retain) for p in live.publishes()] == [
        (b"old", False),
        (b"new", False),
        (b"zero", False),
    ]
    sub = world.client("s")
    sub.subscribe("r/#")
    assert sorted((p.topic, p.payload, p.qos, p.retain) for p in sub.publishes()) == [
        (b"r/1", b"new", 1, True),
        (b"r/2", b"zero", 0, True),
    ]
    sub.subscribe(("r/1", 0))  # [MQTT-3.8.4-3]: again for a repeated filter
    assert [(p.payload, p.qos) for p in sub.publishes()] == [(b"new", 0)]
    pub.publish("r/1", b"", retain=True)
    world = world.restart()
    sub = world.client("s")
    sub.subscribe("r/#")
    assert sub.messages() == [("r/2", b"zero")]


def test_retained_owed_to_a_persistent_session_survives_kill(world: World) -> None:
    world.client("p").publish("r", "kept", retain=True)
    sub = world.client("s", clean=False, acks=False)
    sub.subscribe("r")
    assert sub.messages() == [("r", b"kept")]
    world = world.restart()
    sub = world.client("s", clean=False)
    assert sub.messages() == [("r", b"kept")]
    sub.disconnect()
    assert world.client("s", clean=False).messages() == []


def test_other_doors_messages(world: World) -> None:
    sub = world.client("s")
    sub.subscribe("factory/#")
    world.native("factory", "line1.temp", b"1")
    world.native("factory", "", b"2")
    world.native("factory", "a%2Fb.%25.%C3%A4", b"3")
    assert sub.messages() == [("factory/line1/temp", b"1"), ("factory", b"2"), ("factory/a%2Fb/%/ä", b"3")]


def test_compressed_bodies_are_inflated(fake_world: World) -> None:
    import zlib

    import zstandard

    from gantrymq.model.message import Message

    sub = fake_world.client("s")
    sub.subscribe("t")
    zstd = zstandard.ZstdCompressor().compress(b"zstd" * 100)
    for body, kind in ((zlib.compress(b"hello" * 100), 0), (b"broken", 0), (zstd, sysflag.COMPRESSION_ZSTD)):
        message = Message("t", body)
        message.sys_flag = sysflag.COMPRESSED | kind
        fake_world.port.submit([message], None, lambda token, result: None)
    fake_world.settle()
    assert sub.messages() == [("t", b"hello" * 100), ("t", b"zstd" * 100)]


def test_session_expires(fake_world: World) -> None:
    sub = fake_world.client("s", clean=False)
    sub.subscribe("a")
    sub.disconnect()
    connected = fake_world.client("here", clean=False)
    fake_world.clock.advance(86_400_000)
    fake_world.advance(20_000)
    assert set(fake_world.port.tables["mqtt_session"]) == {"here"}
    assert not connected.closed
    assert not fake_world.client("s", clean=False).present


def test_what_is_retained_while_a_subscription_is_made_is_owed_too() -> None:
    """It came behind the look at what is retained and before the place in the queue."""
    world = World("late")
    world.client("warm", clean=False).subscribe("a")
    publisher = world.client("p")
    sub = world.client("s", clean=False, acks=False)
    world.port.calls.clear()
    sub.link.hand_over(codec.encode_packet(Subscribe(1, [("a", 1)])))
    while "put_if" not in world.port.calls:
        world.turn.run()
        world.port.step()
    assert "open_cursor" not in world.port.calls
    row = world.port.pending.pop()
    publisher.publish("a", "kept", retain=True)
    world.port.pending.append(row)
    world.settle()
    assert (b"kept", True) in [(publish.payload, publish.retain) for publish in sub.publishes()]
    world = world.restart()
    assert world.client("s", clean=False).messages() == [("a", b"kept")]


def test_slow_persistent_consumer_is_windowed(world: World) -> None:
    world = world.again(inflight_max=10)
    sub = world.client("s", clean=False, acks=False)
    sub.subscribe("a")
    pub = world.client("p")
    for i in range(30):
        pub.publish("a", str(i))
    seen: list[Publish] = []
    while True:
        got = sub.publishes()
        if not got:
            break
        assert len(got) <= 10
        seen += got
        sub.send(*[Ack(c.PUBACK, p.packet_id) for p in got])
    assert [p.payload for p in seen] == [b"%d" % i for i in range(30)]
    assert not any(p.dup for p in seen)


def test_slow_clean_consumer_is_read_back_from_the_log(fake_world: World) -> None:
    fake_world = fake_world.again(inflight_max=10)
    sub = fake_world.client("s", acks=False)
    sub.subscribe("a")
    pub = fake_world.client("p")
    for i in range(35):
        pub.publish("a", str(i))
    seen: list[bytes] = []
    while got := sub.publishes():
        assert len(got) <= 10
        seen += [p.payload for p in got]
        sub.send(*[Ack(c.PUBACK, p.packet_id) for p in got])
    assert seen == [b"%d" % i for i in range(35)]
    assert "read" in fake_world.port.calls


def test_clean_consumer_that_falls_too_far_behind_is_cut_off(world: World) -> None:
    world = world.again(inflight_max=1, volatile_entries_max=3)
    sub = world.client("s", acks=False)
    sub.subscribe("a")
    other = world.client("o")
    other.subscribe("a")
    pub = world.client("p")
    for i in range(6):
        pub.publish("a", str(i))
    assert sub.closed
    assert len(other.messages()) == 6


@pytest.mark.parametrize(
    ("full", "expected"),
    [("drop_oldest", [0, 4, 5]), ("drop_newest", [0, 1, 2]), ("disconnect", [0])],
)
def test_a_clean_consumer_is_bounded_in_bytes(world: World, full: str, expected: list[int]) -> None:
    """Each record has some 10,200 bytes; one that is larger than the limit by itself is taken."""
    world = world.again(inflight_max=1, volatile_bytes_max=25_000, volatile_entries_full=full)
    sub = world.client("s", acks=False)
    sub.subscribe("a")
    pub = world.client("p")
    for i in range(6):
        pub.publish("a", bytes((i,)) * 10_000)
    assert sub.closed is (full == "disconnect")
    seen: list[int] = []
    while got := sub.publishes():
        seen += [p.payload[0] for p in got]
        sub.send(*[Ack(c.PUBACK, p.packet_id) for p in got])
    assert seen == expected
    if not sub.closed:
        for number, size in ((6, 1), (7, 100_000)):
            pub.publish("a", bytes((number,)) * size)
        sizes: list[int] = []
        while got := sub.publishes():
            sizes += [len(p.payload) for p in got]
            sub.send(*[Ack(c.PUBACK, p.packet_id) for p in got])
        assert sizes == [1, 100_000]


@pytest.mark.parametrize(
    ("full", "expected"), [("drop_oldest", [b"0", b"3", b"4", b"5"]), ("drop_newest", [b"0", b"1", b"2", b"3"])]
)
def test_a_clean_consumer_that_falls_too_far_behind_loses_messages(
    world: World, full: str, expected: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    world = world.again(inflight_max=1, volatile_entries_max=3, volatile_entries_full=full)
    sub = world.client("s", acks=False)
    sub.subscribe("a")
    pub = world.client("p")
    for i in range(6):
        pub.publish("a", str(i), qos=1 + i % 2)
    assert world.gateway.backlog_dropped.value == 2
    assert sum("messages are dropped" in line for line in caplog.messages) == 1
    seen: list[bytes] = []
    while got := sub.publishes():
        seen += [p.payload for p in got]
        sub.send(*[Ack(c.PUBACK, p.packet_id) for p in got])
    assert seen == expected


def test_a_slow_reader_keeps_qos_1_and_loses_qos_0(world: World) -> None:
    world = world.again(outbound_bytes_max=MIB)
    sub = world.client("s")
    sub.subscribe("a", "z")
    sub.link.waiting = MIB
    pub = world.client("p")
    for _ in range(5):
        pub.publish("a", b"q" * 2000)
    for _ in range(5):
        pub.publish("z", b"z", qos=0)
    assert len(sub.publishes()) <= 1  # What goes out before the first write tells.
    sub.link.drain()
    world.settle()
    assert len(sub.publishes()) >= 4
    assert world.gateway.fanout.dropped == 5


@pytest.mark.parametrize(("count", "size"), [(10_000, 256), (100, 65_536), (1, 4 * MIB)])
def test_a_burst_of_qos_0_in_one_turn_arrives_whole(world: World, count: int, size: int) -> None:
    """What our own turn makes of it says nothing of the reader."""
    sub = world.client("s")
    sub.subscribe("a")
    pub = world.client("p")
    pub.link.hand_over((encode_publish_head(b"a", size, 0) + b"x" * size) * count)
    world.settle()
    assert len(sub.publishes()) == count
    assert world.gateway.fanout.dropped == 0


def test_qos_0_beyond_the_limit_is_dropped_and_counted(world: World) -> None:
    world = world.again(outbound_bytes_max=MIB)
    sub = world.client("s")
    sub.subscribe("a")
    sub.link.waiting = MIB - 250_000
    pub = world.client("p")
    for _ in range(3):  # three turns, and nothing is taken
        pub.publish("a", b"x" * 100_000, qos=0)
        sub.link.waiting += 100_005
    assert len(sub.publishes()) == 2
    assert world.gateway.fanout.dropped == 1


def test_qos_0_is_dropped_early_when_the_process_is_short_of_memory(world: World) -> None:
    sub = world.client("s")
    sub.subscribe("a")
    sub.link.waiting = FETCH_BYTES_MAX + 1
    pub = world.client("p")
    pub.publish("a", b"x" * 1000, qos=0)
    assert len(sub.publishes()) == 1
    sub.link.pressed = True
    pub.publish("a", b"x" * 1000, qos=0)
    assert world.gateway.fanout.dropped == 1


def test_settled_in_one_call_per_turn(fake_world: World) -> None:
    sub = fake_world.client("s", clean=False)
    sub.subscribe("a")
    pub = fake_world.client("p")
    pub.link.hand_over(b"".join([_publish(i, b"a") for i in range(1, 21)]))
    fake_world.settle()
    assert len(sub.publishes()) == 20
    assert fake_world.port.calls.count("settle") <= 2
    assert Outcome.ACK == 0


@pytest.mark.parametrize("failing", ["put_if", "open_cursor"])
def test_a_connect_that_fails_holds_no_lease(failing: str) -> None:
    """Else the session of a client that gives up would never expire."""
    world = World(session_expiry_s=60)
    client = world.client("c", clean=False)
    client.subscribe("t")
    client.disconnect()
    world.port.fail_next(failing, ErrorCode.UNAVAILABLE)
    again = Client(world)
    again.send(Connect("new" if failing == "put_if" else "c", clean=False))
    (answer,) = again.take()
    assert isinstance(answer, ConnAck)
    assert answer.code == 3
    assert [name for name in world.port.leases if name.startswith("mqtt:")] == []
    world.advance(200_000)
    assert len(world.gateway.lifecycle.table) == 0


def test_a_queue_that_begins_anew_stays(fake_world: World) -> None:
    sub = fake_world.client("s", clean=False)
    sub.subscribe("a")
    sub.disconnect()
    (light,) = fake_world.port.lights
    fake_world.port.delete_light(light, None, lambda token, result: None)
    fake_world.port.put("mqtt_filter", [(str(light), None)], None, lambda token, result: None)
    fake_world.settle()
    sub = fake_world.client("s", clean=False, keep_alive_s=0)
    assert sub.present
    for _ in range(10):
        fake_world.advance(15_000)
    fake_world.client("p").publish("a")
    assert sub.messages() == [("a", b"x")]


def test_a_subscription_whose_queue_is_gone_begins_anew_when_it_is_made_again(fake_world: World) -> None:
    sub = fake_world.client("s", clean=False)
    sub.subscribe("a", "b")
    light = min(fake_world.port.lights)
    fake_world.port.delete_light(light, None, lambda token, result: None)
    fake_world.settle()
    assert sub.subscribe("a") == [1]
    fake_world.client("p").publish("a")
    assert sub.messages() == [("a", b"x")]
    fake_world = fake_world.restart()
    fake_world.client("p").publish("a", "later")
    assert fake_world.client("s", clean=False).messages() == [("a", b"later")]


@pytest.mark.parametrize("failing", ["put_if", "open_cursor", "delete_cursor"])
def test_a_session_that_could_not_be_forgotten_expires_later(failing: str) -> None:
    world = World(session_expiry_s=60)
    sub = world.client("s", clean=False)
    sub.subscribe("a")
    sub.disconnect()
    world.port.fail_next(failing, ErrorCode.BUSY)
    for _ in range(20):
        world.advance(15_000)
    assert not world.port.failures[failing]
    assert world.port.tables["mqtt_session"] == {}
    assert [name for name in world.port.leases if name.startswith("mqtt:")] == []


@pytest.mark.parametrize("table", [FILTER_TABLE, retained.TABLE, exchange.TABLE])
def test_a_session_that_another_gateway_stores_during_the_start_is_known(table: str) -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe("a")
    client.disconnect()
    port = world.port.crash(mode="late")
    row = port.tables["mqtt_session"].pop("c")
    watch_table = port.watch_table

    def watch(name: str, on_change: Any, token: object, on_done: Any) -> None:
        if name == table:
            port.tables["mqtt_session"]["c"] = row
            for watcher in port.table_watchers["mqtt_session"]:
                watcher("c", row)
        watch_table(name, on_change, token, on_done)

    port.watch_table = watch  # type: ignore[method-assign]
    again = World("late", port=port)
    assert len(again.gateway.lifecycle.table) == 1
    assert again.client("c", clean=False).present
