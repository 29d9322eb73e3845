"""What the pairing commands share: whose backlog, and how errors of the official client reach a person."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pairbus.cli.kit.errors import one_line, way_out
from pairbus.cli.kit.namespace import connection_of
from pairbus.errors import PairingError, UsageError

if TYPE_CHECKING:
    from pairbus.pairing.statistics import Counters

_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def pair_options(command: _Command) -> _Command:
    """``--primary``, ``--secondary``, ``--namespace`` and ``--ca-file``, from the environment unless given."""
    for option in (
        click.option(
            "--ca-file",
            "ca_files",
            metavar="FILE",
            multiple=True,
            help="An authority to trust besides the public ones; once for each.  [default: a local broker's own]",
        ),
        click.option(
            "--namespace", metavar="NAME", help="The primary's own name, when its connection string lacks it."
        ),
        click.option(
            "--secondary",
            metavar="CS",
            envvar="PAIRBUS_SECONDARY",
            help="The secondary.  [env: PAIRBUS_SECONDARY]",
        ),
        click.option(
            "--primary", metavar="CS", envvar="PAIRBUS_PRIMARY", help="The primary.  [env: PAIRBUS_PRIMARY]"
        ),
    ):
        command = option(command)
    return command


def home_text(counters: Counters) -> str:
    """How a drain ended, in a few words."""
    is_one = counters.restored == 1
    return f"{counters.restored} {'message is' if is_one else 'messages are'} home, {counters.set_aside} set aside"


def needed(value: str | None, name: str) -> str:
    """A connection string that must be there."""
    if not value:
        raise UsageError(f"no {name} namespace: set PAIRBUS_{name.upper()} to its connection string")
    return value


def authorities(ca_files: Iterable[str], *connection_strings: str | None) -> str:
    """The text of the authorities to trust: as given, else those that local brokers made for themselves."""
    from pairbus.sdk.trust import read_authorities

    files = list(ca_files)
    if not files:
        known = (connection_of(text, None, None, os.environ)[1] for text in connection_strings if text)
        files = sorted({file for file in known if file is not None})
    return read_authorities(files)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run to the end; what the namespace refuses becomes one line for a person."""
    from azure.core.exceptions import AzureError

    # The client logs every failed attempt; the command says what came of it.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    try:
        return asyncio.run(work)
    except AzureError as error:
        raise PairingError(way_out(error) or f"the namespace refused: {one_line(error)}") from error
