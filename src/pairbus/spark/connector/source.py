"""``format("servicebus")``: any queue, topic or subscription as source or sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from pairbus.errors import UsageError
from pairbus.spark.connector.options import SinkOptions, parse_sink, parse_source
from pairbus.spark.connector.schema import SCHEMA, SCHEMA_WITHOUT_RAW

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT: Final = "servicebus"


class ServiceBusDataSource(DataSource):
    """Service Bus for Spark. Options, schema and guarantees: docs/how-to/spark.md."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """One schema for every entity. Spark asks for it at ``load()``, so that is where a bad option fails."""
        options = parse_source(self.options, is_stream=None)
        options.access.connection_string()  # a variable that is not set fails here too
        return SCHEMA if options.has_raw else SCHEMA_WITHOUT_RAW

    def reader(self, schema: StructType) -> DataSourceReader:
        from pairbus.spark.connector.reader import ServiceBusReader

        return ServiceBusReader(parse_source(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pairbus.spark.connector.reader import ServiceBusStreamReader

        return ServiceBusStreamReader(parse_source(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pairbus.spark.connector.sink import ServiceBusWriter

        if overwrite:
            raise UsageError(
                'mode("overwrite") cannot be used with format("servicebus"): messages that were sent before stay where they '
                'are. Use mode("append")'
            )
        return ServiceBusWriter(_sink_options(self.options, schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - Spark's shape
    ) -> DataSourceStreamWriter:
        from pairbus.spark.connector.sink import ServiceBusStreamWriter

        return ServiceBusStreamWriter(_sink_options(self.options, schema))


def _sink_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """The options of a writer, checked on the driver: before any task sends anything."""
    from pairbus.spark.connector.entity_kind import refuse_other_kind

    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    parsed = parse_sink(options, schema.names, types)
    refuse_other_kind(parsed)
    return parsed
