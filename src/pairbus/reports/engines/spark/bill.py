"""The bill on Spark: usage logs in; days, entities, stages and operations with their exact amounts out.

Rule 1: one table of (day, namespace, entity, stage, operation) is the ground of every other figure, so all of them add up (D6).
Rule 2: a month's amount is computed once, from its sums, and shared out in whole quanta; nothing is priced row by row.
Rule 3: what comes to the driver is bounded by days and by named limits, never by the number of entities (D10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import pyarrow
from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.errors import UsageError
from pairbus.reports.bill.model import BACKLOG, RECEIVE, SEND, STAGES, purpose
from pairbus.reports.bill.model import OPERATIONS as ALL_OPERATIONS
from pairbus.reports.bill.money import SCALE, quanta, total
from pairbus.reports.bill.month import OPERATIONS as OPERATIONS_METER
from pairbus.reports.bill.month import MonthBill, MonthUsage, hours_by_month, month_bill
from pairbus.reports.bill.prices import PriceTable, choose
from pairbus.reports.bill.report import CostReport, DayRow, EntityRow, PurposeRow, Rows
from pairbus.reports.bill.what_if import Recorded, by_month
from pairbus.reports.engines.spark.usage import CROWDED, MINUTE_BIT, PART_HASH, Usage
from pairbus.server.clock import utc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

DAYS_MAX: Final = 4_000
ENTITIES_SHOWN: Final = 20
REASONS_MAX: Final = 50
"""More than there are."""
HOUR_MS: Final = 3_600_000
EPOCH: Final = date(1970, 1, 1)
AMOUNT_TYPE: Final = f"decimal(38,{SCALE})"
KEY: Final = ("day", "namespace", "entity", "stage", "operation")
ALL_DATA: Final = "all"
BACKLOG_DATA: Final = "backlog"
NO_DATA: Final = "none"
_PLAN_SCHEMA: Final = pyarrow.schema(
    [
        ("day", pyarrow.date32()),
        ("before", pyarrow.int64()),
        ("whole", pyarrow.int64()),
        ("quanta", pyarrow.decimal128(28, 0)),
    ]
)
"""What the shares of a day's rows are reckoned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Which prices, and what is billed."""

    tables: Sequence[PriceTable]
    tier: str | None = None
    region: str | None = None
    currency: str | None = None
    unbilled: tuple[str, ...] = ()
    """Operations that are counted and cost nothing."""
    data_out: str = BACKLOG_DATA
    """Whose receives leave the region: the backlog's (the syphon's), all, none."""


@dataclass(frozen=True, slots=True)
class Priced:
    """The bill and the table it rests on, for further writing."""

    report: CostReport
    table: DataFrame
    """KEY, ``purpose``, ``count``, ``bytes``, ``units``, ``billed``, ``amount`` (null where a price is unknown)."""
    usage: Usage


def cost_report(spark: SparkSession, usage: Usage, pricing: Pricing) -> Priced:
    """Add up, price, share out.

    Raises:
        UsageError: No price table fits, or the logs span more than ten years.
    """
    hourly, days, reasons = _added_up(usage, pricing)
    months = _months(usage, days)
    bills = [month_bill(month, _table_of(month.month, days, pricing)) for month in months]
    priced = _with_amounts(spark, _daily(hourly), days, bills).persist()
    by_day, by_purpose = _day_and_purpose_rows(priced)
    found = Rows(
        counted=sum(day.rows for day in days),
        repeated=sum(day.copies - day.rows for day in days),
        repeated_parts=len(usage.inputs.repeated),
        damaged=dict(usage.inputs.damaged),
        quarantined=reasons,
    )
    report = CostReport(
        currency=bills[0].currency if bills else "",
        bills=tuple(bills),
        usage=tuple(months),
        sources=_sources(months, days, pricing),
        days=by_day,
        purposes=by_purpose,
        entities=tuple(_entity_rows(priced)),
        entity_count=priced.where("count > 0").select("namespace", "entity").distinct().count(),
        detour_minutes=sum(day.detour_minutes for day in days),
        rows=found,
    )
    hourly.unpersist()
    report.check()
    return Priced(report, priced, usage)


@dataclass(frozen=True, slots=True)
class _Day:
    day: date
    billed: int
    data_out: int
    peak_hours: int
    detour_minutes: int
    rows: int
    copies: int
    first_hour: int
    """Counted from 1970."""
    last_hour: int

    @property
    def month(self) -> str:
        return f"{self.day:%Y-%m}"


def _added_up(usage: Usage, pricing: Pricing) -> tuple[DataFrame, list[_Day], dict[str, int]]:
    """By hours, in one pass over the rows; then by days, and how many rows were set apart for each reason."""
    for has_repeats in (False, True):
        hourly = _hourly(usage, pricing, has_repeats).persist()
        rows = _by_day(hourly, pricing).limit(DAYS_MAX + REASONS_MAX + 1).collect()
        true = sorted((row for row in rows if row["reason"] is None), key=lambda row: int(row["day_number"]))
        if true:
            _check_span(int(true[0]["day_number"]), int(true[-1]["day_number"]))
        if has_repeats or not any(row["crowded"] for row in true):
            break
        hourly.unpersist()
    reasons = {str(row["reason"]): int(row["rows"]) for row in rows if row["reason"] is not None}
    return hourly, [_day(row) for row in true], dict(sorted(reasons.items()))


def _check_span(first: int, last: int) -> None:
    """Every month from the first to the last is billed, so a time that is too long is refused rather than billed."""
    if last - first > DAYS_MAX:
        begin, end = (f"{EPOCH + timedelta(days=number):%Y-%m-%d}" for number in (first, last))
        raise UsageError(
            f"the logs span more than {DAYS_MAX:,} days, from {begin} to {end}: narrow them with --from and --to"
        )


def _day(row: Row) -> _Day:
    return _Day(
        day=EPOCH + timedelta(days=int(row["day_number"])),
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
    """The words of ``cost.model`` for every stage and operation."""
    result: Column | None = None
    for stage in STAGES:
        for operation in ALL_OPERATIONS:
            condition = (f.col("stage") == stage) & (f.col("operation") == operation)
            word = f.lit(purpose(stage, operation))
            result = f.when(condition, word) if result is None else result.when(condition, word)
    assert result is not None
    return result


def _months(usage: Usage, days: list[_Day]) -> list[MonthUsage]:
    """Hours from the first to the last of the log, hourly peaks of each namespace added up, and data that was handed out."""
    if not days:
        return []
    start = usage.start or utc(min(day.first_hour for day in days) * HOUR_MS)
    end = usage.end or utc((max(day.last_hour for day in days) + 1) * HOUR_MS)
    return [
        MonthUsage(
            month=month,
            hours=hours,
            operations=sum(day.billed for day in days if day.month == month),
            peak_hours=sum(day.peak_hours for day in days if day.month == month),
            data_out_bytes=sum(day.data_out for day in days if day.month == month),
        )
        for month, hours in hours_by_month(start, end).items()
    ]


def _leaves(pricing: Pricing) -> Column:
    received = f.col("operation") == RECEIVE
    if pricing.data_out == ALL_DATA:
        return received
    return received & (f.col("stage") == BACKLOG) if pricing.data_out == BACKLOG_DATA else f.lit(False)


def _table_of(month: str, days: list[_Day], pricing: Pricing) -> PriceTable:
    """The prices of the first day of a month that is billed: a month has one set of bands."""
    first = min((day.day for day in days if day.month == month), default=date.fromisoformat(f"{month}-01"))
    return choose(pricing.tables, first, pricing.tier, pricing.region, pricing.currency)


def _sources(months: list[MonthUsage], days: list[_Day], pricing: Pricing) -> tuple[str, ...]:
    tables = [_table_of(month.month, days, pricing) for month in months]
    return tuple(
        dict.fromkeys(
            f"{table.tier}, {table.region}, {table.currency}: {table.source} ({table.source_date}). {table.note}".strip()
            for table in tables
        )
    )


def _with_amounts(
    spark: SparkSession, table: DataFrame, days: list[_Day], bills: list[MonthBill]
) -> DataFrame:
    """Each row's share of its month, as ``cost.money.shares`` tells it, in the order of KEY. Days carry the sums before them, so that no
    window is longer than a day.
    """
    plan: dict[str, list[object]] = {name: [] for name in _PLAN_SCHEMA.names}
    for bill in bills:
        inside = [day for day in days if day.month == bill.month]
        amount = bill.of(OPERATIONS_METER)
        before = 0
        for day in inside:
            plan["day"].append(day.day)
            plan["before"].append(before)
            plan["whole"].append(sum(one.billed for one in inside))
            plan["quanta"].append(None if amount is None else Decimal(quanta(amount)))
            before += day.billed
    order = (
        Window.partitionBy("day").orderBy(*KEY[1:]).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    # As an Arrow table the plan stays in the driver; rows of Python would take a job of their own.
    offsets = spark.createDataFrame(pyarrow.table(plan, schema=_PLAN_SCHEMA))
    joined = table.join(f.broadcast(offsets), "day").withColumn(
        "upto", f.sum("billed").over(order) + f.col("before")
    )
    upto = "CAST(quanta * CAST(upto AS DECIMAL(20,0)) AS DECIMAL(38,0)) div CAST(whole AS DECIMAL(20,0))"
    below = "CAST(quanta * CAST(upto - billed AS DECIMAL(20,0)) AS DECIMAL(38,0)) div CAST(whole AS DECIMAL(20,0))"
    share = f.expr(f"CASE WHEN whole = 0 THEN 0 WHEN quanta IS NULL THEN NULL ELSE {upto} - {below} END")
    # Dividing a decimal by a power of ten only moves its point.
    moved = (
        share.cast("decimal(27,0)") * f.lit(Decimal(1).scaleb(-SCALE)).cast(f"decimal({SCALE},{SCALE})")
    ).cast(AMOUNT_TYPE)
    return joined.withColumn("amount", moved).select(
        *KEY, "purpose", "count", "bytes", "units", "billed", "amount"
    )


def _totals() -> list[Column]:
    return [f.sum(name).alias(name) for name in ("count", "bytes", "units", "billed", "amount")]


def _day_and_purpose_rows(priced: DataFrame) -> tuple[tuple[DayRow, ...], tuple[PurposeRow, ...]]:
    """Both sums in one pass."""
    day, stage, operation, purposes = (f.col(name) for name in ("day", "stage", "operation", "purpose"))
    grouped = priced.groupingSets(
        [[day, purposes], [stage, operation, purposes]], day, stage, operation, purposes
    )
    days, by_purpose = [], []
    for row in grouped.agg(*_totals()).collect():
        count, billed, amount = int(row["count"]), int(row["billed"]), row["amount"]
        name = str(row["purpose"])
        if row["day"] is not None:
            days.append(DayRow(row["day"], name, count, billed, amount))
        else:
            by_purpose.append(
                PurposeRow(
                    str(row["stage"]), str(row["operation"]), name, count, int(row["bytes"]), billed, amount
                )
            )
    return (
        tuple(sorted(days, key=lambda row: (row.day, row.purpose))),
        tuple(sorted(by_purpose, key=lambda row: (row.stage, row.operation))),
    )


def _entity_rows(priced: DataFrame) -> list[EntityRow]:
    grouped = priced.where("count > 0").groupBy("namespace", "entity", "stage").agg(*_totals())
    rows = grouped.orderBy(f.desc("billed"), "namespace", "entity", "stage").limit(ENTITIES_SHOWN).collect()
    return [
        EntityRow(
            str(row["namespace"]),
            str(row["entity"]),
            str(row["stage"]),
            int(row["count"]),
            int(row["billed"]),
            row["amount"],
        )
        for row in rows
    ]


def operations_amount(
    recorded: Recorded, pricing: Pricing, supposed: int
) -> tuple[Decimal | None, Decimal | None]:
    """What the recorded and a supposed number of operations cost, month by month as in the bill; None where a price is unknown."""
    paid: list[Decimal | None] = []
    would: list[Decimal | None] = []
    for month, operations in by_month(recorded, supposed):
        day = utc(month.first_ms).date()
        table = choose(pricing.tables, day, pricing.tier, pricing.region, pricing.currency)
        for number, amounts in ((month.operations, paid), (operations, would)):
            usage = MonthUsage(month=month.month, operations=number)
            amounts.append(month_bill(usage, table).of(OPERATIONS_METER))
    return _sum_known(paid), _sum_known(would)


def _sum_known(amounts: list[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return total(known) if len(known) == len(amounts) else None
