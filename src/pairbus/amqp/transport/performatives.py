"""The nine performatives and the two ends of a link (AMQP 1.0, 2.7, 3.5 and 4.5.1), each a dataclass with a ``Form``.

``fast`` has quicker readers for transfer, disposition and flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pairbus.amqp.composite import (
    BINARY,
    BOOLEAN,
    MAP,
    SYMBOL,
    SYMBOLS,
    TEXT,
    UINT,
    ULONG,
    UNUSED_FALSE,
    USHORT,
    Composite,
    Field,
    Kind,
    define,
    described_list,
    read_composite,
    ubyte_up_to,
    unused,
)
from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.decode import bad, decode_list, decode_value, values_budget
from pairbus.amqp.states import Outcome, error_from, outcome_from
from pairbus.errors import RemoteProtocolError

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

FIELDS_MAX: Final = 32
"""Fields of one performative; AMQP 1.0 defines at most 14."""
VALUES_MAX: Final = 1024
"""Values in the fields of one performative that are decoded: five times what the largest one of an SDK holds."""
ATTACH_VALUES_MAX: Final = 256
"""Values in an attach, which is kept until it is answered."""
ALL_FIELDS: Final = (1 << FIELDS_MAX) - 1
OPEN_FIELDS: Final = 0b11111
"""Container id, host name, frame size, channels, idle time-out. Nothing reads a client's properties, so nothing keeps them."""
BEGIN_FIELDS: Final = 0b11111
FLOW_FIELDS: Final = 0b11_1111_1111
"""All but the properties, which Service Bus does not use."""


@dataclass(slots=True)
class Source(Composite):
    """Where the messages of a link come from."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = ""
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[str, object] | None = None
    distribution_mode: str = ""
    filter: dict[str, object] | None = None
    outcomes: list[str] = field(default_factory=list)
    capabilities: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Target(Composite):
    """Where the messages of a link go to."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = ""
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[str, object] | None = None
    capabilities: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Coordinator(Composite):
    """The target of a link that declares and discharges transactions."""

    capabilities: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Open(Composite):
    """Starts a connection."""

    container_id: str = ""
    hostname: str | None = None
    max_frame_size: int = 0xFFFF_FFFF
    channel_max: int = 0xFFFF
    idle_timeout_ms: int = 0
    properties: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Begin(Composite):
    """Starts a session on a channel."""

    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    remote_channel: int = -1
    """Negative means null."""
    handle_max: int = 0xFFFF_FFFF


@dataclass(slots=True)
class Attach(Composite):
    """Starts a link on a handle, or answers that."""

    name: str = ""
    handle: int = 0
    role: bool = False
    """True when the receiver of the link sends this."""
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: Source | None = None
    target: Target | Coordinator | None = None
    initial_delivery_count: int = 0
    """Negative means null, as a receiver must send it (AMQP 1.0, 2.7.3)."""
    max_message_size: int = 0
    desired_capabilities: list[str] = field(default_factory=list)
    properties: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Flow(Composite):
    """Windows of a session and, with a handle, the credit of a link. Negative means null."""

    next_incoming_id: int = -1
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int = -1
    delivery_count: int = -1
    link_credit: int = -1
    available: int = -1
    drain: bool = False
    echo: bool = False


@dataclass(slots=True)
class Transfer(Composite):
    """One frame of a delivery; the payload follows it in the frame. Negative means null."""

    handle: int = 0
    delivery_id: int = -1
    delivery_tag: bytes | None = None
    """Mandatory in the first frame of a delivery; it may be empty there."""
    message_format: int = -1
    settled: bool = False
    more: bool = False
    state: Outcome | None = None
    """The state that was received."""
    state_bytes: bytes = b""
    """The encoded state to send."""
    aborted: bool = False


@dataclass(slots=True)
class Disposition(Composite):
    """The state of a range of deliveries."""

    role: bool = False
    """True when the receiver of the deliveries sends this."""
    first: int = 0
    last: int = 0
    settled: bool = False
    state: Outcome | None = None
    """The state that was received."""
    state_bytes: bytes = b""
    """The encoded state to send."""


@dataclass(slots=True)
class Detach(Composite):
    handle: int = 0
    closed: bool = False
    error: AmqpError | None = None


@dataclass(slots=True)
class End(Composite):
    error: AmqpError | None = None


@dataclass(slots=True)
class Close(Composite):
    error: AmqpError | None = None


def _encoded(value: Composite | AmqpError) -> bytes:
    return value.encode()


def _already_encoded(value: bytes) -> bytes:
    return value


def _read_source(value: object, where: str) -> Source:
    code, items = described_list(value, _SYMBOLIC, where)
    if code != 0x28:
        raise bad(f"descriptor 0x{code:02x} is no source")
    return read_composite(Source, items)


def _read_target(value: object, where: str) -> Target | Coordinator:
    code, items = described_list(value, _SYMBOLIC, where)
    if code == 0x29:
        return read_composite(Target, items)
    if code == 0x30:
        return read_composite(Coordinator, items)
    raise bad(f"descriptor 0x{code:02x} is no target")


_ERROR: Final = Kind(_encoded, error_from)
_STATE: Final = Kind(_already_encoded, outcome_from)
_ROLE: Final = Field("role", BOOLEAN, is_required=True)
_HANDLE: Final = Field("handle", UINT, is_required=True)
_CAPABILITIES: Final = Field("capabilities", SYMBOLS)
_PROPERTIES: Final = Field("properties", MAP, {})
_TERMINUS: Final = (
    Field("address", TEXT),
    Field("durable", UINT),
    Field("expiry_policy", SYMBOL, ""),
    Field("timeout", UINT),
    Field("dynamic", BOOLEAN),
    Field("dynamic_node_properties", MAP),
)

define(
    Source,
    0x28,
    *_TERMINUS,
    Field("distribution_mode", SYMBOL, ""),
    Field("filter", MAP),
    *unused(1),  # default-outcome
    Field("outcomes", SYMBOLS),
    _CAPABILITIES,
)
define(Target, 0x29, *_TERMINUS, _CAPABILITIES)
define(Coordinator, 0x30, _CAPABILITIES)
define(
    Open,
    OPEN,
    Field("container_id", TEXT, is_required=True),
    Field("hostname", TEXT),
    Field("max_frame_size", UINT),
    Field("channel_max", USHORT),
    Field("idle_timeout_ms", UINT, 0),
    *unused(4),  # outgoing-locales, incoming-locales, offered-capabilities, desired-capabilities
    _PROPERTIES,
)
define(
    Begin,
    BEGIN,
    Field("remote_channel", USHORT, -1),
    Field("next_outgoing_id", UINT, is_required=True),
    Field("incoming_window", UINT, is_required=True),
    Field("outgoing_window", UINT, is_required=True),
    Field("handle_max", UINT),
    *unused(3),  # offered-capabilities, desired-capabilities, properties
)
define(
    Attach,
    ATTACH,
    Field("name", TEXT, is_required=True),
    _HANDLE,
    _ROLE,
    Field("snd_settle_mode", ubyte_up_to(2)),
    Field("rcv_settle_mode", ubyte_up_to(1)),
    Field("source", Kind(_encoded, _read_source)),
    Field("target", Kind(_encoded, _read_target)),
    *unused(2),  # unsettled, incomplete-unsettled
    Field("initial_delivery_count", UINT, -1),
    Field("max_message_size", ULONG, 0),
    *unused(1),  # offered-capabilities
    Field("desired_capabilities", SYMBOLS),
    _PROPERTIES,
)
define(
    Flow,
    FLOW,
    Field("next_incoming_id", UINT, -1),
    Field("incoming_window", UINT, is_required=True),
    Field("next_outgoing_id", UINT, is_required=True),
    Field("outgoing_window", UINT, is_required=True),
    Field("handle", UINT, -1),
    Field("delivery_count", UINT, -1),
    Field("link_credit", UINT, -1),
    Field("available", UINT, -1),
    Field("drain", BOOLEAN),
    Field("echo", BOOLEAN),
    *unused(1),  # properties
)
define(
    Transfer,
    TRANSFER,
    _HANDLE,
    Field("delivery_id", UINT, -1),
    Field("delivery_tag", BINARY),
    Field("message_format", UINT, -1),
    Field("settled", BOOLEAN),
    Field("more", BOOLEAN),
    *unused(1),  # rcv-settle-mode
    Field("state", _STATE, b"", written="state_bytes"),
    UNUSED_FALSE,  # resume
    Field("aborted", BOOLEAN),
    UNUSED_FALSE,  # batchable
)
define(
    Disposition,
    DISPOSITION,
    _ROLE,
    Field("first", UINT, is_required=True),
    Field("last", UINT, stand_in="first"),
    Field("settled", BOOLEAN),
    Field("state", _STATE, b"", written="state_bytes"),
    UNUSED_FALSE,  # batchable
)
define(Detach, DETACH, _HANDLE, Field("closed", BOOLEAN), Field("error", _ERROR))
define(End, END, Field("error", _ERROR))
define(Close, CLOSE, Field("error", _ERROR))

_SYMBOLIC: Final = {
    **{f"amqp:{name}:list": OPEN + index for index, name in enumerate(NAMES)},
    "amqp:source:list": 0x28,
    "amqp:target:list": 0x29,
    "amqp:coordinator:list": 0x30,
}

Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
_PERFORMATIVES: Final[tuple[type[Performative], ...]] = (
    Open,
    Begin,
    Attach,
    Flow,
    Transfer,
    Disposition,
    Detach,
    End,
    Close,
)


def descriptor_code(buf: bytes, offset: int, end: int) -> tuple[int, int]:
    """The performative's code, whichever way the descriptor is written, and where its list starts."""
    if offset + 3 <= end and buf[offset] == 0 and buf[offset + 1] == 0x53:
        return buf[offset + 2], offset + 3
    if offset >= end or buf[offset] != 0:
        raise bad("a frame does not start with a performative")
    descriptor, offset = decode_value(buf, offset + 1, end, values_budget(1))
    if isinstance(descriptor, str):
        return _SYMBOLIC.get(str(descriptor), -1), offset
    return (descriptor if isinstance(descriptor, int) else -1), offset


def decode_items(
    buf: bytes, offset: int, end: int, code: int, wanted: int = ALL_FIELDS, values_max: int = VALUES_MAX
) -> tuple[list[object], int]:
    """The fields of performative ``code`` at ``offset``, and where the payload starts. Fields that are not wanted read as null."""
    try:
        return decode_list(buf, offset, end, wanted, FIELDS_MAX, values_budget(values_max))
    except RemoteProtocolError as error:
        raise bad(f"{NAMES[code - OPEN]} cannot be read: {error.description}") from None


_Read = TypeVar("_Read", Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)


def read_performative(kind: type[_Read], items: list[object]) -> _Read:
    """The performative whose decoded fields are ``items``."""
    return read_composite(kind, items)


def decode_performative(buf: bytes, offset: int, end: int) -> tuple[Performative, int]:
    """Any performative and where its payload starts; for tests and for clients. The broker reads them one by one."""
    code, offset = descriptor_code(buf, offset, end)
    if not OPEN <= code <= CLOSE:
        raise bad(f"descriptor {code} is no performative")
    items, offset = decode_items(buf, offset, end, code)
    return read_composite(_PERFORMATIVES[code - OPEN], items), offset


def answered_source(asked: Source | None, address: str | None, filter: dict[str, object] | None) -> Source:
    """The source to answer with: never null, the client's own except for what is given.

    A filter in the answer says that it is in place (AMQP 1.0, 3.5.3): those that are not given are left out.
    """
    source = Source() if asked is None else replace(asked, dynamic_node_properties=None)
    if address is not None:
        source.address = address
    source.filter = filter
    return source


def answered_target(asked: Target | Coordinator | None, address: str | None) -> Target | Coordinator:
    """The target to answer with: never null, the client's own except for what is given."""
    if asked is None:
        return Target(address)
    if isinstance(asked, Coordinator) or address is None:
        return asked
    return replace(asked, address=address, dynamic_node_properties=None)
