"""``pairbus entity``: queues, topics, subscriptions and rules of any Service Bus namespace.

Everything goes through the official administration client, so it works on Azure as it does here. Settings have the
client's names (``lock_duration=PT30S``). Keys of access rules are never printed.
"""

from __future__ import annotations

import json
import os
from typing import IO, TYPE_CHECKING, Any, Final

import click

from pairbus.cli.entity_target import QUEUE_OR_TOPIC, administration_client, find_target
from pairbus.cli.entity_work import (
    KINDS,
    create_entity,
    delete_entity,
    inert,
    read_entity,
    rows_of,
    settings_of,
    told_of,
    update_entity,
)
from pairbus.cli.refusal import one_line, way_out
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure.servicebus.management import ServiceBusAdministrationClient

EPILOG: Final = """\b
Examples:
  pairbus entity list
  pairbus entity create queue orders --set lock_duration=PT30S --set max_delivery_count=5
  pairbus entity create topic events
  pairbus entity create subscription events/Subscriptions/audit
  pairbus entity create rule events/Subscriptions/audit/Rules/red --filter "colour = 'red'"
  pairbus entity show orders --json
  pairbus entity update orders --set status=SendDisabled
  pairbus entity delete orders

\b
The namespace is named by PAIRBUS_PRIMARY (a connection string) or --ready-file.
Exit codes: 0 done, 1 there is no such entity or there is one already, 2 wrong usage,
3 could not reach the namespace or it refused.
"""


class Refused(click.ClickException):
    """The namespace could not be asked, or will not do it."""

    exit_code = 3

    def show(self, file: IO[str] | None = None) -> None:
        """One line for a person."""
        click.echo(f"pairbus: {inert(self.message)}", file=file, err=file is None)


class Missing(Refused):
    """There is no such entity."""

    exit_code = 1


class Present(Refused):
    """There is one already."""

    exit_code = 1


@click.group(epilog=EPILOG)
@click.option(
    "--connection-string",
    metavar="CS",
    envvar="PAIRBUS_PRIMARY",
    help="The namespace.  [env: PAIRBUS_PRIMARY]",
)
@click.option("--ready-file", metavar="FILE", help="A broker's ready file, instead of a connection string.")
@click.option(
    "--ca-file",
    metavar="FILE",
    help="Whom to trust.  [default: a local broker's own authority, else the system's]",
)
@click.pass_context
def entity(
    ctx: click.Context, connection_string: str | None, ready_file: str | None, ca_file: str | None
) -> None:
    """Work on the queues, topics, subscriptions and rules of a namespace.

    A PATH is a queue or topic, topic/Subscriptions/name or topic/Subscriptions/name/Rules/name.
    """
    options: dict[str, Any] = ctx.obj if isinstance(ctx.obj, dict) else {}
    ctx.obj = (connection_string, ready_file, ca_file, options)


@entity.command("list", epilog="\b\nExamples:\n  pairbus entity list\n  pairbus entity list events --json\n")
@click.argument("path", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.pass_obj
def list_entities(given: tuple[Any, ...], path: str | None, as_json: bool) -> None:
    """List queues and topics; with a topic's PATH its subscriptions, with a subscription's its rules."""
    rows = _run(given, lambda client: rows_of(client, path))
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo("  ".join(f"{inert(value):<12}" for value in row.values()).rstrip())


@entity.command(
    epilog="\b\nExamples:\n  pairbus entity show orders\n  pairbus entity show events/Subscriptions/audit --json\n"
)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def show(given: tuple[Any, ...], path: str, as_json: bool) -> None:
    """Show the settings and counts of PATH."""
    target = find_target(path)
    kind, properties, counts = _run(given, lambda client: read_entity(client, target))
    told = {"path": path, "kind": kind, **told_of(properties), **told_of(counts)}
    if as_json:
        click.echo(json.dumps(told))
        return
    for name, value in told.items():
        click.echo(f"{name:<48} {inert(value)}")


@entity.command(
    epilog="\b\nExamples:\n  pairbus entity create queue orders --set lock_duration=PT30S\n  pairbus entity create topic events\n"
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("path")
@click.option(
    "--set", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting, by the official client's name."
)
@click.option("--filter", "expression", metavar="SQL", help="A rule's filter.  [default: every message]")
@click.option("--action", metavar="SQL", help="A rule's action.")
@click.option("--if-missing", is_flag=True, help="Done if it exists already.")
@click.pass_obj
def create(
    given: tuple[Any, ...],
    kind: str,
    path: str,
    pairs: tuple[str, ...],
    expression: str | None,
    action: str | None,
    if_missing: bool,
) -> None:
    """Create a queue, topic, subscription or rule at PATH."""
    target = find_target(path)
    if target.kind != (QUEUE_OR_TOPIC if kind in KINDS[:2] else kind):
        raise UsageError(f"{path} is the path of a {target.kind}, not of a {kind}")
    if (expression or action) and kind != "rule":
        raise UsageError("--filter and --action are for rules")
    try:
        _run(
            given, lambda client: create_entity(client, kind, target, settings_of(pairs), expression, action)
        )
    except Present:
        if not if_missing:
            raise
    click.echo(f"{kind} {path}")


@entity.command(epilog="\b\nExample:\n  pairbus entity update orders --set status=SendDisabled\n")
@click.argument("path")
@click.option(
    "--set", "pairs", metavar="NAME=VALUE", multiple=True, required=True, help="A setting; empty clears it."
)
@click.pass_obj
def update(given: tuple[Any, ...], path: str, pairs: tuple[str, ...]) -> None:
    """Change settings of PATH; what is not named stays. Locks on its messages are lost, as on Service Bus."""
    target = find_target(path)
    settings = settings_of(pairs)
    if target.kind == "rule":
        raise UsageError("a rule is replaced by deleting and creating it")
    kind = _run(given, lambda client: update_entity(client, target, settings))
    click.echo(f"{kind} {path}")


@entity.command(epilog="\b\nExample:\n  pairbus entity delete orders --if-exists\n")
@click.argument("path")
@click.option("--if-exists", is_flag=True, help="Done if there is none.")
@click.pass_obj
def delete(given: tuple[Any, ...], path: str, if_exists: bool) -> None:
    """Delete PATH with everything in it."""
    target = find_target(path)
    try:
        _run(given, lambda client: delete_entity(client, target))
    except Missing:
        if not if_exists:
            raise
    click.echo(path)


# --- what the commands do ---------------------------------------------------------------------------


def _run(given: tuple[Any, ...], work: Callable[[ServiceBusAdministrationClient], Any]) -> Any:
    """Do some work with a client; its errors become one line and an exit code."""
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        ResourceExistsError,
        ResourceNotFoundError,
    )

    connection_string, ready_file, ca_file, options = given
    with administration_client(connection_string, ready_file, ca_file, os.environ, options) as client:
        try:
            return work(client)
        except ResourceNotFoundError as error:
            raise Missing(error.message) from None
        except ResourceExistsError as error:
            raise Present(error.message) from None
        except ClientAuthenticationError as error:
            raise Refused(f"{error.message.rstrip('.')}. Check the key in the connection string.") from None
        except AzureError as error:
            raise Refused(way_out(error) or one_line(error)) from None
