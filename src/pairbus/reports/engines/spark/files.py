"""Files on Spark: lines of JSON, cells of CSV, Parquet that other programs read as well; and functions on Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

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


_DDL: Final = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.int8(): "tinyint",
    pa.bool_(): "boolean",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
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


def mapped(
    rows: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """What ``function`` makes of the batches of each task. This is ``DataFrame.mapInArrow``, which refuses to work without pandas, although neither
    it nor the function needs it.
    """
    columns = ", ".join(f"{field.name} {_DDL[field.type]}" for field in schema)
    made: Any = UserDefinedFunction(function, columns, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = made(*[rows[name] for name in rows.columns])
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


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
