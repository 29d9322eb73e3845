"""The bill as a page: what it comes to, over time, by stage, and what the pairing cost against what it saved."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pairbus.reports.bill.model import PAIRING_PURPOSES, PURPOSES
from pairbus.reports.bill.money import SCALE, divided, shown
from pairbus.reports.text import many
from pairbus.reports.views.html import (
    GOOD,
    UNSURE,
    Piece,
    bars,
    columns,
    notes,
    page,
    paragraph,
    section,
    share_bar,
    table,
    tiles,
    verdict,
)

if TYPE_CHECKING:
    from pairbus.reports.bill.report import CostReport

DAYS_PLOTTED_MAX: Final = 366
"""More days are plotted by month."""
_COLOURS: Final = {name: at for at, name in enumerate(PURPOSES)}
_SIZES: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def cost_page(told: CostReport) -> str:
    parts = [
        _verdict(told),
        _tiles(told),
        _lines(told),
        section("Over time", [_days(told)]),
        _stages(told),
        _pairing(told),
        _entities(told),
        section("What was read", [paragraph(told.rows_text()), notes(_remarks(told))]),
        section("Prices", [notes(told.sources or ("No usage, so no price was looked up.",))]),
    ]
    return page("What the namespaces cost", _period(told), parts)


def _period(told: CostReport) -> str:
    days = sorted({row.day for row in told.days})
    if not days:
        return "No usage in these logs"
    span = f"{days[0]:%d %B %Y}" if len(days) == 1 else f"{days[0]:%d %B %Y} to {days[-1]:%d %B %Y}"
    return f"{span} (UTC) · {many(told.entity_count, 'entity', 'entities')} · prices in {told.currency}"


def _verdict(told: CostReport) -> str:
    if told.unknown:
        return verdict(
            UNSURE,
            f"{shown(told.known, told.currency)}, and what has no known price",
            "; ".join(told.unknown),
        )
    return verdict(GOOD, f"{shown(told.known, told.currency)} in all", told.pairing_text())


def _tiles(told: CostReport) -> str:
    operations, amount, messages, size = told.pairing()
    return tiles(
        [
            ("Operations billed", f"{told.operations:,}", "one for every 64 KB begun"),
            (
                "Of the pairing",
                f"{operations:,}",
                f"{_percent(operations, told.operations)} of all operations",
            ),
            ("Cost of the pairing", shown(amount), f"{told.currency}, its share of the operations"),
            (
                "Messages it saved",
                f"{messages:,}",
                f"{_size(size)}, the primary away {many(told.detour_minutes, 'minute')}",
            ),
        ]
    )


def _lines(told: CostReport) -> str:
    lines = [
        (bill.month, line.meter, line.text, shown(line.amount)) for bill in told.bills for line in bill.lines
    ]
    foot = ("", "total", "", shown(told.known))
    return section(
        "The bill", [table(("month", "meter", "how", told.currency), lines, (3,), foot, unbroken=(0,))]
    )


def _days(told: CostReport) -> str:
    days = sorted({row.day for row in told.days})
    is_long = len(days) > DAYS_PLOTTED_MAX
    names = list(dict.fromkeys(_name(day, is_long) for day in days))
    has_money = all(row.amount is not None for row in told.days) and any(row.amount for row in told.days)
    values: dict[tuple[str, str], Decimal] = {}
    for row in told.days:
        key = (_name(row.day, is_long), row.purpose)
        added = (row.amount or Decimal(0)) if has_money else Decimal(row.billed)
        values[key] = values.get(key, Decimal(0)) + added
    series = [
        (purpose, _COLOURS[purpose], [values.get((name, purpose), Decimal(0)) for name in names])
        for purpose in PURPOSES
        if any(value for (_, own), value in values.items() if own == purpose)
    ]
    remark = (
        ""
        if has_money or not days
        else notes(
            [
                "All operations lie within what is included, or have no known price: the plot shows their number."
            ]
        )
    )
    return remark + columns(names, series, "cost over time", told.currency if has_money else "operations")


def _name(day: date, is_long: bool) -> str:
    return f"{day:%Y-%m}" if is_long else day.isoformat()


def _stages(told: CostReport) -> str:
    plotted = [
        (name, [Piece(billed, _COLOURS[name], f"{name}: {billed:,}")], f"{billed:,} · {shown(cost)}")
        for name, (_, billed, cost) in told.by_purpose().items()
        if billed
    ]
    rows = [
        (row.stage, row.operation, f"{row.count:,}", f"{row.size:,}", f"{row.billed:,}", shown(row.amount))
        for row in told.purposes
    ]
    head = ("stage", "operation", "count", "bytes", "billed", told.currency)
    return section("By stage", [bars(plotted, "operations by stage"), table(head, rows, (2, 3, 4, 5))])


def _pairing(told: CostReport) -> str:
    operations, amount, messages, _ = told.pairing()
    base = told.operations - operations
    pieces = [Piece(base, 0, f"without the pairing: {many(base, 'operation')}")]
    pieces += [
        Piece(billed, _COLOURS[name], f"{name}: {billed:,}")
        for name, (_, billed, _) in told.by_purpose().items()
        if name in PAIRING_PURPOSES and billed
    ]
    rows = [
        ("what it cost", f"{many(operations, 'operation')}, {shown(amount, told.currency)}"),
        ("what it saved", f"{many(messages, 'message')} that could not be sent otherwise"),
    ]
    if messages:
        each = divided(Decimal(operations), messages)
        rows.append(
            (
                "for each message saved",
                f"{each.quantize(Decimal('0.01'))} operations{_each(amount, messages, told.currency)}",
            )
        )
    return section(
        "What the pairing cost, and what it saved",
        [share_bar(pieces, "operations of the pairing among all"), table(("", ""), rows)],
        told.pairing_text(),
    )


def _each(amount: Decimal | None, messages: int, currency: str) -> str:
    if amount is None:
        return ""
    return f", {shown(divided(amount, messages), currency)} (rounded to {SCALE} places)" if amount else ""


def _entities(told: CostReport) -> str:
    busiest = len(told.entities)
    title = (
        "Entities"
        if busiest >= told.entity_count
        else f"The {busiest} busiest of {told.entity_count:,} entities"
    )
    rows = [
        (row.namespace, row.entity, row.stage, f"{row.count:,}", f"{row.billed:,}", shown(row.amount))
        for row in told.entities
    ]
    head = ("namespace", "entity", "stage", "count", "billed", told.currency)
    return section(title, [table(head, rows, (3, 4, 5), codes=(0, 1))])


def _remarks(told: CostReport) -> list[str]:
    found = [f"{many(count, 'row')} set apart: {reason}" for reason, count in told.rows.quarantined.items()]
    return found + [f"damaged: {path}: {why}" for path, why in told.rows.damaged.items()]


def _percent(part: int, whole: int) -> str:
    return f"{Decimal(part) * 100 / whole:.1f} %" if whole else "0 %"


def _size(size: int) -> str:
    for bound, unit in _SIZES:
        if size >= bound:
            return f"{Decimal(size) / bound:.1f} {unit}"
    return many(size, "byte")
