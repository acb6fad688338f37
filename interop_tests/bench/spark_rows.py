"""Rows per second that Spark reads from a topic: `spark_rows.py NAMESERVER TOPIC`; prints one JSON line (best of three)."""

from __future__ import annotations

import json
import sys
import time

from gantrymq.spark import session


def main() -> None:
    nameserver, topic = sys.argv[1:3]
    spark = session("bench", cores=2)
    frame = spark.read.format("gantry").option("nameserver", nameserver).option("topic", topic).load()
    best, rows = 0.0, 0
    for _ in range(4):
        begin = time.perf_counter()
        rows = frame.selectExpr("sum(length(body)) as size", "max(offset) as last", "count(*) as rows").collect()[0][
            "rows"
        ]
        best = max(best, rows / (time.perf_counter() - begin))
    print(json.dumps({"rows": rows, "rows_per_s": round(best)}))
    spark.stop()


if __name__ == "__main__":
    main()
