"""Delivery states: what became of a delivery, in both directions (AMQP 1.0, 3.4 and 4.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.amqp.composite import described_list, text_keyed
from pairbus.amqp.conditions import ERROR_CODE, AmqpError
from pairbus.amqp.decode import bad
from pairbus.amqp.encode import (
    FALSE,
    NULL,
    TRUE,
    encode_binary,
    encode_described,
    encode_list,
)

RECEIVED_CODE: Final = 0x23
ACCEPTED_CODE: Final = 0x24
REJECTED_CODE: Final = 0x25
RELEASED_CODE: Final = 0x26
MODIFIED_CODE: Final = 0x27
DECLARED_CODE: Final = 0x33
TRANSACTIONAL_CODE: Final = 0x34

_SYMBOLIC: Final[dict[str, int]] = {
    "amqp:received:list": RECEIVED_CODE,
    "amqp:accepted:list": ACCEPTED_CODE,
    "amqp:rejected:list": REJECTED_CODE,
    "amqp:released:list": RELEASED_CODE,
    "amqp:modified:list": MODIFIED_CODE,
    "amqp:declared:list": DECLARED_CODE,
    "amqp:transactional-state:list": TRANSACTIONAL_CODE,
    "amqp:error:list": ERROR_CODE,
}

STATE_ACCEPTED: Final = b"\x00\x53\x24\x45"
STATE_RELEASED: Final = b"\x00\x53\x26\x45"


@dataclass(slots=True)
class Outcome:
    """A delivery state as it was decoded."""

    code: int
    error: AmqpError | None = None
    delivery_failed: bool = False
    undeliverable_here: bool = False
    message_annotations: dict[str, object] | None = None
    txn_id: bytes | None = None
    inner: Outcome | None = None
    """The outcome inside a transactional state, if it carries one."""


ACCEPTED: Final = Outcome(ACCEPTED_CODE)
"""The plain accepted outcome, shared by everybody: never change it."""


def outcome_from(value: object, where: str = "a delivery state") -> Outcome:
    """A decoded described list as outcome."""
    code, fields = described_list(value, _SYMBOLIC, where)
    if code == ACCEPTED_CODE:
        return ACCEPTED
    outcome = Outcome(code)
    if code == REJECTED_CODE:
        if fields and fields[0] is not None:
            outcome.error = error_from(fields[0])
    elif code == MODIFIED_CODE:
        outcome.delivery_failed = len(fields) > 0 and fields[0] is True
        outcome.undeliverable_here = len(fields) > 1 and fields[1] is True
        if len(fields) > 2 and fields[2] is not None:
            outcome.message_annotations = text_keyed(fields[2], "modified.message-annotations")
    elif code == TRANSACTIONAL_CODE:
        outcome.txn_id = _txn_id(fields)
        if len(fields) > 1 and fields[1] is not None:
            inner = outcome_from(fields[1])
            if inner.code == TRANSACTIONAL_CODE:
                raise bad("a transactional state holds another one")
            outcome.inner = inner
    elif code == DECLARED_CODE:
        outcome.txn_id = _txn_id(fields)
    elif code not in (RELEASED_CODE, RECEIVED_CODE):
        raise bad(f"descriptor 0x{code:02x} is no delivery state")
    return outcome


def error_from(value: object, where: str = "an error") -> AmqpError:
    code, fields = described_list(value, _SYMBOLIC, where)
    if code != ERROR_CODE or not fields or not isinstance(fields[0], str):
        raise bad("an error lacks its condition")
    description = fields[1] if len(fields) > 1 else None
    info = fields[2] if len(fields) > 2 else None
    return AmqpError(
        str(fields[0]),
        description if isinstance(description, str) else "",
        None if info is None else text_keyed(info, "error.info"),
    )


def _txn_id(fields: list[object]) -> bytes:
    txn_id = fields[0] if fields else None
    if not isinstance(txn_id, bytes):
        raise bad("a transaction id is missing or not binary")
    return txn_id


def encode_rejected(error: AmqpError | None) -> bytes:
    """``rejected``; with an error when the settlement failed, without one to echo the client's outcome."""
    return encode_described(REJECTED_CODE, encode_list([NULL if error is None else error.encode()]))


def encode_modified(delivery_failed: bool = False, undeliverable_here: bool = False) -> bytes:
    fields = [TRUE if delivery_failed else FALSE, TRUE if undeliverable_here else FALSE, NULL]
    return encode_described(MODIFIED_CODE, encode_list(fields))


def encode_outcome_code(code: int) -> bytes:
    """The bare outcome of this code, as a settlement is echoed."""
    if code == ACCEPTED_CODE:
        return STATE_ACCEPTED
    if code == RELEASED_CODE:
        return STATE_RELEASED
    if code == REJECTED_CODE:
        return encode_rejected(None)
    return encode_modified()


def encode_declared(txn_id: bytes) -> bytes:
    """``declared``: the answer to declaring a transaction."""
    return encode_described(DECLARED_CODE, encode_list([encode_binary(txn_id)]))


def encode_transactional(txn_id: bytes, outcome: bytes | None) -> bytes:
    """``transactional-state`` around an encoded outcome."""
    fields = [encode_binary(txn_id), NULL if outcome is None else outcome]
    return encode_described(TRANSACTIONAL_CODE, encode_list(fields))
