"""Rows to messages, without Spark."""

import pytest

from core.tests.client.fake_cluster import FakeCluster

pa = pytest.importorskip("pyarrow")

from gantrymq.client.records import decode_records  # noqa: E402
from gantrymq.remoting.constants import ResponseCode  # noqa: E402
from gantrymq.spark import sending  # noqa: E402
from gantrymq.spark.sending import RowError, send_batches  # noqa: E402

MAPS = pa.map_(pa.string(), pa.string())


@pytest.fixture(autouse=True)
def _no_producer_left() -> object:
    yield
    while sending._producers:
        sending._producers.popitem()[1].close()


def stored(cluster: FakeCluster, topic: str) -> list[object]:
    queues = cluster.broker().queues
    return [m for (name, _), q in queues.items() if name == topic for e in q.entries for m in decode_records(e.record)]


def test_every_column(cluster: FakeCluster) -> None:
    batch = pa.record_batch(
        {
            "body": pa.array([b"one", b""], pa.binary()),
            "topic": ["telemetry", None],
            "tag": ["t", None],
            "keys": ["k1 k2", None],
            "properties": pa.array(
                [[("colour", "red"), ("UNIQ_KEY", "other"), ("GANTRY_EXCHANGE", "e"), ("__SHARDINGKEY", "s")], None],
                MAPS,
            ),
        }
    )
    assert send_batches([batch], cluster.nameserver, "fallback", 0) == 2
    (first,) = stored(cluster, "telemetry")
    assert (first.body, first.tag, first.keys) == (b"one", "t", "k1 k2")
    pairs = first.property_map()
    assert (pairs["colour"], pairs["__SHARDINGKEY"]) == ("red", "s")
    assert pairs["UNIQ_KEY"] != "other"
    assert "GANTRY_EXCHANGE" not in pairs
    (second,) = stored(cluster, "fallback")
    assert (second.body, second.tag, second.keys) == (b"", "", "")


def test_text_bodies(cluster: FakeCluster) -> None:
    send_batches([pa.record_batch({"body": ["größe"]})], cluster.nameserver, "telemetry", 0)
    assert stored(cluster, "telemetry")[0].body == "größe".encode()


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ({"body": [b"x", b"x", None]}, "t", r"partition 3, row 12 \(topic 't'\): the body is null"),
        ({"body": [b"x", b"x"], "topic": ["t", ""]}, "", "partition 3, row 11: the topic is null or empty"),
        (
            {"body": [b"x", b"x"], "topic": ["t", "no topic"]},
            "",
            r"partition 3, row 11 \(topic 'no topic'\): topic name",
        ),
    ],
)
def test_bad_rows_are_named(cluster: FakeCluster, columns: dict[str, object], topic: str, text: str) -> None:
    fine = pa.record_batch({"body": [b"x"] * 10, "topic": ["t"] * 10})
    with pytest.raises(RowError, match=text):
        send_batches([fine, pa.record_batch(columns)], cluster.nameserver, topic, 3)


def test_refused_rows_are_named(cluster: FakeCluster) -> None:
    cluster.broker().fail_next = [ResponseCode.MESSAGE_ILLEGAL]
    text = r"partition 0, row 0 \(topic 'telemetry'\): send to telemetry/broker-a/\d.*MESSAGE_ILLEGAL"
    with pytest.raises(RowError, match=text):
        send_batches([pa.record_batch({"body": [b"x"] * 3})], cluster.nameserver, "telemetry", 0)


def test_large_batches_are_sent_in_slices(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SLICE", 7)
    batches = [pa.record_batch({"body": [b"%d" % n for n in range(20)]})] * 2
    assert send_batches(batches, cluster.nameserver, "telemetry", 0) == 40
    assert len(stored(cluster, "telemetry")) == 40
