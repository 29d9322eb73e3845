"""The Spark engine of ``pairbus syphon``: signals, the line for people, and the report."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pairbus.cli.kit.pair import authorities, needed
from pairbus.cli.reports.spark_report import closing_spark, spark_errors, spark_settings

if TYPE_CHECKING:
    from pairbus.spark.drain.report import Progress, Report


def drain_on_spark(given: dict[str, Any]) -> int:
    """Run the Spark syphon as the command line says. Returns the exit code."""
    from pairbus.spark.drain.driver import SyphonOptions, run_syphon
    from pairbus.spark.session import spark_session

    primary, secondary = needed(given["primary"], "primary"), needed(given["secondary"], "secondary")
    options = SyphonOptions(
        primary=primary,
        secondary=secondary,
        authorities=authorities(given["ca_files"], primary, secondary),
        primary_namespace=given["namespace"],
        primary_aliases=tuple(given["primary_aliases"]),
        queues=given["count"],
        drains_extra=given["extra"],
        master=given["master"],
        once=given["once"],
        order=given["order"],
        tasks=given["tasks"],
        settings=spark_settings(given["settings"]),
        ledger=given["ledger"],
        not_found=given["not_found"],
        time_to_live=given["life"],
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with _said("starting Spark…"):
        spark = spark_session("pairbus syphon", master=options.master, settings=options.settings)
    with spark_errors(), closing_spark(spark):
        report = run_syphon(
            options, stop=stop, report_progress=_json_line if given["as_json"] else _line, spark=spark
        )
    if given["as_json"]:
        click.echo(json.dumps(report.as_json()))
    else:
        _tell(report)
    return report.exit_code


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


def _line(progress: Progress) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[2K{progress.line()}", err=True, nl=False)


def _json_line(progress: Progress) -> None:
    told = {
        "moved": progress.moved,
        "left": progress.left,
        "rate_per_s": round(progress.rate_per_s, 1),
        "seconds_left": progress.seconds_left,
        "set_aside": progress.set_aside,
        "waiting": dict(progress.waiting),
    }
    click.echo(json.dumps(told), err=True)


def _tell(report: Report) -> None:
    if sys.stderr.isatty():
        click.echo("", err=True)
    click.echo(
        f"{report.moved:,} messages are home in {report.seconds:,.0f} s; the ledger is in {report.ledger}",
        err=True,
    )
    for reason, count in sorted(report.set_aside.items()):
        click.echo(f"{count:,} set aside: {reason}; see pairbus backlog explain", err=True)
    for queue, left in sorted(report.left.items()):
        click.echo(f"{queue}: {'some' if left is None else f'{left:,}'} could not be brought home", err=True)
    for destination, reason in sorted(report.waiting.items()):
        click.echo(f"{destination} is away: {reason}", err=True)
    for queue, extra in sorted(report.extra.items()):
        if extra != 0:
            click.echo(f"{queue} lies beyond --queues and was left alone: --extra drains it too", err=True)
