"""The real source and sink in Python workers that kill themselves in the middle of a task, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pairbus.spark.connector import sink as writers
from pairbus.spark.connector.options import SinkOptions, SourceOptions, parse_sink, parse_source
from pairbus.spark.connector.reader import ServiceBusStreamReader
from pairbus.spark.connector.sink import Sent, ServiceBusWriter
from pairbus.spark.connector.source import ServiceBusDataSource

FORMAT = "servicebus-dying"
ROWS_AT_ONCE = 10
ROWS_BEFORE_DEATH = 25
"""Two chunks are sent and accepted by then."""


def die_once(marker: str) -> None:
    """A real SIGKILL of this process, unless another one died of it."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStreamReader(ServiceBusStreamReader):
    """Dies after it handed over the first rows of a task."""

    def __init__(self, options: SourceOptions, schema: StructType, marker: str) -> None:
        super().__init__(options, schema)
        self._marker = marker

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for piece in super().read(partition):
            yield piece
            die_once(self._marker)


class DyingWriter(ServiceBusWriter):
    """Dies after two chunks of a task were accepted."""

    def __init__(self, options: SinkOptions, marker: str) -> None:
        super().__init__(options)
        self._marker = marker

    def send(self, rows: Iterable[Any]) -> Sent:
        writers.ROWS_AT_ONCE = ROWS_AT_ONCE  # type: ignore[misc]
        return super().send(self._until_death(rows))

    def _until_death(self, rows: Iterable[Any]) -> Iterator[Any]:
        for index, row in enumerate(rows):
            if index == ROWS_BEFORE_DEATH:
                die_once(self._marker)
            yield row


class DyingDataSource(ServiceBusDataSource):
    """``format("servicebus")`` with one more option: the file that says that somebody died already."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ServiceBusDataSource(self._given()).schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DyingStreamReader(parse_source(self._given(), is_stream=True), schema, self.options["marker"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DyingWriter(parse_sink(self._given(), schema.names), self.options["marker"])

    def _given(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() != "marker"}
