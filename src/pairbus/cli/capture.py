"""``pairbus capture``: a stream of an entity into Parquet files."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.kit.namespace import connection_of, find_target
from pairbus.cli.reports.spark_report import closing_spark, conf_option, spark_errors, spark_settings
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.capture.stream import Captured, CaptureOptions

EXAMPLES: Final = """\b
Examples:
  pairbus capture orders --to /data/captured --once
  pairbus capture events/Subscriptions/audit --to /data/captured
  pairbus capture orders/$DeadLetterQueue --to /data/dead --browse --once
  pairbus capture --to /data/captured --compact

\b
Read back:
  spark.read.parquet("/data/captured").where("date = '2026-11-15'")

\b
Exit codes: 0 done, 2 wrong usage, 3 could not reach or was refused.
"""
_SUB_QUEUES: Final = (
    ("/$transfer/$deadletterqueue", "transferdeadletter"),
    ("/$deadletterqueue", "deadletter"),
)


@click.command(epilog=EXAMPLES)
@click.argument("entity", required=False)
@click.option(
    "--to", "path", metavar="DIR", required=True, help="Where the files go: a directory, or a URI for Spark."
)
@click.option("--once", is_flag=True, help="End when what was there at the start is in the files.")
@click.option("--browse", is_flag=True, help="Leave the messages in the entity.")
@click.option(
    "--compact",
    "compacts",
    is_flag=True,
    help="Join the small files of each hour, after capturing or, without ENTITY, alone; beside a capture too.",
)
@click.option(
    "--checkpoint", metavar="DIR", help="Spark's checkpoint.  [default: _checkpoint in the directory]"
)
@click.option("--every", default="5 seconds", show_default=True, help="How often to look for more.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Messages per batch.",
)
@click.option("--master", metavar="URL", help="A Spark master.  [default: every core of this machine]")
@conf_option
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    "fails_on_loss",
    default=True,
    show_default=True,
    help="Stop when the directory's checkpoint belongs to another entity of this name, deleted or elsewhere; or read the "
    "entity from its first message.",
)
@click.option("--ready-file", metavar="FILE", help="A broker's ready file instead of PAIRBUS_PRIMARY.")
@click.option(
    "--ca-file",
    metavar="FILE",
    help="An authority to trust besides the public ones.  [default: a local broker's own]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def capture(
    entity: str | None,
    path: str,
    once: bool,
    browse: bool,
    compacts: bool,
    checkpoint: str | None,
    every: str,
    batch: int,
    master: str | None,
    settings: tuple[str, ...],
    fails_on_loss: bool,
    ready_file: str | None,
    ca_file: str | None,
    as_json: bool,
) -> int:
    """Stream a queue or subscription into Parquet files by entity, date and hour; each message exactly once."""
    from pairbus.spark.capture.stream import CaptureOptions
    from pairbus.spark.connector.options import parse_source
    from pairbus.spark.session import spark_session

    if entity is None and not compacts:
        raise UsageError(
            "ENTITY is missing: name a queue or subscription, or give --compact to join files alone"
        )
    more = spark_settings(settings)
    options = None
    if entity is not None:
        connection, authority = connection_of(None, ready_file, ca_file, os.environ)
        source = {
            "connectionString": connection,
            "mode": "browse" if browse else "consume",
            "maxMessagesPerTrigger": str(batch),
            "failOnDataLoss": "true" if fails_on_loss else "false",
            **({"caFile": authority} if authority else {}),
            **entity_options(entity),
        }
        parse_source(source, is_stream=True)
        options = CaptureOptions(source=source, path=path, checkpoint=checkpoint, once=once, trigger=every)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with _said("starting Spark…"):
        spark = spark_session("pairbus capture", master=master, settings=more)
    with spark_errors(), closing_spark(spark):
        if options is not None:
            _capture(options, entity or "", spark, stop, as_json=as_json)
        if compacts:
            _compact(path, checkpoint, spark, as_json=as_json)
    return 0


def _capture(
    options: CaptureOptions, entity: str, spark: SparkSession, stop: threading.Event, *, as_json: bool
) -> None:
    from pairbus.spark.capture.stream import run_capture

    def tell(captured: Captured) -> None:
        if as_json:
            click.echo(json.dumps({"messages": captured.messages, "batches": captured.batches}))
        elif sys.stderr.isatty():
            click.echo(
                f"\r{captured.messages:,} messages in {captured.batches:,} batches", err=True, nl=False
            )

    done = run_capture(options, spark, stop=stop, tell=tell, warn=_warn)
    if as_json:
        told = {"messages": done.messages, "batches": done.batches, "path": done.path, "done": True}
        click.echo(json.dumps(told))
    else:
        if sys.stderr.isatty():
            click.echo("", err=True)
        click.echo(f"{done.messages:,} messages of {entity} are in {done.path}")


def _compact(path: str, checkpoint: str | None, spark: SparkSession, *, as_json: bool) -> None:
    from pairbus.spark.capture.compaction import compact

    done = compact(path, spark, checkpoint)
    if as_json:
        click.echo(
            json.dumps(
                {"hours": done.hours, "files_before": done.files_before, "files_after": done.files_after}
            )
        )
    elif done.hours:
        click.echo(f"{done.files_before:,} files of {done.hours:,} hours became {done.files_after:,}")
    else:
        click.echo(f"{path} has no small files to join")


def _warn(text: str) -> None:
    click.echo(f"pairbus capture: {text}", err=True)


@contextmanager
def _said(text: str) -> Iterator[None]:
    """Show a word to a person who waits, and take it back; to nobody else."""
    is_watched = sys.stderr.isatty()
    if is_watched:
        click.echo(text, err=True, nl=False)
    try:
        yield
    finally:
        if is_watched:
            click.echo("\r\x1b[2K", err=True, nl=False)


def entity_options(entity: str) -> dict[str, str]:
    """The options of ``format("servicebus")`` for an entity as the command line names it."""
    options: dict[str, str] = {}
    for suffix, name in _SUB_QUEUES:
        if entity.lower().endswith(suffix):
            entity, options["subQueue"] = entity[: -len(suffix)], name
            break
    target = find_target(entity)
    if target.subscription:
        return {**options, "topic": target.name, "subscription": target.subscription}
    return {**options, "queue": target.name}
