"""``pairbus backlog``: what sits in the backlog, shown as the originals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.errors import Missing
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.options import argument, command, json_option, option, parameters_of
from pairbus.cli.kit.output import pair_lines, show
from pairbus.cli.kit.pair import PairFlags, home_text, run
from pairbus.errors import UsageError
from pairbus.model.text import safe_text
from pairbus.pairing.naming import entity_key
from pairbus.reports.text import many

if TYPE_CHECKING:
    from pairbus.drain.backlog import Backlog, Redriven

EPILOG: Final = """\b
Examples:
  pairbus backlog list
  pairbus backlog list --messages 20
  pairbus backlog explain contoso/x-servicebus-transfer/3
  pairbus backlog redrive contoso/x-servicebus-transfer/3 --reason DestinationNotFound
  pairbus backlog drain --extra

\b
Exit codes: 0 done, 1 nothing was found, 2 wrong usage, 3 could not reach the namespace or was refused.
"""

MESSAGES_SHOWN: Final = 20
EXPLAINED_MAX: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class BacklogFlags(PairFlags):
    queues: int = option("How many backlog queues.", 10, minimum=1)


@click.group(cls=HelpfulGroup, epilog=EPILOG, params=parameters_of(BacklogFlags))
@click.pass_context
def backlog(ctx: click.Context, /, **given: Any) -> None:
    """List, inspect, retry or delete messages in the backlog of the secondary namespace."""
    ctx.obj = BacklogFlags(**given)


def _open() -> Backlog:
    flags: BacklogFlags = click.get_current_context().obj
    return flags.backlog(flags.queues, needs_primary=False)


@dataclass(frozen=True, kw_only=True)
class ListFlags:
    messages: int = option("Show that many messages of each queue.", 0, minimum=0)
    set_aside: bool = option(
        "Show dead-lettered messages and why.  [20 of each queue unless --messages]", False
    )
    as_json: bool = json_option("One JSON array.")


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    queue: str = argument()
    number: int | None = argument(required=False, type=int)
    as_json: bool = json_option("One JSON array.")


@dataclass(frozen=True, kw_only=True)
class RedriveFlags:
    queue: str = argument()
    reason: str | None = option("Only messages dead-lettered for this reason.")


@dataclass(frozen=True, kw_only=True)
class PurgeFlags(RedriveFlags):
    yes: bool = option("Do it; without this nothing happens.", False)


@dataclass(frozen=True, kw_only=True)
class DrainFlags:
    queues: tuple[str, ...] = argument(nargs=-1)
    extra: bool = option("Drain the queues beyond the count.", False)
    ledger: str | None = option("Where to keep what is in doubt.", metavar="DIR")
    primary_aliases: tuple[str, ...] = option(
        "Another address of the primary, for instance where it ran before it moved.",
        (),
        flag="--primary-alias",
        metavar="HOST[:PORT]",
    )


@command(ListFlags, "\b\nExample:\n  pairbus backlog list --messages 20\n", name="list", group=backlog)
def list_backlog(flags: ListFlags) -> int:
    """List backlog queues, extra ones included, and messages on request."""
    opened = _open()

    async def work() -> list[dict[str, Any]]:
        queues = await opened.queues()
        if not flags.messages and not flags.set_aside:
            return [asdict(row) for row in queues]
        count = flags.messages or MESSAGES_SHOWN
        return [
            asdict(row)
            for queue in queues
            for row in await opened.messages(queue.name, count, set_aside=flags.set_aside)
        ]

    what = "dead-lettered message" if flags.set_aside else "message" if flags.messages else "backlog queue"
    return _show(run(work()), flags.as_json, f"no {what} in the secondary namespace")


@command(
    ExplainFlags, "\b\nExample:\n  pairbus backlog explain contoso/x-servicebus-transfer/3\n", group=backlog
)
def explain(flags: ExplainFlags) -> int:
    """Say why messages of QUEUE were dead-lettered: what, expected and found."""
    opened = _open()

    async def work() -> list[dict[str, Any]]:
        await _known(opened, flags.queue)
        return [asdict(row) for row in await opened.messages(flags.queue, EXPLAINED_MAX, set_aside=True)]

    rows = [row for row in run(work()) if flags.number in (None, row["sequence_number"])]
    number = f" as {flags.number}" if flags.number is not None else ""
    return _show(rows, flags.as_json, f"no message of {flags.queue} was dead-lettered{number}")


def _show(rows: list[dict[str, Any]], as_json: bool, nothing: str) -> int:
    show(rows, as_json, pair_lines(rows))
    if not rows:
        click.echo(nothing, err=True)
    return 0 if rows else 1


async def _known(opened: Backlog, queue: str) -> None:
    """Raise Missing for a queue that is not in the secondary: the client would take it for a refused key."""
    if entity_key(queue) not in {entity_key(row.name) for row in await opened.queues()}:
        raise Missing(f"there is no backlog queue '{queue}': pairbus backlog list shows what exists")


@command(
    RedriveFlags,
    "\b\nExample:\n  pairbus backlog redrive contoso/x-servicebus-transfer/3 --reason DestinationNotFound\n",
    group=backlog,
)
def redrive(flags: RedriveFlags) -> int:
    """Put dead-lettered messages of QUEUE back into it, to be drained again.

    Messages stay where they are while their destination does not exist in the primary.
    """
    opened = _open()

    async def work() -> Redriven:
        await _known(opened, flags.queue)
        return await opened.redrive(flags.queue, flags.reason)

    done = run(work())
    for path, count in sorted(done.missing.items()):
        click.echo(
            f"{many(count, 'message')} left: the primary has no entity {path!r}; create it, then redrive again",
            err=True,
        )
    if done.moved:
        if not done.is_checked:
            click.echo("the primary could not be asked whether their destinations exist now", err=True)
        click.echo(f"{many(done.moved, 'message')} back in {flags.queue}")
        return 0
    if not done.missing:
        _say_nothing(flags, done.others)
    return 1


@command(
    PurgeFlags, "\b\nExample:\n  pairbus backlog purge contoso/x-servicebus-transfer/3 --yes\n", group=backlog
)
def purge(flags: PurgeFlags) -> int:
    """Remove dead-lettered messages of QUEUE for good."""
    if not flags.yes:
        raise UsageError(
            f"this deletes dead-lettered messages of {flags.queue} for good: look with `explain`, then add --yes"
        )
    opened = _open()

    async def work() -> tuple[int, dict[str, int]]:
        await _known(opened, flags.queue)
        return await opened.purge(flags.queue, flags.reason)

    removed, others = run(work())
    if not removed:
        _say_nothing(flags, others)
        return 1
    click.echo(f"{many(removed, 'message')} of {flags.queue} deleted")
    return 0


def _say_nothing(flags: RedriveFlags, others: dict[str, int]) -> None:
    found = ", ".join(f"{name} ({count})" for name, count in sorted(others.items())) or "none"
    wanted = f" as {flags.reason!r}" if flags.reason is not None else ""
    click.echo(
        f"no message of {flags.queue} was dead-lettered{wanted}; reasons there: {safe_text(found)}", err=True
    )


@command(DrainFlags, "\b\nExample:\n  pairbus backlog drain --extra\n", group=backlog)
def drain(flags: DrainFlags) -> None:
    """Bring home, once, what QUEUES or the extra queues hold."""
    from pairbus.cli.pairing.syphon import reporter
    from pairbus.pairing.statistics import Counters

    if not flags.queues and not flags.extra:
        raise UsageError(
            "drain what? name backlog queues, or give --extra; `pairbus syphon` drains the usual ones"
        )
    opened = _open()
    counters = Counters()

    async def work() -> None:
        for name in flags.queues:
            # Of another queue every message would be dead-lettered: it is not from a paired namespace.
            await _known(opened, name)
        wanted = {entity_key(name) for name in flags.queues}
        rows = [
            row
            for row in await opened.queues()
            if entity_key(row.name) in wanted or (flags.extra and row.is_extra)
        ]
        opened.check_owner(rows, flags.primary_aliases)
        if rows:
            await opened.drain(
                [row.name for row in rows],
                once=True,
                counters=counters,
                ledger=Path(flags.ledger) if flags.ledger else None,
                primary_aliases=flags.primary_aliases,
                observer=reporter(),
            )

    run(work())
    click.echo(home_text(counters))
