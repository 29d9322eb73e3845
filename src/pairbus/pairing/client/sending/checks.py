"""What the service would refuse at the entity itself is refused while failed over, too, and before it is parked or spooled.

The parked form hides some of it, and the spool takes any bytes: such a message would be accepted, and refused when nobody can mend it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpMessageProperties

from pairbus.amqp.message.scan import scan
from pairbus.errors import RemoteProtocolError
from pairbus.pairing import parking
from pairbus.pairing.client.sending.limits import HEADER_LIMIT_BYTES, header_bytes
from pairbus.pairing.errors import InvalidMessageError, MessageTooLargeForBacklogError
from pairbus.sdk.messages import message_bytes

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

_SDK_ERRORS: Final = (TypeError, ValueError, OverflowError, AttributeError, struct.error)
"""What the SDK raises for values that it cannot encode."""
_WANTED: Final = {
    "user_id": "bytes",
    "group_sequence": "a number from 0 to 4294967295",
    "creation_time": "milliseconds since 1970",
    "absolute_expiry_time": "milliseconds since 1970",
}
"""What a field of the properties may be, other than a str."""


def encoded(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """The bytes that the SDK would send.

    Raises:
        InvalidMessageError: The message cannot be encoded, or a field has a value that is not allowed.
        MessageTooLargeForBacklogError: Its properties are larger than the service allows.
    """
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    try:
        payload = message_bytes.encoded_quickly(raw, is_traced=True)
        if payload is not None and _is_usual(raw, payload):
            return payload
        if payload is None:
            payload = message_bytes.encoded(raw, is_traced=True)
    except _SDK_ERRORS as error:
        raise InvalidMessageError(f"{_named(raw)} cannot be encoded: {error}") from error
    try:
        check(payload)
    except RemoteProtocolError as error:
        raise InvalidMessageError(f"{_named(raw)} cannot be encoded: {_culprit(raw) or error}") from error
    return payload


def _is_usual(raw: AmqpAnnotatedMessage, payload: bytes) -> bool:
    """Whether there is nothing to check in a message that was encoded quickly: it costs a third of the encoding."""
    if raw.annotations or not 0 < len(payload) <= HEADER_LIMIT_BYTES:
        return False
    properties = raw.properties
    if properties is None:
        return True
    for value in (properties.message_id, properties.group_id):
        if isinstance(value, str) and len(value) > parking.ID_CHARACTERS_MAX:
            return False
    return True


def check(payload: bytes) -> None:
    """Read a message as a broker does. Raises what ``encoded`` raises, and RemoteProtocolError: the bytes are no message."""
    found = scan(payload)
    parking.check_ids(found.session_id, found.partition_key)
    if found.message_id_length > parking.ID_CHARACTERS_MAX:
        raise InvalidMessageError(
            f"the message id has {found.message_id_length} characters: at most {parking.ID_CHARACTERS_MAX} are allowed"
        )
    if found.size > HEADER_LIMIT_BYTES and (size := header_bytes(payload)) > HEADER_LIMIT_BYTES:
        raise MessageTooLargeForBacklogError(size, 0, HEADER_LIMIT_BYTES, "properties of the message have")


def check_batch(payloads: list[bytes]) -> None:
    """Check messages that the SDK has encoded for a batch. Raises what ``encoded`` raises."""
    for place, payload in enumerate(payloads):
        try:
            check(payload)
        except RemoteProtocolError as error:
            raise InvalidMessageError(f"message {place} of the batch cannot be encoded: {error}") from error


def _named(raw: AmqpAnnotatedMessage) -> str:
    message_id = raw.properties.message_id if raw.properties is not None else None
    return "the message" if message_id is None else f"message {message_id!r}"


def _culprit(raw: AmqpAnnotatedMessage) -> str:
    """The field of the properties without which the message can be encoded; empty: it is none of them."""
    fields: dict[str, Any] = dict(raw.properties.items()) if raw.properties is not None else {}
    for name, value in fields.items():
        if value is None:
            continue
        own = message_bytes.copy_of_raw(raw)
        own.properties = AmqpMessageProperties(**{**fields, name: None})
        try:
            scan(message_bytes.encoded(own))
        except (RemoteProtocolError, *_SDK_ERRORS):
            continue
        wanted = _WANTED.get(name, "a str")
        return f"{name} is {value!r}, of type {type(value).__name__}: give {wanted}"
    return ""
