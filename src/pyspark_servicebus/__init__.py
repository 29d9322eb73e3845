"""Spark finds ``format("servicebus")`` by this module's name, without ``pairbus.spark.register``.

Spark imports every module called ``pyspark_*`` when a session first looks for a format, so this one must stay light.
"""

from pairbus.spark.connector.source import ServiceBusDataSource as DefaultSource

__all__ = ["DefaultSource"]
