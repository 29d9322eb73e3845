"""The drain as a Spark job: a source whose partitions are shares of a drain and whose rows are the ledger.

Messages do not pass through Spark. Nothing here is meant for users; ``pairbus.spark.drain.driver`` drives it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pairbus.spark.drain.rows import LEDGER_SCHEMA, record_batches
from pairbus.spark.drain.task import TaskSettings, run_task

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

FORMAT: Final = "pairbus-pump"
COPY_GRACE_SECONDS: Final = 60.0
"""How much longer than a slice a task may need to end: the last sends, their settlement, and closing."""


class SharePartition(InputPartition):
    """One task's backlog queues."""

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues


class DrainReader(DataSourceReader):
    """Drains in each task. Safe to run twice: completed messages are gone, the others are locked again (D3).

    With speculation Spark copies a task that takes longer than others, which a task with more work always does, and
    kills the one that ends last: a copy that drained would end first, on an empty queue, and have the original killed
    in the middle. A copy cannot be told from a second attempt, so where copies are made neither drains: it waits until
    the first has ended, or must be dead, and leaves the rest to the next slice.
    """

    def __init__(
        self, settings: TaskSettings, shares: list[tuple[str, ...]], *, is_speculated: bool = False
    ) -> None:
        self._settings = settings
        self._shares = shares
        self._is_speculated = is_speculated

    def partitions(self) -> list[InputPartition]:
        return [SharePartition(queues) for queues in self._shares]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Drain, then return what became of each message."""
        assert isinstance(partition, SharePartition), partition
        if self._is_speculated and _attempt() > 0:
            time.sleep(self._settings.seconds + COPY_GRACE_SECONDS)
            return
        yield from record_batches(run_task(self._settings, partition.queues))


def _attempt() -> int:
    """Which attempt at this task runs here: 0, unless it is tried again or copied."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


class DrainDataSource(DataSource):
    """``format("pairbus-pump")``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return LEDGER_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's shape
        """A reader for the shares in the options."""
        plan: dict[str, Any] = json.loads(self.options["plan"])
        settings = TaskSettings.from_json(
            self.options["settings"],
            self.options["primaryConnectionString"],
            self.options["secondaryConnectionString"],
        )
        shares = [tuple(queues) for queues in plan["shares"]]
        return DrainReader(settings, shares, is_speculated=plan["is_speculated"])
