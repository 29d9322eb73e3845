"""AMQP 1.0 part 1: every type goes out and comes back, with the bytes the standard gives it."""

from __future__ import annotations

import math

import pytest

from pairbus.amqp.decode import decode_value, skip_value
from pairbus.amqp.encode import (
    encode_binary,
    encode_fields,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_ulong,
    encode_value,
)
from pairbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Double,
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
from pairbus.errors import RemoteProtocolError, UsageError

ID = bytes(range(16))

# AMQP 1.0, 1.6: value to encode, its bytes, what decoding gives.
EXAMPLES: list[tuple[object, str, object]] = [
    (None, "40", None),
    (True, "41", True),
    (False, "42", False),
    (UByte(200), "50 c8", 200),
    (UShort(0x1234), "60 12 34", 0x1234),
    (UInt(0), "43", 0),
    (UInt(7), "52 07", 7),
    (UInt(0x12345678), "70 12 34 56 78", 0x12345678),
    (ULong(0), "53 00", 0),
    (ULong(2**63), "80 80 00 00 00 00 00 00 00", 2**63),
    (Byte(-1), "51 ff", -1),
    (Short(-2), "61 ff fe", -2),
    (Int(-3), "54 fd", -3),
    (Int(70000), "71 00 01 11 70", 70000),
    (Long(-4), "55 fc", -4),
    (5, "55 05", 5),
    (2**40, "81 00 00 01 00 00 00 00 00", 2**40),
    (Float(1.5), "72 3f c0 00 00", 1.5),
    (1.5, "82 3f f8 00 00 00 00 00 00", 1.5),
    (Double(1.5), "82 3f f8 00 00 00 00 00 00", 1.5),
    (Decimal32(b"\1\2\3\4"), "74 01 02 03 04", Decimal32(b"\1\2\3\4")),
    (Decimal64(b"12345678"), "84 31 32 33 34 35 36 37 38", Decimal64(b"12345678")),
    (Decimal128(ID), "94 " + ID.hex(), Decimal128(ID)),
    (Char(0x1F600), "73 00 01 f6 00", Char(0x1F600)),
    (Timestamp(-62_135_596_800_000), "83 ff ff c7 7c ed d3 28 00", Timestamp(-62_135_596_800_000)),
    (Uuid(ID), "98 " + ID.hex(), Uuid(ID)),
    (b"ab", "a0 02 61 62", b"ab"),
    ("é", "a1 02 c3 a9", "é"),
    (Symbol("ab"), "a3 02 61 62", Symbol("ab")),
    ([], "45", []),
    ([1, "a"], "c0 06 02 55 01 a1 01 61", [1, "a"]),
    ({"a": 1}, "c1 06 02 a1 01 61 55 01", {"a": 1}),
    ({}, "c1 01 00", {}),
    (Described(ULong(5), "a"), "00 53 05 a1 01 61", Described(5, "a")),
    (
        Array([Symbol("a"), Symbol("b")]),
        "e0 0c 02 b3 00000001 61 00000001 62",
        Array([Symbol("a"), Symbol("b")]),
    ),
    (Array([1, 2]), "e0 12 02 81 0000000000000001 0000000000000002", Array([1, 2])),
    (Array([]), "e0 02 00 40", Array([])),
    (Array([True, False]), "e0 04 02 56 01 00", Array([True, False])),
    (Array([Uuid(ID)]), "e0 12 01 98 " + ID.hex(), Array([Uuid(ID)])),
    (Array([UInt(1)]), "e0 06 01 70 00000001", Array([1])),
    (Array([[], [True]]), "e0 13 02 d0 00000004 00000000 00000005 00000001 41", Array([[], [True]])),
    (
        Array([Described(ULong(1), True), Described(ULong(1), False)]),
        "e0 07 02 00 53 01 56 01 00",
        Array([Described(1, True), Described(1, False)]),
    ),
]


@pytest.mark.parametrize(("value", "encoded", "decoded"), EXAMPLES, ids=lambda v: repr(v)[:40])
def test_value_has_the_bytes_of_the_standard_and_comes_back(
    value: object, encoded: str, decoded: object
) -> None:
    raw = encode_value(value)

    assert raw == bytes.fromhex(encoded)
    assert decode_value(raw) == (decoded, len(raw))
    assert type(decode_value(raw)[0]) is type(decoded)
    assert skip_value(raw, 0, len(raw)) == len(raw)


# AMQP 1.0, 1.6: alternative encodings that we never write but others may.
@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        ("56 00", False),
        ("56 01", True),
        ("44", 0),
        ("55 80", -128),
        ("b0 00000001 61", b"a"),
        ("b1 00000001 61", "a"),
        ("b3 00000001 61", "a"),
        ("d0 00000004 00000000", []),
        ("d1 00000006 00000002 41 42", {True: False}),
        ("f0 00000006 00000001 50 07", [7]),
        ("e0 01 00", []),
        ("e0 02 03 43", [0, 0, 0]),
        ("e0 02 02 45", [[], []]),
        ("c0 01 00", []),
    ],
)
def test_alternative_encodings_are_read(encoded: str, decoded: object) -> None:
    raw = bytes.fromhex(encoded)

    assert decode_value(raw) == (decoded, len(raw))


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "00",
        "00 53",
        "00 53 10",
        "3f",
        "46",
        "62 00 00",
        "99" + "00" * 16,
        "a2 00",
        "ff",
        "50",
        "70 00 00",
        "a0",
        "a0 02 61",
        "b0 00 00",
        "b0 ff ff ff ff 61",
        "a1 01 ff",  # no UTF-8
        "56 02",
        "c0 00",
        "c0 01 01",
        "c0 02 01 00",
        "c0 03 01 40 40",  # longer than its items
        "c1 02 01 40",  # a key without a value
        "c1 03 02 45 40",  # a list as key
        "c1 04 02 40 40 40",
        "d0 00 00 00 01 00",
        "d0 00000004 00010001",
        "e0 01 01",
        "e0 02 01 00",
        "e0 04 01 50 07 07",
        "f0 00000005 ffffffff 40",
        "c0 03 02 40",
    ],
)
def test_bytes_that_are_no_value_are_refused_with_decode_error(encoded: str) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        decode_value(bytes.fromhex(encoded))

    assert refusal.value.condition == "amqp:decode-error"


@pytest.mark.parametrize(
    "encoded", ["", "00", "00 53", "3f", "a0", "a0 02 61", "b0 00 00 00", "b0 00 00 00 09"]
)
def test_skipping_refuses_what_is_cut_short_or_unknown(encoded: str) -> None:
    raw = bytes.fromhex(encoded)

    with pytest.raises(RemoteProtocolError):
        skip_value(raw, 0, len(raw))


def test_long_texts_and_compounds_take_the_wide_form() -> None:
    for value in ("x" * 300, b"x" * 300, Symbol("x" * 300), [None] * 300, {str(n): n for n in range(200)}):
        assert decode_value(encode_value(value))[0] == value
    wide = Array([{"k": "v" * 300}, {"k": "w"}])
    assert decode_value(encode_value(wide))[0] == wide
    assert decode_value(encode_value(Array(["x" * 300, "y"])))[0] == ["x" * 300, "y"]
    assert decode_value(encode_value(Array([Array([1]), Array([2])])))[0] == [[1], [2]]
    assert decode_value(encode_value(Array([b"1", b"2"])))[0] == [b"1", b"2"]


def test_not_a_number_survives() -> None:
    value, _ = decode_value(encode_value(math.nan))

    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        ULong(2**64),
        ULong(-1),
        UInt(2**32),
        UInt(-1),
        UByte(256),
        Int(2**31),
        Timestamp(2**63),
        1j,
        {1, 2},
        Array([1, "a"]),
        Array([Described(1, 1), Described(2, 1)]),
        Array([Described(1, 1), 1]),
    ],
    ids=repr,
)
def test_values_without_an_encoding_are_our_own_mistake(value: object) -> None:
    with pytest.raises(UsageError):
        encode_value(value)


def test_lone_surrogates_do_not_break_a_text() -> None:
    assert encode_string("a\ud800") == b"\xa1\x02a?"


def test_pieces_agree_with_the_general_encoder() -> None:
    assert encode_uint(300) == encode_value(UInt(300))
    assert encode_ulong(300) == encode_value(ULong(300))
    assert encode_binary(b"x") == encode_value(b"x")
    assert encode_list([encode_value(1), encode_symbol("a")]) == encode_value([1, Symbol("a")])
    assert encode_fields({"a": 1}) == encode_map({Symbol("a"): 1})


def test_wrappers_compare_by_value_and_say_what_they_are() -> None:
    assert Timestamp(1) == Timestamp(1) != Timestamp(2)
    assert len({Uuid(ID), Decimal128(ID)}) == 2
    assert len({Timestamp(1), Timestamp(1), Char(1), Uuid(ID), Uuid(ID), Described(1, [])}) == 4
    assert Uuid(ID).bytes == ID
    assert repr(UInt(5)) == "UInt(5)"
    assert repr(Timestamp(5)) == "Timestamp(ms=5)"
    assert repr(Char(5)) == "Char(5)"
    assert repr(Decimal32(b"\0\0\0\1")) == "Decimal32(00000001)"
    assert repr(Described(1, "a")) == "Described(1, 'a')"
