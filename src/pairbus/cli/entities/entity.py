"""``pairbus entity``: queues, topics, subscriptions and rules of any Service Bus namespace.

Everything goes through the official administration client, so it works on Azure as it does here. Settings have the
client's names (``lock_duration=PT30S``). Keys of access rules are never printed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pairbus.cli.entities.work import (
    KINDS,
    create_entity,
    delete_entity,
    read_entity,
    rows_of,
    settings_of,
    table_of,
    told_of,
    update_entity,
)
from pairbus.cli.kit.errors import Missing, Present, Refused, inert, one_line, service_sentence, way_out
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.namespace import QUEUE_OR_TOPIC, administration_client, find_target
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


_Command = TypeVar("_Command", bound="Callable[..., Any]")


class Given:
    """Which namespace is meant. The options count before the subcommand and after it; the later ones win."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.connection_string: str | None = None
        self.ready_file: str | None = None
        self.ca_file: str | None = None
        self.options = options


def namespace_options(command: _Command) -> _Command:
    """``--connection-string``, ``--ready-file`` and ``--ca-file``, kept in the context's object."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if not isinstance(ctx.obj, Given):
            ctx.obj = Given(ctx.obj if isinstance(ctx.obj, dict) else {})
        if value is not None:
            setattr(ctx.obj, str(parameter.name), value)

    for option in (
        click.option(
            "--ca-file",
            metavar="FILE",
            callback=keep,
            expose_value=False,
            help="Certificate authority to trust.  [default: a local broker's own, else the system's]",
        ),
        click.option(
            "--ready-file",
            metavar="FILE",
            callback=keep,
            expose_value=False,
            help="A broker's ready file, instead of a connection string.",
        ),
        click.option(
            "--connection-string",
            metavar="CS",
            callback=keep,
            expose_value=False,
            help="The namespace.  [env: PAIRBUS_PRIMARY]",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=HelpfulGroup, epilog=EPILOG)
@namespace_options
def entity() -> None:
    """Work on the queues, topics, subscriptions and rules of a namespace.

    A PATH is a queue or topic, topic/Subscriptions/name or topic/Subscriptions/name/Rules/name.
    """


@entity.command("list", epilog="\b\nExamples:\n  pairbus entity list\n  pairbus entity list events --json\n")
@click.argument("path", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@namespace_options
@click.pass_obj
def list_entities(given: Given, path: str | None, as_json: bool) -> None:
    """List queues and topics; with a topic's PATH its subscriptions, with a subscription's its rules."""
    rows = _run(given, path, lambda client: rows_of(client, path))
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        click.echo(f"nothing in {path or 'the namespace'}: pairbus entity create --help", err=True)
    for line in table_of(rows) if rows else []:
        click.echo(line)


@entity.command(
    epilog="\b\nExamples:\n  pairbus entity show orders\n  pairbus entity show events/Subscriptions/audit --json\n"
)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@namespace_options
@click.pass_obj
def show(given: Given, path: str, as_json: bool) -> None:
    """Show the settings and counts of PATH."""
    target = find_target(path)
    kind, properties, counts = _run(given, path, lambda client: read_entity(client, target))
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
@namespace_options
@click.pass_obj
def create(
    given: Given,
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
            given,
            path,
            lambda client: create_entity(client, kind, target, settings_of(pairs), expression, action),
        )
    except Present as present:
        if not if_missing:
            raise Present(
                f"{present.message}: --if-missing accepts that, pairbus entity update changes its settings"
            ) from None
        click.echo(f"{kind} {path} was there already")
        return
    click.echo(f"created {kind} {path}")


@entity.command(epilog="\b\nExample:\n  pairbus entity update orders --set status=SendDisabled\n")
@click.argument("path")
@click.option(
    "--set", "pairs", metavar="NAME=VALUE", multiple=True, required=True, help="A setting; empty clears it."
)
@namespace_options
@click.pass_obj
def update(given: Given, path: str, pairs: tuple[str, ...]) -> None:
    """Change settings of PATH; what is not named stays. Locks on its messages are lost, as on Service Bus."""
    target = find_target(path)
    settings = settings_of(pairs)
    if target.kind == "rule":
        raise UsageError("a rule is replaced by deleting and creating it")
    kind = _run(given, path, lambda client: update_entity(client, target, settings))
    click.echo(f"updated {kind} {path}")


@entity.command(
    epilog="\b\nExamples:\n  pairbus entity delete orders\n  pairbus entity delete orders --yes --if-exists\n"
)
@click.argument("path")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where nobody can be asked.")
@click.option("--if-exists", is_flag=True, help="Done if there is none.")
@namespace_options
@click.pass_obj
def delete(given: Given, path: str, yes: bool, if_exists: bool) -> int:
    """Delete PATH with everything in it, after a question."""
    target = find_target(path)
    try:
        kind, _, counts = _run(given, path, lambda client: read_entity(client, target))
        if not yes and not _agrees(f"Delete {kind} {path}{_contents(counts)}?"):
            click.echo(f"{kind} {path} stays")
            return 1
        _run(given, path, lambda client: delete_entity(client, target))
    except Missing:
        if not if_exists:
            raise
        return 0
    click.echo(f"deleted {kind} {path}")
    return 0


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
    return click.confirm(inert(question))


def is_person_there() -> bool:
    """Whether a person can type an answer."""
    return sys.stdin.isatty()


# --- what the commands do ---------------------------------------------------------------------------


def _run(given: Given, path: str | None, work: Callable[[ServiceBusAdministrationClient], Any]) -> Any:
    """Do some work with a client; its errors become one line and an exit code."""
    from azure.core.exceptions import (
        AzureError,
        HttpResponseError,
        ResourceExistsError,
        ResourceNotFoundError,
    )

    with administration_client(
        given.connection_string, given.ready_file, given.ca_file, os.environ, given.options
    ) as client:
        try:
            return work(client)
        except ResourceNotFoundError:
            raise Missing(
                f"there is no entity '{path}' in the namespace: pairbus entity list shows what exists"
            ) from None
        except ResourceExistsError as error:
            raise Present(service_sentence(error)) from None
        except HttpResponseError as error:
            raise Refused(way_out(error) or f"the namespace refused: {service_sentence(error)}") from None
        except AzureError as error:
            raise Refused(way_out(error) or one_line(error)) from None
