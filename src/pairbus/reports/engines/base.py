"""What an engine can do, and which one a report takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from pairbus.reports.bill.days import Pricing
from pairbus.reports.bill.report import CostReport
from pairbus.reports.bill.what_if import Away, Recorded
from pairbus.reports.certificate.value import Certificate
from pairbus.reports.engines.usage_log import UsageRange
from pairbus.reports.inputs import Inputs

AUTO: Final = "auto"
LOCAL: Final = "local"
SPARK: Final = "spark"


class PricedBill(Protocol):
    """A bill, and the table it rests on."""

    @property
    def report(self) -> CostReport: ...
    def write_parquet(self, directory: str) -> None: ...
    def write_csv(self, directory: str) -> None: ...


class ReconciledLedgers(Protocol):
    """A certificate, and the messages it rests on."""

    @property
    def certificate(self) -> Certificate: ...
    def write(self, directory: str) -> None: ...


class Engine(Protocol):
    """Computes reports from files that were found."""

    def price(self, wanted: UsageRange, pricing: Pricing) -> PricedBill: ...

    def recorded_usage(
        self,
        wanted: UsageRange,
        unbilled: Sequence[str],
        early_ms: int,
        spans: Sequence[tuple[int, int]],
        failover_ms: int,
    ) -> tuple[Recorded, tuple[Away, ...]]: ...

    def reconcile(
        self,
        inputs: Mapping[str, Inputs],
        until: datetime | None,
        *,
        with_body: bool,
        with_order: bool,
        primaries: Sequence[str] = (),
        since: datetime | None = None,
    ) -> ReconciledLedgers: ...


def takes_spark(engine: str, inputs: Iterable[Inputs] | None, rows_max: int, *, is_spark_asked: bool) -> bool:
    """Whether a report runs on Spark. ``inputs`` is None where only Spark can reach the files.

    ``auto`` takes Spark for files that only Spark can reach, for more than ``rows_max`` rows, and where a master or a setting of Spark
    was given.
    """
    if engine != AUTO:
        return engine == SPARK
    if inputs is None or is_spark_asked:
        return True
    return sum(found.rows for found in inputs) > rows_max
