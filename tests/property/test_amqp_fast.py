"""The fast readers decide what is quick, never what is valid: they agree with the general ones on all bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.encode import FALSE, NULL, TRUE, encode_binary, encode_list, encode_uint, encode_value
from pairbus.amqp.states import STATE_ACCEPTED, STATE_RELEASED, Outcome
from pairbus.amqp.transport import fast
from pairbus.amqp.transport.performatives import Flow
from pairbus.amqp.types import UByte
from pairbus.errors import RemoteProtocolError

uints = st.one_of(
    st.just(NULL),
    st.sampled_from([0, 1, 255, 256, 2**32 - 1]).map(encode_uint),
    st.sampled_from([b"\x70\x00\x00\x00\x05", b"\x52\x00"]),
)
booleans = st.sampled_from([NULL, TRUE, FALSE, b"\x56\x01", b"\x56\x00"])
tags = st.one_of(st.just(NULL), st.binary(max_size=40).map(encode_binary), st.just(b"\xb0\x00\x00\x00\x01t"))
states = st.sampled_from([NULL, STATE_ACCEPTED, STATE_RELEASED, b"\x00\x53\x24\xc0\x01\x00"])
modes = st.sampled_from([NULL, encode_value(UByte(0)), encode_value(UByte(1))])
odd = st.sampled_from([b"\x45", b"\xa1\x01x", b"\x51\x05", b"\x41", b"\x43"])


def shortened(fields: tuple[bytes, ...], count: int, wide: bool) -> bytes:
    items = list(fields)[:count]
    if wide:
        content = b"".join(items)
        return b"\xd0" + (len(content) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + content
    return encode_list(items)


def lists(*fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    either = [st.one_of(field, odd) if index % 3 == 0 else field for index, field in enumerate(fields)]
    sound = st.tuples(*fields)
    return st.builds(
        shortened, st.one_of(sound, st.tuples(*either)), st.integers(0, len(fields)), st.booleans()
    )


transfers = lists(uints, uints, tags, uints, booleans, booleans, modes, states, booleans, booleans, booleans)
dispositions = lists(booleans, uints, uints, booleans, states, booleans)
flows = lists(*([uints] * 8), booleans, booleans, st.sampled_from([NULL, b"\xc1\x01\x00"]))


def bent(raw: bytes, bends: list[tuple[int, int]]) -> bytes:
    hostile = bytearray(raw)
    for place, byte in bends:
        if hostile:
            hostile[place % len(hostile)] = byte
    return bytes(hostile)


bends = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), max_size=3)


FLOW_FIELDS = (
    "next_incoming_id",
    "incoming_window",
    "next_outgoing_id",
    "outgoing_window",
    "handle",
    "delivery_count",
    "link_credit",
    "available",
    "drain",
    "echo",
)


def plain(value: object) -> object:
    """Something that compares by content."""
    if isinstance(value, Outcome):
        return value.code, value.txn_id, repr(value.error)
    if isinstance(value, Flow):
        return [getattr(value, name) for name in FLOW_FIELDS]
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def outcome(read: Callable[[bytes, int, int], object], data: bytes, end: int) -> object:
    try:
        return plain(read(data, 2, end))
    except RemoteProtocolError as error:
        return error.condition


def check(
    fast: Callable[[bytes, int, int], object], general: Callable[[bytes, int, int], object], raw: bytes
) -> None:
    for after in (b"", b"\x00" * 16, b"\x41" * 300):
        data = b"##" + raw + after
        end = 2 + len(raw)
        assert outcome(fast, data, end) == outcome(general, data, end)


@given(transfers, bends, st.binary(max_size=8))
def test_transfers_are_read_alike(raw: bytes, changes: list[tuple[int, int]], payload: bytes) -> None:
    check(fast.read_transfer, fast._any_transfer, bent(raw, changes) + payload)


@given(dispositions, bends)
def test_dispositions_are_read_alike(raw: bytes, changes: list[tuple[int, int]]) -> None:
    check(fast.read_disposition, fast._any_disposition, bent(raw, changes))


@given(flows, bends)
def test_flows_are_read_alike(raw: bytes, changes: list[tuple[int, int]]) -> None:
    check(fast.read_flow, fast._any_flow, bent(raw, changes))


@pytest.mark.parametrize("read", [fast.read_transfer, fast.read_disposition, fast.read_flow])
@pytest.mark.parametrize("raw", [b"", b"\xc0", b"\xc0\x03\x05\x70\x00", b"\xd0\x00", b"\xc0\x02\x04\x52"])
def test_lists_cut_short_at_the_end_of_the_bytes_are_refused(
    read: Callable[[bytes, int, int], object], raw: bytes
) -> None:
    with pytest.raises(RemoteProtocolError):
        read(raw, 0, len(raw))


# Compiled, a slice that starts behind its end raises SystemError; each of these once did, or could have.
@pytest.mark.promise("B59")
@pytest.mark.parametrize(
    ("fast", "general", "raw", "after"),
    [
        (fast.read_disposition, fast._any_disposition, b"\xc0\x05\x03\x41\x52\x01\x40", b"\x00" * 16),
        (fast.read_disposition, fast._any_disposition, b"\xc0\x05\x03\x41\x52\x01\x70", b"\x00" * 16),
        (fast.read_flow, fast._any_flow, b"\xc0\x03\x08\x43\x43", b"\x43" * 40),
        (fast.read_flow, fast._any_flow, b"\xc0\x06\x08\x43\x43\x43\x43\x70", b"\x43" * 40),
        (fast.read_transfer, fast._any_transfer, b"\xc0\x06\x05\x43\x43\xa0\x00\x43", b"\x42" * 40),
        (fast.read_transfer, fast._any_transfer, b"\xc0\x05\x06\x43\x43\xa0\x20", b"\x42" * 40),
    ],
)
def test_fields_that_reach_into_the_next_frame_are_read_alike(
    fast: Callable[[bytes, int, int], object],
    general: Callable[[bytes, int, int], object],
    raw: bytes,
    after: bytes,
) -> None:
    data = b"##" + raw + after

    assert outcome(fast, data, 2 + len(raw)) == outcome(general, data, 2 + len(raw))


@pytest.mark.uncompiled
def test_the_usual_forms_really_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the general reader was asked")

    for name in ("_any_transfer", "_any_disposition", "_any_flow"):
        monkeypatch.setattr(fast, name, fail)
    transfer = [
        b"\x52\x01",
        b"\x70\x00\x00\x10\x00",
        encode_binary(b"tag4"),
        b"\x43",
        FALSE,
        FALSE,
        *[NULL] * 5,
    ]
    disposition = [TRUE, b"\x52\x05", NULL, FALSE, STATE_ACCEPTED, NULL]
    flow = [
        encode_uint(1),
        encode_uint(5000),
        encode_uint(0),
        encode_uint(1),
        b"\x43",
        b"\x43",
        encode_uint(9),
    ]

    wide = [b"\x70\x00\x00\x00\x01", *transfer[1:3], b"\x52\x00", *transfer[4:]]
    for fields in (transfer, transfer[:4], transfer[:5], transfer[:6], wide):
        raw = encode_list(fields)
        assert fast.read_transfer(raw + b"payload", 0, len(raw) + 7)[:3] == (1, 4096, 0)
    for fields in (disposition, disposition[:5]):
        raw = encode_list(fields)
        assert fast.read_disposition(raw, 0, len(raw))[:4] == (True, 5, 5, False)
    for fields in (flow, [*flow, NULL, FALSE, FALSE], [*flow, NULL, TRUE, NULL, NULL]):
        raw = encode_list(fields)
        assert fast.read_flow(raw, 0, len(raw)).link_credit == 9
