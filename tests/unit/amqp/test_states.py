"""AMQP 1.0, 3.4 and 4.5: delivery states and transactions."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import DESCRIPTION_CHARACTERS_MAX, AmqpError
from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_described, encode_list, encode_value
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.amqp.states import (
    ACCEPTED,
    ACCEPTED_CODE,
    DECLARED_CODE,
    MODIFIED_CODE,
    REJECTED_CODE,
    RELEASED_CODE,
    STATE_ACCEPTED,
    STATE_RELEASED,
    TRANSACTIONAL_CODE,
    Outcome,
    encode_declared,
    encode_modified,
    encode_outcome_code,
    encode_rejected,
    encode_transactional,
    error_from,
    outcome_from,
)
from pairbus.amqp.transport.performatives import Transfer
from pairbus.amqp.types import Described, Symbol
from pairbus.errors import RemoteProtocolError
from tests.unit.amqp.peers import Wire


def decode_state(raw: bytes, offset: int, end: int) -> tuple[Outcome | None, int]:
    value, offset = decode_value(raw, offset, end)
    return None if value is None else outcome_from(value), offset


def test_accepted_is_one_shared_object() -> None:
    for raw in (
        STATE_ACCEPTED,
        b"\x00\x53\x24\xc0\x01\x00",
        encode_value(Described(Symbol("amqp:accepted:list"), [])),
    ):
        assert decode_state(raw, 0, len(raw)) == (ACCEPTED, len(raw))
    assert decode_state(b"\x40", 0, 1) == (None, 1)


def back(raw: bytes) -> Outcome:
    outcome, end = decode_state(raw, 0, len(raw))
    assert end == len(raw)
    assert outcome is not None
    return outcome


def test_each_outcome_survives() -> None:
    error = AmqpError("com.microsoft:dead-letter", "d", {"DeadLetterReason": "r"})
    assert back(encode_rejected(error)).error == error
    assert back(encode_rejected(None)).error is None
    assert back(STATE_RELEASED).code == RELEASED_CODE
    modified = back(encode_modified(True, False))
    assert (modified.code, modified.delivery_failed, modified.undeliverable_here) == (
        MODIFIED_CODE,
        True,
        False,
    )
    assert repr(modified).startswith("Outcome(code=39")


def test_transactional_outcomes_survive() -> None:
    transactional = back(encode_transactional(b"t", encode_modified(False, True)))
    assert (transactional.code, transactional.txn_id) == (TRANSACTIONAL_CODE, b"t")
    assert transactional.inner is not None
    assert transactional.inner.undeliverable_here
    assert back(encode_transactional(b"t", None)).inner is None
    declared = back(encode_declared(b"id"))
    assert (declared.code, declared.txn_id) == (DECLARED_CODE, b"id")


def test_modified_may_carry_properties_to_change() -> None:
    raw = encode_described(MODIFIED_CODE, encode_value([None, False, {Symbol("k"): "v"}]))

    outcome, _ = decode_state(raw, 0, len(raw))

    assert outcome is not None
    assert outcome.message_annotations == {"k": "v"}


@pytest.mark.parametrize("code", [ACCEPTED_CODE, RELEASED_CODE, REJECTED_CODE, MODIFIED_CODE])
def test_echoes_have_the_code_they_echo(code: int) -> None:
    raw = encode_outcome_code(code)

    outcome, _ = decode_state(raw, 0, len(raw))

    assert outcome is not None
    assert (outcome.code, outcome.error) == (code, None)


@pytest.mark.parametrize(
    "raw",
    [
        encode_value(5),
        encode_value(Described("nobody", [])),
        encode_described(0x10, encode_value([])),
        encode_described(0x24, encode_value("text")),
        encode_described(TRANSACTIONAL_CODE, encode_value([])),
        encode_described(TRANSACTIONAL_CODE, encode_value(["text"])),
        encode_transactional(b"t", encode_transactional(b"u", None)),
        encode_described(REJECTED_CODE, encode_list([encode_value(5)])),
        encode_described(REJECTED_CODE, encode_list([encode_described(0x1D, encode_value([]))])),
        encode_described(
            REJECTED_CODE, encode_list([encode_described(0x1D, encode_value([Symbol("c"), "d", 5]))])
        ),
        encode_described(MODIFIED_CODE, encode_value([None, None, {5: 5}])),
    ],
)
def test_other_values_are_no_states(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_state(raw, 0, len(raw))


def test_errors_compare_and_shorten() -> None:
    error = AmqpError("com.microsoft:message-lock-lost", "The lock is lost.")

    assert error == AmqpError(error.condition, error.description)
    assert len({error, AmqpError(error.condition, error.description)}) == 1
    assert "lock-lost" in repr(error)
    long = AmqpError("c" * 100, "d" * 9000, {"k": "v"})
    assert len(long.shortened().encode()) < 300
    assert error_from(decode_value(long.encode())[0]).description == "d" * DESCRIPTION_CHARACTERS_MAX
    assert error_from(decode_value(AmqpError("c").encode())[0]) == AmqpError("c")


# ---- transactions: AMQP 1.0, 4 ----


def test_declare_and_discharge_decode_as_described_values() -> None:
    declare = decode_message(encode_message(body=Described(0x31, [None])))
    discharge = decode_message(encode_message(body=Described(0x32, [b"txn", True])))

    assert declare.body == Described(0x31, [None])
    assert discharge.body == Described(0x32, [b"txn", True])


def test_transactional_work_reaches_the_owner_with_its_transaction(wire: Wire) -> None:
    wire.handler.accepts_transfers = False
    link = wire.attached(role=False)
    frame = Transfer(0)
    frame.delivery_id, frame.delivery_tag = 3, b"t"
    frame.state_bytes = encode_transactional(b"txn", None)
    wire.answers()

    wire.say(frame, payload=b"work")
    link.session.settle_incoming_state(3, encode_transactional(b"txn", STATE_ACCEPTED))

    assert wire.handler.of("transfer")[0][5] == b"txn"
    (answer,) = wire.answers()
    assert answer.state.txn_id == b"txn"  # type: ignore[union-attr]


def test_the_state_of_a_delivery_may_come_with_any_of_its_frames(wire: Wire) -> None:
    wire.attached(role=False)
    first, second = Transfer(0), Transfer(0)
    first.delivery_id, first.delivery_tag, first.more = 1, b"t", True
    second.state_bytes = encode_transactional(b"txn", None)

    wire.say(first, payload=b"a").say(second, payload=b"b")

    assert wire.handler.of("transfer")[0][4:] == (b"ab", b"txn")
