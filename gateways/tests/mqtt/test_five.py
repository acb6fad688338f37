"""MQTT 5.0 at the door: what CONNECT and CONNACK say, sessions and their expiry, subscription options, properties, reasons."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gateways.tests.mqtt.world import Client, World


def five(world: World, client_id: str, acks: bool = True, clean: bool = True, **properties: Any) -> Client:
    named = {getattr(p, name.upper()): value for name, value in properties.items()}
    client = Client(world, acks, c.LEVEL_5)
    return client.connect(client_id, clean=clean, properties=named)


def subscribe(client: Client, *filters: tuple[str, int], **properties: Any) -> list[int]:
    client.next_id += 1
    named = {getattr(p, name.upper()): value for name, value in properties.items()}
    client.send(Subscribe(client.next_id, list(filters), named))
    (answer,) = [packet for packet in client.packets if isinstance(packet, SubAck)]
    client.packets.remove(answer)
    assert answer.packet_id == client.next_id
    return answer.codes


def publish(client: Client, topic: str, payload: bytes = b"x", flags: int = 2, **properties: Any) -> None:
    client.next_id += 1
    named = {getattr(p, name.upper()): value for name, value in properties.items()}
    client.send(Publish(topic.encode(), payload, flags, client.next_id if flags & 6 else 0, named))


def test_connack_says_what_differs_from_the_defaults() -> None:
    world = World(awaiting_rel_max=7, topic_alias_max=3, keep_alive_s_max=60)
    client = Client(world, level=c.LEVEL_5)
    client.connect("", keep_alive_s=120)
    told = client.connack.properties
    assert told[p.RECEIVE_MAXIMUM] == 7
    assert told[p.TOPIC_ALIAS_MAXIMUM] == 3
    assert told[p.SERVER_KEEP_ALIVE] == 60  # [MQTT5-3.2.2-21]
    assert told[p.ASSIGNED_CLIENT_ID].startswith("gantry-")  # [MQTT5-3.2.2-16]
    assert told[p.MAXIMUM_PACKET_SIZE] > 4 * 1024 * 1024
    assert p.SESSION_EXPIRY not in told


def test_a_session_lasts_as_long_as_its_client_wants() -> None:
    world = World()
    client = five(world, "c", session_expiry=10)
    subscribe(client, ("t", 1))
    client.disconnect()
    world.client("p").publish("t", "1")
    world.advance(9_000)
    client = five(world, "c", clean=False, session_expiry=10)
    assert client.present
    assert client.messages() == [("t", b"1")]
    client.disconnect()
    world.advance(10_001)  # the sweep may not have come
    assert not five(world, "c", clean=False, session_expiry=10).present


def test_expiry_0_ends_the_session_with_its_connection() -> None:
    world = World()
    subscribe(five(world, "c", session_expiry=100), ("t", 1))
    client = five(world, "c", clean=False)
    assert client.present, "an earlier session is gone on with"
    client.disconnect()
    assert not five(world, "c", clean=False, session_expiry=5).present


def test_disconnect_changes_the_expiry() -> None:
    world = World()
    client = five(world, "c", session_expiry=100)
    client.send(Disconnect(0, {p.SESSION_EXPIRY: 2}))
    world.advance(2_001)
    assert not five(world, "c", clean=False).present
    client = five(world, "d", session_expiry=5)
    client.send(Disconnect(0, {p.SESSION_EXPIRY: 0}))
    assert not five(world, "d", clean=False).present


def test_disconnect_cannot_begin_what_connect_did_not() -> None:
    client = five(World(), "c")
    client.send(Disconnect(0, {p.SESSION_EXPIRY: 5}))
    (told,) = client.packets
    assert isinstance(told, Disconnect)
    assert told.reason == Reason.PROTOCOL_ERROR  # [MQTT5-3.14.2-2]


def test_the_longest_expiry_is_told() -> None:
    world = World(session_expiry_s=60)
    assert five(world, "c", session_expiry=c.EXPIRY_NEVER).connack.properties[p.SESSION_EXPIRY] == 60


def test_who_is_taken_over_hears_it() -> None:
    world = World()
    old = five(world, "c")
    five(world, "c")
    (told,) = old.packets
    assert isinstance(told, Disconnect)
    assert told.reason == Reason.SESSION_TAKEN_OVER
    assert old.closed


def test_shutdown_and_silence_are_told() -> None:
    world = World()
    silent = Client(world, level=c.LEVEL_5).connect("s", keep_alive_s=2)
    stays = five(world, "c")
    world.advance(3_000)
    assert [packet.reason for packet in silent.packets if isinstance(packet, Disconnect)] == [Reason.KEEP_ALIVE_TIMEOUT]
    stays.door.shutdown()
    world.settle()
    assert [packet.reason for packet in stays.packets if isinstance(packet, Disconnect)] == [
        Reason.SERVER_SHUTTING_DOWN
    ]


SENT: dict[str, Any] = {
    "payload_format": 1,
    "content_type": "text/plain",
    "response_topic": "answers/here",
    "correlation_data": b"\xff\x00\x01",
    "user": [("a", "1"), ("a", "2"), ("", ""), ("TAGS", "x"), ("z", "\x01\x02\n")],
}


@pytest.mark.parametrize("kept", [False, True], ids=["live", "persistent"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_arrive_as_they_were(kept: bool, qos: int) -> None:
    world = World()
    sub = five(world, "s", session_expiry=100 if kept else 0)
    subscribe(sub, ("t/#", 2))
    old = world.client("three")
    old.subscribe(("t/#", 2))
    publish(five(world, "p"), "t/x", b"body", qos << 1, **SENT)
    (got,) = sub.publishes()
    assert got.properties == {getattr(p, name.upper()): value for name, value in SENT.items()}
    assert (got.qos, got.payload) == (qos, b"body")
    (plain,) = old.publishes()
    assert (plain.topic, plain.payload, plain.properties) == (b"t/x", b"body", None)


def test_properties_are_native_ones_where_they_can() -> None:
    world = World()
    publish(
        five(world, "p"),
        "t/x",
        content_type="text/plain",
        response_topic="back",
        correlation_data=b"42",
        message_expiry=60,
        user=[("colour", "red"), ("KEYS", "k")],
    )
    (message,) = [message for message in world.port.log if message.topic == "t"]
    pairs = message.property_map()
    assert pairs[props.CONTENT_TYPE] == "text/plain"
    assert pairs[props.REPLY_TO] == "back"
    assert pairs[props.CORRELATION_ID] == "42"
    assert int(pairs[props.EXPIRES_AT]) == world.clock.now_ms() + 60_000
    assert pairs["colour"] == "red"
    assert pairs["GANTRY_H_KEYS"] == "k"
    assert "GANTRY_MQTT_REST" not in pairs


def test_user_properties_that_make_an_event_are_one() -> None:
    world = World()
    sub = five(world, "s")
    subscribe(sub, ("t/#", 0))
    user = [
        ("specversion", "1.0"),
        ("id", "a b"),
        ("source", "/s"),
        ("type", "x.y"),
        ("partitionkey", "k"),
        ("No", "1"),
    ]
    publish(five(world, "p"), "t/x", b"{}", content_type="application/json", user=user)
    (message,) = [message for message in world.port.log if message.topic == "t"]
    pairs = message.property_map()
    assert pairs["CE_id"] == "a b"
    assert pairs["CE_datacontenttype"] == "application/json"
    assert pairs["No"] == "1"
    assert message.keys == ("a%20b",)
    assert message.sharding_key == "k"
    (got,) = sub.publishes()
    assert got.properties == {p.CONTENT_TYPE: "application/json", p.USER: user}


def test_what_other_doors_say_reaches_user_properties() -> None:
    world = World()
    sub = five(world, "s")
    subscribe(sub, ("t", 0))
    world.native("t", **{"colour": "red", props.CONTENT_TYPE: "a/b", "CE_type": "x", props.REPLY_TO: "wild/#"})
    (got,) = sub.publishes()
    assert got.properties == {p.CONTENT_TYPE: "a/b", p.USER: [("colour", "red"), ("type", "x")]}


def test_expiry_is_counted_down_and_holds() -> None:
    world = World()
    sub = five(world, "s", session_expiry=100)
    subscribe(sub, ("t", 1))
    sub.disconnect()
    pub = five(world, "p")
    publish(pub, "t", b"short", message_expiry=2)
    publish(pub, "t", b"long", message_expiry=50)
    world.advance(5_000)
    sub = five(world, "s", clean=False, session_expiry=100)
    (got,) = sub.publishes()
    assert (got.payload, got.properties) == (b"long", {p.MESSAGE_EXPIRY: 45})  # [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]


def test_an_expiry_of_another_door_holds_in_every_version() -> None:
    world = World()
    sub = world.client("s", clean=False)
    sub.subscribe("t")
    sub.disconnect()
    soon = str(world.clock.now_ms() + 1_000)
    world.native("t", body=b"expiration", **{props.EXPIRES_AT: soon})
    world.native("t", body=b"expirytime", CE_expirytime="2023-11-14T22:13:21Z")
    world.native("t", body=b"stays", CE_expirytime="tomorrow")
    world.advance(2_000)
    sub = world.client("s", clean=False)
    assert sub.messages() == [("t", b"stays")]


def test_subscription_identifiers_of_all_that_match() -> None:
    world = World()
    for expiry in (0, 100):
        sub = five(world, f"s{expiry}", session_expiry=expiry)
        subscribe(sub, ("t/#", 1), subscription_id=[3])
        subscribe(sub, ("t/+", 2), subscription_id=[300])
        subscribe(sub, ("+/x", 0))
        publish(five(world, "p"), "t/x")
        (got,) = sub.publishes()
        assert got.properties is not None
        assert sorted(got.properties[p.SUBSCRIPTION_ID]) == [3, 300]  # [MQTT5-3.3.4-4]
        sub.disconnect()


@pytest.mark.parametrize("expiry", [0, 100])
def test_no_local(expiry: int) -> None:
    world = World()
    client = five(world, "c", session_expiry=expiry)
    subscribe(client, ("t/#", 1 | c.OPTION_NO_LOCAL))
    publish(client, "t/mine")
    client.packets.clear()
    assert client.messages() == []  # [MQTT5-3.8.3-3]
    publish(five(world, "p"), "t/theirs")
    assert client.messages() == [("t/theirs", b"x")]
    subscribe(client, ("t/mine", 0))
    publish(client, "t/mine")
    assert client.messages() == [("t/mine", b"x")], "a subscription that wants it gets it"


@pytest.mark.parametrize("expiry", [0, 100])
def test_retain_as_published(expiry: int) -> None:
    world = World()
    wants = five(world, "a", session_expiry=expiry)
    subscribe(wants, ("t", 1 | c.OPTION_RETAIN_AS_PUBLISHED))
    not_so = five(world, "b", session_expiry=expiry)
    subscribe(not_so, ("t", 1))
    publish(five(world, "p"), "t", flags=3)
    assert [got.retain for got in wants.publishes()] == [True]  # [MQTT5-3.3.1-13]
    assert [got.retain for got in not_so.publishes()] == [False]  # [MQTT5-3.3.1-12]


def test_retain_handling() -> None:
    world = World()
    publish(five(world, "p"), "t", b"kept", flags=3, content_type="a/b", message_expiry=100)
    client = five(world, "c")
    subscribe(client, ("t", 0x20))
    assert client.messages() == []  # [MQTT5-3.3.1-11]
    subscribe(client, ("t", 0x10))
    assert client.messages() == []  # [MQTT5-3.3.1-10]
    world.advance(30_000)
    subscribe(client, ("t", 0), subscription_id=[9])
    (got,) = client.publishes()
    assert got.retain
    assert got.properties == {p.SUBSCRIPTION_ID: [9], p.CONTENT_TYPE: "a/b", p.MESSAGE_EXPIRY: 70}
    client.next_id += 1
    client.send(Unsubscribe(client.next_id, ["t", "unknown"]))
    client.expect(UnsubAck(client.next_id, [0, Reason.NO_SUBSCRIPTION_EXISTED]))
    subscribe(client, ("t", 0x10))
    assert client.messages() == [("t", b"kept")]
    world.advance(70_000)
    subscribe(client, ("t", 0))
    assert client.messages() == [], "a retained message expires, too"


def test_topic_aliases_of_a_client() -> None:
    world = World(topic_alias_max=2)
    sub = five(world, "s")
    subscribe(sub, ("#", 0))
    pub = five(world, "p")
    publish(pub, "a", b"1", 0, topic_alias=1)
    publish(pub, "", b"2", 0, topic_alias=1)
    publish(pub, "b", b"3", 0, topic_alias=1)
    publish(pub, "", b"4", 0, topic_alias=1)
    assert sub.messages() == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")]
    for topic, alias, reason in (
        ("a", 3, Reason.TOPIC_ALIAS_INVALID),
        ("a", 0, Reason.TOPIC_ALIAS_INVALID),
        ("", 2, Reason.PROTOCOL_ERROR),
    ):
        pub = five(world, "p")
        publish(pub, topic, b"", 0, topic_alias=alias)
        assert [packet.reason for packet in pub.packets if isinstance(packet, Disconnect)] == [reason]


def test_topic_aliases_of_the_server_are_chosen_by_use() -> None:
    world = World()
    sub = five(world, "s", topic_alias_maximum=2)
    subscribe(sub, ("#", 1))
    for topic in ("once", "often", "often", "often", "b", "b", "d", "d", "d", "often"):
        world.client("p").publish(topic)
    known: dict[int, str] = {}
    topics = []
    for got in sub.publishes():
        alias = (got.properties or {}).get(p.TOPIC_ALIAS, 0)
        assert 0 <= alias <= 2
        if got.topic and alias:
            known[alias] = got.topic.decode()
        topics.append(got.topic.decode() or known[alias])
    assert topics == ["once", "often", "often", "often", "b", "b", "d", "d", "d", "often"]
    assert set(known.values()) == {"b", "d"}, "what was unused for longest gave way"


def test_packets_too_large_for_the_client_are_not_sent() -> None:
    world = World()
    sub = five(world, "s", maximum_packet_size=60, session_expiry=100)
    subscribe(sub, ("t", 1), ("u", 0))
    pub = world.client("p")
    pub.publish("t", b"x" * 60)
    pub.publish("t", b"y" * 10)
    assert sub.messages() == [("t", b"y" * 10)]  # [MQTT5-3.1.2-24]
    sub.disconnect()
    assert five(world, "s", clean=False, session_expiry=100).messages() == [], "it counts as delivered [MQTT5-3.1.2-25]"


def test_no_more_in_flight_than_the_client_takes() -> None:
    world = World()
    sub = five(world, "s", acks=False, receive_maximum=2)
    subscribe(sub, ("t", 2))
    for number in range(4):
        world.client("p").publish("t", str(number), qos=2 if number % 2 else 1)
    first, second = sub.publishes()
    assert (first.payload, second.payload) == (b"0", b"1")  # [MQTT5-3.3.4-7]
    sub.send(Ack(c.PUBREC, second.packet_id))
    sub.expect(Ack(c.PUBREL, second.packet_id))
    assert sub.publishes() == [], "a QoS 2 message counts until PUBCOMP"
    sub.send(Ack(c.PUBCOMP, second.packet_id))
    assert [got.payload for got in sub.publishes()] == [b"2"]


def test_more_than_the_server_takes_is_an_error() -> None:
    world = World(awaiting_rel_max=2)
    client = five(world, "c")
    for number in (1, 2, 3):
        client.send(Publish(b"t", b"", 4, number))
    assert [packet.reason for packet in client.packets if isinstance(packet, Disconnect)] == [
        Reason.RECEIVE_MAXIMUM_EXCEEDED
    ]  # [MQTT5-3.3.4-9]


def test_refused_publishes_are_answered_with_a_reason() -> None:
    world = World()
    client = five(world, "c")
    publish(client, "$SYS/x")
    client.expect(Ack(c.PUBACK, client.next_id, Reason.NOT_AUTHORIZED))
    publish(client, "a/" * 300 + "b", flags=4)
    client.expect(Ack(c.PUBREC, client.next_id, Reason.TOPIC_NAME_INVALID))
    publish(client, "$SYS/x", flags=0)
    publish(client, "t", flags=4)
    client.expect(Ack(c.PUBREC, client.next_id))
    world.port.refuse = lambda message: ErrorCode.TOPIC_LIMIT if message.topic == "new" else None
    publish(client, "new")
    client.expect(Ack(c.PUBACK, client.next_id, Reason.QUOTA_EXCEEDED))
    assert not client.closed


def test_refused_subscriptions_say_why() -> None:
    world = World(subscriptions_max=1)
    client = five(world, "c")
    client.send(Subscribe(1, [("rmq_sys_gantry_ack/#", 1), ("a", 2), ("b", 1), ("$share/g", 0)]))
    (answer,) = client.take()
    assert isinstance(answer, SubAck)
    assert answer.codes == [Reason.NOT_AUTHORIZED, 2, Reason.QUOTA_EXCEEDED, Reason.TOPIC_FILTER_INVALID]
    assert "belongs to the broker" in answer.properties[p.REASON_STRING]
    quiet = five(world, "d", request_problem=0)
    quiet.send(Subscribe(1, [("rmq_sys_gantry_ack/#", 1)]))
    assert quiet.take() == [SubAck(1, [Reason.NOT_AUTHORIZED])]  # [MQTT5-3.1.2-29]


def will(**properties: Any) -> Will:
    return Will(b"will/t", b"gone", 2, False, {getattr(p, name.upper()): value for name, value in properties.items()})


def lost(client: Client) -> None:
    client.door.closed("reset")
    client.link.closed_by = "test"
    client.world.settle()


def test_a_will_has_properties_and_a_delay() -> None:
    world = World()
    sub = five(world, "s")
    subscribe(sub, ("will/#", 2))
    client = Client(world, level=c.LEVEL_5)
    told = {p.SESSION_EXPIRY: 100}
    client.connect("c", will=will(will_delay=5, content_type="a/b", message_expiry=60), properties=told)
    lost(client)
    world.advance(4_900)
    assert sub.messages() == []
    world.advance(200)
    (got,) = sub.publishes()
    assert (got.qos, got.payload) == (2, b"gone")
    assert got.properties == {p.CONTENT_TYPE: "a/b", p.MESSAGE_EXPIRY: 60}


def test_who_comes_back_in_time_takes_the_will_back() -> None:
    world = World()
    sub = five(world, "s")
    subscribe(sub, ("will/#", 1))
    for clean, expected in ((False, []), (True, [("will/t", b"gone")])):
        client = Client(world, level=c.LEVEL_5)
        client.connect("c", will=will(will_delay=5), properties={p.SESSION_EXPIRY: 100})
        lost(client)
        again = five(world, "c", clean=clean, session_expiry=100)
        assert sub.messages() == expected, "a session that ends publishes it [MQTT5-3.1.2-8]"
        again.disconnect()
        world.advance(10_000)
        assert sub.messages() == []


def test_a_will_does_not_wait_longer_than_its_session() -> None:
    world = World()
    sub = five(world, "s")
    subscribe(sub, ("will/#", 1))
    client = Client(world, level=c.LEVEL_5)
    client.connect("c", will=will(will_delay=5))
    lost(client)
    assert sub.messages() == [("will/t", b"gone")]


def test_disconnect_with_will() -> None:
    world = World()
    sub = five(world, "s")
    subscribe(sub, ("will/#", 1))
    client = Client(world, level=c.LEVEL_5)
    client.connect("c", will=will())
    client.send(Disconnect(Reason.DISCONNECT_WITH_WILL))
    assert sub.messages() == [("will/t", b"gone")]


def test_malformed_packets_are_told_their_reason() -> None:
    world = World()
    for data, reason in (
        (b"\x36\x04\x00\x01t\x00", Reason.MALFORMED_PACKET),
        (b"\x30\x03\x00\x01#", Reason.TOPIC_NAME_INVALID),
        (b"\x30\x04\x00\x01t\x7f", Reason.MALFORMED_PACKET),
        (b"\x30\x08\x00\x01t\x04\x01\x01\x01\x01", Reason.PROTOCOL_ERROR),
        (b"\x20\x02\x00\x00", Reason.PROTOCOL_ERROR),
        (b"\x82\x09\x00\x01\x00\x00\x03a/#\x03", Reason.MALFORMED_PACKET),
        (b"\x82\x0d\x00\x01\x00\x00\x07$share/\x04", Reason.PROTOCOL_ERROR),
        (b"\xf0\x00", Reason.PROTOCOL_ERROR),
        (b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    ):
        client = five(world, f"c{data.hex()}")
        client.send_bytes(data)
        told = [packet for packet in client.packets if isinstance(packet, Disconnect)]
        assert [packet.reason for packet in told] == [reason], data
        assert told[0].properties[p.REASON_STRING]
        assert client.closed


def test_a_malformed_connect_is_answered_in_its_own_form() -> None:
    client = Client(World(), level=c.LEVEL_5)
    client.send_bytes(bytes.fromhex("100e 0004 4d515454 05 03 003c 00 0001 63"))
    assert client.packets == [ConnAck(Reason.MALFORMED_PACKET)]


def test_password_without_a_user_name_is_fine_in_5_0() -> None:
    client = Client(World(), level=c.LEVEL_5)
    client.send(Connect("c", level=c.LEVEL_5, password=b"x"))
    (answer,) = client.packets
    assert isinstance(answer, ConnAck)
    assert answer.code == 0
