"""The transformations on recorded messages and on bad ones. `./run test`."""

from __future__ import annotations

import json
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import session
from telemetry import transform
from telemetry.compact import compact
from telemetry.settings import HERE, load

COLUMNS = "topic STRING, queue INT, offset BIGINT, body BINARY"
GOOD = {"id": "r-1", "device": "cpu0", "metric": "busy", "unit": "percent", "value": 71.5, "at": 1_700_000_000.25}


def body(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


class Telemetry(unittest.TestCase):
    """One session for all of them."""

    spark: ClassVar[SparkSession]

    @classmethod
    def setUpClass(cls) -> None:
        cls.spark = session("telemetry-tests", cores=1, quick=True)
        cls.spark.sparkContext.setLogLevel("ERROR")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.spark.stop()

    def messages(self, *bodies: bytes | None) -> DataFrame:
        rows = [("telemetry", 0, number, text) for number, text in enumerate(bodies)]
        return self.spark.createDataFrame(rows, COLUMNS)

    def recorded(self) -> DataFrame:
        rows = self.spark.read.schema("topic STRING, queue INT, offset BIGINT, body STRING")
        return rows.json(str(HERE / "data" / "sample.jsonl"))

    def devices(self) -> DataFrame:
        rows = [("cpu0", "busy", "machine room", 60.0), ("cpu1", "busy", "machine room", None)]
        return self.spark.createDataFrame(rows, transform.DEVICES)

    def test_a_reading_has_its_fields(self) -> None:
        (row,) = transform.readings(transform.parsed(self.messages(body()))).collect()
        self.assertEqual((row.id, row.device, row.value), ("r-1", "cpu0", 71.5))
        self.assertEqual(row.time.microsecond, 250_000)

    def test_each_bad_message_has_its_reason_and_its_place(self) -> None:
        bad = {
            b"": "not the JSON of a reading",
            b'{"id": "r-1", "dev': "not the JSON of a reading",
            b"[1, 2]": "not the JSON of a reading",
            body(id=None): "no id",
            body(device=None): "no device or no metric",
            body(value=None): "value is not a number",
            body(value="n/a"): "value is not a number",
            body(at=None): "no time",
        }
        rows = transform.parsed(self.messages(*bad))
        self.assertEqual(transform.readings(rows).count(), 0)
        letters = transform.rejected(rows).collect()
        self.assertEqual([bytes(row.body) for row in letters], list(bad))
        self.assertEqual([row.properties["reason"] for row in letters], list(bad.values()))
        self.assertEqual(letters[1].properties["from"], "telemetry/0/1")
        self.assertEqual(bytes(transform.rejected(transform.parsed(self.messages(None))).collect()[0].body), b"")

    def test_a_reading_that_came_twice_counts_once(self) -> None:
        rows = transform.readings(transform.parsed(self.messages(body(), body(), body(id="r-2", value=10.5))))
        (row,) = transform.windows(rows, "5 seconds", "10 seconds", streaming=False).collect()
        self.assertEqual((row.readings, row.lowest, row.mean, row.highest), (2, 10.5, 41.0, 71.5))

    def test_alerts_are_for_what_is_above_its_alarm(self) -> None:
        messages = self.messages(body(), body(id="r-2", device="cpu1"), body(id="r-3", device="unknown"))
        rows = transform.windows(
            transform.readings(transform.parsed(messages)), "5 seconds", "10 seconds", streaming=False
        )
        known = transform.enriched(rows, self.devices())
        self.assertEqual(known.count(), 3)
        (alert,) = transform.alerts(known).collect()
        self.assertEqual((alert.tag, json.loads(alert.body)["highest"]), ("cpu0", 71.5))
        self.assertEqual(json.loads(alert.body)["start"], 1_700_000_000)

    def test_days_that_have_ended_become_one_file_each(self) -> None:
        rows = [(number % 3, f"2026-01-0{1 + number % 3}", "cpu0", "busy", number) for number in range(30)]
        table = self.spark.createDataFrame(rows, "part INT, day STRING, device STRING, metric STRING, start INT")
        with tempfile.TemporaryDirectory() as output:
            settings = replace(load(), output=output)
            table.withColumn("day", F.to_date("day")).repartition(4).write.partitionBy("day").parquet(settings.tables)
            self.assertEqual(compact(self.spark, settings), ["2026-01-01", "2026-01-02"])
            files = sorted(Path(output, "compacted").glob("*/*.parquet"))
            self.assertEqual([file.parent.name for file in files], ["day=2026-01-01", "day=2026-01-02"])
            found = self.spark.read.parquet(f"{output}/compacted")
            self.assertEqual(sorted(row.start for row in found.collect()), [n for n in range(30) if n % 3 < 2])
            self.assertEqual(compact(self.spark, settings), [])

    def test_the_recorded_sample(self) -> None:
        rows = transform.parsed(self.recorded())
        reasons = {row.reason: row["count"] for row in rows.groupBy("reason").count().collect()}
        self.assertEqual(reasons.pop("not the JSON of a reading"), 2)
        self.assertEqual(reasons.pop("value is not a number"), 3)
        sound = transform.readings(rows)
        self.assertEqual(reasons, {None: sound.count()})
        found = transform.by_day(transform.windows(sound, "5 seconds", "10 seconds", streaming=False))
        twice = sound.count() - sound.select("id").distinct().count()
        self.assertEqual(twice, 2)
        self.assertEqual(found.agg({"readings": "sum"}).collect()[0][0], sound.count() - twice)
        self.assertEqual(found.select("day").distinct().count(), 1)


if __name__ == "__main__":
    unittest.main()
