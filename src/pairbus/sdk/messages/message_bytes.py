"""Messages and batches as bytes: what the SDK would send, and ready-made bytes inside a batch.

The SDK decodes a received message into values without types and encodes what it is given again. To deliver a parked
message bit for bit, its bytes are kept as they arrive and sent as the content of a batch, which is a list of encoded
messages anyway. The wire sees nothing that the SDK does not do itself.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.constants import _BATCH_MESSAGE_OVERHEAD_COST
from azure.servicebus._common.tracing import trace_message
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.sdk.messages import encoding, sections

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
        raw = copy_of_raw(message.raw_amqp_message)
        return ServiceBusMessage(
            body=None, message=PyamqpTransport.to_outgoing_amqp_message(raw), raw_amqp_message=raw
        )
    return copy_of_raw(message)


def copy_of_raw(raw: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """``copy_of`` for the SDK's other kind of message."""
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
    quick = encoded_quickly(raw, is_traced=is_traced)
    if quick is not None:
        return quick
    if raw.application_properties is not None:
        # The SDK turns binary ones into text, and tracing adds some: neither must reach the caller's object.
        own = copy.copy(raw)
        own.application_properties = dict(raw.application_properties)
        raw = own
    outgoing = PyamqpTransport.to_outgoing_amqp_message(raw)
    if is_traced:
        outgoing = trace_message(outgoing, PyamqpTransport)  # type: ignore[arg-type]  # the class, as the SDK does
    output = bytearray()
    encode_payload(output, outgoing)
    return bytes(output)


def encoded_quickly(raw: AmqpAnnotatedMessage, *, is_traced: bool = False) -> bytes | None:
    """The same for a message whose parts have the usual types. None: the SDK has to encode it."""
    if is_traced and settings.tracing_implementation() is not None:
        return None
    return encoding.encoded(raw)


def body_of(payload: bytes) -> bytes:
    """The body of an encoded message, of whatever kind it is."""
    parts = sections.split(payload)
    return sections.join([part for part in parts if part.code in sections.BODIES])


def messages_of(batch: ServiceBusMessageBatch) -> list[bytes]:
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
    """An empty batch for one sender: a sender rebuilds batches of another transport, from parts that we do not give."""
    return ServiceBusMessageBatch(max_size_in_bytes=limit_bytes, amqp_transport=sender._amqp_transport)


def batch_limit(sender: Any) -> int:
    """The largest batch that an open sender's link takes; 0 while it was never open."""
    return int(sender._max_batch_size_on_link or 0)


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
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    return str(raw.properties.message_id) if raw.properties is not None else ""
