"""Rows in the shapes of other protocols, into records."""

from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeCluster

pa = pytest.importorskip("pyarrow")

from gantrymq.client.records import decode_records  # noqa: E402
from gantrymq.spark import wire  # noqa: E402
from gantrymq.spark.planning.offsets import OptionError  # noqa: E402
from gantrymq.spark.writing.sender import RowError  # noqa: E402
from gantrymq.spark.writing.tasks import Job, send_batches  # noqa: E402

MAPS = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def write(cluster: FakeCluster, view: str, columns: dict[str, Any], topic: str = "") -> list[Any]:
    """What is stored, in the order of the bodies; the first row is cut off in front, so that arrays begin somewhere inside their buffers."""
    batch = pa.record_batch(columns)
    doubled = pa.Table.from_batches([batch, batch])
    half = doubled.combine_chunks().to_batches()[0].slice(batch.num_rows)
    assert send_batches([half], Job([cluster.nameserver], topic, columns=view), 0)[0] == batch.num_rows
    found = [m for q in cluster.broker().queues.values() for e in q.entries for m in decode_records(e.record)]
    return sorted(found, key=lambda message: message.body)


def pairs(message: Any) -> dict[str, str]:
    return {name: value for name, value in message.property_map().items() if name not in ("UNIQ_KEY", "TAGS", "KEYS")}


def test_mqtt(cluster: FakeCluster) -> None:
    rows = write(
        cluster,
        "mqtt",
        {
            "body": [b"1", b"2", b"3", b"4"],
            "mqttTopic": ["plant/line 1/temp", "plant/", "a.b/c.d", None],
            "qos": pa.array([0, None, 2, 1], pa.int32()),
            "userProperties": pa.array([[("site", "x"), ("TAGS", "own")], None, [], [("n", "5")]], MAPS),
            "contentType": ["text/plain", None, "", None],
        },
        "rest",
    )
    assert [(row.topic, row.tag) for row in rows] == [
        ("plant", "line%201.temp"), ("plant", "%00"), ("a%2Eb", "c%2Ed"), ("rest", ""),
    ]  # fmt: skip
    assert pairs(rows[0]) == {
        "site": "x", "GANTRY_H_TAGS": "own", "GANTRY_QOS": "0", "GANTRY_ORIGIN": "mqtt", "GANTRY_CONTENT_TYPE": "text/plain",
    }  # fmt: skip
    assert pairs(rows[1]) == {"GANTRY_ORIGIN": "mqtt"}
    assert pairs(rows[3]) == {"GANTRY_ORIGIN": "mqtt", "n": "5", "GANTRY_QOS": "1"}


def test_mqtt_retain(cluster: FakeCluster) -> None:
    """Asked of the broker, which makes the row (remoting/server/sending/specials.py)."""
    columns = {"body": [b"1", b"2", b"3"], "mqttTopic": ["plant/a"] * 3, "retain": [True, False, None]}
    rows = write(cluster, "mqtt", columns)
    assert [pairs(row).get("GANTRY_MQTT_RETAIN") for row in rows] == ["1", None, None]


def test_mqtt_retain_needs_one_broker_group_and_rows_that_come_once() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import BinaryType, BooleanType, StructType

    from gantrymq.spark.source import GantryDataSource

    schema = StructType().add("body", BinaryType()).add("retain", BooleanType())

    def writer(cluster: FakeCluster, **more: str) -> object:
        cluster.topics["plant"] = dict.fromkeys(cluster.brokers, 1)
        options = {"nameserver": cluster.nameserver, "columns": "mqtt", "topic": "plant", **more}
        return GantryDataSource(options).writer(schema, False)

    with (
        closing(FakeCluster(2)) as two,
        pytest.raises(OptionError, match="one broker group, and there are broker-a, broker-b"),
    ):
        writer(two)
    with closing(FakeCluster()) as one:
        assert writer(one)
        with pytest.raises(OptionError, match="takes no column 'retain': use atLeastOnce"):
            writer(one, mode="idempotent")
    wire.close_all()


def test_amqp(cluster: FakeCluster) -> None:
    rows = write(
        cluster,
        "amqp",
        {
            "body": ["1", "2", "3", "4"],
            "exchange": ["plant", "", "amq.topic", None],
            "routingKey": ["line1.temp", "jobs", "", "x"],
            "headers": pa.array([[("KEYS", "k")], None, None, None], MAPS),
            "priority": pa.array([9, None, None, None], pa.int32()),
            "replyTo": ["answers", None, None, None],
        },
        "rest",
    )
    assert [(row.topic, row.tag) for row in rows] == [
        ("plant", "line1.temp"), ("jobs", ""), ("amq%2Etopic", ""), ("rest", "x"),
    ]  # fmt: skip
    assert pairs(rows[0]) == {
        "GANTRY_H_KEYS": "k",
        "GANTRY_PRIORITY": "9",
        "GANTRY_REPLY_TO": "answers",
        "GANTRY_ORIGIN": "amqp",
    }
    assert pairs(rows[1]) == {"GANTRY_ORIGIN": "amqp"}


def test_cloudevents(cluster: FakeCluster) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    rows = write(
        cluster,
        "cloudevents",
        {
            "data": ["1", None],
            "id": ["e 1", "e2"],
            "source": ["/s", "/s"],
            "type": ["line1.temp", "up"],
            "time": pa.array([None, at], pa.timestamp("us", "UTC")),
            "datacontenttype": ["text/plain", None],
            "attributes": pa.array(
                [[("partitionkey", "p"), ("ext", "5"), ("id", "other"), ("specversion", "9"), ("subject", "s")], None],
                MAPS,
            ),
            "attributeTypes": pa.array([[("ext", "Integer"), ("flag", "Boolean")], None], MAPS),
        },
        "events",
    )
    second, first = rows
    assert (first.body, first.tag, first.keys) == (b"1", "line1.temp", "e%201")
    assert pairs(first) == {
        "GANTRY_CONTENT_TYPE": "text/plain", "CE_partitionkey": "p", "CE_ext": "5", "CE_subject": "s", "__SHARDINGKEY": "p", "CE_id": "e 1",
        "CE_source": "/s", "CE_type": "line1.temp", "CE_datacontenttype": "text/plain", "CE_specversion": "1.0", "GANTRY_ORIGIN": "cloudevents",
        "GANTRY_CE_TYPES": "ext=i flag=b",
    }  # fmt: skip
    assert (second.body, second.tag, second.keys) == (b"", "up", "e2")
    assert pairs(second) == {
        "GANTRY_CE_DATA": "absent", "CE_id": "e2", "CE_source": "/s", "CE_type": "up", "CE_time": "2026-01-02T03:04:05.678000Z",
        "CE_specversion": "1.0", "GANTRY_ORIGIN": "cloudevents",
    }  # fmt: skip


def test_kafka(cluster: FakeCluster) -> None:
    headers = pa.array([[{"key": "h", "value": b"v"}, {"key": "UNIQ_KEY", "value": b"w"}], None, []], HEADERS)
    rows = write(cluster, "kafka", {"value": [b"1", b"2", b"3"], "key": [b"k", b"k", None], "headers": headers}, "t")
    assert [row.keys for row in rows] == ["k", "k", ""]
    assert pairs(rows[0]) == {"h": "v", "GANTRY_H_UNIQ_KEY": "w", "__SHARDINGKEY": "k"}
    assert rows[0].queue_id == rows[1].queue_id
    assert pairs(rows[2]) == {}


def test_kafkas_partition_goes_before_the_key(cluster: FakeCluster) -> None:
    given = {
        "value": [b"%d" % number for number in range(8)],
        "key": [b"k"] * 8,
        "partition": pa.array([3, 1, None, 0, 1, None, 2, 3], pa.int32()),
    }
    queues = {row.body: row.queue_id for row in write(cluster, "kafka", given, "t")}
    assert [queues[b"%d" % number] for number in (0, 1, 3, 4, 6, 7)] == [3, 1, 0, 1, 2, 3]
    assert queues[b"2"] == queues[b"5"]


@pytest.mark.parametrize(
    ("view", "columns", "text"),
    [
        ("mqtt", {"mqttTopic": ["a", "a/+"]}, "row 1: mqttTopic 'a/[+]': .* no wildcards"),
        ("mqtt", {"mqttTopic": ["a", ""]}, "row 1: mqttTopic ''"),
        ("mqtt", {"mqttTopic": ["a", "$SYS/x"]}, "row 1: mqttTopic '.SYS/x': it belongs to the system"),
        ("mqtt", {"mqttTopic": ["a"] * 2, "qos": pa.array([None, 3], pa.int32())}, "row 1: qos is 3, allowed are 0 to 2"),
        ("mqtt", {"mqttTopic": ["a"] * 2, "contentType": ["", "a\x01"]}, r"row 1: GANTRY_CONTENT_TYPE 'a\\x01' holds"),
        ("amqp", {"exchange": ["e", ""], "routingKey": ["", None]}, "row 1: exchange is empty, the default one"),
        ("amqp", {"exchange": ["e", "%RETRY%g"]}, "row 1: exchange '%RETRY%g': it belongs to the system"),
        ("amqp", {"exchange": ["e", "e"], "priority": pa.array([0, 256], pa.int32())}, "row 1: priority is 256"),
    ],
)  # fmt: skip
def test_bad_rows(cluster: FakeCluster, view: str, columns: dict[str, Any], text: str) -> None:
    with pytest.raises(RowError, match=text):
        write(cluster, view, {"body": [b"x"] * 2, **columns})


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"id": ["1", ""]}, "row 1: id is null or empty"),
        ({"source": ["1", None]}, "row 1: source is null or empty"),
        ({"attributes": pa.array([[("a", "1")], [("b", "1"), ("No", "1")]], MAPS)}, "row 1: attributes 'No'"),
        ({"attributeTypes": pa.array([[("a", "String")], [("a", "Blob")]], MAPS)}, "row 1: attributeTypes 'Blob'"),
    ],
)
def test_bad_events(cluster: FakeCluster, changed: dict[str, Any], text: str) -> None:
    columns = {"data": [b"x"] * 2, "id": ["1", "2"], "source": ["/s"] * 2, "type": ["t"] * 2}
    with pytest.raises(RowError, match=text):
        write(cluster, "cloudevents", columns | changed, "events")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"key": [b"k", b"\xff"]}, r"row 1: key is no UTF-8: b'\\xff'"),
        ({"headers": pa.array([None, [{"key": "h", "value": b"\xff"}]], HEADERS)}, "row 1: the value of a header"),
        ({"value": [b"x", None]}, "row 1 .*the body is null"),
        ({"partition": pa.array([0, -1], pa.int32())}, "row 1: partition is -1; they begin with 0"),
        (
            {"partition": pa.array([3, 4], pa.int32())},
            r"row 1 \(topic 't'\): partition is 4, and the topic has 4 that can be written, from 0 on",
        ),
    ],
)
def test_bad_kafka_rows(cluster: FakeCluster, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(RowError, match=text):
        write(cluster, "kafka", {"value": [b"x"] * 2} | changed, "t")


def test_delayed_rows_go_alone(cluster: FakeCluster) -> None:
    """Batches take no delayed message."""
    due = pa.array([None, 2_000_000, None, 3_000_000], pa.timestamp("us", "UTC"))
    rows = write(cluster, "", {"body": ["1", "2", "3", "4"], "deliverAt": due, "tag": ["a", "b", None, None]}, "t")
    assert [pairs(row) for row in rows] == [{}, {"TIMER_DELIVER_MS": "2000"}, {}, {"TIMER_DELIVER_MS": "3000"}]
    assert [(row.body, row.tag) for row in rows] == [(b"1", "a"), (b"2", "b"), (b"3", ""), (b"4", "")]
