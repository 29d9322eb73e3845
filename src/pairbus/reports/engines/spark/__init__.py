"""Bill, what-if and certificate as Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pairbus.reports.bill.days import Pricing
from pairbus.reports.bill.what_if import Away, Recorded
from pairbus.reports.engines.arrow.bill import TYPES as BILL_TYPES
from pairbus.reports.engines.arrow.judging import TYPES as AUDIT_TYPES
from pairbus.reports.engines.spark.bill import Priced, cost_report
from pairbus.reports.engines.spark.certificate import Reconciled, reconcile
from pairbus.reports.engines.spark.files import damage_named
from pairbus.reports.engines.spark.ledgers import read_ledgers, read_rows
from pairbus.reports.engines.spark.usage import has_repeats, read_usage
from pairbus.reports.engines.spark.what_if import recorded_usage, supposed_outage
from pairbus.reports.engines.usage_log import UsageRange
from pairbus.reports.inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkEngine"]


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """The ``engines.base.Engine`` that works on a Spark session."""

    spark: SparkSession

    def price(self, wanted: UsageRange, pricing: Pricing) -> Priced:
        usage = read_usage(self.spark, wanted)
        with damage_named(usage.rows, BILL_TYPES):
            return cost_report(self.spark, usage, pricing)

    def recorded_usage(
        self,
        wanted: UsageRange,
        unbilled: Sequence[str],
        early_ms: int,
        spans: Sequence[tuple[int, int]],
        failover_ms: int,
    ) -> tuple[Recorded, tuple[Away, ...]]:
        usage = read_usage(self.spark, wanted)
        with damage_named(usage.rows, BILL_TYPES):
            counted = usage.counted(has_repeats(usage))
            recorded = recorded_usage(counted, unbilled, early_ms)
            return recorded, tuple(supposed_outage(counted, start, end, failover_ms) for start, end in spans)

    def reconcile(
        self,
        inputs: Mapping[str, Inputs],
        until: datetime | None,
        *,
        with_body: bool,
        with_order: bool,
        primaries: Sequence[str] = (),
        since: datetime | None = None,
    ) -> Reconciled:
        since_ms, until_ms = (
            None if moment is None else int(moment.timestamp() * 1000) for moment in (since, until)
        )
        rows = read_rows(self.spark, inputs)
        with damage_named(rows, AUDIT_TYPES):
            ledgers = read_ledgers(rows, inputs, with_body, primaries, since_ms, until_ms)
            return reconcile(ledgers, until_ms, with_order)
