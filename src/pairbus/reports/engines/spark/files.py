"""Files on Spark: lines of JSON, cells of CSV, Parquet that other programs read as well; and functions on Arrow batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from pairbus.errors import UsageError
from pairbus.reports.bill.money import SCALE
from pairbus.reports.engines.arrow.rows import (
    LONG,
    TEXT,
    TIME,
    Columns,
    lines_table,
    read_parquet,
    unreadable,
)
from pairbus.reports.inputs import spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

SOURCE: Final = "source"
_FILE: Final = "_metadata.file_path"
VERIFY_PAGES: Final = "parquet.page.verify-checksum.enabled"
"""An option of Spark's reader of Parquet: a page that does not fit its checksum, if it has one, ends the job."""
NO_TEXT: Final = "bytes that are no text in UTF-8"
"""What a task says that found them."""

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


def read_lines(spark: SparkSession, paths: Iterable[str], columns: Columns) -> DataFrame:
    """Files of lines of JSON as rows with these columns, ``broken`` and ``source``: the tasks read the lines as the other engine does."""
    lines = spark.read.option("recursiveFileLookup", "true").text([*map(spark_path, paths)])
    lines = lines.select(f.col("value").cast("binary").alias("line"), f.col(_FILE).alias(SOURCE))
    schema = [(name, LONG if kind == TIME else kind) for name, kind in columns.items()]
    return mapped(
        lines, partial(_line_rows, columns=columns), pa.schema([*schema, ("broken", TEXT), (SOURCE, TEXT)])
    )


def _line_rows(batches: Iterable[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for source in pc.unique(batch[SOURCE]).to_pylist():
            lines = pa.table(batch).filter(pc.equal(batch[SOURCE], source))["line"].to_pylist()
            rows = lines_table(lines, columns)
            yield from rows.append_column(SOURCE, pa.repeat(source, rows.num_rows)).to_batches()


def source_column() -> Column:
    """The name of the file of a row. Spark writes ``file:/`` for files of this machine, where others write ``file:///``."""
    return f.regexp_replace(f.col(_FILE), "^file:/+", "file:///")


@contextmanager
def damage_named(rows: DataFrame, columns: Columns) -> Iterator[None]:
    """What has found bytes that are no text ends with the file they are in. ``rows`` are read again, with ``source``, to find it.

    Raises:
        UsageError: A file has such bytes.
    """
    try:
        yield
    except PySparkException:
        # The files are asked, not the text of the error, which may be about anything.
        texts = [f"NOT is_valid_utf8({name})" for name, kind in columns.items() if kind == TEXT]
        found = None
        with suppress(PySparkException):
            found = rows.where(" OR ".join(texts)).select(SOURCE).first()
        if found is None:
            raise
        path = unquote(found[SOURCE])
        if not path.startswith("file:"):
            raise UsageError(unreadable(path, " (a text in it is not UTF-8)")) from None
        read_parquet(re.sub("^file:/+", "/", path), columns)


def csv_cell(column: Column) -> Column:
    """A text on one line that no spreadsheet takes for a formula (M8)."""
    flat = f.regexp_replace(column, r"\p{Cntrl}", "\ufffd")
    return f.when(flat.rlike(r"^[=+\-@]"), f.concat(f.lit("'"), flat)).otherwise(flat)


def csv_amount(column: Column) -> Column:
    """An amount, which is never negative, with all its digits. Spark's own text of one below a millionth has an exponent."""
    fraction = ((column % 1).cast(f"decimal({SCALE + 1},{SCALE})") * 10**SCALE).cast(
        f"decimal({SCALE + 1},0)"
    )
    return f.concat(f.floor(column).cast("string"), f.lit("."), f.lpad(fraction.cast("string"), SCALE, "0"))
