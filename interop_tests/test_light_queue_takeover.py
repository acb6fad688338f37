"""Clients' own light queues go with the directory: a real broker with `enableLmq` reads and continues ours, and we continue its."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.store.log import record
from interop_tests.bench import remoting_wire as wire
from interop_tests.real_broker import REAL_BROKER, RealBroker, check
from interop_tests.running import Gantry
from interop_tests.waiting import until

pytestmark = REAL_BROKER
QUEUES = ("Parent", "%LMQ%a", "%LMQ%b")


def send(address: str, body: bytes, *lights: str) -> None:
    fields = {
        "a": "PG", "b": "Parent", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "j": "0",
        "k": "false", "m": "false", "i": f"TAGS\x01t\x02INNER_MULTI_DISPATCH\x01{','.join(lights)}\x02",
    }  # fmt: skip
    with wire.connect(address) as sock:
        code, _, _, remark, _ = wire.call(sock, 310, fields, body)
        assert code == 0, remark


def bodies(address: str, topic: str) -> list[bytes]:
    """All messages of queue 0, in pulls of as many as come."""
    found: list[bytes] = []
    with wire.connect(address) as sock:
        while True:
            fields = {
                "consumerGroup": "%LMQ%reader", "topic": topic, "queueId": "0", "queueOffset": str(len(found)), "maxMsgNums": "32",
                "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            }  # fmt: skip
            code, _, _, _, data = wire.call(sock, 11, fields)
            if code:
                return found
            at = 0
            while at < len(data):
                message = record.decode(data, at)
                found.append(message.body)
                at += message.size


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_there_and_back(real: RealBroker, gantry: Gantry, tmp_path: Path, how: str) -> None:
    gantry.start()
    address = gantry.doors["broker"]
    for number in range(20):
        send(address, b"ours %d" % number, *(("%LMQ%a", "%LMQ%b") if number % 2 else ("%LMQ%b",)))
    ours = [bodies(address, name) for name in QUEUES]
    assert [len(found) for found in ours] == [20, 10, 20]
    topics = tmp_path / "data/store/config/topics.json"
    until(lambda: topics.exists() and '"Parent"' in topics.read_text())  # a second late at most
    if how == "kill":
        gantry.processes[0].kill()
    else:
        gantry.stop()
    gantry.processes.clear()
    check(tmp_path / "data" / "store")
    real.start()
    peer = f"127.0.0.1:{real.port}"
    until(lambda: [bodies(peer, name) for name in QUEUES] == ours)
    send(peer, b"theirs", "%LMQ%a")
    until(lambda: bodies(peer, "%LMQ%a") == [*ours[1], b"theirs"])
    real.stop()
    gantry.start()
    address = gantry.doors["broker"]
    send(address, b"again", "%LMQ%b", "%LMQ%a")
    assert [bodies(address, name) for name in QUEUES] == [
        [*ours[0], b"theirs", b"again"], [*ours[1], b"theirs", b"again"], [*ours[2], b"again"],
    ]  # fmt: skip
    gantry.stop()
    gantry.processes.clear()
    check(tmp_path / "data" / "store")
