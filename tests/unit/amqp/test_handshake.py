"""AMQP 1.0, 2.2 and 5.3: protocol headers and SASL, and M6: nothing before authentication."""

from __future__ import annotations

import pytest

from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_value
from pairbus.amqp.transport.connection import ConnectionSettings
from pairbus.amqp.transport.framing import AMQP_HEADER, SASL_HEADER, amqp_frame, sasl_frame
from pairbus.amqp.transport.performatives import Begin, Open
from pairbus.amqp.transport.sasl import SaslInit
from pairbus.amqp.types import Described, Symbol, ULong
from tests.unit.amqp.peers import Wire


def output(wire: Wire) -> bytes:
    return b"".join(wire.connection.take_output())


def sasl_bodies(data: bytes) -> list[Described]:
    found: list[Described] = []
    offset = 0
    while offset < len(data):
        if data[offset : offset + 4] == b"AMQP":
            offset += 8
            continue
        size = int.from_bytes(data[offset : offset + 4], "big")
        value, _ = decode_value(data, offset + 8, offset + size)
        assert isinstance(value, Described)
        found.append(value)
        offset += size
    return found


def test_server_answers_the_sasl_header_with_its_own_and_the_mechanisms() -> None:
    wire = Wire().raw(SASL_HEADER)

    data = output(wire)

    assert data.startswith(SASL_HEADER)
    assert sasl_bodies(data) == [Described(0x40, [[Symbol("MSSBCBS"), Symbol("PLAIN"), Symbol("ANONYMOUS")]])]


# rhea's ANONYMOUS carries a NUL byte and a rule name; both are ignored.
@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS"])
@pytest.mark.parametrize("response", [b"", b"\x00RootManageSharedAccessKey", b"\xff\xfe"])
def test_anonymous_mechanisms_are_taken_whatever_they_carry(mechanism: str, response: bytes) -> None:
    wire = Wire().raw(SASL_HEADER + SaslInit(mechanism, response, None).frame() + AMQP_HEADER)

    data = output(wire)

    assert sasl_bodies(data)[1] == Described(0x44, [0, b"Welcome!"])
    assert data.endswith(AMQP_HEADER)
    assert not wire.connection.is_closed
    assert wire.connection.sasl_mechanism == mechanism
    assert wire.connection.sasl_identity is None


def test_plain_with_good_credentials_gives_the_connection_an_identity() -> None:
    wire = Wire().raw(SASL_HEADER + SaslInit("PLAIN", b"\0rule\0secret", None).frame() + AMQP_HEADER)

    assert wire.connection.sasl_identity == "rule"
    assert not wire.connection.is_closed


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0rule\0wrong"),
        ("PLAIN", b"rule"),
        ("PLAIN", b"\0\xff\0\xff"),
        ("PLAIN", b"\0a\0b\0c"),
        ("EXTERNAL", b""),
        ("SCRAM-SHA-256", b"x"),
    ],
)
def test_bad_credentials_and_unknown_mechanisms_get_outcome_auth_and_the_door(
    mechanism: str, response: bytes
) -> None:
    wire = Wire().raw(SASL_HEADER + SaslInit(mechanism, response, None).frame() + AMQP_HEADER)

    bodies = sasl_bodies(output(wire))

    assert bodies[1] == Described(0x44, [1, None])
    assert wire.connection.is_closed
    assert wire.connection.sasl_identity is None


# AMQP 1.0, 2.2: answer with the header that would have been taken, then close.
@pytest.mark.promise("M6")
@pytest.mark.parametrize("header", [b"AMQP\x02\x01\x00\x00", b"AMQP\x03\x01\x00\x01", b"GET / HT"])
def test_any_other_header_is_answered_with_the_sasl_header_and_closed(header: bytes) -> None:
    wire = Wire().raw(header + amqp_frame(0, Open("client").encode()))

    assert output(wire) == SASL_HEADER
    assert wire.connection.is_closed
    assert wire.handler.calls == []


def test_a_peer_may_leave_sasl_out_and_is_anonymous_then() -> None:
    wire = Wire().raw(AMQP_HEADER + amqp_frame(0, Open("client").encode()))

    assert output(wire).startswith(AMQP_HEADER + b"\x00\x00")
    assert wire.connection.is_open
    assert wire.connection.sasl_identity is None


def test_wrong_header_after_sasl_is_answered_with_the_amqp_header_and_closed() -> None:
    wire = Wire().raw(SASL_HEADER + SaslInit("ANONYMOUS", b"", None).frame() + SASL_HEADER)

    assert output(wire).endswith(AMQP_HEADER)
    assert wire.connection.is_closed


@pytest.mark.promise("M6")
@pytest.mark.parametrize(
    "frame",
    [
        amqp_frame(0, Open("client").encode()),
        sasl_frame(b""),
        sasl_frame(b"\x00\x53\x43\x45"),  # sasl-response, never asked for
        sasl_frame(encode_value("hello")),
        sasl_frame(b"\xff"),
        sasl_frame(encode_value(Described(ULong(0x41), []))),
        b"\x00\x00\x00\x00\x02\x01\x00\x00",
        b"\x00\x00\x00\x09\x01\x01\x00\x00\x00",
    ],
)
def test_before_authentication_only_sasl_init_is_read(frame: bytes) -> None:
    wire = Wire().raw(SASL_HEADER + frame)

    assert wire.connection.is_closed
    assert wire.handler.calls == []


def test_sasl_init_may_carry_its_name_as_descriptor() -> None:
    body = encode_value(Described(Symbol("amqp:sasl-init:list"), [Symbol("ANONYMOUS")]))

    wire = Wire().raw(SASL_HEADER + sasl_frame(body))

    assert wire.connection.sasl_mechanism == ""  # known once the handshake is over
    assert not wire.connection.is_closed


@pytest.mark.promise("M6")
def test_bytes_before_authentication_are_limited() -> None:
    settings = ConnectionSettings("broker", pre_auth_bytes_max=200)
    fits = Wire(settings).raw(SASL_HEADER + SaslInit("ANONYMOUS", b"x" * 100, None).frame())
    too_much = Wire(settings).raw(SASL_HEADER + SaslInit("ANONYMOUS", b"x" * 200, None).frame()[:12])

    assert not fits.connection.is_closed
    assert too_much.connection.is_closed


@pytest.mark.promise("M6")
def test_a_huge_claim_before_authentication_holds_nothing() -> None:
    wire = Wire().raw(SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00")

    assert wire.connection.is_closed


def test_python_says_everything_in_one_burst() -> None:
    wire = Wire()
    burst = (
        AMQP_HEADER + amqp_frame(0, Open("client").encode()) + amqp_frame(1, Begin(0, 65536, 65536).encode())
    )

    wire.raw(SASL_HEADER + SaslInit("ANONYMOUS", b"", "h").frame() + burst)

    assert wire.handler.names() == ["opened", "session_began"]


def test_closing_before_amqp_is_agreed_on_just_hangs_up() -> None:
    wire = Wire().raw(SASL_HEADER)
    output(wire)

    wire.connection.close(None)

    assert wire.connection.is_closed
    assert output(wire) == b""
