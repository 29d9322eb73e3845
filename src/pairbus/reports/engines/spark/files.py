"""Lines of JSON and cells of CSV on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from pairbus.reports.inputs import MILLISECONDS_PATTERN, TIME_PATTERN

if TYPE_CHECKING:
    from pyspark.sql import Column

JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_raw",
    "recursiveFileLookup": "true",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
"""Strict JSON; a line that is not is kept whole in ``_raw``."""


def time_column(name: str) -> Column:
    """A column of text as times: milliseconds since 1970, or ISO 8601; null where it is neither."""
    column = f.col(name)
    number = f.expr(f"timestamp_millis(try_cast({name} AS BIGINT))")
    moment = f.expr(f"try_cast({name} AS TIMESTAMP)")
    return f.when(column.rlike(MILLISECONDS_PATTERN), number).when(column.rlike(TIME_PATTERN), moment)


def csv_cell(column: Column) -> Column:
    """A text on one line that no spreadsheet takes for a formula (M8)."""
    flat = f.regexp_replace(column, r"\p{Cntrl}", "\ufffd")
    return f.when(flat.rlike(r"^[=+\-@]"), f.concat(f.lit("'"), flat)).otherwise(flat)
