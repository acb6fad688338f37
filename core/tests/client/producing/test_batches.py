"""Batches leave as blocks; a broker that knows none gets items."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.client import OutMessage, Producer
from gantrymq.client.messages import UniqueIds
from gantrymq.client.records import decode_records
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.overview_codes import SEND_BLOCK

MESSAGES = [
    OutMessage("telemetry", b"%d" % n, f"t{n % 2}" if n else "", ["a", f"k{n}"] if n % 2 else "", {"n": str(n)})
    for n in range(4)
]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.topics["telemetry"] = {"broker-a": 2}
    yield cluster
    cluster.close()


def sent(cluster: FakeCluster, batches: list[list[OutMessage]]) -> list[int]:
    """Codes of the requests that carried messages."""

    async def main() -> None:
        async with Producer(cluster.nameserver) as producer:
            for messages in batches:
                results = await producer.send_batch(messages)
                assert len({result.message_id for result in results}) == len(messages)

    asyncio.run(main())
    many = (SEND_BLOCK, RequestCode.SEND_BATCH_MESSAGE)
    return [command.code for command in cluster.broker().seen if command.code in many]


def test_a_broker_that_knows_no_blocks_is_asked_once(cluster: FakeCluster) -> None:
    batch = RequestCode.SEND_BATCH_MESSAGE
    assert sent(cluster, [MESSAGES, MESSAGES]) == [SEND_BLOCK, batch, batch]
    found = [
        message
        for (topic, _), queue in cluster.broker().queues.items()
        for entry in (queue.entries if topic == "telemetry" else ())
        for message in decode_records(entry.record)
    ]
    texts = [(message.body, message.tag, message.keys, message.property("n")) for message in found]
    wanted = [(b"0", "", "", "0"), (b"1", "t1", "a k1", "1"), (b"2", "t0", "", "2"), (b"3", "t1", "a k3", "3")]
    assert sorted(texts) == sorted(wanted * 2)


@pytest.mark.parametrize(
    "odd",
    [
        OutMessage("telemetry", b"x", flag=1),
        OutMessage("telemetry", b"x", properties={"UNIQ_KEY": "mine"}),
        OutMessage("telemetry", b"x", properties={"TAGS": "t"}),
        OutMessage("telemetry", b"x", properties={"KEYS": "k"}),
    ],
)
def test_what_has_no_place_in_a_block(cluster: FakeCluster, odd: OutMessage) -> None:
    assert sent(cluster, [[*MESSAGES, odd]]) == [RequestCode.SEND_BATCH_MESSAGE]


def test_ids_of_a_run_follow_one_another_and_come_once() -> None:
    ids = UniqueIds(b"\x7f\0\0\1")
    seen: set[str] = set()
    for _ in range(90):
        first = ids.run(1_800_000_000_000, 1000)
        for number in range(int(first[20:], 16), int(first[20:], 16) + 1000):
            assert number >> 16 == int(first[20:28], 16), "the counter runs into the time"
        seen.add(first)
        assert ids.next(1_800_000_000_000) not in seen
