"""What must hold for all AMQP values and all bytes taken for one."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.decode import decode_value, skip_value
from pairbus.amqp.encode import encode_value
from pairbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)
from pairbus.errors import RemoteProtocolError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
LONG = st.integers(-(2**63), 2**63 - 1)

# What is encoded, beside what decoding must give back.
Pair = tuple[object, object]


def same(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[Pair]:
    return strategy.map(lambda value: (value, value))


def sized(wrapper: type, low: int, high: int) -> st.SearchStrategy[Pair]:
    return st.integers(low, high).map(lambda number: (wrapper(number), number))


def single(number: float) -> Pair:
    return Float(number), struct.unpack(">f", struct.pack(">f", number))[0]


_scalars: st.SearchStrategy[Pair] = st.one_of(
    same(st.none()),
    same(st.booleans()),
    same(LONG),
    same(st.floats(allow_nan=False)),
    same(st.binary(max_size=300)),
    same(texts),
    same(texts.map(Symbol)),
    same(LONG.map(Timestamp)),
    same(st.integers(0, 0x10FFFF).map(Char)),
    same(st.binary(min_size=16, max_size=16).map(Uuid)),
    same(st.binary(min_size=4, max_size=4).map(Decimal32)),
    same(st.binary(min_size=8, max_size=8).map(Decimal64)),
    same(st.binary(min_size=16, max_size=16).map(Decimal128)),
    sized(UByte, 0, 255),
    sized(UShort, 0, 2**16 - 1),
    sized(UInt, 0, 2**32 - 1),
    sized(ULong, 0, 2**64 - 1),
    sized(Byte, -128, 127),
    sized(Short, -(2**15), 2**15 - 1),
    sized(Int, -(2**31), 2**31 - 1),
    sized(Long, -(2**63), 2**63 - 1),
    st.floats(allow_nan=False, width=32).map(single),
)


@st.composite
def scalars(draw: st.DrawFn) -> Pair:
    """One value of any type that holds no others."""
    return draw(_scalars)


def listed(pairs: list[Pair]) -> Pair:
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def mapped(pairs: dict[str, Pair]) -> Pair:
    return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}


def described(parts: tuple[int, Pair]) -> Pair:
    return Described(ULong(parts[0]), parts[1][0]), Described(parts[0], parts[1][1])


def alike(parts: tuple[Pair, int]) -> Pair:
    return Array([parts[0][0]] * parts[1]), Array([parts[0][1]] * parts[1])


values: st.SearchStrategy[Pair] = st.recursive(
    scalars(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6).map(listed),
        st.dictionaries(texts, inner, max_size=6).map(mapped),
        st.tuples(st.integers(0, 2**64 - 1), inner).map(described),
        st.tuples(inner, st.integers(0, 5)).map(alike),
    ),
    max_leaves=20,
)


@given(values)
def test_every_value_survives_the_round_trip(pair: Pair) -> None:
    sent, expected = pair

    raw = encode_value(sent)

    assert decode_value(raw) == (expected, len(raw))
    assert skip_value(raw, 0, len(raw)) == len(raw)


@given(values, st.binary(max_size=20), st.binary(max_size=20))
def test_neighbouring_bytes_do_not_matter(pair: Pair, before: bytes, after: bytes) -> None:
    raw = encode_value(pair[0])

    decoded = decode_value(before + raw + after, len(before), len(before) + len(raw))

    assert decoded == (pair[1], len(before) + len(raw))


@given(values, st.data())
def test_a_value_cut_short_is_refused(pair: Pair, data: st.DataObject) -> None:
    raw = encode_value(pair[0])
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]

    with pytest.raises(RemoteProtocolError):
        decode_value(cut)
    with pytest.raises(RemoteProtocolError):
        skip_value(cut, 0, len(cut))


def bent(raw: bytes, bends: list[tuple[int, int]]) -> bytes:
    hostile = bytearray(raw)
    for place, byte in bends:
        hostile[place % len(hostile)] = byte
    return bytes(hostile)


hostile = st.one_of(
    st.binary(max_size=400),
    st.builds(
        bent,
        values.map(lambda pair: encode_value(pair[0])),
        st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    ),
)


@given(hostile)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        _, end = decode_value(data)
    except RemoteProtocolError:
        return

    assert end <= len(data)
    assert skip_value(data, 0, len(data)) == end


@pytest.mark.promise("B60")
@given(hostile)
def test_any_bytes_allocate_in_proportion(data: bytes) -> None:
    tracemalloc.start()
    try:
        decode_value(data)
    except RemoteProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert peak <= 260 * len(data) + 400_000
