"""AMQP 1.0, 2.7: every performative goes out whole and comes back."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.encode import encode_described, encode_value
from pairbus.amqp.states import STATE_RELEASED
from pairbus.amqp.transport.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from pairbus.amqp.types import Array, Described, Symbol, UInt
from pairbus.errors import RemoteProtocolError

FIELD_COUNTS = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1}


def back(frame: Performative) -> Performative:
    raw = frame.encode()
    assert raw[:2] == b"\x00\x53"  # the only descriptor _pyamqp reads
    count = raw[5] if raw[3] == 0xC0 else int.from_bytes(raw[8:12], "big")
    assert count == FIELD_COUNTS[raw[2]]  # never short: _pyamqp up to 7.14 raises on that
    decoded, end = decode_performative(raw, 0, len(raw))
    assert end == len(raw)
    return decoded


def test_open_and_begin() -> None:
    sent = Open("me")
    sent.hostname, sent.max_frame_size, sent.channel_max, sent.idle_timeout_ms = "host", 512, 9, 1000
    sent.properties = {"product": "p"}

    got = back(sent)

    assert isinstance(got, Open)
    assert (got.container_id, got.hostname, got.max_frame_size) == ("me", "host", 512)
    assert (got.channel_max, got.idle_timeout_ms, got.properties) == (9, 1000, {"product": "p"})
    begin = Begin(1, 2, 3)
    assert getattr(back(begin), "remote_channel", None) == -1
    begin.remote_channel = 4
    assert getattr(back(begin), "remote_channel", None) == 4


def test_attach_with_source_and_target() -> None:
    sent = Attach("name", 5, True)
    sent.source, sent.target = Source("from"), Target("to")
    sent.source.durable, sent.source.expiry_policy, sent.source.timeout = 1, "never", 7
    sent.source.dynamic, sent.source.distribution_mode = True, "copy"
    sent.source.dynamic_node_properties = {"lifetime-policy": 1}
    sent.source.filter = {"f": Described(5, "x")}
    sent.source.outcomes, sent.source.capabilities = ["amqp:accepted:list"], ["queue"]
    sent.target.capabilities = ["topic"]
    sent.max_message_size, sent.properties = 2**40, {"p": 1}
    sent.desired_capabilities = ["c"]

    got = back(sent)

    assert isinstance(got, Attach)
    assert isinstance(got.target, Target)
    assert got.source is not None
    assert got.source.encode() == sent.source.encode()
    assert got.target.encode() == sent.target.encode()
    assert (got.source.address, got.source.durable, got.source.timeout) == ("from", 1, 7)
    assert (got.source.expiry_policy, got.source.dynamic, got.source.distribution_mode) == (
        "never",
        True,
        "copy",
    )
    assert got.source.dynamic_node_properties == {"lifetime-policy": 1}
    assert got.source.filter == {"f": Described(5, "x")}
    assert (got.source.outcomes, got.source.capabilities) == (["amqp:accepted:list"], ["queue"])
    assert (got.target.address, got.target.capabilities) == ("to", ["topic"])
    assert (got.max_message_size, got.properties, got.desired_capabilities) == (2**40, {"p": 1}, ["c"])


def test_attach_with_coordinator() -> None:
    sent = Attach("name", 5, False)
    sent.target = Coordinator()
    sent.target.capabilities = ["amqp:multi-txns-per-ssn"]
    sent.initial_delivery_count = 9

    got = back(sent)

    assert isinstance(got, Attach)
    assert isinstance(got.target, Coordinator)
    assert got.target.capabilities == ["amqp:multi-txns-per-ssn"]
    assert got.initial_delivery_count == 9


def test_flow_transfer_disposition() -> None:
    flow = Flow()
    flow.next_incoming_id, flow.incoming_window, flow.next_outgoing_id, flow.outgoing_window = 1, 2, 3, 4
    flow.handle, flow.delivery_count, flow.link_credit, flow.available = 5, 6, 7, 8
    flow.drain = flow.echo = True
    transfer = Transfer(1)
    transfer.delivery_id, transfer.delivery_tag, transfer.message_format = 2, b"tag", 0x80013700
    transfer.settled = transfer.more = transfer.aborted = True
    disposition = Disposition(True, 5, 9)
    disposition.settled, disposition.state_bytes = True, STATE_RELEASED

    got_flow, got_transfer, got_disposition = back(flow), back(transfer), back(disposition)
    assert isinstance(got_flow, Flow)
    assert got_flow.encode() == flow.encode()
    assert (got_flow.link_credit, got_flow.available, got_flow.drain, got_flow.echo) == (7, 8, True, True)
    assert isinstance(got_transfer, Transfer)
    assert got_transfer.encode() == transfer.encode()
    assert (got_transfer.delivery_tag, got_transfer.message_format) == (b"tag", 0x80013700)
    assert (got_transfer.settled, got_transfer.more, got_transfer.aborted) == (True, True, True)
    assert isinstance(got_disposition, Disposition)
    assert (got_disposition.role, got_disposition.first, got_disposition.last) == (True, 5, 9)
    assert got_disposition.settled
    assert got_disposition.state is not None


def test_detach_end_close() -> None:
    error = AmqpError("c", "d", {"k": 1})

    assert getattr(back(Detach(3, True, error)), "error", None) == error
    assert getattr(back(End(error)), "error", None) == error
    assert getattr(back(Close(None)), "error", "missing") is None


@pytest.mark.parametrize("code", FIELD_COUNTS)
def test_trailing_nulls_may_be_left_out(code: int) -> None:
    short = {
        0x10: ["me"],
        0x11: [None, UInt(0), UInt(1), UInt(1)],
        0x12: ["n", UInt(0), True],
        0x13: [None, UInt(1), UInt(1), UInt(1)],
        0x14: [UInt(0)],
        0x15: [True, UInt(5)],
        0x16: [UInt(0)],
        0x17: [],
        0x18: [],
    }[code]

    raw = encode_described(code, encode_value(short))
    assert decode_performative(raw, 0, len(raw))[1] == len(raw)


def test_one_symbol_may_stand_for_an_array_of_one() -> None:
    attach = encode_described(0x12, encode_value(["n", UInt(0), True] + [None] * 9 + [Symbol("a")]))
    several = encode_described(0x12, encode_value(["n", UInt(0), True] + [None] * 9 + [Array([Symbol("a")])]))

    for raw in (attach, several):
        frame, _ = decode_performative(raw, 0, len(raw))
        assert isinstance(frame, Attach)
        assert frame.desired_capabilities == ["a"]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (0x10, []),
        (0x10, [5]),
        (0x10, ["me", 5]),
        (0x10, ["me", None, "x"]),
        (0x10, ["me", None, -1]),
        (0x10, ["me", None, None, 70000]),
        (0x10, ["me", None, None, None, None, None, None, None, None, 5]),
        (0x11, [None]),
        (0x12, ["n"]),
        (0x12, ["n", UInt(0)]),
        (0x12, ["n", True, True]),
        (0x12, ["n", UInt(0), 5]),
        (0x12, ["n", UInt(0), True, 3]),
        (0x12, ["n", UInt(0), True, None, None, 5]),
        (0x12, ["n", UInt(0), True, None, None, Described(0x29, [])]),
        (0x12, ["n", UInt(0), True, None, None, None, Described(0x28, [])]),
        (0x12, ["n", UInt(0), True, None, None, None, Described(Symbol("what"), [])]),
        (0x12, ["n", UInt(0), True] + [None] * 9 + [5]),
        (0x13, [None]),
        (0x14, []),
        (0x14, [UInt(0), None, "text"]),
        (0x15, []),
        (0x15, [True]),
        (0x16, []),
        (0x17, [5]),
        (0x09, []),
    ],
)
def test_fields_of_the_wrong_type_are_refused(code: int, fields: list[object]) -> None:
    raw = encode_described(code, encode_value(fields))

    with pytest.raises(RemoteProtocolError):
        decode_performative(raw, 0, len(raw))
