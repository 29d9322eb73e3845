"""A stored message written anew: as its sender wrote it, or with some properties changed."""

from __future__ import annotations

from pairbus.amqp.encode import encode_value
from pairbus.amqp.message.rewrite import application_properties, payload_of, with_properties
from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.view import PropertiesView
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.amqp.types import UByte, UInt

FULL = encode_message(
    message_id="m",
    subject="label",
    header=[True, UByte(3), UInt(99)],
    delivery_annotations={"d": 1},
    message_annotations={"x-opt-partition-key": "p"},
    application_properties={"a": 1, "b": "two"},
    body=b"body",
    body_kind="data",
)


def test_a_stored_message_becomes_what_its_sender_wrote() -> None:
    for payload in (FULL, encode_message(body="x"), encode_message(header=[False], body="x")):
        before, after = decode_message(payload), decode_message(payload_of(scan(payload).blob))

        assert (after.header + [None] * 3)[:3] == (before.header + [None] * 3)[:3]
        assert after.delivery_annotations == before.delivery_annotations
        assert after.message_annotations == before.message_annotations
        assert after.body == before.body
        assert scan(payload_of(scan(payload).blob)).blob == scan(payload).blob


def test_application_properties_stay_encoded() -> None:
    assert application_properties(scan(FULL).blob) == {"a": encode_value(1), "b": encode_value("two")}
    assert application_properties(scan(encode_message(body="x")).blob) == {}


def test_changed_properties_touch_nothing_else() -> None:
    changed = with_properties(
        scan(FULL).blob, {"c": encode_value(3)}, {3: "new", 6: "text/plain", 12: "r", 0: None}
    )

    view = PropertiesView(changed)
    assert list(view._users()) == ["c"]
    assert (view.system("Label"), view.system("ContentType"), view.system("ReplyToSessionId")) == (
        "new",
        "text/plain",
        "r",
    )
    assert view.system("MessageId") is None
    assert view.body_bytes() == b"body"
    assert decode_message(payload_of(changed)).message_annotations == {"x-opt-partition-key": "p"}


def test_sections_appear_and_disappear_with_their_content() -> None:
    bare = scan(encode_message(body="x")).blob

    assert PropertiesView(with_properties(bare, {}, {3: "s"})).system("Subject") == "s"
    assert with_properties(bare, {}, {}) == bare
    assert not PropertiesView(with_properties(scan(FULL).blob, {}, {}))._users()
