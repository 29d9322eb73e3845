"""The fault switchboard: what can be switched on, for how long, and what clients then see."""

from __future__ import annotations

import json

import pytest

from pairbus.amqp.states import ACCEPTED_CODE
from pairbus.amqp.types import Int, Long, Symbol, UInt
from pairbus.errors import ArgumentError
from pairbus.gateway.faults import DURATION_MAX_MS, FAULTS_MAX, NAMES_SHOWN_MAX, REFUSE, Faults
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.simulation.wire import ClientLink
from tests.unit.gateway.wire_bench import START, WireBench, message, token


def test_a_fault_strikes_as_often_as_it_was_told() -> None:
    faults = Faults()
    faults.add({"kind": "refuse", "entity": "Q", "count": 2}, START)
    assert faults.is_on
    assert faults.strike(REFUSE, "other", START) is None
    assert [faults.strike(REFUSE, "q", START) is not None for _ in range(3)] == [True, True, False]
    assert not faults.is_on


def test_a_fault_ends_by_itself() -> None:
    faults = Faults()
    faults.add({"kind": "refuse", "duration_ms": 100}, START)
    assert faults.strike(REFUSE, "anything", START + 99) is not None
    assert faults.strike(REFUSE, "anything", START + 100) is None
    assert faults.snapshot(START + 100) == []


def test_faults_are_shown_and_cleared() -> None:
    faults = Faults()
    faults.add({"kind": "delay", "delay_ms": 5, "entity": None}, START)
    assert faults.snapshot(START) == [
        {"kind": "delay", "entity": None, "remaining_ms": DURATION_MAX_MS, "count": None, "delay_ms": 5}
    ]
    faults.clear()
    assert not faults.is_on


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"kind": "nonsense"},
        {"kind": "refuse", "typo": 1},
        {"kind": "refuse", "entity": 5},
        {"kind": "refuse", "count": -1},
        {"kind": "refuse", "count": True},
        {"kind": "refuse", "duration_ms": "1"},
        {"kind": "delay", "delay_ms": 10**9},
    ],
)
def test_what_is_no_fault_is_refused(request_: dict[str, object]) -> None:
    faults = Faults()
    with pytest.raises(ArgumentError):
        faults.add(request_, START)
    assert not faults.is_on


@pytest.mark.promise("M12")
def test_the_number_of_faults_is_bounded() -> None:
    faults = Faults()
    for _ in range(FAULTS_MAX):
        faults.add({"kind": "refuse"}, START)
    with pytest.raises(ArgumentError):
        faults.add({"kind": "refuse"}, START)


def test_the_switchboard_over_http(bench: WireBench) -> None:
    root = token("root", "root-1")
    assert bench.http("GET", "/$faults", root).status == 404
    bench.broker.offers_faults = True
    bench.queue()
    body = json.dumps({"kind": "throttle", "entity": "q"}).encode()
    assert json.loads(bench.http("POST", "/$faults", root, body).body)["faults"][0]["kind"] == "throttle"
    assert bench.http("POST", "/$faults", root, b"not json").status == 400
    assert bench.http("POST", "/$faults", root, b"[]").status == 400
    assert bench.http("POST", "/$faults", root, b'{"kind":"x"}').status == 400
    assert bench.http("PATCH", "/$faults", root).status == 405
    assert json.loads(bench.http("DELETE", "/$faults", root).body) == {"faults": []}


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        ("throttle", "com.microsoft:server-busy"),
        ("fill", "amqp:resource-limit-exceeded"),
        ("refuse", None),
    ],
)
def test_a_send_is_refused_and_leaves_nothing(kind: str, condition: str | None, bench: WireBench) -> None:
    entity = bench.queue()
    sender = bench.peer().session.sender("q")
    bench.settle()
    bench.broker.faults.add({"kind": kind, "count": 1}, bench.now)
    refused, accepted = sender.send(message()), sender.send(message())
    bench.settle()

    error = sender.outcomes[refused].error
    assert error is not None
    assert condition is None or error.condition == condition
    assert sender.outcomes[accepted].code == ACCEPTED_CODE
    assert entity.counts().active == 1


def test_a_dropped_acknowledgement_leaves_the_message_stored(bench: WireBench) -> None:
    entity = bench.queue()
    sender = bench.peer().session.sender("q")
    bench.settle()
    bench.broker.faults.add({"kind": "drop_acknowledgements", "entity": "q"}, bench.now)
    sender.send(message())
    bench.settle()

    assert entity.counts().active == 1
    assert not sender.outcomes


def test_a_delayed_acknowledgement_comes_later(bench: WireBench) -> None:
    bench.queue()
    sender = bench.peer().session.sender("q")
    bench.settle()
    bench.broker.faults.add({"kind": "delay", "delay_ms": 500}, bench.now)
    delivery_id = sender.send(message())
    bench.wait(499)
    assert not sender.outcomes
    bench.wait(1)
    assert sender.outcomes[delivery_id].code == ACCEPTED_CODE


def test_lost_locks_make_a_message_free_again(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    sender.send(message())
    receiver = peer.session.receiver("q", credit=1)
    bench.settle()
    assert len(receiver.deliveries) == 1
    bench.broker.faults.add({"kind": "lose_locks", "count": 1}, bench.now)
    bench.settle()
    receiver.complete(receiver.deliveries[0])
    bench.settle()

    outcome = receiver.outcomes[receiver.deliveries[0].delivery_id]
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.condition == "com.microsoft:message-lock-lost"
    assert entity.counts().active == 1


def test_a_counted_loss_of_locks_waits_until_a_lock_is_held(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    bench.broker.faults.add({"kind": "lose_locks", "entity": "q", "count": 1}, bench.now)
    sender = peer.session.sender("q")
    bench.settle()
    sender.send(message())
    bench.settle()
    receiver = peer.session.receiver("q", credit=1)
    bench.settle()
    bench.settle()
    assert len(receiver.deliveries) == 1
    receiver.complete(receiver.deliveries[0])
    bench.settle()

    outcome = receiver.outcomes[receiver.deliveries[0].delivery_id]
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.condition == "com.microsoft:message-lock-lost"
    assert entity.counts().active == 1
    assert bench.broker.faults.snapshot(bench.now) == []


@pytest.mark.parametrize("kind", ["cut", "black_hole"])
def test_a_connection_is_cut_or_hears_nothing(kind: str, bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    bench.broker.faults.add({"kind": kind}, bench.now)
    sender.send(message())
    bench.settle()

    assert entity.counts().total == 0
    assert not sender.outcomes
    assert peer.gateway.is_closed is (kind == "cut")


def test_a_refusal_meets_the_send_and_not_the_opening_of_a_link(bench: WireBench) -> None:
    entity = bench.queue()
    bench.broker.faults.add({"kind": "refuse", "entity": "q", "count": 1}, bench.now)
    session = bench.peer().session
    sender, receiver = session.sender("q"), session.receiver("q", credit=1)
    bench.settle()
    assert not sender.detached
    assert not receiver.detached

    refused, accepted = sender.send(message()), sender.send(message())
    bench.settle()

    assert sender.outcomes[refused].error is not None
    assert sender.outcomes[accepted].code == ACCEPTED_CODE
    assert entity.counts().total == 1


@pytest.mark.parametrize(
    ("kind", "entity", "way_out"),
    [
        ("refuse", "nope", "There are: q, t, t/Subscriptions/s."),
        ("throttle", "t/Subscriptions/s", "Name its topic."),
        ("fill", "t/Subscriptions/s", "Name its topic."),
        ("lose_locks", "T", "Name one of its subscriptions."),
    ],
)
def test_a_fault_that_no_use_of_its_entity_could_meet_is_refused(
    kind: str, entity: str, way_out: str, bench: WireBench
) -> None:
    bench.queue()
    bench.namespace.create(TOPIC, "t", Settings(), bench.now)
    bench.namespace.create(SUBSCRIPTION, "t/Subscriptions/s", Settings(), bench.now)
    bench.broker.offers_faults = True
    body = json.dumps({"kind": kind, "entity": entity}).encode()

    answer = bench.http("POST", "/$faults", token("root", "root-1"), body)

    assert answer.status == 400
    assert f"entity is '{entity}'" in json.loads(answer.body)["error"]
    assert json.loads(answer.body)["error"].endswith(way_out)
    assert not bench.broker.faults.is_on


def test_an_unknown_entity_is_answered_with_some_of_the_names_that_exist(bench: WireBench) -> None:
    faults = Faults()
    with pytest.raises(ArgumentError, match="There is none yet"):
        faults.add({"kind": "cut", "entity": "q"}, START, bench.broker.namespace)
    for index in range(NAMES_SHOWN_MAX + 2):
        bench.queue(f"q{index:02}")
    with pytest.raises(ArgumentError, match=r"There are: q00, q01, .*, q09 and 2 more\."):
        faults.add({"kind": "cut", "entity": "q"}, START, bench.broker.namespace)


# -- one entity --------------------------------------------------------------------------------------

CUT_CONDITION = "amqp:link:detach-forced"
SESSION_FILTER = Symbol("com.microsoft:session-filter")
MINUTE = 60_000


def switch_on(bench: WireBench, kind: str, entity: str = "q", **more: object) -> None:
    bench.broker.faults.add({"kind": kind, "entity": entity, **more}, bench.now, bench.namespace)


def conditions(*links: ClientLink) -> list[str | None]:
    """How each link was ended; None: it was not."""
    return [None if link.error is None else link.error.condition for link in links]


def test_a_cut_of_one_entity_ends_its_links_on_all_connections_and_no_other(bench: WireBench) -> None:
    bench.queue()
    bench.queue("other")
    first, second = bench.peer(), bench.peer()
    struck = [
        first.session.sender("q"),
        first.session.receiver("q", credit=1),
        second.session.receiver("Q/$DeadLetterQueue"),
        second.session.request_link("q/$management").receiver,
    ]
    spared = [first.session.sender("other"), second.session.request_link("other/$management").receiver]
    bench.settle()
    switch_on(bench, "cut", duration_ms=MINUTE)
    bench.settle()
    late = first.session.receiver("q")
    bench.settle()

    assert conditions(*struck, late) == [CUT_CONDITION] * 5
    assert conditions(*spared) == [None, None]
    assert not first.gateway.is_closed
    bench.wait(MINUTE)
    assert first.session.sender("q").error is None


def test_a_counted_cut_ends_all_that_is_open_once_or_the_next_link(bench: WireBench) -> None:
    bench.queue()
    session = bench.peer().session
    open_links = [session.sender("q"), session.receiver("q")]
    bench.settle()
    switch_on(bench, "cut", count=2)
    bench.settle()
    refused = session.sender("q")
    bench.settle()
    accepted = session.sender("q")
    bench.settle()

    assert conditions(*open_links, refused, accepted) == [CUT_CONDITION] * 3 + [None]
    assert accepted.is_attached
    assert not bench.broker.faults.is_on


def test_a_black_hole_of_one_entity_ends_by_itself_and_what_waited_goes_on(bench: WireBench) -> None:
    entity = bench.queue()
    bench.queue("other")
    peer = bench.peer()
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q", credit=5)
    bench.settle()
    switch_on(bench, "black_hole", duration_ms=MINUTE)
    bench.settle()
    entity_sender = bench.peer().session.sender("other")
    bench.settle()
    swallowed, elsewhere = sender.send(message()), entity_sender.send(message())
    late = peer.session.receiver("q", credit=1)
    bench.wait(MINUTE - 1)
    assert swallowed not in sender.outcomes
    assert entity_sender.outcomes[elsewhere].code == ACCEPTED_CODE
    assert not late.is_attached
    assert entity.counts().total == 0

    bench.wait(1)
    assert late.answer is not None
    sender.send(message())
    sender.send(message())
    bench.settle()
    assert len(receiver.deliveries) + len(late.deliveries) == 2
    assert not bench.broker.strikes.held


def test_a_black_hole_holds_messages_back_and_swallows_settlements(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q", credit=1)
    bench.settle()
    sender.send(message())
    sender.send(message())
    bench.settle()
    switch_on(bench, "black_hole")
    bench.settle()
    receiver.complete(receiver.deliveries[0])
    receiver.grant(5)
    receiver.grant(5, drain=True)
    bench.settle()
    # A socket that was full and takes bytes again ends no black hole.
    peer.gateway.pause()
    peer.gateway.resume(bench.now)
    bench.settle()

    assert len(receiver.deliveries) == 1
    assert receiver.outcomes.get(receiver.deliveries[0].delivery_id) is None
    assert entity.counts().active == 2
    bench.broker.faults.clear()
    bench.settle()
    assert len(receiver.deliveries) == 2


def test_a_counted_black_hole_swallows_so_many_and_holds_nothing(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    switch_on(bench, "black_hole", count=2)
    sender = peer.session.sender("q")
    bench.settle()
    swallowed = sender.send(message())
    receiver = peer.session.receiver("q", credit=1)
    node = peer.session.request_link("q/$management")
    bench.settle()
    assert receiver.is_attached
    peek = {"from-sequence-number": Long(0), "message-count": Int(1)}
    asked = node.request({"operation": "com.microsoft:peek-message"}, peek)
    bench.settle()
    accepted = sender.send(message())
    bench.settle()

    assert swallowed not in sender.outcomes
    assert asked not in node.responses
    assert sender.outcomes[accepted].code == ACCEPTED_CODE
    assert len(receiver.deliveries) == 1
    assert entity.counts().active == 1


def test_a_receiver_that_waits_for_a_session_waits_on_through_a_black_hole(bench: WireBench) -> None:
    bench.queue("s", Settings(requires_session=True))
    peer = bench.peer()
    sender = peer.session.sender("s")
    patience: dict[str, object] = {"com.microsoft:timeout": UInt(1_000)}
    receiver = peer.session.receiver("s", filter={SESSION_FILTER: None}, credit=1, properties=patience)
    bench.settle()
    switch_on(bench, "black_hole", "s", duration_ms=MINUTE)
    bench.wait(MINUTE - 1)
    assert receiver.answer is None
    assert not receiver.detached

    bench.wait(1)
    sender.send(message(group_id="a"))
    bench.settle()
    assert len(receiver.deliveries) == 1


def test_links_that_wait_for_the_end_of_a_black_hole_go_with_their_connection(bench: WireBench) -> None:
    bench.queue()
    gone, detached = bench.peer(), bench.peer()
    switch_on(bench, "black_hole")
    gone.session.receiver("q")
    link = detached.session.receiver("q")
    bench.settle()
    assert len(bench.broker.strikes.held) == 2
    gone.gateway.lost(bench.now)
    bench.peers.remove(gone)
    link.detach()
    bench.settle()

    assert not bench.broker.strikes.held


def test_no_settlement_is_quicker_than_the_loss_of_its_lock(bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q", credit=1)
    bench.settle()
    switch_on(bench, "lose_locks", count=1)
    sender.send(message())
    peer.gateway.receive(peer.client.take_output(), bench.now)
    bench.broker.pump(bench.now)  # delivered at the end of the turn; the next one begins with the settlement
    peer.client.receive(b"".join(peer.gateway.take_output()))
    receiver.complete(receiver.deliveries[0])
    bench.settle()

    outcome = receiver.outcomes[receiver.deliveries[0].delivery_id]
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.condition == "com.microsoft:message-lock-lost"
    assert entity.counts().active == 1


def test_a_session_is_lost_with_the_locks_of_its_messages(bench: WireBench) -> None:
    entity = bench.queue("s", Settings(requires_session=True))
    session = bench.peer().session
    sender = session.sender("s")
    bench.settle()
    sender.send(message(group_id="a"))
    receiver = session.receiver("s", filter={SESSION_FILTER: "a"}, credit=1)
    bench.settle()
    idle = session.receiver("s", filter={SESSION_FILTER: "b"}, credit=1)
    bench.settle()
    switch_on(bench, "lose_locks", "s", count=1)
    bench.settle()

    assert conditions(receiver, idle) == ["com.microsoft:session-lock-lost", None]
    assert entity.counts().active == 1


@pytest.mark.parametrize(("kind", "status"), [("fill", 403), ("throttle", 503), ("refuse", 500)])
def test_a_fault_of_sends_meets_a_request_to_schedule(kind: str, status: int, bench: WireBench) -> None:
    entity = bench.queue()
    peer = bench.peer()
    switch_on(bench, kind, count=1)
    body = {"messages": [{"message": message()}]}

    assert peer.refusal("q", "schedule-message", body)[0] == status
    peer.answer("q", "schedule-message", body)
    assert entity.counts().total == 1
