"""Files on Spark: lines of JSON, cells of CSV, Parquet that other programs read as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from pairbus.reports.inputs import MILLISECONDS_PATTERN, TIME_PATTERN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_raw",
    "recursiveFileLookup": "true",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
"""Strict JSON; a line that is not is kept whole in ``_raw``."""


_TIME_TYPE: Final = "spark.sql.parquet.outputTimestampType"


def write_parquet(rows: DataFrame, path: str) -> None:
    """Write rows in place of what is at ``path``, with times that name their zone. Spark's own default is a type of times without one."""
    conf = rows.sparkSession.conf
    before = str(conf.get(_TIME_TYPE))
    conf.set(_TIME_TYPE, "TIMESTAMP_MICROS")
    try:
        rows.write.mode("overwrite").parquet(path)
    finally:
        conf.set(_TIME_TYPE, before)


def source_column() -> Column:
    """The name of the file of a row. Spark writes ``file:/`` for files of this machine, where others write ``file:///``."""
    return f.regexp_replace(f.col("_metadata.file_path"), "^file:/+", "file:///")


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
