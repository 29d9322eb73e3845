"""Service Bus and Spark: ``format("servicebus")``, the syphon as a pipeline, capture.

``register(spark)`` makes the format known to a session; everything else is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "settle"]


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("servicebus")`` known to a session, and let its secrets be redacted; returns the session."""
    from pairbus.spark.source import ServiceBusDataSource

    spark.dataSource.register(ServiceBusDataSource)
    return spark


def settle(checkpoint: str, source: dict[str, str]) -> int:
    """Settle what the last committed batch of an ended query left in its entity; see ``pairbus.spark.capture``."""
    from pairbus.spark.capture import settle as settle_committed

    return settle_committed(checkpoint, source)
