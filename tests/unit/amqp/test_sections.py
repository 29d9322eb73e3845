"""AMQP 1.0, 3.2: the sections of a message, in and out; the client's bytes pass untouched (B8)."""

from __future__ import annotations

import pytest

from pairbus.amqp.encode import (
    NULL,
    encode_described,
    encode_list,
    encode_map,
    encode_map_items,
    encode_value,
)
from pairbus.amqp.message import delivery
from pairbus.amqp.message.delivery import HEADERS_CACHED_MAX, DeliveryExtras, delivery_parts
from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.message.rewrite import payload_of
from pairbus.amqp.message.scan import BATCH_MESSAGES_MAX, BODY_SECTIONS_MAX, Scanned, scan, split_batch
from pairbus.amqp.message.scan import _last as last
from pairbus.amqp.message.shape import LastShape
from pairbus.amqp.message.view import PropertiesView, _field
from pairbus.amqp.message.whole import DecodedMessage, decode_message, encode_message
from pairbus.amqp.types import Described, Int, Symbol, Timestamp, UByte, UInt, ULong, Uuid
from pairbus.errors import RemoteProtocolError
from tests.simulation.wire import encode_batch

TOKEN = bytes(range(16))
PING = "application/vnd.ms-servicebus-ping"


def delivered(payload: bytes, extras: DeliveryExtras | None = None, ttl_ms: int = 0) -> DecodedMessage:
    blob = scan(payload).blob
    return decode_message(b"".join(delivery_parts(blob, 2, 7, 1000, 2000, TOKEN, 0, ttl_ms, extras)))


def test_scan_finds_what_the_broker_must_know() -> None:
    payload = encode_message(
        message_id="id-1",
        group_id="session",
        header=[True, UByte(9), UInt(5000)],
        message_annotations={
            "x-opt-partition-key": "session",
            "x-opt-scheduled-enqueue-time": Timestamp(123),
            "other": 1,
        },
        application_properties={"a": 1},
        body=b"body",
        body_kind="data",
    )

    found = scan(payload, want_message_id=True)

    assert found.message_id == encode_value("id-1")
    assert (found.session_id, found.partition_key, found.scheduled_at) == ("session", "session", 123)
    assert (found.ttl_ms, found.is_ping) == (5000, False)
    assert scan(payload).message_id == b""


def test_scan_keeps_the_senders_bytes() -> None:
    payload = encode_message(
        message_id="m", application_properties={"a": 1}, body=[1, 2], body_kind="sequence"
    )

    assert scan(payload).blob[PREFIX_SIZE:] == payload
    assert b"".join(delivery_parts(scan(payload).blob, 0, 1, 2)).endswith(payload)


# A time to live beyond 49.7 days fits only the two timestamps.
def test_time_to_live_falls_back_to_the_two_timestamps() -> None:
    long_lived = encode_message(creation_time=1000, absolute_expiry_time=1000 + 2**33)
    backwards = encode_message(creation_time=1000, absolute_expiry_time=900)
    header_wins = encode_message(header=[None, None, UInt(5)], creation_time=1, absolute_expiry_time=10**6)

    assert scan(long_lived).ttl_ms == 2**33
    assert scan(backwards).ttl_ms == 0
    assert scan(header_wins).ttl_ms == 5


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (b"\xa1\x01a", b"\xb1\x00\x00\x00\x01a"),
        (b"\xa1\x01a", b"\xb0\x00\x00\x00\x01a"),
        (b"\xa1\x01a", b"\xa0\x01a"),
        (b"\xb1\x00\x00\x01\x00" + bytes(256), b"\xb0\x00\x00\x01\x00" + bytes(256)),
        (b"\x53\x00", b"\x44"),
        (b"\x53\x07", b"\x80" + (7).to_bytes(8, "big")),
    ],
)
def test_equal_message_ids_have_one_form_however_they_were_written(one: bytes, two: bytes) -> None:
    def found(raw: bytes) -> bytes:
        return scan(encode_described(0x73, encode_list([raw])), want_message_id=True).message_id

    assert found(one) == found(two) == one
    assert found(b"\xa1\x01a") != found(b"\xa1\x01b")


def test_a_uuid_is_shown_as_people_write_it() -> None:
    assert str(Uuid(TOKEN)) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("body", "kind", "is_ping"),
    [
        (None, "", True),
        (b"", "data", True),
        (None, "value", True),
        ("", "value", True),
        (b"", "value", True),
        (b"x", "data", False),
        (0, "value", False),
        ([], "sequence", False),
    ],
)
def test_a_ping_has_its_content_type_and_no_content(body: object, kind: str, is_ping: bool) -> None:
    payload = encode_message(message_id="p", content_type=PING, body=body, body_kind=kind)

    assert scan(payload).is_ping is is_ping
    assert not scan(encode_message(message_id="p", content_type="text/plain", body_kind="")).is_ping


# The Python SDK writes delivery-annotations last.
def test_sections_out_of_order_are_put_in_order_and_lose_nothing() -> None:
    header = encode_described(0x70, encode_list([b"\x41"]))
    annotations = encode_described(0x71, encode_map({Symbol("d"): 1}))
    properties = encode_described(0x73, encode_list([encode_value("id")]))
    application = encode_described(0x74, encode_map({"a": 1}))
    bodies = encode_described(0x75, encode_value(b"1")) + encode_described(0x75, encode_value(b"2"))
    footer = encode_described(0x78, encode_map({Symbol("f"): 1}))

    message = delivered(footer + bodies + application + header + properties + annotations)

    assert message.header[0] is True
    assert message.delivery_annotations == {"d": 1, "x-opt-lock-token": Uuid(TOKEN)}
    assert message.properties.message_id == "id"
    assert message.application_properties == {"a": 1}
    assert (message.body, message.footer) == (b"12", {"f": 1})
    straight = scan(properties + application + bodies + footer).blob[PREFIX_SIZE:]
    assert scan(footer + bodies + application + properties).blob[PREFIX_SIZE:] == straight


# ``_pyamqp`` reads only the short form of a descriptor.
@pytest.mark.parametrize("descriptor", [Symbol("amqp:data:binary"), None])
def test_long_descriptors_of_sections_become_short(descriptor: Symbol | None) -> None:
    long_form = b"\x80" + (0x75).to_bytes(8, "big") if descriptor is None else encode_value(descriptor)

    blob = scan(b"\x00" + long_form + encode_value(b"body")).blob

    assert blob[PREFIX_SIZE:] == encode_described(0x75, encode_value(b"body"))


def test_annotations_of_the_broker_cannot_be_forged() -> None:
    payload = encode_message(
        message_annotations={
            "x-opt-sequence-number": 999,
            "mine": "kept",
            "x-opt-enqueued-time": Timestamp(1),
            "x-opt-locked-until": Timestamp(1),
            "x-opt-enqueue-sequence-number": 9,
            "x-opt-message-state": Int(1),
            "x-opt-deadletter-source": "x",
            "also mine": [1, 2],
        },
        delivery_annotations={"x-opt-lock-token": Uuid(bytes(16)), "d": 5},
        body="x",
    )

    message = delivered(payload)

    assert message.message_annotations == {
        "x-opt-sequence-number": 7,
        "x-opt-enqueued-time": Timestamp(1000),
        "x-opt-locked-until": Timestamp(2000),
        "mine": "kept",
        "also mine": [1, 2],
    }
    assert message.delivery_annotations == {"x-opt-lock-token": Uuid(TOKEN), "d": 5}


@pytest.mark.parametrize("head", [b"\xa3", b"\xb3\0\0\0", b"\xa1", b"\xb1\0\0\0"])
def test_annotations_mean_the_same_whether_their_keys_are_symbols_or_strings(head: bytes) -> None:
    """AMQP 1.0 asks for symbols. Clients on uAMQP write strings: they schedule all the same, and can forge nothing."""
    pairs = {
        "x-opt-scheduled-enqueue-time": Timestamp(5000),
        "x-opt-partition-key": "p",
        "x-opt-sequence-number": 999,
        "mine": "kept",
    }
    items = [head + bytes([len(key)]) + key.encode() + encode_value(value) for key, value in pairs.items()]
    payload = encode_described(0x72, encode_map_items(items)) + encode_described(0x77, b"\x40")

    found = scan(payload)
    message = delivered(payload)

    assert (found.scheduled_at, found.partition_key) == (5000, "p")
    assert message.message_annotations["x-opt-sequence-number"] == 7
    assert message.message_annotations["mine"] == "kept"
    assert all(isinstance(key, Symbol) for key in message.message_annotations)


@pytest.mark.parametrize("section", [0x71, 0x72, 0x78])
@pytest.mark.parametrize("narrow", [True, False])
def test_string_keys_that_should_be_symbols_are_delivered_as_symbols(section: int, narrow: bool) -> None:
    """The Java client writes footers with string keys, and fails when it receives them."""

    def encoded(symbol: int, string: int) -> bytes:
        def key(code: int, text: str) -> bytes:
            raw = text.encode()
            return bytes([code]) + len(raw).to_bytes(1 if narrow else 4, "big") + raw

        items = [key(symbol, "is-symbol") + b"\x41", key(string, "was-string") + encode_value("as it was")]
        items.append(key(0xA1 if narrow else 0xB1, "größe") + b"\x42")  # no symbol can be that
        return encode_described(section, encode_map_items(items))

    symbol, string = (0xA3, 0xA1) if narrow else (0xB3, 0xB1)
    body = encode_described(0x77, b"\x40")
    sections = {0x78: (body, encoded(symbol, string))}.get(section, (encoded(symbol, string), body))
    wanted = {0x78: (body, encoded(symbol, symbol))}.get(section, (encoded(symbol, symbol), body))

    assert scan(b"".join(sections)).blob == scan(b"".join(wanted)).blob
    assert scan(b"".join(wanted)).blob.endswith(b"".join(wanted[1:]))
    assert encoded(symbol, symbol)[-40:] in scan(b"".join(sections)).blob


def test_annotations_may_have_numbers_and_long_symbols_as_keys() -> None:
    items = {ULong(5): 1, Symbol("k" * 300): 2, Symbol("x-opt-partition-key"): None}
    payload = encode_described(0x72, encode_map(items)) + encode_described(0x77, b"\x40")

    message = delivered(payload)

    assert message.message_annotations[5] == 1
    assert message.message_annotations["k" * 300] == 2
    assert message.message_annotations["x-opt-partition-key"] is None


def test_a_delivery_tells_header_and_annotations() -> None:
    message = delivered(encode_message(message_id="m", body="x"))

    assert message.header == [None, None, None, None, 2]
    assert message.delivery_annotations == {"x-opt-lock-token": Uuid(TOKEN)}
    assert message.body == "x"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ([], [None, None, None, None]),
        ([True], [True, None, None, None]),
        ([False, UByte(4)], [False, 4, None, None]),
        ([None, None, UInt(0)], [None, None, 0, None]),
        ([None, None, UInt(200), True, UInt(4)], [None, None, 200, True]),
        ([None, None, None, False], [None, None, None, False]),
        ([True, UByte(9), UInt(2**32 - 1)], [True, 9, 2**32 - 1, None]),
    ],
)
def test_the_senders_header_is_echoed(header: list[object], expected: list[object]) -> None:
    payload = encode_message(header=header, body="x")

    assert delivered(payload).header == [*expected, 2]
    # Also of a message that was forwarded, which is read back as its sender would have written it.
    assert delivered(payload_of(scan(payload).blob)).header == [*expected, 2]


@pytest.mark.parametrize("value", ["key", Symbol("key"), b"key", "k" * 300, Symbol("k" * 300), b"k" * 300])
def test_a_partition_key_comes_as_string_symbol_or_binary(value: str | bytes) -> None:
    payload = encode_described(0x72, encode_map({Symbol("x-opt-partition-key"): value}))

    assert scan(payload).partition_key == (value.decode() if isinstance(value, bytes) else value)
    assert delivered(payload).message_annotations["x-opt-partition-key"] == value, "as it was sent"


@pytest.mark.parametrize("value", ["key", Symbol("key"), "k" * 300, Symbol("k" * 300)])
def test_a_session_id_comes_as_string_or_symbol(value: str) -> None:
    payload = encode_described(0x73, encode_list([NULL] * 10 + [encode_value(value)]))

    assert scan(payload).session_id == value
    assert delivered(payload).properties.group_id == value


def test_time_to_live_of_the_entity_replaces_the_senders() -> None:
    payload = encode_message(header=[None, None, UInt(9000)], body="x")

    assert delivered(payload, ttl_ms=100).header[2] == 100
    assert delivered(payload, ttl_ms=2**32).header[2] is None


def test_without_lock_a_delivery_says_nothing_of_one() -> None:
    blob = scan(encode_message(message_id="m", body="x")).blob

    message = decode_message(b"".join(delivery_parts(blob, 0, 1, 5, state=2)))

    assert "x-opt-locked-until" not in message.message_annotations
    assert message.message_annotations["x-opt-message-state"] == 2
    assert message.delivery_annotations == {}


@pytest.mark.parametrize(("until", "token"), [(0, TOKEN), (9, b"")])
def test_lock_and_token_are_independent(until: int, token: bytes) -> None:
    blob = scan(encode_message(message_id="m", body="x")).blob

    message = decode_message(b"".join(delivery_parts(blob, 0, 1, 5, until, token)))

    assert ("x-opt-locked-until" in message.message_annotations) is bool(until)
    assert ("x-opt-lock-token" in message.delivery_annotations) is bool(token)


def test_deliveries_one_after_the_other_have_their_own_numbers_and_times() -> None:
    blob = scan(encode_message(message_id="m", body="x")).blob
    wanted = [(1, 10, 20), (2, 10, 20), (3, 11, 20), (4, 11, 21), (5, 10, 20), (1 << 40, 10, 20)]

    found = []
    for number, enqueued_at, until in wanted:
        message = decode_message(b"".join(delivery_parts(blob, 0, number, enqueued_at, until, TOKEN)))
        annotations = message.message_annotations
        found.append(
            (
                annotations["x-opt-sequence-number"],
                annotations["x-opt-enqueued-time"],
                annotations["x-opt-locked-until"],
            )
        )

    assert found == [(number, Timestamp(at), Timestamp(until)) for number, at, until in wanted]


def test_dead_letters_say_why_and_where() -> None:
    extras = DeliveryExtras()
    extras.dead_letter_reason, extras.dead_letter_description = "reason", "description"
    extras.dead_letter_source = "orders"
    extras.enqueue_sequence_number = 41
    payload = encode_message(
        message_id="m", application_properties={"a": 1, "n": None}, body=b"b", body_kind="data"
    )

    message = delivered(payload, extras)

    assert message.application_properties == {
        "a": 1,
        "n": None,
        "DeadLetterReason": "reason",
        "DeadLetterErrorDescription": "description",
    }
    assert message.message_annotations["x-opt-deadletter-source"] == "orders"
    assert message.message_annotations["x-opt-enqueue-sequence-number"] == 41
    assert (message.body, message.properties.message_id) == (b"b", "m")


def test_changed_properties_replace_add_and_remove() -> None:
    extras = DeliveryExtras()
    extras.changed_properties = encode_map({"a": 2, "b": None, "new": "x" * 300, "absent": None})
    payload = encode_message(application_properties={"a": 1, "b": 1, "c": 1}, body="x")

    assert delivered(payload, extras).application_properties == {"a": 2, "c": 1, "new": "x" * 300}


def test_changes_under_keys_that_are_no_text_are_left_out() -> None:
    extras = DeliveryExtras()
    extras.changed_properties = encode_map({True: 1, 5: 2, "k": 3})

    assert delivered(encode_message(body="x"), extras).application_properties == {"k": 3}
    view = PropertiesView(scan(encode_message(body="x")).blob, extras.changed_properties)
    assert list(view._users()) == ["k"]


@pytest.mark.parametrize("odd", [b"\x41", b"\x43", b"\x45", b"\x50\x01", b"\x00\x40\x40"])
def test_a_content_type_that_is_no_text_makes_no_ping(odd: bytes) -> None:
    payload = encode_described(0x73, encode_list([b"\x40"] * 6 + [odd, b"\x40"])) + encode_described(
        0x77, b"\x40"
    )

    assert not scan(payload).is_ping


def test_removing_every_property_removes_the_section() -> None:
    extras = DeliveryExtras()
    extras.changed_properties = encode_map({"a": None})

    assert (
        delivered(encode_message(application_properties={"a": 1}, body="x"), extras).application_properties
        == {}
    )


def test_extra_annotations_are_added() -> None:
    extras = DeliveryExtras()
    extras.annotations, extras.annotation_count = encode_value(Symbol("k")) + encode_value("v"), 2

    message = delivered(encode_message(message_annotations={"s": 1}, body="x"), extras)

    assert message.message_annotations["k"] == "v"
    assert message.message_annotations["s"] == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75",
        b"x",
        b"\x00\x53\x10\x45",
        b"\x00\x40\x45",
        b"\x00\x80" + (0x10).to_bytes(8, "big") + b"\x45",
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xa1\x03abc",  # data must be binary
        b"\x00\x53\x73\xc1\x01\x00",
        b"\x00\x53\x72\x45",
        b"\x00\x53\x76\xa0\x00",
        b"\x00\x53\x77\x40\x00\x53\x77\x40",
        b"\x00\x53\x77\x40\x00\x53\x75\xa0\x00",
        b"\x00\x53\x75\xa0\x00\x00\x53\x76\x45",
        b"\x00\x53\x73\x45\x00\x53\x73\x45",
        encode_described(0x70, encode_list([b"\x40", b"\x52\x01"])),  # priority is a ubyte
        encode_described(0x70, encode_list([b"\x40", b"\x40", b"\x50\x01"])),
        b"\x00\x53\x70\xc0\x03\x01\x40\x40",
        b"\x00\x53\x73\xc0\x03\x01\x40\x41",
        b"\x00\x53\x73\xc0\x04\x02\x40\x42\x42",
        b"\x00\x53\x70\xc0\x02\x00\x40\x00\x53\x75\xa0\x00",  # no items, and more bytes
        b"\x00\x53\x72\xc1\x02\x00\x40\x00\x53\x75\xa0\x00",
        b"\x00\x53\x73\xc0\x07\x00\xa1\x01a\xa1\x01b\x00\x53\x75\xa0\x01x",
        b"\x00\x53\x74\xc1\x02\x00\x40\x00\x53\x75\xa0\x00",
        encode_described(0x73, encode_list([b"\x40"] * 8 + [b"\x41"])),
        encode_described(0x73, encode_list([b"\x40"] * 9 + [b"\x41"])),
        encode_described(0x73, encode_list([b"\x40"] * 10 + [b"\x41"])),
        encode_described(0x73, encode_list([b"\x40"] * 10 + [b"\xa1\x01\xff"])),
        b"\x00\x53\x74\xc1\x02\x01\x40",
        encode_described(0x74, encode_map({Symbol("a"): 1})),
        b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x41\x41",
        b"\x00\x53\x72\xc1\x02\x01\x40",
        b"\x00\x53\x72\xc1\x04\x02\x40\x40\x40",
        encode_described(0x72, encode_map({Symbol("x-opt-partition-key"): 1})),
        encode_described(0x72, encode_map({Symbol("x-opt-scheduled-enqueue-time"): 1})),
    ],
    ids=lambda payload: payload.hex()[:40] or "empty",
)
def test_what_is_no_message_is_refused_with_decode_error(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        scan(payload, want_message_id=True)

    assert refusal.value.condition == "amqp:decode-error"


def test_body_sections_are_limited() -> None:
    with pytest.raises(RemoteProtocolError, match="body sections"):
        scan(b"\x00\x53\x75\xa0\x00" * (BODY_SECTIONS_MAX + 1))


def test_long_keys_and_texts_are_found_too() -> None:
    wide = b"\xb1\x00\x00\x00\x01g"
    payload = encode_described(0x73, encode_list([b"\x40"] * 10 + [wide]))
    payload += encode_described(0x74, encode_map({"k" * 300: 1}))

    assert scan(payload).session_id == "g"
    assert PropertiesView(scan(payload).blob).user("K" * 300) == 1


def test_remembered_headers_are_bounded() -> None:
    blob = scan(encode_message(body="x")).blob

    headers = [delivery_parts(blob, count, 1, 2)[0] for count in range(HEADERS_CACHED_MAX + 10)]

    assert len(delivery._headers) <= HEADERS_CACHED_MAX
    assert len(set(headers)) == HEADERS_CACHED_MAX + 10


# ---- batches ----


def test_a_batch_holds_one_message_per_data_section() -> None:
    messages = [encode_message(message_id=str(n), body="x" * n) for n in (1, 10, 300)]
    envelope = encode_message(message_id="1", group_id="g", body_kind="")

    assert split_batch(envelope + encode_batch(messages)) == messages
    assert split_batch(b"\x00\x80" + (0x75).to_bytes(8, "big") + encode_value(messages[0])) == messages[:1]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        encode_message(message_id="only an envelope", body_kind=""),
        encode_message(body="a value"),
        b"\x00\x53\x75\xa1\x01a",
        b"\x00\x53\x75\xa0\x05a",
        b"\x00\x53",
        b"\x00\x53\x20\x40",
        b"\x00\x53\x75\xa0\x00" * (BATCH_MESSAGES_MAX + 1),
    ],
    ids=lambda payload: payload.hex()[:40] or "empty",
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        split_batch(payload)


# ---- what filters see ----


def viewed(**fields: object) -> Scanned:
    return scan(encode_message(**fields))  # type: ignore[arg-type]


def test_a_view_finds_system_properties_by_either_name_in_any_case() -> None:
    view = PropertiesView(viewed(message_id="m", subject="s", group_id="g", reply_to="r", body="x").blob)

    assert view.system("MessageId") == view.system("message-id") == "m"
    assert view.system("Label") == view.system("SUBJECT") == "s"
    assert view.system("SessionId") == "g"
    assert view.system("replyTo") == "r"
    assert view.system("ContentType") is None
    assert view.system("NoSuchThing") is None
    assert PropertiesView(viewed(body="x").blob).system("MessageId") is None


@pytest.mark.parametrize("long", [False, True])
def test_a_property_is_read_without_looking_at_those_behind_it(long: bool) -> None:
    items = [encode_value("m"), NULL, NULL, encode_value("subject"), b"\x3f"]
    content = b"".join(items)
    head = (
        bytes([0xD0, 0, 0, 0, len(content) + 4, 0, 0, 0, 5]) if long else bytes([0xC0, len(content) + 1, 5])
    )
    section = b"\x00\x53\x73" + head + content
    assert _field(section, 0) == "m"
    assert _field(section, 1) is None
    assert _field(section, 3) == "subject"
    assert _field(section, 4) is None, "what cannot be read is absent"
    assert _field(section, 5) is None
    assert _field(section[:14], 3) is None
    assert _field(b"\x00\x53\x73\x45", 0) is None
    assert _field(b"", 0) is None


def test_a_view_finds_application_properties_in_any_case() -> None:
    properties: dict[str, object] = {"Colour": "blue", "n": 5, "nothing": None, "when": Timestamp(7)}
    view = PropertiesView(viewed(application_properties=properties, body="x").blob)

    assert (view.user("colour"), view.user("N"), view.user("when")) == ("blue", 5, Timestamp(7))
    assert view.user("nothing") is None
    assert view.has_user("NOTHING")
    assert not view.has_user("absent")
    assert list(view._users()) == ["colour", "n", "nothing", "when"]


def test_a_view_shows_changed_properties() -> None:
    blob = viewed(application_properties={"a": 1, "b": 2}, body="x").blob

    view = PropertiesView(blob, encode_map({"a": None, "b": 3, "c": 4}))

    assert list(view._users()) == ["b", "c"]
    assert view.user("b") == 3


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [(b"abc", "data", b"abc"), (None, "", b""), ("v", "value", b"\xa1\x01v"), ([], "sequence", b"\x45")],
)
def test_a_view_gives_the_bodys_bytes(body: object, kind: str, expected: bytes) -> None:
    assert PropertiesView(viewed(message_id="m", body=body, body_kind=kind).blob).body_bytes() == expected


@pytest.mark.promise("B58")
def test_a_view_never_raises_on_odd_bytes() -> None:
    odd_text = encode_described(0x74, b"\xc1\x07\x02\xa1\x01k\xa1\x01\xff") + encode_described(0x77, b"\x40")
    view = PropertiesView(scan(odd_text).blob, changed=b"\x40")

    assert view.user("k") is None
    assert PropertiesView(scan(odd_text).blob).has_user("k")
    odd_list = encode_described(0x73, b"\xc0\x05\x01\xa1\x02\xff\xff")
    assert PropertiesView(scan(odd_list).blob).system("MessageId") is None
    assert PropertiesView(bytes(PREFIX_SIZE) + b"x" * 9).body_bytes() == b""


# ---- whole messages, cold ----


def test_messages_decode_with_every_section() -> None:
    message = decode_message(
        encode_message(
            message_id=Uuid(TOKEN),
            correlation_id=ULong(5),
            to="t",
            reply_to="r",
            creation_time=5,
            application_properties={"operation": "put-token"},
            body={"k": [1, 2]},
        )
    )

    assert message.properties.message_id == Uuid(TOKEN)
    assert message.properties.message_id_raw == encode_value(Uuid(TOKEN))
    assert message.properties.correlation_id_raw == encode_value(ULong(5))
    assert (message.properties.to, message.properties.reply_to, message.properties.creation_time) == (
        "t",
        "r",
        5,
    )
    assert message.application_properties == {"operation": "put-token"}
    assert (message.body_kind, message.body) == ("value", {"k": [1, 2]})


# A response must answer with the very type of the request's id.
@pytest.mark.parametrize("message_id", [Uuid(TOKEN), "text", ULong(7), b"bytes"])
def test_a_copied_correlation_id_keeps_its_type(message_id: object) -> None:
    request = decode_message(encode_message(message_id=message_id, body=None))

    response = decode_message(encode_message(correlation_id_raw=request.properties.message_id_raw, body=None))

    assert response.properties.correlation_id == request.properties.message_id
    assert type(response.properties.correlation_id) is type(request.properties.message_id)


def test_group_sequence_is_decoded() -> None:
    payload = encode_described(0x73, encode_list([b"\x40"] * 11 + [encode_value(UInt(9))]))

    assert decode_message(payload).properties.group_sequence == 9


def test_several_bodies_of_one_kind_are_joined() -> None:
    data = encode_described(0x75, encode_value(b"a"))
    sequence = encode_described(0x76, encode_value([1]))

    assert decode_message(data + data).body == b"aa"
    assert decode_message(sequence + sequence).body == [1, 1]


@pytest.mark.parametrize(
    "payload",
    [
        encode_value(5),
        encode_value(Described("x", 5)),
        encode_described(0x75, encode_value("text")),
        encode_described(0x75, encode_value(b"a")) + encode_described(0x77, b"\x40"),
        encode_described(0x70, b"\x40"),
        encode_described(0x79, encode_map({})),
        encode_described(0x74, encode_map({1: 2})),
    ],
)
def test_what_is_no_message_is_not_decoded(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(payload)


def found_in(payload: bytes) -> list[object]:
    """All that the broker goes by; empty, if it refuses the message."""
    try:
        found = scan(payload, want_message_id=True)
    except RemoteProtocolError:
        return []
    sizes = (found.size, found.message_id_length, found.scheduled_at, found.ttl_ms)
    texts = (found.session_id, found.partition_key, found.is_ping, found.has_message_id)
    return [found.blob, found.message_id, *sizes, *texts]


def changed(payload: bytes) -> list[bytes]:
    """A message, and what comes of it when one byte before the body is another one, or when its end is missing or followed by more."""
    messages = [payload, payload + encode_described(0x78, encode_map({})), payload + b"x"]
    messages += [payload[:size] for size in range(len(payload))]
    for place in range(min(payload.index(b"\x00\x53\x75") + 6, len(payload))):
        for byte in {*range(0x40, 0x60), *(payload[place] ^ bit for bit in (1, 2, 4, 0x10, 0x80))}:
            messages.append(payload[:place] + bytes((byte,)) + payload[place + 1 :])
    return messages


@pytest.mark.promise("B8")
@pytest.mark.parametrize("body_size", [0, 1, 5, 10, 255, 256])
@pytest.mark.parametrize("content_type", [None, "text/plain", PING])
def test_what_is_found_in_a_message_does_not_follow_from_the_one_before(
    body_size: int, content_type: str | None
) -> None:
    rest = [] if content_type is None else [NULL] * 5 + [encode_value(Symbol(content_type))]

    def message(message_id: str, size: int) -> bytes:
        properties = encode_list([encode_value(message_id), *rest])
        body = encode_value(message_id[:1].encode() * size)
        header = encode_value([True])
        return b"".join(encode_described(*it) for it in ((0x70, header), (0x73, properties), (0x75, body)))

    for second in changed(message("b2", body_size)):
        last.shape = LastShape().shape
        alone = found_in(second)
        for first in (message("a1", 10), message("a1", 300), message("a", 10)):
            last.shape = LastShape().shape
            assert found_in(first)
            assert found_in(second) == alone, second


def test_a_footer_with_a_key_and_no_value_is_refused() -> None:
    footer = encode_described(0x78, b"\xc1\x04\x01\xa3\x01k")

    with pytest.raises(RemoteProtocolError, match="footer has a key without a value"):
        scan(encode_described(0x77, b"\x40") + footer)
