"""The price tables that come along. The one module here that reads files."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from pairbus.errors import UsageError
from pairbus.reports.bill.prices import PriceTable, parse_tables


def builtin_tables() -> list[PriceTable]:
    """Published prices, with their sources. Examples: the contract with the provider decides."""
    tables: list[PriceTable] = []
    for entry in sorted(
        (files("pairbus.reports.bill") / "price_tables").iterdir(), key=lambda file: file.name
    ):
        if entry.name.endswith(".json"):
            tables += parse_tables(entry.read_text(encoding="utf-8"), entry.name)
    return tables


def tables_of(path: str | None) -> list[PriceTable]:
    """The tables of a file, or those that come along.

    Raises:
        UsageError: The file cannot be read or understood.
    """
    if path is None:
        return builtin_tables()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the price file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the price file {path} cannot be read: it is not text in UTF-8") from None
    return parse_tables(text, Path(path).name)
