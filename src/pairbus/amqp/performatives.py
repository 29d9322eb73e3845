"""Reading performatives by the general way; ``hot`` has faster readers for transfer, disposition and flow."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.decode import bad, decode_list, decode_value, values_budget
from pairbus.amqp.fields import Fields
from pairbus.amqp.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    NAMES,
    OPEN,
    TRANSFER,
    UINT_MAX,
    ULONG_MAX,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from pairbus.amqp.states import error_from, outcome_from
from pairbus.amqp.terminus import Coordinator, Source, Target, source_from, target_from
from pairbus.errors import RemoteProtocolError

__all__ = [
    "ATTACH",
    "BEGIN",
    "CLOSE",
    "DETACH",
    "DISPOSITION",
    "END",
    "FLOW",
    "NAMES",
    "OPEN",
    "TRANSFER",
    "Attach",
    "Begin",
    "Close",
    "Coordinator",
    "Detach",
    "Disposition",
    "End",
    "Flow",
    "Open",
    "Performative",
    "Source",
    "Target",
    "Transfer",
    "decode_performative",
]

FIELDS_MAX: Final = 32
"""Fields of one performative; AMQP 1.0 defines at most 14."""
VALUES_MAX: Final = 1024
"""Values in the fields of one performative that are decoded: five times what the largest one of an SDK holds."""
ATTACH_VALUES_MAX: Final = 256
"""An attach may wait for its answer, and is kept until then."""
ALL_FIELDS: Final = (1 << FIELDS_MAX) - 1
OPEN_FIELDS: Final = 0b11111
"""Container id, host name, frame size, channels, idle time-out. Nothing reads a client's properties, so nothing keeps them."""
BEGIN_FIELDS: Final = 0b11111
FLOW_FIELDS: Final = 0b11_1111_1111
"""All but the properties, which Service Bus does not use."""

_SYMBOLIC: Final[dict[str, int]] = {f"amqp:{name}:list": OPEN + index for index, name in enumerate(NAMES)}


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


def decode_fields(
    buf: bytes, offset: int, end: int, where: str, wanted: int = ALL_FIELDS, values_max: int = VALUES_MAX
) -> tuple[Fields, int]:
    """The fields at ``offset``, and where the payload starts. Fields that are not wanted read as null."""
    try:
        items, offset = decode_list(buf, offset, end, wanted, FIELDS_MAX, values_budget(values_max))
    except RemoteProtocolError as error:
        raise bad(f"{where} cannot be read: {error.description}") from None
    return Fields(items, where), offset


Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close


def decode_performative(buf: bytes, offset: int, end: int) -> tuple[Performative, int]:
    """Any performative and where its payload starts; for tests and for clients. The broker reads them one by one."""
    code, offset = descriptor_code(buf, offset, end)
    if not OPEN <= code <= CLOSE:
        raise bad(f"descriptor {code} is no performative")
    fields, offset = decode_fields(buf, offset, end, NAMES[code - OPEN])
    if code == OPEN:
        return open_from(fields), offset
    if code == BEGIN:
        return begin_from(fields), offset
    if code == ATTACH:
        return attach_from(fields), offset
    if code == FLOW:
        return flow_from(fields), offset
    if code == TRANSFER:
        return transfer_from(fields), offset
    if code == DISPOSITION:
        return disposition_from(fields), offset
    if code == DETACH:
        return detach_from(fields), offset
    if code == END:
        return End(optional_error(fields.value(0))), offset
    return Close(optional_error(fields.value(0))), offset


def open_from(fields: Fields) -> Open:
    frame = Open(fields.required_text(0))
    frame.hostname = fields.text(1)
    frame.max_frame_size = fields.uint(2, UINT_MAX)
    frame.channel_max = fields.uint(3, 0xFFFF, 0xFFFF)
    frame.idle_timeout_ms = fields.uint(4, 0)
    frame.properties = fields.mapping(9) or {}
    return frame


def begin_from(fields: Fields) -> Begin:
    frame = Begin(fields.required_uint(1), fields.required_uint(2), fields.required_uint(3))
    if fields.value(0) is not None:
        frame.remote_channel = fields.uint(0, 0, 0xFFFF)
    frame.handle_max = fields.uint(4, UINT_MAX)
    return frame


def attach_from(fields: Fields) -> Attach:
    if fields.value(2) is None:
        raise bad("attach lacks its role")
    frame = Attach(fields.required_text(0), fields.required_uint(1), fields.boolean(2))
    frame.snd_settle_mode = fields.uint(3, 2, 2)
    frame.rcv_settle_mode = fields.uint(4, 0, 1)
    frame.source = source_from(fields.value(5))
    frame.target = target_from(fields.value(6))
    frame.initial_delivery_count = fields.uint(9, 0)
    frame.max_message_size = fields.uint(10, 0, ULONG_MAX)
    frame.desired_capabilities = fields.symbols(12)
    frame.properties = fields.mapping(13) or {}
    return frame


def flow_from(fields: Fields) -> Flow:
    frame = Flow()
    frame.next_incoming_id = fields.uint(0, -1)
    frame.incoming_window = fields.required_uint(1)
    frame.next_outgoing_id = fields.required_uint(2)
    frame.outgoing_window = fields.required_uint(3)
    frame.handle = fields.uint(4, -1)
    frame.delivery_count = fields.uint(5, -1)
    frame.link_credit = fields.uint(6, -1)
    frame.available = fields.uint(7, -1)
    frame.drain = fields.boolean(8)
    frame.echo = fields.boolean(9)
    return frame


def transfer_from(fields: Fields) -> Transfer:
    frame = Transfer(fields.required_uint(0))
    frame.delivery_id = fields.uint(1, -1)
    frame.delivery_tag = fields.binary(2)
    frame.message_format = fields.uint(3, -1)
    frame.settled = fields.boolean(4)
    frame.more = fields.boolean(5)
    state = fields.value(7)
    frame.state = None if state is None else outcome_from(state)
    frame.aborted = fields.boolean(9)
    return frame


def disposition_from(fields: Fields) -> Disposition:
    """A decoded disposition; a missing ``last`` means ``first``."""
    if fields.value(0) is None:
        raise bad("disposition lacks its role")
    first = fields.required_uint(1)
    frame = Disposition(fields.boolean(0), first, fields.uint(2, first))
    frame.settled = fields.boolean(3)
    state = fields.value(4)
    frame.state = None if state is None else outcome_from(state)
    return frame


def detach_from(fields: Fields) -> Detach:
    return Detach(fields.required_uint(0), fields.boolean(1), optional_error(fields.value(2)))


def optional_error(value: object) -> AmqpError | None:
    """A decoded error, or None for null."""
    return None if value is None else error_from(value)
