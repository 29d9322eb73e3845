"""A request to a node that answers whose bytes are malformed: it is answered or rejected, never left without a word."""

from __future__ import annotations

import pytest

from pairbus.amqp.encode import encode_string
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE
from pairbus.amqp.types import Int, Long
from pairbus.gateway.management.node import OPERATIONS
from tests.simulation.wire import RequestLink
from tests.unit.gateway.wire_bench import Peer, WireBench, token

VALUE = b"\x00\x53\x77"
"""The beginning of a section with one value."""
MALFORMED = {
    "a string that is not UTF-8": b"\xa1\x02\xff\xfe",
    "a symbol that is not ASCII": b"\xa3\x02\xff\xfe",
    "a list of one value without it": b"\xc0\x01\x01",
    "a list of more values than there are bytes": b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    "an array of nothing": b"\xf0\x00\x00\x00\x05\x00\x0f\x00\x00\x40",
    "a boolean of two": b"\x56\x02",
    "no constructor": b"\xff",
    "nothing": b"",
}
NODES = ["$cbs", *OPERATIONS]


def in_a_map(key: str, value: bytes) -> bytes:
    inside = b"\x02" + encode_string(key) + value
    return b"\xc1" + bytes([len(inside)]) + inside


def attached(bench: WireBench, node: str) -> tuple[Peer, RequestLink]:
    bench.queue("q")
    peer = bench.peer()
    link = peer.session.request_link("$cbs" if node == "$cbs" else "q/$management")
    peer._cbs = link if node == "$cbs" else None
    peer._nodes = {"q": link}
    bench.settle()
    return peer, link


def head(node: str, link: RequestLink, message_id: str | None) -> bytes:
    """A request up to its body."""
    operation = "put-token" if node == "$cbs" else f"com.microsoft:{node}"
    return encode_message(
        message_id=message_id,
        reply_to=link.receiver.name,
        application_properties={"operation": operation, "name": "amqp://localhost/q"},
        body_kind="",
    )


def status_of(link: RequestLink, message_id: str) -> tuple[object, str]:
    properties = link.responses.pop(message_id).application_properties
    status = properties.get("statusCode", properties.get("status-code"))
    return status, str(properties.get("statusDescription", properties.get("status-description")))


def assert_serves_on(peer: Peer, node: str) -> None:
    if node == "$cbs":
        assert peer.put_token(token("root", "root-1"), "q") == 202
    else:
        body = {"from-sequence-number": Long(1), "message-count": Int(1)}
        assert peer.refusal("q", "peek-message", body) == (204, "com.microsoft:message-not-found")


@pytest.mark.promise("B59")
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("value", MALFORMED.values(), ids=list(MALFORMED))
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_malformed_body_is_answered_with_400(
    bench: WireBench, node: str, value: bytes, is_inside: bool
) -> None:
    peer, link = attached(bench, node)
    body = in_a_map("session-id", value) if is_inside else value

    delivery = link._asked["m"] = link.sender.send(head(node, link, "m") + VALUE + body)
    bench.settle()

    status, description = status_of(link, "m")
    assert status == 400
    assert "The request cannot be read: " in description
    assert link.sender.outcomes[delivery].code == ACCEPTED_CODE
    assert_serves_on(peer, node)


@pytest.mark.promise("B59")
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("where", ["without an id", "before its id", "no message"])
def test_a_malformed_request_that_no_answer_could_name_is_rejected(
    bench: WireBench, node: str, where: str
) -> None:
    peer, link = attached(bench, node)
    payload = {
        "without an id": head(node, link, None) + VALUE + b"\xff",
        "before its id": b"\x00\x53\x72\xc1\x02\x01\xff" + head(node, link, "m"),
        "no message": b"\xff\xff",
    }[where]

    delivery = link.sender.send(payload)
    bench.settle()

    outcome = link.sender.outcomes[delivery]
    assert outcome.code == REJECTED_CODE
    assert outcome.error is not None
    assert outcome.error.condition == "amqp:decode-error"
    assert "The request cannot be read: " in str(outcome.error.description)
    assert link.responses == {}
    assert_serves_on(peer, node)


@pytest.mark.promise("M6")
def test_a_stranger_who_sends_nothing_but_malformed_requests_is_turned_away(bench: WireBench) -> None:
    stranger = bench.peer(None, "")
    link = stranger.session.request_link("$cbs")
    bench.settle()

    for _ in range(100):
        link.sender.send(b"\xff\xff")
    bench.settle()

    assert stranger.gateway.is_closed
