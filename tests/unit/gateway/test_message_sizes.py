"""What counts against the limit of size: a message as its sender encoded it; of a batch, the messages and not the envelope."""

from __future__ import annotations

import pytest

from pairbus.amqp.encode import encode_described, encode_value
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE, Outcome
from tests.simulation.wire import BATCH_FORMAT, encode_batch
from tests.unit.gateway.wire_bench import WireBench

LIMIT = 256 * 1024


def _sent(payload: bytes, message_format: int = 0) -> Outcome:
    bench = WireBench()
    bench.queue("q")
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    sent = sender.send(payload, message_format=message_format)
    bench.settle()
    return sender.outcomes[sent]


def _message(size: int) -> bytes:
    """A message of just this many bytes, without an id of its own."""
    payload = encode_message(body=bytes(size - (5 if size < 256 else 8)))
    assert len(payload) == size
    return payload


@pytest.mark.promise("B61")
def test_a_message_of_just_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    assert _sent(_message(LIMIT)).code == ACCEPTED_CODE

    refused = _sent(_message(LIMIT + 1))
    assert refused.code == REJECTED_CODE
    assert refused.error is not None
    assert refused.error.condition == "amqp:link:message-size-exceeded"


def test_a_message_that_is_too_large_is_refused_with_a_tracking_id() -> None:
    for size in (LIMIT + 1, 2 * LIMIT):
        error = _sent(_message(size)).error
        assert error is not None
        assert f"(size:{size} bytes) exceeds the limit ({LIMIT} bytes)" in error.description
        assert "TrackingId:" in error.description
        assert "SystemTracker:contoso:q" in error.description


def _batch(inner_bytes: int, envelope: bytes = b"") -> bytes:
    return envelope + encode_batch([_message(inner_bytes - 8 - 105), _message(100)])


@pytest.mark.promise("B61")
def test_the_envelope_of_a_batch_is_not_counted() -> None:
    envelope = encode_described(0x73, encode_value(["i" * 128, *[None] * 9, "s" * 128]))

    assert _sent(_batch(LIMIT, envelope), BATCH_FORMAT).code == ACCEPTED_CODE
    assert _sent(_batch(LIMIT + 1), BATCH_FORMAT).code == REJECTED_CODE
    assert _sent(_batch(2 * LIMIT), BATCH_FORMAT).code == REJECTED_CODE


@pytest.mark.promise("B61")
def test_an_envelope_cannot_be_of_any_size() -> None:
    envelope = encode_described(0x73, encode_value(["i" * 10_000]))

    assert _sent(_batch(LIMIT, envelope), BATCH_FORMAT).code == REJECTED_CODE
