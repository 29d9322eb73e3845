"""The bill in this process: part by part, so that memory holds one file and the sums (see ``bill.days`` for the rest)."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.errors import UsageError
from pairbus.reports.bill.days import KEY, Billing, Day, Pricing, bill_days, check_span
from pairbus.reports.bill.model import (
    BACKLOG,
    CONNECTIONS,
    DAY_MS,
    EMPTY_RECEIVE,
    HOUR_MS,
    MINUTE_MS,
    OPERATIONS,
    PING,
    PRIMARY,
    SEND,
    STAGES,
    purpose,
)
from pairbus.reports.bill.money import SCALE, shares
from pairbus.reports.bill.report import (
    ENTITIES_SHOWN,
    CostReport,
    DayRow,
    EntityRow,
    PurposeRow,
    Rows,
    cost_report,
)
from pairbus.reports.bill.what_if import Away, Minute, Recorded, RecordedMonth, away_of, detours_of
from pairbus.reports.engines import usage_log as log
from pairbus.reports.engines.arrow.rows import (
    LONG,
    TEXT,
    TIME,
    emptied,
    first_reason,
    raw_rows,
    read_lines,
    read_parquet,
    source_uri,
    write_table,
)
from pairbus.reports.engines.usage_log import COLUMNS, NAMES, VALUES, UsageRange

AMOUNT: Final = pa.decimal128(38, SCALE)
SUM_MAX: Final = 2**62
TYPES: Final = {"bucket": TIME, **dict.fromkeys(NAMES, TEXT), **dict.fromkeys(VALUES, LONG)}
LINE_TYPES: Final = {**TYPES, "part": TEXT}
"""Lines of JSON name their part."""
_HOUR: Final = re.compile(r"hour=(\d{4}-\d{2}-\d{2})T(\d{2})[^/]*$")
_QUARANTINE: Final = pa.schema([("source", TEXT), ("reason", TEXT), ("raw", TEXT)])


@dataclass(slots=True)
class Quarantine:
    """Rows that cannot be true."""

    reasons: Counter[str] = field(default_factory=Counter)
    tables: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Priced:
    """The bill and the table it rests on."""

    report: CostReport
    table: pa.Table
    """KEY, ``purpose``, ``count``, ``bytes``, ``units``, ``billed``, ``amount`` (null where a price is unknown), in the order of KEY."""
    quarantined: pa.Table

    def write_parquet(self, directory: str) -> None:
        """Write ``DIR/bill`` and ``DIR/quarantine``, in place of older ones."""
        write_table(directory, "bill", self.table)
        write_table(directory, "quarantine", self.quarantined)

    def write_csv(self, directory: str) -> None:
        """Write ``DIR/bill``, in place of an older one, in the order of days and names."""
        path = emptied(directory, "bill") / "part-0.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.table.column_names)
            for row in self.table.to_pylist():
                writer.writerow([_cell(value) for value in row.values()])


def _cell(value: object) -> object:
    """A text on one line that no spreadsheet takes for a formula (M8), or a number with all its digits and no exponent."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if not isinstance(value, str):
        return value
    flat = re.sub(r"[\x00-\x1f\x7f-\x9f]", "\ufffd", value)
    return f"'{flat}" if flat[:1] in ("=", "+", "-", "@") else flat


def events(wanted: UsageRange, quarantine: Quarantine) -> Iterator[pa.Table]:
    """Every event once, part by part: ``ms``, NAMES, VALUES and ``copies``, how often it was found."""
    unsure = set(wanted.inputs.unsure)
    for path in wanted.inputs.parquet:
        hour = _hour_of(path) if path in unsure else None
        yield _events(read_parquet(path, TYPES), path, wanted, quarantine, hour)
    if wanted.inputs.lines:
        # All of them together: a part may have lines in several files.
        found = [
            _true_rows(read_lines(path, LINE_TYPES), path, wanted, quarantine) for path in wanted.inputs.lines
        ]
        yield _once(pa.concat_tables(found), ("part",))


def _events(
    rows: pa.Table, path: str, wanted: UsageRange, quarantine: Quarantine, hour: int | None
) -> pa.Table:
    return _once(_true_rows(rows, path, wanted, quarantine, hour), ())


def _hour_of(path: str) -> int | None:
    """The hour that a part's directory names, counted from 1970."""
    found = _HOUR.search(path.rpartition("/")[0])
    try:
        return (
            None
            if found is None
            else (date.fromisoformat(found[1]) - date(1970, 1, 1)).days * 24 + int(found[2])
        )
    except ValueError:
        return None


def _true_rows(
    rows: pa.Table, path: str, wanted: UsageRange, quarantine: Quarantine, hour: int | None = None
) -> pa.Table:
    """The rows in the range that can be true; the others are quarantined."""
    bucket = rows["bucket"]
    for bound, compare in ((wanted.start, pc.greater_equal), (wanted.end, pc.less)):
        if bound is not None:
            inside = compare(bucket, int(bound.timestamp() * 1000))
            rows = rows.filter(pc.fill_null(inside, True))
            bucket = rows["bucket"]
    operation, stage = rows["operation"], rows["stage"]
    conditions = [
        (pc.is_valid(rows["broken"]), log.NOT_JSON),
        (pc.is_null(bucket), log.NO_BUCKET),
        (pc.greater(bucket, int(wanted.latest.timestamp() * 1000)), log.IN_FUTURE),
        (pc.less(bucket, int(log.EARLIEST.timestamp() * 1000)), log.TOO_EARLY),
        (pc.or_(pc.is_null(rows["namespace"]), pc.is_null(rows["entity"])), log.NO_NAME),
        (pc.invert(pc.is_in(operation, pa.array(OPERATIONS))), log.BAD_OPERATION),
        (pc.invert(pc.is_in(stage, pa.array(STAGES))), log.BAD_STAGE),
    ]
    for name in VALUES:
        column = rows[name].cast(LONG)
        bad = pc.or_(pc.less(column, 0), pc.greater(column, log.COUNT_MAX))
        conditions.append((pc.fill_null(bad, True), log.BAD_VALUE.format(name)))
    conditions += [
        (pc.less(rows["units"], rows["count"]), log.FEW_UNITS),
        (pc.and_(pc.equal(operation, CONNECTIONS), pc.greater(rows["units"], 0)), log.CONNECTIONS_BILLED),
    ]
    if hour is not None:
        conditions.append((pc.not_equal(pc.divide(bucket, HOUR_MS), hour), log.OTHER_HOUR))
    reason = first_reason(conditions)
    is_true = pc.is_null(reason)
    if reason.null_count < len(reason):
        wrong, why = rows.filter(pc.invert(is_true)), reason.drop_null()
        quarantine.reasons.update(why.to_pylist())
        columns = [[source_uri(path)] * wrong.num_rows, why.to_pylist(), raw_rows(wrong, COLUMNS, TYPES)]
        quarantine.tables.append(pa.table(columns, schema=_QUARANTINE))
        rows = rows.filter(is_true)
    return rows.rename_columns({"bucket": "ms"})


def _once(rows: pa.Table, more_keys: Sequence[str]) -> pa.Table:
    """Each event once. Copies that differ are of different age; counts only grow, so the largest is the newest."""
    keys = ["ms", *NAMES]
    if "part" in more_keys:
        rows = rows.set_column(rows.column_names.index("part"), "part", pc.fill_null(rows["part"], ""))
    found = rows.group_by([*more_keys, *keys]).aggregate(
        [*((name, "max") for name in VALUES), ([], "count_all")]
    )
    names = {f"{name}_max": name for name in VALUES} | {"count_all": "copies"}
    return found.rename_columns([names.get(name, name) for name in found.column_names]).select(
        [*keys, *VALUES, "copies"]
    )


# -- the bill -----------------------------------------------------------------------------------------


def price(wanted: UsageRange, pricing: Pricing) -> Priced:
    """Add up, price, divide the amounts among the rows.

    Raises:
        UsageError: A file is damaged, no price table fits, or the logs span more than ten years.
    """
    quarantine = Quarantine()
    hourly, detour_minutes = _hourly(wanted, quarantine)
    days = _days(hourly, detour_minutes, pricing)
    billing = bill_days(days, wanted.start, wanted.end, pricing)
    table = _with_amounts(_daily(hourly, pricing), days, billing)
    inputs = wanted.inputs
    busy = table.filter(pc.greater(table["count"], 0))
    report = cost_report(
        days,
        billing,
        Rows(
            counted=sum(day.rows for day in days),
            repeated=sum(day.copies - day.rows for day in days),
            repeated_parts=len(inputs.repeated),
            quarantined=dict(sorted(quarantine.reasons.items())),
            damaged_files=dict(inputs.damaged),
        ),
        by_day=[DayRow(*row) for row in _grouped(table, ["day", "purpose"], ["count", "billed", "amount"])],
        by_purpose=[
            PurposeRow(*row)
            for row in _grouped(
                table, ["stage", "operation", "purpose"], ["count", "bytes", "billed", "amount"]
            )
        ],
        entities=_busiest(busy),
        entity_count=busy.group_by(["namespace", "entity"]).aggregate([]).num_rows,
    )
    return Priced(report, table, pa.concat_tables([_QUARANTINE.empty_table(), *quarantine.tables]))


def _hourly(wanted: UsageRange, quarantine: Quarantine) -> tuple[pa.Table, set[int]]:
    """The sums of each hour and name; and the minutes with sends to the backlog."""
    keys, sums = ["hour", *NAMES], ["count", "bytes", "units", "rows", "copies"]
    found: list[pa.Table] = []
    detours: set[int] = set()
    for part in events(wanted, quarantine):
        is_detour = _is(part, SEND, BACKLOG)
        minutes = part.filter(pc.and_(is_detour, pc.greater(part["count"], 0)))["ms"]
        detours.update(pc.divide(minutes, MINUTE_MS).to_pylist())
        part = part.append_column("hour", pc.divide(part["ms"], HOUR_MS))
        part = part.append_column("rows", pa.array([1] * part.num_rows, LONG))
        found.append(_summed(part, keys, sums, ["connection_peak"]))
    if not found:
        return _summed(_empty_events(), keys, sums, ["connection_peak"]), detours
    return _summed(pa.concat_tables(found), keys, sums, ["connection_peak"]), detours


def _empty_events() -> pa.Table:
    types = {"hour": LONG, **dict.fromkeys(NAMES, TEXT), **dict.fromkeys((*VALUES, "rows", "copies"), LONG)}
    return pa.schema(list(types.items())).empty_table()


def _summed(table: pa.Table, keys: list[str], sums: Sequence[str], maxima: Sequence[str] = ()) -> pa.Table:
    """A table with sums and maxima by keys, under the names that the columns had.

    Raises:
        UsageError: The sums do not fit in 64 bits.
    """
    for name in sums:
        largest = pc.max(table[name]).as_py() if not pa.types.is_decimal(table[name].type) else None
        if largest and int(largest) * table.num_rows > SUM_MAX and sum(table[name].to_pylist()) > SUM_MAX:
            raise UsageError(
                f"the {name} of these logs add up to more than 64 bits hold: narrow the time with --from and --to"
            )
    found = table.group_by(keys).aggregate(
        [*((name, "sum") for name in sums), *((name, "max") for name in maxima)]
    )
    return found.rename_columns(
        [name if name in keys else name.rpartition("_")[0] for name in found.column_names]
    ).select([*keys, *sums, *maxima])


def _is(table: pa.Table, operation: str, stage: str) -> Any:
    return pc.and_(pc.equal(table["operation"], operation), pc.equal(table["stage"], stage))


def _billed(table: pa.Table, unbilled: Sequence[str]) -> Any:
    is_free = pc.is_in(table["operation"], pa.array(unbilled, TEXT))
    return pc.if_else(is_free, pa.scalar(0, LONG), table["units"])


def _days(hourly: pa.Table, detour_minutes: set[int], pricing: Pricing) -> list[Day]:
    """The peaks of each hour and namespace are added up; minutes with detours are those of all namespaces together."""
    leaves = [
        bytes_ if pricing.leaves_region(stage, operation) else 0
        for stage, operation, bytes_ in zip(
            *(hourly[name].to_pylist() for name in ("stage", "operation", "bytes")), strict=True
        )
    ]
    table = hourly.append_column("out", pa.array(leaves, LONG)).append_column(
        "billed", _billed(hourly, pricing.unbilled)
    )
    sums = ["out", "billed", "rows", "copies"]
    by_namespace = _summed(table, ["hour", "namespace"], sums, ["connection_peak"])
    by_namespace = by_namespace.rename_columns({"connection_peak": "peaks"})
    detours = Counter(minute // (DAY_MS // MINUTE_MS) for minute in detour_minutes)
    days: dict[int, list[dict[str, Any]]] = {}
    for hour in sorted(
        _summed(by_namespace, ["hour"], [*sums, "peaks"]).to_pylist(), key=lambda row: row["hour"]
    ):
        days.setdefault(hour["hour"] // 24, []).append(hour)
    if days:
        check_span(min(days), max(days))
    return [
        Day(
            number=number,
            billed=sum(hour["billed"] for hour in hours),
            data_out=sum(hour["out"] for hour in hours),
            peak_hours=sum(hour["peaks"] for hour in hours),
            detour_minutes=detours[number],
            rows=sum(hour["rows"] for hour in hours),
            copies=sum(hour["copies"] for hour in hours),
            first_hour=hours[0]["hour"],
            last_hour=hours[-1]["hour"],
        )
        for number, hours in days.items()
    ]


def _daily(hourly: pa.Table, pricing: Pricing) -> pa.Table:
    days = pc.divide(hourly["hour"], 24).cast(pa.int32()).cast(pa.date32())
    table = hourly.append_column("day", days).append_column("billed", _billed(hourly, pricing.unbilled))
    table = _summed(table, [*KEY], ["count", "bytes", "units", "billed"])
    table = table.sort_by([(name, "ascending") for name in KEY])
    purposes = [
        purpose(stage, operation)
        for stage, operation in zip(table["stage"].to_pylist(), table["operation"].to_pylist(), strict=True)
    ]
    return table.add_column(len(KEY), "purpose", pa.array(purposes, TEXT))


def _with_amounts(table: pa.Table, days: Sequence[Day], billing: Billing) -> pa.Table:
    """Each row's share of what the operations of its month cost."""
    months = {day.day: day.month for day in days}
    weights: dict[str, list[int]] = {}
    for day, billed in zip(table["day"].to_pylist(), table["billed"].to_pylist(), strict=True):
        weights.setdefault(months[day], []).append(billed)
    amounts: list[Any] = []
    for month, own in weights.items():
        amount = billing.operations_amount(month)
        unknown = None if any(own) else 0
        amounts += [unknown] * len(own) if amount is None else shares(amount, own)
    return table.append_column("amount", pa.array(amounts, AMOUNT))


def _grouped(table: pa.Table, keys: list[str], sums: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in _summed(table, keys, sums).to_pylist()]


def _busiest(busy: pa.Table) -> list[EntityRow]:
    names = ["namespace", "entity", "stage"]
    found = _summed(busy, names, ["count", "billed", "amount"])
    order = [("billed", "descending"), *((name, "ascending") for name in names)]
    return [EntityRow(*row.values()) for row in found.sort_by(order).slice(0, ENTITIES_SHOWN).to_pylist()]


# -- what-if ------------------------------------------------------------------------------------------


def recorded_usage(
    wanted: UsageRange,
    unbilled: Sequence[str],
    early_ms: int,
    spans: Sequence[tuple[int, int]],
    failover_ms: int,
) -> tuple[Recorded, tuple[Away, ...]]:
    """What was recorded about the pairing, and the supposed outages of ``spans``."""
    idle = pings = 0
    queues: set[tuple[str, str]] = set()
    months: dict[str, tuple[int, int]] = {}
    detours: Counter[int] = Counter()
    detour_units: Counter[int] = Counter()
    sends: list[list[dict[str, Any]]] = [[] for _ in spans]
    for part in events(wanted, Quarantine()):
        idle += _sum(part.filter(_is(part, EMPTY_RECEIVE, BACKLOG))["units"])
        pings += _sum(part.filter(pc.equal(part["operation"], PING))["units"])
        is_queue = pc.and_(pc.equal(part["stage"], BACKLOG), pc.not_equal(part["entity"], ""))
        backlog = part.filter(is_queue).group_by(["namespace", "entity"]).aggregate([])
        queues.update((row["namespace"], re.sub(r"/\$.*$", "", row["entity"])) for row in backlog.to_pylist())
        _add_months(months, part, unbilled)
        away = part.filter(pc.and_(_is(part, SEND, BACKLOG), pc.greater(part["count"], 0)))
        for row in _summed(away, ["ms"], ["count", "units"]).to_pylist():
            detours[row["ms"]] += row["count"]
            detour_units[row["ms"]] += row["units"]
        primary = part.filter(_is(part, SEND, PRIMARY))
        for (start, end), found in zip(spans, sends, strict=True):
            ms = primary["ms"]
            inside = pc.and_(pc.greater_equal(ms, start - MINUTE_MS), pc.less(ms, end))
            found += (
                primary.filter(inside).select(["ms", "namespace", "entity", "count", "units"]).to_pylist()
            )
    recorded = Recorded(
        operations=sum(operations for operations, _ in months.values()),
        idle_receives=idle,
        pings=pings,
        queues=len(queues),
        months=tuple(
            RecordedMonth(month=month, operations=operations, first_ms=first)
            for month, (operations, first) in sorted(months.items())
        ),
        detours=detours_of((Minute(ms, count, detour_units[ms]) for ms, count in detours.items()), early_ms),
    )
    return recorded, tuple(
        away_of(
            [Minute(row["ms"], row["count"], row["units"]) for row in found],
            len({(row["namespace"], row["entity"]) for row in found}),
            start,
            end,
            failover_ms,
        )
        for (start, end), found in zip(spans, sends, strict=True)
    )


def _add_months(months: dict[str, tuple[int, int]], part: pa.Table, unbilled: Sequence[str]) -> None:
    days = pc.divide(part["ms"], DAY_MS).cast(pa.int32()).cast(pa.date32())
    table = pa.table(
        {"month": pc.strftime(days, "%Y-%m"), "billed": _billed(part, unbilled), "ms": part["ms"]}
    )
    for row in table.group_by("month").aggregate([("billed", "sum"), ("ms", "min")]).to_pylist():
        operations, first = months.get(row["month"], (0, row["ms_min"]))
        months[row["month"]] = operations + row["billed_sum"], min(first, row["ms_min"])


def _sum(column: Any) -> int:
    return int(pc.sum(column).as_py() or 0)
