"""What the pairing commands share: whose backlog, and how errors of the official client reach a person."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from pairbus.cli.refusal import one_line, way_out
from pairbus.errors import PairingError, UsageError

_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def pair_options(command: _Command) -> _Command:
    """``--primary``, ``--secondary`` and ``--namespace``, from the environment unless given."""
    for option in (
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


def needed(value: str | None, name: str) -> str:
    """A connection string that must be there."""
    if not value:
        raise UsageError(f"no {name} namespace: set PAIRBUS_{name.upper()} to its connection string")
    return value


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run to the end; what the namespace refuses becomes one line for a person."""
    from azure.core.exceptions import AzureError

    # The client logs every failed attempt; the command says what came of it.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    try:
        return asyncio.run(work)
    except AzureError as error:
        raise PairingError(way_out(error) or f"the namespace refused: {one_line(error)}") from error
