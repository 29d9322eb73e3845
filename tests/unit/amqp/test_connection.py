"""AMQP 1.0, 2.3 and 2.4: frames, open, close, idle timeouts; B59, B61, B64."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.encode import encode_value
from pairbus.amqp.transport.connection import CLOSE_WAIT_MS, ConnectionSettings
from pairbus.amqp.transport.framing import EMPTY_FRAME, amqp_frame, sasl_frame
from pairbus.amqp.transport.performatives import Attach, Begin, Close, End, Flow, Open
from pairbus.amqp.types import Described, Symbol, ULong
from tests.unit.amqp.peers import Wire

SECOND = 1000


def test_open_announces_what_the_service_announces() -> None:
    wire = Wire().opened()

    (answer,) = wire.answers()

    assert isinstance(answer, Open)
    assert answer.container_id == "broker"
    assert (answer.max_frame_size, answer.channel_max, answer.idle_timeout_ms) == (65536, 4999, 240_000)
    assert wire.connection.is_open
    assert wire.connection.remote_open is not None
    assert wire.connection.remote_open.container_id == "client"


def test_owner_can_refuse_an_open() -> None:
    wire = Wire()
    wire.handler.open_error = AmqpError("amqp:unauthorized-access", "no")

    wire.opened()

    opened, closed = wire.answers()
    assert isinstance(opened, Open)
    assert isinstance(closed, Close)
    assert closed.error == wire.handler.open_error


def test_begin_answer_names_the_clients_channel() -> None:
    wire = Wire().opened()
    wire.answers()

    wire.say(Begin(0, 65536, 65536), channel=7)

    ((channel, answer, _),) = wire.frames()
    assert isinstance(answer, Begin)
    assert (channel, answer.remote_channel, answer.handle_max) == (7, 7, 255)
    assert (answer.next_outgoing_id, answer.incoming_window) == (1, 5000)


def test_close_is_answered_with_close_after_links_and_sessions_are_gone(wire: Wire) -> None:
    wire.attached(role=False)
    wire.answers()

    wire.say(Close(None))

    assert wire.closed_with() == ""
    assert wire.is_closed()
    assert wire.handler.names()[-2:] == ["link_detached", "session_ended"]


def test_nothing_is_read_after_the_end() -> None:
    wire = Wire().opened().say(Close(None))

    wire.say(Begin(0, 1, 1))

    assert "session_began" not in wire.handler.names()


def test_our_close_waits_for_theirs_and_ignores_everything_else(wire: Wire) -> None:
    wire.attached(role=False)
    wire.answers()

    wire.connection.close(AmqpError("amqp:connection:forced", "bye"))
    wire.transfer(b"late").say(Begin(0, 1, 1), channel=3).say(Flow())

    assert wire.closed_with() == "amqp:connection:forced"
    assert wire.connection.closing
    assert not wire.is_closed()
    assert wire.handler.of("transfer") == []
    wire.say(Close(None))
    assert wire.is_closed()
    assert wire.answers() == []


def test_closing_twice_says_it_once_and_nothing_follows(wire: Wire) -> None:
    session = wire.handler.sessions[0]
    wire.answers()

    wire.connection.close()
    wire.connection.close()
    session.write(End(None).encode())

    assert [type(frame) for frame in wire.answers()] == [Close]


def test_a_peer_that_never_answers_our_close_is_dropped() -> None:
    wire = Wire(now=5).opened()
    wire.connection.close()

    assert wire.connection.next_deadline() == 5 + CLOSE_WAIT_MS
    wire.connection.tick(4 + CLOSE_WAIT_MS)
    assert not wire.is_closed()
    wire.connection.tick(5 + CLOSE_WAIT_MS)
    assert wire.is_closed()
    assert wire.connection.next_deadline() is None


def test_lost_socket_tells_the_owner_once(wire: Wire) -> None:
    wire.attached(role=True)

    wire.connection.lost()
    wire.connection.lost()

    assert wire.handler.names().count("link_detached") == 1
    assert wire.handler.names().count("session_ended") == 1
    assert wire.handler.of("link_detached") == [("link", False, None)]
    assert wire.connection.link_count == 0


# ---- what no peer may do: B59, at worst its own connection closes ----


def frame_with(body: bytes) -> bytes:
    return amqp_frame(0, body)


@pytest.mark.promise("B59")
@pytest.mark.parametrize(
    ("frame", "condition"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x03\x00\x00\x00", "amqp:connection:framing-error"),
        (sasl_frame(b"\x00\x53\x41\x45"), "amqp:connection:framing-error"),
        (b"\x00\x01\x00\x01\x02\x00\x00\x00", "amqp:connection:framing-error"),  # one byte over 65536
        (frame_with(b"\x40"), "amqp:decode-error"),
        (frame_with(b"\x00"), "amqp:decode-error"),
        (frame_with(b"\x00\x53\x19\x45"), "amqp:decode-error"),
        (frame_with(b"\x00\x40\x45"), "amqp:decode-error"),
        (frame_with(b"\x00\x53\x11\x40"), "amqp:decode-error"),  # begin, but no list
        (frame_with(b"\x00\x53\x11\x45"), "amqp:invalid-field"),  # begin without its mandatory fields
        (frame_with(Open("again").encode()), "amqp:illegal-state"),
        (frame_with(Attach("l", 0, False).encode()), "amqp:not-allowed"),  # no session on this channel
        (frame_with(End(None).encode()), "amqp:not-allowed"),
        (frame_with(b"\x00\x53\x14\xc0\x02\x01\x43"), "amqp:not-allowed"),  # a transfer, likewise
        (amqp_frame(5000, Begin(0, 1, 1).encode()), "amqp:connection:framing-error"),
    ],
)
def test_a_broken_frame_closes_the_connection_with_its_reason(frame: bytes, condition: str) -> None:
    wire = Wire().opened()
    wire.answers()

    wire.raw(frame)

    assert wire.closed_with() == condition
    assert wire.is_closed()


@pytest.mark.promise("B59")
def test_a_frame_before_open_closes_with_open_and_close() -> None:
    wire = Wire().authenticated()

    wire.say(Begin(0, 1, 1))

    assert [type(frame) for frame in wire.answers()] == [Open, Close]


def test_a_session_cannot_begin_twice_on_one_channel(wire: Wire) -> None:
    wire.say(Begin(0, 1, 1))

    assert wire.closed_with() == "amqp:not-allowed"


def test_descriptors_may_be_written_long_or_as_names() -> None:
    wire = Wire().opened()
    long_form = b"\x00\x80" + (0x11).to_bytes(8, "big") + encode_value([None, ULong(0), ULong(1), ULong(1)])
    by_name = encode_value(Described(Symbol("amqp:begin:list"), [None, ULong(0), ULong(1), ULong(1)]))

    wire.raw(amqp_frame(1, long_form)).raw(amqp_frame(2, by_name))

    assert wire.handler.of("session_began") == [(1,), (2,)]


def test_frames_may_have_an_extended_header() -> None:
    wire = Wire().opened()
    body = Begin(0, 1, 1).encode()

    wire.raw((len(body) + 12).to_bytes(4, "big") + b"\x03\x00\x00\x00ext!" + body)

    assert wire.handler.of("session_began") == [(0,)]


# ---- sizes: B61 ----


@pytest.mark.promise("B61")
def test_frames_below_the_smallest_maximum_are_refused() -> None:
    wire = Wire().opened(max_frame_size=511)

    assert wire.closed_with() == "amqp:invalid-field"


@pytest.mark.promise("B61")
def test_an_answer_that_cannot_fit_closes_instead() -> None:
    wire = Wire().begun(max_frame_size=512)
    wire.answers()

    wire.attached(role=True, name="n" * 600)

    assert wire.closed_with() == "amqp:frame-size-too-small"
    assert wire.is_closed()
    assert wire.handler.of("link_detached") == [("n" * 600, False, "amqp:frame-size-too-small")]


@pytest.mark.promise("B61")
def test_long_errors_shrink_to_the_clients_frames() -> None:
    wire = Wire().begun(max_frame_size=512)
    link = wire.attached(role=False)
    wire.connection.take_output()

    link.session.reject_incoming(1, AmqpError("amqp:not-allowed", "d" * 5000, {"k": "v" * 5000}))
    link.session.settle_outgoing(1, 0x24, AmqpError("amqp:not-allowed", "d" * 5000))
    link.detach(AmqpError("amqp:not-allowed", "€" * 5000))
    wire.connection.close(AmqpError("amqp:not-allowed", "\U0001f600" * 5000))

    output = wire.connection.take_output()
    assert len(output) == 4
    assert all(len(frame) <= 512 for frame in output)


@pytest.mark.promise("B61")
def test_our_open_fits_before_sizes_are_agreed_on() -> None:
    settings = ConnectionSettings("broker")
    settings.properties = {"product": "p" * 600}
    wire = Wire(settings).authenticated()
    wire.connection.take_output()

    wire.say(Open("client"))

    assert len(b"".join(wire.connection.take_output())) <= 512


def test_an_attach_of_absurd_size_is_refused(wire: Wire) -> None:
    wire.answers()

    wire.say(Attach("n" * 20_000, 0, True))

    assert wire.closed_with() == "amqp:resource-limit-exceeded"


# ---- time: B64 ----


@pytest.mark.promise("B64")
def test_a_silent_peer_is_closed_after_our_idle_timeout() -> None:
    wire = Wire(now=1_000).opened()
    wire.answers()

    assert wire.connection.next_deadline() == 241_000
    wire.connection.tick(240_999)
    assert not wire.is_closed()
    wire.connection.tick(241_000)

    assert wire.closed_with() == "amqp:connection:forced"
    assert wire.is_closed()


@pytest.mark.promise("B64")
def test_an_empty_frame_keeps_a_peer_alive() -> None:
    wire = Wire(now=0).opened()
    wire.now = 200 * SECOND

    wire.raw(EMPTY_FRAME)
    wire.connection.tick(300 * SECOND)

    assert not wire.is_closed()


@pytest.mark.promise("B64")
@pytest.mark.parametrize(("asked", "expected"), [(60_000, 30_000), (10_000, 5_000), (4_294_967_295, 30_000)])
def test_we_speak_at_half_the_peers_timeout_and_every_thirty_seconds_at_least(
    asked: int, expected: int
) -> None:
    wire = Wire(now=0).opened(idle_timeout_ms=asked)
    wire.answers()

    assert wire.connection.next_deadline() == expected
    wire.connection.tick(expected - 1)
    assert not wire.connection.has_output()
    wire.connection.tick(expected)

    assert wire.connection.take_output() == [EMPTY_FRAME]
    assert wire.connection.next_deadline() == 2 * expected


def test_output_of_any_kind_puts_the_heartbeat_off() -> None:
    wire = Wire(now=0).opened(idle_timeout_ms=60_000)
    wire.now = 20 * SECOND
    wire.say(Begin(0, 1, 1))
    wire.answers()

    assert wire.connection.next_deadline() == 50 * SECOND


def test_no_heartbeat_and_no_deadline_when_nobody_asks() -> None:
    wire = Wire(ConnectionSettings("broker", idle_timeout_ms=0)).opened()

    assert wire.connection.next_deadline() is None
    wire.connection.tick(10**9)
    assert not wire.is_closed()


def test_peer_that_asks_for_frames_all_the_time_is_refused() -> None:
    wire = Wire().opened(idle_timeout_ms=50)

    assert wire.closed_with() == "amqp:not-allowed"


def test_time_before_open_belongs_to_the_server() -> None:
    wire = Wire().authenticated()

    assert wire.connection.next_deadline() is None
    wire.connection.tick(10**9)
    assert not wire.is_closed()


# ---- output ----


def test_output_is_given_once() -> None:
    wire = Wire().opened()

    assert wire.connection.has_output()
    assert wire.connection.output_size > 0
    wire.connection.take_output()

    assert not wire.connection.has_output()
    assert wire.connection.output_size == 0
    assert wire.connection.take_output() == []
