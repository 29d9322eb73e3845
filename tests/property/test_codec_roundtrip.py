"""Every record comes back from its bytes as it was, and no bytes break the reader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from pairbus.errors import StoreCorrupt
from pairbus.model.message import Extra, Message
from pairbus.storage.codec import decode, encode, encode_removed
from tests.attributes import attribute_names

ids = st.integers(0, 2**64 - 1)
numbers = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**32 - 1)
texts = st.text(max_size=40)
blobs = st.binary(max_size=60)


@st.composite
def extras(draw: st.DrawFn) -> Extra:
    extra = Extra()
    extra.dead_letter_reason = draw(st.none() | texts)
    extra.dead_letter_description = draw(st.none() | texts)
    extra.dead_letter_source = draw(st.none() | texts)
    extra.changed_properties = draw(blobs)
    extra.scheduled_at = draw(times)
    extra.enqueue_sequence_number = draw(numbers)
    extra.hops = draw(counts)
    extra.ttl_ms = draw(times)
    return extra


@st.composite
def stored(draw: st.DrawFn) -> MessageStored:
    blob = draw(blobs)
    message = Message(draw(numbers), draw(times), draw(times), len(blob), draw(st.none() | texts))
    message.state = draw(st.integers(0, 2))
    message.delivery_count = draw(counts)
    message.extra = draw(st.none() | extras())
    return MessageStored(draw(ids), message, blob, draw(blobs))


records = st.one_of(
    stored(),
    st.builds(MessageRemoved, ids, numbers, st.just(0), st.just(0)),
    st.builds(DeliveryFailed, ids, numbers, counts, blobs),
    st.builds(MessageDeferred, ids, numbers, counts, blobs),
    st.builds(MessageMoved, ids, numbers, ids, extras()),
    st.builds(DuplicateSeen, ids, blobs, times),
    st.builds(SequenceAdvanced, ids.filter(bool), numbers, times),
    st.builds(AuditMarked, numbers),
    st.builds(EntityUsed, ids, times),
    st.builds(SessionStateSet, ids, texts, st.none() | blobs, times),
    st.builds(EntityPut, ids, st.integers(0, 255), texts, texts),
    st.builds(EntityDeleted, ids),
    st.builds(NamespacePut, ids, texts),
)


def plain(value: object, buffer: bytes, base: int) -> Any:
    """A record as plain values; a blob that was not read is read at its location."""
    if isinstance(value, MessageStored):
        message = value.message
        blob = value.blob
        if blob is None:
            at = message.location - base
            blob = buffer[at : at + message.size]
        kept = [name for name in attribute_names(Message) or () if name != "location"]
        values = [plain(getattr(message, name), buffer, base) for name in kept]
        return ("MessageStored", value.queue_id, values, blob, value.duplicate_key)
    names = attribute_names(type(value))
    if names is None:
        return value
    return (type(value).__name__, [plain(getattr(value, name), buffer, base) for name in names])


@pytest.mark.promise("B2")
@given(st.lists(records, max_size=8), st.integers(0, 2**60))
def test_records_come_back_as_they_were(written: list[Record], base: int) -> None:
    buffer = b"".join(map(encode, written))
    read = decode(buffer, 0, len(buffer), base)
    assert [plain(record, buffer, base) for record in read] == [
        plain(record, buffer, base) for record in written
    ]
    assert all(record.blob is None for record in read if isinstance(record, MessageStored))


@given(ids, st.lists(numbers, min_size=1, max_size=50))
def test_a_run_of_removals_comes_back_one_by_one(queue_id: int, run: list[int]) -> None:
    buffer = encode_removed(queue_id, run)
    read = decode(buffer, 0, len(buffer), 0)
    assert [(r.queue_id, r.sequence_number) for r in read if isinstance(r, MessageRemoved)] == [
        (queue_id, n) for n in run
    ]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode(data, 0, len(data), 0)
    except StoreCorrupt:
        pass


@given(st.lists(records, min_size=1, max_size=3), st.integers(1, 40))
def test_a_cut_record_is_refused_or_is_a_whole_number_of_records(written: list[Record], cut: int) -> None:
    encoded = [encode(record) for record in written]
    buffer = b"".join(encoded)[:-cut]
    ends = {0}
    for part in encoded:
        ends.add(max(ends) + len(part))
    try:
        decode(buffer, 0, len(buffer), 0)
    except StoreCorrupt:
        assert len(buffer) not in ends
    else:
        assert len(buffer) in ends
