"""``pairbus spool``: messages that a program has kept on this machine while no namespace took them."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import progress_bar, show, silence_logs, stop_on_signals, table_lines
from pairbus.cli.kit.pair import PairFlags, alias_option, refusals
from pairbus.errors import UsageError
from pairbus.pairing.options import BACKLOG_QUEUE_COUNT_DEFAULT, BACKLOG_QUEUE_COUNT_MAX
from pairbus.reports.text import duration_text, many

if TYPE_CHECKING:
    from pairbus.pairing.client.sync import PairedServiceBusClient
    from pairbus.pairing.options import SendAvailabilityOptions
    from pairbus.spool.reading import Listed

EPILOG: Final = """\b
Examples:
  pairbus spool list /var/lib/shop/spool
  pairbus spool replay /var/lib/shop/spool
  pairbus spool export /var/lib/shop/spool --output messages.jsonl

\b
Exit codes: 0 done, 1 nothing was found or something is left, 2 wrong usage, 3 could not reach the namespace or was refused, or a
spool is damaged.
"""
EXAMPLE: Final = "\b\nExample:\n  pairbus spool "
CODES_READ: Final = (
    "\nExit codes: 0 there are messages, 1 there are none, 2 wrong usage, 3 a spool is damaged.\n"
)
CODES_REPLAY: Final = """
Exit codes: 0 all messages were sent, 1 there were none or some are left, 2 wrong usage, 3 could not reach the namespace or was refused, or a
spool is damaged.
"""
COLUMNS: Final = ("spool", "primary", "entity", "messages", "bytes", "oldest_age", "undeliverable", "in_use")
POLL_SECONDS: Final = 0.2
EXIT_DAMAGED: Final = 3
NAMED_MAX: Final = 10
"""How many messages that cannot be delivered a replay names; an export has all of them."""

spool = HelpfulGroup(
    "spool", help="List, replay or export messages that wait on this machine for a namespace.", epilog=EPILOG
)


@dataclass(frozen=True, kw_only=True)
class ListFlags:
    directory: str = argument()
    as_json: bool = json_option("One JSON array.")


@command(ListFlags, f"{EXAMPLE}list /var/lib/shop/spool\n{CODES_READ}", name="list", group=spool)
def list_spool(flags: ListFlags) -> int:
    """Show what the spools in DIRECTORY hold, by entity. Also while a program uses them."""
    from pairbus.pairing.clock import wall_ms
    from pairbus.spool.reading import listed

    now = wall_ms()
    rows: list[dict[str, object]] = []
    spools, problems = listed(_directory(flags.directory))
    for one in spools:
        for content in one.contents.values():
            age_ms = None if content.oldest_ms is None else max(0, now - content.oldest_ms)
            rows.append(
                {
                    "spool": one.directory.name,
                    "primary": one.about.primary,
                    "entity": content.path,
                    "messages": content.count,
                    "bytes": content.size,
                    "oldest_age_ms" if flags.as_json else "oldest_age": age_ms
                    if flags.as_json or age_ms is None
                    else duration_text(age_ms),
                    "undeliverable": content.undeliverable,
                    "in_use": one.is_in_use if flags.as_json else "yes" if one.is_in_use else "no",
                }
            )
    show(rows, flags.as_json, table_lines(rows, COLUMNS) if rows else [])
    if not rows and not problems:
        click.echo(f"no message waits in {flags.directory}", err=True)
    return _ended(problems, 0 if rows else 1)


def _directory(given: str) -> Path:
    root = Path(given)
    if not root.is_dir():
        raise UsageError(
            f"there is no spool directory {given}: give the one that the program names as its spool"
        )
    return root


def _ended(problems: list[str], code: int) -> int:
    """The exit code, after a line for each spool that is damaged."""
    for problem in problems:
        click.echo(problem, err=True)
    return EXIT_DAMAGED if problems else code


@dataclass(frozen=True, kw_only=True)
class ReplayFlags(PairFlags):
    directory: str = argument()
    queues: int | None = option(
        "How many backlog queues.  [default: as many as the program has that wrote the spool]",
        None,
        minimum=1,
        maximum=BACKLOG_QUEUE_COUNT_MAX,
    )
    order: Literal["relaxed", "session", "partition"] | None = option(
        "The order of sessions to keep, behind messages of them in the backlog.  [default: that of the program that wrote the spool]",
        None,
    )
    undeliverable: bool = option("Try messages again that a namespace has refused.", False)
    timeout: float = option("Stop when nothing was replayed for this many seconds.", 60.0, minimum=1.0)
    primary_aliases: tuple[str, ...] = alias_option()


@command(ReplayFlags, f"{EXAMPLE}replay /var/lib/shop/spool\n{CODES_REPLAY}", group=spool)
def replay(flags: ReplayFlags) -> int:
    """Send the messages in DIRECTORY that no program has open: to the primary, or to the backlog while that is away.

    Messages of a program that keeps an order go behind those of their sessions that are in the backlog. While the secondary does
    not answer, they stay in the spool.
    """
    from pairbus.pairing.client.sync import PairedServiceBusClient
    from pairbus.pairing.events import Kind
    from pairbus.spool.directory import retry_undeliverable
    from pairbus.spool.reading import listed

    root = _directory(flags.directory)
    spools, problems = listed(root)
    if not spools:
        if not problems:
            click.echo(f"no message waits in {root}", err=True)
        return _ended(problems, 1)
    if all(one.is_in_use for one in spools):
        if not _left_by_others(spools):
            click.echo(f"no message waits in {root}", err=True)
        return _ended(problems, 1)
    primary, secondary = flags.both
    silence_logs("azure", "pairbus")
    ca_file = flags.ca_file()
    trust: dict[str, Any] = {"connection_verify": ca_file} if ca_file is not None else {}
    with refusals(flags):
        client = PairedServiceBusClient.from_connection_strings(
            primary,
            secondary,
            options=replay_options(root, spools, flags.queues, flags.order),
            primary_namespace=flags.namespace,
            primary_aliases=flags.primary_aliases,
            management=dict(trust),
            **trust,
        )
        with ExitStack() as stack:
            stack.callback(client.close)
            if flags.undeliverable:
                retry_undeliverable(root)
            client.pair()
            code = _wait(client, flags.timeout)
            own = {one.directory for one in client._state.spools.all} if client._state.spools else set()
            for event in client.events():
                if event.kind is Kind.SPOOL_LEFT_BEHIND:
                    click.echo(event.text, err=True)
                    code = 1
    in_use = [one for one in listed(root)[0] if one.directory not in own and one.is_in_use]
    return _ended(problems, _left_by_others(in_use) or code)


def replay_options(
    root: Path,
    spools: list[Listed],
    queues: int | None = None,
    order: Literal["relaxed", "session", "partition"] | None = None,
) -> SendAvailabilityOptions:
    """The options of a client that replays spools as the programs would that wrote them."""
    from pairbus.pairing.options import SendAvailabilityOptions
    from pairbus.spool.file import stricter

    free = [one.about for one in spools if not one.is_in_use]
    # The drain of the program looks into its own queues alone: nothing may go to others.
    known = [about.queues for about in free if about.queues]
    kept: Any = order or stricter([about.order for about in free] or ["relaxed"])
    return SendAvailabilityOptions(
        backlog_queue_count=queues or min(known, default=BACKLOG_QUEUE_COUNT_DEFAULT),
        order=kept,
        spool=root,
        spool_max_bytes=1 << 62,
    )


def _left_by_others(spools: list[Listed]) -> int:
    """Name the spools that a program has open. 1 when messages wait in them."""
    left = [(one, count) for one in spools if (count := one.total().count)]
    for one, count in left:
        click.echo(
            f"{many(count, 'message')} left in {one.directory}: a program has it open, which replays it unless it has left its client without closing it",
            err=True,
        )
    return 1 if left else 0


def _wait(client: PairedServiceBusClient, seconds: float) -> int:
    """Show progress until nothing waits, or nothing has moved for ``seconds``."""
    from pairbus.pairing.events import Kind

    stop = stop_on_signals()
    begun = _left(client)
    before, moved = begun, time.monotonic()
    with progress_bar("replaying") as progress:
        while before and not stop.wait(POLL_SECONDS):
            left = _left(client)
            progress(begun - left, begun)
            if left < before:
                before, moved = left, time.monotonic()
            elif time.monotonic() - moved > seconds:
                break
    found = client.statistics()
    click.echo(
        f"{many(found.replayed_to_primary, 'message')} to the primary, {found.replayed_to_backlog:,} to the backlog"
    )
    if found.spool_undeliverable:
        refused = [event.text for event in client.events() if event.kind is Kind.SPOOL_UNDELIVERABLE]
        for text in refused[:NAMED_MAX]:
            click.echo(text, err=True)
        stay = "stays" if found.spool_undeliverable == 1 else "stay"
        click.echo(
            f"{many(found.spool_undeliverable, 'message')} cannot be delivered and {stay}: `pairbus spool export` shows why",
            err=True,
        )
    if before:
        why = {path: report.why for path, report in client.health().items() if report.spooled and report.why}
        click.echo(
            f"{many(before, 'message')} left" + "".join(f"; {p}: {w}" for p, w in why.items()), err=True
        )
    return 1 if before or found.spool_undeliverable else 0


def _left(client: PairedServiceBusClient) -> int:
    return client.statistics().spool_messages


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    directory: str = argument()
    output: str | None = option(
        "Write to a file that does not exist yet.  [default: standard output]", metavar="FILE"
    )


@command(
    ExportFlags, f"{EXAMPLE}export /var/lib/shop/spool --output messages.jsonl\n{CODES_READ}", group=spool
)
def export(flags: ExportFlags) -> int:
    """Write every message in DIRECTORY as a line of JSON. The messages stay in the spool.

    Each line has the entity, the time, the message id, the body as text, why a namespace refused the message (detail), and all bytes of
    the AMQP message in base64 (raw). `pairbus reconcile --spool` reads such a file. Of a damaged spool, what can be read is written.
    """
    from pairbus.pairing.spool_rows import rows

    count = 0
    problems: list[str] = []
    root = _directory(flags.directory)
    with ExitStack() as stack:
        out = sys.stdout
        if flags.output is not None:
            try:
                out = stack.enter_context(Path(flags.output).open("x", encoding="utf-8"))
            except OSError as error:
                raise UsageError(f"--output {flags.output} cannot be written: {error.strerror}") from None
        for row in rows(root, problems):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    if flags.output is not None:
        click.echo(f"{many(count, 'message')} in {flags.output}")
    return _ended(problems, 0 if count else 1)
