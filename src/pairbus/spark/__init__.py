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
    """Make ``format("servicebus")`` known to a session, and let its secrets be redacted; returns the session.

    Spark finds the format by itself, too (``pyspark_servicebus``). Redaction is then what the session is set to: no
    secret is in a plan either way, but this covers texts that others make of options.
    """
    from pairbus.spark.connector.source import ServiceBusDataSource
    from pairbus.spark.session import redact

    spark.dataSource.register(ServiceBusDataSource)
    redact(spark)
    return spark


def settle(checkpoint: str, source: dict[str, str]) -> int:
    """Settle what the last committed batch of an ended query left in its entity; see ``pairbus.spark.capture.stream``."""
    from pairbus.spark.capture.stream import settle as settle_committed

    return settle_committed(checkpoint, source)


def compact(path: str, spark: SparkSession, checkpoint: str | None = None) -> Compacted:
    """Join the small files of a capture; see ``pairbus.spark.capture.compaction``."""
    from pairbus.spark.capture.compaction import compact as compact_files

    return compact_files(path, spark, checkpoint)
