"""The bill on Spark: usage logs in; days, entities, stages and operations with their exact amounts out.

Rule 1: one table of (day, namespace, entity, stage, operation) is the ground of every other figure, so all of them add up (D6).
Rule 2: a month's amount is computed once, from its sums, and shared out in whole quanta; nothing is priced row by row.
Rule 3: what comes to the driver is bounded by days and by named limits, never by the number of entities (D10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from pairbus.cost.bill import OPERATIONS as OPERATIONS_METER
from pairbus.cost.bill import MonthBill, MonthUsage, hours_by_month, month_bill
from pairbus.cost.model import BACKLOG, RECEIVE, SEND, STAGES, purpose
from pairbus.cost.model import OPERATIONS as ALL_OPERATIONS
from pairbus.cost.money import SCALE, quanta
from pairbus.cost.prices import PriceTable, choose
from pairbus.errors import UsageError
from pairbus.server.clock import utc
from pairbus.spark.cost_report import CostReport, DayRow, EntityRow, PurposeRow, Rows
from pairbus.spark.cost_usage import Usage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAYS_MAX: Final = 4_000
ENTITIES_SHOWN: Final = 20
REASONS_SHOWN: Final = 50
AMOUNT_TYPE: Final = f"decimal(38,{SCALE})"
KEY: Final = ("day", "namespace", "entity", "stage", "operation")
ALL_DATA: Final = "all"
BACKLOG_DATA: Final = "backlog"
NO_DATA: Final = "none"


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
    hourly = _hourly(usage.counted, pricing).persist()
    table = _daily(hourly).persist()
    days = _days(table)
    months = _months(hourly, usage, days, pricing)
    bills = [month_bill(month, _table_of(month.month, days, pricing)) for month in months]
    priced = _with_amounts(spark, table, days, bills).persist()
    found = Rows(
        counted=int(sum(day.rows for day in days)),
        repeated=int(sum(day.copies - day.rows for day in days)),
        repeated_parts=len(usage.inputs.repeated),
        damaged=dict(usage.inputs.damaged),
        quarantined=_reasons(usage.quarantined),
    )
    report = CostReport(
        currency=bills[0].currency if bills else "",
        bills=tuple(bills),
        usage=tuple(months),
        sources=_sources(months, days, pricing),
        days=tuple(_day_rows(priced)),
        purposes=tuple(_purpose_rows(priced)),
        entities=tuple(_entity_rows(priced)),
        entity_count=priced.where("count > 0").select("namespace", "entity").distinct().count(),
        detour_minutes=_detour_minutes(hourly),
        rows=found,
    )
    report.check()
    return Priced(report, priced, usage)


@dataclass(frozen=True, slots=True)
class _Day:
    day: date
    billed: int
    data_out: int
    rows: int
    copies: int

    @property
    def month(self) -> str:
        return f"{self.day:%Y-%m}"


def _hourly(counted: DataFrame, pricing: Pricing) -> DataFrame:
    """One pass over the rows; all else is computed from what it leaves: at most an hour's entities × operations."""
    billed = f.when(f.col("operation").isin(*pricing.unbilled), f.lit(0)).otherwise(f.col("units"))
    detour = (f.col("stage") == BACKLOG) & (f.col("operation") == SEND) & (f.col("count") > 0)
    minute = f.expr("shiftleft(1L, CAST(ms div 60000 % 60 AS INT))")
    hour = f.expr("ms div 3600000").alias("hour_number")
    sums = counted.groupBy(hour, *KEY[1:]).agg(
        f.sum("count").alias("count"),
        f.sum("bytes").alias("bytes"),
        f.sum("units").alias("units"),
        f.sum(billed).alias("billed"),
        f.count(f.lit(1)).alias("rows"),
        f.sum("copies").alias("copies"),
        f.max("connection_peak").alias("peak"),
        f.bit_or(f.when(detour, minute).otherwise(f.lit(0).cast("long"))).alias("detours"),
    )
    return sums.withColumn(
        "hour", f.expr("date_format(timestamp_seconds(hour_number * 3600), \"yyyy-MM-dd'T'HH\")")
    )


def _daily(hourly: DataFrame) -> DataFrame:
    names = ("count", "bytes", "units", "billed", "rows", "copies")
    return (
        hourly.withColumn("day", f.to_date(f.substring("hour", 1, 10)))
        .groupBy(*KEY)
        .agg(*[f.sum(name).alias(name) for name in names])
        .withColumn("purpose", _purpose_column())
    )


def _detour_minutes(hourly: DataFrame) -> int:
    """Minutes in which anything was sent to a backlog: an hour's are the bits of one number."""
    by_hour = hourly.groupBy("hour").agg(f.bit_count(f.bit_or("detours")).alias("minutes"))
    return int(by_hour.agg(f.sum("minutes")).collect()[0][0] or 0)


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


def _days(table: DataFrame) -> list[_Day]:
    grouped = table.groupBy("day").agg(
        f.sum("billed").alias("billed"),
        f.sum("rows").alias("rows"),
        f.sum("copies").alias("copies"),
    )
    rows = grouped.orderBy("day").limit(DAYS_MAX + 1).collect()
    if len(rows) > DAYS_MAX:
        raise UsageError(f"the logs span more than {DAYS_MAX:,} days: narrow them with --from and --to")
    return [_Day(row["day"], int(row["billed"]), 0, int(row["rows"]), int(row["copies"])) for row in rows]


def _months(hourly: DataFrame, usage: Usage, days: list[_Day], pricing: Pricing) -> list[MonthUsage]:
    """Hours from the first to the last of the log, hourly peaks of each namespace added up, and data that was handed out."""
    by_namespace = hourly.groupBy("hour", "namespace").agg(
        f.max("peak").alias("peak"), f.sum(f.when(_leaves(pricing), f.col("bytes")).otherwise(0)).alias("out")
    )
    monthly = by_namespace.groupBy(f.substring("hour", 1, 7).alias("month")).agg(
        f.min("hour").alias("first"),
        f.max("hour").alias("last"),
        f.sum("peak").alias("peaks"),
        f.sum("out").alias("out"),
    )
    found = {str(row["month"]): row for row in monthly.collect()}
    if not found:
        return []
    start = usage.start or _hour(min(str(row["first"]) for row in found.values()))
    end = usage.end or _hour(max(str(row["last"]) for row in found.values())) + timedelta(hours=1)
    return [
        MonthUsage(
            month=month,
            hours=hours,
            operations=sum(day.billed for day in days if day.month == month),
            peak_hours=int(found[month]["peaks"]) if month in found else 0,
            data_out_bytes=int(found[month]["out"]) if month in found else 0,
        )
        for month, hours in hours_by_month(start, end).items()
    ]


def _hour(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H").replace(tzinfo=UTC)


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
    offsets: list[tuple[date, int, int, Decimal | None]] = []
    for bill in bills:
        inside = [day for day in days if day.month == bill.month]
        whole = sum(day.billed for day in inside)
        amount = bill.of(OPERATIONS_METER)
        before = 0
        for day in inside:
            offsets.append((day.day, before, whole, None if amount is None else Decimal(quanta(amount))))
            before += day.billed
    plan = (
        spark.createDataFrame(offsets, "day date, before long, whole long, quanta decimal(28,0)")
        if offsets
        else None
    )
    if plan is None:
        return table.withColumn("amount", f.lit(None).cast(AMOUNT_TYPE)).drop("rows", "copies")
    order = (
        Window.partitionBy("day").orderBy(*KEY[1:]).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    joined = table.join(f.broadcast(plan), "day").withColumn(
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


def _day_rows(priced: DataFrame) -> list[DayRow]:
    rows = priced.groupBy("day", "purpose").agg(*_totals()).orderBy("day", "purpose").collect()
    return [
        DayRow(row["day"], str(row["purpose"]), int(row["count"]), int(row["billed"]), row["amount"])
        for row in rows
    ]


def _purpose_rows(priced: DataFrame) -> list[PurposeRow]:
    rows = (
        priced.groupBy("stage", "operation", "purpose")
        .agg(*_totals())
        .orderBy("stage", "operation")
        .collect()
    )
    return [
        PurposeRow(
            str(row["stage"]),
            str(row["operation"]),
            str(row["purpose"]),
            int(row["count"]),
            int(row["bytes"]),
            int(row["billed"]),
            row["amount"],
        )
        for row in rows
    ]


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


def _reasons(quarantined: DataFrame) -> dict[str, int]:
    rows = quarantined.groupBy("reason").count().orderBy("reason").limit(REASONS_SHOWN).collect()
    return {str(row["reason"]): int(row["count"]) for row in rows}


def operations_amount(
    counted: DataFrame, pricing: Pricing, recorded: int, supposed: int
) -> tuple[Decimal | None, Decimal | None]:
    """What two numbers of operations cost if they were done in the month of the first event; None where unknown."""
    first = counted.agg(f.min("ms").alias("first")).collect()[0]["first"]
    if first is None:
        return Decimal(0), Decimal(0)
    day = utc(int(first)).date()
    table = choose(pricing.tables, day, pricing.tier, pricing.region, pricing.currency)
    paid, would = (
        month_bill(MonthUsage(month=f"{day:%Y-%m}", operations=max(0, number)), table).of(OPERATIONS_METER)
        for number in (recorded, supposed)
    )
    return paid, would
