"""``pairbus connection-string``: how to connect to a namespace whose data are on this machine or in a database, running or not."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Final

import click

from pairbus.cli.kit.namespace import data_directory
from pairbus.cli.kit.options import command, json_option, option
from pairbus.cli.kit.output import show
from pairbus.errors import StoreUnavailable, UsageError

EPILOG: Final = """\b
Examples:
  pairbus connection-string
  pairbus connection-string --data ./contoso
  export PAIRBUS_PRIMARY="$(pairbus connection-string --namespace contoso)"
  pairbus connection-string --json
  pairbus connection-string --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso
  pairbus connection-string --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso --node node-1

\b
The key gives all rights on the namespace. Every user who can read the data directory, or the database, can print it.
With --store it lists the addresses of all nodes, which PairBus's own clients and commands take; the official clients take
one address: give --node, or put one name for all nodes in its place.
Exit codes: 0 printed, 2 wrong usage, 3 there is no data, or it cannot be read.
"""


@dataclass(frozen=True, kw_only=True)
class ConnectionStringFlags:
    data: str | None = option(
        "The namespace's data directory.  [default: in the user's data directory]", metavar="DIR"
    )
    namespace: str = option("Name of the namespace, if --data is not given.", "local", metavar="NAME")
    store: str | None = option(
        "The database that keeps the namespace, if --data is not given.  [env: PAIRBUS_STORE]",
        metavar="URL",
        envvar="PAIRBUS_STORE",
    )
    node: str | None = option("With --store: the address of this node alone.", metavar="NAME")
    as_json: bool = json_option()


@command(ConnectionStringFlags, EPILOG, name="connection-string")
def connection_string(flags: ConnectionStringFlags) -> int:
    """Print the connection string of a namespace that is served from this machine, or from a database.

    It works while the broker runs and while it is stopped. A stopped broker's connection string has the address it was last served at.
    """
    from pairbus.server.offline.namespace import last_ready

    if flags.store is not None and flags.data is None:
        return _from_database(flags, flags.store)
    if flags.node is not None:
        raise UsageError("--node chooses among the nodes of a database: add --store, or leave --node out")
    directory = data_directory(flags.namespace, flags.data)
    ready, is_running = last_ready(directory)
    show({**json.loads(ready.to_json()), "running": is_running}, flags.as_json, ready.connection_string)
    if not is_running and not flags.as_json:
        serve = ["pairbus", "serve", "--namespace", ready.namespace, "--data", str(directory)]
        serve += ["--store", "…", "--node", ready.node] if ready.node is not None else []
        click.echo(
            f"pairbus: not running; start it with: {shlex.join([*serve, '--amqp', ready.amqp])}", err=True
        )
    return 0


def _from_database(flags: ConnectionStringFlags, url: str) -> int:
    from pairbus.server.cluster.joining import joined_connection_string
    from pairbus.server.cluster.status import waits_in_words
    from pairbus.storage.postgres.opening import ANSWER_SECONDS_MAX, find_database, is_database

    if not is_database(url):
        raise UsageError("--store must name a database, such as postgresql://pairbus@db-1,db-2/pairbus")
    database = find_database(url, flags.namespace, ANSWER_SECONDS_MAX)
    target = database.moved_to()
    if target is not None:
        raise StoreUnavailable(
            f"namespace {flags.namespace} was moved from {database} to {target}: ask for its connection string there"
        )
    nodes, settings = database.nodes(), database.settings()
    try:
        text, names, is_served = joined_connection_string(
            flags.namespace, nodes.nodes(), settings, flags.node
        )
        waits = waits_in_words(nodes.held_up())
    finally:
        nodes.close()
        settings.close()
    shown = {
        "namespace": flags.namespace,
        "connection_string": text,
        "nodes": names,
        "running": is_served,
    }
    show(shown, flags.as_json, text)
    if waits and not flags.as_json:
        click.echo(
            f"pairbus: calls wait in the database {waits}, so nodes that run may not be listed: ask again once nothing waits there",
            err=True,
        )
    elif not is_served and not flags.as_json:
        click.echo(
            "pairbus: no node has reported in the last seconds; these are the addresses they had", err=True
        )
    return 0
