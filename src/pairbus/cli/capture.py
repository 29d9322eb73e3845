"""``pairbus capture``: a stream of an entity into Parquet files."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.entity_target import connection_of, find_target

if TYPE_CHECKING:
    from pairbus.spark.capture import Captured

EXAMPLES: Final = """\b
Examples:
  pairbus capture orders --to /data/captured --once
  pairbus capture events/Subscriptions/audit --to /data/captured
  pairbus capture orders/$DeadLetterQueue --to /data/dead --browse --once

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
@click.argument("entity")
@click.option(
    "--to", "path", metavar="DIR", required=True, help="Where the files go: a directory, or a URI for Spark."
)
@click.option("--once", is_flag=True, help="End when what was there at the start is in the files.")
@click.option("--browse", is_flag=True, help="Leave the messages in the entity.")
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
@click.option("--ready-file", metavar="FILE", help="A broker's ready file instead of PAIRBUS_PRIMARY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def capture(
    entity: str,
    path: str,
    once: bool,
    browse: bool,
    checkpoint: str | None,
    every: str,
    batch: int,
    master: str | None,
    ready_file: str | None,
    as_json: bool,
) -> int:
    """Stream a queue or subscription into Parquet files by entity, date and hour; each message exactly once."""
    from pairbus.spark.capture import CaptureOptions, run_capture
    from pairbus.spark.options import parse_source
    from pairbus.spark.session import spark_session

    connection, _ = connection_of(None, ready_file, None, os.environ)
    source = {
        "connectionString": connection,
        "mode": "browse" if browse else "consume",
        "maxMessagesPerTrigger": str(batch),
        **entity_options(entity),
    }
    parse_source(source, is_stream=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def tell(captured: Captured) -> None:
        if as_json:
            click.echo(json.dumps({"messages": captured.messages, "batches": captured.batches}))
        elif sys.stderr.isatty():
            click.echo(
                f"\r{captured.messages:,} messages in {captured.batches:,} batches", err=True, nl=False
            )

    spark = spark_session("pairbus capture", master=master)
    try:
        options = CaptureOptions(source=source, path=path, checkpoint=checkpoint, once=once, trigger=every)
        done = run_capture(options, spark, stop=stop, tell=tell)
    finally:
        spark.stop()
    if as_json:
        click.echo(
            json.dumps({"messages": done.messages, "batches": done.batches, "path": done.path, "done": True})
        )
    else:
        click.echo(f"{done.messages:,} messages of {entity} are in {done.path}")
    return 0


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
