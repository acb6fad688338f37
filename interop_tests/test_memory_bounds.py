"""Bounds of memory mean memory: what many bad peers make a server hold stays within its setting, and goes when they go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests import raw_peers as raw
from interop_tests.raw_peers import Raw, mqtt_text
from interop_tests.running import Gantry
from interop_tests.test_bad_input import length, publish
from interop_tests.waiting import until

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
    try:
        yield gantry.start()
    finally:
        gantry.stop()


def anonymous_mib(gantry: Gantry) -> float:
    """Memory of its own that the server has: what a file backs is not counted."""
    text = Path(f"/proc/{gantry.processes[0].pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:")) / 1024


def stalled_subscriber(gantry: Gantry, number: int) -> Raw:
    peer = raw.mqtt(gantry, receive_bytes=4096, client_id=b"deaf%d" % number)
    body = b"\x00\x01" + mqtt_text(b"flood/#") + b"\x01"
    peer.send(b"\x82" + length(len(body)) + body)
    peer.exactly(5)
    return peer


def test_a_payload_for_many_stalled_readers_is_held_once(gantry: Gantry) -> None:
    peers = [stalled_subscriber(gantry, number) for number in range(READERS)]
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
