"""Spark in the cross matrix: a batch read of what every door published, and what Spark wrote through every other door."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from interop_tests.cross_matrix import EXITS, KIND, SOURCES, Exits, Said, can_say
from interop_tests.running import Gantry
from interop_tests.test_cross_matrix import CHECKS, EXIT_KIND, by_name, paired, plan
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


def test_every_door_delivers_what_spark_wrote(spark: Any, combined: Gantry) -> None:
    label = f"s{uuid4().hex[:8]}"
    every, lines = plan("native", label)
    exits = Exits(
        combined,
        label,
        list(dict.fromkeys(name.first for name in every)),
        list(dict.fromkeys(name.topic for name in every)),
    )
    rows = [(*line.name, line.body, f"k{line.number} all", {"device": f"d{line.number}"}) for _, line in lines]
    schema = "topic string, tag string, body binary, keys string, properties map<string,string>"
    try:
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        frame.write.format("gantry").option("nameserver", nameserver(combined)).mode("append").save()
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
            CHECKS[EXIT_KIND[exit_]]["native"](paired(lines, heard))
    finally:
        exits.close()
