"""``format("servicebus")``: any queue, topic or subscription as source or sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from pairbus.spark.options import parse_sink, parse_source
from pairbus.spark.schema import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT: Final = "servicebus"
FIELDS: Final = (
    "body",
    "body_type",
    "message_id",
    "session_id",
    "correlation_id",
    "subject",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
    "partition_key",
    "application_properties",
    "raw",
    "time_to_live_ms",
    "delivery_count",
    "sequence_number",
    "enqueued_time",
    "scheduled_enqueue_time",
    "expires_at",
    "state",
    "dead_letter_reason",
    "dead_letter_description",
    "entity",
)
"""The columns of the schema, in order."""


class ServiceBusDataSource(DataSource):
    """Service Bus for Spark. Options, schema and guarantees: docs/how-to/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """One schema for every entity. Spark asks for it at ``load()``, so that is where a bad option fails."""
        parse_source(self.options, is_stream=None)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Browse an entity."""
        from pairbus.spark.reader import ServiceBusReader

        return ServiceBusReader(parse_source(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Read an entity as a stream."""
        from pairbus.spark.reader import ServiceBusStreamReader

        return ServiceBusStreamReader(parse_source(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's shape
        """Send rows."""
        from pairbus.spark.writer import ServiceBusWriter

        return ServiceBusWriter(parse_sink(self.options, schema.names))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - Spark's shape
    ) -> DataSourceStreamWriter:
        """Send the rows of a stream."""
        from pairbus.spark.writer import ServiceBusStreamWriter

        return ServiceBusStreamWriter(parse_sink(self.options, schema.names))
