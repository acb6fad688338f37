"""The source and the sink inside a real Spark, against brokers in memory. What needs no Spark is tested in the other files."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.client.records import decode_records
from gantrymq.spark.planning.progress import lag
from interop_tests.spark_streams import run

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # pyspark's and pandas' own
]


def fill(cluster: FakeCluster, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        tag = ("hot", "cold")[number % 2]
        pairs = f"TAGS\x01{tag}\x02KEYS\x01dev-{number}\x02place\x01hall\x02".encode()
        cluster.broker().append("telemetry", number % 2, b"%d" % number, pairs, born_ms=1000 * number)


def source(spark: Any, cluster: FakeCluster, stream: bool = False, **options: str) -> Any:
    reader = (spark.readStream if stream else spark.read).format("gantry")
    return reader.options(**{"nameserver": cluster.nameserver, "topic": "telemetry", **options})


def sink(frame: Any, cluster: FakeCluster, checkpoint: Path, **options: str) -> Any:
    writer = frame.writeStream.format("gantry").option("nameserver", cluster.nameserver).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def stored(cluster: FakeCluster, topic: str) -> list[Any]:
    queues = cluster.broker().queues
    return [m for (name, _), q in queues.items() if name == topic for e in q.entries for m in decode_records(e.record)]


def test_batch(spark: Any, cluster: FakeCluster) -> None:
    fill(cluster, 1000)
    frame = source(spark, cluster).load()
    assert frame.rdd.getNumPartitions() == 2
    rows = frame.orderBy("queue", "offset").collect()
    assert len(rows) == 1000
    row = rows[3].asDict()
    assert row.pop("storeTimestamp").year > 2000
    assert row.pop("bornTimestamp").timestamp() == 6
    assert row == {
        "topic": "telemetry",
        "broker": "broker-a",
        "queue": 0,
        "offset": 3,
        "tag": "hot",
        "keys": "dev-6",
        "body": b"6",
        "properties": {"TAGS": "hot", "KEYS": "dev-6", "place": "hall"},
    }


def test_a_topic_without_messages_has_no_rows(spark: Any, cluster: FakeCluster) -> None:
    """No queue has anything to read, so `partitions` is empty, and Spark asks for a partition of its own making."""
    frame = source(spark, cluster).load()
    assert frame.columns[:2] == ["topic", "broker"]
    assert frame.collect() == []


def test_only_sparks_own_partition_of_no_queue_has_no_rows() -> None:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import BinaryType, StructType

    from gantrymq.spark.source import GantryDataSource

    reader = GantryDataSource({"nameserver": "127.0.0.1:1", "topic": "telemetry"}).reader(
        StructType().add("body", BinaryType())
    )
    assert list(reader.read(InputPartition(None))) == []
    with pytest.raises(TypeError, match="no partition of this source"):
        list(reader.read(InputPartition(7)))


def test_projection_tags_and_offsets(spark: Any, cluster: FakeCluster) -> None:
    cluster.topics["telemetry"] = {"broker-a": 1}
    for number in range(100):
        cluster.broker().append("telemetry", 0, b"x", b"TAGS\x01" + (b"hot", b"cold")[number % 2] + b"\x02")
    reader = source(
        spark, cluster, tags="hot", startingOffsets='{"telemetry":{"broker-a":{"0":10}}}',
        endingOffsets='{"telemetry":{"broker-a":{"0":20}}}',
    )  # fmt: skip
    frame = reader.schema("offset bigint, tag string").load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(n, "hot") for n in range(10, 20, 2)]
    with pytest.raises(Exception, match="column 'body' is BINARY, the schema says STRING"):
        source(spark, cluster).schema("body string").load().count()


def test_data_loss_names_queue_and_offsets(spark: Any, cluster: FakeCluster) -> None:
    fill(cluster, 100)
    cluster.broker().expire("telemetry", 1, 30)
    start = '{"telemetry":{"broker-a":{"0":0,"1":10}}}'
    with pytest.raises(Exception, match=r"broker 'broker-a', queue 1: offsets 10 to 29 \(20 messages\) are gone"):
        source(spark, cluster, startingOffsets=start).load().count()
    assert source(spark, cluster, startingOffsets=start, failOnDataLoss="false").load().count() == 70


def test_stream_in_several_batches_and_again_from_its_checkpoint(
    spark: Any, cluster: FakeCluster, tmp_path: Path
) -> None:
    fill(cluster, 1000)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def once() -> Any:
        frame = source(spark, cluster, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="300").load()
        writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        return run(writer.trigger(availableNow=True).start)

    progress = [entry["numInputRows"] for entry in once().recentProgress if entry["numInputRows"]]
    assert progress == [300, 300, 300, 100]
    fill(cluster, 50, first=1000)
    cluster.topics["telemetry"]["broker-a"] = 3  # and a new queue
    cluster.broker().append("telemetry", 2, b"1050")
    once()
    bodies = [int(row.body) for row in spark.read.parquet(out).select("body").collect()]
    assert sorted(bodies) == list(range(1051))
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offsets = newest.read_text().splitlines()[-1]
    document = json.loads(offsets)
    assert document.pop("@").keys() == {"telemetry"}
    assert document == {"telemetry": {"broker-a": {"0": 525, "1": 525, "2": 1}}}


def test_write(spark: Any, cluster: FakeCluster) -> None:
    frame = spark.range(200).selectExpr(
        "cast(id as string) as body", "if(id < 100, 'low', null) as topic", "'t' as tag", "concat('k', id) as keys",
        "map('n', cast(id as string)) as properties",
    )  # fmt: skip
    writer = frame.write.format("gantry").mode("append").option("nameserver", cluster.nameserver)
    writer.option("topic", "rest").save()
    low, rest = stored(cluster, "low"), stored(cluster, "rest")
    assert sorted(int(message.body) for message in low) == list(range(100))
    assert sorted(int(message.body) for message in rest) == list(range(100, 200))
    assert {(m.tag, m.keys, m.property("n")) for m in low} == {("t", f"k{n}", str(n)) for n in range(100)}


def test_write_errors_name_what_is_wrong(spark: Any, cluster: FakeCluster) -> None:
    def write(frame: Any, mode: str = "append", **options: str) -> None:
        frame.write.format("gantry").mode(mode).options(nameserver=cluster.nameserver, **options).save()

    with pytest.raises(Exception, match="set the option 'topic'"):
        write(spark.range(1).selectExpr("cast('x' as binary) as body"))
    with pytest.raises(Exception, match=r"'body' .* is missing"):
        write(spark.range(1).selectExpr("'t' as topic"))
    with pytest.raises(Exception, match=r"row \d+ \(topic 't'\): the body is null"):
        write(spark.range(4).selectExpr("if(id = 2, null, 'x') as body"), topic="t")
    with pytest.raises(Exception, match="mode 'overwrite' cannot be kept by a log"):
        write(spark.range(1).selectExpr("'x' as body"), mode="overwrite", topic="t")


def test_stream_from_topic_to_topic(spark: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 500)
    frame = source(spark, cluster, stream=True, startingOffsets="earliest", tags="hot").load()
    alerts = frame.selectExpr("concat('alert ', cast(body as string)) as body", "tag", "properties")
    run(lambda: sink(alerts, cluster, tmp_path / "checkpoint", topic="alerts"))
    assert sorted(m.body for m in stored(cluster, "alerts")) == sorted(b"alert %d" % n for n in range(0, 500, 2))
    assert {m.property("place") for m in stored(cluster, "alerts")} == {"hall"}
    fill(cluster, 10, first=500)
    run(lambda: sink(alerts, cluster, tmp_path / "checkpoint", topic="alerts"))
    assert len(stored(cluster, "alerts")) == 255


def test_windows_over_event_time(spark: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 100)
    frame = source(spark, cluster, stream=True, startingOffsets="earliest").schema(
        "tag string, bornTimestamp timestamp"
    )
    counts = frame.load().withWatermark("bornTimestamp", "1 second").groupBy("tag", "bornTimestamp").count()
    writer = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
    run(writer.trigger(availableNow=True).start)
    assert spark.sql("select sum(count) as total from counts").collect()[0].total == 100


def test_more_tasks_than_queues(spark: Any, cluster: FakeCluster) -> None:
    fill(cluster, 1000)
    frame = source(spark, cluster, minPartitions="6", maxRecordsPerPartition="90").load()
    assert frame.rdd.getNumPartitions() >= 12
    assert sorted(int(row.body) for row in frame.select("body").collect()) == list(range(1000))


def test_some_properties_by_name(spark: Any, cluster: FakeCluster) -> None:
    fill(cluster, 10)
    frame = source(spark, cluster).schema("offset bigint, properties struct<place: string, KEYS: string, none: string>")
    rows = frame.load().where("offset = 1").collect()
    assert sorted(tuple(row.properties) for row in rows) == [("hall", "dev-2", None), ("hall", "dev-3", None)]


def test_pushed_filters_read_less(spark: Any, cluster: FakeCluster) -> None:
    fill(cluster, 1000)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = source(spark, cluster, pushFilters="true").load()
        assert frame.where("queue = 1").rdd.getNumPartitions() == 1
        rows = frame.where("queue = 0 and offset >= 100 and offset < 110").select("body").collect()
        assert sorted(int(row.body) for row in rows) == list(range(200, 220, 2))
        assert frame.where("tag = 'cold' and offset < 10").count() == 10
        asked = [each.fields["subscription"] for each in cluster.broker().seen if "subscription" in each.fields]
        assert asked[-1] == "cold"
        now = frame.where("storeTimestamp > timestamp '2100-01-01 00:00:00'")
        assert now.count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_group_has_the_offsets_and_progress_the_lag(spark: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 1000)
    options = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400",
        "consumerGroup": "g",
        "commitOffsets": "true",
    }
    frame = source(spark, cluster, stream=True, **options).schema("offset bigint").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = run(writer.trigger(availableNow=True).start)
    assert cluster.broker().offsets == {("g", "telemetry", 0): 500, ("g", "telemetry", 1): 500}
    seen = [sum(lag(progress).values()) for progress in query.recentProgress if progress["numInputRows"]]
    assert seen == [600, 200, 0]


def kafka_job(
    spark: Any, form: str, options: dict[str, str], out: str, checkpoint: str
) -> list[tuple[str, int, int, int]]:
    """A job for Spark's Kafka source, word for word; what it wrote, summed up."""
    frame = spark.readStream.format(form).options(**options).load()
    parsed = frame.selectExpr(
        "CAST(key AS STRING) AS device", "CAST(CAST(value AS STRING) AS INT) AS number", "topic", "partition", "offset", "timestamp",
        "timestampType",
    )  # fmt: skip
    writer = parsed.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    run(writer.trigger(availableNow=True).start)
    spark.read.parquet(out).createOrReplaceTempView("numbers")
    query = (
        "SELECT topic, partition, sum(number), max(offset) FROM numbers GROUP BY topic, partition ORDER BY partition"
    )
    return [tuple(row) for row in spark.sql(query).collect()]


def test_a_kafka_job_by_changing_format_and_two_options(spark: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster, 100)
    options = {
        "subscribe": "telemetry",
        "startingOffsets": '{"telemetry": {"0": 10, "1": -2}}',
        "maxOffsetsPerTrigger": "40",
    }
    options |= {"nameserver": cluster.nameserver, "columns": "kafka"}
    rows = kafka_job(spark, "gantry", options, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    even, odd = sum(range(20, 100, 2)), sum(range(1, 100, 2))
    assert rows == [("telemetry", 0, even, 49), ("telemetry", 1, odd, 49)]


def test_columns_of_protocols(spark: Any, cluster: FakeCluster) -> None:
    fill(cluster, 10)
    names = {}
    for view in ("mqtt", "amqp", "cloudevents", "kafka"):
        frame = source(spark, cluster, columns=view).load()
        names[view] = frame.columns
        assert len(frame.collect()) == 10
    assert names["kafka"] == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert names["mqtt"][-4:] == ["mqttTopic", "qos", "retain", "userProperties"]
    row = (
        source(spark, cluster, columns="kafka", includeHeaders="true")
        .load()
        .where("offset = 0 and partition = 1")
        .collect()[0]
    )
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("place", b"hall")]
    picked = source(spark, cluster, columns="mqtt").schema("mqttTopic string, offset bigint").load()
    assert {row.mqttTopic for row in picked.collect()} == {"telemetry/hot", "telemetry/cold"}
