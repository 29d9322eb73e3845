"""``pairbus backlog``: what sits in the backlog, shown as the originals."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.errors import Missing
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.pair import authorities, home_text, needed, pair_options, run
from pairbus.errors import UsageError
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


@click.group(cls=HelpfulGroup, epilog=EPILOG)
@pair_options
@click.option(
    "--queues",
    "count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How many backlog queues.",
)
@click.pass_context
def backlog(ctx: click.Context, /, **given: Any) -> None:
    """Look after the backlog in the secondary namespace."""
    ctx.obj = given


def _open(given: dict[str, Any]) -> Backlog:
    from pairbus.drain.backlog import Backlog
    from pairbus.sdk.trust import bundle_of

    primary, secondary = given["primary"], needed(given["secondary"], "secondary")
    trusted = bundle_of(authorities(given["ca_files"], primary, secondary))
    ca_file = click.get_current_context().with_resource(trusted)
    return Backlog(primary, secondary, given["namespace"], given["count"], ca_file=ca_file)


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo("  ".join(f"{key}={_inert(value)}" for key, value in row.items() if value is not None))


def _inert(value: object) -> str:
    """Text from messages cannot move a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in str(value))


@backlog.command("list", epilog="\b\nExample:\n  pairbus backlog list --messages 20\n")
@click.option("--messages", type=click.IntRange(0), default=0, help="Show that many messages of each queue.")
@click.option(
    "--set-aside",
    is_flag=True,
    help="Show dead-lettered messages and why.  [20 of each queue unless --messages]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.pass_obj
def list_backlog(given: dict[str, Any], messages: int, set_aside: bool, as_json: bool) -> None:
    """List backlog queues, extra ones included, and messages on request."""
    opened = _open(given)

    async def work() -> list[dict[str, Any]]:
        queues = await opened.queues()
        if not messages and not set_aside:
            return [asdict(row) for row in queues]
        return [
            asdict(row)
            for queue in queues
            for row in await opened.messages(queue.name, messages or MESSAGES_SHOWN, set_aside=set_aside)
        ]

    rows = run(work())
    _show(rows, as_json=as_json)
    if not rows:
        what = "dead-lettered message" if set_aside else "message" if messages else "backlog queue"
        click.echo(f"no {what} in the secondary namespace", err=True)
        raise click.exceptions.Exit(1)


async def _known(opened: Backlog, queue: str) -> None:
    """Raise Missing for a queue that is not in the secondary: the client would take it for a refused key."""
    if entity_key(queue) not in {entity_key(row.name) for row in await opened.queues()}:
        raise Missing(f"there is no backlog queue '{queue}': pairbus backlog list shows what exists")


@backlog.command(epilog="\b\nExample:\n  pairbus backlog explain contoso/x-servicebus-transfer/3\n")
@click.argument("queue")
@click.argument("number", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.pass_obj
def explain(given: dict[str, Any], queue: str, number: int | None, as_json: bool) -> None:
    """Say why messages of QUEUE were set aside: what, expected and found."""
    opened = _open(given)

    async def work() -> list[dict[str, Any]]:
        await _known(opened, queue)
        return [asdict(row) for row in await opened.messages(queue, EXPLAINED_MAX, set_aside=True)]

    rows = run(work())
    rows = [row for row in rows if number is None or row["sequence_number"] == number]
    _show(rows, as_json=as_json)
    if not rows:
        click.echo(
            f"nothing is set aside in {queue}" + (f" as {number}" if number is not None else ""), err=True
        )
        raise click.exceptions.Exit(1)


@backlog.command(
    epilog="\b\nExample:\n  pairbus backlog redrive contoso/x-servicebus-transfer/3 --reason DestinationNotFound\n"
)
@click.argument("queue")
@click.option("--reason", help="Only messages set aside for this reason.")
@click.pass_obj
def redrive(given: dict[str, Any], queue: str, reason: str | None) -> None:
    """Put dead-lettered messages of QUEUE back into it, to be drained again.

    Messages stay where they are while their destination does not exist in the primary.
    """
    opened = _open(given)

    async def work() -> Redriven:
        await _known(opened, queue)
        return await opened.redrive(queue, reason)

    done = run(work())
    for path, count in sorted(done.missing.items()):
        click.echo(
            f"{many(count, 'message')} left: the primary has no entity {path!r}; create it, then redrive again",
            err=True,
        )
    if done.moved:
        if not done.is_checked:
            click.echo("the primary could not be asked whether their destinations exist now", err=True)
        click.echo(f"{many(done.moved, 'message')} back in {queue}")
        return
    if not done.missing:
        _nothing(queue, reason, done.others)
    raise click.exceptions.Exit(1)


def _nothing(queue: str, reason: str | None, others: dict[str, int]) -> None:
    found = ", ".join(f"{name} ({count})" for name, count in sorted(others.items())) or "none"
    wanted = f" as {reason!r}" if reason is not None else ""
    click.echo(f"no message of {queue} was dead-lettered{wanted}; reasons there: {_inert(found)}", err=True)


@backlog.command(epilog="\b\nExample:\n  pairbus backlog purge contoso/x-servicebus-transfer/3 --yes\n")
@click.argument("queue")
@click.option("--reason", help="Only messages set aside for this reason.")
@click.option("--yes", is_flag=True, help="Do it; without this nothing happens.")
@click.pass_obj
def purge(given: dict[str, Any], queue: str, reason: str | None, yes: bool) -> None:
    """Remove set-aside messages of QUEUE for good."""
    if not yes:
        raise UsageError(
            f"this deletes set-aside messages of {queue} for good: look with `explain`, then add --yes"
        )
    opened = _open(given)

    async def work() -> tuple[int, dict[str, int]]:
        await _known(opened, queue)
        return await opened.purge(queue, reason)

    removed, others = run(work())
    if not removed:
        _nothing(queue, reason, others)
        raise click.exceptions.Exit(1)
    click.echo(f"{many(removed, 'message')} of {queue} deleted")


@backlog.command(epilog="\b\nExample:\n  pairbus backlog drain --extra\n")
@click.argument("queues", nargs=-1)
@click.option("--extra", is_flag=True, help="Drain the queues beyond the count.")
@click.option("--ledger", metavar="DIR", help="Where to keep what is in doubt.")
@click.option(
    "--primary-alias",
    "primary_aliases",
    metavar="HOST[:PORT]",
    multiple=True,
    help="Another address of the primary, for instance where it ran before it moved.",
)
@click.pass_obj
def drain(
    given: dict[str, Any],
    queues: tuple[str, ...],
    extra: bool,
    ledger: str | None,
    primary_aliases: tuple[str, ...],
) -> None:
    """Bring home, once, what QUEUES or the extra queues hold."""
    from pairbus.cli.pairing.syphon import reporter
    from pairbus.pairing.statistics import Counters

    if not queues and not extra:
        raise UsageError(
            "drain what? name backlog queues, or give --extra; `pairbus syphon` drains the usual ones"
        )
    opened = _open(given)
    counters = Counters()

    async def work() -> None:
        names = list(queues)
        for name in names:
            # Of another queue every message would be dead-lettered: it is not from a paired namespace.
            await _known(opened, name)
        wanted = {entity_key(name) for name in names}
        rows = [
            row for row in await opened.queues() if entity_key(row.name) in wanted or (extra and row.is_extra)
        ]
        opened.check_owner(rows, primary_aliases)
        names = [row.name for row in rows]
        if names:
            await opened.drain(
                names,
                once=True,
                counters=counters,
                ledger=Path(ledger) if ledger else None,
                primary_aliases=primary_aliases,
                observer=reporter(),
            )

    run(work())
    click.echo(home_text(counters))
