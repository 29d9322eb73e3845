"""``pairbus serve``: one namespace until stopped."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal

import click

from pairbus.cli.kit.options import command, option, values_of
from pairbus.server.config.options import AMQP_ADDRESS_DEFAULT, HTTP_ADDRESS_DEFAULT
from pairbus.server.logs.message_audit import RETENTION_DAYS as AUDIT_DAYS
from pairbus.server.logs.usage import RETENTION_DAYS as USAGE_DAYS

if TYPE_CHECKING:
    from pathlib import Path

    from pairbus.server.ready import ReadyInfo

EPILOG: Final = """\b
Examples:
  pairbus serve
  pairbus serve --namespace contoso --data ./contoso --amqp 127.0.0.1:0 --ready-file ready.json
  pairbus serve --config Config.json --log-format json
  pairbus serve --amqp 0.0.0.0:5671 --tls-name broker.example.com

\b
Exit codes: 0 stopped by a signal, 2 wrong usage or configuration,
3 an address or the data is taken, or the store failed.
"""


@dataclass(frozen=True, kw_only=True)
class BrokerFlags:
    """What ``make_options`` takes, by the same names."""

    namespace: str | None = option(
        "Name of the namespace.  [default: the configuration's, or local]", metavar="NAME"
    )
    data: str | None = option(
        "Where the namespace keeps its files.  [default: the user's data directory]", metavar="DIR"
    )
    amqp: str = option(
        "The one address: AMQP, TLS, HTTP and WebSocket. Port 0 takes a free one.",
        AMQP_ADDRESS_DEFAULT,
        metavar="HOST:PORT",
    )
    http: str = option(
        "A second address for HTTP(S) alone; 'off' for none.", HTTP_ADDRESS_DEFAULT, metavar="HOST:PORT"
    )
    store: str | None = option(
        "memory: to keep nothing.  [default: files in the data directory]", metavar="URL"
    )
    tls_cert: str | None = option("Certificate chain (PEM) instead of the broker's own.", metavar="FILE")
    tls_key: str | None = option("Its private key (PEM).", metavar="FILE")
    tls_names: tuple[str, ...] = option(
        "A further name for the own certificate.", (), flag="--tls-name", metavar="NAME"
    )
    tls: bool = option("Without TLS only this machine is served.", True, flag="--tls/--no-tls")
    config: str | None = option(
        "Entities, access rules and quotas (JSON; the emulator's format works).", metavar="FILE"
    )
    ready_file: str | None = option(
        "Written when it serves: one JSON object with addresses and keys.", metavar="FILE"
    )
    faults: bool = option("Offer the fault switchboard at /$faults.", False)
    audit: bool = option("Write the audit log of messages, the input of reconcile.", False)
    usage_days: int = option("How many days of usage files are kept.", USAGE_DAYS, minimum=1)
    audit_days: int = option("How many days of the audit log of messages are kept.", AUDIT_DAYS, minimum=1)
    connections_max: int | None = option("Connections served at once.  [default: 10000]", minimum=1)


@dataclass(frozen=True, kw_only=True)
class ServeFlags(BrokerFlags):
    log_format: Literal["text", "json"] = option("Form of the log lines.", "text")
    log_level: Literal["debug", "info", "warning", "error"] = option("Least level of the log lines.", "info")


@command(ServeFlags, EPILOG)
def serve(flags: ServeFlags) -> int:
    """Serve one namespace until stopped (SIGTERM or Ctrl-C).

    Azure Service Bus clients connect with the connection string, which is shown on a terminal, kept in the file ready.json of the data
    directory, and printed again by `pairbus connection-string`. Management, /health and the live page (at /) are on the same
    port. Plain text is served to this machine only, TLS to everybody.
    """
    from pairbus.server.assemble import assemble
    from pairbus.server.config.options import make_options
    from pairbus.server.logs.format import configure_logging
    from pairbus.server.main import run
    from pairbus.web.page import Page

    configure_logging(flags.log_format, flags.log_level)
    given = values_of(flags, *(one.name for one in fields(BrokerFlags)))
    options = make_options(**given, environment=os.environ)
    page = Page()
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
