"""``pairbus up``: a pair on this machine, with the syphon and a page that shows both sides."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.kit.namespace import data_directory
from pairbus.cli.kit.options import command, json_option, option, values_of
from pairbus.cli.kit.output import show, silence_logs
from pairbus.cli.kit.places import check_directory
from pairbus.errors import BrokerNotReady
from pairbus.local.options import UpOptions, UpSettings
from pairbus.server.config.options import load_declarations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pairbus.local.pair import Member, UpInfo
    from pairbus.pairing.client.sync import PairedServiceBusClient
    from pairbus.web.pair_page import PairPageServer

EPILOG: Final = """\b
Examples:
  pairbus up
  pairbus up --config Config.json
  pairbus up --audit
  pairbus up --store postgresql://pairbus@localhost/pairbus --nodes 2
  pairbus up --primary-address 127.0.0.1:0 --secondary-address 127.0.0.1:0 --page 127.0.0.1:0 --json

\b
Sign in to the page with either connection string. With --store the database keeps both namespaces, each under its name; with
--nodes 2 the connection strings list two addresses, which PairBus's own clients take. The data stay: the next `pairbus up` uses them again. With --audit
`pairbus reconcile` can prove afterwards what arrived; with the fault switchboard `pairbus drill` can test the pair.
Exit codes: 0 stopped by a signal, 2 wrong usage, 3 an address is taken or a namespace could not start.
"""
EXIT_REFUSED: Final = 3


@dataclass(frozen=True, kw_only=True)
class UpFlags(UpSettings):
    data: str | None = option(
        "Directory for the pair's files.  [default: the user's data directory]", metavar="DIR"
    )
    as_json: bool = json_option("Print one JSON object instead of sentences.")


@command(UpFlags, EPILOG)
def up(flags: UpFlags) -> int:
    """Run two paired namespaces, the syphon and a live page, until stopped (SIGTERM or Ctrl-C)."""
    silence_logs("azure", "pairbus")
    options = UpOptions(data=data_directory("up", flags.data).absolute(), **values_of(flags, UpSettings))
    check_directory(str(options.data), "--data")
    if options.config is not None:
        load_declarations(str(options.config), os.environ)  # the broker would name its own copy of the file
    try:
        return asyncio.run(_run(options, as_json=flags.as_json))
    except BrokerNotReady as error:
        click.echo(f"pairbus: {error}", err=True)
    return EXIT_REFUSED


async def _run(options: UpOptions, *, as_json: bool) -> int:
    from pairbus.local.pair import RunningPair

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with RunningPair(options, lambda line: click.echo(line, err=True), _page) as pair:
        assert pair.info is not None
        show(asdict(pair.info), as_json, _sentences(pair.info))
        await pair.watch(stop)
        click.echo("stopping", err=True)
    return 0


def _page(client: PairedServiceBusClient, journal: Path, members: Sequence[Member]) -> PairPageServer:
    from pairbus.web.pair_page import PairPageServer, Side
    from pairbus.web.pairing_view import PairingView

    view = PairingView(client, journal)
    sides: dict[str, Side] = {}
    for member in members:
        assert member.ready is not None
        ready, known = member.ready, sides.get(member.role)
        sides[member.role] = Side(
            id=member.role,
            name=member.name,
            role=member.role,
            http=ready.http if known is None else known.http,
            connection_string=ready.connection_string if known is None else known.connection_string,
            others=() if known is None else (*known.others, ready.http),
        )
    return PairPageServer([*sides.values()], snapshot=view.snapshot, send=view.send)


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
