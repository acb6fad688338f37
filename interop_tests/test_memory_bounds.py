"""Bounds of memory mean memory: what many bad peers make a server hold stays within its setting, and goes when they go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from interop_tests import raw_peers as raw
from interop_tests.bench import remoting_wire
from interop_tests.raw_peers import Raw, mqtt_text
from interop_tests.running import GANTRY, Gantry
from interop_tests.test_bad_input import length, publish
from interop_tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

BOUND_MIB = 64
BODY = b"x" * 4_000_000
READERS = 120
"""Of one body each: seven times the bound, if each had a copy."""
BACK_S = 60.0


@pytest.fixture
def gantry(tmp_path: Path) -> Iterator[Gantry]:
    settings = (f"server.outbound_bytes_process_max={BOUND_MIB}MiB", "server.stalled_reader_ms=60000")
    gantry = Gantry(tmp_path, "combined", settings)
    gantry.program = GANTRY  # so that no page is shared with another process
    try:
        yield gantry.start()
    finally:
        gantry.stop()


def anonymous_mib(gantry: Gantry) -> float:
    """Memory of its own that the server has: what a file backs is not counted."""
    text = Path(f"/proc/{gantry.processes[0].pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:")) / 1024


def stalled_consumer(gantry: Gantry, number: int) -> Raw:
    """Of an AMQP queue of its own, bound to the exchange `flood`."""
    peer = raw.amqp(gantry, receive_bytes=4096)
    name = b"deaf%02d" % (number % 100) + b"x" * (number // 100)
    queue = bytes([len(name)]) + name
    for class_id, method_id, arguments in (
        (40, 10, b"\0\0\5flood\5topic\2\0\0\0\0"),
        (50, 10, b"\0\0" + queue + b"\2\0\0\0\0"),
        (50, 20, b"\0\0" + queue + b"\5flood\1#\0\0\0\0\0"),
        (60, 20, b"\0\0" + queue + b"\0\2\0\0\0\0"),
    ):
        peer.send(raw.method(1, class_id, method_id, arguments))
        raw.read_frame(peer)
    return peer


def stalled_subscriber(gantry: Gantry, number: int, clean: bool = True, wanted: bytes = b"flood/#") -> Raw:
    peer = Raw(gantry, "mqtt", 4096)
    name = b"deaf%d" % number
    connect = b"\0\4MQTT\4" + bytes([2 if clean else 0, 0, 0]) + mqtt_text(name)
    peer.send(b"\x10" + bytes([len(connect)]) + connect)
    assert peer.exactly(4) == b"\x20\x02\0\0"
    body = b"\x00\x01" + mqtt_text(wanted) + b"\x01"
    peer.send(b"\x82" + length(len(body)) + body)
    peer.exactly(5)
    return peer


def stalled_puller(gantry: Gantry, number: int) -> Raw:
    """Its pull waits for the first record of a topic with one queue."""
    if not number:
        with remoting_wire.connect(gantry.doors["broker"]) as connection:
            remoting_wire.create_topic(connection, "flood", 1)
    peer = Raw(gantry, "broker", 4096)
    fields = {
        "consumerGroup": f"deaf{number}", "topic": "flood", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    peer.send(remoting_wire.encode(11, number, fields))
    return peer


STALLED: dict[str, Callable[[Gantry, int], Raw]] = {
    "clean session": stalled_subscriber,
    "kept session": lambda gantry, number: stalled_subscriber(gantry, number, clean=False),
    "AMQP queue": stalled_consumer,
    "pull": stalled_puller,
}


@pytest.mark.parametrize("stalled", STALLED.values(), ids=STALLED)
def test_a_payload_for_many_stalled_readers_is_held_once(gantry: Gantry, stalled: Callable[[Gantry, int], Raw]) -> None:
    peers = [stalled(gantry, number) for number in range(READERS)]
    sender = raw.mqtt(gantry, client_id=b"sender")
    before = anonymous_mib(gantry)
    for number in (1, 2, 3):
        sender.send(publish(b"flood/a", BODY, 0x32, number.to_bytes(2, "big")))
        assert sender.exactly(4) == b"\x40\x02" + number.to_bytes(2, "big")
    for peer in peers:
        peer.exactly(1)
    assert anonymous_mib(gantry) - before < 1.3 * BOUND_MIB
    assert "slow reader" not in gantry.processes[0].log(), "nobody had to be cut off"
    for peer in peers:
        peer.sock.close()
    until(lambda: anonymous_mib(gantry) < 1.3 * before, BACK_S)
    sender.sock.close()


def held(gantry: Gantry) -> int:
    """Bytes that the server says it holds for its peers."""
    text = httpx.get(f"http://{gantry.doors['metrics']}/metrics", timeout=LIMIT_S).text
    return sum(int(float(count)) for count in re.findall(r"^gantry_(?:in|out)bound_held_bytes (\S+)$", text, re.M))


def trickling_bodies(gantry: Gantry) -> list[Raw]:
    peers = []
    for number in range(20):
        peer, sent = dripper(gantry, "cloudevents", number)
        peer.send(sent)
        peers.append(peer)
    return peers


def stalled_readers(gantry: Gantry) -> list[Raw]:
    peers = [stalled_puller(gantry, number) for number in range(20)]
    sender = raw.mqtt(gantry, client_id=b"sender")
    sender.send(publish(b"flood/a", BODY, 0x32, b"\0\1"))
    assert sender.exactly(4) == b"\x40\x02\0\1"
    for peer in peers:
        peer.exactly(1)
    others = []
    for number in range(2, 10):  # what nobody else waits for
        others.append(stalled_subscriber(gantry, number, wanted=b"own/%d" % number))
        sender.send(publish(b"own/%d" % number, BODY, 0x32, number.to_bytes(2, "big")))
        assert sender.exactly(4) == b"\x40\x02" + number.to_bytes(2, "big")
        others[-1].exactly(1)
    return [*peers, *others, sender]


@pytest.mark.parametrize("hold", [trickling_bodies, stalled_readers])
def test_resident_memory_is_back_to_1_3_times_within_60_s(gantry: Gantry, hold: Callable[[Gantry], list[Raw]]) -> None:
    with raw.mqtt(gantry, client_id=b"first") as first:
        first.send(publish(b"flood/a", b"x" * 1_000_000, 0x32, b"\0\1"))
        assert first.exactly(4) == b"\x40\x02\0\1"
    before = anonymous_mib(gantry)
    peers = hold(gantry)
    until(lambda: held(gantry) >= 20_000_000)
    assert anonymous_mib(gantry) - before > 15, "what is counted is in memory"
    for peer in peers:
        peer.sock.close()
    until(lambda: held(gantry) == 0, BACK_S)
    until(lambda: anonymous_mib(gantry) < 1.3 * before, BACK_S)


DRIP_BOUND_MIB = 24
DRIPPERS = 40
"""Each with 4 MB of a message of 4.1 MB: seven times the bound."""
FRAME_MS = 3_000


def dripper(gantry: Gantry, door: str, number: int) -> tuple[Raw, bytes]:
    """A connection, and most of a message that will never be whole."""
    if door == "cloudevents":
        head = b"POST /topics/drip HTTP/1.1\r\nhost: localhost\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\n"
        return Raw(gantry, door), head + b"content-length: 4100000\r\n\r\n" + BODY
    if door == "mqtt":
        return raw.mqtt(gantry, client_id=b"drip%d" % number), publish(b"drip/a", b"x" * 4_100_000)[:4_000_000]
    if door == "amqp":
        method = raw.method(1, 60, 40, b"\0\0\0\4drip\0")
        header = raw.frame(2, 1, b"\0\x3c\0\0" + (4_100_000).to_bytes(8, "big") + b"\0\0")
        return raw.amqp(gantry), method + header + raw.frame(3, 1, b"x" * 131_064) * 30
    return Raw(gantry, door), (4_100_000).to_bytes(4, "big") + b"\0\0\1\0" + b" " * 256 + BODY


DOORS = ["cloudevents", "mqtt", "amqp", "broker"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Gantry]:
    settings = (f"server.inbound_bytes_process_max={DRIP_BOUND_MIB}MiB", f"server.frame_timeout_ms={FRAME_MS}")
    gantry = Gantry(tmp_path, "combined", settings)
    gantry.program = GANTRY  # so that no page is shared with another process
    try:
        yield gantry.start()
    finally:
        gantry.stop()


def is_ended(peer: Raw) -> bool:
    peer.sock.setblocking(False)
    try:
        while peer.sock.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_messages_that_trickle_are_ended_at_every_door(small: Gantry) -> None:
    peers = []
    for door in DOORS:
        peer, sent = dripper(small, door, 0)
        peer.send(sent[: len(sent) // 2])
        peers.append(peer)
    until(lambda: all(is_ended(peer) for peer in peers), BACK_S)
    text = small.processes[0].log()
    assert text.count("server.frame_timeout_ms") == len(peers), text
    for peer in peers:
        peer.sock.close()


@pytest.mark.parametrize("door", DOORS)
def test_unfinished_messages_of_many_peers_stay_within_the_bound(small: Gantry, door: str) -> None:
    neighbour = raw.mqtt(small, client_id=b"neighbour")
    before = anonymous_mib(small)
    peak = 0.0
    peers = []
    for number in range(DRIPPERS):
        peer, sent = dripper(small, door, number)
        peers.append(peer)
        peer.send(sent)
        neighbour.send(publish(b"other/a", b"x" * 2_000_000, 0x32, (number + 1).to_bytes(2, "big")))
        assert neighbour.exactly(4) == b"\x40\x02" + (number + 1).to_bytes(2, "big")
        peak = max(peak, anonymous_mib(small))
    assert peak - before < 2 * DRIP_BOUND_MIB, f"{peak - before:.0f} MiB more than before"
    assert "server.inbound_bytes_process_max" in small.processes[0].log()
    until(lambda: all(is_ended(peer) for peer in peers), BACK_S)
    for peer in peers:
        peer.sock.close()
    until(lambda: anonymous_mib(small) < 1.3 * before, BACK_S)
    neighbour.sock.close()
