"""The door's edges: refusals, limits, back-pressure, a broker that fails or goes away, and what ends up in the log file."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.model.errors import ErrorCode
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell
from gantrymq_gateways.mqtt.messages.publish import UNACKED_MAX
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Ack, Connect, Publish, SubAck, Subscribe
from gantrymq_gateways.mqtt.wire.reasons import REFUSED_UNAVAILABLE
from gateways.tests.fakeport import FakePort
from gateways.tests.mqtt import vectors
from gateways.tests.mqtt.world import World, will


@pytest.mark.parametrize(
    ("data", "answer"), [v[1:] for v in vectors.REFUSED_CONNECT], ids=[v[0] for v in vectors.REFUSED_CONNECT]
)
def test_refused_connects(data: bytes, answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    client = World().client()
    client.link.hand_over(data + b"\xc0\x00")
    client.world.turn.run_until_quiet()
    assert client.link.take() == answer
    assert client.closed
    assert [r.args[0] for r in caplog.records if isinstance(r.args, tuple)] == [client.link.peer]
    assert client.door.session is None


@pytest.mark.parametrize("data", [v[1] for v in vectors.MALFORMED], ids=[v[0] for v in vectors.MALFORMED])
def test_malformed_packets_disturb_nobody_else(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    good = world.client("good")
    good.subscribe("t")
    bad = world.client("bad")
    bad.send_bytes(codec.encode_packet(Publish(b"t", b"before", 2, 9)) + data)
    assert bad.closed
    assert good.messages()[0] == ("t", b"before")
    assert [r.args[0] for r in caplog.records if isinstance(r.args, tuple)] == [bad.link.peer]
    good.publish("t")
    assert good.messages() == [("t", b"x")]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8), st.booleans())
def test_any_bytes_close_at_worst(pieces: list[bytes], connected: bool) -> None:
    world = World()
    client = world.client()
    if connected:
        client.connect("x")
    for piece in pieces:
        client.send_bytes(piece)


def test_strangers_from_other_machines_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    client = World().client()
    client.link.peer_is_loopback = False
    client.send(Connect("c", user_name="u", password=b"p"))
    assert client.packets == [codec.ConnAck(5)]
    assert client.closed
    assert "mqtt.allow_anonymous=true lets them in" in caplog.text
    client = World(allow_anonymous=True).client()
    client.link.peer_is_loopback = False
    client.send(Connect("c"))
    assert client.packets == [codec.ConnAck(0)]


def test_user_name_and_password_are_welcome_on_loopback() -> None:
    World().client("c", user_name="any", password=b"thing")


def test_clients_without_id_get_different_ones() -> None:
    world = World()
    for _ in range(2):
        client = world.client()
        client.send(Connect(""))
        assert not client.closed
    assert len(world.gateway.lifecycle.live) == 2


@pytest.mark.parametrize("topic", ["$SYS/a", "rmq_sys_gantry_table", "%DLQ%x"])
def test_publishing_to_the_system_closes(topic: str) -> None:
    world = World()
    client = world.client("c")
    client.send(Publish(b"ok", b"1", 2, 1), Publish(topic.encode(), b"x", 2, 2), Publish(b"ok", b"2", 2, 3))
    assert client.closed
    assert [m.body for m in world.port.log] == [b"1"]


def test_subscriptions_that_are_refused() -> None:
    world = World(subscriptions_max=2)
    world.port.fail_next("ensure_topic", ErrorCode.TOPIC_LIMIT)
    client = world.client("c")
    assert client.subscribe("limit", "rmq_sys_gantry_table", "$share/g/", "/".join("a" * 202)) == [0x80] * 4
    assert client.subscribe("a", "b", "c", "a") == [1, 1, 0x80, 1]
    kept = world.client("k", clean=False)
    assert kept.subscribe("a", "b", "c", "a") == [1, 1, 0x80, 1]


def test_subscribing_makes_the_topic() -> None:
    world = World()
    world.client("c").subscribe("made/+", "+/x", "#")
    assert set(world.port.topic_queues) == {"made"}


def test_a_refused_message_closes_its_publisher_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World("late")
    world.port.refuse = lambda m: ErrorCode.TOPIC_LIMIT if m.topic == "bad" else None
    other = world.client("o")
    client = world.client("c")
    client.send(Publish(b"ok", b"", 2, 1), Publish(b"bad", b"", 2, 2))
    assert client.closed
    assert "limit of topics" in caplog.text
    other.publish("ok")


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
def test_busy_pauses_and_tries_again(mode: str) -> None:
    world = World(mode)
    busy = True
    world.port.refuse = lambda m: ErrorCode.BUSY if busy and m.body != b"1" else None
    client = world.client("c")
    client.send(*[Publish(b"t", b"%d" % i, 2, i) for i in range(1, 5)])
    assert client.take() == []
    assert not client.link.reading
    world.advance(150)
    assert client.take() == []
    busy = False
    world.advance(150)
    assert client.take() == [Ack(c.PUBACK, i) for i in range(1, 5)]
    assert client.link.reading
    assert [m.body for m in world.port.log] == [b"1", b"2", b"3", b"4"]


def test_keep_alive_stands_still_while_we_do_not_read() -> None:
    world = World()
    world.port.refuse = lambda m: ErrorCode.BUSY
    client = world.client("c", keep_alive_s=1)
    client.send(Publish(b"t", b"", 2, 1))
    world.advance(10_000)
    assert not client.closed
    world.port.refuse = lambda m: None
    world.advance(1_400)
    assert client.take() == [Ack(c.PUBACK, 1)]
    world.advance(2_000)
    assert client.closed


def test_unacknowledged_bytes_pause_the_publisher() -> None:
    world = World("late", unacked_bytes_max=1000)
    client = world.client("c")
    client.link.hand_over(codec.encode_packet(Publish(b"t", b"x" * 2000, 2, 1)))
    assert not client.link.reading
    world.settle()
    assert client.link.reading


def test_many_unacknowledged_messages_pause_the_publisher() -> None:
    """However small they are: what is under way costs everybody, too."""
    world = World("late")
    client = world.client("c")
    one = codec.encode_packet(Publish(b"t", b"", 0, 0))
    client.link.hand_over(one * UNACKED_MAX)
    assert client.link.reading
    client.link.hand_over(one)
    assert not client.link.reading
    world.settle()
    assert client.link.reading
    client.link.hand_over(one * UNACKED_MAX)
    assert client.link.reading


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
def test_packets_take_effect_in_order(mode: str) -> None:
    world = World(mode, seed=5)
    client = world.client("c", clean=False)
    packets: list[codec.Packet] = []
    for i in range(1, 101):
        packets += [
            Publish(b"t", b"early", 0, 0),
            Subscribe(i, [(f"t/{i}", 1)]),
            Publish(b"t/%d" % i, b"late", 0, 0),
        ]
    client.link.hand_over(b"".join([codec.encode_packet(p) for p in packets]))
    assert client.link.reading is (mode == "immediate")
    world.settle()
    assert client.link.reading
    taken = client.take()
    assert [p for p in taken if isinstance(p, SubAck)] == [SubAck(i, [1]) for i in range(1, 101)]
    assert [p.topic for p in taken if isinstance(p, Publish)] == [b"t/%d" % i for i in range(1, 101)]


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("clean", [True, False])
def test_what_a_leaving_client_sent_is_still_done(mode: str, clean: bool) -> None:
    world = World(mode)
    watcher = world.client("w")
    watcher.subscribe("#")
    client = world.client()
    packets = [
        Connect("c", clean, will=will()),
        Subscribe(1, [("t", 1)]),
        Publish(b"t", b"1", 2, 2),
        Publish(b"t", b"2", 0, 0),
    ]
    client.link.hand_over(b"".join([codec.encode_packet(p) for p in packets]))
    client.link.peer_closes()
    world.settle()
    assert client.closed
    assert Ack(c.PUBACK, 2) in client.packets or mode == "immediate"
    assert watcher.messages() == [("t", b"1"), ("t", b"2"), ("will/t", b"gone")]


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("end", [b"\xe0\x00", b"\xf0\x00"], ids=["DISCONNECT", "malformed"])
@pytest.mark.parametrize("retain", [0, 1])
def test_what_stands_before_the_end_is_acknowledged(mode: str, end: bytes, retain: int) -> None:
    world = World(mode, seed=3)
    client = world.client("c")
    sent = [codec.encode_packet(Publish(b"t", b"%d" % i, 2 | retain, i)) for i in (1, 2, 3)]
    client.send_bytes(b"".join(sent) + end)
    assert client.packets == [Ack(c.PUBACK, i) for i in (1, 2, 3)]
    assert client.closed
    assert [message.body for message in world.port.log if message.topic == "t"] == [b"1", b"2", b"3"]


def test_a_client_that_ended_is_closed_when_its_messages_are_refused() -> None:
    """And what is refused is not acknowledged."""
    world = World("late")
    client = world.client("c")
    world.port.fail_next("submit", ErrorCode.BUSY)
    client.send_bytes(codec.encode_packet(Publish(b"t", b"x", 2, 1)) + b"\xe0\x00")
    assert client.closed
    assert client.packets == []


def test_the_broker_goes_and_comes_back() -> None:
    world = World("late")
    watcher = world.client("w", clean=False)
    watcher.subscribe("#")
    pub = world.client("p", will=will())
    pub.link.hand_over(codec.encode_packet(Publish(b"a", b"lost?", 2, 1)))
    world.port.lose()
    world.settle()
    assert pub.closed
    assert watcher.closed
    late = world.client()
    late.send(Connect("late"))
    assert late.packets == [codec.ConnAck(REFUSED_UNAVAILABLE)]
    world.port.return_()
    world.settle()
    watcher = world.client("w", clean=False)
    assert watcher.present
    world.client("p").publish("a", "after")
    assert watcher.messages()[-1] == ("a", b"after")


def test_a_lease_that_cannot_be_had_refuses() -> None:
    world = World()
    world.port.fail_next("take_lease", ErrorCode.UNAVAILABLE)
    client = world.client()
    client.send(Connect("c"))
    assert client.packets == [codec.ConnAck(REFUSED_UNAVAILABLE)]


def test_a_stopped_gateway_ignores_the_broker() -> None:
    world = World()
    world.gateway.stop()
    world.port.lose()
    world.port.return_()
    world.settle()
    assert not world.gateway.ready
    assert not world.port.taps


def test_a_session_that_cannot_be_stored_is_refused() -> None:
    world = World("late")
    world.port.fail_next("put_if", ErrorCode.STORE_FULL)
    client = world.client()
    client.send(Connect("c", clean=False))
    assert client.packets == [codec.ConnAck(REFUSED_UNAVAILABLE)]
    assert not world.gateway.lifecycle.table._echoes
    assert not world.client("c", clean=False).present


def test_sessions_max() -> None:
    world = World(sessions_max=1)
    world.client("a", clean=False)
    client = world.client()
    client.send(Connect("b", clean=False))
    assert client.packets == [codec.ConnAck(REFUSED_UNAVAILABLE)]
    world.client("a", clean=False)


def test_retained_limits_close_the_publisher() -> None:
    world = World(retained_max=1)
    client = world.client("c")
    client.publish("a", retain=True)
    client.send(Publish(b"b", b"x", 3, 9))
    assert client.closed


def test_retained_that_cannot_be_stored_is_not_acknowledged() -> None:
    world = World("late")
    client = world.client("c")
    world.port.refuse = lambda message: ErrorCode.STORE_FULL
    client.send(Publish(b"a", b"x", 3, 9))
    assert client.take() == []
    assert world.gateway.kept.match("a") == []
    world.port.refuse = lambda message: None
    world.advance(200)
    assert client.take() == [Ack(c.PUBACK, 9)]
    assert [message.payload for message in world.gateway.kept.match("a")] == [b"x"]
    assert not world.gateway.kept._pending


@pytest.mark.parametrize("five", [False, True])
def test_what_the_log_refuses_for_good_is_not_retained(five: bool) -> None:
    world = World("late")
    client = world.client("c", level=5) if five else world.client("c")
    world.port.refuse = lambda message: ErrorCode.TOPIC_LIMIT if message.body == b"bad" else None
    client.send(Publish(b"a", b"good", 3, 8), Publish(b"a", b"bad", 3, 9), Publish(b"b", b"bad", 3, 10))
    assert client.closed is not five
    assert [message.payload for message in world.gateway.kept.match("#")] == [b"good"]
    assert not world.gateway.kept._pending


def test_a_retained_message_whose_properties_have_no_room_for_the_row_is_one_piece_with_it() -> None:
    world = World("late")
    client = world.client("c")
    topic = "t" * 40_000
    client.send(Publish(topic.encode(), b"1", 3, 8), Publish(topic.encode(), b"2", 3, 9))
    assert client.take() == [Ack(c.PUBACK, 8), Ack(c.PUBACK, 9)]
    assert [message.lmq for message in world.port.log] == [(), ()]
    assert [message.payload for message in world.gateway.kept.match(topic)] == [b"2"]


def test_shutdown_publishes_wills_and_closes() -> None:
    world = World()
    watcher = world.client("w")
    watcher.subscribe("will/t")
    client = world.client("c", will=will())
    client.door.shutdown()
    world.settle()
    assert client.closed
    assert watcher.messages() == [("will/t", b"gone")]


def test_an_idle_connection_is_small() -> None:
    import tracemalloc

    world = World()
    world.client("first")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(100):
        world.client(f"idle{i}")
    used = (tracemalloc.get_traced_memory()[0] - before) / 100
    tracemalloc.stop()
    assert used < 8192, f"{used:.0f} bytes per idle connection, the test's own client included"


def test_closed_connections_leave_nothing_behind() -> None:
    world = World("shuffled", seed=3)
    for i in range(20):
        client = world.client(f"c{i}", clean=bool(i % 2), will=will())
        client.subscribe("a/#", "b")
        client.publish("a/1")
        client.link.lose()
        world.settle()
    gateway = world.gateway
    assert not gateway.doors
    assert not gateway.lifecycle.live
    assert list(world.port.leases) == [f"mqtt-gateway:{gateway.shell.name}"]
    assert not world.port.volatile
    assert not gateway.fanout._by_text
    assert not gateway.lifecycle.table._echoes
    assert not gateway.lifecycle.queues._creating
    assert not gateway.kept._pending
    assert not gateway.lifecycle.serial._lines
    assert all(not cursor.leased for cursor in world.port.cursors.values())
    assert logging.getLogger("gantrymq_gateways.mqtt").level == 0


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("seed", range(5))
def test_what_came_behind_a_refused_message_is_stored_behind_it(mode: str, seed: int) -> None:
    world = World(mode, seed=seed)
    refusals = [False, True, False, True, True]
    world.port.refuse = lambda m: ErrorCode.BUSY if m.body in (b"1", b"3") and refusals and refusals.pop() else None
    client = world.client("p")
    for i in range(6):
        client.link.hand_over(codec.encode_packet(Publish(b"t", b"%d" % i, 2, i + 1)))
        if i == 3:
            world.settle()
    world.settle()
    for _ in range(5):
        world.advance(150)
    assert [m.body for m in world.port.log] == [b"%d" % i for i in range(6)]
    assert client.take() == [Ack(c.PUBACK, i) for i in range(1, 7)]
    assert client.link.reading


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_a_door_that_cannot_open_again_tries_until_it_can(mode: str) -> None:
    world = World(mode)
    world.port.lose()
    for _ in range(2):
        world.port.fail_next("watch_table", ErrorCode.BUSY)
    world.port.fail_next("open_tap", ErrorCode.UNAVAILABLE)
    world.port.return_()
    world.settle()
    for _ in range(3):
        assert not world.gateway.ready
        world.advance(1100)
    assert world.gateway.ready
    world.client("c").publish("t", "1")
    assert all(len(watchers) == 1 for watchers in world.port.table_watchers.values())


def test_a_door_whose_first_start_fails_says_so_once() -> None:
    port = FakePort(mode="late", routes={"mqtt": MqttRoutes})
    port.fail_next("watch_table", ErrorCode.BUSY)
    wheel = ManualWheel(ManualClock())
    gateway = MqttGateway(Shell(port, ManualClock(), ManualTurn(), wheel), MqttConfig())
    started: list[Any] = []
    gateway.start(started.append)
    port.run()
    wheel.advance(5000)
    port.run()
    assert [error.code for error in started] == [ErrorCode.BUSY]
    assert not gateway.ready


@pytest.mark.parametrize("mode", ["immediate", "late"])
@pytest.mark.parametrize("code", [ErrorCode.BUSY, ErrorCode.STORE_FULL])
def test_a_will_that_finds_no_room_is_tried_again(mode: str, code: ErrorCode) -> None:
    """[MQTT-3.1.2-8]: the client that left it can send it no more."""
    world = World(mode)
    refusals = [code] * 3
    world.port.refuse = lambda message: refusals.pop() if refusals else None
    world.client("c", will=will()).link.lose()
    for _ in range(5):
        world.advance(200)
    assert [message.body for message in world.port.log] == [b"gone"]
    world.port.refuse = lambda message: code
    world.client("c", will=will()).link.lose()
    for _ in range(400):
        world.advance(100)
    world.port.refuse = lambda message: None
    for _ in range(5):
        world.advance(200)
    assert len(world.port.log) == 1


def test_topics_are_as_deep_as_mosquitto_takes_them() -> None:
    """200 separators, and no more."""
    world = World()
    client = world.client("c")
    deep, deeper = "/" * 200, "/" * 201
    assert client.subscribe(deep, deeper) == [1, 0x80]
    world.client("p").publish(deep)
    assert client.messages() == [(deep, b"x")]
    publisher = world.client("p")
    publisher.send(Publish(deeper.encode(), b"x", 0, 0))
    assert publisher.closed


def test_a_packet_that_is_given_up_is_forgotten_and_the_will_is_published() -> None:
    world = World()
    other = world.client("other")
    other.subscribe("will/#")
    client = world.client("slow", will=will())
    client.send_bytes(b"\x30\xff\x7f" + b"x" * 5_000)
    assert client.door.inbound_bytes() == 5_003
    client.door.overdue("too slow", False)
    world.settle()
    assert client.closed
    assert client.door.inbound_bytes() == 0
    assert other.messages() == [("will/t", b"gone")]
