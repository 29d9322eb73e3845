"""A month's usage × a price table = a bill, line by line. What has no known price is listed as such and never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from pairbus.reports.bill.money import divided, product, rounded, shown, total
from pairbus.reports.bill.prices import Band, PriceTable
from pairbus.reports.text import many

MILLION: Final = 1_000_000
GB: Final = 1_000_000_000

BASE: Final = "base charge"
OPERATIONS: Final = "operations"
CONNECTIONS: Final = "connections"
DATA_OUT: Final = "data out"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthUsage:
    """What a month is billed by, over all namespaces of the subscription."""

    month: str
    """As ``2026-11``."""
    hours: int = 0
    """In which there was a namespace."""
    operations: int = 0
    """Units of 64 KB of all billed operations."""
    peak_hours: int = 0
    """The peaks of connections of every hour and namespace, added up."""
    data_out_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    meter: str
    text: str
    quantity: Decimal
    unit: str
    price: Decimal | None
    amount: Decimal | None
    """None: no known price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthBill:
    month: str
    currency: str
    lines: tuple[Line, ...]

    @property
    def known(self) -> Decimal:
        """The sum of what has a price."""
        return total([line.amount for line in self.lines if line.amount is not None])

    @property
    def unknown(self) -> tuple[str, ...]:
        """Lines without a known price."""
        return tuple(f"{line.meter}: {line.text}" for line in self.lines if line.amount is None)

    def of(self, meter: str) -> Decimal | None:
        """The sum of one meter; None if part of it is unknown."""
        amounts = [line.amount for line in self.lines if line.meter == meter]
        return None if None in amounts else total([amount for amount in amounts if amount is not None])


def hours_by_month(start: datetime, end: datetime) -> dict[str, int]:
    """Hours begun from ``start`` until ``end``, for each month (UTC) in between: a namespace costs while it stands, busy or not."""
    hour = timedelta(hours=1)
    at = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    found: dict[str, int] = {}
    while at < end:
        following = (at.replace(day=1, hour=0) + timedelta(days=32)).replace(day=1)
        upto = min(following, end.astimezone(UTC))
        found[f"{at:%Y-%m}"] = -((at - upto) // hour)
        at = following
    return found


def month_bill(usage: MonthUsage, table: PriceTable) -> MonthBill:
    lines = [_base_line(usage.hours, table)]
    lines += _band_lines(OPERATIONS, Decimal(usage.operations), table.operations, "operations", MILLION)
    connections = divided(Decimal(usage.peak_hours), table.connection_hours)
    lines += _band_lines(CONNECTIONS, connections, table.connections, "connections", 1)
    if usage.data_out_bytes:
        lines.append(_data_line(usage.data_out_bytes, table))
    return MonthBill(month=usage.month, currency=table.currency, lines=tuple(lines))


def _base_line(hours: int, table: PriceTable) -> Line:
    price = table.base_per_hour
    amount = Decimal(0) if hours == 0 else None if price is None else rounded(product(price, hours))
    text = f"{many(hours, 'hour')} × {shown(price)} per hour"
    return Line(meter=BASE, text=text, quantity=Decimal(hours), unit="hours", price=price, amount=amount)


def _data_line(size: int, table: PriceTable) -> Line:
    price = table.data_out_per_gb
    quantity = divided(Decimal(size), GB)
    amount = None if price is None else divided(product(price, size), GB)
    text = f"{many(size, 'byte')} × {shown(price)} per GB"
    return Line(meter=DATA_OUT, text=text, quantity=quantity, unit="GB", price=price, amount=amount)


def _band_lines(meter: str, quantity: Decimal, bands: tuple[Band, ...], unit: str, per: int) -> list[Line]:
    """What falls into each band, and what it costs there."""
    lines: list[Line] = []
    lower = 0
    for band in bands:
        upper = quantity if band.up_to is None else min(quantity, Decimal(band.up_to))
        inside = upper - lower
        if inside > 0:
            lines.append(_band_line(meter, inside, band, lower, unit, per))
        if band.up_to is None or quantity <= band.up_to:
            break
        lower = band.up_to
    if not bands and quantity:
        text = f"{_count(quantity)} {unit}, no published price"
        lines.append(Line(meter=meter, text=text, quantity=quantity, unit=unit, price=None, amount=None))
    return lines


def _band_line(meter: str, inside: Decimal, band: Band, lower: int, unit: str, per: int) -> Line:
    span = f"{lower:,} to {band.up_to:,}" if band.up_to is not None else f"above {lower:,}"
    if band.price is None:
        price_text, amount = "unknown", None
    elif band.price == 0:
        price_text, amount = "included", Decimal(0)
    else:
        amount = divided(product(band.price, inside), per)
        price_text = f"× {shown(band.price)} per {'million' if per == MILLION else 'connection and month'}"
    word = unit.removesuffix("s") if inside == 1 else unit
    text = f"{_count(inside)} {word} in the band {span}: {price_text}"
    return Line(meter=meter, text=text, quantity=inside, unit=unit, price=band.price, amount=amount)


def _count(quantity: Decimal) -> str:
    whole = quantity.to_integral_value()
    return f"{int(whole):,}" if whole == quantity else f"{quantity.normalize():,f}"
