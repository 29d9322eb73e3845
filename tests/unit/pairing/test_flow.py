from __future__ import annotations

import random

import pytest
from azure.servicebus import exceptions as sdk

from pairbus.pairing.errors import EntityGoneError
from pairbus.pairing.options import Trigger
from pairbus.pairing.outcome import mark_impatient
from pairbus.pairing.rules.flow import (
    SPOOL_AFTER_MS,
    TRIAL_MS_MAX,
    Choice,
    Fail,
    SendFlow,
    TryBacklog,
    TryPrimary,
    UseSpool,
    Wait,
    first_attempt_ms,
)
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.rules.rotation import Rotation

TIMEOUT = sdk.OperationTimeoutError()


def make(
    interval: int = 1_000,
    timeout: int = 10_000,
    *,
    holds: bool = False,
    trigger: Trigger = "documented",
    queues: int = 3,
    spool: bool = False,
) -> tuple[SendFlow, EntityHealth, Rotation]:
    health = EntityHealth("orders", interval, 1_000)
    rotation = Rotation([f"q{index}" for index in range(queues)], 1_000, random.Random(1))
    flow = SendFlow(health, rotation, Choice(), trigger, timeout, holds_while_suspect=holds, has_spool=spool)
    return flow, health, rotation


@pytest.mark.promise("P18")
def test_the_primary_gets_all_the_time_when_no_detour_is_possible_and_half_when_one_is() -> None:
    assert make(interval=60_000)[0].next_step(0) == TryPrimary(10_000)
    assert make(interval=0)[0].next_step(0) == TryPrimary(5_000)


@pytest.mark.promise("P4", "P17")
def test_with_interval_zero_the_failing_send_itself_is_detoured() -> None:
    flow, health, _ = make(interval=0)
    flow.primary_failed(5_000, TIMEOUT)

    step = flow.next_step(5_000)

    assert isinstance(step, TryBacklog)
    assert step.timeout_ms <= 5_000
    flow.backlog_accepted(step.queue, 2, 0)
    assert (health.parked, health.backlog_queue) == (2, step.queue)


@pytest.mark.promise("P18")
@pytest.mark.parametrize("interval", [0, 1_000])
def test_waiting_for_other_callers_is_no_failure_of_the_primary(interval: int) -> None:
    flow, health, rotation = make(interval=interval, holds=True)
    late = sdk.OperationTimeoutError()
    mark_impatient(late)
    assert flow.primary_failed(5_000, late) == []

    assert health.state is Health.HEALTHY
    assert isinstance(flow.next_step(5_000), Wait)
    assert isinstance(flow.next_step(6_000), TryPrimary)
    assert flow.next_step(10_000) == Fail(late, None)
    assert flow.is_in_doubt

    assert not flow.backlog_failed("q0", 5_000, late)
    assert "q0" in rotation.usable


@pytest.mark.promise("P17")
@pytest.mark.parametrize("interval", [0, 1_000])
def test_no_answer_to_an_attempt_from_before_the_proof_of_health_does_not_count(interval: int) -> None:
    flow, health, _ = make(interval=interval, holds=True)
    health.fail_over(1_000)
    health.ping_succeeded(3_000)
    assert flow.primary_failed(5_000, TIMEOUT, begun_ms=2_999) == []

    assert health.state is Health.HEALTHY
    assert isinstance(flow.next_step(5_000), Wait)
    assert isinstance(flow.next_step(6_000), TryPrimary)
    assert flow.is_in_doubt, "the message may be stored all the same"

    flow.primary_failed(7_000, TIMEOUT, begun_ms=3_000)
    assert health.state is (Health.SUSPECT if interval else Health.FAILED_OVER)


def test_an_answer_counts_whenever_its_attempt_began() -> None:
    flow, health, _ = make(interval=1_000)
    health.fail_over(1_000)
    health.ping_succeeded(3_000)

    flow.primary_failed(5_000, sdk.MessagingEntityDisabledError(), begun_ms=2_000)

    assert health.state is Health.SUSPECT


def test_inside_the_interval_the_error_reaches_the_caller() -> None:
    flow, health, _ = make()
    flow.primary_failed(100, TIMEOUT)

    step = flow.next_step(100)

    assert step == Fail(TIMEOUT, None)
    assert flow.is_in_doubt
    assert health.state is Health.SUSPECT


def test_while_suspect_wait_holds_the_send_until_the_entity_fails_over() -> None:
    flow, health, _ = make(holds=True)
    flow.primary_failed(100, TIMEOUT)

    step = flow.next_step(100)
    assert isinstance(step, Wait)
    assert isinstance(flow.next_step(100 + step.timeout_ms), TryPrimary)
    health.tick(1_100)

    assert isinstance(flow.next_step(1_100), TryBacklog)


def test_while_suspect_wait_ends_with_the_callers_timeout() -> None:
    flow, _, _ = make(interval=60_000, timeout=300, holds=True)
    flow.primary_failed(200, TIMEOUT)

    step = flow.next_step(300)

    assert isinstance(step, Fail)


@pytest.mark.promise("P32")
def test_no_queue_is_tried_twice_and_each_failure_evicts_for_all() -> None:
    flow, health, rotation = make()
    health.fail_over(0)
    tried = []
    while isinstance(step := flow.next_step(0), TryBacklog):
        tried.append(step.queue)
        flow.backlog_failed(step.queue, 0, sdk.ServiceBusConnectionError())

    assert sorted(tried) == ["q0", "q1", "q2"]
    assert rotation.usable == []
    assert isinstance(step, Fail)


@pytest.mark.promise("P4", "P6")
def test_both_down_gives_the_last_backlog_error_with_the_primarys_as_cause() -> None:
    flow, _, _ = make(interval=0, queues=1)
    primary, backlog = sdk.OperationTimeoutError(message="primary"), sdk.ServiceBusConnectionError()
    flow.primary_failed(10, primary)
    step = flow.next_step(10)
    assert isinstance(step, TryBacklog)
    flow.backlog_failed(step.queue, 20, backlog)

    assert flow.next_step(20) == Fail(backlog, primary)
    assert flow.is_in_doubt


@pytest.mark.promise("P4", "P50")
def test_with_a_spool_a_send_that_every_queue_refuses_goes_there() -> None:
    flow, _, _ = make(interval=0, queues=1, spool=True)
    primary, backlog = sdk.OperationTimeoutError(message="primary"), sdk.ServiceBusConnectionError()
    flow.primary_failed(10, primary)
    step = flow.next_step(10)
    assert isinstance(step, TryBacklog)
    flow.backlog_failed(step.queue, 20, backlog)

    assert flow.next_step(20) == UseSpool(backlog, primary)


def test_with_a_spool_a_silent_secondary_gets_ten_seconds_in_all() -> None:
    flow, health, _ = make(timeout=60_000, queues=3, spool=True)
    health.fail_over(0)
    step = flow.next_step(0)
    assert isinstance(step, TryBacklog)
    assert step.timeout_ms <= SPOOL_AFTER_MS
    flow.backlog_failed(step.queue, SPOOL_AFTER_MS, TIMEOUT)

    assert isinstance(flow.next_step(SPOOL_AFTER_MS), UseSpool)


def test_with_a_spool_and_without_queues_a_send_goes_there_once_its_entity_has_failed_over() -> None:
    flow, health, _ = make(queues=0, spool=True, holds=True)
    assert isinstance(flow.next_step(0), TryPrimary)
    flow.primary_failed(100, TIMEOUT)
    assert not isinstance(flow.next_step(100), UseSpool)
    health.tick(1_100)

    assert flow.next_step(1_100) == UseSpool(TIMEOUT, None)


def test_a_fault_of_the_message_and_an_entity_that_is_gone_are_not_spooled() -> None:
    flow, health, _ = make(interval=0, spool=True)
    flow.primary_failed(10, TIMEOUT)
    step = flow.next_step(10)
    assert isinstance(step, TryBacklog)
    flow.backlog_failed(step.queue, 20, sdk.MessageSizeExceededError())
    assert isinstance(flow.next_step(20), Fail)
    flow, health, _ = make(spool=True)
    health.fail_over(0)
    health.ping_failed(1, "gone", entity_is_gone=True)
    assert isinstance(flow.next_step(2), Fail)


@pytest.mark.promise("P33")
def test_the_next_send_tries_again_and_brings_the_queue_back() -> None:
    flow, health, rotation = make(queues=1)
    health.fail_over(0)
    rotation.refused("q0", 0, "down")

    assert flow.next_step(1) == TryBacklog("q0", 9_999)
    assert flow.backlog_accepted("q0", 1, 0) == ["q0"]


@pytest.mark.promise("P33")
def test_after_an_outage_of_the_secondary_all_queues_are_back_and_get_the_time_of_a_trial_first() -> None:
    health = make(queues=0)[1]
    rotation = Rotation(["q0", "q1", "q2"], 1_000, random.Random(1))

    def send(timeout: int = 60_000) -> SendFlow:
        return SendFlow(health, rotation, Choice(), "documented", timeout, holds_while_suspect=False)

    health.fail_over(0)
    first = send()
    while isinstance(step := first.next_step(0), TryBacklog):
        first.backlog_failed(step.queue, 0, sdk.ServiceBusConnectionError())
    assert rotation.usable == []
    second = send()
    step = second.next_step(1)
    assert isinstance(step, TryBacklog)
    assert set(second.backlog_accepted(step.queue, 1, 1)) == {"q0", "q1", "q2"}

    third = send()
    third._tried[step.queue] = None
    other = third.next_step(2)
    assert isinstance(other, TryBacklog)
    assert other.timeout_ms == TRIAL_MS_MAX


@pytest.mark.promise("P32")
def test_a_queue_that_refused_does_not_come_back_with_another() -> None:
    flow, health, rotation = make()
    health.fail_over(0)
    errors = [sdk.MessagingEntityDisabledError(), TIMEOUT, TIMEOUT]
    tried = []
    for error in errors:
        step = flow.next_step(0)
        assert isinstance(step, TryBacklog)
        tried.append(step.queue)
        flow.backlog_failed(step.queue, 0, error)

    assert set(flow.backlog_accepted(tried[1], 1, 1)) == set(tried[1:])
    assert set(rotation.evicted) == {tried[0]}


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "error",
    [
        sdk.MessageSizeExceededError(),
        sdk.ServiceBusError("malformed", condition="amqp:decode-error"),
        sdk.ServiceBusError("malformed", condition="amqp:invalid-field"),
        sdk.ServiceBusError("malformed", condition="com.microsoft:argument-error"),
        ValueError("malformed"),
    ],
    ids=repr,
)
def test_a_fault_of_the_message_evicts_nothing_and_reaches_the_caller(error: Exception) -> None:
    flow, health, rotation = make()
    health.fail_over(0)
    step = flow.next_step(0)
    assert isinstance(step, TryBacklog)

    assert not flow.backlog_failed(step.queue, 1, error)
    assert len(rotation.usable) == 3
    assert flow.next_step(1) == Fail(error, None)
    assert not flow.is_in_doubt


@pytest.mark.promise("P16")
def test_after_server_busy_the_send_waits_ten_seconds_before_it_tries_again() -> None:
    flow, health, _ = make(timeout=30_000)
    flow.primary_failed(0, sdk.ServiceBusServerBusyError())

    assert flow.next_step(0) == Wait(10_000)
    assert isinstance(flow.next_step(10_000), TryPrimary)
    assert health.state is Health.HEALTHY


@pytest.mark.promise("P16")
def test_server_busy_without_time_to_wait_reaches_the_caller() -> None:
    flow, _, _ = make(timeout=5_000)
    error = sdk.ServiceBusServerBusyError()
    flow.primary_failed(0, error)

    assert flow.next_step(0) == Fail(error, None)
    assert not flow.is_in_doubt


def test_an_entity_that_is_gone_refuses_and_nothing_is_parked() -> None:
    flow, health, _ = make()
    health.fail_over(0)
    health.ping_failed(1, "not found", entity_is_gone=True)

    step = flow.next_step(2)

    assert isinstance(step, Fail)
    assert isinstance(step.error, EntityGoneError)


@pytest.mark.promise("P5")
def test_a_refusal_is_a_fail_and_no_doubt() -> None:
    flow, _, _ = make()
    flow.primary_failed(0, sdk.ServiceBusAuthorizationError())

    step = flow.next_step(0)

    assert isinstance(step, Fail)
    assert not flow.is_in_doubt


def test_a_sender_stays_with_its_queue() -> None:
    health = EntityHealth("orders", 0, 1_000)
    health.fail_over(0)
    rotation = Rotation([f"q{index}" for index in range(10)], 1_000, random.Random(3))
    choice = Choice()
    steps = [
        SendFlow(health, rotation, choice, "documented", 100, holds_while_suspect=False).next_step(0)
        for _ in range(20)
    ]

    assert len({step.queue for step in steps if isinstance(step, TryBacklog)}) == 1


def test_an_evicted_queue_is_tried_first_by_one_send_after_the_interval() -> None:
    flow, health, rotation = make()
    health.fail_over(0)
    rotation.refused("q1", 0, "down")

    assert flow.next_step(1_000) == TryBacklog("q1", TRIAL_MS_MAX)


def test_one_send_makes_one_trial_however_many_queues_are_out() -> None:
    health = EntityHealth("orders", 1_000, 1_000)
    health.fail_over(0)
    rotation = Rotation([f"q{index}" for index in range(10)], 1_000, random.Random(1))
    for index in range(7):
        rotation.refused(f"q{index}", 0, "disabled")
    now, trials_each = 1_000, []
    for _ in range(60):
        flow = SendFlow(health, rotation, Choice(), "documented", now + 60_000, holds_while_suspect=False)
        trials = 0
        while isinstance(step := flow.next_step(now), TryBacklog) and step.queue in rotation.evicted:
            trials += 1
            now += 2_500  # longer than an interval: the next queue would be due at once
            flow.backlog_failed(step.queue, now, sdk.MessagingEntityDisabledError())
        assert isinstance(step, TryBacklog)
        flow.backlog_accepted(step.queue, 1, 0)
        trials_each.append(trials)
        now += 10

    assert max(trials_each) == 1
    assert sum(trials_each) < 30, "and most sends make none"


@pytest.mark.promise("P32")
def test_a_queue_that_refuses_for_any_other_reason_leaves_the_rotation() -> None:
    flow, health, rotation = make()
    health.fail_over(0)
    step = flow.next_step(0)
    assert isinstance(step, TryBacklog)

    needs_session = sdk.ServiceBusError("The SessionId was not set", condition="amqp:not-allowed")
    assert flow.backlog_failed(step.queue, 1, needs_session)

    following = flow.next_step(1)
    assert isinstance(following, TryBacklog)
    assert following.queue != step.queue
    assert step.queue not in rotation.usable


@pytest.mark.promise("P18")
@pytest.mark.parametrize(
    ("timeout", "interval", "holds", "share"),
    [
        (10_000, 60_000, False, 10_000),
        (10_000, 60_000, True, 10_000),
        (10_000, 0, False, 5_000),
        (10_000, 1_000, True, 5_000),
        (60_000, 1_000, False, 58_000),
        (60_000, 1_000, True, 10_000),
        (60_000, 0, False, 10_000),
        (60_000, 15_000, True, 15_000),
        (60_000, 45_000, True, 30_000),
        (3_000, 1_000, False, 1_500),
        (1, 0, False, 1),
    ],
)
def test_the_first_attempt_leaves_time_when_the_entity_may_fail_over_meanwhile(
    timeout: int, interval: int, *, holds: bool, share: int
) -> None:
    assert first_attempt_ms(timeout, interval, holds_while_suspect=holds) == share


@pytest.mark.promise("P32")
def test_a_send_whose_time_is_spent_asks_no_queue_and_blames_none() -> None:
    flow, health, rotation = make(interval=0, timeout=1_000)
    flow.primary_failed(1_000, TIMEOUT)

    assert flow.next_step(1_000) == Fail(TIMEOUT, None)
    assert flow.is_in_doubt
    assert health.state is Health.FAILED_OVER
    assert len(rotation.usable) == 3


@pytest.mark.promise("P6")
def test_a_send_that_never_had_time_says_so() -> None:
    flow, health, _ = make(timeout=1_000)
    health.fail_over(0)

    step = flow.next_step(1_000)

    assert isinstance(step, Fail)
    assert isinstance(step.error, sdk.OperationTimeoutError)
    assert flow.knows(step.error)
    assert not flow.is_in_doubt


@pytest.mark.promise("P32")
def test_a_queue_that_had_hardly_any_time_to_answer_stays_in_the_rotation() -> None:
    flow, health, rotation = make(timeout=100, queues=1)
    health.fail_over(0)
    step = flow.next_step(0)
    assert step == TryBacklog("q0", 100)

    assert not flow.backlog_failed("q0", 100, TIMEOUT)
    assert rotation.usable == ["q0"]
    assert flow.next_step(100) == Fail(TIMEOUT, None)
    assert flow.is_in_doubt


@pytest.mark.promise("P5")
def test_an_earlier_attempt_without_an_answer_leaves_a_refusal_in_doubt() -> None:
    flow, _, _ = make()
    flow.primary_failed(0, sdk.ServiceBusAuthorizationError(), is_in_doubt=True)

    step = flow.next_step(0)

    assert isinstance(step, Fail)
    assert flow.is_in_doubt


@pytest.mark.promise("P16")
def test_server_busy_waits_also_under_a_rule_of_the_applications_own() -> None:
    flow, _, _ = make(timeout=30_000, trigger=lambda error: False)
    flow.primary_failed(0, sdk.ServiceBusServerBusyError())

    assert flow.next_step(0) == Wait(10_000)


def test_the_refusal_of_a_gone_entity_has_the_pings_answer_for_its_cause() -> None:
    flow, health, _ = make()
    health.fail_over(0)
    gone = sdk.MessagingEntityNotFoundError()
    health.ping_failed(1, "not found", entity_is_gone=True, error=gone)

    step = flow.next_step(2)

    assert isinstance(step, Fail)
    assert step.cause is gone
    health.ping_succeeded(3)
    assert health.gone_error is None


@pytest.mark.promise("P6")
def test_a_send_that_begins_after_the_failover_names_the_primarys_error_too() -> None:
    first, health, rotation = make(interval=0, queues=1)
    first.primary_failed(100, sdk.ServiceBusConnectionError(message="refused"))
    later = SendFlow(health, rotation, Choice(), "documented", 10_000, holds_while_suspect=False)
    step = later.next_step(200)
    assert isinstance(step, TryBacklog)
    later.backlog_failed(step.queue, 200, TIMEOUT)

    failed = later.next_step(300)

    assert isinstance(failed, Fail)
    assert isinstance(failed.cause, sdk.ServiceBusConnectionError)
    assert "refused" in str(failed.cause)
    assert failed.cause.__traceback__ is None
    health.ping_succeeded(400)
    assert health.last_error is None


def test_a_silent_primary_delays_the_first_send_by_seconds_not_by_its_whole_timeout() -> None:
    flow, health, _ = make(interval=5_000, timeout=60_000, holds=True)
    now = 0
    while isinstance(step := flow.next_step(now), TryPrimary | Wait):
        now += step.timeout_ms
        if isinstance(step, TryPrimary):
            health.tick(now)
            flow.primary_failed(now, TIMEOUT)

    assert isinstance(step, TryBacklog)
    assert now <= 21_000


@pytest.mark.promise("P38")
def test_a_send_that_waits_for_a_failover_due_this_moment_does_not_spin() -> None:
    flow, _, _ = make(interval=1_000, timeout=1_050, holds=True)
    flow.primary_failed(0, TIMEOUT)
    flow.primary_failed(950, TIMEOUT)

    assert flow.next_step(1_000) == Wait(1)
