"""Any bytes, in any pieces: the connection answers or closes, raises nothing, and holds no more than its limits."""

from __future__ import annotations

import random

import pytest

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.connection import ConnectionLimits, MqttConnection, State, Violation
from gantrymq_gateways.mqtt.wire.packets import (
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)

LIMITS = ConnectionLimits(packet_bytes_max=4_096, topic_alias_max=3)

TOLD = {p.USER: [("a", "b"), ("a", "")], p.CONTENT_TYPE: "x", p.TOPIC_ALIAS: 1, p.CORRELATION_DATA: b"\xff"}


def seeds(level: int) -> list[bytes]:
    five = level == c.LEVEL_5
    packets: list[Packet] = [
        Publish(b"t/u", b"payload", 0, 0, TOLD if five else None),
        Publish(b"t/u", b"payload", 2, 9),
        Publish(b"t", b"", 5, 9),
        *[Ack(kind, 9) for kind in (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP)],
        Subscribe(1, [("a/+/#", 1), ("$share/g/x", 2)], {p.SUBSCRIPTION_ID: [5]} if five else {}),
        Unsubscribe(2, ["a/+/#"]),
        PingReq(),
        Disconnect(),
    ]
    return [
        codec.encode_packet(packet, level) for packet in packets + ([Auth(0x19, {p.AUTH_METHOD: "m"})] if five else [])
    ]


def connects(level: int) -> bytes:
    will = Will(b"w", b"x", 1, True, {p.WILL_DELAY: 3} if level == c.LEVEL_5 else {})
    told = {p.RECEIVE_MAXIMUM: 5, p.AUTH_METHOD: "m"} if level == c.LEVEL_5 else {}
    return codec.encode_packet(Connect("c", True, 5, level, will, "u", b"p", False, told))


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        where = chance.randrange(len(changed)) if changed else 0
        what = chance.randrange(4)
        if what == 0 and changed:
            changed[where] = chance.randrange(256)
        elif what == 1 and changed:
            del changed[where]
        elif what == 2:
            changed[where:where] = chance.randbytes(chance.choice((1, 2, 9)))
        elif changed:
            changed[where] ^= 1 << chance.randrange(8)
    return bytes(changed)


def attack(chance: random.Random) -> int:
    """One connection; returns how many packets it was sent."""
    level = chance.choice((3, 4, 5))
    connection = MqttConnection(LIMITS, set(), 0)
    first = connects(level)
    sent = [mutated(first, chance) if chance.random() < 0.2 else first]
    sent += [mutated(chance.choice(seeds(level)), chance) for _ in range(chance.randrange(1, 12))]
    data = b"".join(sent)
    while data:
        size = chance.choice((1, 3, 50, len(data)))
        events = connection.receive_data(data[:size], 0)
        data = data[size:]
        while connection.state is State.CONNECTING:
            connection.accept(False)
            events += connection.receive_data(b"", 0)
        assert not any(isinstance(event, Violation) for event in events[:-1]), "a violation is the last that is heard"
        assert connection.buffered_bytes() <= c.CONNECT_BYTES_MAX + 5
        assert len(connection.data_to_send()) <= 4_096
        if connection.state is State.CLOSED:
            break
    return len(sent)


def storm(packets: int, seed: int) -> None:
    chance = random.Random(seed)
    done = 0
    while done < packets:
        done += attack(chance)


@pytest.mark.parametrize("seed", range(4))
def test_two_thousand_packets(seed: int) -> None:
    storm(2_000, seed)


@pytest.mark.slow
def test_a_hundred_thousand_packets() -> None:
    storm(100_000, 99)
