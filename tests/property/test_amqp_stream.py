"""What must hold for every byte stream a peer can send (B59), and for every way of cutting it into chunks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import STATE_ACCEPTED, STATE_RELEASED, encode_modified
from pairbus.amqp.transport.connection import ALL_WORK
from pairbus.amqp.transport.framing import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, amqp_frame
from pairbus.amqp.transport.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from pairbus.amqp.transport.sasl import SaslInit
from tests.unit.amqp.peers import Wire

LOGIN = SASL_HEADER + SaslInit("ANONYMOUS", b"", "host").frame() + AMQP_HEADER
small = st.integers(0, 3)


def attach(handle: int, role: bool, name: str) -> Attach:
    frame = Attach(name, handle, role)
    frame.source, frame.target = Source("q"), Target("q")
    return frame


def flow(handle: int, credit: int, window: int, drain: bool, echo: bool) -> Flow:
    frame = Flow()
    frame.next_incoming_id, frame.incoming_window = 1, window
    if handle < 3:
        frame.handle, frame.delivery_count, frame.link_credit = handle, 0, credit
    frame.drain, frame.echo = drain, echo
    return frame


def transfer(handle: int, delivery_id: int, more: bool, aborted: bool, settled: bool) -> Transfer:
    frame = Transfer(handle)
    frame.delivery_id, frame.delivery_tag = delivery_id, b"t"
    frame.more, frame.aborted, frame.settled = more, aborted, settled
    return frame


def disposition(role: bool, first: int, length: int, settled: bool, state: bytes) -> Disposition:
    frame = Disposition(role, first, first + length)
    frame.settled, frame.state_bytes = settled, state
    return frame


def begin(window: int) -> Begin:
    return Begin(0, window, 100)


def opened(size: int) -> Open:
    frame = Open("client")
    frame.max_frame_size = size
    return frame


states = st.sampled_from([b"", STATE_ACCEPTED, STATE_RELEASED, encode_modified(True, True)])
performatives: st.SearchStrategy[Performative] = st.one_of(
    st.builds(opened, st.sampled_from([511, 512, 65536])),
    st.builds(begin, st.integers(0, 50)),
    st.builds(attach, small, st.booleans(), st.sampled_from(["a", "b"])),
    st.builds(flow, st.integers(0, 4), st.integers(0, 20), st.integers(0, 50), st.booleans(), st.booleans()),
    st.builds(transfer, small, st.integers(-1, 5), st.booleans(), st.booleans(), st.booleans()),
    st.builds(disposition, st.booleans(), st.integers(0, 8), st.integers(0, 5), st.booleans(), states),
    st.builds(Detach, small, st.booleans(), st.none()),
    st.builds(End, st.none()),
    st.builds(Close, st.none()),
)


def as_frame(channel: int, frame: Performative) -> bytes:
    payload = encode_message(body="hello") if isinstance(frame, Transfer) else b""
    return amqp_frame(channel, frame.encode() + payload)


frames = st.one_of(
    st.builds(as_frame, st.integers(0, 1), performatives),
    st.just(EMPTY_FRAME),
    st.binary(max_size=40),
)
usual = st.sampled_from(
    [
        [as_frame(0, opened(65536)), as_frame(0, begin(100))],
        [as_frame(0, opened(512)), as_frame(0, begin(2)), as_frame(0, attach(0, True, "a"))],
        [
            as_frame(0, opened(65536)),
            as_frame(0, begin(10)),
            as_frame(0, attach(0, False, "a")),
            as_frame(0, attach(1, True, "b")),
            as_frame(0, flow(1, 5, 10, False, False)),
        ],
    ]
)
conversations = st.one_of(
    st.binary(max_size=100),
    st.builds(lambda start, rest: LOGIN + b"".join([*start, *rest]), usual, st.lists(frames, max_size=12)),
    st.builds(lambda rest: LOGIN + b"".join(rest), st.lists(frames, max_size=6)),
)


def outcome_of(chunks: list[bytes], work: int = ALL_WORK) -> tuple[object, ...]:
    """All that a conversation leads to: what the owner heard, what the peer hears, whether the line is dead."""
    wire = Wire()
    for chunk in chunks:
        wire.connection.receive(chunk, wire.now, work)
    while wire.connection.is_behind:
        wire.connection.receive(b"", wire.now, work)
    for link in list(wire.handler.links.values()):
        if link.is_attached and link.role_is_sender:
            link.send(bytes(16), [b"delivery"], False)
    output = b"".join(wire.connection.take_output())
    return wire.handler.calls, output, wire.connection.is_closed, wire.connection.closing


@pytest.mark.promise("B59")
@given(conversations)
def test_any_bytes_are_parsed_or_refused_and_chunking_never_matters(data: bytes) -> None:
    whole = outcome_of([data])
    drop_by_drop = outcome_of([data[i : i + 1] for i in range(len(data))])

    assert whole == drop_by_drop


@pytest.mark.promise("B59")
@given(conversations, st.lists(st.integers(0, 2000), max_size=8))
def test_any_cut_gives_the_same(data: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]

    assert outcome_of(chunks) == outcome_of([data])


@pytest.mark.promise("B59")
@given(conversations, st.integers(1, 40), st.lists(st.integers(0, 2000), max_size=4))
def test_any_amount_of_work_at_a_time_gives_the_same(data: bytes, work: int, cuts: list[int]) -> None:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]

    assert outcome_of(chunks, work) == outcome_of([data])


@pytest.mark.promise("B59")
@given(conversations, st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6))
def test_bent_conversations_end_at_worst_in_a_close(data: bytes, bends: list[tuple[int, int]]) -> None:
    hostile = bytearray(data)
    for place, byte in bends:
        if hostile:
            hostile[place % len(hostile)] = byte
    wire = Wire()

    wire.raw(bytes(hostile))
    wire.connection.tick(10**9)
    wire.connection.lost()

    assert wire.connection.is_closed
    assert wire.connection.link_count == 0
    assert wire.connection.partial_size == 0
    began = [call[1] for call in wire.handler.calls if call[0] == "session_began"]
    ended = [call[1] for call in wire.handler.calls if call[0] == "session_ended"]
    assert sorted(map(str, began)) == sorted(map(str, ended))  # B67: whatever began has ended


@pytest.mark.promise("B61")
@given(conversations)
def test_no_frame_exceeds_what_the_peer_takes(data: bytes) -> None:
    wire = Wire()
    wire.raw(data)
    for link in list(wire.handler.links.values()):
        if link.is_attached and link.role_is_sender:
            link.send(b"t", [b"x" * 3000], True)

    output = b"".join(wire.connection.take_output())

    remote = wire.connection.remote_open
    limit = 512 if remote is None else max(remote.max_frame_size, 512)
    offset = 0
    while offset < len(output):
        if output[offset : offset + 4] == b"AMQP":
            offset += 8
            continue
        size = int.from_bytes(output[offset : offset + 4], "big")
        assert size <= limit
        offset += size
