"""More sends than the disk takes, over real sockets: refused early and counted, nothing acknowledged is lost, the rest goes on."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.bench import remoting_wire as wire
from interop_tests.running import Gantry

BODY = b"x" * (128 * 1024)
SENDS = 64
ROUNDS_MAX = 40
SYSTEM_BUSY = 2


@pytest.fixture
def gantry(tmp_path: Path) -> Iterator[Gantry]:
    """Synchronous flush, and little that may wait for it."""
    server = Gantry(tmp_path, settings=("store.flush=sync", "broker.pending_bytes_max=1048576"))
    try:
        yield server.start()
    finally:
        server.stop()


def frames(count: int) -> bytes:
    fields = {
        "a": "PG", "b": "flood", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "TAGS\x01a\x02",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return b"".join([wire.encode(310, opaque, fields, BODY) for opaque in range(count)])


def answers(sock: socket.socket, count: int) -> list[tuple[int, str]]:
    """(code, remark) of so many answers."""
    found: list[tuple[int, str]] = []
    data = bytearray()
    while len(found) < count:
        part = sock.recv(1 << 20)
        assert part, "the broker closed the connection"
        data += part
        while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
            end = 4 + int.from_bytes(data[:4], "big")
            code, _, _, remark, _ = wire.decode(bytes(data[4:end]))
            found.append((code, remark))
            del data[:end]
    return found


def test_what_the_disk_does_not_take_is_refused_early(gantry: Gantry) -> None:
    address = gantry.doors["broker"]
    data = frames(SENDS)
    codes: Counter[int] = Counter()
    remarks: set[str] = set()
    with wire.connect(address) as one, wire.connect(address) as two, wire.connect(address) as client:
        wire.create_topic(client, "flood", 4)
        beat = json.dumps({"clientID": "c@1", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}).encode()
        for _ in range(ROUNDS_MAX):
            for flood in (one, two):
                flood.sendall(data)
            # Amid the flood: what must never be refused.
            assert wire.call(client, 34, {}, beat)[0] == 0
            where = {"consumerGroup": "g", "topic": "flood", "queueId": "0"}
            assert wire.call(client, 15, {**where, "commitOffset": "0"})[0] == 0
            assert wire.call(client, 14, where)[0] == 0
            for flood in (one, two):
                for code, remark in answers(flood, SENDS):
                    codes[code] += 1
                    if code:
                        remarks.add(remark)
            if codes[SYSTEM_BUSY]:
                break
        assert set(codes) == {0, SYSTEM_BUSY}, codes
        assert all(remark.startswith("[OVERLOAD]") for remark in remarks), remarks
        stored = int(wire.call(client, 30, {"topic": "flood", "queueId": "0"})[2]["offset"])
        assert stored == codes[0]
        assert wire.call(client, 35, {"clientID": "c@1", "producerGroup": "g"})[0] == 0
    with wire.connect(address) as later:  # it recovers by itself
        later.sendall(frames(1))
        assert answers(later, 1) == [(0, "")]
