"""What the reporting commands share: options for the engine, the engine itself, and files to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pairbus.cli.kit.options import option
from pairbus.cli.kit.output import ended_by_sigterm
from pairbus.cli.kit.spark import conf_option, spark_settings
from pairbus.cli.reports.spark_report import reporting, watched
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.reports.engines.base import Engine
    from pairbus.reports.inputs import Inputs, Wanted


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Where a report is computed."""

    engine: Literal["auto", "local", "spark"] = option(
        "Compute in this process (local) or on Spark. auto: local while the logs are small, else Spark.",
        "auto",
    )
    master: str | None = option("The Spark master.  [default: this machine]", metavar="URL")
    settings: tuple[str, ...] = conf_option()


def instant(text: str) -> datetime:
    """A moment, in UTC unless it names a zone. Raises ValueError."""
    found = datetime.fromisoformat(text)
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text} is not in the years 1 to 9999 of UTC") from None


def moment(text: str) -> datetime:
    """A moment in UTC, as 2026-11-15 or 2026-11-15T10:00. Raises UsageError."""
    try:
        return instant(text)
    except ValueError:
        raise UsageError(f"{text!r} is no moment: write 2026-11-15 or 2026-11-15T10:00") from None


@dataclass(frozen=True, slots=True)
class Computing:
    """The engine of a report, and the files it reads, by role."""

    engine: Engine
    inputs: Mapping[str, Inputs]


@contextmanager
def computing(
    name: str, what: str, options: EngineFlags, locations: Mapping[str, Sequence[str]], wanted: Wanted
) -> Iterator[Computing]:
    """Find the files of every role and the engine for them. People see ``what`` while it runs.

    Files on this machine are checked before Spark starts, so that mistakes show up at once.

    Raises:
        UsageError: A place holds no such files, a file is damaged, or an option is wrong.
        PairbusError: Spark did not start, or gave up.
    """
    from pairbus.reports.engines.base import LOCAL, takes_spark
    from pairbus.reports.inputs import find_all, is_remote

    settings = spark_settings(options.settings)

    def found(spark: SparkSession | None) -> dict[str, Inputs]:
        return find_all(spark, {role: places for role, places in locations.items() if places}, wanted)

    remote = [place for places in locations.values() for place in places if is_remote(place)]
    inputs = None if remote else found(None)
    is_spark_asked = options.master is not None or bool(settings)
    readable = None if inputs is None else inputs.values()
    if takes_spark(options.engine, readable, wanted.local_rows_max, is_spark_asked=is_spark_asked):
        with reporting(name, options.master, what, settings) as spark:
            from pairbus.reports.engines.spark import SparkEngine

            yield Computing(SparkEngine(spark), inputs or found(spark))
        return
    if inputs is None or (options.engine == LOCAL and is_spark_asked):
        about = f"{remote[0]} can be read" if inputs is None else "--master and --conf take effect"
        raise UsageError(f"{about} on Spark alone: leave out --engine local")
    from pairbus.reports.engines import arrow

    with watched(what, None):
        yield Computing(arrow, inputs)


def end_on_sigterm() -> None:
    """Until the command ends: SIGTERM ends it as Ctrl-C does, so that its temporary files go with it."""
    click.get_current_context().with_resource(ended_by_sigterm())


def write_page(path: str, text: str) -> None:
    """Write a page.

    Raises:
        UsageError: It cannot be written there.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def check_outputs(files: Sequence[str | None], directories: Sequence[str | None]) -> None:
    """Check before a long run that the outputs can be written.

    Raises:
        UsageError: A directory to write into is not there, or a file is in the way.
    """
    for file in files:
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(
                f"{file} cannot be written: there is no directory {Path(file).absolute().parent}"
            )
        if file and Path(file).is_dir():
            raise UsageError(f"{file} cannot be written: it is a directory")
    for directory in directories:
        if directory and "://" not in directory and Path(directory).is_file():
            raise UsageError(f"{directory} cannot be written: it is a file, and a directory is needed")
