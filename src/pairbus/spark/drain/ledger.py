"""Writes the ledger of one run: into a directory of the driver's machine, or by the executors to a URL they all reach.

Executors on other machines do not share a directory with the driver: rows for one come through Spark to the driver, as
many as a slice may have and no more (D10), and cost neither a second job nor a shuffle.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.spark.drain.report import Count
from pairbus.spark.drain.rows import LEDGER_SCHEMA, LedgerRow, record_batches

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_SLICE_MAX: Final = 500_000
"""What the driver takes in at a time, over all tasks of a slice: some hundred megabytes."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_GROUP: Final = ("backlog_queue", "destination", "outcome")


class LedgerWriter:
    def __init__(self, path_or_url: str, run_id: str) -> None:
        self._is_url = _URL.match(path_or_url) is not None and not path_or_url.startswith("file:")
        self._run = f"{path_or_url}/run={run_id}"

    def messages_max(self, wanted: int, tasks: int) -> int:
        """How many messages each of some tasks may move in a slice, so that the driver can take in their rows."""
        return wanted if self._is_url else max(1, min(wanted, ROWS_PER_SLICE_MAX // max(1, tasks)))

    def write_slice(self, spark: SparkSession, rows: DataFrame, number: int) -> list[Count]:
        """Run the job, write its rows, and count them by outcome."""
        name = f"slice={number:06d}"
        if not self._is_url:
            table = rows.toArrow()
            self._write(table, name)
            return _counted(table)
        path = f"{self._run}/{name}"
        rows.write.mode("overwrite").parquet(path)
        return _counted_by_spark(spark, path)

    def write_rows(self, spark: SparkSession, rows: list[LedgerRow], number: int) -> None:
        """Write rows of messages that the driver itself drained during a slice."""
        import pyarrow

        table = pyarrow.Table.from_batches(record_batches(rows))
        name = f"slice={number:06d}-watch"
        if self._is_url:
            path = f"{self._run}/{name}"
            spark.createDataFrame(table).coalesce(1).write.mode("append").parquet(path)
        else:
            self._write(table, name)

    def _write(self, table: pyarrow.Table, name: str) -> None:
        import pyarrow.parquet

        if not table.num_rows:
            return
        folder = Path(self._run.removeprefix("file://").removeprefix("file:")) / name
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.glob("part-*.parquet"))
        # Readers skip names that begin with an underscore: none sees half a file.
        unfinished = folder / f"_part-{number:05d}.parquet"
        pyarrow.parquet.write_table(table, unfinished, compression="zstd")
        unfinished.rename(folder / f"part-{number:05d}.parquet")


def _counted(table: pyarrow.Table) -> list[Count]:
    counted = table.group_by(list(_GROUP)).aggregate([("sequence_number", "count"), ("reason", "max")])
    return [
        Count(
            row["backlog_queue"],
            row["destination"],
            row["outcome"],
            row["sequence_number_count"],
            row["reason_max"],
        )
        for row in counted.to_pylist()
    ]


def _counted_by_spark(spark: SparkSession, path: str) -> list[Count]:
    from pyspark.sql import functions

    # Read back rather than computed beside the write: a second action would drain a second time.
    counted = (
        spark.read.schema(LEDGER_SCHEMA)
        .parquet(path)
        .groupBy(*_GROUP)
        .agg(functions.count("*").alias("messages"), functions.max("reason").alias("reason"))
    )
    return [
        Count(row["backlog_queue"], row["destination"], row["outcome"], row["messages"], row["reason"])
        for row in counted.collect()
    ]
