"""Compacted topics, on a real broker: of each key the last value is left, and the holes in front of it are no lost data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.client import BlockingProducer, OutMessage
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from interop_tests.running import Gantry
from interop_tests.waiting import until

pa = pytest.importorskip("pyarrow")

from gantrymq.spark import pulling, wire  # noqa: E402
from gantrymq.spark.planning.dividing import QueueRange  # noqa: E402
from gantrymq.spark.planning.offsets import DataLossError  # noqa: E402

SCHEMA = pa.schema({"offset": pa.int64(), "body": pa.binary()})
COUNT, KEYS = 1200, 10
TOPIC = "latest"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path)
    try:
        yield gantry.start()
    finally:
        wire.close_all()
        gantry.stop()


def read(server: Gantry, **more: bool) -> list[tuple[int, bytes]]:
    nameservers = [server.doors["nameserver"]]
    address = wire.Metadata(nameservers).route(TOPIC).address("broker-a")
    part = QueueRange(TOPIC, "broker-a", 0, 0, COUNT, address)
    found: list[tuple[int, bytes]] = []
    for batch in pulling.read_range(part, SCHEMA, nameservers, "g", (), more.get("strict", True)):
        found += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    return found


def test_what_compaction_has_left_is_read_whole(server: Gantry, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false", "attributes": "+cleanup.policy=COMPACTION",
    }  # fmt: skip
    (address,) = wire.Metadata([server.doors["nameserver"]]).brokers().values()
    assert wire.wire(address).request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    with BlockingProducer(server.doors["nameserver"]) as producer:
        producer.send_many([OutMessage(TOPIC, b"%d" % number, keys=f"k{number % KEYS}") for number in range(COUNT)])
    until(lambda: len(read(server, strict=False)) < COUNT)  # compaction has run
    found = read(server)
    assert found[0][0] > 0
    assert found[-KEYS:] == [(number, b"%d" % number) for number in range(COUNT - KEYS, COUNT)]
    monkeypatch.setattr(pulling, "COMPACTED", ("cleanup.policy", "DELETE"))  # as if it were a topic like others
    with pytest.raises(DataLossError, match="queue 0: offsets 0 to "):
        read(server)
