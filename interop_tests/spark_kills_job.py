"""A streaming query from topic to topic, exactly once, until a file says that all was sent: `spark_kills_job.py JSON`. Begins again from its checkpoint
when the query fails, as a supervisor would; test_spark_kills.py kills it and what it talks to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from gantrymq.spark import session

POLL_S = 0.2
TASK_TRIES = 4


def begin(spark: SparkSession, given: dict[str, str]) -> Any:
    """Rows are named by where they were read: queue and offset."""
    source = spark.readStream.format("gantry").options(
        nameserver=given["nameserver"], topic=given["source"], startingOffsets="earliest", maxOffsetsPerTrigger=given["batch"],
        maxRecordsPerPartition="40",
    )  # fmt: skip
    rows = source.load().selectExpr("concat_ws(':', queue, offset, cast(body as string)) as body", "tag", "keys")
    sink = rows.writeStream.format("gantry").options(
        nameserver=given["nameserver"], topic=given["sink"], mode="exactlyOnce", checkpointLocation=given["checkpoint"]
    )
    return sink.trigger(processingTime="0 seconds").start()


def main() -> None:
    given = json.loads(sys.argv[1])
    # A task is tried again, as a cluster does it: a local master has one try unless it says so.
    settings = {
        "spark.master": f"local[2,{TASK_TRIES}]",
        "spark.local.dir": given["scratch"],
        "spark.sql.warehouse.dir": given["scratch"],
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={given['scratch']}",
    }
    spark = session("kills", settings=settings, quick=True)
    spark.sparkContext.setLogLevel("ERROR")
    over = Path(given["over"])
    while True:
        try:
            query = begin(spark, given)
            while not query.awaitTermination(POLL_S):
                if over.exists():
                    query.processAllAvailable()
                    query.stop()
                    return
        except Exception as error:
            print(f"the query begins again: {str(error).strip().splitlines()[0][:300]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
