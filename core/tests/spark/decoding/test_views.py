"""Columns of other protocols, made of records."""

from datetime import UTC, datetime
from typing import Any

import pytest

from core.tests.client.fake_cluster import make_record

pa = pytest.importorskip("pyarrow")

from gantrymq.spark.decoding.columns import Decoder, Queue  # noqa: E402
from gantrymq.spark.decoding.views import BASE, VIEWS, View  # noqa: E402
from gantrymq.spark.planning.selecting import binding, mqtt_filter  # noqa: E402

TEXT, MAP = pa.string(), pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([pa.field("key", TEXT), pa.field("value", pa.binary())]))
TYPES = {
    "qos": pa.int32(), "retain": pa.bool_(), "priority": pa.int32(), "time": BASE["storeTimestamp"], "data": pa.binary(),
    "userProperties": MAP, "attributes": MAP, "attributeTypes": MAP, "key": pa.binary(), "value": pa.binary(),
    "partition": pa.int32(), "timestamp": BASE["storeTimestamp"], "timestampType": pa.int32(),
}  # fmt: skip


def read(view: str, records: list[bytes], names: list[str], topic: str = "plant") -> list[dict[str, Any]]:
    own = {**TYPES, "headers": HEADERS if view == "kafka" else MAP}
    schema = pa.schema([(name, own.get(name, BASE.get(name, TEXT))) for name in names])
    what = View(view, schema)
    batches, _ = Decoder(Queue(topic, "b", 3), what.decoded).decode([b"".join(records)], 0, 99)
    result = []
    for batch in what.batches(batches):
        assert batch.schema.equals(schema)
        batch.validate(full=True)
        result += batch.to_pylist()
    return result


def record(offset: int, body: bytes = b"x", **pairs: str) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    return make_record("plant", 3, offset, body, text.encode(), store_ms=86_400_000)


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_alone_and_all_together(view: str) -> None:
    records = [record(0), record(1, TAGS="a", GANTRY_QOS="0", CE_id="1", n="5"), record(2, GANTRY_H_TAGS="own")]
    whole = read(view, records, [*VIEWS[view], "offset"])
    assert [row["offset"] for row in whole] == [0, 1, 2]
    for name in VIEWS[view]:
        assert [row[name] for row in read(view, records, [name])] == [row[name] for row in whole]


def test_mqtt() -> None:
    records = [
        record(0, TAGS="line1.temp", GANTRY_QOS="0", GANTRY_RETAIN="1", site="x", GANTRY_H_TAGS="own"),
        record(1, GANTRY_QOS="many"), record(2, TAGS="%00"), record(3, TAGS="a%2Fb.c d"),
    ]  # fmt: skip
    rows = read("mqtt", records, ["mqttTopic", "qos", "retain", "userProperties"])
    assert [row["mqttTopic"] for row in rows] == ["plant/line1/temp", "plant", "plant/", "plant/a%2Fb/c d"]
    assert [(row["qos"], row["retain"]) for row in rows] == [(0, True), (1, False), (1, False), (1, False)]
    assert dict(rows[0]["userProperties"]) == {"site": "x", "TAGS": "own"}
    assert rows[1]["userProperties"] == []
    assert read("mqtt", [record(0, TAGS="a")], ["mqttTopic"], topic="my%20hall")[0]["mqttTopic"] == "my hall/a"


def test_amqp() -> None:
    records = [
        record(0, TAGS="line1.temp", GANTRY_EXCHANGE="plant", GANTRY_PRIORITY="7", GANTRY_REPLY_TO="r", n="5"),
        record(1, GANTRY_EXCHANGE="(default)"), record(2, TAGS="a"), record(3, GANTRY_EXCHANGE="(default)", GANTRY_AMQP_KEY="jobs"),
    ]  # fmt: skip
    rows = read("amqp", records, ["exchange", "routingKey", "priority", "replyTo", "headers"])
    places = [(row["exchange"], row["routingKey"]) for row in rows]
    assert places == [("plant", "line1.temp"), ("", "plant"), ("plant", "a"), ("", "jobs")]
    assert (rows[0]["priority"], rows[0]["replyTo"], dict(rows[0]["headers"])) == (7, "r", {"n": "5"})


def test_cloudevents() -> None:
    event = record(
        0, b"21", CE_id="e1", CE_source="/s", CE_type="t", CE_time="2026-01-02T03:04:05.5+01:00", CE_n="5", GANTRY_CE_TYPES="n=i m=?",
        TAGS="t",
    )  # fmt: skip
    nothing = record(1, b"", CE_id="e2", CE_time="at noon", GANTRY_CE_DATA="null")
    plain = record(2, b"p", TAGS="line1", UNIQ_KEY="U")
    first, second, third = read("cloudevents", [event, nothing, plain], list(VIEWS["cloudevents"]))
    assert (first["id"], first["source"], first["type"], first["data"]) == ("e1", "/s", "t", b"21")
    assert first["time"] == datetime(2026, 1, 2, 2, 4, 5, 500_000, UTC)
    assert dict(first["attributes"])["n"] == "5"
    assert dict(first["attributeTypes"]) == {"n": "Integer"}
    assert (second["data"], second["time"], second["type"]) == (None, datetime(1970, 1, 2, tzinfo=UTC), "message")
    assert (third["id"], third["type"], third["data"], third["attributeTypes"]) == ("U", "line1", b"p", None)


def test_kafka() -> None:
    records = [record(0, KEYS="k", n="5", TAGS="t"), record(1, __SHARDINGKEY="s"), record(2)]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    rows = read("kafka", records, names)
    assert [row["key"] for row in rows] == [b"k", b"s", None]
    assert rows[0]["headers"] == [{"key": "n", "value": b"5"}]
    assert [(row["topic"], row["partition"], row["offset"], row["timestampType"]) for row in rows] == [
        ("plant", 3, offset, 1) for offset in range(3)
    ]


def test_own_columns_beside_a_views() -> None:
    assert read("mqtt", [record(4, TAGS="a")], ["offset", "mqttTopic", "tag"]) == [
        {"offset": 4, "mqttTopic": "plant/a", "tag": "a"}
    ]


def test_properties_by_name_beside_a_map_of_them() -> None:
    kind = pa.struct([pa.field("n", TEXT)])
    what = View("mqtt", pa.schema([("properties", kind), ("userProperties", MAP)]))
    batches, _ = Decoder(Queue("t", "b", 3), what.decoded).decode([record(0, n="5", m="6")], 0, 9)
    (row,) = [row for batch in what.batches(batches) for row in batch.to_pylist()]
    assert (row["properties"], dict(row["userProperties"])) == ({"n": "5"}, {"n": "5", "m": "6"})


def chosen(selected: Any, records: list[bytes], view: str = "") -> list[int]:
    what = View(view, pa.schema([("offset", pa.int64())]), selected.selection)
    batches, _ = Decoder(Queue("plant", "b", 3), what.decoded).decode([b"".join(records)], 0, 99)
    return [row["offset"] for batch in what.batches(batches) for row in batch.to_pylist()]


def test_rows_of_an_mqtt_filter() -> None:
    records = [record(0, TAGS="line1.temp"), record(1), record(2, TAGS="line1"), record(3, TAGS="line1.temp.x")]
    assert chosen(mqtt_filter("plant/line1/#"), records) == [0, 2, 3]
    assert chosen(mqtt_filter("plant/+/temp"), records, "mqtt") == [0]
    assert chosen(mqtt_filter("plant"), records) == [1]
    assert chosen(mqtt_filter("plant/nothing"), records) == []


def test_rows_of_an_amqp_binding() -> None:
    records = [
        record(0, TAGS="a.b", GANTRY_EXCHANGE="plant"), record(1, TAGS="a.b"), record(2, TAGS="a.b", GANTRY_EXCHANGE="other"),
        record(3, TAGS="x", GANTRY_EXCHANGE="plant", GANTRY_EXCHANGE_KEYS="=y =a.b"), record(4, GANTRY_EXCHANGE="(default)"),
        record(5),
    ]  # fmt: skip
    assert chosen(binding("plant", "a.*"), records) == [0, 1, 3]
    assert chosen(binding("plant", "#"), records) == [0, 1, 3, 5]
    assert chosen(binding("", "plant"), records) == [4, 5]
