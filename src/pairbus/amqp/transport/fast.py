"""Readers and writers for what happens once per message: transfer and disposition, without objects in between.

Each reader knows the forms that clients really write and hands anything else to the general decoder, so the fast path
never decides what is valid: it only decides what is quick.

No slice here may start behind its end: interpreted that gives nothing, compiled by mypyc it raises ``SystemError``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import read_u32
from pairbus.amqp.encode import FALSE, TRUE, encode_described, encode_list, encode_uint
from pairbus.amqp.states import ACCEPTED, STATE_ACCEPTED, Outcome
from pairbus.amqp.transport.performatives import (
    DISPOSITION,
    FLOW,
    FLOW_FIELDS,
    TRANSFER,
    Disposition,
    Flow,
    Transfer,
    decode_items,
    read_performative,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

    TransferRead = tuple[i64, i64, i64, bool, bool, bool, Outcome | None, i64]
    """handle, delivery-id or -1, message-format, settled, more, aborted, state, where the payload starts."""

    DispositionRead = tuple[bool, i64, i64, bool, Outcome | None]
    """role, first, last, settled, state."""


def _idle_tails() -> dict[bytes, int]:
    """Every encoding of unset rcv-settle-mode, state, resume, aborted and batchable; with the number of fields."""
    unset = (
        (b"\x40", b"\x50\x00"),
        (b"\x40",),
        (b"\x40", b"\x42"),
        (b"\x40", b"\x42"),
        (b"\x40", b"\x41", b"\x42"),
    )
    tails = {b"": 0}  # lists may stop early, so every prefix counts
    longest = [b""]
    for index, choices in enumerate(unset):
        longest = [tail + choice for tail in longest for choice in choices]
        for tail in longest:
            tails[tail] = index + 1
    return tails


IDLE_TAILS: Final = _idle_tails()


def read_transfer(buf: bytes, offset: i64, end: i64) -> TransferRead:
    """The transfer whose list starts at ``offset``, but for its tag: the delivery-id names it within the session.

    Raises:
        RemoteProtocolError: the bytes are no transfer.
    """
    try:
        code: i64 = buf[offset]
        count: i64
        if code == 0xC0:
            stop = offset + 2 + buf[offset + 1]
            count = buf[offset + 2]
            at = offset + 3
        elif code == 0xD0:
            stop = offset + 5 + read_u32(buf, offset + 1)
            count = read_u32(buf, offset + 5)
            at = offset + 9
        else:
            return _any_transfer(buf, offset, end)
        if stop > end or count < 4:
            return _any_transfer(buf, offset, end)
        code = buf[at]
        handle: i64 = 0
        if code == 0x52:
            handle = buf[at + 1]
            at += 2
        elif code == 0x43:
            at += 1
        elif code == 0x70:
            handle = read_u32(buf, at + 1)
            at += 5
        else:
            return _any_transfer(buf, offset, end)
        code = buf[at]
        delivery_id: i64 = 0
        if code == 0x70:
            delivery_id = read_u32(buf, at + 1)
            at += 5
        elif code == 0x52:
            delivery_id = buf[at + 1]
            at += 2
        elif code == 0x43:
            at += 1
        else:
            return _any_transfer(buf, offset, end)
        if buf[at] != 0xA0:
            return _any_transfer(buf, offset, end)
        at += 2 + buf[at + 1]
        code = buf[at]
        message_format: i64 = 0
        if code == 0x43 or code == 0x40:
            at += 1
        elif code == 0x70:
            message_format = read_u32(buf, at + 1)
            at += 5
        elif code == 0x52:
            message_format = buf[at + 1]
            at += 2
        else:
            return _any_transfer(buf, offset, end)
        settled: i64 = 0x40
        more: i64 = 0x40
        if count > 4:
            settled = buf[at]
            at += 1
        if count > 5:
            more = buf[at]
            at += 1
            count -= 6
        else:
            count = 0
        # The tail must hold exactly the fields that the count announces.
        if (
            at > stop
            or (at < stop and IDLE_TAILS.get(buf[at:stop], -1) != count)
            or (at == stop and count != 0)
            or not 0x40 <= settled <= 0x42
            or not 0x40 <= more <= 0x42
        ):
            return _any_transfer(buf, offset, end)
        return handle, delivery_id, message_format, settled == 0x41, more == 0x41, False, None, stop
    except IndexError:
        return _any_transfer(buf, offset, end)


def _any_transfer(buf: bytes, offset: i64, end: i64) -> TransferRead:
    items, payload = decode_items(buf, offset, end, TRANSFER)
    frame = read_performative(Transfer, items)
    return (
        frame.handle,
        frame.delivery_id,
        max(frame.message_format, 0),
        frame.settled,
        frame.more,
        frame.aborted,
        frame.state,
        payload,
    )


def read_disposition(buf: bytes, offset: i64, end: i64) -> DispositionRead:
    """The disposition whose list starts at ``offset``.

    Raises:
        RemoteProtocolError: the bytes are no disposition.
    """
    try:
        if buf[offset] != 0xC0 or offset + 2 + buf[offset + 1] != end:
            return _any_disposition(buf, offset, end)
        role: i64 = buf[offset + 3]
        at = offset + 4
        code: i64 = buf[at]
        first: i64
        last: i64
        if code == 0x70:
            first = read_u32(buf, at + 1)
            at += 5
        elif code == 0x52:
            first = buf[at + 1]
            at += 2
        else:
            return _any_disposition(buf, offset, end)
        code = buf[at]
        if code == 0x70:
            last = read_u32(buf, at + 1)
            at += 5
        elif code == 0x52:
            last = buf[at + 1]
            at += 2
        elif code == 0x40:
            last = first
            at += 1
        else:
            return _any_disposition(buf, offset, end)
        if at >= end:
            return _any_disposition(buf, offset, end)
        tail = buf[at + 1 : end]
        settled: i64 = buf[at]
        if (
            (role == 0x41 or role == 0x42)
            and (settled == 0x41 or settled == 0x42)
            and buf[offset + 2] == ACCEPTED_TAILS.get(tail, 0)
        ):
            return role == 0x41, first, last, settled == 0x41, ACCEPTED
        return _any_disposition(buf, offset, end)
    except IndexError:
        return _any_disposition(buf, offset, end)


ACCEPTED_TAILS: Final[dict[bytes, int]] = {
    STATE_ACCEPTED: 5,
    STATE_ACCEPTED + b"\x40": 6,
    STATE_ACCEPTED + b"\x41": 6,
    STATE_ACCEPTED + b"\x42": 6,
    b"\x00\x53\x24\xc0\x01\x00": 5,
    b"\x00\x53\x24\xc0\x01\x00\x40": 6,
    b"\x00\x53\x24\xc0\x01\x00\x41": 6,
    b"\x00\x53\x24\xc0\x01\x00\x42": 6,
}
"""What follows ``settled`` in a plain acceptance, with the number of fields the list then has."""


def _any_disposition(buf: bytes, offset: i64, end: i64) -> DispositionRead:
    items, _ = decode_items(buf, offset, end, DISPOSITION)
    frame = read_performative(Disposition, items)
    return frame.role, frame.first, frame.last, frame.settled, frame.state


def read_flow(buf: bytes, offset: i64, end: i64) -> Flow:
    """The flow whose list starts at ``offset``.

    Raises:
        RemoteProtocolError: the bytes are no flow.
    """
    try:
        if buf[offset] != 0xC0 or offset + 2 + buf[offset + 1] != end:
            return _any_flow(buf, offset, end)
        count: i64 = buf[offset + 2]
        values: list[int] = []
        at = offset + 3
        for _ in range(count if count < 8 else 8):
            code: i64 = buf[at]
            at += 1
            if code == 0x43:
                values.append(0)
            elif code == 0x52:
                values.append(buf[at])
                at += 1
            elif code == 0x70:
                values.append(read_u32(buf, at))
                at += 4
            elif code == 0x40:
                values.append(-1)
            else:
                return _any_flow(buf, offset, end)
        if at > end:
            return _any_flow(buf, offset, end)
        # drain, echo and properties: one byte each unless there really are properties
        rest = buf[at:end]
        if len(rest) != count - len(values) or len(values) < 4 or min(values[1:4]) < 0:
            return _any_flow(buf, offset, end)
        if rest.strip(b"\x40\x41\x42") or rest[2:] not in NO_PROPERTIES:
            return _any_flow(buf, offset, end)
        if len(values) < 8:
            values.extend([-1] * (8 - len(values)))
        return Flow(
            values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7],
            rest[:1] == b"\x41", rest[1:2] == b"\x41",
        )  # fmt: skip
    except IndexError:
        return _any_flow(buf, offset, end)


NO_PROPERTIES: Final = (b"", b"\x40")


def _any_flow(buf: bytes, offset: i64, end: i64) -> Flow:
    items, _ = decode_items(buf, offset, end, FLOW, FLOW_FIELDS)
    return read_performative(Flow, items)


# ---- writers: fixed-width fields only, so that each frame is one struct.pack ----

_ACCEPTED_RANGE: Final = struct.Struct(">IHH8sIBI6s")
_RECEIVER_ACCEPTS: Final = b"\x00\x53\x15\xc0\x12\x06\x41\x70"
_SENDER_ACCEPTS: Final = b"\x00\x53\x15\xc0\x12\x06\x42\x70"
_SETTLED_ACCEPTED: Final = b"\x41" + STATE_ACCEPTED + b"\x42"


def accepted_range(channel: int, is_receiver: bool, first: int, last: int) -> bytes:
    """The frame of ``disposition(first..last, settled, accepted)``."""
    head = _RECEIVER_ACCEPTS if is_receiver else _SENDER_ACCEPTS
    return _ACCEPTED_RANGE.pack(31, 0x0200, channel, head, first, 0x70, last, _SETTLED_ACCEPTED)


def disposition(is_receiver: bool, first: int, last: int, state: bytes, settled: bool = True) -> bytes:
    """The performative that gives a range of deliveries an encoded state, and settles them."""
    role = TRUE if is_receiver else FALSE
    fields = [role, encode_uint(first), encode_uint(last), TRUE if settled else FALSE, state, FALSE]
    return encode_described(DISPOSITION, encode_list(fields))


TRANSFER_HEAD: Final = struct.Struct(">HH6sBIB")
TAG_HEAD: Final = b"\xa0\x10"
"""What stands before a tag of 16 bytes."""
TRANSFER_SIZE: Final = 4 + TRANSFER_HEAD.size + 4 + len(TAG_HEAD) + 16 + 8
"""Bytes of a whole transfer with such a tag, without the message: size, head, delivery-id, tag and the tail that follows here."""
UNSETTLED_TAIL: Final = b"\x43\x42\x42\x40\x40\x42\x42\x42"
SETTLED_TAIL: Final = b"\x43\x41\x42\x40\x40\x42\x42\x42"


def transfer_head(channel: int, handle: int) -> bytes:
    """What is the same in every whole transfer of a link with 16-byte tags: frame header after its size, to delivery-id."""
    # list8: 1 count + 5 handle + 5 delivery-id + 18 tag + 8 more fields of one byte each
    return TRANSFER_HEAD.pack(0x0200, channel, b"\x00\x53\x14\xc0\x25\x0b", 0x70, handle, 0x70)
