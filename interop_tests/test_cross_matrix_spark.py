"""Spark in the cross matrix: a batch read of what every door published, and what Spark wrote through every other door."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from gantrymq.model.names import encode_topic
from interop_tests.cross_matrix import EXITS, KIND, OCTETS, SOURCES, Exits, Said, amqp_properties, can_say
from interop_tests.running import Gantry
from interop_tests.test_cross_matrix import CHECKS, EXIT_KIND, TIME, by_name, paired, plan
from interop_tests.test_spark_source import nameserver, spark, until_known

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


def keys_of(kind: str, line: Said) -> str:
    return {"event": f"e{line.number}", "native": f"k{line.number} all"}.get(kind, "")


def test_spark_reads_what_every_door_published(spark: Any, combined: Gantry) -> None:
    wanted: dict[tuple[str, str, bytes], list[str]] = defaultdict(list)
    topics: dict[str, None] = {}
    for source, publish in SOURCES.items():
        kind = KIND.get(source, "event")
        every, lines = plan(kind, f"s{uuid4().hex[:8]}")
        lines = [(name, line) for name, line in lines if can_say(source, line)]
        exits = Exits(
            combined, every[0].first, list(dict.fromkeys(name.first for name in every)), []
        )  # makes the exchanges
        publish(combined, [line for _, line in lines])
        exits.close()
        for name, line in lines:
            topics[name.topic] = None
            wanted[name.topic, name.tag, line.body].append(keys_of(kind, line))
    until_known(combined, topics)
    frame = (
        spark.read.format("gantry").option("nameserver", nameserver(combined)).option("topic", ",".join(topics)).load()
    )
    found: dict[tuple[str, str, bytes], list[str]] = defaultdict(list)
    for row in frame.select("topic", "tag", "body", "keys").collect():
        found[row.topic, row.tag or "", bytes(row.body)].append(row.keys or "")
    assert {key: sorted(keys) for key, keys in found.items()} == {key: sorted(keys) for key, keys in wanted.items()}


def mqtt_row(line: Said) -> dict[str, Any]:
    return {"mqttTopic": line.name[0], "body": line.body, "qos": 1}


def amqp_row(line: Said) -> dict[str, Any]:
    said = amqp_properties(line)
    return {
        "exchange": line.name[0], "routingKey": line.name[1], "body": line.body, "headers": said["headers"], "priority": said["priority"],
        "contentType": OCTETS, "correlationId": said["correlation_id"], "replyTo": said["reply_to"], "messageId": said["message_id"],
    }  # fmt: skip


def event_row(line: Said) -> dict[str, Any]:
    return {
        "topic": encode_topic(line.name[0]), "data": line.body, "id": f"e{line.number}", "source": "/matrix/%C3%BC", "type": line.name[1],
        "subject": "sub ject", "time": datetime.fromisoformat(TIME), "datacontenttype": OCTETS, "attributes": {"device": f"d{line.number}"},
    }  # fmt: skip


def native_row(line: Said) -> dict[str, Any]:
    topic, tag = line.name
    return {
        "topic": topic,
        "tag": tag,
        "body": line.body,
        "keys": f"k{line.number} all",
        "properties": {"device": f"d{line.number}"},
    }


SHAPES = {
    "native": ("", native_row, "topic string, tag string, body binary, keys string, properties map<string,string>"),
    "mqtt": ("mqtt", mqtt_row, "mqttTopic string, body binary, qos int"),
    "amqp": (
        "amqp", amqp_row, "exchange string, routingKey string, body binary, headers map<string,string>, priority int, contentType string, "
        "correlationId string, replyTo string, messageId string",
    ),
    "event": (
        "cloudevents", event_row, "topic string, data binary, id string, source string, type string, subject string, time timestamp, "
        "datacontenttype string, attributes map<string,string>",
    ),
}  # fmt: skip
"""By door that the rows look like: the option `columns`, a row of a line, the schema."""


@pytest.mark.parametrize(
    "kind", [kind if kind == "native" else pytest.param(kind, marks=pytest.mark.slow) for kind in SHAPES]
)
def test_every_door_delivers_what_spark_wrote(spark: Any, combined: Gantry, kind: str) -> None:
    label = f"s{uuid4().hex[:8]}"
    every, lines = plan(kind, label)
    exits = Exits(
        combined,
        label,
        list(dict.fromkeys(name.first for name in every)),
        list(dict.fromkeys(name.topic for name in every)),
    )
    columns, row, schema = SHAPES[kind]
    try:
        frame = spark.createDataFrame([row(line) for _, line in lines], schema).coalesce(1)
        writer = frame.write.format("gantry").option("nameserver", nameserver(combined))
        writer.options(**({"columns": columns} if columns else {})).mode("append").save()
        for exit_ in EXITS:
            wanted: dict[tuple[str, ...], list[bytes]] = defaultdict(list)
            for name, line in lines:
                spelled = name.heard(exit_)
                if spelled is not None:
                    wanted[spelled].append(line.body)
            heard = exits.collect(exit_, sum(map(len, wanted.values())))
            assert {key: sorted(bodies) for key, bodies in by_name(heard).items()} == {
                key: sorted(bodies) for key, bodies in wanted.items()
            }, exit_
            if kind == "native" or EXIT_KIND[exit_] != "pull":  # what is in the log besides is a client's of RocketMQ
                # The rows of a task keep their order within a topic, not across topics.
                pairs = sorted(paired(lines, heard), key=lambda pair: pair[1].number)
                CHECKS[EXIT_KIND[exit_]][kind](pairs)
    finally:
        exits.close()
