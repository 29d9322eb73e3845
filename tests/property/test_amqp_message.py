"""What must hold for every message: it is taken whole or refused, and comes out as it went in (B8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.encode import encode_described, encode_list, encode_map, encode_value
from pairbus.amqp.message.delivery import DeliveryExtras, delivery_parts
from pairbus.amqp.message.layout import BROKER_KEYS, PREFIX_SIZE
from pairbus.amqp.message.scan import scan, split_batch
from pairbus.amqp.message.view import PropertiesView
from pairbus.amqp.message.whole import decode_message
from pairbus.amqp.types import Symbol, Timestamp, UByte, UInt, ULong, Uuid
from pairbus.errors import RemoteProtocolError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    texts,
    st.binary(max_size=20),
    st.integers(0, 2**40).map(Timestamp),
    st.binary(min_size=16, max_size=16).map(Uuid),
)
names = st.one_of(
    texts.map(lambda text: Symbol("x-" + text)),
    st.sampled_from(sorted(BROKER_KEYS)).map(lambda key: Symbol(key.decode())),
)
maps = st.dictionaries(names, simple, max_size=5).map(encode_map)
ids = st.one_of(st.none(), texts, st.binary(max_size=5), st.integers(0, 2**64 - 1).map(ULong))


@st.composite
def sections(draw: st.DrawFn) -> list[bytes]:
    """The sections of a sound message, in canonical order."""
    found: list[bytes] = []
    if draw(st.booleans()):
        header: list[object] = [
            draw(st.one_of(st.none(), st.booleans())),
            draw(st.sampled_from([None, UByte(4)])),
        ]
        header.append(draw(st.sampled_from([None, UInt(0), UInt(7), UInt(2**32 - 1)])))
        found.append(encode_described(0x70, encode_value(header)))
    if draw(st.booleans()):
        found.append(encode_described(0x71, draw(maps)))
    if draw(st.booleans()):
        found.append(encode_described(0x72, draw(maps)))
    if draw(st.booleans()):
        fields = [
            encode_value(draw(ids)),
            b"\x40",
            *(encode_value(draw(st.one_of(st.none(), texts))) for _ in range(3)),
        ]
        fields += [b"\x40"] * 5 + [encode_value(draw(st.one_of(st.none(), texts)))]
        found.append(encode_described(0x73, encode_list(fields)))
    if draw(st.booleans()):
        found.append(encode_described(0x74, encode_map(draw(st.dictionaries(texts, simple, max_size=4)))))
    kind = draw(st.sampled_from([0x75, 0x76, 0x77]))
    for _ in range(1 if kind == 0x77 else draw(st.integers(1, 3))):
        value = {0x75: st.binary(max_size=400), 0x76: st.lists(simple, max_size=3), 0x77: simple}[kind]
        found.append(encode_described(kind, encode_value(draw(value))))
    if draw(st.booleans()):
        found.append(encode_described(0x78, draw(maps)))
    return found


def bare(parts: list[bytes]) -> bytes:
    return b"".join(part for part in parts if part[2] >= 0x73)


@pytest.mark.promise("B8")
@given(sections(), st.integers(0, 5), st.integers(0, 2**40), st.booleans())
def test_a_message_comes_out_as_it_went_in(parts: list[bytes], count: int, until: int, locked: bool) -> None:
    payload = b"".join(parts)
    token = bytes(range(16)) if locked else b""
    try:
        blob = scan(payload, want_message_id=True).blob
    except RemoteProtocolError as error:
        assert "x-opt" in error.description  # noqa: PT017 - an annotation of ours with a foreign type
        return

    out = b"".join(delivery_parts(blob, count, 5, 6, until, token))

    assert out.endswith(bare(parts))
    before, after = decode_message(payload), decode_message(out)
    assert after.header[:3] == (before.header + [None] * 3)[:3]
    assert after.header[4] == count
    for key, value in before.message_annotations.items():
        if str(key).encode() not in BROKER_KEYS:
            assert after.message_annotations[key] == value
    assert after.message_annotations["x-opt-sequence-number"] == 5
    assert ("x-opt-lock-token" in after.delivery_annotations) is locked


@given(sections(), st.randoms(use_true_random=False))
def test_the_order_of_sections_does_not_matter(parts: list[bytes], dice: object) -> None:
    bodies = [part for part in parts if 0x75 <= part[2] <= 0x77]
    others = [part for part in parts if not 0x75 <= part[2] <= 0x77]
    shuffled = [*others, b"".join(bodies)]
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    try:
        expected = scan(b"".join(parts)).blob
    except RemoteProtocolError:
        return

    assert scan(b"".join(shuffled)).blob == expected


@given(sections(), st.dictionaries(texts, simple, max_size=3), texts)
def test_changed_properties_change_nothing_else(
    parts: list[bytes], changes: dict[str, object], reason: str
) -> None:
    payload = b"".join(parts)
    try:
        blob = scan(payload).blob
    except RemoteProtocolError:
        return
    extras = DeliveryExtras()
    extras.changed_properties = encode_map(changes)
    extras.dead_letter_reason = reason

    before = decode_message(payload)
    after = decode_message(b"".join(delivery_parts(blob, 0, 1, 2, extras=extras)))

    expected = {**before.application_properties, **changes}
    expected = {key: value for key, value in expected.items() if key not in changes or value is not None}
    assert after.application_properties == {**expected, "DeadLetterReason": reason}
    assert (after.body, after.footer) == (before.body, before.footer)
    view = PropertiesView(blob, extras.changed_properties)
    assert set(view._users()) == {name.lower() for name in expected}


def bent(parts: list[bytes], bends: list[tuple[int, int]]) -> bytes:
    hostile = bytearray(b"".join(parts))
    for place, byte in bends:
        hostile[place % len(hostile)] = byte
    return bytes(hostile)


bends = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=5)


@pytest.mark.promise("B59")
@given(st.one_of(st.binary(max_size=200), st.builds(bent, sections(), bends)))
def test_any_bytes_are_a_message_or_refused(payload: bytes) -> None:
    try:
        found = scan(payload, want_message_id=True)
    except RemoteProtocolError:
        return

    # What was taken can be delivered, dead-lettered and looked at without another error.
    extras = DeliveryExtras()
    extras.dead_letter_reason = "r"
    assert len(found.blob) <= len(payload) + PREFIX_SIZE
    assert delivery_parts(found.blob, 0, 1, 2, 3, bytes(16))
    assert delivery_parts(found.blob, 0, 1, 2, 3, bytes(16), extras=extras)
    view = PropertiesView(found.blob)
    view.system("MessageId")
    view.user("n")
    view.body_bytes()


@pytest.mark.promise("B59")
@given(st.one_of(st.binary(max_size=200), st.builds(bent, sections(), bends)))
def test_any_bytes_are_a_batch_or_refused(payload: bytes) -> None:
    try:
        messages = split_batch(payload)
    except RemoteProtocolError:
        return

    assert sum(map(len, messages)) < len(payload)
