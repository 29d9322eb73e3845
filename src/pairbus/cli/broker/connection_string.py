"""``pairbus connection-string``: how to connect to a namespace whose data are on this machine, running or not."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from pairbus.server.ready import ReadyInfo

EPILOG: Final = """\b
Examples:
  pairbus connection-string
  pairbus connection-string --data ./contoso
  export PAIRBUS_PRIMARY="$(pairbus connection-string --namespace contoso)"
  pairbus connection-string --json

\b
The key opens everything in the namespace: whoever can read the data directory can print it.
Exit codes: 0 printed, 2 wrong usage, 3 there is no data, or it cannot be read.
"""


@click.command("connection-string", epilog=EPILOG)
@click.option(
    "--data", metavar="DIR", help="The namespace's data directory.  [default: in the user's data directory]"
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="local",
    show_default=True,
    help="Whose connection string, without --data.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def connection_string_command(data: str | None, namespace: str, as_json: bool) -> int:
    """Print the connection string of a namespace that is served from this machine.

    It works while the broker runs and while it is stopped. A stopped broker's connection string has the address it was last served at.
    """
    from pairbus.server.config.options import default_data_directory
    from pairbus.server.offline.namespace import last_ready

    directory = Path(data) if data is not None else default_data_directory(os.environ) / namespace
    ready, is_running = last_ready(directory)
    if as_json:
        click.echo(json.dumps({**_shown(ready), "running": is_running}))
        return 0
    click.echo(ready.connection_string)
    if not is_running:
        again = [
            "pairbus",
            "serve",
            "--namespace",
            ready.namespace,
            "--data",
            str(directory),
            "--amqp",
            ready.amqp,
        ]
        click.echo(f"pairbus: not running; start it with: {shlex.join(again)}", err=True)
    return 0


def _shown(ready: ReadyInfo) -> dict[str, object]:
    shown: dict[str, object] = json.loads(ready.to_json())
    return shown
