"""Spark and a running server: `format("gantry")` reads what other doors and clients published, and writes what they read."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from gantrymq.client import BlockingAdmin, BlockingProducer, BlockingPullConsumer, OutMessage
from interop_tests.cloudevents_sinks import assigned
from interop_tests.cross_matrix import Said, by_paho
from interop_tests.running import Gantry
from interop_tests.spark_streams import begun, run
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from gantrymq.spark import session as local_session

    home = str(tmp_path_factory.mktemp("spark"))
    options = f"-Djava.io.tmpdir={home}"  # a JVM that ends leaves folders of artifacts there
    more = {"spark.sql.warehouse.dir": home, "spark.local.dir": home, "spark.driver.extraJavaOptions": options}
    session = local_session("gantrymq-interop", cores=2, settings=more, quick=True)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def nameserver(gantry: Gantry) -> str:
    return gantry.doors["nameserver"]


def publish(gantry: Gantry, topic: str, first: int, count: int) -> None:
    messages = [
        OutMessage(topic, b"%d" % number, tag=("hot", "cold")[number % 2], keys=f"k{number}", properties={"n": "1"})
        for number in range(first, first + count)
    ]
    with BlockingProducer(nameserver(gantry)) as producer:
        producer.send_many(messages)
    until_known(gantry, [topic])


def until_known(gantry: Gantry, topics: Iterable[str]) -> None:
    """Until the nameserver can tell Spark where these topics are: a door made them just now."""
    with BlockingPullConsumer(nameserver(gantry), group="check") as consumer:
        for topic in topics:
            assigned(consumer, topic)


def reader(spark: Any, gantry: Gantry, topic: str, stream: bool = False, **options: str) -> Any:
    source = (spark.readStream if stream else spark.read).format("gantry")
    return source.options(nameserver=nameserver(gantry), topic=topic, **options)


def numbers(rows: Any) -> list[int]:
    return sorted(int(row.body) for row in rows)


def test_batch_and_tags(spark: Any, combined: Gantry) -> None:
    publish(combined, "spark-batch", 0, 3000)
    rows = reader(spark, combined, "spark-batch").load().collect()
    assert numbers(rows) == list(range(3000))
    assert {row.queue for row in rows} == {0, 1, 2, 3}
    row = next(row for row in rows if row.body == b"7")
    assert (row.topic, row.broker, row.tag, row.keys) == ("spark-batch", "broker-a", "cold", "k7")
    assert row.properties["n"] == "1"
    assert abs((row.storeTimestamp - row.bornTimestamp).total_seconds()) < 60
    hot = reader(spark, combined, "spark-batch", tags="hot").schema("body binary").load().collect()
    assert numbers(hot) == list(range(0, 3000, 2))


def test_an_event_from_another_door(spark: Any, combined: Gantry) -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "e1",
        "ce-source": "/s",
        "ce-type": "line1.temp",
        "Content-Type": "text/plain",
    }
    url = f"http://{combined.doors['cloudevents']}/topics/spark-events"
    with urllib.request.urlopen(urllib.request.Request(url, b"21.5", headers, method="POST")) as answer:
        assert answer.status == 202
    until_known(combined, ["spark-events"])
    (row,) = reader(spark, combined, "spark-events").load().collect()
    assert (row.body, row.tag, row.keys) == (b"21.5", "line1.temp", "e1")
    assert row.properties["CE_source"] == "/s"
    (row,) = reader(spark, combined, "spark-events", columns="cloudevents").load().collect()
    assert (row.id, row.source, row.type, row.data) == ("e1", "/s", "line1.temp", b"21.5")
    (row,) = reader(spark, combined, "spark-events", columns="mqtt").load().collect()
    assert row.mqttTopic == "spark-events/line1/temp"


def test_by_time_by_pattern_and_by_properties(spark: Any, combined: Gantry) -> None:
    publish(combined, "spark-when-1", 0, 300)
    first = reader(spark, combined, "spark-when-1").schema("storeTimestamp timestamp").load()
    newest = first.selectExpr("unix_millis(max(storeTimestamp)) as ms").collect()[0].ms
    until(lambda: time.time() * 1000 > newest + 1)
    publish(combined, "spark-when-1", 300, 40)
    publish(combined, "spark-when-2", 340, 10)

    def read(**options: str) -> list[int]:
        source = spark.read.format("gantry").options(nameserver=nameserver(combined), **options)
        return numbers(source.schema("body binary").load().collect())

    both = {"subscribePattern": "spark-when-.*"}
    assert read(**both) == list(range(350))
    assert read(**both, startingTimestamp=str(newest + 1)) == list(range(300, 350))
    assert read(**both, endingTimestamp=str(newest + 1)) == list(range(300))
    assert read(subscribe="spark-when-1", sql="TAGS = 'hot' AND n = '1'") == list(range(0, 340, 2))
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy to latest"):
        read(**both, startingTimestamp=str(newest + 3_600_000))


def test_what_an_mqtt_filter_and_an_amqp_binding_match(spark: Any, combined: Gantry, tmp_path: Path) -> None:
    by_mqtt = ["spark-light", "spark-light/line1/temp", "spark-light/line1/state", "spark-light/line2/temp"]
    by_paho(combined, [Said((topic, ""), topic.encode(), 0) for topic in by_mqtt])
    connection = pika.BlockingConnection(pika.ConnectionParameters(*combined.address("amqp")))
    channel = connection.channel()
    channel.exchange_declare("spark-light", "topic", durable=True)
    channel.queue_declare("spark-light", durable=True)
    channel.confirm_delivery()
    for exchange, key in (("spark-light", "line1.amqp"), ("", "spark-light")):
        channel.basic_publish(exchange, key, f"{exchange}:{key}".encode(), mandatory=not exchange)
    connection.close()
    until_known(combined, ["spark-light"])

    def read(**options: str) -> set[str]:
        source = spark.read.format("gantry").options(nameserver=nameserver(combined), **options)
        return {bytes(row.body).decode() for row in source.load().select("body").collect()}

    assert read(mqttFilter="spark-light/+/temp") == {"spark-light/line1/temp", "spark-light/line2/temp"}
    assert read(mqttFilter="spark-light/line1/#") == {
        "spark-light/line1/temp",
        "spark-light/line1/state",
        "spark-light:line1.amqp",
    }
    assert read(exchange="spark-light", bindingKey="line1.#", columns="amqp") == read(mqttFilter="spark-light/line1/#")
    assert read(exchange="", bindingKey="spark-light") == {"spark-light", ":spark-light"}
    everywhere = (
        spark.readStream.format("gantry").option("mqttFilter", "+/line2/temp").option("startingOffsets", "earliest")
    )
    found = str(tmp_path / "found")
    writer = everywhere.option("nameserver", nameserver(combined)).load().select("body").writeStream.format("parquet")
    run(writer.options(path=found, checkpointLocation=str(tmp_path / "noted")).trigger(availableNow=True).start)
    assert [bytes(row.body) for row in spark.read.parquet(found).collect()] == [b"spark-light/line2/temp"]


def test_mqtt_subscribers_get_later_what_a_row_retains(spark: Any, own_server: Gantry) -> None:
    def write(*rows: tuple[str, str, int, bool | None]) -> None:
        frame = spark.createDataFrame(rows, "mqttTopic string, body string, qos int, retain boolean")
        writer = frame.coalesce(1).write.format("gantry").mode("append")
        writer.options(nameserver=nameserver(own_server), columns="mqtt").save()

    def kept() -> dict[str, tuple[bytes, int, bool]]:
        client = Paho(own_server).start()
        try:
            client.subscribe(("plant/#", 2))
            client.publish(
                "plant/end", b"end", 2
            )  # as the highest of them: one of QoS 1 may come before one of QoS 2 is complete
            found = {}
            while (message := client.messages.get(timeout=60)).topic != "plant/end":  # behind what is retained
                found[message.topic] = (message.payload, message.qos, message.retain)
            return found
        finally:
            client.stop()

    write(("plant/line 1/temp", "21", 2, True), ("plant/line 1/rpm", "900", 0, True), ("plant/line 2", "x", 1, None))
    assert kept() == {"plant/line 1/temp": (b"21", 2, True), "plant/line 1/rpm": (b"900", 0, True)}
    write(("plant/line 1/temp", "22", 1, True), ("plant/line 1/rpm", "", 1, True), ("plant/line 2", "y", 1, False))
    assert kept() == {"plant/line 1/temp": (b"22", 1, True)}
    own_server.kill_and_restart()
    assert kept() == {"plant/line 1/temp": (b"22", 1, True)}
    frame = spark.createDataFrame([("b", True)], "body string, retain boolean")
    options = {"nameserver": nameserver(own_server), "columns": "mqtt", "topic": "plant", "mode": "exactlyOnce"}
    writer = frame.write.format("gantry").mode("append").options(**options)
    with pytest.raises(Exception, match="takes no column 'retain': use atLeastOnce"):
        writer.save()


def test_delayed_messages_are_read_when_they_are_due(spark: Any, combined: Gantry, tmp_path: Path) -> None:
    """They get their offsets then, behind what came meanwhile, and have their own topic and tag."""
    with BlockingAdmin(nameserver(combined)) as admin:
        admin.create_topic("spark-delayed", queues=1)
    with BlockingProducer(nameserver(combined)) as producer:
        late = [OutMessage("spark-delayed", b"late %d" % number, tag="d", deliver_after_s=2) for number in range(3)]
        producer.send_many(late)
        producer.send("spark-delayed", b"now")
    frame = reader(spark, combined, "spark-delayed", stream=True, startingOffsets="earliest").load()
    query = begun(
        frame.writeStream.format("memory").queryName("delayed").option("checkpointLocation", str(tmp_path)).start
    )
    try:
        until(lambda: spark.table("delayed").count() == 4)
    finally:
        query.stop()
    rows = [(bytes(row.body), row.tag, row.topic) for row in spark.table("delayed").orderBy("offset").collect()]
    assert rows[0] == (b"now", None, "spark-delayed")
    assert sorted(rows[1:]) == [(b"late %d" % number, "d", "spark-delayed") for number in range(3)]


def test_from_topic_to_topic(spark: Any, combined: Gantry, tmp_path: Path) -> None:
    publish(combined, "spark-in", 0, 500)
    with BlockingAdmin(nameserver(combined)) as admin:
        admin.create_topic("spark-out", queues=2)
    frame = reader(
        spark, combined, "spark-in", stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="200"
    ).load()
    out = frame.selectExpr("body", "tag", "concat('alert-', keys) as keys", "properties").writeStream.format("gantry")
    out = out.options(nameserver=nameserver(combined), topic="spark-out", checkpointLocation=str(tmp_path))
    run(out.trigger(availableNow=True).start)
    with BlockingPullConsumer(nameserver(combined), group="spark-check") as consumer:
        consumer.assign("spark-out")
        received = []
        while len(received) < 500 and (messages := consumer.pull(wait_s=30)):
            received += messages
    assert sorted(int(message.body) for message in received) == list(range(500))
    assert {message.keys for message in received} == {f"alert-k{number}" for number in range(500)}


@pytest.mark.parametrize("mode", ["idempotent", "exactlyOnce"])
def test_a_restarted_query_writes_nothing_twice(spark: Any, combined: Gantry, tmp_path: Path, mode: str) -> None:
    """Its driver died before Spark noted the end of the last batch, which is repeated."""
    source, sink = f"spark-once-in-{mode}", f"spark-once-{mode}"
    publish(combined, source, 0, 500)
    with BlockingAdmin(nameserver(combined)) as admin:
        admin.create_topic(sink, queues=2)
    until_known(combined, [sink])
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
    frame = reader(spark, combined, source, stream=True, **options).load()
    out = frame.select("body").writeStream.format("gantry").trigger(availableNow=True)
    out = out.options(nameserver=nameserver(combined), topic=sink, mode=mode, checkpointLocation=str(tmp_path))
    first = run(out.start)
    noted = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(noted) >= 3
    noted[-1].unlink()
    (tmp_path / "commits" / f".{noted[-1].name}.crc").unlink(missing_ok=True)
    again = run(out.start)
    assert again.id == first.id
    assert again.recentProgress[0]["batchId"] == int(noted[-1].name)
    assert again.recentProgress[0]["numInputRows"] > 0
    rows = reader(spark, combined, sink).schema("body binary").load().collect()
    assert numbers(rows) == list(range(500))


def test_the_sink_loses_nothing_when_the_server_is_killed(spark: Any, own_server: Gantry, tmp_path: Path) -> None:
    publish(own_server, "spark-in", 0, 4000)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    frame = reader(spark, own_server, "spark-in", stream=True, **options).load()
    out = frame.select("body").writeStream.format("gantry").option("topic", "spark-out")
    out = out.options(nameserver=nameserver(own_server), checkpointLocation=str(tmp_path / "checkpoint"))
    query = begun(out.trigger(availableNow=True).start)
    try:
        own_server.kill_and_restart()
        assert query.awaitTermination(250)
    finally:
        query.stop()
    rows = reader(spark, own_server, "spark-out").schema("body binary").load().collect()
    assert sorted({int(row.body) for row in rows}) == list(range(4000))


def test_a_stream_goes_on_after_the_server_was_killed(spark: Any, own_server: Gantry, tmp_path: Path) -> None:
    publish(own_server, "spark-crash", 0, 1000)
    out = str(tmp_path / "out")
    frame = reader(spark, own_server, "spark-crash", stream=True, startingOffsets="earliest").load()
    writer = frame.writeStream.format("parquet").option("path", out)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = begun(writer.trigger(processingTime="100 milliseconds").start)
    try:
        query.processAllAvailable()
        own_server.kill_and_restart()
        publish(own_server, "spark-crash", 1000, 1000)
        query.processAllAvailable()
        assert query.isActive
        offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])
    finally:
        query.stop()
    assert sum(offsets["spark-crash"]["broker-a"].values()) == 2000
    assert numbers(spark.read.parquet(out).select("body").collect()) == list(range(2000))
