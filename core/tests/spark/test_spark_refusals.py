"""Bad input and lost servers as users of a real Spark meet them: its own error holds the text that names option, queue, offsets and the fix, and no query
ends as if nothing were wrong. The texts themselves: planning/test_refusals.py, without Spark."""

import re
from pathlib import Path
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.model.limits import BODY_BYTES_CEILING
from interop_tests.spark_streams import run

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

TOO_LARGE = BODY_BYTES_CEILING + 1


def fill(cluster: FakeCluster, count: int) -> None:
    for number in range(count):
        cluster.broker().append("telemetry", number % 2, b"%d" % number, b"TAGS\x01hot\x02")


def source(spark: Any, cluster: FakeCluster, stream: bool = False, **options: str) -> Any:
    given = {"nameserver": cluster.nameserver, "topic": "telemetry", **options}
    kept = {name: value for name, value in given.items() if value != "-"}
    return (spark.readStream if stream else spark.read).format("gantry").options(**kept)


READS: list[tuple[dict[str, str], str]] = [
    ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
    ({"subscribePattern": "tele.*"}, "topic and subscribePattern exclude each other"),
    ({"tags": "hot", "sql": "a = 1"}, "tags and sql exclude each other"),
    ({"topic": "-"}, "set the option 'topic' to the topic to read"),
    ({"topic": "nowhere"}, "nowhere"),
    ({"topic": "-", "subscribePattern": "no.*"}, "subscribePattern is 'no.*': no topic matches it"),
    ({"startingOffsets": '{"telemetry":{"0":51}}'}, "telemetry/broker-a/0 is 51, but the queue ends at 50: allowed are"),
    ({"endingOffsets": '{"telemetry":{"1":99}}'}, "telemetry/broker-a/1 is 99, but the queue ends at 50"),
    ({"startingOffsets": '{"telemetry":{"7":1}}'}, "names telemetry/7, which does not exist; topic 'telemetry' has"),
    ({"assign": '{"telemetry":[5]}', "topic": "-"}, "assign names queue telemetry/5, which does not exist"),
    ({"path": "/data"}, "messages have no path; name the topic with the option 'topic'"),
    ({"kafka.bootstrap.servers": "h:9092"}, "set nameserver to HOST:PORT"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), READS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_batch(spark: Any, cluster: FakeCluster, options: dict[str, str], text: str) -> None:
    fill(cluster, 100)
    with pytest.raises(Exception, match=re.escape(text)):
        source(spark, cluster, **options).load().collect()


STREAMS: list[tuple[dict[str, str], str]] = [
    ({"endingOffsets": "latest"}, "has no meaning for a stream; use trigger(availableNow=True)"),
    ({"topic": "nowhere"}, "nowhere"),
    ({"startingOffsets": '{"telemetry":{"0":51}}'}, "telemetry/broker-a/0 is 51, but the queue ends at 50"),
    ({"startingOffsets": "earliest", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "the least must not be above the most"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), STREAMS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_stream(spark: Any, cluster: FakeCluster, tmp_path: Path, options: dict[str, str], text: str) -> None:
    fill(cluster, 100)

    def begin() -> Any:
        frame = source(spark, cluster, stream=True, **options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        return writer.trigger(availableNow=True).start()

    with pytest.raises(Exception, match=re.escape(text)):
        run(begin)


WRITES: list[tuple[Any, dict[str, str], str]] = [
    ("cast(id as int) as body", {}, "column 'body' is int; allowed is binary or string"),
    (["'x' as body", "map('a', 1) as properties"], {}, "column 'properties' is map<string,int>; allowed is"),
    (["'x' as body", "1 as value"], {}, "column 'value' cannot be written; allowed are"),
    ("if(id = 1, null, 'x') as body", {}, "row 1 (topic 'out'): the body is null; an empty one is allowed"),
    (f"repeat('x', {TOO_LARGE}) as body", {}, f"row 0 (topic 'out'): the body has {TOO_LARGE} bytes, at most"),
    (["'x' as body", "if(id = 1, 'a b', 'ok') as topic"], {}, "(topic 'a b'): topic name"),
    ("'x' as body", {"tags": "x"}, "tags has no meaning for writing"),
    ("'x' as body", {"mode": "exactly"}, "mode is 'exactly': allowed are atLeastOnce"),
    ("'x' as body", {"topic": "a,b"}, "the sink takes one"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "options", "text"), WRITES, ids=lambda value: value[:24] if isinstance(value, str) else ""
)
def test_a_write(spark: Any, cluster: FakeCluster, columns: Any, options: dict[str, str], text: str) -> None:
    frame = spark.range(0, 2, 1, 1).selectExpr(*([columns] if isinstance(columns, str) else columns))
    given = {"nameserver": cluster.nameserver, "topic": "out", **options}
    with pytest.raises(Exception, match=re.escape(text)):
        frame.write.format("gantry").mode("append").options(**given).save()


@pytest.mark.parametrize("what", ["broker-a", "ns"])
def test_a_server_that_is_gone_ends_reads_and_writes(spark: Any, cluster: FakeCluster, what: str) -> None:
    fill(cluster, 10)
    address = cluster.broker().address if what == "broker-a" else cluster.nameserver
    cluster.stop(what)
    with pytest.raises(Exception, match=re.escape(address)):
        source(spark, cluster).load().collect()
    writer = spark.range(1).selectExpr("'x' as body").write.format("gantry").mode("append")
    with pytest.raises(Exception, match=re.escape(address)):
        writer.options(nameserver=cluster.nameserver, topic="telemetry").save()


def test_a_broker_with_less_or_other_messages_is_said(spark: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    """Replaced by one of the same name: an older directory, then one that was filled again."""
    fill(cluster, 100)

    def once() -> Any:
        frame = source(spark, cluster, stream=True, startingOffsets="earliest").schema("offset bigint").load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "noted"))
        return run(writer.trigger(availableNow=True).start)

    once()
    queue = cluster.broker().queues["telemetry", 1]
    older = queue.entries[:20]
    queue.entries[:] = older
    text = "queue 1: offsets 20 to 49 (30 messages) are gone: the broker ends at offset 20"
    with pytest.raises(Exception, match=re.escape(text)):
        once()
    for number in range(40):
        cluster.broker().append("telemetry", 1, b"%d" % number, b"TAGS\x01cold\x02", store_ms=4_000_000_000_000)
    with pytest.raises(Exception, match="the topic was made anew, or the broker has another directory"):
        once()
