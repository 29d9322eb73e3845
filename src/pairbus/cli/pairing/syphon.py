"""``pairbus syphon``: bring the backlog home."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from pairbus.cli.kit.options import command, json_option, option
from pairbus.cli.kit.pair import PairFlags, home_text, run
from pairbus.cli.kit.spark import conf_option
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


@dataclass(frozen=True, kw_only=True)
class SyphonFlags(PairFlags):
    engine: Literal["spark", "local"] = option("Where the drain runs.", "spark")
    master: str | None = option(
        "The Spark master: local[N], spark://HOST:PORT, yarn, k8s://…  [default: every core of this machine]",
        metavar="URL",
    )
    settings: tuple[str, ...] = conf_option()
    tasks: int | None = option("How many Spark tasks drain.  [default: the cluster's cores]", minimum=1)
    primary_aliases: tuple[str, ...] = option(
        "Another address of the primary: a second name of its host, another port, or where it ran before it moved. "
        "Messages parked for that address are drained too; all others go to the dead-letter queue (OtherPrimary).",
        (),
        flag="--primary-alias",
        metavar="HOST[:PORT]",
    )
    once: bool = option("End when all that was there at the start is home.", False)
    order: Literal["relaxed", "session"] = option("Whether the order within a session is kept.", "relaxed")
    queues: int = option("How many backlog queues.", 10, minimum=1)
    extra: bool = option("Drain backlog queues beyond that number too.", False)
    not_found: Literal["dead-letter", "wait"] = option(
        "What becomes of messages whose destination does not exist.", "dead-letter"
    )
    time_to_live: Literal["freeze", "deduct"] = option(
        "Whether the time in the backlog counts against a message's time to live.", "freeze"
    )
    ledger: str | None = option(
        "local: where to keep what is in doubt.  [default: the user's data directory]  spark: where to write what was "
        "moved, a directory here or a URL that executors reach.  [default: a temporary one]",
        metavar="DIR",
    )
    as_json: bool = json_option("Print the counters as one JSON object at the end.")


@command(SyphonFlags, EPILOG)
def syphon(flags: SyphonFlags) -> int:
    """Bring the messages of the backlog home to the primary."""
    if flags.engine == "spark":
        from pairbus.cli.pairing.syphon_spark import drain_on_spark

        return drain_on_spark(flags)
    if flags.order == "session":
        raise UsageError("--order session needs --engine spark, or relaxed with --engine local")
    from pairbus.pairing.statistics import Counters

    counters = Counters()
    run(_drain(flags.backlog(flags.queues), counters, flags))
    if flags.as_json:
        click.echo(json.dumps(asdict(counters)))
    else:
        click.echo(home_text(counters), err=True)
        found = {name: value for name, value in asdict(counters).items() if value}
        click.echo(" ".join(f"{name}={value}" for name, value in found.items()), err=True)
    return 0


async def _drain(backlog: Backlog, counters: Counters, flags: SyphonFlags) -> None:
    rows = [row for row in await backlog.queues() if flags.extra or not row.is_extra]
    backlog.check_owner(rows, flags.primary_aliases)
    queues = [row.name for row in rows]
    if not queues:
        raise UsageError(f"the secondary has no backlog queues of {backlog.name!r}: was it ever paired?")
    await backlog.drain(
        queues,
        once=flags.once,
        counters=counters,
        ledger=Path(flags.ledger) if flags.ledger else None,
        not_found=flags.not_found,
        time_to_live=flags.time_to_live,
        primary_aliases=flags.primary_aliases,
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
