"""What a second reading of the gateway found: each of these went wrong once."""

from __future__ import annotations

import pytest

from pairbus.amqp.encode import encode_list, encode_value
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import MODIFIED_CODE, STATE_ACCEPTED, encode_transactional
from pairbus.amqp.types import Array, Described, Long, Symbol, Timestamp, ULong, Uuid
from pairbus.engine.entity import Entity
from pairbus.gateway.access import Grant
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.simulation.wire import ClientSession
from tests.unit.gateway.wire_bench import HOUR, START, WireBench, message, token

TRUE_RULE = '{"name":"$Default","created_at":0,"filter":{"kind":"true"},"action":null}'
MEBIBYTE = 1_048_576


def _set_window(session: ClientSession, window: int) -> None:
    """Say how many frames the client takes from now on."""
    frame = session.flow_frame()
    frame.incoming_window = window
    session.write(frame.encode())


# -- memory that one peer could claim ------------------------------------------------------------


@pytest.mark.promise("B62")
def test_closed_session_window_stops_deliveries_and_an_open_one_lets_them_go_on() -> None:
    bench = WireBench()
    bench.queue(settings=Settings(max_size_mb=1024))
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    for _ in range(200):
        sender.send(message(bytes(10_000)))
    bench.settle()
    slow = bench.peer()
    receiver = slow.session.receiver("q")
    bench.settle()
    _set_window(slow.session, 0)
    bench.settle()

    receiver.credit = 200
    frame = slow.session.flow_frame()
    frame.incoming_window = 0
    frame.handle, frame.delivery_count, frame.link_credit = receiver.handle, 0, 200
    slow.session.write(frame.encode())
    bench.settle()

    session = next(iter(slow.gateway.amqp.sessions.values()))
    assert sum(map(len, session.queued)) < 50_000
    assert not receiver.deliveries
    for _ in range(40):
        _set_window(slow.session, 6)
        bench.settle()
    assert len(receiver.deliveries) == 200
    numbers = [delivery.annotation("x-opt-sequence-number") for delivery in receiver.deliveries]
    assert numbers == list(range(1, 201))


@pytest.mark.promise("B62")
def test_requests_in_one_burst_cannot_make_answers_without_bound() -> None:
    bench = WireBench()
    bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    node = peer.session.request_link("q/$management")
    bench.settle()
    for _ in range(10):
        sender.send(message(bytes(200_000)))
    bench.settle()
    body = {"from-sequence-number": Long(0), "message-count": 250}
    for _ in range(100):
        node.request({"operation": "com.microsoft:peek-message"}, body)

    peer.gateway.receive(peer.client.take_output(), bench.now)

    assert peer.gateway.amqp.output_size < 24 * MEBIBYTE
    bench.settle()
    statuses = [answer.application_properties["statusCode"] for answer in node.responses.values()]
    assert len(statuses) == 100
    assert statuses[0] == 200
    assert set(statuses) == {200, 503}


@pytest.mark.promise("M6")
def test_stranger_who_asks_and_never_takes_answers_is_shown_the_door() -> None:
    bench = WireBench()
    stranger = bench.peer(None)
    node = stranger.session.request_link("$cbs")
    bench.settle()
    _set_window(stranger.session, 0)
    for _ in range(600):
        if stranger.gateway.amqp.closing:
            break
        for _ in range(100):
            node.request({"operation": "put-token", "name": "x" * 100}, "nonsense")
        bench.settle()

    held = [frame for session in stranger.gateway.amqp.sessions.values() for frame in session.queued]
    assert sum(map(len, held)) < 8 * MEBIBYTE
    assert stranger.gateway.amqp.closing


@pytest.mark.promise("M6")
def test_token_request_is_short() -> None:
    bench = WireBench()
    stranger = bench.peer(None)
    node = stranger.session.request_link("$cbs")
    bench.settle()

    assert node.sender.answer is not None
    assert 0 < node.sender.answer.max_message_size <= 65_536


@pytest.mark.promise("M6")
def test_stranger_gets_few_links() -> None:
    bench = WireBench()
    stranger = bench.peer(None)
    for _ in range(200):
        stranger.session.sender("$cbs")
        if len(stranger.session.links) % 20 == 0:
            bench.settle()
    bench.settle()

    assert stranger.gateway.amqp.closing
    assert stranger.gateway.amqp.link_count < 100


@pytest.mark.promise("B67")
def test_connections_that_have_gone_are_not_held_by_a_timer() -> None:
    bench = WireBench()
    for _ in range(3_000):
        gone = bench.broker.connect("127.0.0.1:1", secure=True, loopback=True, now=bench.now)
        gone.lost(bench.now)

    assert len(bench.broker._timers) < 1_000


@pytest.mark.promise("B67")
@pytest.mark.uncompiled
def test_a_connection_has_one_timer_however_often_its_deadline_came_nearer() -> None:
    bench = WireBench()
    bench.queue()
    peer = bench.peer(None)
    for number in range(100):
        text = token("root", "root-1", "q", expires_at=START + 200_000 - number * 1_000)
        assert peer.put_token(text, "q") == 202
    ticks = 0
    tick = peer.gateway.tick

    def counted(now: int) -> None:
        nonlocal ticks
        ticks += 1
        tick(now)

    peer.gateway.tick = counted  # type: ignore[method-assign]
    while (deadline := bench.broker.next_deadline()) is not None and deadline <= START + 2 * HOUR:
        bench.now = max(bench.now, deadline)
        bench.broker.tick(bench.now)
        peer.client.heartbeat()
        bench.settle()
    assert ticks < 100


@pytest.mark.promise("B62")
def test_transactions_hold_no_more_than_their_share_of_memory() -> None:
    bench = WireBench()
    bench.queue()
    peer = bench.peer()
    controller = peer.session.sender(None, coordinator=True)
    sender = peer.session.sender("q")
    bench.settle()
    refused = 0
    for _ in range(6):
        declared = controller.send(encode_message(body=Described(ULong(0x31), [None])))
        bench.settle()
        txn_id = controller.outcomes[declared].txn_id
        assert txn_id is not None
        for _ in range(100):
            sent = sender.send(message(bytes(250_000)), state=encode_transactional(txn_id, STATE_ACCEPTED))
            bench.settle()
            refused += sender.outcomes[sent].error is not None
    assert refused > 0


@pytest.mark.promise("B62")
def test_deferred_messages_of_one_request_are_bounded() -> None:
    bench = WireBench()
    bench.queue(settings=Settings(max_message_kb=20_480))
    peer = bench.peer()
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q", credit=5)
    bench.settle()
    for _ in range(5):
        sender.send(message(bytes(15 * MEBIBYTE)))
        bench.settle()
    for delivery in receiver.deliveries:
        receiver.defer(delivery)
    bench.settle()
    numbers = Array([Long(number) for number in range(1, 6)])

    body = {"sequence-numbers": numbers, "receiver-settle-mode": 0}
    assert peer.refusal("q", "receive-by-sequence-number", body)[0] == 400
    one = {"sequence-numbers": Array([Long(1)]), "receiver-settle-mode": 0}
    assert len(peer.answer("q", "receive-by-sequence-number", one)["messages"]) == 1  # type: ignore[arg-type]


# -- tokens and rights ---------------------------------------------------------------------------


@pytest.mark.promise("M3")
def test_expiry_with_thousands_of_digits_is_refused_and_audited() -> None:
    bench = WireBench()
    bench.queue()
    peer = bench.peer(None)
    good = token("root", "root-1", "q")
    bad = good.replace(f"se={(START + HOUR) // 1000}", "se=" + "9" * 5_000)

    assert peer.put_token(bad, "q") == 401
    assert [event for event in bench.audits if event[0] == "put-token"]
    answer = bench.http("GET", "/q?api-version=2021-05", bad)
    assert answer.status == 401


@pytest.mark.promise("M12")
@pytest.mark.uncompiled
def test_token_with_a_very_long_resource_costs_little() -> None:
    bench = WireBench()
    resource = "sb%3a%2f%2flocalhost%2f" + "a/" * 3_900
    text = token("nobody-knows", "key", quoted=resource)
    peer = bench.peer(None)
    looked = 0
    find = bench.namespace.find

    def counted(path: str) -> Entity | None:
        nonlocal looked
        looked += 1
        return find(path)

    bench.namespace.find = counted  # type: ignore[method-assign]

    assert peer.put_token(text, "q") == 401
    assert looked < 100


@pytest.mark.promise("M2")
def test_token_for_a_dead_letter_queue_neither_schedules_nor_cancels_in_the_queue_itself() -> None:
    bench = WireBench()
    entity = bench.queue()
    owner = bench.peer()
    later = START + HOUR
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(later)}
    scheduled = {"messages": [{"message-id": "1", "message": message("x", message_annotations=annotations)}]}
    owner.answer("q", "schedule-message", scheduled)
    assert entity.main.scheduled_count == 1
    peer = bench.peer(None)
    place = "q/$DeadLetterQueue"
    assert peer.put_token(token("root", "root-1", place), place) == 202

    assert peer.refusal(place, "schedule-message", scheduled)[0] == 401
    numbers = Array([Long(1)])
    assert peer.refusal(place, "cancel-scheduled-message", {"sequence-numbers": numbers})[0] == 401
    assert entity.main.scheduled_count == 1


@pytest.mark.promise("M2")
def test_token_for_a_dead_letter_queue_does_not_change_the_rules_of_its_subscription() -> None:
    bench = WireBench()
    bench.namespace.create(TOPIC, "t", Settings(), START)
    path = "t/Subscriptions/s"
    subscription = bench.namespace.create(SUBSCRIPTION, path, Settings(rules=(TRUE_RULE,)), START)
    place = path + "/$DeadLetterQueue"
    peer = bench.peer(None)
    assert peer.put_token(token("root", "root-1", place), place) == 202

    assert peer.refusal(place, "remove-rule", {"rule-name": "$Default"})[0] == 401
    assert peer.refusal(place, "enumerate-rules", {"top": 10, "skip": 0})[0] == 401
    assert len(subscription.settings.rules) == 1


@pytest.mark.promise("M13")
def test_rules_changed_over_amqp_are_audited_like_those_over_http() -> None:
    bench = WireBench()
    bench.namespace.create(TOPIC, "t", Settings(), START)
    path = "t/Subscriptions/s"
    bench.namespace.create(SUBSCRIPTION, path, Settings(rules=(TRUE_RULE,)), START)
    peer = bench.peer()

    peer.answer(path, "remove-rule", {"rule-name": "$Default"})
    peer.refusal(path, "remove-rule", {"rule-name": "$Default"})
    listener = bench.peer("listener", "listener-1")
    listener.refusal(path, "remove-rule", {"rule-name": "$Default"})

    told = [event[1:4] for event in bench.audits if event[0] == "delete rule"]
    resource = path + "/rules/$Default"
    assert told == [(resource, "root", "200"), (resource, "root", "404"), (resource, "", "401")]


# -- settlement ----------------------------------------------------------------------------------


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


@pytest.mark.promise("B63")
@pytest.mark.uncompiled
def test_tokens_for_many_entities_on_one_connection_are_checked_one_by_one() -> None:
    bench = WireBench()
    count = 40
    for number in range(count):
        bench.queue(f"q{number}")
    peer = bench.peer(None)
    asked = 0
    allows = bench.broker.access.allows

    def counted(grant: Grant, path: str, right: str, now: int) -> bool:
        nonlocal asked
        asked += 1
        return allows(grant, path, right, now)

    bench.broker.access.allows = counted  # type: ignore[method-assign]
    for _ in range(2):
        for number in range(count):
            assert peer.put_token(token("root", "root-1", f"q{number}"), f"q{number}") == 202
            peer.session.sender(f"q{number}", name=f"s{number}")
            bench.settle()

    assert asked < 10 * count
    assert all(link.is_attached for link in peer.session.links.values() if link.name.startswith("s"))


@pytest.mark.promise("B12")
def test_changed_properties_leave_the_reserve_of_a_full_disk_alone() -> None:
    bench = WireBench()
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
    assert entity.main.removed_count == 1
    assert receiver.outcomes[third.delivery_id] is not None
