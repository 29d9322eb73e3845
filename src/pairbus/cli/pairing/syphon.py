"""``pairbus syphon``: drain the backlog into the primary, in this process or on Spark."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from pairbus.cli.kit.options import command, is_given, json_option, option, values_of
from pairbus.cli.kit.output import status, stop_on_signals
from pairbus.cli.kit.pair import PairFlags, alias_option, delivered_text, queues_option, refusals, run
from pairbus.cli.kit.places import check_directory
from pairbus.cli.kit.spark import closing_spark, conf_option, spark_errors, spark_settings
from pairbus.errors import OtherPrimaryError, UsageError
from pairbus.pairing.naming import entity_key, missing_queues

if TYPE_CHECKING:
    from pairbus.drain.backlog import Backlog
    from pairbus.drain.hosting import FindNames
    from pairbus.drain.ports import Observer
    from pairbus.drain.rules.message import BacklogMessage
    from pairbus.drain.shell import Drain
    from pairbus.pairing.statistics import Counters
    from pairbus.spark.drain.report import Progress, Report

FOLLOW_SECONDS: Final = 300
EXIT_LEFT: Final = 1
"""Something could not be delivered: it is in the dead-letter queue of its backlog queue."""

EXIT_MISSING: Final = 3
"""A backlog queue could not be looked into, because it does not exist."""
DELETED: Final = (
    "{queue} does not exist, and backlog queues with higher numbers do: somebody deleted it. Whatever was in it is not delivered; "
    "`pairbus reconcile` names the messages that never arrived. A paired client creates it again when it pairs"
)
VANISHED: Final = (
    "{queue} was there when this drain began, and somebody deleted it since. Whatever was still in it is not delivered; "
    "`pairbus reconcile` names the messages that never arrived"
)

LEFT_ALONE: Final = "{queue} lies beyond --queues and was left alone: --extra drains it too"

WAITS_FOR_QUEUES: Final = "; this drain waits for that"

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
Exit codes: 0 done or stopped, 1 something could not be delivered (--once), 2 wrong usage, 3 could not reach a namespace, was refused,
a backlog queue was deleted (--once), or nothing moved for 30 s or only deferred messages are left that another receiver has locked
(--once, local).
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
    primary_aliases: tuple[str, ...] = alias_option(
        "Another address of the primary: a second name of its host, another port, or where it ran before it moved. "
        "Messages parked for that address are drained too; all others go to the dead-letter queue (OtherPrimary)."
    )
    once: bool = option("Stop when all messages that were in the backlog at the start are delivered.", False)
    order: Literal["relaxed", "session", "partition"] = option(
        "Which messages are delivered in the order in which they were parked. relaxed: those of clients that keep an order. session: all "
        "with a session id. partition: all with a session id or partition key.",
        "relaxed",
    )
    follow_timeout: int = option(
        "How many seconds a message waits for an older one of its session in another backlog queue, while nothing comes from there, before it is delivered all the same.",
        FOLLOW_SECONDS,
        minimum=1,
    )
    queues: int = queues_option()
    extra: bool = option("Drain backlog queues beyond that number too.", False)
    not_found: Literal["dead-letter", "wait"] = option(
        "What to do with messages whose destination does not exist.", "dead-letter"
    )
    time_to_live: Literal["freeze", "deduct"] = option(
        "Whether the time in the backlog counts against a message's time to live.", "freeze"
    )
    ledger: str | None = option(
        "local: directory for the file of sends in doubt.  [default: the user's data directory]  spark: where to write what was "
        "moved, a directory here or a URL that executors reach.  [default: a temporary one]",
        metavar="DIR",
    )
    as_json: bool = json_option("Print the counters as one JSON object at the end.")


@command(SyphonFlags, EPILOG)
def syphon(flags: SyphonFlags) -> int:
    """Deliver the messages of the backlog to the primary."""
    if flags.ledger is not None:
        check_directory(flags.ledger, "--ledger")
    if flags.engine == "spark":
        return _on_spark(flags)
    for name, flag in (("master", "--master"), ("settings", "--conf"), ("tasks", "--tasks")):
        if is_given(name):
            raise UsageError(f"{flag} is for Spark: leave it out, or leave out --engine local")
    return _here(flags)


# --- in this process --------------------------------------------------------------------------------


def _here(flags: SyphonFlags) -> int:
    from pairbus.pairing.statistics import Counters

    counters = Counters()
    is_whole = run(_drain(flags.backlog(flags.queues), counters, flags), flags)
    if flags.as_json:
        click.echo(json.dumps(asdict(counters)))
    else:
        click.echo(delivered_text(counters), err=True)
        click.echo(" ".join(f"{name}={value}" for name, value in asdict(counters).items() if value), err=True)
    if flags.once and not is_whole:
        return EXIT_MISSING
    return EXIT_LEFT if flags.once and counters.set_aside else 0


async def _drain(backlog: Backlog, counters: Counters, flags: SyphonFlags) -> bool:
    """Drain the backlog queues. False: one of them does not exist, or did not for a while: some of its messages may be gone."""
    from pairbus.drain.lookups.search import NOTHING

    names = backlog.names() if is_given("queues") and not flags.extra else None
    listed = await backlog.queues(names)
    rows = [row for row in listed if flags.extra or not row.is_extra]
    for row in listed:
        if row not in rows and row.messages != 0:
            click.echo(LEFT_ALONE.format(queue=row.name), err=True)
    backlog.check_owner(rows, flags.primary_aliases)
    if not listed:
        text, is_of_others = await backlog.nothing_found()
        if flags.once and is_of_others:
            raise UsageError(text)
        click.echo(text + (NOTHING if flags.once else WAITS_FOR_QUEUES), err=True)
    found = {entity_key(row.name) for row in rows}
    absent = [name for name in names or () if entity_key(name) not in found]
    deleted = missing_queues(backlog.name, found, flags.queues) if names is None else []
    for name in absent:
        click.echo(
            f"the secondary has no backlog queue {name!r} that this key may open: it is not drained"
            + ("" if flags.once else " until it appears"),
            err=True,
        )
    for name in deleted:
        click.echo(DELETED.format(queue=name), err=True)
    if flags.once and not rows:
        return not absent
    lost: list[str] = []
    await backlog.drain(
        [row.name for row in rows],
        counters=counters,
        ledger=Path(flags.ledger) if flags.ledger else None,
        observer=reporter(lost.append),
        started=_end_on_signals,
        follow_ms=flags.follow_timeout * 1000,
        find=_finder(backlog, flags, {row.name for row in listed}),
        **values_of(flags, "once", "not_found", "time_to_live", "primary_aliases", "order"),
    )
    return not absent and not deleted and not lost


def _finder(backlog: Backlog, flags: SyphonFlags, named: set[str]) -> FindNames:
    """Finds the queues that appear while the drain runs. ``named``: those of which it need not be said that they are left alone."""

    async def find(known: Collection[str]) -> list[str]:
        wanted = []
        for row in await backlog.appeared(known):
            text = LEFT_ALONE.format(queue=row.name) if row.is_extra and not flags.extra else ""
            try:
                backlog.check_owner([row], flags.primary_aliases)
            except OtherPrimaryError as error:
                text = str(error)
            if not text:
                wanted.append(row.name)
            elif row.name not in named:
                named.add(row.name)
                click.echo(text, err=True)
        return wanted

    return find


def reporter(deleted: Callable[[str], None]) -> Observer:
    """An observer that writes what a drain meets to the terminal, and passes on the names of backlog queues that were deleted."""
    from pairbus.drain.ports import Observer

    class Reporter(Observer):
        def deleted(self, queue: str) -> None:
            deleted(queue)

        def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
            number = message.sequence_number
            click.echo(
                f"dead-lettered in {message.queue}: message {number}: {reason}: {description}", err=True
            )

        def order_given_up(self, message: BacklogMessage, sentence: str) -> None:
            click.echo(sentence, err=True)

        def found(self, queue: str) -> None:
            click.echo(f"{queue} has appeared and is drained too", err=True)

        def waits(self, queue: str, sentence: str) -> None:
            click.echo(sentence, err=True)

        def unavailable(self, subject: str, sentence: str) -> None:
            click.echo(sentence, err=True)

        def available(self, subject: str) -> None:
            click.echo(f"{subject} works again", err=True)

    return Reporter()


def _end_on_signals(running: Drain) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, running.stop)


# --- on Spark ---------------------------------------------------------------------------------------


def _on_spark(flags: SyphonFlags) -> int:
    from pairbus.spark.drain.driver import SyphonOptions, run_syphon
    from pairbus.spark.session import spark_session

    primary, secondary = flags.both
    names = ("primary_aliases", "queues", "master", "once", "order", "tasks", "ledger", "not_found")
    options = SyphonOptions(
        primary=primary,
        secondary=secondary,
        authorities=flags.authorities(),
        primary_namespace=flags.namespace,
        drains_extra=flags.extra,
        follow_seconds=flags.follow_timeout,
        settings=spark_settings(flags.settings),
        **values_of(flags, *names, "time_to_live"),
    )
    stop = stop_on_signals()
    with status("starting Spark…"):
        spark = spark_session("pairbus syphon", master=options.master, settings=options.settings)
    stop_on_signals(stop=stop)  # Spark has put its own handler in their place
    with refusals(flags), spark_errors(), closing_spark(spark):
        show = _json_line if flags.as_json else _line
        report = run_syphon(options, stop=stop, report_progress=show, say=_say, spark=spark)
    if flags.as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        _show(report)
    return report.exit_code if flags.once else 0


def _line(progress: Progress) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[2K{progress.line()}", err=True, nl=False)


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def _json_line(progress: Progress) -> None:
    shown = {
        **asdict(progress),
        "rate_per_s": round(progress.rate_per_s, 1),
        "seconds_left": progress.seconds_left,
    }
    click.echo(json.dumps(shown), err=True)


def _show(report: Report) -> None:
    lines = [""] if sys.stderr.isatty() else []
    lines.append(
        f"{report.moved:,} messages delivered in {report.seconds:,.0f} s; the ledger is in {report.ledger}"
    )
    lines += [
        f"{count:,} dead-lettered: {reason}; see pairbus backlog explain"
        for reason, count in sorted(report.set_aside.items())
    ]
    lines += [
        f"{queue}: {'some' if left is None else f'{left:,}'} could not be delivered"
        for queue, left in sorted(report.left.items())
    ]
    lines += [f"{path} is unavailable: {reason}" for path, reason in sorted(report.waiting.items())]
    lines += [DELETED.format(queue=queue) for queue in report.deleted]
    lines += [VANISHED.format(queue=queue) for queue in report.vanished]
    lines += [LEFT_ALONE.format(queue=queue) for queue, count in sorted(report.extra.items()) if count != 0]
    for line in lines:
        click.echo(line, err=True)
