"""The one place that reaches under the official SDK's surface, and only for what its surface cannot carry.

The SDK decodes a received message into values without types and encodes what it is given anew. To bring a message
home bit for bit, its bytes are kept as they arrive, and ready-made bytes are sent as the content of a batch, which
is a list of encoded messages anyway (protocol reference, 3.3). The wire sees nothing that the SDK does not do itself.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import socket
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.constants import _BATCH_MESSAGE_OVERHEAD_COST
from azure.servicebus._common.tracing import trace_message
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.constants import LinkDeliverySettleReason, LinkState, MessageDeliveryState
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition
from azure.servicebus._pyamqp.message import BatchMessage, _MessageDelivery
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.errors import RemoteProtocolError, UsageError
from pairbus.pairing import sections
from pairbus.pairing.naming import CLOUD_SUFFIXES

BATCH_ENVELOPE_BYTES: Final = 64
"""What a batch of one adds around an encoded message at most, without its envelope's own properties."""

SETTLE_IN_SECONDS: Final = 0.05
"""How long a poll runs at least, so that messages that are there arrive."""

Outgoing = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]


def with_message_id(message: Outgoing) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """The message itself if it has an id, else a copy that has one: the caller's object is never changed."""
    if isinstance(message, Mapping):
        # The SDK would make a new message, with a new id, at each attempt.
        return ServiceBusMessage(**message)
    if not isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        raise TypeError(
            "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing messages are supported. "
            f"Received instead: {type(message).__name__}"
        )
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    if raw.properties is not None and raw.properties.message_id is not None:
        return message
    changed = copy_of(message)
    raw = changed.raw_amqp_message if isinstance(changed, ServiceBusMessage) else changed
    properties = raw.properties if raw.properties is not None else AmqpMessageProperties()
    properties.message_id = str(uuid.uuid4())
    raw.properties = properties
    return changed


def has_message_id(message: ServiceBusMessage) -> bool:
    """Whether a message's id is fixed already."""
    properties = message._raw_amqp_message._properties
    return properties is not None and properties.message_id is not None


def copy_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A copy whose sections can be changed without changing the original. Bodies are shared: nobody edits them."""
    if isinstance(message, ServiceBusMessage):
        raw = _copy_raw(message.raw_amqp_message)
        return ServiceBusMessage(
            body=None, message=PyamqpTransport.to_outgoing_amqp_message(raw), raw_amqp_message=raw
        )
    return _copy_raw(message)


def _copy_raw(raw: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    duplicate = copy.copy(raw)
    if raw.header is not None:
        duplicate.header = AmqpMessageHeader(**dict(raw.header.items()))
    if raw.properties is not None:
        duplicate.properties = AmqpMessageProperties(**dict(raw.properties.items()))
    for name in ("application_properties", "annotations", "delivery_annotations", "footer"):
        value = getattr(raw, name)
        setattr(duplicate, name, None if value is None else dict(value))
    return duplicate


def encoded(message: Outgoing, *, is_traced: bool = False) -> bytes:
    """The bytes that the SDK would send for a message; ``is_traced``: with the trace context that it would add."""
    if isinstance(message, Mapping):
        message = ServiceBusMessage(**message)
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    # The SDK turns binary application properties of its argument into text: that must not reach the caller's object.
    outgoing = PyamqpTransport.to_outgoing_amqp_message(_copy_raw(raw))
    if is_traced:
        outgoing = trace_message(outgoing, PyamqpTransport)  # type: ignore[arg-type]  # the class, as the SDK does
    output = bytearray()
    encode_payload(output, outgoing)
    return bytes(output)


def body_of(payload: bytes) -> bytes:
    """The body of an encoded message, of whatever kind it is."""
    parts = sections.split(payload)
    return sections.join([part for part in parts if part.code in sections.BODIES])


def messages_of(batch: ServiceBusMessageBatch) -> list[bytes]:
    """The encoded messages of a batch."""
    return [bytes(item) for item in batch._message[5]]


def batch_of(batch: ServiceBusMessageBatch, payloads: Sequence[bytes]) -> ServiceBusMessageBatch:
    """Fill an empty batch with ready-made messages; those that fit, from the first on.

    ``len(batch)`` says how many went in.
    """
    for payload in payloads:
        cost = len(payload) + _BATCH_MESSAGE_OVERHEAD_COST[0 if len(payload) < 256 else 1]
        if batch._size + cost > batch.max_size_in_bytes:
            break
        batch._message[5].append(payload)
        batch._size += cost
        batch._count += 1
    return batch


def batch_size(payloads: Sequence[bytes]) -> int:
    """The size of one batch of ready-made messages, as the SDK counts it."""
    costs = (
        len(payload) + _BATCH_MESSAGE_OVERHEAD_COST[0 if len(payload) < 256 else 1] for payload in payloads
    )
    return sum(costs, ServiceBusMessageBatch().size_in_bytes)


def address_envelope(
    batch: ServiceBusMessageBatch, message_id: str | None, session_id: str | None, partition_key: str | None
) -> None:
    """Say on the batch's envelope where a partitioned entity should put it, as the SDK does from its first message."""
    PyamqpTransport.set_batch_envelope_properties(batch._message, message_id, session_id, partition_key)


def new_batch(limit_bytes: int, sender: Any) -> ServiceBusMessageBatch:
    """An empty batch for one sender: a sender makes batches of another transport anew, from what we do not give."""
    return ServiceBusMessageBatch(max_size_in_bytes=limit_bytes, amqp_transport=sender._amqp_transport)


def batch_limit(sender: Any) -> int:
    """The largest batch that an open sender's link takes; 0 while it was never open."""
    return int(sender._max_batch_size_on_link or 0)


def set_retries(handler: Any, retries: int, backoff_s: float = 0.1) -> None:
    """How often a handler's own operations are tried again; the client's setting serves the application's own ones."""
    handler._config.retry_total = retries
    handler._config.retry_backoff_factor = backoff_s
    _bound_inner_retries(handler, retries, backoff_s)


def bound_retries(handler: Any, retries: int, backoff_s: float) -> None:
    """At most so many retries with at most that pause; fewer if the client was told so."""
    config = handler._config
    config.retry_total = min(config.retry_total, retries)
    config.retry_backoff_factor = min(config.retry_backoff_factor, backoff_s)
    _bound_inner_retries(handler, config.retry_total, config.retry_backoff_factor)


def _bound_inner_retries(handler: Any, retries: int, backoff_s: float) -> None:
    """The SDK's protocol layer has retries of its own below those of its sender."""
    policy = getattr(handler, "_error_policy", None)
    if policy is not None:
        policy.total_retries = min(policy.total_retries, retries)
        policy.backoff_factor = min(policy.backoff_factor, backoff_s)


def keep_payloads(receiver: Any) -> None:
    """Let messages of an open asynchronous receiver keep the bytes they came in. Call after every open.

    The SDK's own decoder sees only what it needs to settle a message: it has no name for some AMQP types, and one
    message of another client would end the link at every attempt to receive it.
    """
    link = receiver._handler._link
    take, build = link._incoming_transfer, receiver._build_received_message
    parts: list[bytes] = []
    first: list[Any] = []
    kept: dict[bytes, bytes] = {}

    async def incoming(frame: Any) -> None:
        if frame[1] is not None:
            first[:] = frame
            parts.clear()
        parts.append(bytes(frame[11]))
        if frame[5]:
            return
        whole = b"".join(parts)
        parts.clear()
        kept[first[2]] = whole
        await take([*first[:5], False, *first[6:11], memoryview(_settling_part(whole))])

    def built(received: Any) -> Any:
        message = build(received)
        message._pairbus_payload = kept.pop(received[0][2], None)
        return message

    link._incoming_transfer = incoming
    receiver._build_received_message = built


def _settling_part(payload: bytes) -> bytes:
    """The sections that say which message this is and how long it is locked."""
    wanted = (sections.HEADER, sections.DELIVERY_ANNOTATIONS, sections.MESSAGE_ANNOTATIONS)
    try:
        parts = [part for part in sections.split(payload) if part.code in wanted]
    except RemoteProtocolError:
        return b""
    return sections.join(parts)


def payload_of(message: Any) -> bytes | None:
    """The bytes of a received message; None when they were not kept."""
    payload = getattr(message, "_pairbus_payload", None)
    return payload if isinstance(payload, bytes) else None


class _IdentifyingBatch(ServiceBusMessageBatch):
    """A batch whose every message has an id before the first attempt (P3)."""

    def add_message(self, message: Outgoing) -> None:
        """Add a message; MessageSizeExceededError when it does not fit."""
        super().add_message(with_message_id(message))


def identifying_batch(limit_bytes: int, sender: Any) -> ServiceBusMessageBatch:
    """An empty batch that gives an id to messages that have none."""
    return _IdentifyingBatch(max_size_in_bytes=limit_bytes, amqp_transport=sender._amqp_transport)


def as_service_bus_message(raw: AmqpAnnotatedMessage) -> ServiceBusMessage:
    """The SDK's other kind of message around the same sections."""
    return ServiceBusMessage(
        body=None, message=PyamqpTransport.to_outgoing_amqp_message(raw), raw_amqp_message=raw
    )


def message_id(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str:
    """A message's id as text."""
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    return str(raw.properties.message_id) if raw.properties is not None else ""


def uses_tls(client: Any) -> bool:
    """Whether an SDK client speaks TLS: all do but those for a development namespace."""
    return bool(client._config.use_tls)


def address_of(client: Any) -> str:
    """The address at which an SDK client reaches its namespace: ``host`` or ``host:port``.

    A client that uses TLS forgets the port of its connection string. A port that is not the usual one is then in the
    custom endpoint. In front of a cloud namespace the custom endpoint is a gateway, and the namespace's host counts.
    """
    host: str = client.fully_qualified_namespace
    custom = getattr(client, "_custom_endpoint_address", None)
    if not custom or host.lower().rstrip("./").endswith(CLOUD_SUFFIXES):
        return host
    return str(custom).split("://", 1)[-1].split("/", 1)[0]


def check_entity(client: Any, path: str) -> None:
    """Raise UsageError, as the SDK does, when a client's connection string is for another entity than ``path``."""
    only = getattr(client, "_entity_name", None)
    if only and path != only:
        raise UsageError(
            f"the connection string of the primary has EntityPath={only}, and the sender is for {path!r}: use that "
            "name, or a connection string of the namespace"
        )


def credential_of(client: Any) -> Any:
    """What an SDK client proves itself with."""
    return client._credential


def settings_of(client: Any) -> dict[str, Any]:
    """How an SDK client reaches its namespace, as arguments for another one."""
    config = client._config
    return {
        "retry_total": config.retry_total,
        "retry_backoff_factor": config.retry_backoff_factor,
        "retry_backoff_max": config.retry_backoff_max,
        "retry_mode": str(getattr(config.retry_mode, "value", config.retry_mode)).lower(),
        "transport_type": config.transport_type,
        "http_proxy": config.http_proxy,
        "user_agent": config.user_agent,
        "logging_enable": config.logging_enable,
        "custom_endpoint_address": client._custom_endpoint_address,
        "connection_verify": client._connection_verify,
        "ssl_context": client._ssl_context,
        "use_tls": config.use_tls,
    }


def observe_close(client: Any, owner: Any, *arguments: object) -> None:
    """Call ``owner._side_ended(*arguments)`` when somebody closes an SDK client, which itself does not tell.

    The owner is not kept alive by it: the application may pair the same clients again later.
    """
    original = client.close
    reference = weakref.ref(owner)

    def close(*given: Any, **options: Any) -> Any:
        alive = reference()
        if alive is not None:
            alive._side_ended(*arguments)
        return original(*given, **options)

    client.close = close


def watch_attempts(
    sender: Any,
    noticed: Callable[[BaseException], object],
    is_final: Callable[[BaseException], bool] | None = None,
) -> None:
    """Call ``noticed`` with the error of each attempt, though the SDK tries again and tells only of the last one.

    "Server busy" ends the SDK's own attempts: it would try again within a second, and ten must pass (P16). So does an
    error that ``is_final`` says yes to.
    """
    original = sender._handle_exception

    def judged(error: BaseException) -> BaseException:
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        noticed(error)
        if is_final is not None and is_final(error):
            raise error
        return error

    if inspect.iscoroutinefunction(original):

        async def handle_later(exception: Exception) -> BaseException:
            return judged(await original(exception))

        sender._handle_exception = handle_later
    else:

        def handle(exception: Exception) -> BaseException:
            return judged(original(exception))

        sender._handle_exception = handle


# --- a sender that several callers share ----------------------------------------------------------


def share(sender: Any, send: Any) -> Any:
    """Let ``send`` stand where the SDK attempts to send a message. Returns what the SDK does there."""
    original, sender._send = sender._send, send
    return original


def share_opening(sender: Any, open_: Any, let_go: Any) -> Any:
    """Let ``open_`` and ``let_go`` stand where the SDK opens and closes its connection. Returns how it opens."""
    original, sender._open, sender._close_handler = sender._open, open_, let_go
    return original


def open_with_retries(sender: Any) -> Any:
    """Open a sender as the SDK does when it is entered."""
    return sender._open_with_retry()


def can_pipeline(sender: Any) -> bool:
    """Whether the parts below the sender are those that ``transfer`` and ``work`` know."""
    return getattr(sender._amqp_transport, "KIND", "") == "pyamqp" and hasattr(sender, "_create_handler")


async def transfer(handler: Any, message: Any, settled: Callable[[BaseException | None], None]) -> Any:
    """Put a message on an open asynchronous link; ``settled`` is called with its answer while ``work`` runs."""
    content = message._message
    if isinstance(content, list):
        content = BatchMessage(*content)
    delivery: Any = _MessageDelivery(content, MessageDeliveryState.WaitingForSendAck)  # type: ignore[no-untyped-call]

    async def completed(reason: Any, state: Any) -> None:
        await handler._on_send_complete_async(delivery, reason, state)
        if (
            reason != LinkDeliverySettleReason.NOT_DELIVERED
        ):  # otherwise the link is gone, and ``work`` says why
            settled(None if delivery.state == MessageDeliveryState.Ok else delivery.error or _no_answer())

    return await handler._link.send_transfer(content, on_send_complete=completed, send_async=True)


def withdraw(delivery: Any) -> None:
    """A message that is not written yet is not written any more."""
    delivery.timeout, delivery.start = 1, float("-inf")


async def work(handler: Any) -> None:
    """Write what is to be written and read what came. Raises when the link has ended."""
    is_running = await handler.do_work_async()
    link = handler._link
    if not is_running or link is None:
        raise _no_answer()
    if link.get_state() != LinkState.ATTACHED:
        raise _no_answer()


def _no_answer() -> AMQPConnectionError:
    return AMQPConnectionError(ErrorCondition.SocketError, description="The link ended before it answered.")


def take_handler(sender: Any) -> Any:
    """Take the connection away from a sender, so that its next use opens another one."""
    handler = getattr(sender, "_handler", None)
    sender._handler, sender._running = None, False
    return handler


async def end_client(handler: Any, seconds: float) -> None:
    """Close a connection in order, or cut it after ``seconds``. Nothing of it is left."""
    keeping = getattr(handler, "_keep_alive_thread", None)
    connection = getattr(handler, "_connection", None)
    try:
        async with asyncio.timeout(seconds):
            await handler.close_async()
    except Exception:  # noqa: BLE001 - it is given up either way, and its peer may be gone
        return
    finally:
        if keeping is not None:
            keeping.cancel()
        writer = getattr(getattr(connection, "_transport", None), "writer", None)
        if writer is not None:
            writer.transport.abort()


def interruptible(receiver: Any) -> Any:
    """Make the poll of an open asynchronous receiver end early. Returns the function that does it.

    The SDK's loop asks its connection for work until told that there is none; cancelling it could tear a frame.
    """
    handler = receiver._handler
    original = handler.do_work_async
    state = {"is_wanted": False, "begun": 0.0}

    async def work(**options: Any) -> Any:
        # Messages that are on their way would be released when nobody receives: let them come in first.
        is_quiet = (
            time.monotonic() - state["begun"] > SETTLE_IN_SECONDS and handler._received_messages.empty()
        )
        if state["is_wanted"] and is_quiet:
            state["is_wanted"] = False
            return False
        return await original(**options)

    def interrupt(*, is_wanted: bool = True) -> None:
        state["is_wanted"] = is_wanted
        if not is_wanted:
            state["begun"] = time.monotonic()

    handler.do_work_async = work
    return interrupt


def cut_socket(handler: Any) -> None:
    """End whatever a synchronous sender or receiver is waiting for, by ending its connection under it."""
    client = getattr(handler, "_handler", None)
    connection = getattr(client, "_connection", None)
    transport = getattr(connection, "_transport", None)
    end = getattr(transport, "sock", None)
    # A WebSocket wraps its socket, and its own ``shutdown`` only closes it here: nobody waiting would notice.
    end = getattr(end, "sock", end)
    if isinstance(end, socket.socket):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
