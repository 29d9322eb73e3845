"""``pairbus connection-string``: how to connect to a namespace whose data are on this machine, running or not."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Final

import click

from pairbus.cli.kit.namespace import data_directory
from pairbus.cli.kit.options import command, json_option, option
from pairbus.cli.kit.output import show

EPILOG: Final = """\b
Examples:
  pairbus connection-string
  pairbus connection-string --data ./contoso
  export PAIRBUS_PRIMARY="$(pairbus connection-string --namespace contoso)"
  pairbus connection-string --json

\b
The key gives all rights on the namespace. Every user who can read the data directory can print it.
Exit codes: 0 printed, 2 wrong usage, 3 there is no data, or it cannot be read.
"""


@dataclass(frozen=True, kw_only=True)
class ConnectionStringFlags:
    data: str | None = option(
        "The namespace's data directory.  [default: in the user's data directory]", metavar="DIR"
    )
    namespace: str = option("Name of the namespace, if --data is not given.", "local", metavar="NAME")
    as_json: bool = json_option()


@command(ConnectionStringFlags, EPILOG, name="connection-string")
def connection_string(flags: ConnectionStringFlags) -> None:
    """Print the connection string of a namespace that is served from this machine.

    It works while the broker runs and while it is stopped. A stopped broker's connection string has the address it was last served at.
    """
    from pairbus.server.offline.namespace import last_ready

    directory = data_directory(flags.namespace, flags.data)
    ready, is_running = last_ready(directory)
    show({**json.loads(ready.to_json()), "running": is_running}, flags.as_json, ready.connection_string)
    if not is_running and not flags.as_json:
        serve = ["pairbus", "serve", "--namespace", ready.namespace, "--data", str(directory)]
        click.echo(
            f"pairbus: not running; start it with: {shlex.join([*serve, '--amqp', ready.amqp])}", err=True
        )
