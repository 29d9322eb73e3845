"""``pairbus send``, ``receive`` and ``peek``: everyday work on the messages of any Service Bus namespace.

Everything goes through the official client, so it works on Azure as it does here.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, TYPE_CHECKING, Any, Final

import click

from pairbus.cli.entity_target import connection_of, find_target
from pairbus.cli.refusal import one_line, way_out
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

SEND_BATCH: Final = 100
NEXT_SESSION: Final = "*"
SETTLEMENTS: Final = ("complete", "abandon", "defer", "dead-letter", "delete", "none")

SEND_EXAMPLES: Final = """\b
Examples:
  pairbus send orders "hello"
  pairbus send orders --property colour=red --session s1 "hello"
  seq 1000 | pairbus send orders --lines
"""
RECEIVE_EXAMPLES: Final = """\b
Examples:
  pairbus receive orders
  pairbus receive orders --count 10 --settle none --json
  pairbus receive orders/$DeadLetterQueue --settle complete
  pairbus receive events/Subscriptions/audit --session '*'

\b
Exit codes: 0 something was received, 1 there was nothing, 2 wrong usage, 3 could not reach or was refused.
"""
PEEK_EXAMPLES: Final = """\b
Examples:
  pairbus peek orders
  pairbus peek orders --from 1000 --count 50 --json
"""


class Refused(click.ClickException):
    """The namespace could not be asked, or will not do it."""

    exit_code = 3

    def show(self, file: IO[str] | None = None) -> None:
        """One line for a person."""
        click.echo(f"pairbus: {self.message}", file=file, err=file is None)


def _client(ready_file: str | None) -> ServiceBusClient:
    from azure.servicebus import ServiceBusClient

    connection_string, ca_file = connection_of(None, ready_file, None, os.environ)
    settings: dict[str, Any] = {"retry_total": 1, "logging_enable": False}
    if ca_file is not None:
        settings["connection_verify"] = ca_file
    try:
        return ServiceBusClient.from_connection_string(connection_string, **settings)
    except ValueError:
        # The client's text may repeat the string; the way out is the same for every fault in it.
        raise UsageError(
            "the connection string cannot be used: it needs Endpoint, SharedAccessKeyName and SharedAccessKey"
        ) from None


def _refusing(entity: str, work: Callable[[], int]) -> int:
    """Run a command's work; the service's errors become one line."""
    import logging

    from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

    logging.getLogger("azure").setLevel(logging.CRITICAL)
    try:
        return work()
    except ServiceBusAuthenticationError:
        # The client hides which of the two it was.
        raise Refused(f"the key was refused, or '{entity}' does not exist: see pairbus entity list") from None
    except ServiceBusError as error:
        raise Refused(way_out(error) or f"{type(error).__name__}: {one_line(error)}") from None


@click.command(epilog=SEND_EXAMPLES)
@click.argument("entity")
@click.argument("body", required=False)
@click.option("--lines", is_flag=True, help="Send every line of standard input as a message.")
@click.option(
    "--property", "properties", metavar="NAME=VALUE", multiple=True, help="An application property."
)
@click.option("--session", metavar="ID", help="Session id.")
@click.option("--message-id", metavar="ID", help="Message id.  [default: a new one]")
@click.option("--subject", metavar="TEXT", help="Subject (label).")
@click.option("--content-type", metavar="TYPE", help="Content type.")
@click.option("--ready-file", metavar="FILE", help="A broker's ready file instead of PAIRBUS_PRIMARY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def send(
    entity: str,
    body: str | None,
    lines: bool,
    properties: tuple[str, ...],
    session: str | None,
    message_id: str | None,
    subject: str | None,
    content_type: str | None,
    ready_file: str | None,
    as_json: bool,
) -> int:
    """Send a message to a queue or topic."""
    if (body is None) == (not lines):
        raise UsageError("give a BODY, or --lines to send the lines of standard input")
    if message_id is not None and lines:
        raise UsageError("--message-id names one message; it cannot be combined with --lines")
    pairs: dict[str | bytes, Any] = dict(_pair(text) for text in properties)
    bodies: Iterable[str] = (line.rstrip("\n") for line in sys.stdin) if lines else [body or ""]

    def work() -> int:
        from azure.servicebus import ServiceBusMessage

        sent = 0
        with _client(ready_file) as client, client.get_queue_sender(entity) as sender:
            waiting: list[ServiceBusMessage] = []
            for text in bodies:
                waiting.append(
                    ServiceBusMessage(
                        text,
                        application_properties=dict(pairs) or None,
                        session_id=session,
                        message_id=message_id,
                        subject=subject,
                        content_type=content_type,
                    )
                )
                if len(waiting) == SEND_BATCH:
                    sender.send_messages(waiting)
                    sent += len(waiting)
                    waiting = []
            if waiting:
                sender.send_messages(waiting)
                sent += len(waiting)
        click.echo(json.dumps({"entity": entity, "sent": sent}) if as_json else f"sent {sent} to {entity}")
        return 0

    return _refusing(entity, work)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--property {text} is not NAME=VALUE")
    return name, value


def _receiver(
    client: ServiceBusClient, path: str, session: str | None, deletes: bool, wait: float
) -> ServiceBusReceiver:
    from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue

    sub_queue = None
    for suffix, which in (
        ("/$transfer/$deadletterqueue", ServiceBusSubQueue.TRANSFER_DEAD_LETTER),
        ("/$deadletterqueue", ServiceBusSubQueue.DEAD_LETTER),
    ):
        if path.lower().endswith(suffix):
            path, sub_queue = path[: -len(suffix)], which
            break
    settings: dict[str, Any] = {
        "max_wait_time": wait,
        "sub_queue": sub_queue,
        "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE
        if deletes
        else ServiceBusReceiveMode.PEEK_LOCK,
    }
    if session is not None:
        settings["session_id"] = NEXT_AVAILABLE_SESSION if session == NEXT_SESSION else session
    target = find_target(path)
    if target.subscription:
        return client.get_subscription_receiver(target.name, target.subscription, **settings)
    return client.get_queue_receiver(target.name, **settings)


@click.command(epilog=RECEIVE_EXAMPLES)
@click.argument("entity")
@click.option(
    "--count", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many at the most."
)
@click.option(
    "--settle",
    type=click.Choice(SETTLEMENTS),
    default="complete",
    show_default=True,
    help="What becomes of them.",
)
@click.option("--session", metavar="ID", help="Session id; '*' takes the next available one.")
@click.option(
    "--wait", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True, help="Seconds to wait."
)
@click.option("--ready-file", metavar="FILE", help="A broker's ready file instead of PAIRBUS_PRIMARY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def receive(
    entity: str,
    count: int,
    settle: str,
    session: str | None,
    wait: float,
    ready_file: str | None,
    as_json: bool,
) -> int:
    """Receive messages from a queue, a subscription or a dead-letter queue."""

    def work() -> int:
        received = 0
        with (
            _client(ready_file) as client,
            _receiver(client, entity, session, settle == "delete", wait) as receiver,
        ):
            while received < count:
                messages = receiver.receive_messages(max_message_count=count - received, max_wait_time=wait)
                if not messages:
                    break
                for message in messages:
                    _show(message, as_json)
                    _settle(receiver, message, settle)
                received += len(messages)
        return 0 if received else 1

    return _refusing(entity, work)


def _settle(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, how: str) -> None:
    if how == "complete":
        receiver.complete_message(message)
    elif how == "abandon":
        receiver.abandon_message(message)
    elif how == "defer":
        receiver.defer_message(message)
    elif how == "dead-letter":
        receiver.dead_letter_message(message, reason="pairbus receive")


@click.command(epilog=PEEK_EXAMPLES)
@click.argument("entity")
@click.option(
    "--count", type=click.IntRange(1, 100_000), default=10, show_default=True, help="How many at the most."
)
@click.option(
    "--from", "from_number", type=int, default=1, show_default=True, help="The first sequence number."
)
@click.option("--session", metavar="ID", help="Session id, on entities with sessions.")
@click.option("--ready-file", metavar="FILE", help="A broker's ready file instead of PAIRBUS_PRIMARY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def peek(
    entity: str, count: int, from_number: int, session: str | None, ready_file: str | None, as_json: bool
) -> int:
    """Look at messages without taking them."""

    def work() -> int:
        shown, number = 0, from_number
        with _client(ready_file) as client, _receiver(client, entity, session, False, 5.0) as receiver:
            while shown < count:
                messages = receiver.peek_messages(
                    max_message_count=min(count - shown, 250), sequence_number=number
                )
                if not messages:
                    break
                for message in messages:
                    _show(message, as_json)
                shown += len(messages)
                number = (messages[-1].sequence_number or 0) + 1
        return 0 if shown else 1

    return _refusing(entity, work)


def _show(message: ServiceBusReceivedMessage, as_json: bool) -> None:
    told = _told(message)
    if as_json:
        click.echo(json.dumps(told, default=str))
        return
    marks = [f"#{told['sequence_number']}", str(told["state"]), f"deliveries {told['delivery_count']}"]
    marks += [
        f"{name}={told[name]}"
        for name in ("message_id", "session_id", "subject", "dead_letter_reason")
        if told[name]
    ]
    click.echo(click.style("  ".join(marks), dim=True))
    # Foreign text is shown as text: control characters could otherwise redraw the terminal (M8).
    click.echo(
        "".join(
            c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(told["body"])
        )
    )


def _told(message: ServiceBusReceivedMessage) -> dict[str, object]:
    properties = message.application_properties or {}
    return {
        "sequence_number": message.sequence_number,
        "message_id": message.message_id,
        "session_id": message.session_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "state": message.state.name.lower(),
        "delivery_count": message.delivery_count,
        "enqueued_time": message.enqueued_time_utc,
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_description": message.dead_letter_error_description,
        "properties": {_text(name): _text(value) for name, value in properties.items()},
        "body": str(message),
    }


def _text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
