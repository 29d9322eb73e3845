"""The management node of an entity: sessions (B28, B51, B53)."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Array, Int, Long, Symbol, Timestamp, UInt
from pairbus.gateway.management.sessions import ALL_SESSIONS_MS
from pairbus.model.entity import Settings
from tests.simulation.wire import ClientReceiver
from tests.unit.gateway.wire_bench import START, Peer, WireBench, message

LOST = (410, "com.microsoft:session-lock-lost")


def with_session() -> tuple[WireBench, Peer, ClientReceiver]:
    bench = WireBench()
    bench.queue("q", Settings(requires_session=True))
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    sender.send(message("m", group_id="a"))
    return bench, peer, accept(bench, peer, "a")


def accept(bench: WireBench, peer: Peer, session_id: str | None) -> ClientReceiver:
    receiver = peer.session.receiver(
        "q", filter={Symbol("com.microsoft:session-filter"): session_id}, credit=5
    )
    bench.settle()
    return receiver


@pytest.mark.promise("B53")
def test_the_holder_writes_and_reads_the_state() -> None:
    bench, peer, receiver = with_session()
    assert peer.answer("q", "get-session-state", {"session-id": "a"}, receiver.name) == {
        "session-state": None
    }
    peer.answer("q", "set-session-state", {"session-id": "a", "session-state": b"one"}, receiver.name)
    receiver.detach()
    other = bench.peer()
    next_one = accept(bench, other, "a")
    assert other.answer("q", "get-session-state", {"session-id": "a"}, next_one.name) == {
        "session-state": b"one"
    }
    assert (
        other.refusal("q", "set-session-state", {"session-id": "a", "session-state": 5}, next_one.name)[0]
        == 400
    )


@pytest.mark.promise("B53")
def test_nobody_but_the_holder_touches_a_session() -> None:
    bench, peer, receiver = with_session()
    stranger = bench.peer()
    for link in ("", receiver.name, "another"):
        for operation in ("get-session-state", "set-session-state", "renew-session-lock"):
            assert stranger.refusal("q", operation, {"session-id": "a", "session-state": b"x"}, link) == LOST
    assert peer.refusal("q", "get-session-state", {"session-id": "a"}, "another") == LOST
    assert peer.answer("q", "get-session-state", {"session-id": "a"}) == {"session-state": None}


@pytest.mark.promise("B53")
def test_a_receiver_that_holds_another_session_touches_only_its_own() -> None:
    bench, peer, receiver = with_session()
    other = bench.peer()
    theirs = accept(bench, other, "b")
    assert theirs.is_attached
    peer.answer("q", "set-session-state", {"session-id": "a", "session-state": b"mine"}, receiver.name)
    for link in ("", theirs.name, receiver.name):
        for operation in ("set-session-state", "get-session-state", "renew-session-lock"):
            body = {"session-id": "a", "session-state": b"theirs"}
            assert other.refusal("q", operation, body, link) == LOST

    # On one connection too: the name of the link says which receiver asks.
    second = accept(bench, peer, "c")
    body = {"session-id": "a", "session-state": b"theirs"}
    assert peer.refusal("q", "set-session-state", body, second.name) == LOST
    assert peer.answer("q", "get-session-state", {"session-id": "a"}, receiver.name) == {
        "session-state": b"mine"
    }


@pytest.mark.promise("B51", "B53")
def test_who_lost_a_session_cannot_write_over_its_successor() -> None:
    bench, peer, receiver = with_session()
    bench.wait(60_000)
    assert receiver.error is not None
    assert receiver.error.condition == "com.microsoft:session-lock-lost"
    other = bench.peer()
    successor = accept(bench, other, "a")
    other.answer("q", "set-session-state", {"session-id": "a", "session-state": b"mine"}, successor.name)
    for link in ("", receiver.name):
        assert (
            peer.refusal("q", "set-session-state", {"session-id": "a", "session-state": b"late"}, link)
            == LOST
        )
    assert other.answer("q", "get-session-state", {"session-id": "a"}, successor.name) == {
        "session-state": b"mine"
    }


@pytest.mark.promise("B28")
def test_a_session_is_renewed() -> None:
    bench, peer, receiver = with_session()
    bench.now += 30_000
    answer = peer.answer("q", "renew-session-lock", {"session-id": "a"}, receiver.name)
    assert answer["expiration"].ms == bench.now + 60_000  # type: ignore[attr-defined]
    bench.wait(59_999)
    assert receiver.is_attached
    bench.wait(1)
    assert receiver.detached


@pytest.mark.promise("B51")
def test_a_held_session_is_refused_to_others() -> None:
    bench, _, _ = with_session()
    second = accept(bench, bench.peer(), "a")
    assert second.error is not None
    assert second.error.condition == "com.microsoft:session-cannot-be-locked"


def test_waiting_for_any_session_ends_with_a_timeout() -> None:
    bench, _, _ = with_session()
    waiting = bench.peer().session.receiver(
        "q",
        filter={Symbol("com.microsoft:session-filter"): None},
        properties={Symbol("com.microsoft:timeout"): UInt(5_000)},
    )
    bench.wait(4_999)
    assert not waiting.detached
    bench.wait(1)
    assert waiting.error is not None
    assert waiting.error.condition == "com.microsoft:timeout"


def test_who_waits_is_told_when_the_entity_goes() -> None:
    bench, peer, receiver = with_session()
    waiting = accept(bench, bench.peer(), None)
    entity = bench.namespace.find("q")
    assert entity is not None
    bench.namespace.delete(entity, bench.now)
    bench.settle()

    for link in (receiver, waiting):
        assert link.detached
        assert link.error is not None
        assert link.error.condition == "amqp:not-found"
    assert not peer.client.closed


def test_deferred_messages_of_a_session_need_its_holder() -> None:
    bench, peer, receiver = with_session()
    receiver.defer(receiver.deliveries[0])
    bench.settle()
    body: dict[str, object] = {"sequence-numbers": Array([Long(1)]), "receiver-settle-mode": UInt(1)}
    assert peer.refusal("q", "receive-by-sequence-number", body) == LOST
    assert bench.peer().refusal("q", "receive-by-sequence-number", {**body, "session-id": "a"}) == LOST
    entries = peer.answer("q", "receive-by-sequence-number", {**body, "session-id": "a"}, receiver.name)[
        "messages"
    ]
    assert isinstance(entries, list)
    settle: dict[str, object] = {
        "disposition-status": "completed",
        "lock-tokens": Array([entries[0]["lock-token"]]),
    }
    assert peer.refusal("q", "update-disposition", settle) == LOST
    peer.answer("q", "update-disposition", {**settle, "session-id": "a"})


def test_sessions_are_listed() -> None:
    _, peer, receiver = with_session()
    body: dict[str, object] = {"last-updated-time": Timestamp(ALL_SESSIONS_MS), "skip": Int(0), "top": Int(5)}
    assert peer.answer("q", "get-message-sessions", body) == {"skip": 1, "sessions-ids": ["a"]}
    since = {**body, "last-updated-time": Timestamp(START - 1)}
    assert peer.refusal("q", "get-message-sessions", since) == (204, "com.microsoft:session-not-found")
    peer.answer("q", "set-session-state", {"session-id": "a", "session-state": b"s"}, receiver.name)
    assert peer.answer("q", "get-message-sessions", since) == {"skip": 1, "sessions-ids": ["a"]}
