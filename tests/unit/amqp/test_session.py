"""AMQP 1.0, 2.5: sessions, windows, handles; dispositions in both directions."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.states import (
    ACCEPTED_CODE,
    MODIFIED_CODE,
    REJECTED_CODE,
    RELEASED_CODE,
    STATE_ACCEPTED,
    STATE_RELEASED,
    encode_modified,
    encode_rejected,
    encode_transactional,
)
from pairbus.amqp.transport.connection import ConnectionSettings
from pairbus.amqp.transport.framing import EMPTY_FRAME, amqp_frame
from pairbus.amqp.transport.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Source,
    Target,
    Transfer,
)
from pairbus.amqp.transport.session import IDLE_STEPS_MAX
from tests.unit.amqp.peers import Wire

TOKEN = bytes(range(16))


def dispositions(wire: Wire) -> list[tuple[bool, int, int, bool, int]]:
    """role, first, last, settled, code of every disposition the server sent."""
    return [
        (frame.role, frame.first, frame.last, frame.settled, frame.state.code if frame.state else 0)
        for frame in wire.answers()
        if isinstance(frame, Disposition)
    ]


def sending(wire: Wire, count: int = 3) -> list[int]:
    link = wire.attached(role=True)
    wire.flow(handle=0, credit=1000)
    wire.answers()
    ids = [link.send(TOKEN, [b"payload"], False, f"context {n}") for n in range(count)]
    wire.answers()
    return ids


# ---- answers to what the client sent ----


def test_acceptances_of_a_burst_leave_as_one_range(wire: Wire) -> None:
    wire.attached(role=False)
    wire.answers()

    for delivery_id in range(5):
        wire.transfer(delivery_id=delivery_id)

    assert dispositions(wire) == [(True, 0, 4, True, ACCEPTED_CODE)]


def test_a_gap_splits_the_range(wire: Wire) -> None:
    session = wire.attached(role=False).session
    wire.answers()

    for delivery_id in (3, 4, 7, 1):
        session.accept_incoming(delivery_id)

    assert [(d[1], d[2]) for d in dispositions(wire)] == [(3, 4), (7, 7), (1, 1)]


def test_ranges_do_not_wrap_around_with_the_ids(wire: Wire) -> None:
    session = wire.attached(role=False).session
    wire.answers()

    for delivery_id in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1):
        session.accept_incoming(delivery_id)

    assert [(d[1], d[2]) for d in dispositions(wire)] == [(0xFFFFFFFE, 0xFFFFFFFF), (0, 1)]


def test_a_rejection_always_carries_its_error_in_three_fields(wire: Wire) -> None:
    session = wire.attached(role=False).session
    wire.answers()

    session.reject_incoming(4, AmqpError("amqp:resource-limit-exceeded", "full"))

    ((_, frame, _),) = wire.frames()
    assert isinstance(frame, Disposition)
    assert (frame.role, frame.first, frame.settled) == (True, 4, True)
    assert frame.state is not None
    assert frame.state.error == AmqpError("amqp:resource-limit-exceeded", "full")
    assert (
        encode_rejected(AmqpError("a", "b")).hex(" ")
        == "00 53 25 c0 0e 01 00 53 1d c0 08 03 a3 01 61 a1 01 62 40"
    )


def test_answers_go_before_the_detach_of_their_link(wire: Wire) -> None:
    wire.attached(role=False)
    wire.answers()

    wire.transfer(delivery_id=0).detach()

    assert [type(frame) for frame in wire.answers()] == [Disposition, Detach]


# ---- settlement of what we sent ----


def test_settled_disposition_reaches_the_owner_and_is_forgotten(wire: Wire) -> None:
    first, second, third = sending(wire)

    wire.dispose(first, second)

    assert wire.handler.of("settled") == [
        ("link", first, "context 0", ACCEPTED_CODE, True),
        ("link", second, "context 1", ACCEPTED_CODE, True),
    ]
    assert len(wire.handler.sessions[0].unsettled) == 1
    assert dispositions(wire) == []
    assert wire.handler.links["link"].unsettled() == [(third, "context 2")]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (STATE_ACCEPTED, ACCEPTED_CODE),
        (STATE_RELEASED, RELEASED_CODE),
        (encode_modified(True, True), MODIFIED_CODE),
        (
            encode_rejected(AmqpError("com.microsoft:dead-letter", "why", {"DeadLetterReason": "r"})),
            REJECTED_CODE,
        ),
    ],
)
def test_unsettled_disposition_is_answered_with_the_same_outcome(state: bytes, code: int, wire: Wire) -> None:
    (first,) = sending(wire, 1)

    wire.dispose(first, first, settled=False, state=state)

    (answer,) = (frame for frame in wire.answers() if isinstance(frame, Disposition))
    assert (answer.role, answer.first, answer.last, answer.settled) == (False, first, first, True)
    assert answer.state is not None
    assert answer.state.code == code
    assert answer.state.error is None  # an echoed rejection has none: with one it would mean failure
    assert len(wire.handler.sessions[0].unsettled) == 0


def test_a_failed_settlement_is_rejected_with_its_error(wire: Wire) -> None:
    wire.handler.echoes_settlements = False
    (first,) = sending(wire, 1)
    wire.dispose(first, first, settled=False)

    wire.handler.sessions[0].settle_outgoing(
        first, ACCEPTED_CODE, AmqpError("com.microsoft:message-lock-lost", "gone")
    )

    (answer,) = (frame for frame in wire.answers() if isinstance(frame, Disposition))
    assert answer.state is not None
    assert answer.state.error == AmqpError("com.microsoft:message-lock-lost", "gone")


def test_a_range_of_acceptances_is_echoed_as_one_range(wire: Wire) -> None:
    ids = sending(wire, 5)

    wire.dispose(ids[0], ids[4], settled=False)

    assert dispositions(wire) == [(False, ids[0], ids[4], True, ACCEPTED_CODE)]


def test_scattered_echoes_stay_apart(wire: Wire) -> None:
    ids = sending(wire, 5)

    for index in (0, 2, 3):
        wire.dispose(ids[index], ids[index], settled=False)

    assert [(d[1], d[2]) for d in dispositions(wire)] == [(ids[0], ids[0]), (ids[2], ids[3])]


def test_transactional_settlement_is_answered_and_settles_nothing_yet(wire: Wire) -> None:
    wire.handler.echoes_settlements = False
    (first,) = sending(wire, 1)
    wire.dispose(first, first, settled=False, state=encode_transactional(b"txn", STATE_ACCEPTED))

    session = wire.handler.sessions[0]
    session.answer_outgoing(first, encode_transactional(b"txn", STATE_ACCEPTED), settled=False)

    assert dispositions(wire) == [(False, first, first, False, 0x34)]
    assert list(session.unsettled) == [first]


def test_settling_what_is_not_known_any_more_is_answered_as_lost_lock(wire: Wire) -> None:
    (first,) = sending(wire, 1)
    wire.handler.sessions[0].forget_outgoing(first)

    wire.dispose(first, first, settled=False)

    (answer,) = (frame for frame in wire.answers() if isinstance(frame, Disposition))
    assert answer.state is not None
    assert answer.state.error is not None
    assert answer.state.error.condition == "com.microsoft:message-lock-lost"
    assert wire.handler.of("settled") == []


def test_gaps_in_a_range_are_answered_as_lost_too(wire: Wire) -> None:
    ids = sending(wire, 6)
    for index in (0, 3, 4):
        wire.handler.sessions[0].forget_outgoing(ids[index])

    wire.dispose(ids[0], ids[5], settled=False)

    found = dispositions(wire)
    assert [(d[1], d[2]) for d in found if d[4] == REJECTED_CODE] == [(ids[0], ids[0]), (ids[3], ids[4])]
    assert [(d[1], d[2]) for d in found if d[4] == ACCEPTED_CODE] == [(ids[1], ids[2]), (ids[5], ids[5])]


@pytest.mark.promise("B36")
def test_settled_dispositions_for_unknown_deliveries_need_no_answer(wire: Wire) -> None:
    sending(wire, 1)

    wire.dispose(500, 600)

    assert wire.answers() == []


def test_the_owner_may_take_deliveries_away_while_a_range_is_settled(wire: Wire) -> None:
    ids = sending(wire, 3)
    session = wire.handler.sessions[0]
    seen: list[int] = []

    def settled(link: object, delivery_id: int, *_: object) -> None:
        seen.append(delivery_id)
        session.forget_outgoing(ids[1])

    wire.handler.settled = settled  # type: ignore[assignment]
    wire.dispose(ids[0], ids[2])

    assert seen == [ids[0], ids[2]]
    assert wire.handler.links["link"].unsettled() == []


@pytest.mark.promise("B59")
def test_a_range_over_all_ids_touches_only_what_is_there(wire: Wire) -> None:
    ids = sending(wire, 3)

    wire.dispose(0, 0x7FFFFFFF)

    assert [call[1] for call in wire.handler.of("settled")] == ids


@pytest.mark.promise("B59")
def test_a_range_that_ends_before_it_begins_is_refused(wire: Wire) -> None:
    sending(wire, 3)

    wire.dispose(5, 2)

    assert wire.closed_with() == "amqp:invalid-field"


@pytest.mark.promise("B59")
def test_naming_deliveries_in_vain_for_ever_ends_the_connection(wire: Wire) -> None:
    sending(wire, 1)
    wire.handler.sessions[0].idle_steps = IDLE_STEPS_MAX

    for _ in range(5):
        wire.dispose(9000, 9000)

    assert wire.closed_with() == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("state", [b"", b"\x00\x53\x23\xc0\x03\x02\x43\x44"], ids=["null", "received"])
def test_settling_without_a_verdict_gives_the_message_back(state: bytes, wire: Wire) -> None:
    (first,) = sending(wire, 1)
    wire.dispose(first, first, settled=True, state=state)

    assert wire.handler.of("settled") == [("link", first, "context 0", RELEASED_CODE, True)]


def test_a_disposition_may_stop_after_its_range(wire: Wire) -> None:
    (first,) = sending(wire, 1)

    wire.raw(amqp_frame(0, b"\x00\x53\x15\xc0\x05\x03\x41\x52" + bytes((first,)) + b"\x40") + EMPTY_FRAME)

    assert wire.handler.of("settled") == []
    assert not wire.is_closed()


def test_unsettled_without_a_verdict_says_nothing(wire: Wire) -> None:
    (first,) = sending(wire, 1)

    wire.dispose(first, first, settled=False, state=b"")

    assert wire.handler.of("settled") == []


def test_dispositions_about_the_clients_own_deliveries_are_ignored(wire: Wire) -> None:
    (first,) = sending(wire, 1)
    frame = Disposition(False, first, first)
    frame.settled = True
    frame.state_bytes = STATE_ACCEPTED

    wire.say(frame)

    assert wire.handler.of("settled") == []


# ---- windows: AMQP 1.0, 2.5.6 ----


def test_every_flow_names_the_next_incoming_id(wire: Wire) -> None:
    wire.attached(role=False)
    wire.transfer(delivery_id=0)
    frame = Flow()
    frame.incoming_window = frame.outgoing_window = 10
    frame.echo = True

    wire.say(frame)

    flows = [frame for frame in wire.answers() if isinstance(frame, Flow)]
    assert flows[-1].next_incoming_id == 1
    assert all(flow.next_incoming_id >= 0 for flow in flows)


def test_the_clients_window_holds_transfers_back_until_it_opens() -> None:
    wire = Wire().begun(incoming_window=2)
    wire.attached(role=False, name="of no concern", handle=1)
    link = wire.attached(role=True)
    frame = Flow()
    frame.next_incoming_id, frame.incoming_window, frame.handle = 1, 2, 0
    frame.delivery_count, frame.link_credit = 0, 10
    wire.say(frame)
    wire.answers()

    for _ in range(4):
        link.send(TOKEN, [b"m"], True)
    sent_at_first = len(wire.answers())
    assert not link.can_send()
    frame.next_incoming_id = 3
    frame.handle = -1
    frame.delivery_count = frame.link_credit = -1
    wire.say(frame)

    assert sent_at_first == 2
    assert len(wire.answers()) == 2
    assert not link.can_send()
    frame.next_incoming_id, frame.incoming_window = 5, 100
    wire.say(frame)
    assert link.can_send()
    assert wire.handler.of("credit")[-1] == ("link", 6, False)


def test_a_window_of_almost_four_billion_is_believed() -> None:
    wire = Wire().begun(incoming_window=0xFFFFFFFF)
    link = wire.attached(role=True)
    wire.flow(handle=0, credit=5)
    frame = Flow()
    frame.next_incoming_id, frame.incoming_window = 1, 0xFFFFFFFF
    wire.say(frame)

    assert link.can_send()


def test_our_window_opens_again_before_it_is_used_up() -> None:
    wire = Wire(ConnectionSettings("broker", incoming_window=4, link_credit=1000)).begun()
    wire.attached(role=False)
    wire.answers()

    for delivery_id in range(4):
        wire.transfer(delivery_id=delivery_id)

    flows = [frame for frame in wire.answers() if isinstance(frame, Flow)]
    assert [flow.next_incoming_id for flow in flows] == [3]
    assert flows[0].incoming_window == 4


# ---- handles and ends ----


@pytest.mark.parametrize("what", ["transfer", "flow", "detach"])
def test_frames_on_a_handle_that_is_not_attached_end_the_session(what: str, wire: Wire) -> None:
    wire.answers()

    if what == "transfer":
        wire.transfer(handle=9)
    elif what == "flow":
        wire.flow(handle=9, credit=1)
    else:
        wire.detach(9)

    (answer,) = wire.answers()
    assert isinstance(answer, End)
    assert answer.error is not None
    assert answer.error.condition == "amqp:session:unattached-handle"
    assert wire.handler.of("session_ended") == [(0,)]


def test_after_our_end_everything_is_ignored_until_theirs(wire: Wire) -> None:
    wire.attached(role=False)
    wire.transfer(handle=9)
    wire.answers()

    wire.transfer(handle=0).flow().say(Attach("late", 3, True))
    assert wire.answers() == []
    wire.end().say(Begin(0, 10, 10))

    assert [type(frame) for frame in wire.answers()] == [Begin]
    assert not wire.connection.is_closed


def test_ending_twice_says_it_once(wire: Wire) -> None:
    wire.answers()
    session = wire.handler.sessions[0]

    session.end(AmqpError("amqp:internal-error", "x"))
    session.end()

    assert len(wire.answers()) == 1


def test_what_is_settled_after_the_end_is_not_said(wire: Wire) -> None:
    wire.attached(role=False)
    session = wire.handler.sessions[0]
    session.accept_incoming(1)
    wire.end()
    wire.answers()

    session.accept_incoming(2)
    session.reject_incoming(3, AmqpError("a", "b"))
    session.settle_outgoing(4, ACCEPTED_CODE)

    assert wire.answers() == []


def test_end_is_answered_after_the_links_are_gone(wire: Wire) -> None:
    wire.attached(role=True)
    wire.answers()

    wire.end()

    assert [type(frame) for frame in wire.answers()] == [End]
    assert wire.handler.calls[-2:] == [("link_detached", "link", False, None), ("session_ended", 0)]
    assert wire.connection.sessions == {}


def test_a_handle_in_use_ends_the_session(wire: Wire) -> None:
    wire.attached(role=True, name="one")
    wire.answers()

    wire.say(Attach("two", 0, True))

    (answer,) = wire.answers()
    assert isinstance(answer, End)
    assert answer.error is not None
    assert answer.error.condition == "amqp:session:handle-in-use"


def test_a_handle_above_handle_max_closes_the_connection(wire: Wire) -> None:
    wire.say(Attach("l", 256, True))

    assert wire.closed_with() == "amqp:connection:framing-error"


def test_delivery_ids_are_one_sequence_over_all_links(wire: Wire) -> None:
    one = wire.attached(role=True, name="one", handle=0)
    two = wire.attached(role=True, name="two", handle=1)

    ids = [one.send(TOKEN, [b"a"], True), two.send(b"tag", [b"b"], True), one.send(TOKEN, [b"c"], True)]

    assert ids == [0, 1, 2]
    assert [f.delivery_id for f in wire.answers() if isinstance(f, Transfer)] == ids


def test_links_are_limited_over_all_sessions() -> None:
    wire = Wire(ConnectionSettings("broker", links_max=2)).begun()
    wire.attached(role=True, name="one", handle=0)
    wire.attached(role=True, name="two", handle=1)
    wire.answers()
    frame = Attach("three", 2, True)
    frame.source, frame.target = Source("q"), Target("q")

    wire.say(frame)

    answer, detach = wire.answers()
    assert isinstance(answer, Attach)
    assert answer.source is None
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-limit-exceeded"
    wire.detach(2).detach(1)
    wire.attached(role=True, name="four", handle=2)
    assert wire.handler.links["four"].is_attached
