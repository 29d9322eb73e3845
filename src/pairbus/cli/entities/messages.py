"""``pairbus send``, ``receive`` and ``peek``: everyday work on the messages of any Service Bus namespace.

Everything goes through the official client, so it works on Azure as it does here.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.errors import Refused, inert, one_line, way_out
from pairbus.cli.kit.namespace import connection_of, find_target
from pairbus.errors import UsageError
from pairbus.model.typed_text import property_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

SEND_BATCH: Final = 100
NEXT_SESSION: Final = "*"
SESSION_HINT: Final = " If it requires sessions, give --session ID, or --session '*' for the next one."
SETTLEMENTS: Final = ("complete", "abandon", "defer", "dead-letter", "delete", "none")

SEND_EXAMPLES: Final = """\b
Examples:
  pairbus send orders "hello"
  pairbus send orders --property colour=red --property size:=42 --session s1 "hello"
  pairbus send orders --file order.json --content-type application/json
  date | pairbus send orders
  seq 1000 | pairbus send orders --lines

\b
--property NAME=VALUE sends text. NAME:=VALUE sends a number, true, false or null, as JSON writes them,
so that SQL filters such as "size > 40" apply.
"""
RECEIVE_EXAMPLES: Final = """\b
Examples:
  pairbus receive orders
  pairbus receive orders --count 10 --settle none --json
  pairbus receive orders --dead-letter
  pairbus receive events/Subscriptions/audit --session '*'

\b
Exit codes: 0 something was received, 1 there was nothing, 2 wrong usage, 3 could not reach or was refused.
"""
PEEK_EXAMPLES: Final = """\b
Examples:
  pairbus peek orders
  pairbus peek orders --from 1000 --count 50 --json
  pairbus peek orders --dead-letter
  pairbus peek sessions --session '*'

\b
Exit codes: 0 messages were shown, 1 there were none, 2 wrong usage, 3 could not reach or was refused.
"""


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


def _refusing(
    entity: str, work: Callable[[], int], hint: str = "", *, waits_for_session: bool = False
) -> int:
    """Run a command's work. The service's errors become one line; an unspecific one ends with the hint."""
    import logging

    from azure.servicebus.exceptions import (
        MessagingEntityNotFoundError,
        OperationTimeoutError,
        ServiceBusAuthenticationError,
        ServiceBusError,
    )

    logging.getLogger("azure").setLevel(logging.CRITICAL)
    try:
        return work()
    except ServiceBusAuthenticationError:
        # The client hides which of the two it was.
        raise Refused(f"the key was refused, or '{entity}' does not exist: see pairbus entity list") from None
    except MessagingEntityNotFoundError:
        raise Refused(
            f"there is no entity '{entity}' in the namespace: pairbus entity list shows what exists"
        ) from None
    except OperationTimeoutError as error:
        if waits_for_session:
            click.echo(f"no session of {inert(entity)} has a message", err=True)
            return 1
        raise Refused(f"'{entity}' did not answer in time: {one_line(error)}") from None
    except ServiceBusError as error:
        raise Refused(way_out(error) or f"'{entity}' refused: {one_line(error)}{hint}") from None


@click.command(epilog=SEND_EXAMPLES)
@click.argument("entity")
@click.argument("body", required=False)
@click.option("--file", "file", metavar="FILE", help="Send the bytes of a file.")
@click.option("--lines", is_flag=True, help="Send every line of standard input as a message.")
@click.option(
    "--count",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="How many copies to send.",
)
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="An application property; NAME:=VALUE for a number, true, false or null.",
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
    file: str | None,
    lines: bool,
    count: int,
    properties: tuple[str, ...],
    session: str | None,
    message_id: str | None,
    subject: str | None,
    content_type: str | None,
    ready_file: str | None,
    as_json: bool,
) -> int:
    """Send messages to a queue or topic.

    The body is BODY, the bytes of --file, or standard input where it is not a terminal ("-" asks for it).
    """
    if message_id is not None and (lines or count > 1):
        raise UsageError("--message-id names one message; it cannot be combined with --lines or --count")
    pairs: dict[str | bytes, Any] = {}
    for text in properties:
        name, value = property_of(text)
        if name in pairs:
            raise UsageError(f"the property '{name}' is given twice")
        pairs[name] = value
    bodies = _bodies(body, file, lines, count)

    def work() -> int:
        from azure.servicebus import ServiceBusMessage

        sent = 0
        with _client(ready_file) as client, client.get_queue_sender(entity) as sender:
            waiting: list[ServiceBusMessage] = []
            for each in bodies:
                waiting.append(
                    ServiceBusMessage(
                        each,
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


def _bodies(body: str | None, file: str | None, lines: bool, count: int) -> Iterable[str | bytes]:
    """The bodies to send, from the one place that was named. Raises UsageError."""
    if sum((body is not None, file is not None, lines)) > 1:
        raise UsageError("give one of BODY, --file and --lines")
    if lines:
        if count > 1:
            raise UsageError("--count repeats one message; it cannot be combined with --lines")
        return (line.rstrip("\n") for line in sys.stdin)
    if file is not None:
        try:
            return itertools.repeat(Path(file).read_bytes(), count)
        except OSError as error:
            raise UsageError(f"--file {file} cannot be read: {error.strerror}") from None
    if body is not None and body != "-":
        return itertools.repeat(body, count)
    if body is None and sys.stdin.isatty():
        raise UsageError(
            "there is nothing to send: give a BODY or --file, or send something to standard input"
        )
    # A shell ends what it pipes with a line break, which is not part of what the person wrote.
    read = sys.stdin.buffer.read()
    if not read:
        raise UsageError("standard input is empty: give a BODY or --file; '' as BODY sends an empty message")
    return itertools.repeat(read.removesuffix(b"\n"), count)


def _receiver(
    client: ServiceBusClient,
    path: str,
    session: str | None,
    dead_letter: bool,
    deletes: bool,
    wait: float,
) -> ServiceBusReceiver:
    from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue

    sub_queue = ServiceBusSubQueue.DEAD_LETTER if dead_letter else None
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
    help="What becomes of them; none leaves them locked until their locks end, which counts as a delivery.",
)
@click.option("--dead-letter", is_flag=True, help="The dead-letter queue of ENTITY.")
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
    dead_letter: bool,
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
            _receiver(client, entity, session, dead_letter, settle == "delete", wait) as receiver,
        ):
            while received < count:
                messages = receiver.receive_messages(max_message_count=count - received, max_wait_time=wait)
                if not messages:
                    break
                for message in messages:
                    _show(message, as_json)
                    _settle(receiver, message, settle)
                received += len(messages)
        if not received:
            click.echo(f"nothing in {inert(_named(entity, dead_letter))} within {wait:g} s", err=True)
        return 0 if received else 1

    return _refusing(
        entity, work, SESSION_HINT if session is None else "", waits_for_session=session == NEXT_SESSION
    )


def _named(entity: str, dead_letter: bool) -> str:
    return f"the dead-letter queue of {entity}" if dead_letter else entity


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
@click.option("--dead-letter", is_flag=True, help="The dead-letter queue of ENTITY.")
@click.option(
    "--session", metavar="ID", help="Session id, on entities with sessions; '*' takes the next one."
)
@click.option("--ready-file", metavar="FILE", help="A broker's ready file instead of PAIRBUS_PRIMARY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def peek(
    entity: str,
    count: int,
    from_number: int,
    dead_letter: bool,
    session: str | None,
    ready_file: str | None,
    as_json: bool,
) -> int:
    """Look at messages without taking them."""

    def work() -> int:
        shown, number = 0, from_number
        with (
            _client(ready_file) as client,
            _receiver(client, entity, session, dead_letter, False, 5.0) as receiver,
        ):
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
        if not shown:
            start = f" from sequence number {from_number}" if from_number > 1 else ""
            click.echo(f"nothing in {inert(_named(entity, dead_letter))}{start}", err=True)
        return 0 if shown else 1

    return _refusing(
        entity, work, SESSION_HINT if session is None else "", waits_for_session=session == NEXT_SESSION
    )


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
        "properties": {str(_text(name)): _text(value) for name, value in properties.items()},
        **_body_of(message),
    }


def _body_of(message: ServiceBusReceivedMessage) -> dict[str, object]:
    """The body as text. One that is not UTF-8 is shown with marks in it, and whole in base64."""
    body = message.body
    if isinstance(body, str):
        return {"body": body}
    try:
        whole = bytes(body) if isinstance(body, bytes | bytearray | memoryview) else b"".join(body)
    except TypeError:
        return {"body": str(body if isinstance(body, dict | int | float | bool) else list(body))}
    try:
        return {"body": whole.decode()}
    except UnicodeDecodeError:
        return {
            "body": whole.decode(errors="replace"),
            "body_base64": base64.b64encode(whole).decode("ascii"),
        }


def _text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
