"""Rows per second that Spark reads from a topic: `spark_rows.py NAMESERVER TOPIC`; prints one JSON line (best of four): `rows_per_s` with
all columns of the source, `projected_rows_per_s` where the schema names the two that the query uses (second, so the JVM is warmer)."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from gantrymq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def measure(frame: DataFrame) -> tuple[int, float]:
    """Rows, and the most per second of four queries."""
    best, rows = 0.0, 0
    for _ in range(4):
        begin = time.perf_counter()
        rows = frame.selectExpr("sum(length(body)) as size", "max(offset) as last", "count(*) as rows").collect()[0][
            "rows"
        ]
        best = max(best, rows / (time.perf_counter() - begin))
    return rows, best


def main() -> None:
    nameserver, topic = sys.argv[1:3]
    spark = session("bench", cores=2)
    reader = spark.read.format("gantry").option("nameserver", nameserver).option("topic", topic)
    rows, every = measure(reader.load())
    _, projected = measure(reader.schema("offset bigint, body binary").load())
    print(json.dumps({"rows": rows, "rows_per_s": round(every), "projected_rows_per_s": round(projected)}))
    spark.stop()


if __name__ == "__main__":
    main()
