"""The bill as a document: what it comes to, over time, by stage, and what the pairing cost against what it saved."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Final

from pairbus.reports.bill.model import PAIRING_PURPOSES, PURPOSES
from pairbus.reports.bill.money import SCALE, divided, shown
from pairbus.reports.bill.report import CostReport
from pairbus.reports.text import many
from pairbus.reports.views.document import (
    GOOD,
    UNSURE,
    Bars,
    Columns,
    Document,
    Notes,
    Piece,
    Section,
    ShareBar,
    Table,
)

DAYS_PLOTTED_MAX: Final = 366
"""More days are plotted by month."""
_COLOURS: Final = {name: at for at, name in enumerate(PURPOSES)}
_SIZES: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def bill_document(report: CostReport) -> Document:
    sentence, detail = f"{shown(report.known, report.currency)} in all", pairing_text(report)
    if report.unknown:
        sentence = f"{shown(report.known, report.currency)}, and what has no known price"
        detail = "; ".join(report.unknown)
    if not report.bills:
        sentence = "No usage in these logs: nothing to bill."
    return Document(
        title="What the namespaces cost",
        subtitle=_period(report),
        kind=UNSURE if report.unknown else GOOD,
        sentence=sentence,
        detail=detail,
        tiles=_tiles(report),
        sections=[
            _lines(report),
            _over_time(report),
            _stages(report),
            _pairing(report),
            _entities(report),
            Section("What was read", [Notes([rows_text(report), *_remarks(report)])]),
            Section("Prices", [Notes(report.billing.sources or ("No usage, so no price was looked up.",))]),
        ],
    )


def pairing_text(report: CostReport) -> str:
    """What the pairing cost against what it saved, as a sentence."""
    cost = report.pairing()
    return (
        f"The pairing cost {many(cost.operations, 'operation')} ({shown(cost.amount, report.currency)}) and took "
        f"{many(cost.messages_saved, 'message')} ({many(cost.bytes_saved, 'byte')}) in "
        f"{many(report.detour_minutes, 'minute')} with sends to the backlog."
    )


def rows_text(report: CostReport) -> str:
    """What became of the rows, as a sentence."""
    rows = report.rows
    return (
        f"{many(rows.read, 'row')} read: {rows.counted:,} counted, {rows.repeated:,} repeated, "
        f"{sum(rows.quarantined.values()):,} quarantined; {many(rows.repeated_parts, 'copy', 'copies')} of parts skipped."
    )


def _remarks(report: CostReport) -> list[str]:
    found = [
        f"quarantined: {many(count, 'row')}: {reason}" for reason, count in report.rows.quarantined.items()
    ]
    return found + [f"damaged: {path}: {why}" for path, why in report.rows.damaged_files.items()]


def _period(report: CostReport) -> str:
    days = sorted({row.day for row in report.days})
    if not days:
        return "No usage in these logs"
    span = f"{days[0]:%d %B %Y}" if len(days) == 1 else f"{days[0]:%d %B %Y} to {days[-1]:%d %B %Y}"
    return f"{span} (UTC) · {many(report.entity_count, 'entity', 'entities')} · prices in {report.currency}"


def _tiles(report: CostReport) -> list[tuple[str, str, str]]:
    cost = report.pairing()
    return [
        ("Operations billed", f"{report.operations:,}", "one for every 64 KB begun"),
        (
            "Of the pairing",
            f"{cost.operations:,}",
            f"{_percent(cost.operations, report.operations)} of all operations",
        ),
        ("Cost of the pairing", shown(cost.amount), f"{report.currency}, its share of the operations"),
        (
            "Messages it saved",
            f"{cost.messages_saved:,}",
            f"{_size(cost.bytes_saved)}, in {many(report.detour_minutes, 'minute')} with sends to the backlog",
        ),
    ]


def _lines(report: CostReport) -> Section:
    rows = [
        (bill.month, line.meter, line.text, shown(line.amount))
        for bill in report.bills
        for line in bill.lines
    ]
    foot = ("", "total", "", shown(report.known))
    return Section(
        "The bill", [Table(("month", "meter", "how", report.currency), rows, (3,), foot, unbroken=(0,))]
    )


def _over_time(report: CostReport) -> Section:
    days = sorted({row.day for row in report.days})
    is_long = len(days) > DAYS_PLOTTED_MAX
    names = list(dict.fromkeys(_day_name(day, is_long) for day in days))
    has_money = all(row.amount is not None for row in report.days) and any(row.amount for row in report.days)
    values: dict[tuple[str, str], Decimal] = {}
    for row in report.days:
        key = (_day_name(row.day, is_long), row.purpose)
        added = (row.amount or Decimal(0)) if has_money else Decimal(row.operations)
        values[key] = values.get(key, Decimal(0)) + added
    series = [
        (purpose, _COLOURS[purpose], [values.get((name, purpose), Decimal(0)) for name in names])
        for purpose in PURPOSES
        if any(value for (_, own), value in values.items() if own == purpose)
    ]
    plot = Columns(names, series, "cost over time", report.currency if has_money else "operations")
    if has_money or not days:
        return Section("Over time", [plot])
    remark = (
        "All operations lie within what is included, or have no known price: the plot shows their number."
    )
    return Section("Over time", [Notes([remark]), plot])


def _day_name(day: date, is_long: bool) -> str:
    return f"{day:%Y-%m}" if is_long else day.isoformat()


def _stages(report: CostReport) -> Section:
    plotted = [
        (
            name,
            [Piece(found.operations, _COLOURS[name], f"{name}: {found.operations:,}")],
            f"{found.operations:,} · {shown(found.amount)}",
        )
        for name, found in report.by_purpose().items()
        if found.operations
    ]
    rows = [
        (
            row.stage,
            row.operation,
            f"{row.count:,}",
            f"{row.bytes:,}",
            f"{row.operations:,}",
            shown(row.amount),
        )
        for row in report.purposes
    ]
    head = ("stage", "operation", "count", "bytes", "billed", report.currency)
    return Section("By stage", [Bars(plotted, "operations by stage"), Table(head, rows, (2, 3, 4, 5))])


def _pairing(report: CostReport) -> Section:
    cost = report.pairing()
    base = report.operations - cost.operations
    pieces = [Piece(base, 0, f"without the pairing: {many(base, 'operation')}")]
    pieces += [
        Piece(found.operations, _COLOURS[name], f"{name}: {found.operations:,}")
        for name, found in report.by_purpose().items()
        if name in PAIRING_PURPOSES and found.operations
    ]
    rows = [
        ("what it cost", f"{many(cost.operations, 'operation')}, {shown(cost.amount, report.currency)}"),
        ("what it saved", f"{many(cost.messages_saved, 'message')} that could not be sent otherwise"),
    ]
    if cost.messages_saved:
        each = (
            f"{divided(Decimal(cost.operations), cost.messages_saved).quantize(Decimal('0.01'))} operations"
        )
        if cost.amount:
            amount = shown(divided(cost.amount, cost.messages_saved), report.currency)
            each += f", {amount} (rounded to {SCALE} places)"
        rows.append(("for each message saved", each))
    return Section(
        "What the pairing cost, and what it saved",
        [ShareBar(pieces, "operations of the pairing among all"), Table(("", ""), rows)],
        pairing_text(report),
    )


def _entities(report: CostReport) -> Section:
    shown_count = len(report.entities)
    title = "Entities"
    if shown_count < report.entity_count:
        title = f"The {shown_count} busiest of {report.entity_count:,} entities"
    rows = [
        (row.namespace, row.entity, row.stage, f"{row.count:,}", f"{row.operations:,}", shown(row.amount))
        for row in report.entities
    ]
    head = ("namespace", "entity", "stage", "count", "billed", report.currency)
    return Section(title, [Table(head, rows, (3, 4, 5), codes=(0, 1))])


def _percent(part: int, whole: int) -> str:
    return f"{Decimal(part) * 100 / whole:.1f} %" if whole else "0 %"


def _size(size: int) -> str:
    for bound, unit in _SIZES:
        if size >= bound:
            return f"{Decimal(size) / bound:.1f} {unit}"
    return many(size, "byte")
