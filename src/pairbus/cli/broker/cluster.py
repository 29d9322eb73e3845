"""``pairbus cluster``: look at the nodes that serve a namespace from a database, and move it between them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import show, status, table_lines, terminal_columns
from pairbus.errors import StorageError, UsageError
from pairbus.server.cluster.status import LATE_MS, STOPPED, describe, is_reporting, waits_in_words
from pairbus.storage.table.ports import MOVER, REQUEST_DRAIN, REQUEST_MOVE, REQUEST_NONE

if TYPE_CHECKING:
    from pairbus.storage.table.ports import (
        DatabaseCopies,
        HeldUp,
        LeaseTable,
        NodeEntry,
        NodeTable,
        Ownership,
    )

EXIT_DONE: Final = 0
EXIT_NO: Final = 1
POLL_SECONDS: Final = 0.1
READY_SECONDS: Final = 5.0
"""How long a node that would take the namespace may take to report: it does so every second."""
REPORT_SLACK_MS: Final = 100
"""How far the clocks of this machine and of the database may be apart in that time."""
SILENT_SECONDS: Final = 2.0
"""So long a node is watched before it is forgotten: it reports every second where the database answers it."""
OWN_WAIT_SECONDS: Final = 1.0
"""What held a command up for so long has held up the reports of the nodes too: it looks again after as long."""
UNLOCK: Final = "`select pg_terminate_backend(PROCESS)` ends a session that holds a lock"
STANDBY_BACK: Final = "bring the standby back"
SHOWS: Final = "`pairbus cluster status` shows the nodes"
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
  pairbus cluster status --namespace contoso --timeout 5 --json

\b
Exit codes: 0 a node owns the namespace, 1 none does, 2 wrong usage, 3 the database cannot be reached or refused.
"""
MOVE_EXAMPLES: Final = """\b
Examples:
  pairbus cluster move --namespace contoso
  pairbus cluster move --namespace contoso --timeout 60 --json

\b
Clients are told to connect again, the last commit is made, and another node serves, usually in less than a second.
Exit codes: 0 moved, 1 no other node took the namespace, 2 wrong usage, 3 the database cannot be reached or refused.
"""
DRAIN_EXAMPLES: Final = """\b
Examples:
  pairbus cluster drain node-1 --namespace contoso
  pairbus cluster drain node-1 --namespace contoso --undo
  pairbus cluster drain node-1 --namespace contoso --forget

\b
Drain a node before you stop its machine: it gives the namespace up, relays, and takes no part until --undo, also after a restart.
The only node is not drained without --force, and a node that runs or still has the lease is not forgotten.
Exit codes: 0 done, 1 there is no such node, it may run or has the lease (--forget), or no other node took the namespace, 2 wrong usage, 3 the database cannot be reached
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
class StatusFlags(ClusterFlags):
    timeout: float = option("Seconds to wait for each answer of the database.", 20.0, metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class MoveFlags(ClusterFlags):
    timeout: float = option(
        "Seconds to wait for the next owner, and for each answer of the database.", 30.0, metavar="SECONDS"
    )


@dataclass(frozen=True, kw_only=True)
class DrainFlags(MoveFlags):
    node: str = argument(metavar="NODE")
    undo: bool = option("Let the node take part again.", False)
    forget: bool = option("Remove a node that is gone for good from the list.", False)
    force: bool = option("Drain the only node too: nobody serves the namespace then.", False)


class Tables:
    """The tables of one namespace's cluster."""

    def __init__(
        self, lease: LeaseTable, nodes: NodeTable, answered_by: Callable[[], str], began: float
    ) -> None:
        self._began = began
        self.lease = lease
        self.nodes = nodes
        self.answered_by = answered_by
        """The server that answered last; several may be named."""

    def state(self) -> tuple[Ownership, list[NodeEntry]]:
        found = self.lease.look(), self.nodes.nodes()
        if time.monotonic() - self._began < OWN_WAIT_SECONDS:
            return found
        time.sleep(OWN_WAIT_SECONDS)
        return self.lease.look(), self.nodes.nodes()

    def copies(self) -> DatabaseCopies | None:
        """The standbys of the database; None: it does not tell."""
        with contextlib.suppress(StorageError):
            return self.nodes.copies()
        return None


@contextlib.contextmanager
def _tables(flags: StatusFlags | MoveFlags) -> Iterator[Tables]:
    from pairbus.storage.postgres.opening import find_database, is_database

    if not is_database(flags.store):
        raise UsageError("--store must name a database, such as postgresql://pairbus@db-1,db-2/pairbus")
    if flags.timeout <= 0:
        raise UsageError(f"--timeout {flags.timeout:g} must be more than 0 seconds")
    began = time.monotonic()
    database = find_database(flags.store, flags.namespace, flags.timeout)
    tables = Tables(database.lease(), database.nodes(), lambda: database.address.answered_by, began)
    try:
        yield tables
    finally:
        tables.lease.close()
        tables.nodes.close()


def _sentences(found: dict[str, Any], held_up: Sequence[HeldUp]) -> list[str]:
    if found["owner"]:
        head = (
            f"{found['namespace']}: {found['owner']} owns it (epoch {found['epoch']}), its lease lasts another "
            f"{found['lease_seconds_left']:g} s"
        )
    elif found["is_moved"]:
        head = (
            f"{found['namespace']}: no node owns it while `pairbus store move` moves it (epoch {found['epoch']}), which holds it for another "
            f"{found['lease_seconds_left']:g} s at least"
        )
    else:
        head = f"{found['namespace']}: no node owns it (last epoch {found['epoch']})"
    return [
        head,
        *_waiting_sentences(held_up),
        # Behind a lock nodes are silent that run. A standby may be away because it was promoted.
        *([] if any(one.table for one in held_up) else _left_sentences(found)),
        "",
        *table_lines(found["nodes"], COLUMNS, terminal_columns()),
        "",
        *_database_sentences(found["database"]),
    ]


def _waiting_sentences(held_up: Sequence[HeldUp]) -> list[str]:
    waits = _waits(held_up)
    return (
        [f"{waits[:1].upper()}{waits[1:]}: nodes that look late or gone may run; {_way_out(held_up)}"]
        if waits
        else []
    )


def _repeat(held_up: Sequence[HeldUp]) -> str:
    return f"Repeat the command once nothing waits there; {_way_out(held_up)}"


def _way_out(held_up: Sequence[HeldUp]) -> str:
    """What ends the waiting. The session of a commit that waits for the standby is none to end: its outcome would be open."""
    ways = {UNLOCK if one.table else STANDBY_BACK for one in held_up}
    return "; ".join(sorted(ways))


def _left_sentences(found: dict[str, Any]) -> list[str]:
    """A primary that was replaced and wakes knows nothing of what came after it, and looks as if every node had died."""
    ages = [node["seen_seconds_ago"] for node in found["nodes"]]
    if found["owner"] or found["is_moved"] or not ages or min(ages) * 1000 < LATE_MS:
        return []
    silence = f"No node has reported to {found['answered_by']} for {min(ages):g} s"
    return [
        f"{silence}. If another server was promoted, this is the former primary: stop it, and ask the new one"
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


@command(StatusFlags, STATUS_EXAMPLES, group=cluster, name="status")
def show_status(flags: StatusFlags) -> int:
    """Show who owns the namespace, until when, and what every node does."""
    with _tables(flags) as tables:
        found = describe(flags.namespace, *tables.state(), tables.copies())
        found["answered_by"] = tables.answered_by()
        held_up = tables.nodes.held_up()
    found["held_up"] = [{"table": one.table or None, "processes": list(one.processes)} for one in held_up]
    show(found, flags.as_json, _sentences(found, held_up))
    return EXIT_DONE if found["owner"] else EXIT_NO


@command(MoveFlags, MOVE_EXAMPLES, group=cluster)
def move(flags: MoveFlags) -> int:
    """Give the namespace to another node."""
    with _tables(flags) as tables:
        owner, nodes = tables.state()
        if owner.owner in ("", MOVER) or owner.remaining_ms <= 0:
            return _no(
                _held_lease(tables, owner) or f"no node owns {flags.namespace}: there is nothing to move"
            )
        if not _await_ready(flags, tables, owner.owner, nodes):
            return _no(_only(owner.owner, flags.namespace, nodes, tables))
        tables.nodes.ask(owner.owner, REQUEST_MOVE)
        return _await_owner(flags, tables, owner)


@command(DrainFlags, DRAIN_EXAMPLES, group=cluster)
def drain(flags: DrainFlags) -> int:
    """Take a node out of service, or back into it."""
    if flags.undo + flags.forget + flags.force > 1:
        raise UsageError("--undo, --forget and --force exclude each other")
    with _tables(flags) as tables:
        owner, nodes = tables.state()
        is_owner = owner.owner == flags.node and owner.remaining_ms > 0
        if flags.forget:
            return _forget(flags, tables, owner, nodes)
        held = _held_lease(tables, owner) if owner.owner == flags.node and not flags.undo else ""
        if held and not flags.force:
            return _no(held)
        is_last = is_owner and not flags.undo and not _await_ready(flags, tables, flags.node, nodes)
        if is_last and not flags.force:
            only = _only(flags.node, flags.namespace, nodes, tables)
            return _no(f"{only}, or give --force, and nobody serves {flags.namespace} until --undo")
        if not tables.nodes.ask(flags.node, REQUEST_NONE if flags.undo else REQUEST_DRAIN):
            return _no(_unknown(flags))
        if is_last and not _await_release(flags, tables, owner):
            return _no(
                f"{flags.node} is asked to take no part, and still owned {flags.namespace} after {flags.timeout:g} s; "
                "`pairbus cluster status` shows when it has given it up"
            )
        if flags.undo or not is_owner or is_last:
            done = "takes part again" if flags.undo else "takes no part"
            if is_last:
                done += f": nobody serves {flags.namespace} until another node starts or `pairbus cluster drain {flags.node} --undo`"
            show({"node": flags.node, "done": done}, flags.as_json, f"{flags.node} {done}")
            return EXIT_DONE
        return _await_owner(flags, tables, owner)


def _forget(flags: DrainFlags, tables: Tables, owner: Ownership, nodes: list[NodeEntry]) -> int:
    """Take a node off the list, unless it is not gone for good."""
    if owner.owner == flags.node and owner.remaining_ms > 0:
        return _no(_owns(flags, owner))
    found = next((one for one in nodes if one.node == flags.node), None)
    if found is None:
        return _no(_unknown(flags))
    runs = f"{flags.node} runs: it would be on the list again in a second; stop it first"
    if is_reporting(found):
        return _no(runs)
    if found.state != STOPPED:
        # It is only silent, and may have been held up in the database until now, as this command may have been.
        if _reports_again(tables, flags.node):
            return _no(runs)
        if held_up := tables.nodes.held_up():
            return _no(
                f"{flags.node} may run: {_waits(held_up)}, and no node can report meanwhile. {_repeat(held_up)}"
            )
        owner = tables.lease.look()
    if owner.owner == flags.node and owner.remaining_ms > 0:
        return _no(_owns(flags, owner))
    # What was read before is asked again with the removal: a report may have come since.
    if not tables.nodes.forget(flags.node, found.age_ms):
        return _no(runs)
    is_owned = owner.owner not in ("", MOVER) and owner.remaining_ms > 0
    done = "is forgotten"
    if found.asked == REQUEST_DRAIN:
        done += ", and so is its drain: it takes part if it is started again"
    if not is_owned:
        done += f"; no node owns {flags.namespace} now"
    show({"node": flags.node, "done": done}, flags.as_json, f"{flags.node} {done}")
    return EXIT_DONE


def _owns(flags: DrainFlags, owner: Ownership) -> str:
    return (
        f"{flags.node} owns {flags.namespace}, and its lease lasts another {owner.remaining_ms / 1000:.1f} s: stop it first; "
        "if it was killed, repeat the command once the lease has ended"
    )


def _reports_again(tables: Tables, node: str) -> bool:
    """Whether a node that looks gone reports within the time in which every node does that the database answers."""

    def has_reported() -> bool:
        return any(one.node == node and is_reporting(one) for one in tables.nodes.nodes())

    with status(f"watching whether {node} reports …"):
        return _wait(has_reported, SILENT_SECONDS)


def _waits(held_up: Sequence[HeldUp]) -> str:
    """That calls wait in the database, and for what; empty: none does."""
    words = waits_in_words(held_up)
    return f"calls wait in the database {words}" if words else ""


def _held_lease(tables: Tables, owner: Ownership) -> str:
    """Why nothing follows from the end of a lease: its renewal may wait; empty: nothing waits, or no lease has ended."""
    if owner.owner in ("", MOVER) or owner.remaining_ms > 0 or not (held_up := tables.nodes.held_up()):
        return ""
    return (
        f"the lease of {owner.owner} has ended, but {_waits(held_up)}, and {owner.owner} may go on afterwards. Nothing was changed. "
        f"{_repeat(held_up)}"
    )


def _unknown(flags: DrainFlags) -> str:
    return f"{flags.namespace} has no node {flags.node!r}; `pairbus cluster status` lists them"


def _no(why: str) -> int:
    click.echo(f"pairbus: {why}", err=True)
    return EXIT_NO


def _others(nodes: list[NodeEntry], node: str) -> list[NodeEntry]:
    """The nodes that would take the namespace from this one."""
    return [one for one in nodes if one.node != node and is_reporting(one) and one.asked != REQUEST_DRAIN]


def _await_ready(flags: MoveFlags, tables: Tables, owner: str, nodes: list[NodeEntry]) -> bool:
    """Wait until a node that would take the namespace reports once more. False: none does, for all that the database knows of them.

    One that is paused, or cut off from the database, still looks alive for some seconds.
    """
    before = {one.node: one.age_ms for one in _others(nodes, owner)}
    began = time.monotonic()

    def has_reported() -> bool:
        waited_ms = (time.monotonic() - began) * 1000
        # The age of an old report grows with the time that was waited.
        return any(
            one.node in before and one.age_ms < before[one.node] + waited_ms - REPORT_SLACK_MS
            for one in _others(tables.nodes.nodes(), owner)
        )

    with status("waiting for another node to report …"):
        return bool(before) and _wait(has_reported, min(flags.timeout, READY_SECONDS))


def _only(node: str, namespace: str, nodes: list[NodeEntry], tables: Tables) -> str:
    late = ", ".join(f"{one.node} {one.age_ms / 1000:.1f} s" for one in _others(nodes, node))
    why = f" (no other node reports; the last reports were {late} ago)" if late else ""
    if held_up := tables.nodes.held_up():
        return f"no other node of {namespace} than {node} reports: {_waits(held_up)}. {_repeat(held_up)}"
    return f"{node} is the only node of {namespace} that takes part{why}: start another one first"


def _await_release(flags: DrainFlags, tables: Tables, before: Ownership) -> bool:
    """Wait until the only node has given the lease back; False: not in time."""

    def is_released() -> bool:
        found = tables.lease.look()
        return not found.owner or found.remaining_ms <= 0 or found.epoch != before.epoch

    with status(f"waiting for {flags.node} to give {flags.namespace} up …"):
        return _wait(is_released, flags.timeout)


def _await_owner(flags: MoveFlags, tables: Tables, before: Ownership) -> int:
    found: list[Ownership] = []

    def is_served() -> bool:
        found[:] = [tables.lease.look()]
        return found[0].epoch != before.epoch and bool(found[0].address)

    with status(f"waiting for another node to serve {flags.namespace} …"):
        is_done = _wait(is_served, flags.timeout)
    if not is_done or found[0].owner == before.owner:  # nobody else was there, so the former owner came back
        if not is_done and found[0].owner not in ("", before.owner) and found[0].epoch != before.epoch:
            return _no(f"{found[0].owner} takes {flags.namespace}, and does not serve it yet; {SHOWS}")
        if isinstance(flags, DrainFlags):
            tables.nodes.ask(flags.node, REQUEST_NONE)
        return _no(_not_moved(flags, found[0], before, _waits(tables.nodes.held_up())))
    owner = found[0]
    show(
        {"owner": owner.owner, "epoch": owner.epoch, "before": before.owner},
        flags.as_json,
        f"{owner.owner} owns {flags.namespace} now (epoch {owner.epoch}); before: {before.owner}",
    )
    return EXIT_DONE


def _not_moved(flags: MoveFlags, owner: Ownership, before: Ownership, waits: str) -> str:
    came_back = owner.owner == before.owner and owner.epoch != before.epoch
    bound = "" if came_back else f" within {flags.timeout:g} s"
    head = f"no other node took {flags.namespace}{bound}" + (f", while {waits}" if waits else "")
    if isinstance(flags, DrainFlags):
        return f"{head}, so {flags.node} takes part again; {SHOWS}"
    if came_back:
        return f"{head}: {owner.owner} gave it up, and after a moment serves it again (epoch {owner.epoch}); {SHOWS}"
    return f"{head}; {SHOWS}"


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True
