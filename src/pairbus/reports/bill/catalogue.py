"""The price tables that come along. The one module here that reads files."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from pairbus.errors import UsageError
from pairbus.reports.bill.prices import PriceTable, parse_tables

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest price file that is read. The tables that come along have a few thousand bytes each."""


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
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise UsageError(f"the price file {path} is larger than {FILE_BYTES_MAX:,} bytes")
        text = content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"the price file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the price file {path} cannot be read: it is not text in UTF-8") from None
    return parse_tables(text, Path(path).name)
