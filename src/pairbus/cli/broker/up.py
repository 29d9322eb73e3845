"""``pairbus up``: a pair on this machine, with the syphon and a page that shows both sides."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pairbus.errors import BrokerNotReady, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pairbus.local.pair import Member, UpInfo, UpOptions
    from pairbus.pairing.client.sync import PairedServiceBusClient
    from pairbus.web.hub import Hub

EPILOG: Final = """\b
Examples:
  pairbus up
  pairbus up --config Config.json
  pairbus up --audit
  pairbus up --primary-address 127.0.0.1:0 --secondary-address 127.0.0.1:0 --page 127.0.0.1:0 --json

\b
Sign in to the page with either connection string. The data stay: the next `pairbus up` goes on with them. With --audit
`pairbus reconcile` can prove afterwards what arrived; with the fault switchboard `pairbus drill` can hold a game day.
Exit codes: 0 stopped by a signal, 2 wrong usage, 3 an address is taken or a namespace could not start.
"""
EXIT_REFUSED: Final = 3


@click.command(epilog=EPILOG)
@click.option(
    "--data", metavar="DIR", help="Where the pair keeps its files.  [default: the user's data directory]"
)
@click.option("--primary", default="primary", show_default=True, metavar="NAME", help="The primary's name.")
@click.option(
    "--secondary", default="secondary", show_default=True, metavar="NAME", help="The secondary's name."
)
@click.option(
    "--primary-address",
    default="127.0.0.1:5672",
    show_default=True,
    metavar="HOST:PORT",
    help="Port 0: any free.",
)
@click.option(
    "--secondary-address", default="127.0.0.1:5673", show_default=True, metavar="HOST:PORT", help="Likewise."
)
@click.option(
    "--page",
    "page_address",
    default="127.0.0.1:5300",
    show_default=True,
    metavar="HOST:PORT",
    help="The page.",
)
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False), help="Entities of the primary, as for serve."
)
@click.option("--queues", type=click.IntRange(1, 100), default=10, show_default=True, help="Backlog queues.")
@click.option(
    "--failover-interval", type=click.FloatRange(0, 3600), default=10.0, show_default=True, metavar="SECONDS"
)
@click.option(
    "--restart-after",
    type=click.FloatRange(0, 3600),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a namespace that died stays away.",
)
@click.option("--faults/--no-faults", default=True, show_default=True, help="Offer the fault switchboard.")
@click.option("--audit", is_flag=True, help="Write the audit logs of messages, the input of reconcile.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of sentences.")
def up(
    data: str | None,
    primary: str,
    secondary: str,
    primary_address: str,
    secondary_address: str,
    page_address: str,
    config: str | None,
    queues: int,
    failover_interval: float,
    restart_after: float,
    faults: bool,
    audit: bool,
    as_json: bool,
) -> int:
    """Run two paired namespaces, the syphon and a page for both, until stopped (SIGTERM or Ctrl-C)."""
    from pairbus.local.pair import UpOptions
    from pairbus.server.config.options import default_data_directory

    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("pairbus").setLevel(logging.CRITICAL)
    options = UpOptions(
        data=(Path(data) if data is not None else default_data_directory(os.environ) / "up").absolute(),
        primary=primary,
        secondary=secondary,
        primary_address=primary_address,
        secondary_address=secondary_address,
        page_address=page_address,
        config=Path(config) if config is not None else None,
        queues=queues,
        failover_interval=timedelta(seconds=failover_interval),
        restart_seconds=restart_after,
        faults=faults,
        audit=audit,
    )
    try:
        return asyncio.run(_run(options, as_json=as_json))
    except BrokerNotReady as error:
        click.echo(f"pairbus: {error}", err=True)
    except OSError as error:
        reason = (
            "another program listens there"
            if error.errno == errno.EADDRINUSE
            else (error.strerror or str(error)).lower()
        )
        click.echo(f"pairbus: --page {page_address}: {reason}; choose another address, or port 0", err=True)
    return EXIT_REFUSED


async def _run(options: UpOptions, *, as_json: bool) -> int:
    from pairbus.local.pair import RunningPair

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with RunningPair(options, lambda line: click.echo(line, err=True), _page) as pair:
        if pair.info is None:
            raise UsageError("the pair did not start")
        click.echo(json.dumps(asdict(pair.info)) if as_json else _sentences(pair.info))
        await pair.watch(stop)
        click.echo("stopping", err=True)
    return 0


def _page(client: PairedServiceBusClient, journal: Path, members: Sequence[Member]) -> Hub:
    from pairbus.web.board import Board
    from pairbus.web.hub import Hub, Side

    board = Board(client, journal)
    sides = [
        Side(
            id=member.role,
            name=member.name,
            role=member.role,
            http=member.ready.http,
            connection_string=member.ready.connection_string,
        )
        for member in members
        if member.ready is not None
    ]
    return Hub(sides, picture=board.picture, send=board.send)


def _sentences(info: UpInfo) -> str:
    proof = f"""
  afterwards, the proof of what arrived:
  pairbus reconcile --sent {info.primary_data} --sent {info.secondary_data} \\
      --received {info.primary_data} --backlog {info.secondary_data}
"""
    return f"""PairBus is up.

  page       {info.page}   (sign in with either connection string)
  CA files   {info.primary_ca_file}
             {info.secondary_ca_file}   (for TLS and the administration client)

  export PAIRBUS_PRIMARY='{info.primary}'
  export PAIRBUS_SECONDARY='{info.secondary}'
  export PAIRBUS_JOURNAL='{info.journal}'
{proof if info.audit else ""}
A program that makes a PairedServiceBusClient of these two connection strings goes through the pair; with
PAIRBUS_JOURNAL set its entities show on the page.
Ctrl-C stops everything; the data stay in {info.data}."""
