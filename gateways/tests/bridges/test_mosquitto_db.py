"""Mosquitto's persistence file: one that a Mosquitto 2.0.11 wrote, and everything that such a file may not be."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from gantrymq_gateways.bridges.mosquitto_db import MAGIC, MosquittoFileError, read_database
from gantrymq_gateways.mqtt.wire import properties as p

RECORDED = (Path(__file__).parent / "mosquitto-2.0.db").read_bytes()


def chunk(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", kind, len(body)) + body


def head(version: int = 6) -> bytes:
    return MAGIC + struct.pack(">II", 0, version)


def client(client_id: bytes, user: bytes = b"", until_s: int = 0, interval_s: int = 60, padding: int = 4) -> bytes:
    fixed = struct.pack("<q", until_s) + struct.pack(">IHHHH", interval_s, 1, len(client_id), 1883, len(user))
    return chunk(6, fixed + bytes(padding) + client_id + user)


def message(number: int, topic: bytes, payload: bytes = b"x", qos: int = 1) -> bytes:
    sizes = struct.pack(">IHHHHH", len(payload), 1, 3, 2, len(topic), 1883)
    return chunk(2, struct.pack("<qq", number, 0) + sizes + bytes((qos, 0)) + b"srcus" + topic + payload)


def queued(number: int, client_id: bytes, state: int = 11, direction: int = 1, qos: int = 1) -> bytes:
    sizes = struct.pack(">HH", 5, len(client_id))
    return chunk(3, struct.pack("<q", number) + sizes + bytes((qos, state, 0, direction)) + client_id)


def test_a_recorded_file() -> None:
    found = read_database(RECORDED)
    topics = {number: (each.topic, each.payload, each.qos) for number, each in found.messages.items()}
    (kept,) = [found.messages[number] for number in found.retained]
    assert (kept.topic, kept.payload, kept.qos) == (b"recorded/state", b"on", 2)
    assert kept.properties == {p.CONTENT_TYPE: "text/plain", p.USER: [("unit", "K")]}
    assert kept.expires_s > 1_700_000_000
    assert set(found.clients) == {"moved-here", "member", "sender"}
    session = found.clients["moved-here"]
    assert session.filters == {"recorded/+": (2 | 8, 9), "other/#": (1, 0)}
    assert [topics[number] for number in session.queue] == [
        (b"recorded/state", b"on", 2), (b"recorded/a", b"1", 1), (b"recorded/a", b"2", 2), (b"other/x", b"3", 1)
    ]  # fmt: skip
    assert session.expiry_s == 3_600
    assert session.until_s > 1_700_000_000
    assert found.clients["member"].filters == {}  # shared subscriptions are not in it
    assert len(found.clients["member"].queue) == 1
    assert found.unreleased == []


@pytest.mark.parametrize("padding", [0, 4])
def test_structures_with_and_without_padding(padding: int) -> None:
    data = head() + message(1, b"a/b") + client(b"c1", b"me", 77, 600, padding) + queued(1, b"c1")
    found = read_database(data)
    assert (found.messages[1].topic, found.messages[1].payload) == (b"a/b", b"x")
    session = found.clients["c1"]
    assert (session.user, session.until_s, session.expiry_s, session.queue) == ("me", 77, 600, [1])


def test_version_five() -> None:
    fixed = struct.pack("<q", 0) + struct.pack(">IHH", 60, 1, 2)
    assert set(read_database(head(5) + chunk(6, fixed + b"c1")).clients) == {"c1"}


def test_states_of_qos_two() -> None:
    """What a client has received is not queued any more; what Mosquitto has and was not released is."""
    data = head() + b"".join(message(number, b"t", qos=2) for number in range(1, 6)) + client(b"c")
    data += queued(1, b"c", 5) + queued(2, b"c", 6) + queued(3, b"c", 9) + queued(4, b"c", 7, 0) + queued(5, b"gone")
    found = read_database(data)
    assert found.clients["c"].queue == [1]
    assert found.unreleased == [4]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin"),
        (b"SQLite format 3\0" * 4, "does not begin"),
        (MAGIC, "ends in its head"),
        (head(4), "version 4"),
        (head() + b"\0\0", "head of the chunk at byte 23"),
        (head() + chunk(4, bytes(8))[:-1], "not written whole"),
        (head() + chunk(9, b""), "no such kind"),
        (head() + chunk(4, bytes(7)), "longer than its chunk"),
        (head() + chunk(1, bytes(9) + b"\4"), "4 bytes"),
        (head() + chunk(6, bytes(3)), "kind 6"),
        (head() + client(b"\xff"), "kind 6"),
    ],
)
def test_what_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MosquittoFileError, match=why):
        read_database(data)


def test_a_file_cut_anywhere_is_refused_or_read() -> None:
    whole = 0
    for size in range(len(RECORDED)):
        try:
            read_database(RECORDED[:size])
        except MosquittoFileError:
            continue
        whole += 1
    assert 0 < whole < 40  # between two chunks


def test_bytes_changed_by_chance() -> None:
    chance = random.Random(18)
    refused = 0
    for _ in range(3_000):
        data = bytearray(RECORDED)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read_database(bytes(data))
        except MosquittoFileError:
            refused += 1
    assert refused > 300
