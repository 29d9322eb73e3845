"""The bill's table as files: Parquet with what was set apart, and CSV that no spreadsheet runs (M8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

    from pairbus.reports.engines.spark.bill import Priced


def write_parquet(priced: Priced, directory: str) -> None:
    """``DIR/bill`` and ``DIR/quarantine``, written anew."""
    priced.table.write.mode("overwrite").parquet(f"{directory}/bill")
    priced.usage.quarantined.write.mode("overwrite").parquet(f"{directory}/quarantine")


def write_csv(priced: Priced, directory: str) -> None:
    """``DIR/bill``, written anew, in the order of days and names."""
    columns = [
        _inert(f.col(name)).alias(name) if kind == "string" else f.col(name)
        for name, kind in priced.table.dtypes
    ]
    table = priced.table.orderBy("day", "namespace", "entity", "stage", "operation").select(*columns)
    table.coalesce(1).write.mode("overwrite").option("header", "true").option("escape", '"').csv(
        f"{directory}/bill"
    )


def _inert(column: Column) -> Column:
    """As ``report_page.cell_for_csv``, and on one line."""
    flat = f.regexp_replace(column, r"\p{Cntrl}", "\ufffd")
    return f.when(flat.rlike(r"^[=+\-@]"), f.concat(f.lit("'"), flat)).otherwise(flat)
