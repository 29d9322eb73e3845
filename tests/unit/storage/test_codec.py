"""The bytes of each record, as released: old versions are read for ever."""

from __future__ import annotations

import struct

import pytest

from pairbus.engine.records import (
    AuditMarked,
    DeliveryFailed,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    EntityUsed,
    MessageDeferred,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.errors import StoreCorrupt, UsageError
from pairbus.model.message import Extra, Message
from pairbus.storage.codec import decode, encode, encode_removed
from pairbus.storage.codec_rare import encode_rare


def _extra() -> Extra:
    extra = Extra()
    extra.dead_letter_reason = "r"
    extra.dead_letter_source = "q"
    extra.changed_properties = b"\xc1"
    extra.scheduled_at = 7
    extra.enqueue_sequence_number = 8
    extra.hops = 2
    extra.ttl_ms = 9
    return extra


def _stored() -> MessageStored:
    message = Message(3, 1000, 2000, 2, "s")
    message.delivery_count = 5
    message.state = 1
    message.extra = _extra()
    return MessageStored(4, message, b"hi", b"k")


_EXTRA_1 = "07000000000000000800000000000000020000000900000000000000" + (
    "0100000072ffffffff010000007101000000c1"
)
GOLDEN: list[tuple[Record, str]] = [
    (
        _stored(),
        "01010701"
        "05000000"
        "0400000000000000"
        "0300000000000000"
        "e803000000000000"
        "d007000000000000"
        "39000000"
        "02000000"
        "0100000073"
        "010000006b" + _EXTRA_1 + "6869",
    ),
    (MessageRemoved(4, 3, 0, 0), "020100000100000004000000000000000300000000000000"),
    (DeliveryFailed(4, 3, 2, b"\xc1"), "030119000000040000000000000003000000000000000200000001000000c1"),
    (MessageDeferred(4, 3, 2), "040118000000040000000000000003000000000000000200000000000000"),
    (
        MessageMoved(4, 3, 5, _extra()),
        "050147000000040000000000000003000000000000000500000000000000" + _EXTRA_1,
    ),
    (DuplicateSeen(4, b"k", 10), "07011500000004000000000000000a00000000000000010000006b"),
    (SequenceAdvanced(4, 9, 10), "080118000000040000000000000009000000000000000a00000000000000"),
    (
        SessionStateSet(4, "s", None, 10),
        "09011900000004000000000000000a000000000000000100000073ffffffff",
    ),
    (EntityPut(1, 2, "a", "{}"), "0a01140000000100000000000000020100000061020000007b7d"),
    (EntityDeleted(1), "0b01080000000100000000000000"),
    (NamespacePut(2, "{}"), "0c010e0000000200000000000000020000007b7d"),
    (AuditMarked(7), "0d01080000000700000000000000"),
    (EntityUsed(1, 10), "0e011000000001000000000000000a00000000000000"),
]


@pytest.mark.parametrize(("record", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_version_1_is_written_and_read_as_released(record: Record, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert encode(record).hex() == golden
    read = decode(data, 0, len(data), 0)
    assert len(read) == 1
    again = read[0]
    if isinstance(again, MessageStored):
        assert again.blob is None
        assert again.message.location == len(data) - 2
        again.blob = data[again.message.location :]
    assert encode(again).hex() == golden


def test_the_audit_marker_of_an_older_version_is_read_as_one() -> None:
    data = bytes.fromhex("080118000000000000000000000008000000000000000000000000000000")

    (found,) = decode(data, 0, len(data), 0)

    assert isinstance(found, AuditMarked)
    assert found.number == 7


@pytest.mark.parametrize("data", [b"\x01\x02", b"\x02\x02", b"\x03\x02", b"\x63\x01", b"\x00\x00"])
def test_an_unknown_type_or_version_is_said(data: bytes) -> None:
    data = data.ljust(80, b"\0")
    with pytest.raises(StoreCorrupt, match=r"unknown|cannot be read"):
        decode(data, 0, len(data), 0)


def test_a_number_out_of_range_is_refused() -> None:
    message = Message(1, 1, 0, 0, None)
    message.delivery_count = 1 << 40
    for record in (MessageStored(4, message, b"", b""), SequenceAdvanced(1 << 70, 1, 1)):
        with pytest.raises(UsageError, match="out of range"):
            encode(record)
    for queue_id, number in ((4, -1), (-1, 1)):
        with pytest.raises(UsageError, match="out of range"):
            encode_removed(queue_id, [number])


def test_messages_one_after_the_other_keep_their_own_facts() -> None:
    """Ordinary messages share what the record of the one before them said, and only that."""
    facts = [(4, 1, 10, 0, 1), (4, 2, 10, 0, 1), (4, 3, 11, 0, 1), (4, 4, 11, 50, 1), (4, 5, 11, 50, 2)]
    facts += [(8, 6, 11, 50, 2), (4, 7, 11, 50, 2), (4, 8, 11, 50, 2), (4, 1 << 63, 11, 50, 2)]
    data = b""
    for queue_id, number, enqueued_at, expires_at, size in facts:
        message = Message(number, enqueued_at, expires_at, size, None)
        data += encode(MessageStored(queue_id, message, b"x" * size, b""))
        message.delivery_count = 3
        data += encode(MessageStored(queue_id, message, b"x" * size, b""))

    records = decode(data, 0, len(data), 0)

    found = []
    for record in records:
        assert isinstance(record, MessageStored)
        message = record.message
        found.append(
            (
                (
                    record.queue_id,
                    message.sequence_number,
                    message.enqueued_at,
                    message.expires_at,
                    message.size,
                ),
                message.delivery_count,
            )
        )
    assert found == [(fact, count) for fact in facts for count in (0, 3)]


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_number_out_of_range_is_refused_after_one_that_is_not(number: int) -> None:
    encode(MessageStored(4, Message(1, 2, 3, 1, None), b"x", b""))

    with pytest.raises(UsageError, match="out of range"):
        encode(MessageStored(4, Message(number, 2, 3, 1, None), b"x", b""))


def test_a_message_needs_its_bytes() -> None:
    with pytest.raises(UsageError, match="without its blob"):
        encode(MessageStored(4, Message(1, 1, 0, 0, None), None, b""))


def test_hot_records_have_their_own_encoder() -> None:
    with pytest.raises(UsageError, match="own encoder"):
        encode_rare(MessageRemoved(4, 1, 0, 0))


def test_a_record_that_runs_past_its_frame_is_refused() -> None:
    data = encode(_stored())
    with pytest.raises(StoreCorrupt, match="past its frame"):
        decode(data, 0, len(data) - 1, 0)


def test_an_absent_value_where_one_must_be_is_refused() -> None:
    body = struct.pack("<QqI", 4, 10, 0xFFFF_FFFF)
    data = struct.pack("<BBI", 7, 1, len(body)) + body
    with pytest.raises(StoreCorrupt, match="absent"):
        decode(data, 0, len(data), 0)
