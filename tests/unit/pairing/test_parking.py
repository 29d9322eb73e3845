"""Parking by example; all inputs are in ``tests/property/test_parking.py``."""

from __future__ import annotations

import struct
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.pairing.parking import Follows, Passport
from pairbus.sdk.messages import message_bytes, sections

PASSPORT = Passport("f", 1, 1, "timeout")


def backlog(*properties: tuple[str, bytes]) -> bytes:
    items = [(sections.encode_text(name), value) for name, value in properties]
    return sections.join([sections.Section(sections.APPLICATION_PROPERTIES, sections.encode_map(items))])


PATH = ("x-ms-path", sections.encode_text("orders"))


def names(payload: bytes) -> list[str | None]:
    items = sections.map_items(sections.find(sections.split(payload), sections.APPLICATION_PROPERTIES))
    return [sections.text_of(key) for key, _ in items]


def test_aliases_are_added_only_for_what_is_set() -> None:
    plain = parking.park(message_bytes.encoded(ServiceBusMessage(b"x")), "orders", PASSPORT)
    full = ServiceBusMessage(b"x", session_id="", time_to_live=timedelta(seconds=5))

    assert names(plain) == ["x-ms-path", "x-pairbus-passport"]
    assert names(parking.park(message_bytes.encoded(full), "orders", PASSPORT)) == [
        "x-ms-sessionid",
        "x-ms-timetolive",
        "x-ms-path",
        "x-pairbus-passport",
    ]


@pytest.mark.promise("P9")
def test_the_users_own_names_survive_in_any_letter_case() -> None:
    message = ServiceBusMessage(b"x", application_properties={"X-MS-Path": "mine", "x-pairbus-user-y": 1})
    parked = parking.park(message_bytes.encoded(message), "orders", PASSPORT)

    assert names(parked)[:2] == ["x-pairbus-user-X-MS-Path", "x-pairbus-user-x-pairbus-user-y"]
    assert names(parking.restore(parked, 0).payload) == ["X-MS-Path", "x-pairbus-user-y"]


def test_a_message_is_restored_only_for_the_primary_it_was_parked_for() -> None:
    original = message_bytes.encoded(ServiceBusMessage(b"x"))
    parked = parking.park(original, "orders", Passport("f", 1, 1, "timeout", primary="localhost:40001"))

    assert parking.restore(parked, 0, primary=PrimaryIdentity.make("127.0.0.1:40001")).payload == original
    moved = PrimaryIdentity.make("localhost:40002", ["localhost:40001"])
    assert parking.restore(parked, 0, primary=moved).payload == original
    with pytest.raises(InvalidParkedPropertyError, match="localhost:40001") as caught:
        parking.restore(parked, 0, primary=PrimaryIdentity.make("localhost:40002"))
    assert caught.value.reason == "OtherPrimary"


def test_a_message_that_names_no_primary_belongs_to_the_drain_of_its_queue() -> None:
    primary = PrimaryIdentity.make("localhost:40002")
    older = parking.park(message_bytes.encoded(ServiceBusMessage(b"x")), "orders", PASSPORT)

    assert parking.restore(older, 0, primary=primary).path == "orders"
    assert parking.restore(backlog(PATH), 0, primary=primary).path == "orders"


def test_a_passport_says_what_its_message_follows() -> None:
    original = message_bytes.encoded(ServiceBusMessage(b"x", session_id="s"))
    follows = (
        Follows("contoso/x-servicebus-transfer/3", "f", 41),
        Follows("contoso/x-servicebus-transfer/5"),
    )
    parked = parking.park(original, "orders", Passport("f", 1, 42, "timeout", follows=follows))

    restored = parking.restore(parked, 0)
    assert restored.payload == original
    assert restored.passport is not None
    assert restored.passport.follows == follows


def test_a_passport_says_which_order_its_client_keeps() -> None:
    assert Passport.parse(Passport("f", 1, 2, "r", order="session").text()).order == "session"
    assert Passport.parse('{"f":"f","t":1,"n":2,"r":"timeout"}').order == "relaxed"
    assert '"o"' not in PASSPORT.text()


def test_a_passport_of_an_older_client_follows_nothing() -> None:
    assert Passport.parse('{"f":"f","t":1,"n":2,"r":"timeout"}').follows == ()
    assert '"a"' not in PASSPORT.text()


@pytest.mark.parametrize("value", ["1", '["q"]', '[["q"]]', '[["q","f","x"]]', '[["q","f",null]]', '{"q":1}'])
def test_a_passport_that_follows_nonsense_sets_its_message_aside(value: str) -> None:
    text = '{"f":"f","t":1,"n":2,"r":"r","a":' + value + "}"

    with pytest.raises(InvalidParkedPropertyError, match="x-pairbus-passport"):
        parking.restore(backlog(PATH, ("x-pairbus-passport", sections.encode_text(text))), 0)


def test_what_messages_are_kept_in_order_by() -> None:
    assert parking.order_key("relaxed", "s", "p") is None
    assert parking.order_key("session", "s", None) == "s"
    assert parking.order_key("session", "", None) == ""
    assert parking.order_key("session", None, "p") is None
    assert parking.order_key("partition", None, "p") == "p"
    assert parking.order_key("partition", "s", "s") == "s"


@pytest.mark.promise("P11")
def test_a_frozen_life_begins_again_and_a_deducted_one_does_not() -> None:
    message = message_bytes.encoded(ServiceBusMessage(b"x", time_to_live=timedelta(seconds=100)))
    parked = parking.park(message, "orders", PASSPORT)

    assert parking.restore(parked, 9_000_000).time_to_live_ms == 100_000
    assert parking.restore(parked, 9_000_000, elapsed_ms=30_000).time_to_live_ms == 70_000
    assert parking.restore(parked, 9_000_000, elapsed_ms=300_000).time_to_live_ms == 0


def test_times_that_the_application_set_are_kept_and_only_a_deducted_life_ends_earlier() -> None:
    created = 1_700_000_000_000
    properties = AmqpMessageProperties(
        message_id="m", creation_time=created, absolute_expiry_time=created + 100_000
    )
    message = message_bytes.encoded(AmqpAnnotatedMessage(data_body=b"x", properties=properties))
    parked = parking.park(message, "orders", PASSPORT)

    assert parking.restore(parked, created + 5).payload == message
    deducted = sections.split(parking.restore(parked, created + 5, elapsed_ms=30_000).payload)
    items = sections.list_items(sections.find(deducted, sections.PROPERTIES))
    assert [sections.timestamp_of(item) for item in items[8:10]] == [created + 70_000, created]


def test_the_retired_sdks_forms_are_read() -> None:
    ticks = b"\x81" + struct.pack(">q", 600_000_000)
    span = b"\x00" + sections.encode_symbol("com.microsoft:timespan") + ticks
    when = b"\x00" + sections.encode_symbol("com.microsoft:datetime-offset")
    when += b"\x81" + struct.pack(">q", parking.EPOCH_TICKS + 10_000_000)
    restored = parking.restore(
        backlog(PATH, ("x-ms-timetolive", span), ("x-ms-scheduledenqueuetimeutc", when)), 0
    )

    assert (restored.time_to_live_ms, restored.scheduled_ms, restored.passport) == (60_000, 1_000, None)


def test_an_unlimited_life_is_none() -> None:
    unlimited = b"\x81" + struct.pack(">q", 2**63 - 1)

    assert parking.restore(backlog(PATH, ("x-ms-timetolive", unlimited)), 0).time_to_live_ms is None


@pytest.mark.parametrize(
    ("payload", "reason", "found"),
    [
        (backlog(), "NotFromPairedNamespace", "found nothing"),
        (backlog(("x-ms-path", sections.encode_long(7))), "NotFromPairedNamespace", "found long"),
        (backlog(("x-ms-path", sections.encode_text("/"))), "NotFromPairedNamespace", "names an entity"),
        (backlog(PATH, ("x-ms-sessionid", sections.encode_long(7))), "InvalidParkedProperty", "found long"),
        (
            backlog(PATH, ("x-ms-timetolive", sections.encode_text("5s"))),
            "InvalidParkedProperty",
            "found string",
        ),
        (backlog(PATH, ("x-ms-timetolive", sections.encode_long(-1))), "InvalidParkedProperty", "found -1"),
        (backlog(PATH, ("x-ms-scheduledenqueuetimeutc", b"\x41")), "InvalidParkedProperty", "found boolean"),
        (
            backlog(PATH, ("x-pairbus-passport", sections.encode_text("no"))),
            "InvalidParkedProperty",
            "a passport",
        ),
        (backlog(PATH, ("x-pairbus-partitionkey", b"\x42")), "InvalidParkedProperty", "found boolean"),
        (b"\x00\x53\x74\xc1\xff", "InvalidParkedProperty", "cannot be read"),
        (b"garbage", "InvalidParkedProperty", "cannot be read"),
    ],
)
def test_what_cannot_be_restored_says_what_was_expected_and_found(
    payload: bytes, reason: str, found: str
) -> None:
    with pytest.raises(InvalidParkedPropertyError, match=found) as caught:
        parking.restore(payload, 0)

    assert caught.value.reason == reason


def test_the_callers_object_is_never_changed() -> None:
    message = ServiceBusMessage(b"x", application_properties={"b": b"bytes"})
    before = repr(message), dict(message.application_properties or {})
    message_bytes.encoded(message)
    message_bytes.with_message_id(message)

    assert (repr(message), dict(message.application_properties or {})) == before


@pytest.mark.promise("P3")
def test_an_id_is_given_once_to_a_copy() -> None:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    raw = AmqpAnnotatedMessage(data_body=b"x")
    fixed = message_bytes.with_message_id(raw)

    assert raw.properties is None
    assert isinstance(fixed, AmqpAnnotatedMessage)
    assert message_bytes.message_id(fixed)
    assert message_bytes.with_message_id(fixed) is fixed
