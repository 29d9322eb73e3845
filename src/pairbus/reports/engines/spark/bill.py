"""The bill on Spark: usage logs in; days, entities, stages and operations with their exact amounts out.

Everything else follows from one table of (day, namespace, entity, stage, operation); see ``bill.days``. The driver holds days and what
named limits allow, never as much as there are entities (D10).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import pyarrow
from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.reports.bill.days import (
    ALL_DATA,
    BACKLOG_DATA,
    DAYS_MAX,
    KEY,
    Billing,
    Day,
    Pricing,
    bill_days,
    check_span,
)
from pairbus.reports.bill.model import BACKLOG, RECEIVE, SEND, STAGES, purpose
from pairbus.reports.bill.model import OPERATIONS as ALL_OPERATIONS
from pairbus.reports.bill.money import SCALE, quanta
from pairbus.reports.bill.report import ENTITIES_SHOWN, CostReport, DayRow, EntityRow, PurposeRow, Rows
from pairbus.reports.bill.report import cost_report as put_together
from pairbus.reports.engines.spark.files import csv_amount, csv_cell, write_parquet
from pairbus.reports.engines.spark.usage import CROWDED, MINUTE_BIT, PART_HASH, Usage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

REASONS_MAX: Final = 50
"""More than there are."""
AMOUNT_TYPE: Final = f"decimal(38,{SCALE})"
_PLAN_SCHEMA: Final = pyarrow.schema(
    [
        ("day", pyarrow.date32()),
        ("before", pyarrow.int64()),
        ("whole", pyarrow.int64()),
        ("each", pyarrow.decimal128(28, 0)),
        ("rest", pyarrow.int64()),
    ]
)
"""What the shares of a day's rows are computed from: ``each × whole + rest`` quanta are to be divided."""


@dataclass(frozen=True, slots=True)
class Priced:
    """The bill and the table it rests on."""

    report: CostReport
    table: DataFrame
    """KEY, ``purpose``, ``count``, ``bytes``, ``units``, ``billed``, ``amount`` (null where a price is unknown)."""
    usage: Usage

    def write_parquet(self, directory: str) -> None:
        """Write ``DIR/bill`` and ``DIR/quarantine``, in place of older ones."""
        write_parquet(self.table, f"{directory}/bill")
        write_parquet(self.usage.quarantined, f"{directory}/quarantine")

    def write_csv(self, directory: str) -> None:
        """Write ``DIR/bill``, in place of an older one, in the order of days and names."""
        columns = [
            csv_cell(f.col(name)).alias(name)
            if kind == "string"
            else csv_amount(f.col(name)).alias(name)
            if kind == AMOUNT_TYPE
            else f.col(name)
            for name, kind in self.table.dtypes
        ]
        table = self.table.orderBy(*KEY).select(*columns).coalesce(1)
        writer = table.write.mode("overwrite").option("header", "true").option("escape", '"')
        writer.option("emptyValue", "").csv(f"{directory}/bill")


def cost_report(spark: SparkSession, usage: Usage, pricing: Pricing) -> Priced:
    """Add up, price, divide the amounts among the rows.

    Raises:
        UsageError: No price table fits, or the logs span more than ten years.
    """
    hourly, days, reasons = _added_up(usage, pricing)
    billing = bill_days(days, usage.range.start, usage.range.end, pricing)
    priced = _with_amounts(spark, _daily(hourly), days, billing).persist()
    by_day, by_purpose = _day_and_purpose_rows(priced)
    report = put_together(
        days,
        billing,
        Rows(
            counted=sum(day.rows for day in days),
            repeated=sum(day.copies - day.rows for day in days),
            repeated_parts=len(usage.range.inputs.repeated),
            quarantined=reasons,
            damaged_files=dict(usage.range.inputs.damaged),
        ),
        by_day=by_day,
        by_purpose=by_purpose,
        entities=_entity_rows(priced),
        entity_count=priced.where("count > 0").select("namespace", "entity").distinct().count(),
    )
    hourly.unpersist()
    return Priced(report, priced, usage)


def _added_up(usage: Usage, pricing: Pricing) -> tuple[DataFrame, list[Day], dict[str, int]]:
    """By hours, in one pass over the rows; then by days, and how many rows were quarantined for each reason."""
    for has_repeats in (False, True):
        hourly = _hourly(usage, pricing, has_repeats).persist()
        rows = _by_day(hourly, pricing).limit(DAYS_MAX + REASONS_MAX + 1).collect()
        true = sorted((row for row in rows if row["reason"] is None), key=lambda row: int(row["day_number"]))
        if true:
            check_span(int(true[0]["day_number"]), int(true[-1]["day_number"]))
        if has_repeats or not any(row["crowded"] for row in true):
            break
        hourly.unpersist()
    reasons = {str(row["reason"]): int(row["rows"]) for row in rows if row["reason"] is not None}
    return hourly, [_day(row) for row in true], dict(sorted(reasons.items()))


def _day(row: Row) -> Day:
    return Day(
        number=int(row["day_number"]),
        billed=int(row["billed"]),
        data_out=int(row["out"]),
        peak_hours=int(row["peaks"]),
        detour_minutes=int(row["minutes"]),
        rows=int(row["rows"]),
        copies=int(row["copies"]),
        first_hour=int(row["first"]),
        last_hour=int(row["last"]),
    )


def _hourly(usage: Usage, pricing: Pricing, has_repeats: bool) -> DataFrame:
    """What every other figure is computed from: at most an hour's parts × entities × operations, and a row for each reason.

    Whether an event is there twice is noticed on the way; see CROWDED.
    """
    true = f.col("reason").isNull()
    if has_repeats:
        wrong = usage.judged.where(~true)
        rows = usage.counted(has_repeats=True).withColumn("reason", f.lit(None).cast("string"))
        rows = rows.unionByName(wrong.select(*rows.drop("copies").columns).withColumn("copies", f.lit(1)))
    else:
        rows = usage.judged.withColumn("copies", f.lit(1))
    # Rows that cannot be true meet in one group for each reason: nothing of them is added up but their number.
    keys = [
        f.when(true, f.expr(PART_HASH)).alias("part"),
        f.when(true, f.expr("ms div 3600000")).alias("hour"),
    ]
    keys += [f.when(true, f.col(name)).alias(name) for name in KEY[1:]]
    billed = f.when(f.col("operation").isin(*pricing.unbilled), f.lit(0)).otherwise(f.col("units"))
    detour = (f.col("stage") == BACKLOG) & (f.col("operation") == SEND) & (f.col("count") > 0)
    minute = f.expr(MINUTE_BIT)
    return rows.groupBy("reason", *keys).agg(
        f.sum(f.when(true, f.col("count"))).alias("count"),
        f.sum(f.when(true, f.col("bytes"))).alias("bytes"),
        f.sum(f.when(true, f.col("units"))).alias("units"),
        f.sum(f.when(true, billed)).alias("billed"),
        f.count(f.lit(1)).alias("rows"),
        f.sum("copies").alias("copies"),
        f.max("connection_peak").alias("peak"),
        f.bit_or(minute).alias("minutes"),
        f.bit_or(f.when(true & detour, minute).otherwise(f.lit(0).cast("long"))).alias("detours"),
    )


def _by_day(hourly: DataFrame, pricing: Pricing) -> DataFrame:
    """Hourly peaks of each namespace are added up, minutes with detours are those of all namespaces together."""
    by_namespace = hourly.groupBy("reason", "hour", "namespace").agg(
        f.max("peak").alias("peak"),
        f.sum(f.when(_leaves(pricing), f.col("bytes")).otherwise(0)).alias("out"),
        f.bit_or("detours").alias("detours"),
        f.max(f.expr(CROWDED)).alias("crowded"),
        *[f.sum(name).alias(name) for name in ("billed", "rows", "copies")],
    )
    day = f.expr("hour div 24").alias("day_number")
    by_hour = by_namespace.groupBy("reason", day, "hour").agg(
        f.bit_count(f.bit_or("detours")).alias("minutes"),
        f.max("crowded").alias("crowded"),
        *[f.sum(name).alias(name) for name in ("peak", "out", "billed", "rows", "copies")],
    )
    return by_hour.groupBy("reason", "day_number").agg(
        f.min("hour").alias("first"),
        f.max("hour").alias("last"),
        f.sum("peak").alias("peaks"),
        f.max("crowded").alias("crowded"),
        *[f.sum(name).alias(name) for name in ("minutes", "out", "billed", "rows", "copies")],
    )


def _daily(hourly: DataFrame) -> DataFrame:
    names = ("count", "bytes", "units", "billed")
    return (
        hourly.where(f.col("reason").isNull())
        .withColumn("day", f.expr("date_from_unix_date(CAST(hour div 24 AS INT))"))
        .groupBy(*KEY)
        .agg(*[f.sum(name).alias(name) for name in names])
        .withColumn("purpose", _purpose_column())
    )


def _purpose_column() -> Column:
    """What every stage and operation was for."""
    result: Column | None = None
    for stage in STAGES:
        for operation in ALL_OPERATIONS:
            condition = (f.col("stage") == stage) & (f.col("operation") == operation)
            word = f.lit(purpose(stage, operation))
            result = f.when(condition, word) if result is None else result.when(condition, word)
    assert result is not None
    return result


def _leaves(pricing: Pricing) -> Column:
    received = f.col("operation") == RECEIVE
    if pricing.data_out == ALL_DATA:
        return received
    return received & (f.col("stage") == BACKLOG) if pricing.data_out == BACKLOG_DATA else f.lit(False)


def _with_amounts(spark: SparkSession, table: DataFrame, days: list[Day], billing: Billing) -> DataFrame:
    """Each row's share of its month, as ``bill.money.shares`` divides it, in the order of KEY. Days carry the sums before them, so that no
    window is longer than a day.
    """
    plan: dict[str, list[object]] = {name: [] for name in _PLAN_SCHEMA.names}
    for month in billing.usage:
        inside = [day for day in days if day.month == month.month]
        amount = billing.operations_amount(month.month)
        before, whole = 0, sum(one.billed for one in inside)
        each, rest = (None, None) if amount is None else divmod(quanta(amount), whole or 1)
        for day in inside:
            plan["day"].append(day.day)
            plan["before"].append(before)
            plan["whole"].append(whole)
            plan["each"].append(None if each is None else Decimal(each))
            plan["rest"].append(rest)
            before += day.billed
    order = (
        Window.partitionBy("day").orderBy(*KEY[1:]).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    # As an Arrow table the plan stays in the driver; rows of Python would take a job of their own.
    offsets = spark.createDataFrame(pyarrow.table(plan, schema=_PLAN_SCHEMA))
    joined = table.join(f.broadcast(offsets), "day").withColumn(
        "upto", f.sum("billed").over(order) + f.col("before")
    )
    # ``quanta × upto`` may have more digits than any decimal of Spark, and ``div`` gives a BIGINT. What is left of a division by the whole is less than the whole.
    upto, below = (
        f"(each * CAST({part} AS DECIMAL(19,0)) + "
        f"CAST(rest AS DECIMAL(19,0)) * CAST({part} AS DECIMAL(19,0)) div CAST(whole AS DECIMAL(19,0)))"
        for part in ("upto", "(upto - billed)")
    )
    share = f.expr(f"CASE WHEN whole = 0 THEN 0 WHEN each IS NULL THEN NULL ELSE {upto} - {below} END")
    # Dividing a decimal by a power of ten only moves its point.
    moved = (
        share.cast("decimal(27,0)") * f.lit(Decimal(1).scaleb(-SCALE)).cast(f"decimal({SCALE},{SCALE})")
    ).cast(AMOUNT_TYPE)
    return joined.withColumn("amount", moved).select(
        *KEY, "purpose", "count", "bytes", "units", "billed", "amount"
    )


def _totals() -> list[Column]:
    return [f.sum(name).alias(name) for name in ("count", "bytes", "units", "billed", "amount")]


def _day_and_purpose_rows(priced: DataFrame) -> tuple[list[DayRow], list[PurposeRow]]:
    """Both sums in one pass."""
    day, stage, operation, purposes = (f.col(name) for name in ("day", "stage", "operation", "purpose"))
    grouped = priced.groupingSets(
        [[day, purposes], [stage, operation, purposes]], day, stage, operation, purposes
    )
    days, by_purpose = [], []
    for row in grouped.agg(*_totals()).collect():
        sums = row["billed"], row["amount"]
        if row["day"] is not None:
            days.append(DayRow(row["day"], row["purpose"], row["count"], *sums))
        else:
            by_purpose.append(
                PurposeRow(row["stage"], row["operation"], row["purpose"], row["count"], row["bytes"], *sums)
            )
    return days, by_purpose


def _entity_rows(priced: DataFrame) -> list[EntityRow]:
    grouped = priced.where("count > 0").groupBy("namespace", "entity", "stage").agg(*_totals())
    rows = grouped.orderBy(f.desc("billed"), "namespace", "entity", "stage").limit(ENTITIES_SHOWN).collect()
    names = ("namespace", "entity", "stage", "count", "billed", "amount")
    return [EntityRow(*[row[name] for name in names]) for row in rows]
