"""A task of a write, without Spark."""

import pytest

from core.tests.client.fake_cluster import FakeCluster

pa = pytest.importorskip("pyarrow")

from gantrymq.client.records import decode_records  # noqa: E402
from gantrymq.remoting.constants import ResponseCode  # noqa: E402
from gantrymq.spark.writing import requests, rows  # noqa: E402
from gantrymq.spark.writing.sender import RowError  # noqa: E402
from gantrymq.spark.writing.tasks import Job, send_batches  # noqa: E402

MAPS = pa.map_(pa.string(), pa.string())


def stored(cluster: FakeCluster, topic: str) -> list[object]:
    queues = cluster.broker().queues
    return [m for (name, _), q in queues.items() if name == topic for e in q.entries for m in decode_records(e.record)]


def send(cluster: FakeCluster, batches: list[object], topic: str = "telemetry", partition: int = 0) -> int:
    return send_batches(batches, Job([cluster.nameserver], topic), partition)[0]


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
            "expiresAt": pa.array([None, 5_000_000], pa.timestamp("us", "UTC")),
        }
    )
    assert send(cluster, [batch], "fallback") == 2
    (first,) = stored(cluster, "telemetry")
    assert (first.body, first.tag, first.keys) == (b"one", "t", "k1 k2")
    pairs = first.property_map()
    assert (pairs["colour"], pairs["__SHARDINGKEY"]) == ("red", "s")
    assert len(pairs["UNIQ_KEY"]) == 32
    assert "GANTRY_EXCHANGE" not in pairs
    (second,) = stored(cluster, "fallback")
    assert (second.body, second.tag, second.keys) == (b"", "", "")
    assert second.property_map()["GANTRY_EXPIRES_AT"] == "5000"


def test_text_bodies(cluster: FakeCluster) -> None:
    send(cluster, [pa.record_batch({"body": ["größe"]})])
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
        ({"body": [b"x", b"x"], "tag": ["a", "b||c"]}, "t", r"row 11: tag 'b\|\|c': a message has one tag"),
        ({"body": [b"x", b"x"], "keys": ["a", "b\x01"]}, "t", r"row 11: keys 'b\\x01' holds U\+0001"),
        (
            {"body": [b"x"] * 2, "properties": pa.array([[("a", "b")], [("c", "d"), ("e", "\x02")]], MAPS)},
            "t",
            r"row 11: properties: the value '\\x02' holds U\+0001",
        ),
        (
            {"body": [b"x"] * 2, "properties": pa.array([None, [("c", "d" * 40_000)]], MAPS)},
            "t",
            r"row 11 \(topic 't'\): the properties have 400\d\d bytes, at most 32767",
        ),
    ],
)
def test_bad_rows_are_named(cluster: FakeCluster, columns: dict[str, object], topic: str, text: str) -> None:
    fine = pa.record_batch({"body": [b"x"] * 10, "topic": ["t"] * 10})
    with pytest.raises(RowError, match=text):
        send(cluster, [fine, pa.record_batch(columns)], topic, 3)


def test_refused_rows_are_named(cluster: FakeCluster) -> None:
    cluster.broker().fail_next = [ResponseCode.MESSAGE_ILLEGAL]
    text = r"partition 0, rows 0 to 2 \(topic 'telemetry'\): send to telemetry/broker-a/\d.*MESSAGE_ILLEGAL"
    with pytest.raises(RowError, match=text):
        send(cluster, [pa.record_batch({"body": [b"x"] * 3})])


def test_a_broker_that_is_busy_is_asked_again(cluster: FakeCluster) -> None:
    cluster.broker().fail_next = [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
    assert send(cluster, [pa.record_batch({"body": [b"1", b"2"]})]) == 2
    assert sorted(message.body for message in stored(cluster, "telemetry")) == [b"1", b"2"]


def test_large_batches_are_sent_in_slices(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SLICE", 7)
    monkeypatch.setattr(requests, "REQUEST_ROWS", 3)
    batches = [pa.record_batch({"body": [b"%d" % n for n in range(20)]})] * 2
    assert send(cluster, batches) == 40
    found = stored(cluster, "telemetry")
    assert sorted(int(message.body) for message in found) == sorted([*range(20)] * 2)
    assert len({message.property_map()["UNIQ_KEY"] for message in found}) == 40


def test_one_key_has_one_queue_and_its_order(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_ROWS", 8)
    keys = [f"k{number % 5}" if number % 6 else None for number in range(100)]
    batch = pa.record_batch({"body": [b"%d" % n for n in range(100)], "shardingKey": keys})
    assert send(cluster, [batch]) == 100
    by_key: dict[str, list[tuple[int, int]]] = {}
    for (name, queue), data in cluster.broker().queues.items():
        for entry in data.entries if name == "telemetry" else ():
            for message in decode_records(entry.record):
                by_key.setdefault(message.property_map().get("__SHARDINGKEY", ""), []).append(
                    (queue, int(message.body))
                )
    assert len(by_key) == 6
    for key, found in by_key.items():
        if key:
            assert len({queue for queue, _ in found}) == 1
            assert [number for _, number in found] == sorted(number for _, number in found)
