from __future__ import annotations

import pytest

from pairbus.drain.rules.destination_queue import RECENT_MS
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.plan import BROWSE_INTERVAL_MS, SLOW_MS, DrainPlan
from pairbus.drain.rules.skip_list import LAPSE_MARGIN_MS, PAUSE_MS_MAX, PAUSE_MS_MIN, SKIPPED_MAX, SkipList
from pairbus.sdk.failures import Failure


def message(number: int, path: str = "orders", queue: str = "q0") -> BacklogMessage:
    return BacklogMessage(queue, number, path, b"x", f"m{number}", None, None, 60_000)


def away(window: int = 10) -> DrainPlan:
    """Half the window stands still, and "events" was reached a moment ago."""
    plan = DrainPlan(window=window, ready_max=4)
    plan.observed_behind("q0", ["events"], 0)
    for number in range(1, window // 2 + 1):
        plan.add(message(number))
    plan.next_batch("orders", 0)
    plan.send_failed("orders", Failure.CONNECTION, "down", 0)
    return plan


def test_half_of_the_window_stays_for_others() -> None:
    plan = away()

    assert plan.should_skip(message(6), 0)
    assert not plan.should_skip(message(7, "events"), 0)
    assert plan.capacity("q0", 0) == 4
    assert (plan.held("q0"), len(plan._skip_list._queues["q0"].skipped)) == (5, 1)


def test_where_everything_stands_still_nothing_is_passed_over() -> None:
    plan = DrainPlan(window=10, ready_max=4)
    for number in range(1, 6):
        plan.add(message(number))
    plan.next_batch("orders", 0)
    plan.send_failed("orders", Failure.CONNECTION, "down", 0)

    assert plan.browse_after("q0", 0) == 5
    plan.observed_behind("q0", ["orders"], 0)

    assert not plan.should_skip(message(6), 0)
    assert plan.browse_after("q0", BROWSE_INTERVAL_MS - 1) is None, "not looked at all the time"


def test_what_is_seen_behind_makes_room_in_a_full_window() -> None:
    plan = DrainPlan(window=10, ready_max=4)
    for number in range(1, 11):
        plan.add(message(number))
    plan.next_batch("orders", 0)
    plan.send_failed("orders", Failure.CONNECTION, "down", 0)
    assert plan.capacity("q0", 0) == 0
    assert plan.browse_after("q0", 0) == 10

    plan.observed_behind("q0", ["orders", "events"], 0)

    assert plan.capacity("q0", 0) == 4
    assert plan.should_skip(message(11), 0)
    assert not plan.should_skip(message(12, "events"), 0)
    assert plan.capacity("q0", RECENT_MS) == 0, "till they are seen again"


def test_a_destination_that_this_process_holds_for_failed_over_is_no_reason() -> None:
    plan = DrainPlan(window=10, ready_max=4, is_blocked=lambda path: True)
    for number in range(1, 6):
        plan.add(message(number))
    plan.observed_behind("q0", ["orders", "events"], 0)

    assert not plan.should_skip(message(6), 0)


def test_each_unavailable_destination_has_a_message_to_probe_it_with() -> None:
    plan = away()
    assert not plan.should_skip(message(6, "second"), 0)
    plan.add(message(6, "second"))
    plan.next_batch("second", 0)
    plan.send_failed("second", Failure.CONNECTION, "down", 0)

    assert plan.should_skip(message(7, "second"), 0)
    assert plan.capacity("q0", 0) == 4


@pytest.mark.promise("P14")
def test_no_message_overtakes_an_older_one_that_was_skipped() -> None:
    plan = away()
    assert plan.should_skip(message(6), 0)
    plan.next_batch("orders", 1_000)
    plan.send_accepted("orders")

    assert plan.should_skip(message(7), 1_000), "6 is still to come"
    assert not plan.should_skip(message(6), 61_000)
    assert not plan.should_skip(message(7), 61_000)


def test_a_message_that_another_receiver_took_is_not_waited_for() -> None:
    plan = away()
    assert plan.should_skip(message(6), 0)
    plan.next_batch("orders", 1_000)
    plan.send_accepted("orders")

    assert not plan.should_skip(message(7), 60_000 + LAPSE_MARGIN_MS)


def test_a_queue_that_comes_round_is_left_alone_longer_each_time_and_no_longer_once_something_moves() -> None:
    skip_list = SkipList()
    now = 0
    rests = []
    for _ in range(5):
        skip_list.skip("q0", "orders", 6, now + 60_000, now)
        skip_list.skip("q0", "orders", 6, now + 60_000, now)
        begun = now
        while skip_list.is_paused("q0", now):
            now += 1_000
        rests.append(now - begun)

    assert rests == sorted(rests)
    assert rests[-1] == PAUSE_MS_MAX
    skip_list.skip("q0", "orders", 6, now + 60_000, now)
    assert skip_list.is_paused("q0", now)
    skip_list.destination_resumed()
    assert not skip_list.is_paused("q0", now)
    assert PAUSE_MS_MIN < PAUSE_MS_MAX


def test_what_is_remembered_is_bounded() -> None:
    skip_list = SkipList()
    for number in range(3 * SKIPPED_MAX):
        skip_list.skip("q0", "orders", number, 60_000, 0)

    assert len(skip_list._queues["q0"].skipped) == SKIPPED_MAX
    assert skip_list.is_paused("q0", 0)


def test_a_destination_that_does_not_answer_stands_still() -> None:
    plan = DrainPlan(window=10, ready_max=4)
    for number in range(4):
        plan.add(message(number))
    plan.next_batch("orders", 0)

    assert plan.capacity("q0", SLOW_MS - 1) == 0
    assert plan.capacity("q0", SLOW_MS) == 4


@pytest.mark.promise("P38")
def test_destinations_that_stall_one_after_the_other_do_not_use_up_the_room_and_do_not_add_to_it() -> None:
    plan = DrainPlan(window=10, ready_max=4)
    held = 0
    number = 0
    left: list[BacklogMessage] = []
    for index in range(12):
        path = f"d{index}"
        plan.observed_behind("q0", [path], 0)
        count = plan.capacity("q0", 0)
        assert count, f"{path} works, and its messages are held up by those of others"
        for _ in range(count):
            number += 1
            one = message(number, path)
            younger = plan.youngest_to_leave(one, 0)
            left += [] if younger is None else [younger]
            assert not plan.should_skip(one, 0)
            plan.add(one)
            held = max(held, plan.held("q0"))
        plan.next_batch(path, 0)
        plan.send_failed(path, Failure.CONNECTION, "down", 0)

    assert held == 10 + 4
    assert number == plan.held("q0") + len(left)
    assert all(plan.is_waited_for(f"d{index}") for index in range(12)), "each has a message to probe it with"


def test_a_second_copy_waits_till_the_first_is_home() -> None:
    plan = DrainPlan()
    one, two = message(1), message(1, queue="q1")
    one.detour = two.detour = ("f", 1, 0)
    plan.add(one)

    assert plan.copy_to_leave(two) is two
    plan.next_batch("orders", 0)
    plan.send_accepted("orders")
    assert plan.copy_to_leave(two) is None
