"""More sends than the disk takes, over real sockets: refused early and counted, nothing acknowledged is lost, the rest goes on."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import termios
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests import held_disk
from interop_tests.bench import remoting_wire as wire
from interop_tests.running import Process
from interop_tests.waiting import until

BODY = b"x" * (128 * 1024)
SENDS = 64
SYSTEM_BUSY = 2


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Who has it locked holds the disk up: how quick a real one is says the machine."""
    path = tmp_path / "disk"
    path.touch()
    return path


@pytest.fixture
def gantry(tmp_path: Path, disk: Path) -> Iterator[Process]:
    """Synchronous flush, and little that may wait for it."""
    settings = ["--set=store.flush=sync", "--set=broker.pending_bytes_max=1048576"]
    server = Process("up", tmp_path, ["up", "--data", str(tmp_path / "data"), *settings])
    server.program = [held_disk.__file__, str(disk)]
    try:
        server.start()
        yield server
        assert server.stop() == 0
    finally:
        server.kill()


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


def unsent(sock: socket.socket) -> int:
    """Bytes that the other side's kernel has not taken."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def test_what_the_disk_does_not_take_is_refused_early(gantry: Process, disk: Path) -> None:
    address = gantry.doors["broker"]
    data = frames(SENDS)
    with wire.connect(address) as one, wire.connect(address) as two, wire.connect(address) as client:
        wire.create_topic(client, "flood", 4)
        beat = json.dumps({"clientID": "c@1", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}).encode()
        client.sendall(frames(1))
        assert answers(client, 1) == [(0, "")]  # whatever the first one reads from the disk is read
        with disk.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            one.sendall(data)  # taken, and at most one turn's reads beyond the limit
            until(lambda: not unsent(one))
            # Amid the flood: what must never be refused.
            assert wire.call(client, 34, {}, beat)[0] == 0
            where = {"consumerGroup": "g", "topic": "flood", "queueId": "0"}
            assert wire.call(client, 15, {**where, "commitOffset": "0"})[0] == 0
            assert wire.call(client, 14, where)[0] == 0
            two.sendall(data)
            refused = answers(two, SENDS)  # a refusal waits for no disk
            assert {code for code, _ in refused} == {SYSTEM_BUSY}
        codes = Counter([code for code, _ in (*refused, *answers(one, SENDS))])
        assert set(codes) == {0, SYSTEM_BUSY}, codes
        assert all(remark.startswith("[OVERLOAD]") for _, remark in refused), refused
        stored = int(wire.call(client, 30, {"topic": "flood", "queueId": "0"})[2]["offset"])
        assert stored == 1 + codes[0]
        assert wire.call(client, 35, {"clientID": "c@1", "producerGroup": "g"})[0] == 0
    with wire.connect(address) as later:  # it recovers by itself
        later.sendall(frames(1))
        assert answers(later, 1) == [(0, "")]
