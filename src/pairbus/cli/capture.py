"""``pairbus capture``: a stream of an entity into Parquet files."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.kit.namespace import connection_of, find_target, split_sub_queue
from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import show, status, stop_on_signals
from pairbus.cli.kit.places import check_directory
from pairbus.cli.kit.spark import closing_spark, conf_option, spark_errors, spark_settings
from pairbus.errors import PairbusError, UsageError
from pairbus.reports.text import many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.capture.stream import Captured, CaptureOptions

EXAMPLES: Final = """\b
Examples:
  pairbus capture orders --to /data/captured --once
  pairbus capture events/Subscriptions/audit --to /data/captured
  pairbus capture 'orders/$DeadLetterQueue' --to /data/dead --browse --once
  pairbus capture --to /data/captured --compact

\b
Read back:
  spark.read.parquet("/data/captured").where("date = '2026-11-15'")

\b
Exit codes: 0 done (also if messages are deferred), 2 wrong usage, or another capture runs with this checkpoint, 3 could not reach, was
refused, or Spark stopped.
"""

ENDED: Final = "the next start continues where the last batch ended"
_SPAN: Final = r"\d+(?:\.\d+)?\s*(?:microsecond|millisecond|second|minute|hour|day|week)s?"
_INTERVAL: Final = re.compile(rf"(?:interval\s+)?{_SPAN}(?:\s+{_SPAN})*", re.IGNORECASE)
"""How often a stream looks, as Spark reads it."""


@dataclass(frozen=True, kw_only=True)
class CaptureFlags:
    entity: str | None = argument(required=False)
    path: str = option(
        "Where the files go: a directory, or a URI for Spark.", flag="--to", metavar="DIR", required=True
    )
    once: bool = option(
        "Stop when all active messages that were there at the start are in the files; say how many are deferred.",
        False,
    )
    browse: bool = option("Leave the messages in the entity.", False)
    compacts: bool = option(
        "Join the small files of each hour: after the capture, or alone without ENTITY. May run during another capture.",
        False,
        flag="--compact",
    )
    checkpoint: str | None = option(
        "Spark's checkpoint.  [default: _checkpoint in the directory]", metavar="DIR"
    )
    every: str = option("How often to look for new messages.", "5 seconds")
    batch: int = option("Messages per batch.", 10_000, minimum=1, maximum=1_000_000)
    master: str | None = option("A Spark master.  [default: every core of this machine]", metavar="URL")
    settings: tuple[str, ...] = conf_option()
    fails_on_loss: bool = option(
        "Stop when the directory's checkpoint belongs to another entity of this name, deleted or elsewhere; or read the "
        "entity from its first message.",
        True,
        flag="--fail-on-data-loss/--no-fail-on-data-loss",
    )
    ready_file: str | None = option("A broker's ready file instead of PAIRBUS_PRIMARY.", metavar="FILE")
    ca_file: str | None = option(
        "Certificate authority to trust in addition to the public ones.  [default: that of a local broker in the user's data directory]",
        metavar="FILE",
    )
    as_json: bool = json_option("Print one JSON object a line.")


@command(CaptureFlags, EXAMPLES)
def capture(flags: CaptureFlags) -> None:
    """Stream a queue or subscription into Parquet files by entity, date and hour; each message exactly once."""
    from pairbus.spark.session import spark_session

    if flags.entity is None and not flags.compacts:
        raise UsageError(
            "ENTITY is missing: name a queue or subscription, or give --compact to join files alone"
        )
    settings = spark_settings(flags.settings)
    options = None if flags.entity is None else _options(flags, flags.entity)
    check_directory(flags.path, "--to")
    if flags.checkpoint is not None:
        check_directory(flags.checkpoint, "--checkpoint")
    if options is not None:
        check_entity(options)
    stop = stop_on_signals()
    # Java may get the same signal and end first; what py4j then logs tells a person nothing.
    logging.getLogger().addFilter(lambda _record: not stop.is_set())
    try:
        with status("starting Spark…"):
            spark = spark_session("pairbus capture", master=flags.master, settings=settings)
        stop_on_signals(stop=stop)  # Spark has put its own handler in their place
        with spark_errors(ended=ENDED), closing_spark(spark):
            if options is not None:
                _capture(options, flags.entity or "", spark, stop, as_json=flags.as_json)
            if flags.compacts:
                _compact(flags.path, flags.checkpoint, spark, as_json=flags.as_json)
    except PairbusError as error:
        if not stop.is_set() or isinstance(error, UsageError):
            raise
        _warn("stopped, and Java with it: the next start continues where the last batch ended")


def _options(flags: CaptureFlags, entity: str) -> CaptureOptions:
    from pairbus.spark.capture.stream import CaptureOptions
    from pairbus.spark.connector.options import parse_source

    connection, authority = connection_of(None, flags.ready_file, flags.ca_file, os.environ)
    source = {
        "connectionString": connection,
        "mode": "browse" if flags.browse else "consume",
        "maxMessagesPerTrigger": str(flags.batch),
        "failOnDataLoss": "true" if flags.fails_on_loss else "false",
        **({"caFile": authority} if authority else {}),
        **entity_options(entity),
    }
    parse_source(source, is_stream=True)
    if not _INTERVAL.fullmatch(flags.every.strip()):
        raise UsageError(
            f"--every is {flags.every!r}: give a number and a unit, as '5 seconds' or '1 minute'"
        )
    return CaptureOptions(
        source=source,
        path=flags.path,
        checkpoint=flags.checkpoint,
        once=flags.once,
        trigger=flags.every,
    )


def check_entity(options: CaptureOptions) -> None:
    """Look at the entity once: a wrong key or name shows before Java starts. Raises PairbusError."""
    from pairbus.spark.connector.entity import Entity
    from pairbus.spark.connector.options import parse_source

    entity = Entity(parse_source(options.source, is_stream=True))
    try:
        entity.highest()
    finally:
        entity.close()


def _capture(
    options: CaptureOptions, entity: str, spark: SparkSession, stop: threading.Event, *, as_json: bool
) -> None:
    from pairbus.spark.capture.stream import run_capture

    def on_progress(captured: Captured) -> None:
        if as_json:
            click.echo(json.dumps({"messages": captured.messages, "batches": captured.batches}))
        elif sys.stderr.isatty():
            click.echo(
                f"\r{captured.messages:,} messages in {captured.batches:,} batches", err=True, nl=False
            )

    done = run_capture(options, spark, stop=stop, on_progress=on_progress, on_warning=_warn)
    if not as_json and sys.stderr.isatty():
        click.echo("", err=True)
    deferred = (
        f". Deferred in the entity: {many(done.deferred, 'message')}; a capture takes active messages only, receive others by their "
        "sequence numbers"
        if done.deferred
        else ""
    )
    show(
        {
            "messages": done.messages,
            "batches": done.batches,
            "path": done.path,
            **({"deferred": done.deferred} if options.once else {}),
            "done": True,
        },
        as_json,
        f"{done.messages:,} messages of {entity} are in {done.path}{deferred}",
    )


def _compact(path: str, checkpoint: str | None, spark: SparkSession, *, as_json: bool) -> None:
    from pairbus.spark.capture.compaction import compact

    done = compact(path, spark, checkpoint)
    joined = f"{done.files_before:,} files of {done.hours:,} hours became {done.files_after:,}"
    show(
        {"hours": done.hours, "files_before": done.files_before, "files_after": done.files_after},
        as_json,
        joined if done.hours else f"{path} has no small files to join",
    )


def _warn(text: str) -> None:
    click.echo(f"pairbus capture: {text}", err=True)


def entity_options(entity: str) -> dict[str, str]:
    """The options of ``format("servicebus")`` for an entity as the command line names it."""
    entity, sub_queue = split_sub_queue(entity)
    options = {"subQueue": sub_queue} if sub_queue else {}
    target = find_target(entity)
    if target.subscription:
        return {**options, "topic": target.name, "subscription": target.subscription}
    return {**options, "queue": target.name}
