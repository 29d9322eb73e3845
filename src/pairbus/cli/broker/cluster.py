"""``pairbus cluster``: look at the nodes that serve a namespace from a database, and move it between them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import show, status, table_lines, terminal_columns
from pairbus.errors import StorageError, UsageError
from pairbus.server.cluster.status import STALE_MS, describe

if TYPE_CHECKING:
    from pairbus.storage.table.ports import DatabaseCopies, LeaseTable, NodeEntry, NodeTable, Ownership

EXIT_DONE: Final = 0
EXIT_NO: Final = 1
POLL_SECONDS: Final = 0.1
STANDBY_COLUMNS: Final = ("standby", "state", "behind_bytes", "behind_seconds")
COLUMNS: Final = ("node", "state", "role", "address", "seen_seconds_ago", "asked", "version")

EPILOG: Final = """\b
Examples:
  pairbus cluster status --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso
  pairbus cluster move --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso
  pairbus cluster drain node-1 --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso

\b
The commands ask the database, so they work on every machine that reaches it. PAIRBUS_STORE may hold the URL.
Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 the database cannot be reached or refused.
"""
STATUS_EXAMPLES: Final = """\b
Examples:
  pairbus cluster status --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso
  pairbus cluster status --namespace contoso --json

\b
Exit codes: 0 a node owns the namespace, 1 none does, 2 wrong usage, 3 the database cannot be reached or refused.
"""
MOVE_EXAMPLES: Final = """\b
Examples:
  pairbus cluster move --namespace contoso
  pairbus cluster move --namespace contoso --timeout 60 --json

\b
Clients are told to connect again, the last commit is made, and another node serves, usually in less than a second.
Exit codes: 0 moved, 1 no other node took the namespace in time, 2 wrong usage, 3 the database cannot be reached or refused.
"""
DRAIN_EXAMPLES: Final = """\b
Examples:
  pairbus cluster drain node-1 --namespace contoso
  pairbus cluster drain node-1 --namespace contoso --undo
  pairbus cluster drain node-1 --namespace contoso --forget

\b
Drain a node before you stop its machine: it gives the namespace up, relays, and takes no part until --undo, also after a restart.
Exit codes: 0 done, 1 there is no such node, or the namespace has no other node, 2 wrong usage, 3 the database cannot be reached
or refused.
"""


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def cluster() -> None:
    """Show the nodes that serve a namespace from a database, and move it between them."""


@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    store: str = option(
        "The database.  [env: PAIRBUS_STORE]", metavar="URL", envvar="PAIRBUS_STORE", required=True
    )
    namespace: str = option("Name of the namespace.", "local", metavar="NAME")
    as_json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class MoveFlags(ClusterFlags):
    timeout: float = option("Seconds to wait for the next owner.", 30.0, metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class DrainFlags(MoveFlags):
    node: str = argument(metavar="NODE")
    undo: bool = option("Let the node take part again.", False)
    forget: bool = option("Remove a node that is gone for good from the list.", False)


class Tables:
    """The tables of one namespace's cluster."""

    def __init__(self, lease: LeaseTable, nodes: NodeTable) -> None:
        self.lease = lease
        self.nodes = nodes

    def state(self) -> tuple[Ownership, list[NodeEntry]]:
        return self.lease.look(), self.nodes.nodes()

    def copies(self) -> DatabaseCopies | None:
        """The standbys of the database; None: it does not tell."""
        with contextlib.suppress(StorageError):
            return self.nodes.copies()
        return None


@contextlib.contextmanager
def _tables(flags: ClusterFlags) -> Iterator[Tables]:
    from pairbus.storage.postgres.opening import find_database, is_database

    if not is_database(flags.store):
        raise UsageError("--store must name a database, such as postgresql://pairbus@db-1,db-2/pairbus")
    database = find_database(flags.store, flags.namespace)
    tables = Tables(database.lease(), database.nodes())
    try:
        yield tables
    finally:
        tables.lease.close()
        tables.nodes.close()


def _sentences(found: dict[str, Any]) -> list[str]:
    if found["owner"]:
        head = (
            f"{found['namespace']}: {found['owner']} owns it (epoch {found['epoch']}), its lease lasts another "
            f"{found['lease_seconds_left']:g} s"
        )
    else:
        head = f"{found['namespace']}: no node owns it (last epoch {found['epoch']})"
    return [
        head,
        "",
        *table_lines(found["nodes"], COLUMNS, terminal_columns()),
        "",
        *_database_sentences(found["database"]),
    ]


def _database_sentences(database: dict[str, Any] | None) -> list[str]:
    if database is None:
        return ["The database does not tell about its standbys."]
    names = database["synchronous_standby_names"]
    head = (
        f"A commit waits for standbys: {names}"
        if names
        else "A commit waits for no standby that PostgreSQL names (synchronous_standby_names is empty)"
    )
    rows = database["standbys"]
    return [head, *(["", *table_lines(rows, STANDBY_COLUMNS, terminal_columns())] if rows else [])]


@command(ClusterFlags, STATUS_EXAMPLES, group=cluster, name="status")
def show_status(flags: ClusterFlags) -> int:
    """Show who owns the namespace, until when, and what every node does."""
    with _tables(flags) as tables:
        found = describe(flags.namespace, *tables.state(), tables.copies())
    show(found, flags.as_json, _sentences(found))
    return EXIT_DONE if found["owner"] else EXIT_NO


@command(MoveFlags, MOVE_EXAMPLES, group=cluster)
def move(flags: MoveFlags) -> int:
    """Give the namespace to another node."""
    from pairbus.storage.table.ports import REQUEST_MOVE

    with _tables(flags) as tables:
        owner, nodes = tables.state()
        if not owner.owner or owner.remaining_ms <= 0:
            click.echo(f"pairbus: no node owns {flags.namespace}: there is nothing to move", err=True)
            return EXIT_NO
        others = [one for one in nodes if one.node != owner.owner and one.age_ms < STALE_MS and not one.asked]
        if not others:
            click.echo(
                f"pairbus: {owner.owner} is the only node of {flags.namespace} that takes part: start another one first",
                err=True,
            )
            return EXIT_NO
        tables.nodes.ask(owner.owner, REQUEST_MOVE)
        return _await_owner(flags, tables, owner)


@command(DrainFlags, DRAIN_EXAMPLES, group=cluster)
def drain(flags: DrainFlags) -> int:
    """Take a node out of service, or back into it."""
    from pairbus.storage.table.ports import REQUEST_DRAIN, REQUEST_NONE

    if flags.undo and flags.forget:
        raise UsageError("--undo and --forget exclude each other")
    with _tables(flags) as tables:
        owner, _ = tables.state()
        if flags.forget:
            is_there = tables.nodes.forget(flags.node)
        else:
            is_there = tables.nodes.ask(flags.node, REQUEST_NONE if flags.undo else REQUEST_DRAIN)
        if not is_there:
            click.echo(
                f"pairbus: {flags.namespace} has no node {flags.node!r}; `pairbus cluster status` lists them",
                err=True,
            )
            return EXIT_NO
        if flags.undo or flags.forget or owner.owner != flags.node:
            done = "takes part again" if flags.undo else "is forgotten" if flags.forget else "takes no part"
            show({"node": flags.node, "done": done}, flags.as_json, f"{flags.node} {done}")
            return EXIT_DONE
        return _await_owner(flags, tables, owner)


def _await_owner(flags: MoveFlags, tables: Tables, before: Ownership) -> int:
    found: list[Ownership] = []

    def is_served() -> bool:
        found[:] = [tables.lease.look()]
        return found[0].epoch != before.epoch and bool(found[0].address)

    with status(f"waiting for another node to serve {flags.namespace} …"):
        is_done = _wait(is_served, flags.timeout)
    if not is_done:
        click.echo(
            f"pairbus: no other node served {flags.namespace} within {flags.timeout:g} s; `pairbus cluster status` shows the nodes",
            err=True,
        )
        return EXIT_NO
    owner = found[0]
    show(
        {"owner": owner.owner, "epoch": owner.epoch, "before": before.owner},
        flags.as_json,
        f"{owner.owner} owns {flags.namespace} now (epoch {owner.epoch}); before: {before.owner}",
    )
    return EXIT_DONE


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True
