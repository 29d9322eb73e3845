"""Price tables as data: by tier, region, currency and date, in bands, with their source. What is not known stays unknown.

The format is described in docs/reference/prices.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final, cast

from pairbus.errors import UsageError
from pairbus.reports.bill.money import parsed

FORMAT: Final = 1
BANDS_MAX: Final = 20
TABLES_MAX: Final = 1_000
HOURS_IN_MONTH_DEFAULT: Final = 730
"""What Microsoft divides the hourly peaks of connections by."""


@dataclass(frozen=True, slots=True)
class Band:
    """A price for what lies between the band before and ``up_to``."""

    up_to: int | None
    """None: without end."""
    price: Decimal | None
    """None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """The prices of one tier in one region, in one currency, for some time."""

    name: str
    tier: str
    region: str
    currency: str
    valid_from: date | None
    valid_to: date | None
    source: str
    source_date: str
    note: str
    base_per_hour: Decimal | None
    """Once for all namespaces of a subscription."""
    operations: tuple[Band, ...]
    """Per million a month."""
    connections: tuple[Band, ...]
    """Per connection and month."""
    connection_hours: int
    """Hourly peaks are divided by this and added up."""
    data_out_per_gb: Decimal | None

    @property
    def described(self) -> str:
        return f"{self.tier}, {self.region}, {self.currency}: {self.source} ({self.source_date})"

    def is_valid_on(self, day: date) -> bool:
        """Whether these were the prices of that day. Both ends belong to it."""
        return (self.valid_from is None or self.valid_from <= day) and (
            self.valid_to is None or day <= self.valid_to
        )


def parse_tables(text: str, name: str) -> list[PriceTable]:
    """All tables of a file.

    Raises:
        UsageError: It is not such a file; says where.
    """
    try:
        content: object = json.loads(text, parse_float=_refused_fraction)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON: line {error.lineno}: {error.msg}") from None
    root = _object(content, name)
    if root.get("format") != FORMAT:
        raise UsageError(f"{name}: format is {root.get('format')!r}, expected {FORMAT}")
    tables = root.get("tables")
    if not isinstance(tables, list) or not tables or len(tables) > TABLES_MAX:
        raise UsageError(f"{name}: tables must be a list of 1 to {TABLES_MAX} price tables")
    return [_table(entry, f"{name}: tables[{at}]") for at, entry in enumerate(cast("list[object]", tables))]


def choose(
    tables: Sequence[PriceTable], day: date, tier: str | None, region: str | None, currency: str | None
) -> PriceTable:
    """The one table that fits.

    Raises:
        UsageError: None fits, or more than one; says which there are.
    """
    wanted = [
        table
        for table in tables
        if tier in (None, table.tier)
        and region in (None, table.region)
        and currency in (None, table.currency)
    ]
    fitting = [table for table in wanted if table.is_valid_on(day)]
    if len(fitting) == 1:
        return fitting[0]
    offered = ", ".join(
        sorted({f"{table.tier}/{table.region}/{table.currency}" for table in fitting or tables})
    )
    if not fitting:
        asked = "/".join(name for name in (tier, region, currency) if name is not None)
        raise UsageError(
            f"no price table{' of ' * bool(asked)}{asked} is valid on {day}: choose by --tier, --region, --currency among {offered}"
        )
    raise UsageError(
        f"more than one price table is valid on {day}: choose by --tier, --region, --currency among {offered}"
    )


def _refused_fraction(text: str) -> object:
    raise UsageError(f'the number {text} would be read as a binary fraction: write "{text}", as text')


def _table(entry: object, where: str) -> PriceTable:
    fields = _object(entry, where)
    allowed = {
        "tier", "region", "currency", "valid_from", "valid_to", "source", "source_date", "note", "base", "operations",
        "connections", "data_out",
    }  # fmt: skip
    if unknown := sorted(set(fields) - allowed):
        raise UsageError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(sorted(allowed))}")
    base = _optional_object(fields.get("base"), f"{where}.base")
    connections = _optional_object(fields.get("connections"), f"{where}.connections")
    data_out = _optional_object(fields.get("data_out"), f"{where}.data_out")
    operations = _object(fields.get("operations"), f"{where}.operations")
    hours = connections.get("hours_in_month", HOURS_IN_MONTH_DEFAULT)
    if not isinstance(hours, int) or isinstance(hours, bool) or not 1 <= hours <= 744:
        raise UsageError(f"{where}.connections.hours_in_month is {hours!r}: give 1 to 744")
    table = PriceTable(
        name=where.partition(":")[0],
        tier=_text(fields, "tier", where),
        region=_text(fields, "region", where),
        currency=_text(fields, "currency", where),
        valid_from=_day(fields.get("valid_from"), f"{where}.valid_from"),
        valid_to=_day(fields.get("valid_to"), f"{where}.valid_to"),
        source=_text(fields, "source", where),
        source_date=_text(fields, "source_date", where),
        note=str(fields.get("note") or ""),
        base_per_hour=_amount(base.get("per_hour"), f"{where}.base.per_hour"),
        operations=_bands(operations.get("bands"), "per_million", f"{where}.operations"),
        connections=_bands(connections.get("bands", []), "per_connection_month", f"{where}.connections"),
        connection_hours=hours,
        data_out_per_gb=_amount(data_out.get("per_gb"), f"{where}.data_out.per_gb"),
    )
    if table.valid_from is not None and table.valid_to is not None and table.valid_to < table.valid_from:
        raise UsageError(f"{where}: valid_to {table.valid_to} lies before valid_from {table.valid_from}")
    return table


def _bands(value: object, price_name: str, where: str) -> tuple[Band, ...]:
    if not isinstance(value, list) or len(value) > BANDS_MAX:
        raise UsageError(f"{where}.bands must be a list of at most {BANDS_MAX}")
    bands: list[Band] = []
    for at, entry in enumerate(cast("list[object]", value)):
        fields = _object(entry, f"{where}.bands[{at}]")
        up_to = fields.get("up_to")
        if up_to is not None and (not isinstance(up_to, int) or isinstance(up_to, bool) or up_to <= 0):
            raise UsageError(
                f"{where}.bands[{at}].up_to is {up_to!r}: give a whole number, or null in the last band"
            )
        before = bands[-1].up_to if bands else 0
        if before is None or (up_to is not None and up_to <= before):
            raise UsageError(f"{where}.bands[{at}] must end above the band before it")
        bands.append(Band(up_to, _amount(fields.get(price_name), f"{where}.bands[{at}].{price_name}")))
    if bands and bands[-1].up_to is not None:
        raise UsageError(f"{where}.bands must end with a band whose up_to is null")
    return tuple(bands)


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be an object")
    return cast("Mapping[str, object]", value)


def _optional_object(value: object, where: str) -> Mapping[str, object]:
    return {} if value is None else _object(value, where)


def _text(fields: Mapping[str, object], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}.{name} is {value!r}: give a text")
    return value


def _amount(value: object, where: str) -> Decimal | None:
    return None if value is None else parsed(value, where)


def _day(value: object, where: str) -> date | None:
    if value is None:
        return None
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise UsageError(f"{where} is {value!r}: give a day as YYYY-MM-DD, or null") from None
