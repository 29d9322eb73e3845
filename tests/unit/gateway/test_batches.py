"""A batch is judged as a whole: what it takes together must fit, or none of it is stored (B13)."""

from __future__ import annotations

import pytest

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.engine.topic import check_room
from pairbus.errors import QuotaExceeded
from pairbus.gateway.incoming import BATCH_FORMAT
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.unit.engine.engine_kit import TRUE_RULE, rule
from tests.unit.gateway.wire_bench import START, WireBench, message

BODY = b"x" * 40_000
FIVE = 5 * 41_000
LATER = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(START + 60_000)}


def a_batch(count: int) -> bytes:
    parts = [message(BODY, message_id=f"m{number}", body_kind="data") for number in range(count)]
    return b"".join(encode_message(body=part, body_kind="data") for part in parts)


def send_batch(bench: WireBench, path: str, count: int) -> tuple[int, str]:
    """The code of the outcome, and the condition of its error."""
    peer = bench.peer()
    sender = peer.session.sender(path)
    bench.settle()
    number = sender.send(a_batch(count), message_format=BATCH_FORMAT)
    bench.settle()
    outcome = sender.outcomes[number]
    assert outcome is not None
    return outcome.code, outcome.error.condition if outcome.error is not None else ""


@pytest.mark.promise("B13")
def test_a_batch_that_exceeds_the_quota_together_is_refused_whole(bench: WireBench) -> None:
    queue = bench.queue("q", Settings(max_size_mb=1))
    queue.space.stored_bytes = 1_048_576 - FIVE

    assert send_batch(bench, "q", 6) == (REJECTED_CODE, "amqp:resource-limit-exceeded")
    assert queue.counts().total == 0
    assert send_batch(bench, "q", 5) == (ACCEPTED_CODE, "")
    assert queue.counts().active == 5


@pytest.mark.promise("B12", "B13")
def test_a_batch_that_the_disk_has_no_room_for_together_is_refused_whole(
    monkeypatch: pytest.MonkeyPatch, bench: WireBench
) -> None:
    queue = bench.queue()
    monkeypatch.setattr(bench.store, "has_room", lambda size: size <= FIVE)

    assert send_batch(bench, "q", 6) == (REJECTED_CODE, "amqp:resource-limit-exceeded")
    assert queue.counts().total == 0
    assert send_batch(bench, "q", 5) == (ACCEPTED_CODE, "")


@pytest.mark.promise("B12", "B15")
def test_a_batch_to_a_topic_needs_room_for_every_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = WireBench()
    topic = bench.namespace.create(TOPIC, "t", Settings(), bench.now)
    for name in "ab":
        path = f"t/Subscriptions/{name}"
        bench.namespace.create(SUBSCRIPTION, path, Settings(rules=(TRUE_RULE,)), bench.now)
    monkeypatch.setattr(bench.store, "has_room", lambda size: size <= FIVE)

    assert send_batch(bench, "t", 3)[0] == REJECTED_CODE
    assert topic.size_bytes == 0
    assert send_batch(bench, "t", 2)[0] == ACCEPTED_CODE
    with pytest.raises(QuotaExceeded):
        check_room(topic, FIVE)


@pytest.mark.promise("B13")
def test_messages_scheduled_together_are_judged_together(bench: WireBench) -> None:
    queue = bench.queue("q", Settings(max_size_mb=1))
    queue.space.stored_bytes = 1_048_576 - FIVE
    peer = bench.peer()
    entry = {"message-id": "m", "message": message(BODY, body_kind="data", message_annotations=LATER)}

    assert peer.refusal("q", "schedule-message", {"messages": [entry] * 6})[0] == 403
    assert queue.counts().total == 0
    peer.answer("q", "schedule-message", {"messages": [entry] * 5})
    assert queue.counts().scheduled == 5


@pytest.mark.promise("B58")
def test_a_publish_that_filters_take_too_long_for_is_refused_and_the_link_lives(bench: WireBench) -> None:
    bench.namespace.create(TOPIC, "t", Settings(), bench.now)
    for number in range(100):
        kept = rule("r", f"p LIKE '%{'a____b%' * 12}{number}%'")
        path = f"t/Subscriptions/s{number}"
        bench.namespace.create(SUBSCRIPTION, path, Settings(rules=(kept,)), bench.now)
    sender = bench.peer().session.sender("t")
    bench.settle()
    costly = sender.send(message("m", application_properties={"p": "a" * 60_000}))
    cheap = sender.send(message("m", application_properties={"p": "a"}))
    bench.settle()

    refused, taken = sender.outcomes[costly], sender.outcomes[cheap]
    assert refused is not None
    assert refused.error is not None
    assert refused.error.condition == "amqp:resource-limit-exceeded"
    assert "TrackingId" in str(refused.error.description)
    assert taken is not None
    assert taken.code == ACCEPTED_CODE
