from __future__ import annotations

import pytest

from pairbus.drain.rules.forbidden_paths import forbidden
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.plan import BACKOFF_MS_MAX, DrainPlan
from pairbus.sdk.failures import Failure


def message(
    number: int, path: str = "orders", queue: str = "q0", size: int = 10, until: int = 60_000
) -> BacklogMessage:
    return BacklogMessage(queue, number, path, b"x" * size, f"m{number}", None, None, until)


def filled(count: int = 3, **options: object) -> DrainPlan:
    plan = DrainPlan(**options)  # type: ignore[arg-type]
    for number in range(count):
        assert plan.add(message(number)) is None
    return plan


def test_one_batch_per_destination_is_in_flight() -> None:
    plan = filled()

    assert len(plan.next_batch("orders", 0)) == 3
    plan.add(message(9))
    assert plan.next_batch("orders", 0) == []
    assert [item.sequence_number for item in plan.send_accepted("orders")] == [0, 1, 2]
    assert [item.sequence_number for item in plan.next_batch("orders", 0)] == [9]


def test_batches_are_bounded_in_messages_and_bytes() -> None:
    plan = DrainPlan()
    for number in range(150):
        plan.add(message(number))
    for number in range(3):
        plan.add(message(number, "large", size=90_000))

    assert len(plan.next_batch("orders", 0)) == 100
    assert len(plan.next_batch("large", 0)) == 2


@pytest.mark.promise("P38")
@pytest.mark.parametrize(
    # Every kind but these: a kind that nobody thought of must not dead-letter a message.
    "failure",
    [kind for kind in Failure if kind not in (Failure.NOT_FOUND, Failure.TOO_LARGE, Failure.INVALID)],
)
def test_a_failure_that_may_pass_backs_off_and_dead_letters_nothing(failure: Failure) -> None:
    plan = filled()
    now = 0
    pauses = []
    for _ in range(8):
        assert plan.next_batch("orders", now)
        assert plan.send_failed("orders", failure, "why", now) == []
        deadline = plan.next_retry_ms("orders")
        assert deadline is not None
        assert plan.next_batch("orders", deadline - 1) == []
        pauses.append(deadline - now)
        now = deadline

    assert pauses == sorted(pauses)
    assert pauses[-1] >= BACKOFF_MS_MAX  # a busy server asks for longer ones
    assert plan.held("q0") == 3


def test_throttled_destinations_are_left_alone_for_ten_seconds() -> None:
    plan = filled()
    plan.next_batch("orders", 0)
    plan.send_failed("orders", Failure.BUSY, "busy", 0)

    assert plan.next_retry_ms("orders") == 10_000


def test_a_destination_that_does_not_exist_follows_the_policy() -> None:
    plan = filled()
    plan.next_batch("orders", 0)
    aside = plan.send_failed("orders", Failure.NOT_FOUND, "404", 0)
    assert [item.reason for item in aside] == ["DestinationNotFound"] * 3
    assert "expected" in aside[0].description
    assert plan.held("q0") == 0

    patient = filled(not_found="wait")
    patient.next_batch("orders", 0)
    assert patient.send_failed("orders", Failure.NOT_FOUND, "404", 0) == []


def test_the_window_bounds_what_is_held() -> None:
    plan = DrainPlan(window=10, ready_max=4)

    assert plan.capacity("q0", 0) == 4
    for number in range(4):
        plan.add(message(number))
    assert plan.capacity("q0", 0) == 0
    plan.next_batch("orders", 0)
    plan.send_failed("orders", Failure.CONNECTION, "down", 0)
    assert plan.capacity("q0", 0) == 4, "a destination that is away does not use up the room of others"
    for number in range(4, 10):
        plan.add(message(number))
    assert plan.capacity("q0", 0) == 0, "but the window holds for all"


@pytest.mark.promise("P21")
def test_an_entity_that_the_factory_holds_for_failed_over_gets_no_data() -> None:
    plan = filled(is_blocked=lambda path: True)

    assert plan.next_batch("orders", 0) == []


def test_locks_are_renewed_in_time_and_forgotten_when_lost() -> None:
    plan = filled()

    assert plan.renewals("q0", 29_999) == []
    due = plan.renewals("q0", 30_000)
    assert len(due) == 3
    assert plan.lock_lost(due[0])
    assert not plan.lock_lost(due[0])
    assert plan.held("q0") == 2


def test_a_queue_whose_link_is_gone_is_forgotten() -> None:
    plan = filled()
    plan.add(message(7, queue="q1"))

    assert len(plan.drop_queue("q0")) == 3
    assert (plan.held("q0"), plan.held("q1")) == (0, 1)


@pytest.mark.promise("P42")
@pytest.mark.parametrize(
    "path",
    [
        "$management",
        "orders/$deadletterqueue",
        "p/x-servicebus-transfer/0",
        "a//b",
        "../a",
        "x" * 300,
        "a%2fb",
        "a?b",
        "a#b",
        "a*",
        "a@b",
        "a\\b",
        "a\nb",
        "t/Subscriptions/s",
        "t/subscriptions",
    ],
)
def test_forbidden_paths(path: str) -> None:
    assert forbidden(path) is not None


@pytest.mark.promise("P42")
@pytest.mark.parametrize("path", ["orders", "/Orders/", "a/b/c", "topic", "subscriptions/a"])
def test_allowed_paths(path: str) -> None:
    assert forbidden(path) is None
