"""AMQP 1.0, 2.6: links. Attach, credit, drain, deliveries of one frame and of many, detach."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.transport.connection import ConnectionSettings
from pairbus.amqp.transport.performatives import (
    Attach,
    Coordinator,
    Detach,
    Flow,
    Source,
    Target,
    Transfer,
)
from pairbus.errors import LocalProtocolError
from tests.unit.amqp.peers import Wire

TOKEN = bytes(range(16))


def asked(role: bool, name: str = "link") -> Attach:
    frame = Attach(name, 0, role)
    frame.snd_settle_mode, frame.rcv_settle_mode = 0, 1
    frame.source = Source("amqps://host:5671/Orders")
    frame.target = Target("receiver-link-1")
    return frame


# ---- attach: AMQP 1.0, 2.6.3 ----


def test_an_answer_has_the_other_role_and_both_ends(wire: Wire) -> None:
    wire.answers()
    frame = asked(role=True)
    assert frame.source is not None
    frame.source.filter = {"com.microsoft:session-filter": None}

    wire.say(frame)

    (answer,) = wire.answers()
    assert isinstance(answer, Attach)
    assert (answer.name, answer.handle, answer.role) == ("link", 0, False)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (0, 1)
    assert answer.source is not None
    assert answer.source.address == "amqps://host:5671/Orders"
    assert answer.source.filter is None, "nobody said that the filter is in place"
    assert isinstance(answer.target, Target)
    assert answer.target.address == "receiver-link-1"
    assert (answer.initial_delivery_count, answer.max_message_size) == (0, 4096)


def test_null_ends_are_answered_with_real_ones(wire: Wire) -> None:
    wire.answers()

    wire.say(Attach("link", 0, False))

    answer = wire.answers()[0]
    assert isinstance(answer, Attach)
    assert answer.source is not None
    assert isinstance(answer.target, Target)


def test_the_owner_may_answer_later_and_say_what_it_found(wire: Wire) -> None:
    wire.handler.answers_attach = False
    wire.say(asked(role=True))
    wire.flow(handle=0, credit=7)
    wire.answers()
    link = wire.handler.links["link"]
    assert not link.is_attached
    assert wire.handler.of("credit") == []

    link.accept(
        properties={"com.microsoft:locked-until-utc": 5},
        filter={"com.microsoft:session-filter": "blue"},
        source_address="orders",
        target_address="there",
    )

    (answer,) = wire.answers()
    assert isinstance(answer, Attach)
    assert answer.properties == {"com.microsoft:locked-until-utc": 5}
    assert answer.source is not None
    assert answer.source.filter == {"com.microsoft:session-filter": "blue"}
    assert answer.source.address == "orders"
    assert isinstance(answer.target, Target)
    assert answer.target.address == "there"
    assert link.credit == 7


def test_a_coordinator_is_echoed(wire: Wire) -> None:
    wire.answers()
    frame = Attach("controller", 0, False)
    frame.source = Source()
    frame.target = Coordinator()
    frame.target.capabilities = ["amqp:local-transactions"]

    wire.say(frame)

    answer = wire.answers()[0]
    assert isinstance(answer, Attach)
    assert isinstance(answer.target, Coordinator)
    assert answer.target.capabilities == ["amqp:local-transactions"]


def test_a_refusal_has_null_ends_and_then_the_reason(wire: Wire) -> None:
    wire.handler.answers_attach = False
    wire.say(asked(role=True))
    wire.answers()

    wire.handler.links["link"].refuse(AmqpError("amqp:not-found", "no such queue"))

    answer, detach = wire.answers()
    assert isinstance(answer, Attach)
    assert answer.source is None
    assert answer.target is None
    assert isinstance(detach, Detach)
    assert detach.closed
    assert detach.error == AmqpError("amqp:not-found", "no such queue")
    wire.detach()
    assert wire.answers() == []
    assert wire.handler.of("link_detached") == []


# Python never answers the detach after a refusal, yet may use the handle again.
def test_a_refused_handle_is_free_without_the_clients_detach(wire: Wire) -> None:
    wire.handler.answers_attach = False
    wire.say(asked(role=True))
    wire.handler.links["link"].refuse(AmqpError("amqp:not-found", "x"))
    wire.handler.answers_attach = True

    wire.say(asked(role=True, name="again"))

    assert wire.handler.links["again"].is_attached
    assert wire.connection.link_count == 1


def test_a_link_is_answered_once(wire: Wire) -> None:
    link = wire.attached(role=True)

    with pytest.raises(LocalProtocolError):
        link.accept()
    with pytest.raises(LocalProtocolError):
        link.refuse(AmqpError("a", "b"))


def test_attaching_a_name_again_steals_the_link(wire: Wire) -> None:
    wire.attached(role=True, name="same", handle=0)
    wire.answers()

    wire.attached(role=True, name="same", handle=1)

    detach = wire.answers()[0]
    assert isinstance(detach, Detach)
    assert detach.handle == 0
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:stolen"
    assert wire.handler.of("link_detached") == [("same", True, "amqp:link:stolen")]


def test_both_directions_may_share_a_name(wire: Wire) -> None:
    wire.attached(role=True, name="$cbs", handle=0)
    wire.attached(role=False, name="$cbs", handle=1)

    assert wire.handler.of("link_detached") == []


# ---- detach: AMQP 1.0, 2.6.5 ----


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind_once(closed: bool, wire: Wire) -> None:
    link = wire.attached(role=True)
    wire.answers()

    wire.detach(closed=closed)

    (answer,) = wire.answers()
    assert isinstance(answer, Detach)
    assert (answer.handle, answer.closed, answer.error) == (0, closed, None)
    assert wire.handler.of("link_detached") == [("link", closed, None)]
    assert not link.is_attached


def test_our_detach_is_not_answered_twice(wire: Wire) -> None:
    link = wire.attached(role=False)
    wire.answers()

    link.detach(AmqpError("amqp:link:detach-forced", "idle"))
    link.detach()
    wire.transfer(b"crossed it on the way").detach()

    answers = wire.answers()
    assert [type(frame) for frame in answers] == [Detach]
    assert wire.handler.of("link_detached") == []
    assert wire.handler.of("transfer") == []
    assert wire.handler.sessions[0].links == {}


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_detach_before_our_attach_is_answered_with_attach_first(is_ours: bool, wire: Wire) -> None:
    wire.handler.answers_attach = False
    wire.say(asked(role=True))
    wire.answers()

    if is_ours:
        wire.handler.links["link"].detach()
    else:
        wire.detach()

    assert [type(frame) for frame in wire.answers()] == [Attach, Detach]


def test_a_handle_is_free_after_detach(wire: Wire) -> None:
    for name in ("one", "two", "three"):
        wire.attached(role=True, name=name, handle=0)
        wire.detach()

    assert [call[0] for call in wire.handler.of("link_detached")] == ["one", "two", "three"]
    assert not wire.connection.is_closed


def test_detached_links_do_not_send(wire: Wire) -> None:
    link = wire.attached(role=True)
    wire.detach()

    with pytest.raises(LocalProtocolError):
        link.send(TOKEN, [b"x"], True)
    assert not link.can_send()


def test_unsettled_deliveries_can_be_seen_when_their_link_goes(wire: Wire) -> None:
    link = wire.attached(role=True, name="mine", handle=0)
    other = wire.attached(role=True, name="other", handle=1)
    delivery_id = link.send(TOKEN, [b"x"], False, "context")
    other.send(TOKEN, [b"x"], False, "kept")
    seen: list[list[tuple[int, object]]] = []
    wire.handler.link_detached = lambda link, closed, error: seen.append(link.unsettled())  # type: ignore[method-assign]

    wire.detach(0)

    assert seen == [[(delivery_id, "context")]]
    assert len(wire.handler.sessions[0].unsettled) == 1


# ---- credit: AMQP 1.0, 2.6.7 ----


def test_an_accepted_sender_gets_credit_at_once(wire: Wire) -> None:
    wire.answers()

    wire.say(asked(role=False))

    _, flow = wire.answers()
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, 1000)


def test_credit_is_given_again_when_half_is_used() -> None:
    wire = Wire(ConnectionSettings("broker", link_credit=4)).begun()
    wire.attached(role=False)
    wire.answers()

    for delivery_id in range(4):
        wire.transfer(delivery_id=delivery_id)

    flows = [frame for frame in wire.answers() if isinstance(frame, Flow)]
    assert [(flow.delivery_count, flow.link_credit) for flow in flows] == [(2, 4), (4, 4)]


def test_a_sender_that_ignores_credit_is_served_all_the_same(wire: Wire) -> None:
    wire.handler.answers_attach = False
    wire.say(asked(role=False))
    wire.handler.links["link"].accept(credit=0)

    wire.transfer(b"sent at credit 0")

    assert len(wire.handler.of("transfer")) == 1
    assert not wire.connection.is_closed


# Python grants absolute credit and may lower it below what is on its way.
@pytest.mark.parametrize(("count", "granted", "expected"), [(0, 10, 8), (2, 10, 10), (0, 1, 0), (2, 0, 0)])
def test_credit_counts_from_the_delivery_count_the_client_knows(
    count: int, granted: int, expected: int, wire: Wire
) -> None:
    link = wire.attached(role=True)
    wire.flow(handle=0, credit=2)
    link.send(TOKEN, [b"x"], True)
    link.send(TOKEN, [b"x"], True)
    assert not link.can_send()

    wire.flow(handle=0, credit=granted, delivery_count=count)

    assert link.credit == expected
    assert wire.handler.of("credit")[-1] == ("link", expected, False)


def test_delivery_counts_are_serial_numbers(wire: Wire) -> None:
    link = wire.attached(role=True)
    link.delivery_count = 0xFFFFFFFF

    link.send(TOKEN, [b"x"], True)
    wire.flow(handle=0, credit=5, delivery_count=0xFFFFFFFF)

    assert link.delivery_count == 0
    assert link.credit == 4


def test_replies_may_overdraw_credit(wire: Wire) -> None:
    link = wire.attached(role=True)

    link.send(b"x", [b"reply"], True)

    assert link.credit == 0
    assert len([f for f in wire.answers() if isinstance(f, Transfer)]) == 1


def test_drain_uses_up_the_credit_and_says_so(wire: Wire) -> None:
    link = wire.attached(role=True)
    wire.flow(handle=0, credit=10, drain=True)
    assert link.drain
    assert wire.handler.of("credit") == [("link", 10, True)]
    wire.answers()

    link.send(TOKEN, [b"x"], True)
    link.drained()

    flow = wire.answers()[-1]
    assert isinstance(flow, Flow)
    assert (flow.drain, flow.link_credit, flow.delivery_count, flow.available) == (True, 0, 10, 0)
    assert flow.next_incoming_id >= 0
    assert not link.drain


def test_an_echo_is_answered_with_where_the_link_stands(wire: Wire) -> None:
    wire.attached(role=True)
    wire.answers()
    frame = Flow()
    frame.next_incoming_id = frame.incoming_window = 1
    frame.handle, frame.delivery_count, frame.link_credit, frame.echo = 0, 0, 3, True

    wire.say(frame)

    (answer,) = wire.answers()
    assert isinstance(answer, Flow)
    assert (answer.handle, answer.link_credit) == (0, 3)


def test_a_sender_that_skips_deliveries_gets_its_credit_back() -> None:
    wire = Wire(ConnectionSettings("broker", link_credit=10)).begun()
    link = wire.attached(role=False)
    wire.answers()

    wire.flow(handle=0, credit=0, delivery_count=10)

    (flow,) = wire.answers()
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (10, 10)
    wire.flow(handle=0, credit=0, delivery_count=3)  # backwards: no sender does that
    assert link.delivery_count == 10


def test_a_flow_that_counts_nothing_changes_nothing_for_a_receiver(wire: Wire) -> None:
    link = wire.attached(role=False)
    frame = Flow()
    frame.incoming_window, frame.handle = 1, 0

    wire.say(frame)

    assert (link.delivery_count, link.credit) == (0, 1000)


def test_a_flow_before_the_client_knows_our_count_starts_at_zero(wire: Wire) -> None:
    link = wire.attached(role=True)
    frame = Flow()
    frame.next_incoming_id = frame.incoming_window = 1
    frame.handle, frame.link_credit = 0, 6

    wire.say(frame)

    assert link.credit == 6


# ---- deliveries in: AMQP 1.0, 2.6.14 ----


def test_a_delivery_in_one_frame_is_handed_over(wire: Wire) -> None:
    wire.attached(role=False)

    wire.transfer(b"payload", delivery_id=7, settled=True)

    assert wire.handler.of("transfer") == [("link", 7, 0, True, b"payload", None)]


def test_a_delivery_in_many_frames_is_put_together(wire: Wire) -> None:
    wire.attached(role=False)

    # Python repeats id, tag and format on every frame; others leave them out.
    wire.transfer(b"one ", delivery_id=3, more=True).transfer(b"two ", delivery_id=3, more=True)
    frame = Transfer(0)
    wire.say(frame, payload=b"three")

    assert wire.handler.of("transfer") == [("link", 3, 0, False, b"one two three", None)]
    assert wire.connection.partial_size == 0


def test_deliveries_of_two_links_may_interleave(wire: Wire) -> None:
    wire.attached(role=False, name="one", handle=0)
    wire.attached(role=False, name="two", handle=1)

    wire.transfer(b"a", delivery_id=0, handle=0, more=True).transfer(b"1", delivery_id=1, handle=1, more=True)
    wire.transfer(b"b", delivery_id=0, handle=0).transfer(b"2", delivery_id=1, handle=1)

    assert [(call[0], call[4]) for call in wire.handler.of("transfer")] == [("one", b"ab"), ("two", b"12")]


def test_an_aborted_delivery_leaves_nothing_behind(wire: Wire) -> None:
    wire.attached(role=False)
    wire.answers()

    wire.transfer(b"half", delivery_id=0, more=True).transfer(b"", delivery_id=0, aborted=True)
    wire.transfer(b"whole", delivery_id=1)

    assert [call[4] for call in wire.handler.of("transfer")] == [b"whole"]
    assert wire.connection.partial_size == 0


def test_a_new_delivery_inside_another_is_refused(wire: Wire) -> None:
    wire.attached(role=False)

    wire.transfer(b"half", delivery_id=0, more=True).transfer(b"x", delivery_id=1)

    assert wire.closed_with() == "amqp:not-allowed"


def test_a_delivery_without_id_is_refused() -> None:
    for more in (True, False):
        wire = Wire().begun()
        wire.attached(role=False)
        frame = Transfer(0)
        frame.more = more

        wire.say(frame, payload=b"x")

        assert wire.closed_with() == "amqp:invalid-field"


def test_transfers_against_the_direction_of_a_link_are_refused(wire: Wire) -> None:
    wire.attached(role=True)

    wire.transfer(b"x")

    assert wire.closed_with() == "amqp:not-allowed"


def test_transfers_before_the_attach_is_answered_are_refused(wire: Wire) -> None:
    wire.handler.answers_attach = False
    wire.say(asked(role=False))

    wire.transfer(b"x")

    assert wire.closed_with() == "amqp:not-allowed"


# B61: the limit counts the whole delivery, and what exceeds it is not kept.
@pytest.mark.promise("B61")
def test_a_delivery_over_the_links_limit_is_reported_and_not_kept(wire: Wire) -> None:
    wire.attached(role=False)  # its limit is 4096

    wire.transfer(b"x" * 4096, delivery_id=0).transfer(b"x" * 4097, delivery_id=1)

    assert len(wire.handler.of("transfer")) == 1
    assert wire.handler.of("transfer_too_large") == [("link", 1, False, 4097)]


@pytest.mark.promise("B61")
def test_the_limit_holds_over_many_frames(wire: Wire) -> None:
    wire.attached(role=False)

    for _ in range(10):
        wire.transfer(b"x" * 1000, delivery_id=0, more=True)
    assert wire.connection.partial_size == 0
    wire.transfer(b"x", delivery_id=0, settled=True)

    assert wire.handler.of("transfer") == []
    assert wire.handler.of("transfer_too_large") == [("link", 0, True, 10001)]
    wire.transfer(b"fits", delivery_id=1)
    assert len(wire.handler.of("transfer")) == 1


@pytest.mark.promise("B62")
def test_unfinished_deliveries_are_bounded_over_all_links() -> None:
    wire = Wire(ConnectionSettings("broker", partial_bytes_max=10_000)).begun()
    for handle in range(5):
        wire.attached(role=False, name=str(handle), handle=handle)

    for handle in range(5):
        wire.transfer(b"x" * 2500, delivery_id=handle, handle=handle, more=True)

    assert wire.closed_with() == "amqp:resource-limit-exceeded"
    assert wire.connection.partial_size == 0


# ---- deliveries out ----


def test_a_delivery_goes_out_in_one_frame_with_all_its_fields(wire: Wire) -> None:
    link = wire.attached(role=True)
    wire.answers()

    delivery_id = link.send(TOKEN, [b"one ", b"two"], False)

    ((_, frame, payload),) = wire.frames()
    assert isinstance(frame, Transfer)
    assert (frame.handle, frame.delivery_id, frame.delivery_tag, frame.message_format) == (
        0,
        delivery_id,
        TOKEN,
        0,
    )
    assert (frame.settled, frame.more, frame.aborted, frame.state) == (False, False, False, None)
    assert payload == b"one two"


def test_deliveries_of_equal_and_other_sizes_follow_each_other(wire: Wire) -> None:
    links = [wire.attached(role=True, name=name, handle=handle) for handle, name in enumerate(("a", "b"))]
    wire.answers()
    bodies = [b"one", b"two", b"longer", b"six", b"", b"ten"]

    sent = [links[place % 2].send(TOKEN, [body], settled=place == 3) for place, body in enumerate(bodies * 2)]

    found = [
        (frame.handle, frame.delivery_id, frame.delivery_tag, frame.settled, payload)
        for _, frame, payload in wire.frames()
        if isinstance(frame, Transfer)
    ]
    assert found == [
        (place % 2, sent[place], TOKEN, place == 3, body) for place, body in enumerate(bodies * 2)
    ]


@pytest.mark.promise("B61")
@pytest.mark.parametrize("tag", [TOKEN, b"short"])
def test_a_large_delivery_is_cut_into_the_clients_frames(tag: bytes) -> None:
    wire = Wire().begun(max_frame_size=512)
    link = wire.attached(role=True)
    wire.connection.take_output()
    payload = bytes(range(256)) * 10

    link.send(tag, [payload], True)

    output = wire.connection.take_output()
    assert all(len(frame) <= 512 for frame in output)
    wire.connection.output = output
    frames = wire.frames()
    assert b"".join(piece for _, _, piece in frames) == payload
    transfers = [frame for _, frame, _ in frames if isinstance(frame, Transfer)]
    assert [frame.more for frame in transfers] == [True] * (len(transfers) - 1) + [False]
    # Continuations leave out what the client has already: repeated ids would need repeated tags.
    assert {(frame.delivery_id, frame.delivery_tag) for frame in transfers[1:]} == {(-1, None)}


def test_our_own_frames_have_a_limit_whatever_the_client_would_take() -> None:
    wire = Wire(ConnectionSettings("broker", send_frame_max=2048)).begun(max_frame_size=0xFFFFFFFF)
    link = wire.attached(role=True)
    wire.connection.take_output()

    link.send(TOKEN, [b"x" * 5000], True)

    assert max(len(frame) for frame in wire.connection.take_output()) == 2048


def test_an_empty_delivery_is_one_frame(wire: Wire) -> None:
    link = wire.attached(role=True)
    wire.answers()

    link.send(b"", [], True, message_format=5)

    ((_, frame, payload),) = wire.frames()
    assert isinstance(frame, Transfer)
    assert (frame.message_format, payload) == (5, b"")
