"""``pairbus syphon``: bring the backlog home."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.pair import authorities, home_text, needed, pair_options, run
from pairbus.cli.reports.spark_report import conf_option
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pairbus.drain.backlog import Backlog
    from pairbus.drain.plan import BacklogMessage
    from pairbus.drain.ports import Observer
    from pairbus.drain.shell import Drain
    from pairbus.pairing.statistics import Counters

EPILOG: Final = """\b
Examples:
  pairbus syphon --once
  pairbus syphon --engine local --once
  PAIRBUS_PRIMARY=… PAIRBUS_SECONDARY=… pairbus syphon --engine local
  pairbus syphon --master spark://head:7077 --conf spark.executor.memory=2g
  pairbus syphon --once --ca-file primary-ca.pem --ca-file secondary-ca.pem

\b
On a cluster pairbus must be installed on the workers; they need no files: connection strings and authorities travel with the job.

\b
Exit codes: 0 done or stopped, 1 something could not be brought home (Spark), 2 wrong usage, 3 could not reach a namespace, was refused,
or nothing moved for 30 s (--once, local).
"""


@click.command(epilog=EPILOG)
@pair_options
@click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", show_default=True)
@click.option(
    "--master",
    metavar="URL",
    help="The Spark master: local[N], spark://HOST:PORT, yarn, k8s://…  [default: every core of this machine]",
)
@conf_option
@click.option(
    "--tasks", type=click.IntRange(1), help="How many Spark tasks pump.  [default: the cluster's cores]"
)
@click.option(
    "--primary-alias",
    "primary_aliases",
    metavar="HOST[:PORT]",
    multiple=True,
    help="Another address of the primary: a second name of its host, another port, or where it ran before it moved. "
    "Messages parked for that address are drained too; all others go to the dead-letter queue (OtherPrimary).",
)
@click.option("--once", is_flag=True, help="End when all that was there at the start is home.")
@click.option("--order", type=click.Choice(["relaxed", "session"]), default="relaxed", show_default=True)
@click.option(
    "--queues",
    "count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How many backlog queues.",
)
@click.option("--extra", is_flag=True, help="Drain backlog queues beyond that number too.")
@click.option(
    "--not-found", type=click.Choice(["dead-letter", "wait"]), default="dead-letter", show_default=True
)
@click.option(
    "--time-to-live", "life", type=click.Choice(["freeze", "deduct"]), default="freeze", show_default=True
)
@click.option(
    "--ledger",
    metavar="DIR",
    help="local: where to keep what is in doubt.  [default: the user's data directory]  spark: where to write what was "
    "moved, a directory here or a URL that executors reach.  [default: a temporary one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counters as one JSON object at the end.")
def syphon(**given: Any) -> int:
    """Bring the messages of the backlog home to the primary."""
    if given["engine"] == "spark":
        from pairbus.cli.pairing.syphon_spark import drain_on_spark

        return drain_on_spark(given)
    if given["order"] == "session":
        raise UsageError("--order session needs --engine spark, or relaxed with --engine local")
    from pairbus.drain.backlog import Backlog
    from pairbus.pairing.statistics import Counters
    from pairbus.sdk.trust import bundle_of

    primary, secondary = needed(given["primary"], "primary"), needed(given["secondary"], "secondary")
    trusted = bundle_of(authorities(given["ca_files"], primary, secondary))
    ca_file = click.get_current_context().with_resource(trusted)
    backlog = Backlog(primary, secondary, given["namespace"], given["count"], ca_file=ca_file)
    counters = Counters()
    run(_drain(backlog, counters, given))
    told = {key: value for key, value in asdict(counters).items() if value}
    if given["as_json"]:
        click.echo(json.dumps(asdict(counters)))
    else:
        click.echo(home_text(counters), err=True)
        click.echo(" ".join(f"{key}={value}" for key, value in told.items()), err=True)
    return 0


async def _drain(backlog: Backlog, counters: Counters, given: dict[str, Any]) -> None:
    rows = [row for row in await backlog.queues() if given["extra"] or not row.is_extra]
    backlog.check_owner(rows, given["primary_aliases"])
    queues = [row.name for row in rows]
    if not queues:
        raise UsageError(f"the secondary has no backlog queues of {backlog.name!r}: was it ever paired?")
    await backlog.drain(
        queues,
        once=given["once"],
        counters=counters,
        ledger=Path(given["ledger"]) if given["ledger"] else None,
        not_found=given["not_found"],
        time_to_live=given["life"],
        primary_aliases=given["primary_aliases"],
        observer=reporter(),
        started=_stop_on_signals,
    )


def reporter() -> Observer:
    """An observer that writes what a drain meets to the terminal."""
    from pairbus.drain.ports import Observer

    class Reporter(Observer):
        def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
            number = message.sequence_number
            click.echo(
                f"dead-lettered in {message.queue}: message {number}: {reason}: {description}", err=True
            )

        def unavailable(self, subject: str, sentence: str) -> None:
            click.echo(sentence, err=True)

        def available(self, subject: str) -> None:
            click.echo(f"{subject} works again", err=True)

    return Reporter()


def _stop_on_signals(running: Drain) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, running.stop)
