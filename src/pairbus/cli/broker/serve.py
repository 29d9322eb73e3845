"""``pairbus serve``: one namespace until stopped."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import click

from pairbus.cli.kit.options import command, option
from pairbus.server.config.options import ServeSettings, make_options

if TYPE_CHECKING:
    from pathlib import Path

    from pairbus.server.ready import ReadyInfo

EPILOG: Final = """\b
Examples:
  pairbus serve
  pairbus serve --namespace contoso --data ./contoso --amqp 127.0.0.1:0 --ready-file ready.json
  pairbus serve --config Config.json --log-format json
  pairbus serve --amqp 0.0.0.0:5671 --tls-name broker.example.com
  pairbus serve --store postgresql://pairbus@db-1,db-2/pairbus --namespace contoso --node node-1 \\
      --amqp 0.0.0.0:5671 --advertise node-1.example.com:5671

\b
Exit codes: 0 stopped by a signal, 2 wrong usage or configuration,
3 an address or the data is taken, or the store failed, 4 another node took the namespace (start it again).
"""


@dataclass(frozen=True, kw_only=True)
class ServeFlags(ServeSettings):
    log_format: Literal["text", "json"] = option("Format of the log lines.", "text")
    log_level: Literal["debug", "info", "warning", "error"] = option("Lowest level that is logged.", "info")


@command(ServeFlags, EPILOG)
def serve(flags: ServeFlags) -> int:
    """Serve one namespace until stopped (SIGTERM or Ctrl-C).

    Azure Service Bus clients connect with the connection string, which is shown on a terminal, kept in the file ready.json of the data
    directory, and printed again by `pairbus connection-string`. Management, /health and the live page (at /) are on the same
    port. Plain text is served to this machine only, TLS to everybody.
    """
    from pairbus.server.assemble import assemble
    from pairbus.server.logs.format import configure_logging
    from pairbus.server.main import run, run_node
    from pairbus.web.page import Page

    configure_logging(flags.log_format, flags.log_level)
    options = make_options(flags, os.environ)
    page = Page()
    if options.cluster is not None:
        return run_node(
            options,
            options.cluster,
            page.assembling,
            page=page,
            joined=lambda node: page.join(node.picture),
            announce=lambda ready: _announce(ready, options.data),
        )
    return run(
        options, page.assembling(assemble), page=page, announce=lambda ready: _announce(ready, options.data)
    )


def _announce(ready: ReadyInfo, data: Path) -> None:
    """Tell a person at a terminal how to connect. The key is not written anywhere else, such as a log."""
    if not sys.stdout.isatty():
        return
    authority = f"\n  CA file    {ready.ca_file}   (for TLS: `connection_verify`)" if ready.ca_file else ""
    click.echo(f"""
  namespace  {ready.namespace}
  page       http://{ready.http}/   (sign in with the connection string){authority}

  export PAIRBUS_PRIMARY='{ready.connection_string}'

`pairbus connection-string --data {data}` prints the connection string again. Ctrl-C stops the broker; its data stay.
""")
