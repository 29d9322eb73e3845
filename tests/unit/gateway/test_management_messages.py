"""The management node of an entity: messages."""

from __future__ import annotations

import pytest

from pairbus.amqp.encode import encode_list, encode_value
from pairbus.amqp.message.whole import decode_message
from pairbus.amqp.states import (
    ACCEPTED_CODE,
    MODIFIED_CODE,
    REJECTED_CODE,
    RELEASED_CODE,
)
from pairbus.amqp.types import Array, Described, Int, Long, Symbol, Timestamp, UInt, ULong, Uuid
from pairbus.gateway.telemetry.audit_rows import AuditRows
from tests.simulation.wire import ClientReceiver, Delivery
from tests.unit.gateway.wire_bench import START, Peer, WireBench, message, with_messages

NUMBERS = "sequence-numbers"


def receive(bench: WireBench, peer: Peer, count: int) -> tuple[ClientReceiver, list[Delivery]]:
    receiver = peer.session.receiver("q", credit=count)
    bench.settle()
    assert len(receiver.deliveries) == count
    return receiver, receiver.deliveries


def lock_token(delivery: Delivery) -> Uuid:
    found = delivery.message.delivery_annotations["x-opt-lock-token"]
    assert isinstance(found, Uuid)
    return found


def bodies(answer: dict[str, object]) -> list[object]:
    entries = answer["messages"]
    assert isinstance(entries, list)
    return [decode_message(entry["message"]).body for entry in entries]


@pytest.mark.promise("B33")
def test_peek_shows_messages_in_order_and_none_is_no_content() -> None:
    bench, peer = with_messages(3)
    body = {"from-sequence-number": Long(2), "message-count": Int(10)}
    assert bodies(peer.answer("q", "peek-message", body)) == ["m1", "m2"]
    status, condition = peer.refusal("q", "peek-message", {**body, "from-sequence-number": Long(9)})
    assert (status, condition) == (204, "com.microsoft:message-not-found")
    assert bench.namespace.find("q").counts().active == 3  # type: ignore[union-attr]


def test_peek_leaves_the_body_out_when_asked(bench: WireBench) -> None:
    bench.queue("q")
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    sender.send(message("secret", message_id="m", application_properties={"color": "red"}, subject="s"))
    bench.settle()

    body = {"from-sequence-number": Long(1), "message-count": Int(10)}
    for omitted, expected in ((True, None), (False, "secret"), (None, "secret")):
        entries = peer.answer("q", "peek-message", {**body, "omit-message-body": omitted})["messages"]
        assert isinstance(entries, list)
        seen = decode_message(entries[0]["message"])
        assert seen.body == expected
        assert (b"secret" in entries[0]["message"]) == (expected is not None)
        assert seen.application_properties == {"color": "red"}
        assert seen.message_annotations["x-opt-sequence-number"] == 1
    assert peer.refusal("q", "peek-message", {**body, "omit-message-body": "yes"})[0] == 400


def test_a_message_that_was_scheduled_says_so_when_it_is_received() -> None:
    bench, peer = with_messages(1)
    payload = message(
        "later", message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(START + 60_000)}
    )
    peer.answer("q", "schedule-message", {"messages": [{"message-id": "m", "message": payload}]})
    bench.wait(60_000)
    peeked = peer.answer("q", "peek-message", {"from-sequence-number": Long(1), "message-count": Int(10)})
    entries = peeked["messages"]
    assert isinstance(entries, list)
    states = [
        decode_message(entry["message"]).message_annotations.get("x-opt-message-state") for entry in entries
    ]
    assert states == [None, None], "a peek shows the state it is in, which is active"

    _, deliveries = receive(bench, peer, 2)
    assert [delivery.annotation("x-opt-message-state") for delivery in deliveries] == [None, 2]


@pytest.mark.promise("B29")
@pytest.mark.parametrize("way", ["link", "management"])
def test_a_deferred_message_shows_one_delivery_more_each_time(way: str) -> None:
    bench, peer = with_messages(1)
    receiver, deliveries = receive(bench, peer, 1)
    if way == "link":
        receiver.defer(deliveries[0])
        bench.settle()
    else:
        body = {"disposition-status": "defered", "lock-tokens": Array([lock_token(deliveries[0])])}
        peer.answer("q", "update-disposition", body)
    for expected in (1, 2):
        wanted = {NUMBERS: Array([Long(1)]), "receiver-settle-mode": UInt(1)}
        entries = peer.answer("q", "receive-by-sequence-number", wanted)["messages"]
        assert isinstance(entries, list)
        assert decode_message(entries[0]["message"]).header[4] == expected
        again = {"disposition-status": "defered", "lock-tokens": Array([entries[0]["lock-token"]])}
        peer.answer("q", "update-disposition", again)


@pytest.mark.promise("B28")
def test_locks_are_renewed_all_or_none() -> None:
    bench, peer = with_messages(2)
    _, deliveries = receive(bench, peer, 2)
    tokens = [lock_token(delivery) for delivery in deliveries]
    bench.now += 10_000
    found = peer.answer("q", "renew-lock", {"lock-tokens": Array(tokens)})["expirations"]
    assert [instant.ms for instant in found] == [bench.now + 60_000] * 2  # type: ignore[attr-defined]
    bench.now += 1_000
    wrong = Array([tokens[0], Uuid(bytes(16))])
    status, condition = peer.refusal("q", "renew-lock", {"lock-tokens": wrong})
    assert (status, condition) == (410, "com.microsoft:message-lock-lost")


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        ("completed", (0, 0, 0)),
        ("abandoned", (1, 0, 0)),
        ("defered", (0, 1, 0)),
        ("suspended", (0, 0, 1)),
    ],
)
def test_settlement_away_from_the_link(status: str, counts: tuple[int, int, int]) -> None:
    bench, peer = with_messages(1)
    _, deliveries = receive(bench, peer, 1)
    peer.gateway.lost(bench.now)  # the connection is gone, the lock is not
    bench.peers.clear()
    other = bench.peer()
    body = {
        "disposition-status": status,
        "lock-tokens": Array([lock_token(deliveries[0])]),
        "deadletter-reason": "r",
        "properties-to-modify": {"seen": True},
    }
    other.answer("q", "update-disposition", body)

    entity = bench.namespace.find("q")
    assert entity is not None
    found = entity.counts()
    assert (found.active, found.deferred, found.dead_letter) == counts
    status_, condition = other.refusal("q", "update-disposition", body)
    assert (status_, condition) == (410, "com.microsoft:message-lock-lost")


@pytest.mark.parametrize(
    ("reason", "kind"), [(None, "completed"), ("Cancelled", "cancelled"), ("other", "completed")]
)
def test_the_audit_tells_a_cancelled_message_from_a_completed_one(reason: str | None, kind: str) -> None:
    bench, peer = with_messages(1)
    rows = AuditRows()
    bench.broker.serve(rows)
    _, deliveries = receive(bench, peer, 1)
    body: dict[str, object] = {
        "disposition-status": "completed",
        "lock-tokens": Array([lock_token(deliveries[0])]),
    }
    if reason is not None:
        body["deadletter-reason"] = reason
    peer.answer("q", "update-disposition", body)

    assert [(row.kind, row.path, row.sequence_number) for row in rows.take()] == [(kind, "q", 1)]
    assert bench.namespace.find("q").counts().active == 0  # type: ignore[union-attr]


def test_settlement_of_several_is_all_or_none() -> None:
    bench, peer = with_messages(2)
    _, deliveries = receive(bench, peer, 2)
    tokens = [lock_token(delivery) for delivery in deliveries]
    body = {"disposition-status": "completed", "lock-tokens": Array([tokens[0], Uuid(bytes(16))])}
    assert peer.refusal("q", "update-disposition", body)[0] == 410
    assert bench.namespace.find("q").counts().active == 2  # type: ignore[union-attr]
    peer.answer("q", "update-disposition", {**body, "lock-tokens": Array([tokens[0], tokens[0], tokens[1]])})
    assert bench.namespace.find("q").counts().active == 0  # type: ignore[union-attr]


@pytest.mark.promise("B44", "B46")
def test_schedule_and_cancel() -> None:
    bench, peer = with_messages(0)
    payload = message(
        "later", message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(START + 60_000)}
    )
    entry = {"message-id": "m", "message": payload}
    numbers = peer.answer("q", "schedule-message", {"messages": [entry, entry]})[NUMBERS]
    assert numbers == [1, 2]
    peer.answer("q", "cancel-scheduled-message", {NUMBERS: Array([Long(1)])})
    assert peer.refusal("q", "cancel-scheduled-message", {NUMBERS: Array([Long(1)])})[0] == 404
    receiver = peer.session.receiver("q", credit=5)
    bench.wait(59_999)
    assert not receiver.deliveries
    bench.wait(1)
    assert [delivery.message.body for delivery in receiver.deliveries] == ["later"]


@pytest.mark.promise("B34")
def test_deferred_messages_by_number() -> None:
    bench, peer = with_messages(2)
    receiver, deliveries = receive(bench, peer, 2)
    for delivery in deliveries:
        receiver.defer(delivery)
    bench.settle()
    body = {NUMBERS: Array([Long(1)]), "receiver-settle-mode": UInt(1)}
    entries = peer.answer("q", "receive-by-sequence-number", body)["messages"]
    assert isinstance(entries, list)
    peer.answer(
        "q",
        "update-disposition",
        {"disposition-status": "completed", "lock-tokens": Array([entries[0]["lock-token"]])},
    )
    body = {NUMBERS: Array([Long(2)]), "receiver-settle-mode": UInt(0)}
    assert bodies(peer.answer("q", "receive-by-sequence-number", body)) == ["m1"]
    assert peer.refusal("q", "receive-by-sequence-number", body)[0] == 404
    assert bench.namespace.find("q").counts().total == 0  # type: ignore[union-attr]


def test_old_messages_are_deleted() -> None:
    bench, peer = with_messages(3)
    body = {"message-count": Int(2), "enqueued-time-utc": Timestamp(START + 1)}
    assert peer.answer("q", "batch-delete-messages", body) == {"message-count": 2}
    assert peer.answer("q", "batch-delete-messages", body) == {"message-count": 1}
    assert peer.refusal("q", "batch-delete-messages", body)[0] == 204
    assert bench.namespace.find("q").counts().total == 0  # type: ignore[union-attr]


@pytest.mark.promise("M11")
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("peek-message", {"from-sequence-number": "x", "message-count": Int(1)}),
        ("peek-message", {"from-sequence-number": Long(1), "message-count": Int(0)}),
        ("peek-message", {"from-sequence-number": Long(1), "message-count": True}),
        ("peek-message", {"from-sequence-number": Long(1), "message-count": Int(1), "session-id": 5}),
        ("peek-message", "no map"),
        ("renew-lock", {}),
        ("renew-lock", {"lock-tokens": []}),
        ("renew-lock", {"lock-tokens": ["x"]}),
        ("cancel-scheduled-message", {NUMBERS: []}),
        ("cancel-scheduled-message", {NUMBERS: ["1"]}),
        ("schedule-message", {"messages": []}),
        ("schedule-message", {"messages": [{}]}),
        ("schedule-message", {"messages": [{"message": b"\x00"}]}),
        ("update-disposition", {"disposition-status": "eaten", "lock-tokens": []}),
        ("update-disposition", {"disposition-status": 5}),
        ("batch-delete-messages", {"message-count": Int(1), "enqueued-time-utc": 5}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(operation: str, body: object) -> None:
    bench, peer = with_messages(1)
    assert peer.refusal("q", operation, body)[0] == 400
    assert bench.namespace.find("q").counts().active == 1  # type: ignore[union-attr]


def test_an_unknown_operation_is_refused() -> None:
    _, peer = with_messages(0)
    assert peer.refusal("q", "make-coffee", {})[1] == "amqp:not-implemented"


@pytest.mark.parametrize("way", ["complete", "abandon", "defer", "dead_letter", "release"])
def test_every_unsettled_outcome_is_answered_with_the_same_one(way: str) -> None:
    """A client that settles in two steps waits for the second (AMQP 1.0, 2.6.12)."""
    bench, peer = with_messages(1)
    receiver, deliveries = receive(bench, peer, 1)
    if way == "release":
        receiver.release(deliveries[0], settled=False)
    else:
        getattr(receiver, way)(deliveries[0])
    bench.settle()

    expected = {
        "complete": ACCEPTED_CODE,
        "abandon": MODIFIED_CODE,
        "defer": MODIFIED_CODE,
        "dead_letter": REJECTED_CODE,
        "release": RELEASED_CODE,
    }[way]
    outcome = receiver.outcomes[deliveries[0].delivery_id]
    assert outcome is not None
    assert outcome.code == expected
    assert outcome.error is None


@pytest.mark.promise("B59")
def test_changed_property_that_no_long_can_hold_is_refused_or_kept_and_costs_no_connection() -> None:
    bench = WireBench()
    bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q", credit=1)
    bench.settle()
    sender.send(message("x"))
    bench.settle()
    lock = receiver.deliveries[0].tag
    body = {
        "disposition-status": "abandoned",
        "lock-tokens": Array([Uuid(_rfc(lock))]),
        "properties-to-modify": {"wide": ULong(2**64 - 1)},
    }

    answer = peer.ask("q", "update-disposition", body)

    assert answer is not None
    assert not peer.gateway.is_closed


def _rfc(tag: bytes) -> bytes:
    """A delivery tag's GUID in the order of its text."""
    return tag[3::-1] + tag[5:3:-1] + tag[7:5:-1] + tag[8:]


@pytest.mark.promise("B12")
def test_changed_properties_leave_the_reserve_of_a_full_disk_alone(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q", credit=3)
    bench.settle()
    for _ in range(3):
        sender.send(message("x"))
    bench.settle()
    bench.store.has_room = lambda size: False  # type: ignore[method-assign]
    first, second, third = receiver.deliveries
    changes: dict[str, object] = {"note": "y" * 60_000}

    fields = [encode_value(True), encode_value(False), encode_value({Symbol("note"): changes["note"]})]
    receiver.settle(first, encode_value(Described(ULong(MODIFIED_CODE), []))[:-1] + encode_list(fields))
    bench.settle()
    refused = receiver.outcomes[first.delivery_id]
    assert refused is not None
    assert refused.error is not None
    assert refused.error.condition == "amqp:resource-limit-exceeded"
    body = {
        "disposition-status": "abandoned",
        "lock-tokens": Array([Uuid(_rfc(second.tag))]),
        "properties-to-modify": changes,
    }
    assert peer.refusal("q", "update-disposition", body)[0] == 403

    receiver.complete(second)
    receiver.abandon(third)
    bench.settle()
    assert entity.main.stored_ever - len(entity.main.messages) == 1
    assert receiver.outcomes[third.delivery_id] is not None


@pytest.mark.promise("B12")
def test_messages_that_are_settled_together_need_room_for_the_changes_of_all(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q", credit=5)
    bench.settle()
    for _ in range(5):
        sender.send(message("x"))
    bench.settle()
    bench.store.has_room = lambda size: size <= 3_500  # type: ignore[method-assign]
    tokens = [Uuid(_rfc(one.tag)) for one in receiver.deliveries]
    body = {"disposition-status": "abandoned", "properties-to-modify": {"note": "y" * 1_000}}

    status, condition = peer.refusal("q", "update-disposition", {**body, "lock-tokens": Array(tokens)})

    assert (status, condition) == (403, "amqp:resource-limit-exceeded")
    assert len(entity.main.locks) == 5, "none was settled"
    assert all(one.extra is None for one in entity.main.messages.values())
    peer.answer("q", "update-disposition", {**body, "lock-tokens": Array(tokens[:3])})
    assert len(entity.main.locks) == 2


@pytest.mark.promise("B12")
def test_a_full_disk_takes_a_short_dead_letter_text_and_refuses_a_long_one(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q", credit=2)
    bench.settle()
    for _ in range(2):
        sender.send(message("x"))
    bench.settle()
    bench.store.has_room = lambda size: False  # type: ignore[method-assign]
    body: dict[str, object] = {"disposition-status": "suspended", "deadletter-reason": "bad"}
    first, second = (Array([Uuid(_rfc(one.tag))]) for one in receiver.deliveries)
    peer.answer(
        "q", "update-disposition", {**body, "lock-tokens": first, "deadletter-description": "d" * 500}
    )
    long = {**body, "lock-tokens": second, "deadletter-description": "d" * 4_000}
    assert peer.refusal("q", "update-disposition", long)[0] == 403
    assert entity.counts().dead_letter == 1
    peer.answer("q", "update-disposition", {**body, "lock-tokens": second})
    assert entity.counts().dead_letter == 2
