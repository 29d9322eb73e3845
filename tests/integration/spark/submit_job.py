"""A job as people submit it: from queue to queue, the format found by its name, the key in the environment.

Nothing of the tests is in it: it runs with what is installed where Spark runs it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

COPIES_SECONDS_MAX = 60


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("namespace")
    parser.add_argument("source")
    parser.add_argument("sink")
    parser.add_argument("checkpoint")
    parser.add_argument("--slow", help="A file that appears when a second attempt at the slow task runs.")
    given = parser.parse_args()
    access = {"namespace": given.namespace, "credentialEnv": "ORDERS_KEY"}
    spark = SparkSession.builder.getOrCreate()
    stream = (
        spark.readStream.format("servicebus").options(**access, queue=given.source, partitions="4").load()
    )
    rows = slowed(stream, given.slow) if given.slow else stream
    query = (
        rows.writeStream.format("servicebus")
        .options(**access, queue=given.sink)
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


def slowed(rows: DataFrame, marker: str) -> DataFrame:
    """Let the first attempt at the first task wait until there is a second one, as a bad machine would."""

    @udf("binary")
    def waiting(body: bytes) -> bytes:
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            if context.attemptNumber() > 0:
                Path(marker).touch()
            end = time.monotonic() + COPIES_SECONDS_MAX
            while not Path(marker).exists() and time.monotonic() < end:
                time.sleep(0.1)
        return body

    return rows.drop("raw").withColumn("body", waiting("body"))


if __name__ == "__main__":
    sys.exit(main())
