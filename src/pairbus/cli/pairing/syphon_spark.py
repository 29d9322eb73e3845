"""The Spark engine of ``pairbus syphon``: signals, the line for people, and the report."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from pairbus.cli.kit.options import values_of
from pairbus.cli.kit.output import show, status, stop_on_signals
from pairbus.cli.reports.spark_report import closing_spark, spark_errors, spark_settings

if TYPE_CHECKING:
    from pairbus.cli.pairing.syphon import SyphonFlags
    from pairbus.spark.drain.report import Progress, Report


def drain_on_spark(flags: SyphonFlags) -> int:
    """Run the Spark syphon as the command line says. Returns the exit code."""
    from pairbus.spark.drain.driver import SyphonOptions, run_syphon
    from pairbus.spark.session import spark_session

    primary, secondary = flags.both
    options = SyphonOptions(
        primary=primary,
        secondary=secondary,
        authorities=flags.authorities(),
        primary_namespace=flags.namespace,
        drains_extra=flags.extra,
        settings=spark_settings(flags.settings),
        **values_of(flags, "primary_aliases", "queues", "master", "once", "order", "tasks", "ledger"),
        **values_of(flags, "not_found", "time_to_live"),
    )
    stop = stop_on_signals()
    with status("starting Spark…"):
        spark = spark_session("pairbus syphon", master=options.master, settings=options.settings)
    with spark_errors(), closing_spark(spark):
        report = run_syphon(
            options, stop=stop, report_progress=_json_line if flags.as_json else _line, spark=spark
        )
    show(report.as_json(), flags.as_json, ())
    if not flags.as_json:
        _print_report(report)
    return report.exit_code


def _line(progress: Progress) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[2K{progress.line()}", err=True, nl=False)


def _json_line(progress: Progress) -> None:
    row = {
        "moved": progress.moved,
        "left": progress.left,
        "rate_per_s": round(progress.rate_per_s, 1),
        "seconds_left": progress.seconds_left,
        "set_aside": progress.set_aside,
        "waiting": dict(progress.waiting),
    }
    click.echo(json.dumps(row), err=True)


def _print_report(report: Report) -> None:
    if sys.stderr.isatty():
        click.echo("", err=True)
    click.echo(
        f"{report.moved:,} messages are home in {report.seconds:,.0f} s; the ledger is in {report.ledger}",
        err=True,
    )
    for reason, count in sorted(report.set_aside.items()):
        click.echo(f"{count:,} dead-lettered: {reason}; see pairbus backlog explain", err=True)
    for queue, left in sorted(report.left.items()):
        click.echo(f"{queue}: {'some' if left is None else f'{left:,}'} could not be brought home", err=True)
    for destination, reason in sorted(report.waiting.items()):
        click.echo(f"{destination} is away: {reason}", err=True)
    for queue, extra in sorted(report.extra.items()):
        if extra != 0:
            click.echo(f"{queue} lies beyond --queues and was left alone: --extra drains it too", err=True)
