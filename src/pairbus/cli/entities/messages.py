"""``pairbus send``, ``receive`` and ``peek``: everyday work on the messages of any Service Bus namespace.

Everything goes through the official client, so it works on Azure as it does here.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from pairbus.cli.entities.bodies import bodies_of, together
from pairbus.cli.kit.errors import Refused, one_line, way_out
from pairbus.cli.kit.namespace import (
    DEAD_LETTER,
    connection_of,
    find_target,
    shown_namespace,
    split_sub_queue,
)
from pairbus.cli.kit.options import argument, command, json_option, option, values_of
from pairbus.cli.kit.output import show, silence_logs
from pairbus.errors import UsageError
from pairbus.model.message import MESSAGE_ID_CHARACTERS_MAX
from pairbus.model.message_row import COMMAND_ROW
from pairbus.model.text import safe_text
from pairbus.model.typed_text import LONG_MAX, property_of
from pairbus.sdk.place import errors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure.servicebus import (
        ServiceBusClient,
        ServiceBusMessage,
        ServiceBusMessageBatch,
        ServiceBusReceivedMessage,
        ServiceBusReceiver,
        ServiceBusSender,
    )

SEND_BATCH: Final = 100
PEEK_PAGE: Final = 250
NEXT_SESSION: Final = "*"
SEND_HINT: Final = " On an entity with sessions, give --session ID."
SESSION_HINT: Final = f"{SEND_HINT[:-1]}, or --session '*' for the next one."

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
READY_FILE: Final = "A broker's ready file instead of PAIRBUS_PRIMARY."
CA_FILE: Final = "Certificate authority to trust.  [default: that of a local broker in the user's data directory, else the system's]"
COUNT_MAX: Final = 100_000
ATTEMPT_SECONDS: Final = 20.0
"""How long a request to a namespace, or a message of up to a megabyte, may go without an answer. There are two attempts."""


@dataclass(frozen=True, kw_only=True)
class SendFlags:
    entity: str = argument()
    body: str | None = argument(required=False, may_be_empty=True)
    file: str | None = option("Send the bytes of a file.", metavar="FILE")
    lines: bool = option("Send every line of standard input as a message.", False)
    count: int = option("How many copies to send.", 1, minimum=1, maximum=1_000_000)
    properties: tuple[str, ...] = option(
        "An application property; NAME:=VALUE for a number, true, false or null.",
        (),
        flag="--property",
        metavar="NAME=VALUE",
    )
    session: str | None = option("Session id.", metavar="ID")
    message_id: str | None = option("Message id.  [default: a new one]", metavar="ID")
    subject: str | None = option("Subject (label).", metavar="TEXT", may_be_empty=True)
    content_type: str | None = option("Content type.", metavar="TYPE", may_be_empty=True)
    ready_file: str | None = option(READY_FILE, metavar="FILE")
    ca_file: str | None = option(CA_FILE, metavar="FILE")
    as_json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class ReceiveFlags:
    entity: str = argument()
    count: int = option("Maximum number of messages.", 1, minimum=1, maximum=COUNT_MAX)
    settle: Literal["complete", "abandon", "defer", "dead-letter", "delete", "none"] = option(
        "How to settle the messages. none keeps them locked until their locks expire, which counts as a delivery.",
        "complete",
    )
    dead_letter: bool = option("The dead-letter queue of ENTITY.", False)
    session: str | None = option("Session id; '*' takes the next available one.", metavar="ID")
    wait: float = option("Seconds to wait.", 5.0, minimum=0.1, maximum=3600)
    ready_file: str | None = option(READY_FILE, metavar="FILE")
    ca_file: str | None = option(CA_FILE, metavar="FILE")
    as_json: bool = json_option("Print one JSON object a line.")


@dataclass(frozen=True, kw_only=True)
class PeekFlags:
    entity: str = argument()
    count: int = option("Maximum number of messages.", 10, minimum=1, maximum=COUNT_MAX)
    from_number: int = option("The first sequence number.", 1, flag="--from", minimum=0, maximum=LONG_MAX)
    dead_letter: bool = option("The dead-letter queue of ENTITY.", False)
    session: str | None = option(
        "Session id, on entities with sessions; '*' takes the next one.", metavar="ID"
    )
    ready_file: str | None = option(READY_FILE, metavar="FILE")
    ca_file: str | None = option(CA_FILE, metavar="FILE")
    as_json: bool = json_option("Print one JSON object a line.")


@command(SendFlags, SEND_EXAMPLES)
def send(flags: SendFlags) -> int:
    """Send messages to a queue or topic.

    The body is BODY, the bytes of --file, or standard input where it is not a terminal ("-" asks for it).
    """
    _check_texts(
        body=flags.body,
        session=flags.session,
        message_id=flags.message_id,
        subject=flags.subject,
        content_type=flags.content_type,
    )
    if flags.message_id is not None and (flags.lines or flags.count > 1):
        raise UsageError("--message-id names one message; it cannot be combined with --lines or --count")
    properties: dict[str | bytes, Any] = {}
    for text in flags.properties:
        _check_texts(property=text)
        name, value = property_of(text)
        if name in properties:
            raise UsageError(f"the property '{name}' is given twice")
        properties[name] = value
    path, sub_queue = split_sub_queue(flags.entity)
    if sub_queue:
        raise UsageError(
            f"'{flags.entity}' takes no sends: only the broker puts messages there. Send to '{path}'"
        )
    bodies = bodies_of(flags.body, flags.file, flags.lines, flags.count)

    def work() -> int:
        from azure.servicebus import ServiceBusMessage
        from azure.servicebus.exceptions import ServiceBusError

        from pairbus.sdk.links.handlers import leave_silent_connections

        sent = trying = 0
        header = values_of(flags, "message_id", "subject", "content_type")
        with _client(flags) as client, client.get_queue_sender(flags.entity) as sender:
            leave_silent_connections(sender)
            for group in together(bodies, SEND_BATCH):
                messages = [
                    ServiceBusMessage(
                        body,
                        application_properties=dict(properties) or None,
                        session_id=flags.session,
                        **header,
                    )
                    for body in group
                ]
                try:
                    for batch, trying in _batches(sender, messages):
                        sender.send_messages(batch)
                        sent += trying
                except ServiceBusError:
                    if sent or flags.lines:
                        _tell_failed(flags, sent, trying)
                    raise
        show({"entity": flags.entity, "sent": sent}, flags.as_json, f"sent {sent} to {flags.entity}")
        return 0

    return _refusing(flags.entity, work, flags.session, SEND_HINT, namespace=_namespace(flags))


def _check_texts(**texts: str | None) -> None:
    """Refuse what no message can carry. Raises UsageError."""
    for name, text in texts.items():
        if text is None:
            continue
        flag = "BODY" if name == "body" else f"--{name.replace('_', '-')}"
        try:
            text.encode()
        except UnicodeEncodeError:
            way = "; --file sends any bytes" if name == "body" else ""
            raise UsageError(f"{flag} is not UTF-8 text{way}") from None
        if name in ("message_id", "session") and len(text) > MESSAGE_ID_CHARACTERS_MAX:
            raise UsageError(
                f"{flag} has {len(text)} characters: at most {MESSAGE_ID_CHARACTERS_MAX} are allowed"
            )


def _tell_failed(flags: SendFlags, sent: int, count: int) -> None:
    """Say where a send of many stopped, so that the rest can be sent without what has arrived."""
    what = "line" if flags.lines else "message"
    last = f" to {sent + count}" if count > 1 else ""
    click.echo(
        f"sent {sent} to {safe_text(flags.entity)}; {what}{'s' if last else ''} {sent + 1}{last} failed, "
        "and nothing after that was sent",
        err=True,
    )


def _batches(
    sender: ServiceBusSender, messages: Sequence[ServiceBusMessage]
) -> Iterator[tuple[ServiceBusMessageBatch | ServiceBusMessage, int]]:
    """As few batches as the messages' sizes allow, each with its number of messages; one that fits into no batch goes alone."""
    from azure.servicebus.exceptions import MessageSizeExceededError

    batch = sender.create_message_batch()
    for message in messages:
        try:
            batch.add_message(message)
            continue
        except MessageSizeExceededError:
            if len(batch):
                yield batch, len(batch)
                batch = sender.create_message_batch()
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            yield message, 1
    if len(batch):
        yield batch, len(batch)


@command(ReceiveFlags, RECEIVE_EXAMPLES)
def receive(flags: ReceiveFlags) -> int:
    """Receive messages from a queue, a subscription or a dead-letter queue."""
    _check_texts(session=flags.session)

    def work() -> int:
        received = 0
        with (
            _client(flags) as client,
            _receiver(client, flags, flags.wait, deletes=flags.settle == "delete") as receiver,
        ):
            while received < flags.count:
                messages = receiver.receive_messages(
                    max_message_count=flags.count - received, max_wait_time=flags.wait
                )
                if not messages:
                    break
                for message in messages:
                    _show(message, flags.as_json)
                    _settle(receiver, message, flags.settle)
                received += len(messages)
        if not received:
            click.echo(f"nothing in {_shown_name(flags)} within {flags.wait:g} s", err=True)
        return 0 if received else 1

    return _refusing(flags.entity, work, flags.session, namespace=_namespace(flags))


@command(PeekFlags, PEEK_EXAMPLES)
def peek(flags: PeekFlags) -> int:
    """Show messages without receiving them."""
    _check_texts(session=flags.session)

    def work() -> int:
        shown, number = 0, flags.from_number
        with _client(flags) as client, _receiver(client, flags, 5.0) as receiver:
            while shown < flags.count:
                messages = receiver.peek_messages(
                    max_message_count=min(flags.count - shown, PEEK_PAGE), sequence_number=number
                )
                if not messages:
                    break
                for message in messages:
                    _show(message, flags.as_json)
                shown += len(messages)
                number = (messages[-1].sequence_number or 0) + 1
        if not shown:
            start = f" from sequence number {flags.from_number}" if flags.from_number > 1 else ""
            click.echo(f"nothing in {_shown_name(flags)}{start}", err=True)
        return 0 if shown else 1

    return _refusing(flags.entity, work, flags.session, namespace=_namespace(flags))


def _connection(flags: SendFlags | ReceiveFlags | PeekFlags) -> tuple[str, str | None]:
    return connection_of(None, flags.ready_file, flags.ca_file, os.environ)


def _namespace(flags: SendFlags | ReceiveFlags | PeekFlags) -> str:
    """How errors name the namespace."""
    return shown_namespace(_connection(flags)[0])


def _client(flags: SendFlags | ReceiveFlags | PeekFlags) -> ServiceBusClient:
    from azure.servicebus import ServiceBusClient

    from pairbus.sdk.addresses import connect

    connection_string, ca_file = _connection(flags)
    settings: dict[str, Any] = {
        "retry_total": 1,
        "logging_enable": False,
        "try_timeout": _attempt_seconds(flags),
    }
    if ca_file is not None:
        settings["connection_verify"] = ca_file
    try:
        client: ServiceBusClient = connect(ServiceBusClient, connection_string, **settings)
    except ValueError:
        # The client's text may repeat the string; the way out is the same for every fault in it.
        raise UsageError(
            "the connection string cannot be used: it needs Endpoint, SharedAccessKeyName and SharedAccessKey"
        ) from None
    return client


def _attempt_seconds(flags: SendFlags | ReceiveFlags | PeekFlags) -> float:
    """How long an attempt to do something may take. The namespace lets a receiver of the next session wait."""
    if isinstance(flags, ReceiveFlags) and flags.session == NEXT_SESSION:
        return ATTEMPT_SECONDS + flags.wait
    return ATTEMPT_SECONDS


def _refusing(
    entity: str,
    work: Callable[[], int],
    session: str | None,
    hint: str = SESSION_HINT,
    *,
    namespace: str = "the namespace",
) -> int:
    """Run a command's work. The service's errors become one line; an unspecific one without a session ends with a hint."""
    from azure.servicebus.exceptions import (
        MessagingEntityNotFoundError,
        OperationTimeoutError,
        ServiceBusAuthenticationError,
        ServiceBusError,
        ServiceBusQuotaExceededError,
    )

    silence_logs("azure")
    try:
        with errors_of(namespace):
            return work()
    except ServiceBusAuthenticationError:
        # The client hides which of the two it was.
        raise Refused(
            f"{namespace}: the key was refused, or '{entity}' does not exist: see pairbus entity list"
        ) from None
    except MessagingEntityNotFoundError:
        raise Refused(
            f"there is no entity '{entity}' in {namespace}: pairbus entity list shows what exists"
        ) from None
    except OperationTimeoutError as error:
        if session == NEXT_SESSION:
            click.echo(f"no session of {safe_text(entity)} has a message", err=True)
            return 1
        raise Refused(f"{namespace}: '{entity}' did not answer in time: {one_line(error)}") from None
    except ServiceBusQuotaExceededError as error:
        raise Refused(way_out(error) or f"{namespace}: '{entity}' refused: {one_line(error)}") from None
    except ServiceBusError as error:
        line = one_line(error)
        # Only a hint, so words may decide; the entity's own name does not.
        is_about_sessions = session is None and "session" in line.lower().replace(entity.lower(), "")
        raise Refused(
            way_out(error) or f"{namespace}: '{entity}' refused: {line}{hint if is_about_sessions else ''}"
        ) from None


def _receiver(
    client: ServiceBusClient, flags: ReceiveFlags | PeekFlags, wait: float, *, deletes: bool = False
) -> ServiceBusReceiver:
    from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue

    from pairbus.sdk.links.handlers import leave_silent_connections
    from pairbus.sdk.links.receivers import read_in_one_thread

    path, sub_queue = split_sub_queue(flags.entity)
    sub_queue = sub_queue or (DEAD_LETTER if flags.dead_letter else "")
    settings: dict[str, Any] = {
        "max_wait_time": wait,
        "sub_queue": ServiceBusSubQueue(sub_queue) if sub_queue else None,
        "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE
        if deletes
        else ServiceBusReceiveMode.PEEK_LOCK,
    }
    if flags.session is not None:
        settings["session_id"] = NEXT_AVAILABLE_SESSION if flags.session == NEXT_SESSION else flags.session
    target = find_target(path)
    receiver = (
        client.get_subscription_receiver(target.name, target.subscription, **settings)
        if target.subscription
        else client.get_queue_receiver(target.name, **settings)
    )
    read_in_one_thread(receiver)
    if flags.session is None:  # the lock of a session would end with its link
        leave_silent_connections(receiver)
    return receiver


def _shown_name(flags: ReceiveFlags | PeekFlags) -> str:
    return safe_text(f"the dead-letter queue of {flags.entity}" if flags.dead_letter else flags.entity)


def _settle(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, how: str) -> None:
    if how == "complete":
        receiver.complete_message(message)
    elif how == "abandon":
        receiver.abandon_message(message)
    elif how == "defer":
        receiver.defer_message(message)
    elif how == "dead-letter":
        receiver.dead_letter_message(message, reason="pairbus receive")


def _show(message: ServiceBusReceivedMessage, as_json: bool) -> None:
    row = _row(message)
    if as_json:
        click.echo(json.dumps(row, default=str))
        return
    marks = [f"#{row['sequence_number']}", str(row["state"]), f"deliveries {row['delivery_count']}"]
    marks += [
        f"{name}={safe_text(row[name])}"
        for name in ("message_id", "session_id", "subject", "dead_letter_reason")
        if row[name]
    ]
    click.echo(click.style("  ".join(marks), dim=True))
    click.echo(safe_text(row["body"], keep="\n\t"))


def _row(message: ServiceBusReceivedMessage) -> dict[str, object]:
    properties = message.application_properties or {}
    return {
        **{
            name: getattr(message, column.received) for name, column in COMMAND_ROW.items() if column.received
        },
        "state": message.state.name.lower(),
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
