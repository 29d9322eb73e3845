"""``pairbus serve``: one namespace until stopped."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click

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


@click.command(epilog=EPILOG)
@click.option(
    "--namespace", metavar="NAME", help="Name of the namespace.  [default: the configuration's, or local]"
)
@click.option(
    "--data", metavar="DIR", help="Where the namespace keeps its files.  [default: the user's data directory]"
)
@click.option(
    "--amqp",
    metavar="HOST:PORT",
    default="127.0.0.1:5672",
    show_default=True,
    help="The one address: AMQP, TLS, HTTP and WebSocket. Port 0 takes a free one.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    default="127.0.0.1:5300",
    show_default=True,
    help="A second address for HTTP(S) alone; 'off' for none.",
)
@click.option(
    "--store", metavar="URL", help="memory: to keep nothing.  [default: files in the data directory]"
)
@click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM) instead of the broker's own.")
@click.option("--tls-key", metavar="FILE", help="Its private key (PEM).")
@click.option(
    "--tls-name", "tls_names", metavar="NAME", multiple=True, help="A further name for the own certificate."
)
@click.option(
    "--tls/--no-tls", default=True, show_default=True, help="Without TLS only this machine is served."
)
@click.option(
    "--config", metavar="FILE", help="Entities, access rules and quotas (JSON; the emulator's format works)."
)
@click.option(
    "--ready-file", metavar="FILE", help="Written when it serves: one JSON object with addresses and keys."
)
@click.option("--faults", is_flag=True, help="Offer the fault switchboard at /$faults.")
@click.option("--audit", is_flag=True, help="Write the audit log of messages, the input of reconcile.")
@click.option(
    "--usage-days",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    help="How many days of usage files are kept.",
)
@click.option(
    "--audit-days",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    help="How many days of the audit log of messages are kept.",
)
@click.option(
    "--connections-max", type=click.IntRange(min=1), help="Connections served at once.  [default: 10000]"
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def serve(
    namespace: str | None,
    data: str | None,
    amqp: str,
    http: str,
    store: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_names: tuple[str, ...],
    tls: bool,
    config: str | None,
    ready_file: str | None,
    faults: bool,
    audit: bool,
    usage_days: int,
    audit_days: int,
    connections_max: int | None,
    log_format: str,
    log_level: str,
) -> int:
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

    configure_logging(log_format, log_level)
    options = make_options(
        namespace=namespace,
        data=data,
        amqp=amqp,
        http=http,
        store=store,
        tls=tls,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_names=tls_names,
        config=config,
        ready_file=ready_file,
        faults=faults,
        audit=audit,
        usage_days=usage_days,
        audit_days=audit_days,
        connections_max=connections_max,
        environment=os.environ,
    )
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
