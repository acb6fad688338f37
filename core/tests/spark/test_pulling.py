"""The executor's side against brokers in memory, without Spark."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from core.tests.client.fake_cluster import FakeCluster

pa = pytest.importorskip("pyarrow")

from gantrymq.remoting.constants import RequestCode, ResponseCode  # noqa: E402
from gantrymq.spark import pulling, wire  # noqa: E402
from gantrymq.spark.planning.dividing import QueueRange  # noqa: E402
from gantrymq.spark.planning.offsets import DataLossError  # noqa: E402

SCHEMA = pa.schema({"offset": pa.int64(), "body": pa.binary()})


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RETRY_FOR_S", 3.0)
    monkeypatch.setattr(wire, "PAUSE_FIRST_S", 0.01)


def fill(cluster: FakeCluster, count: int, size: int = 0) -> None:
    for number in range(count):
        tag = b"even" if number % 2 == 0 else b"odd"
        cluster.broker().append("telemetry", 0, b"%d" % number + bytes(size), b"TAGS\x01" + tag + b"\x02")


def read(
    cluster: FakeCluster, start: int, end: int, tags: tuple[str, ...] = (), strict: bool = True, check_crc: bool = False
) -> Iterator[tuple[int, bytes]]:
    part = QueueRange("telemetry", "broker-a", 0, start, end, cluster.broker().address)
    for batch in pulling.read_range(part, SCHEMA, [cluster.nameserver], "g", tags, strict, check_crc):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def pulls(cluster: FakeCluster) -> int:
    return sum(1 for command in cluster.broker().seen if command.code == RequestCode.PULL_MESSAGE)


def test_a_range_is_read_exactly(cluster: FakeCluster) -> None:
    fill(cluster, 5000)
    assert list(read(cluster, 10, 4990)) == [(n, b"%d" % n) for n in range(10, 4990)]
    assert pulls(cluster) == 5


def test_a_broker_that_gives_few(cluster: FakeCluster) -> None:
    fill(cluster, 1500)
    cluster.broker().pull_max = 32
    assert [offset for offset, _ in read(cluster, 0, 1500)] == list(range(1500))
    assert pulls(cluster) < 3 * 1500 / 32


def test_large_bodies_fill_a_pull_early(cluster: FakeCluster) -> None:
    fill(cluster, 300, size=1000)
    cluster.broker().pull_bytes_max = 50_000
    assert [offset for offset, _ in read(cluster, 0, 300)] == list(range(300))


def test_blocks_are_decoded_together(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cluster, 2000, size=100)
    cluster.broker().pull_max = 100
    monkeypatch.setattr(pulling, "BLOCK_BYTES", 100_000)
    part = QueueRange("telemetry", "broker-a", 0, 0, 2000, cluster.broker().address)
    sizes = [b.num_rows for b in pulling.read_range(part, SCHEMA, [cluster.nameserver], "g", (), True)]
    assert sum(sizes) == 2000
    assert len(sizes) < 6


def test_gaps_behind_a_tag_filter_are_no_loss(cluster: FakeCluster) -> None:
    fill(cluster, 3000)
    assert [offset for offset, _ in read(cluster, 1, 2999, tags=("even",))] == list(range(2, 2999, 2))
    assert list(read(cluster, 0, 3000, tags=("none",))) == []


def test_expired_messages(cluster: FakeCluster) -> None:
    fill(cluster, 100)
    cluster.broker().expire("telemetry", 0, 40)
    with pytest.raises(DataLossError, match=r"queue 0: offsets 10 to 39 \(30 messages\) are gone.*begins at offset 40"):
        list(read(cluster, 10, 90))
    assert [offset for offset, _ in read(cluster, 10, 90, strict=False)] == list(range(40, 90))
    with pytest.raises(DataLossError, match="offsets 10 to 29"):
        list(read(cluster, 10, 30))
    assert list(read(cluster, 10, 30, strict=False)) == []


def test_a_queue_that_ends_early(cluster: FakeCluster) -> None:
    fill(cluster, 100)
    with pytest.raises(DataLossError, match=r"offsets 100 to 119 .*ends at offset 100"):
        list(read(cluster, 50, 120))
    assert len(list(read(cluster, 50, 120, strict=False))) == 50


def test_a_hole_is_loss(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    queue = cluster.broker().queues["telemetry", 0]
    queue.entries[4].record = queue.entries[5].record = b""
    with pytest.raises(DataLossError, match=r"offsets 4 to 5 \(2 messages\) are gone"):
        list(read(cluster, 0, 10))
    assert [offset for offset, _ in read(cluster, 0, 10, strict=False)] == [0, 1, 2, 3, 6, 7, 8, 9]
    queue.entries[9].record = b""
    with pytest.raises(DataLossError, match=r"offsets 9 to 9 \(1 message\)"):
        list(read(cluster, 6, 10))


def test_a_broken_connection_is_opened_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "BLOCK_BYTES", 1)
    fill(cluster, 5000)
    seen = []
    for offset, _ in read(cluster, 0, 5000):
        seen.append(offset)
        if offset in (1000, 3000):
            cluster.drop_connections("broker-a")
    assert seen == list(range(5000))


def test_a_broker_elsewhere_is_found(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    moved = QueueRange("telemetry", "broker-a", 0, 0, 10, "127.0.0.1:1")
    batches = list(pulling.read_range(moved, SCHEMA, [cluster.nameserver], "g", (), True))
    assert sum(batch.num_rows for batch in batches) == 10


def test_a_broker_that_is_busy_for_a_moment(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    broker = cluster.broker()
    answer, refusals = broker.on_pull_message, [1, 1]

    def busy(command: object, transport: object) -> bytes | None:
        if refusals:
            refusals.pop()
            from gantrymq.remoting.codec import response

            return response(command, ResponseCode.SYSTEM_BUSY, "later")
        return answer(command, transport)

    broker.on_pull_message = busy
    assert len(list(read(cluster, 0, 10))) == 10


def test_a_reader_that_stops_early_leaves_the_connection_usable(cluster: FakeCluster) -> None:
    fill(cluster, 20_000)
    reading = read(cluster, 0, 20_000)
    next(reading)
    reading.close()
    assert len(list(read(cluster, 0, 100))) == 100


def test_a_body_that_does_not_fit_its_crc_is_lost_data(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, 9, size=20)
    entries = cluster.broker().queues["telemetry", 0].entries
    entries[4] = replace(entries[4], record=entries[4].record.replace(b"4" + bytes(20), b"5" + bytes(20)))
    assert len(list(read(cluster, 0, 9))) == 9
    with pytest.raises(DataLossError, match="CRC of its body"):
        list(read(cluster, 0, 9, check_crc=True))
    assert [offset for offset, _ in read(cluster, 0, 9, strict=False, check_crc=True)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert "CRC of its body" in caplog.text
