"""Service Bus and Spark: ``format("servicebus")``, the syphon as a pipeline, capture.

``register(spark)`` makes the format known to a session; everything else is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.capture.compaction import Compacted

__all__ = ["compact", "register", "settle"]


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("servicebus")`` known to a session, and let its secrets be redacted. Returns the session.

    Spark finds the format by itself, too (``pyspark_servicebus``). Redaction is then what the session is set to: no
    secret is in a plan either way, but this covers texts that others make of options.

    Args:
        spark: The session.
    """
    from pairbus.spark.connector.source import ServiceBusDataSource
    from pairbus.spark.session import redact

    spark.dataSource.register(ServiceBusDataSource)
    redact(spark)
    return spark


def settle(checkpoint: str, source: dict[str, str]) -> int:
    """Settle what the last committed batch of an ended query left in its entity. A running query does that by itself.

    Args:
        checkpoint: The checkpoint of the query, as ``checkpointLocation`` had it.
        source: The options of the source, as the query had them.

    Returns:
        How many messages could not be settled.

    Raises:
        UsageError: An option is wrong, or the checkpoint belongs to another entity; nothing was completed then. With
            ``failOnDataLoss=false`` another entity is no error.
    """
    from pairbus.spark.capture.stream import settle as settle_committed

    return settle_committed(checkpoint, source)


def compact(path: str, spark: SparkSession, checkpoint: str | None = None) -> Compacted:
    """Join the small files of each hour of a capture. Safe beside a running capture, and when it is killed at any point.

    Args:
        path: The directory of the capture, on a local disk.
        spark: The session that reads and writes the files.
        checkpoint: The checkpoint of the capture; ``_checkpoint`` below ``path`` unless given.

    Returns:
        How many hours were rewritten (``hours``), and how many files they had before and after (``files_before``, ``files_after``).

    Raises:
        UsageError: The directory is not a capture on a local disk.
    """
    from pairbus.spark.capture.compaction import compact as compact_files

    return compact_files(path, spark, checkpoint)
