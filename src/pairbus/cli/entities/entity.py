"""``pairbus entity``: queues, topics, subscriptions and rules of any Service Bus namespace.

Everything goes through the official administration client, so it works on Azure as it does here. Settings have the
client's names (``lock_duration=PT30S``). Keys of access rules are never printed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.entities.work import (
    KINDS,
    ROW_ORDER,
    create_entity,
    delete_entity,
    displayable,
    read_entity,
    rows_of,
    settings_of,
    update_entity,
)
from pairbus.cli.kit.errors import Missing, Present, Refused, one_line, service_sentence, way_out
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.namespace import (
    QUEUE_OR_TOPIC,
    Target,
    administration_client,
    connection_of,
    find_target,
    shown_namespace,
)
from pairbus.cli.kit.options import argument, command, json_option, option, parameters_of
from pairbus.cli.kit.output import cell, show, table_lines, terminal_columns
from pairbus.errors import UsageError
from pairbus.model.names import subscription_path
from pairbus.model.text import safe_text
from pairbus.sdk.place import errors_of

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


@dataclass(frozen=True, kw_only=True)
class NamespaceFlags:
    """Which namespace is meant. The options count before the subcommand and after it; the later ones win."""

    connection_string: str | None = option("The namespace.  [env: PAIRBUS_PRIMARY]", metavar="CS")
    ready_file: str | None = option("A broker's ready file, instead of a connection string.", metavar="FILE")
    ca_file: str | None = option(
        "Certificate authority to trust.  [default: that of a local broker in the user's data directory, else the system's]",
        metavar="FILE",
    )

    def client(self) -> tuple[ServiceBusAdministrationClient, str]:
        """A client of the namespace, and how errors name the namespace."""
        before, options = click.get_current_context().obj
        connection_string, ca_file = connection_of(
            self.connection_string or before.connection_string,
            self.ready_file or before.ready_file,
            self.ca_file or before.ca_file,
            os.environ,
        )
        return administration_client(connection_string, ca_file, options), shown_namespace(connection_string)


@click.group(cls=HelpfulGroup, epilog=EPILOG, params=parameters_of(NamespaceFlags))
@click.pass_context
def entity(ctx: click.Context, /, **given: Any) -> None:
    """Work on the queues, topics, subscriptions and rules of a namespace.

    A PATH is a queue or topic, topic/Subscriptions/name or topic/Subscriptions/name/Rules/name.
    """
    # An object that is there already holds options for the official client.
    ctx.obj = (NamespaceFlags(**given), ctx.obj or {})


@dataclass(frozen=True, kw_only=True)
class ListFlags(NamespaceFlags):
    path: str | None = argument(required=False)
    as_json: bool = json_option("One JSON array.")


@dataclass(frozen=True, kw_only=True)
class ShowFlags(NamespaceFlags):
    path: str = argument()
    as_json: bool = json_option("One JSON object.")


@dataclass(frozen=True, kw_only=True)
class CreateFlags(NamespaceFlags):
    kind: str = argument(choices=KINDS)
    path: str = argument()
    pairs: tuple[str, ...] = option(
        "A setting, by the official client's name.", (), flag="--set", metavar="NAME=VALUE"
    )
    filter: str | None = option("A rule's filter.  [default: every message]", metavar="SQL")
    action: str | None = option("A rule's action.", metavar="SQL")
    if_missing: bool = option("Succeed if it exists already.", False)


@dataclass(frozen=True, kw_only=True)
class UpdateFlags(NamespaceFlags):
    path: str = argument()
    pairs: tuple[str, ...] = option(
        "A setting; empty clears it.", (), flag="--set", metavar="NAME=VALUE", required=True
    )


@dataclass(frozen=True, kw_only=True)
class DeleteFlags(NamespaceFlags):
    path: str = argument()
    yes: bool = option("Do not ask. Required without a terminal.", False)
    if_exists: bool = option("Succeed if it does not exist.", False)


@command(
    ListFlags,
    "\b\nExamples:\n  pairbus entity list\n  pairbus entity list events --json\n",
    name="list",
    group=entity,
)
def list_entities(flags: ListFlags) -> None:
    """List queues and topics; with a topic's PATH its subscriptions, with a subscription's its rules.

    Active messages include deferred ones, as on Service Bus.
    """
    rows = _run(flags, flags.path, lambda client: rows_of(client, flags.path))
    show(rows, flags.as_json, table_lines(rows, ROW_ORDER, terminal_columns()) if rows else ())
    if not rows and not flags.as_json:
        click.echo(f"nothing in {flags.path or 'the namespace'}: pairbus entity create --help", err=True)


@command(
    ShowFlags,
    "\b\nExamples:\n  pairbus entity show orders\n  pairbus entity show events/Subscriptions/audit --json\n",
    name="show",
    group=entity,
)
def show_entity(flags: ShowFlags) -> None:
    """Show the settings and counts of PATH. Active messages include deferred ones, as on Service Bus."""
    target = find_target(flags.path)
    kind, properties, counts = _run(flags, flags.path, lambda client: read_entity(client, target))
    row = {"path": flags.path, "kind": kind, **displayable(properties), **displayable(counts)}
    show(row, flags.as_json, [f"{name:<48} {cell(value)}" for name, value in row.items()])


@command(
    CreateFlags,
    "\b\nExamples:\n  pairbus entity create queue orders --set lock_duration=PT30S\n  pairbus entity create topic events\n",
    group=entity,
)
def create(flags: CreateFlags) -> None:
    """Create a queue, topic, subscription or rule at PATH."""
    kind, path = flags.kind, flags.path
    target = find_target(path)
    if target.kind != (QUEUE_OR_TOPIC if kind in KINDS[:2] else kind):
        raise UsageError(
            f"{path} is the path of a {target.kind}, not of a {kind}: write {_path_of(kind, target)}"
        )
    if (flags.filter or flags.action) and kind != "rule":
        raise UsageError("--filter and --action are for rules")
    settings = settings_of(flags.pairs)
    # What a creation does not find is what the new one belongs to.
    parent = subscription_path(target.name, target.subscription) if kind == "rule" else target.name
    try:
        _run(
            flags,
            parent,
            lambda client: create_entity(client, kind, target, settings, flags.filter, flags.action),
        )
    except Present as present:
        if not flags.if_missing:
            change = (
                f"to change a rule, pairbus entity delete {path} and create it again"
                if kind == "rule"
                else "pairbus entity update changes its settings"
            )
            raise Present(f"{present.message}: --if-missing accepts that, {change}") from None
        found, _, _ = _run(flags, path, lambda client: read_entity(client, target))
        if found != kind:
            raise Present(
                f"{path} is a {found}, not a {kind}: delete it first, or choose another name"
            ) from None
        click.echo(f"{kind} {path} was there already")
        return
    click.echo(f"created {kind} {path}")


@command(
    UpdateFlags, "\b\nExample:\n  pairbus entity update orders --set status=SendDisabled\n", group=entity
)
def update(flags: UpdateFlags) -> None:
    """Change settings of PATH. Other settings stay. Locks on its messages are lost, as on Service Bus."""
    target = find_target(flags.path)
    settings = settings_of(flags.pairs)
    if target.kind == "rule":
        raise UsageError(f"a rule cannot be updated: pairbus entity delete {flags.path} and create it again")
    kind = _run(flags, flags.path, lambda client: update_entity(client, target, settings))
    click.echo(f"updated {kind} {flags.path}")


@command(
    DeleteFlags,
    "\b\nExamples:\n  pairbus entity delete orders\n  pairbus entity delete orders --yes --if-exists\n",
    group=entity,
)
def delete(flags: DeleteFlags) -> int:
    """Delete PATH and everything in it. Asks first."""
    path = flags.path
    target = find_target(path)
    try:
        kind, _, counts = _run(flags, path, lambda client: read_entity(client, target))
        if not flags.yes and not _agrees(f"Delete {kind} {path}{_contents(counts)}?"):
            click.echo(f"{kind} {path} stays")
            return 1
        _run(flags, path, lambda client: delete_entity(client, target))
    except Missing:
        if not flags.if_exists:
            raise
        return 0
    click.echo(f"deleted {kind} {path}")
    return 0


def _path_of(kind: str, target: Target) -> str:
    """What the path of such an entity looks like."""
    if kind == "subscription":
        return subscription_path(target.name, target.subscription or "NAME")
    if kind == "rule":
        return f"{subscription_path(target.name, target.subscription or 'NAME')}/Rules/NAME"
    return target.name


def _contents(counts: Any) -> str:
    """What is deleted along with an entity, in a few words."""
    found = [
        f"{number:,} {word}{'' if number == 1 else 's'}"
        for name, word in (("total_message_count", "message"), ("subscription_count", "subscription"))
        if (number := getattr(counts, name, None) or 0)
    ]
    return f" with {' and '.join(found)}" if found else ""


def _agrees(question: str) -> bool:
    """Whether a person agrees. Raises UsageError where nobody can be asked."""
    if not is_person_there():
        raise UsageError(f"{question} Nobody can be asked here: give --yes")
    return click.confirm(safe_text(question))


def is_person_there() -> bool:
    """Whether a person can type an answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def _run(
    flags: NamespaceFlags, path: str | None, work: Callable[[ServiceBusAdministrationClient], Any]
) -> Any:
    """Do some work with a client; its errors become one line and an exit code."""
    from azure.core.exceptions import (
        AzureError,
        HttpResponseError,
        ResourceExistsError,
        ResourceNotFoundError,
    )

    opened, namespace = flags.client()
    with opened as client:
        try:
            with errors_of(namespace):
                return work(client)
        except ResourceNotFoundError:
            raise Missing(
                f"there is no entity '{path}' in {namespace}: pairbus entity list shows what exists"
            ) from None
        except ResourceExistsError as error:
            raise Present(f"{namespace}: {service_sentence(error)}") from None
        except HttpResponseError as error:
            raise Refused(way_out(error) or f"{namespace} refused: {service_sentence(error)}") from None
        except AzureError as error:
            raise Refused(way_out(error) or f"{namespace}: {one_line(error)}") from None
