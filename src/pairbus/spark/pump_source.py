"""The pump as a Spark job: a source whose partitions are shares of a drain and whose rows are the ledger.

Messages do not pass through Spark. Nothing here is meant for users; ``pairbus.spark.syphon`` drives it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pairbus.spark.ledger import LEDGER_SCHEMA, record_batches
from pairbus.spark.pump import PumpSettings, pump

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

FORMAT: Final = "pairbus-pump"


class SharePartition(InputPartition):
    """One task's backlog queues."""

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues


class PumpReader(DataSourceReader):
    """Runs the pump in each task. Safe to run twice: what was completed is gone, the rest is locked anew (D3)."""

    def __init__(self, settings: PumpSettings, shares: list[tuple[str, ...]]) -> None:
        self._settings = settings
        self._shares = shares

    def partitions(self) -> list[InputPartition]:
        """One per share."""
        return [SharePartition(queues) for queues in self._shares]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Pump, then tell what became of each message."""
        assert isinstance(partition, SharePartition), partition
        yield from record_batches(pump(self._settings, partition.queues))


class PumpDataSource(DataSource):
    """``format("pairbus-pump")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The ledger's."""
        return LEDGER_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's shape
        """A reader for the shares in the options."""
        told: dict[str, Any] = json.loads(self.options["plan"])
        settings = PumpSettings(
            primary=self.options["primaryConnectionString"],
            secondary=self.options["secondaryConnectionString"],
            **told["settings"],
        )
        return PumpReader(settings, [tuple(queues) for queues in told["shares"]])
