"""``pairbus backlog``: what is in the backlog, shown as the original messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pairbus.cli.kit.errors import Missing
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.options import argument, command, is_given, json_option, option, parameters_of
from pairbus.cli.kit.output import progress_bar, show, table_lines, terminal_columns
from pairbus.cli.kit.pair import PairFlags, alias_option, delivered_text, queues_option, run
from pairbus.cli.kit.places import check_directory
from pairbus.cli.pairing.syphon import reporter
from pairbus.errors import UsageError
from pairbus.model.text import safe_text
from pairbus.pairing.clock import wall_ms
from pairbus.pairing.naming import entity_key
from pairbus.reports.text import many

if TYPE_CHECKING:
    from pairbus.drain.backlog import Backlog, MessageRow, QueueRow
    from pairbus.drain.dead_letters import Removal

EPILOG: Final = """\b
Examples:
  pairbus backlog list
  pairbus backlog list --messages 20
  pairbus backlog explain contoso/x-servicebus-transfer/3
  pairbus backlog redrive contoso/x-servicebus-transfer/3 --reason DestinationNotFound
  pairbus backlog drain --extra

\b
Exit codes: 0 done, 1 nothing was found, 2 wrong usage, 3 could not reach the namespace or was refused (list: by one of the queues, which
is named; the others are shown).
"""
EXAMPLE: Final = "\b\nExample:\n  pairbus backlog "
MESSAGES_SHOWN: Final = 20
EXPLAINED_MAX: Final = 1_000
EXIT_UNREAD: Final = 3
"""A backlog queue could not be read, or was deleted while it was drained; the others were."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class BacklogFlags(PairFlags):
    queues: int = queues_option()


def _keep_flags(**values: Any) -> None:
    click.get_current_context().obj = BacklogFlags(**values)


backlog = HelpfulGroup(
    "backlog",
    callback=_keep_flags,
    params=parameters_of(BacklogFlags),
    help="List, inspect, retry or delete messages in the backlog of the secondary namespace.",
    epilog=EPILOG,
)


def _with_backlog(work: Callable[[Backlog], Awaitable[_Result]], *queues: str) -> _Result:
    """Run some work on the backlog that the group's options name, once it is known to have ``queues``."""
    flags: BacklogFlags = click.get_current_context().obj
    opened = flags.backlog(flags.queues, needs_primary=False)

    async def checked() -> _Result:
        if queues:
            # The SDK takes a queue that does not exist for a refused key. Of a queue that is no backlog queue every
            # message would be dead-lettered: it is not from a paired namespace.
            known = {entity_key(row.name) for row in await opened.queues(queues)}
            for queue in queues:
                if entity_key(queue) not in known:
                    raise Missing(
                        f"there is no backlog queue '{queue}' that this key may open: pairbus backlog list shows what exists"
                    )
        return await work(opened)

    return run(checked(), flags)


def _show(rows: Sequence[dict[str, Any]], as_json: bool, nothing: str) -> int:
    columns = [
        name
        for name in (rows[0] if rows else ())
        # A problem is a sentence, which stands below the table.
        if name != "problem" and any(row.get(name) not in (None, "") for row in rows)
    ]
    show(rows, as_json, table_lines(rows, columns, terminal_columns()))
    if not rows:
        click.echo(nothing, err=True)
    return 0 if rows else 1


@dataclass(frozen=True, kw_only=True)
class ListFlags:
    messages: int = option("Number of messages to show for each queue.", 0, minimum=0)
    set_aside: bool = option(
        "Show dead-lettered messages and why.  [20 of each queue unless --messages]", False
    )
    as_json: bool = json_option("One JSON array.")


@command(ListFlags, f"{EXAMPLE}list --messages 20\n", name="list", group=backlog)
def list_backlog(flags: ListFlags) -> int:
    """List backlog queues, extra ones included, with the age of the oldest message in each, and messages on request."""
    is_listed_by_name = is_given("queues", above=True)

    limit = flags.messages or MESSAGES_SHOWN
    unread: list[str] = []
    aside = 0

    async def work(opened: Backlog) -> list[dict[str, Any]]:
        nonlocal aside
        shown: list[dict[str, Any]] = []
        queues = await opened.queues(opened.names() if is_listed_by_name else None)
        for queue in queues:
            if not flags.messages and not flags.set_aside:
                row = await _with_oldest(opened, queue)
                shown.append(row)
                problem = row["problem"]
            else:
                rows, problem = await _messages(opened, queue, limit, is_dead=flags.set_aside)
                shown += [asdict(row) for row in rows]
            if problem:
                unread.append(problem)
        if not shown and not flags.set_aside:
            aside = sum([await _count_aside(opened, queue) for queue in queues])
        return shown

    what = "dead-lettered message" if flags.set_aside else "message" if flags.messages else "backlog queue"
    rows = _with_backlog(work)
    nothing = f"no {what} in the secondary namespace"
    if aside:
        are = "is" if aside == 1 else "are"
        nothing = f"no message waits to be drained; {aside:,} {are} dead-lettered (--set-aside shows them)"
    code = _show(rows, flags.as_json, nothing)
    for problem in unread:
        click.echo(f"could not be read: {safe_text(problem)}", err=True)
    return EXIT_UNREAD if unread else code


async def _messages(
    opened: Backlog, row: QueueRow, limit: int, *, is_dead: bool
) -> tuple[list[MessageRow], str]:
    """Messages of a queue, and why it does not show them; one that cannot be read does not keep the others from being shown."""
    from pairbus.drain.backlog import why_unreadable

    if row.problem:
        return [], row.problem
    try:
        return await opened.messages(row.name, limit, is_dead=is_dead), ""
    except Exception as error:
        problem = why_unreadable(row.name, error)
        if not problem:
            raise
        return [], problem


async def _count_aside(opened: Backlog, row: QueueRow) -> int:
    """How many messages of a queue were dead-lettered; as many as can be seen at once where the key may not ask for the number."""
    if row.set_aside is not None:
        return row.set_aside
    rows, _ = await _messages(opened, row, EXPLAINED_MAX, is_dead=True)
    return len(rows)


async def _with_oldest(opened: Backlog, row: QueueRow) -> dict[str, Any]:
    """A row with the age of the oldest message in its queue, and where that message goes."""
    first, problem = (
        await _messages(opened, row, 1, is_dead=False) if row.messages != 0 else ([], row.problem)
    )
    age_s = None
    if first and first[0].enqueued is not None:
        enqueued_ms = datetime.fromisoformat(first[0].enqueued).timestamp() * 1000
        age_s = max(0, round((wall_ms() - enqueued_ms) / 1000))
    oldest = {"oldest_age_s": age_s, "oldest_destination": first[0].path if first else None}
    return asdict(row) | oldest | {"problem": problem}


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    queue: str = argument()
    number: int | None = argument(type=int, required=False)
    as_json: bool = json_option("One JSON array.")


@command(ExplainFlags, f"{EXAMPLE}explain contoso/x-servicebus-transfer/3\n", group=backlog)
def explain(flags: ExplainFlags) -> int:
    """Explain why messages of QUEUE were dead-lettered: the property, its value and what was expected."""
    rows = _with_backlog(
        lambda opened: opened.messages(flags.queue, EXPLAINED_MAX, is_dead=True), flags.queue
    )
    shown = [asdict(row) for row in rows if flags.number in (None, row.sequence_number)]
    which = f" with number {flags.number}" if flags.number is not None else ""
    return _show(shown, flags.as_json, f"no message of {flags.queue}{which} was dead-lettered")


@dataclass(frozen=True, kw_only=True)
class RedriveFlags:
    queue: str = argument()
    reason: str | None = option("Only messages dead-lettered for this reason.")


@command(
    RedriveFlags,
    f"{EXAMPLE}redrive contoso/x-servicebus-transfer/3 --reason DestinationNotFound\n",
    group=backlog,
)
def redrive(flags: RedriveFlags) -> int:
    """Put the dead-lettered messages of QUEUE that are there at the start back into it, to be drained again.

    Messages stay where they are while their destination does not exist in the primary. The others go to the end of the queue: behind
    younger messages of their session.
    """
    with progress_bar("redriving") as progress:
        done = _with_backlog(
            lambda opened: opened.redrive(flags.queue, flags.reason, lambda count: progress(count, 0)),
            flags.queue,
        )
    for path, count in sorted(done.missing.items()):
        click.echo(
            f"{many(count, 'message')} left: the primary has no entity {path!r}; create it, then redrive again",
            err=True,
        )
    if not done.moved and not done.missing:
        return _nothing(flags.queue, flags.reason, done.removal)
    _say_left(flags.queue, done.removal)
    if done.moved:
        if not done.is_checked:
            click.echo("the primary could not be asked whether their destinations exist now", err=True)
        click.echo(f"{many(done.moved, 'message')} back in {flags.queue}")
    return 0 if done.moved else 1


def _nothing(queue: str, reason: str | None, done: Removal) -> int:
    found = _reasons(done) or "none"
    wanted = f" as {reason!r}" if reason is not None else ""
    click.echo(f"no message of {queue} was dead-lettered{wanted}; reasons there: {found}", err=True)
    _say_left(queue, replace(done, others={}))
    return 1


def _reasons(done: Removal) -> str:
    return safe_text(", ".join(f"{name} ({count})" for name, count in sorted(done.others.items())))


def _say_left(queue: str, done: Removal) -> None:
    """Say what stays in the dead-letter queue, and why."""
    lines = []
    if done.others:
        lines.append(
            f"{many(sum(done.others.values()), 'message')} left: dead-lettered for other reasons: {_reasons(done)}"
        )
    if done.unconfirmed:
        lines.append(
            f"{many(done.unconfirmed, 'message')} may still be dead-lettered: the namespace did not confirm that they are removed"
        )
    if done.has_later:
        lines.append(
            f"messages that were dead-lettered meanwhile are left: `pairbus backlog explain {queue}` shows why"
        )
    if done.is_full:
        from pairbus.drain.dead_letters import HELD_MAX

        lines.append(
            f"{HELD_MAX:,} messages stay, and those behind them were not looked at: redrive or purge the "
            "first ones, then run the command again"
        )
    for line in lines:
        click.echo(line, err=True)


@dataclass(frozen=True, kw_only=True)
class PurgeFlags(RedriveFlags):
    yes: bool = option("Confirm. Without it nothing is deleted.", False)


@command(PurgeFlags, f"{EXAMPLE}purge contoso/x-servicebus-transfer/3 --yes\n", group=backlog)
def purge(flags: PurgeFlags) -> int:
    """Delete the dead-lettered messages of QUEUE that are there at the start, for good."""
    queue = flags.queue
    if not flags.yes:
        raise UsageError(
            f"this deletes dead-lettered messages of {queue} for good: look with `explain`, then add --yes"
        )
    with progress_bar("deleting") as progress:
        done = _with_backlog(
            lambda opened: opened.purge(queue, flags.reason, lambda count: progress(count, 0)), queue
        )
    if not done.removed and not done.unconfirmed:
        return _nothing(queue, flags.reason, done)
    _say_left(queue, done)
    click.echo(f"{many(done.removed, 'message')} of {queue} deleted")
    return 0


@dataclass(frozen=True, kw_only=True)
class DrainFlags:
    queues: tuple[str, ...] = argument(nargs=-1)
    extra: bool = option("Drain the queues beyond the count.", False)
    ledger: str | None = option("Directory for the file of sends in doubt.", metavar="DIR")
    primary_aliases: tuple[str, ...] = alias_option()


@command(DrainFlags, f"{EXAMPLE}drain --extra\n", group=backlog)
def drain(flags: DrainFlags) -> int:
    """Drain QUEUES or the extra queues once. Messages of clients that keep an order are delivered in order."""
    from pairbus.pairing.statistics import Counters

    if not flags.queues and not flags.extra:
        raise UsageError(
            "drain what? name backlog queues, or give --extra; `pairbus syphon` drains the usual ones"
        )
    if flags.ledger is not None:
        check_directory(flags.ledger, "--ledger")
    counters = Counters()
    deleted: list[str] = []
    wanted = {entity_key(name) for name in flags.queues}

    async def work(opened: Backlog) -> None:
        rows = [
            row
            for row in await opened.queues(None if flags.extra else flags.queues)
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
                observer=reporter(deleted.append),
            )

    _with_backlog(work, *flags.queues)
    click.echo(delivered_text(counters))
    return EXIT_UNREAD if deleted else 0
