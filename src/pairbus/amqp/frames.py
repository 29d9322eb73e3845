"""The nine performatives as objects that encode themselves (AMQP 1.0, 2.7).

Every ``encode`` writes the whole list of fields and the short numeric descriptor: older ``_pyamqp`` raises on short
lists and knows no other descriptor.
"""

from __future__ import annotations

from typing import Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.encode import (
    FALSE,
    NULL,
    TRUE,
    encode_binary,
    encode_described,
    encode_fields,
    encode_list,
    encode_string,
    encode_uint,
    encode_ulong,
    encode_value,
)
from pairbus.amqp.states import Outcome
from pairbus.amqp.terminus import Coordinator, Source, Target, encode_symbols
from pairbus.amqp.types import UByte, UShort

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

NAMES: Final = ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close")

ULONG_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
UINT_MAX: Final = 0xFFFF_FFFF


class Open:
    __slots__ = ("channel_max", "container_id", "hostname", "idle_timeout_ms", "max_frame_size", "properties")

    def __init__(self, container_id: str) -> None:
        self.container_id = container_id
        self.hostname: str | None = None
        self.max_frame_size = UINT_MAX
        self.channel_max = 0xFFFF
        self.idle_timeout_ms = 0
        self.properties: dict[str, object] = {}

    def encode(self) -> bytes:
        """The performative's bytes."""
        return encode_described(
            OPEN,
            encode_list(
                [
                    encode_string(self.container_id),
                    NULL if self.hostname is None else encode_string(self.hostname),
                    encode_uint(self.max_frame_size),
                    encode_value(UShort(self.channel_max)),
                    encode_uint(self.idle_timeout_ms) if self.idle_timeout_ms else NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    encode_fields(self.properties) if self.properties else NULL,
                ]
            ),
        )


class Begin:
    """Starts a session on a channel."""

    __slots__ = ("handle_max", "incoming_window", "next_outgoing_id", "outgoing_window", "remote_channel")

    def __init__(self, next_outgoing_id: int, incoming_window: int, outgoing_window: int) -> None:
        self.remote_channel = -1
        self.next_outgoing_id = next_outgoing_id
        self.incoming_window = incoming_window
        self.outgoing_window = outgoing_window
        self.handle_max = UINT_MAX

    def encode(self) -> bytes:
        """The performative's bytes."""
        remote = NULL if self.remote_channel < 0 else encode_value(UShort(self.remote_channel))
        return encode_described(
            BEGIN,
            encode_list(
                [
                    remote,
                    encode_uint(self.next_outgoing_id),
                    encode_uint(self.incoming_window),
                    encode_uint(self.outgoing_window),
                    encode_uint(self.handle_max),
                    NULL,
                    NULL,
                    NULL,
                ]
            ),
        )


class Attach:
    """Starts a link on a handle, or answers that."""

    __slots__ = (
        "desired_capabilities",
        "handle",
        "initial_delivery_count",
        "max_message_size",
        "name",
        "properties",
        "rcv_settle_mode",
        "role",
        "snd_settle_mode",
        "source",
        "target",
    )

    def __init__(self, name: str, handle: int, role: bool) -> None:
        self.name = name
        self.handle = handle
        self.role = role
        """True when the one who says it is the receiver."""
        self.snd_settle_mode = 2
        self.rcv_settle_mode = 0
        self.source: Source | None = None
        self.target: Target | Coordinator | None = None
        self.initial_delivery_count = 0
        self.max_message_size = 0
        self.properties: dict[str, object] = {}
        self.desired_capabilities: list[str] = []

    def encode(self) -> bytes:
        """The performative's bytes."""
        return encode_described(
            ATTACH,
            encode_list(
                [
                    encode_string(self.name),
                    encode_uint(self.handle),
                    TRUE if self.role else FALSE,
                    encode_value(UByte(self.snd_settle_mode)),
                    encode_value(UByte(self.rcv_settle_mode)),
                    NULL if self.source is None else self.source.encode(),
                    NULL if self.target is None else self.target.encode(),
                    NULL,
                    NULL,
                    # Only the sender counts deliveries (AMQP 1.0, 2.7.3).
                    NULL if self.role else encode_uint(self.initial_delivery_count),
                    encode_ulong(self.max_message_size) if self.max_message_size else NULL,
                    NULL,
                    encode_symbols(self.desired_capabilities),
                    encode_fields(self.properties) if self.properties else NULL,
                ]
            ),
        )


class Flow:
    """Windows of a session and, with a handle, the credit of a link. Negative means null."""

    __slots__ = (
        "available",
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing_window",
    )

    def __init__(self) -> None:
        self.next_incoming_id = -1
        self.incoming_window = 0
        self.next_outgoing_id = 0
        self.outgoing_window = 0
        self.handle = -1
        self.delivery_count = -1
        self.link_credit = -1
        self.available = -1
        self.drain = False
        self.echo = False

    def encode(self) -> bytes:
        """The performative's bytes."""
        return encode_described(
            FLOW,
            encode_list(
                [
                    _optional(self.next_incoming_id),
                    encode_uint(self.incoming_window),
                    encode_uint(self.next_outgoing_id),
                    encode_uint(self.outgoing_window),
                    _optional(self.handle),
                    _optional(self.delivery_count),
                    _optional(self.link_credit),
                    _optional(self.available),
                    TRUE if self.drain else FALSE,
                    TRUE if self.echo else FALSE,
                    NULL,
                ]
            ),
        )


class Transfer:
    """One frame of a delivery; the payload follows it in the frame."""

    __slots__ = (
        "aborted",
        "delivery_id",
        "delivery_tag",
        "handle",
        "message_format",
        "more",
        "settled",
        "state",
        "state_bytes",
    )

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.delivery_id = -1
        self.delivery_tag = b""
        self.message_format = -1
        self.settled = False
        self.more = False
        self.state: Outcome | None = None
        self.state_bytes = b""
        """The encoded state to send; ``state`` is what was received."""
        self.aborted = False

    def encode(self) -> bytes:
        """The performative's bytes, without payload."""
        return encode_described(
            TRANSFER,
            encode_list(
                [
                    encode_uint(self.handle),
                    _optional(self.delivery_id),
                    encode_binary(self.delivery_tag) if self.delivery_tag else NULL,
                    _optional(self.message_format),
                    TRUE if self.settled else FALSE,
                    TRUE if self.more else FALSE,
                    NULL,
                    self.state_bytes or NULL,
                    FALSE,
                    TRUE if self.aborted else FALSE,
                    FALSE,
                ]
            ),
        )


class Disposition:
    """What became of a range of deliveries."""

    __slots__ = ("first", "last", "role", "settled", "state", "state_bytes")

    def __init__(self, role: bool, first: int, last: int) -> None:
        self.role = role
        """True when the receiver of the deliveries speaks."""
        self.first = first
        self.last = last
        self.settled = False
        self.state: Outcome | None = None
        self.state_bytes = b""
        """The encoded state to send; ``state`` is what was received."""

    def encode(self) -> bytes:
        """The performative's bytes."""
        return encode_described(
            DISPOSITION,
            encode_list(
                [
                    TRUE if self.role else FALSE,
                    encode_uint(self.first),
                    encode_uint(self.last),
                    TRUE if self.settled else FALSE,
                    self.state_bytes or NULL,
                    FALSE,
                ]
            ),
        )


class Detach:
    __slots__ = ("closed", "error", "handle")

    def __init__(self, handle: int, closed: bool, error: AmqpError | None) -> None:
        self.handle = handle
        self.closed = closed
        self.error = error

    def encode(self) -> bytes:
        """The performative's bytes."""
        items = [encode_uint(self.handle), TRUE if self.closed else FALSE, _optional_error(self.error)]
        return encode_described(DETACH, encode_list(items))


class End:
    __slots__ = ("error",)

    def __init__(self, error: AmqpError | None) -> None:
        self.error = error

    def encode(self) -> bytes:
        """The performative's bytes."""
        return encode_described(END, encode_list([_optional_error(self.error)]))


class Close:
    __slots__ = ("error",)

    def __init__(self, error: AmqpError | None) -> None:
        self.error = error

    def encode(self) -> bytes:
        """The performative's bytes."""
        return encode_described(CLOSE, encode_list([_optional_error(self.error)]))


def _optional(value: int) -> bytes:
    return NULL if value < 0 else encode_uint(value)


def _optional_error(error: AmqpError | None) -> bytes:
    return NULL if error is None else error.encode()
