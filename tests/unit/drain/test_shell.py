"""The pumps on a false clock with a false inbox and outlet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from azure.servicebus import exceptions as sdk

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.rules.message import BacklogMessage
from tests.unit.drain.shell_kit import Kit, run
from tests.unit.drain.virtual_loop import VirtualLoop

DAY_S = 24 * 3600


@pytest.mark.long
def test_an_idle_syphon_of_10_queues_costs_40_receives_an_hour_and_28800_in_30_days(
    loop: VirtualLoop,
) -> None:
    hour = run(loop, 10, lambda kit: kit.run_for(3_600 - 1))
    month = run(loop, 10, lambda kit: kit.run_for(30 * DAY_S - 1))

    assert hour.counters.receives == 40
    assert month.counters.receives == 28_800
    # And one look for deferred messages into each queue, after the first poll.
    assert month.counters.receive_operations == 28_800 + 10


@pytest.mark.promise("P34")
def test_messages_are_sent_and_then_completed(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        for number in range(250):
            kit.inboxes[0].put(number)
        await kit.run_for(10)

    kit = run(loop, 2, work)

    assert sorted(kit.inboxes[0].completed) == list(range(250))
    assert kit.counters.restored == 250
    assert all(len(numbers) <= 100 for _, numbers in kit.outlet.sent)
    assert [number for _, numbers in kit.outlet.sent for number in numbers] == list(range(250)), (
        "P14: in order"
    )


def test_a_detoured_message_is_four_charges(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.inboxes[0].put(1)
        await kit.run_for(1)

    kit = run(loop, 1, work)
    parked, read_at_home = 1, 1

    idle_poll = 1
    syphon = kit.counters.receive_operations - idle_poll + kit.counters.resent
    assert parked + syphon + read_at_home == 4


@pytest.mark.promise("P38")
def test_a_destination_that_is_away_is_asked_with_back_off_and_nothing_is_set_aside(
    loop: VirtualLoop,
) -> None:
    attempts: list[int] = []

    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            if path == "orders" and kit.loop.now_ms() < 600_000:
                attempts.append(len(messages))
                return sdk.MessagingEntityDisabledError()
            return None

        kit.outlet.answer = answer
        for number in range(50):
            kit.inboxes[0].put(number)
        kit.inboxes[0].put(99, "events")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(5)
        assert ("events", [99]) in kit.outlet.sent, "others are not held up"
        await asyncio.sleep(590)
        receives = kit.counters.receives
        assert receives < 60, "no spinning receives"
        await asyncio.sleep(12)
        assert len(kit.inboxes[0].completed) == 51, "home within seconds of the recovery"
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert len(attempts) < 150, "one attempt in five seconds"
    assert set(attempts[1:]) == {1}, "asked with one message"
    assert kit.inboxes[0].aside == {}
    # The window is given back once no others come; one message is kept to ask with.
    assert 10 < kit.inboxes[0].renewed < 2 * 50 + 600 // 25
    assert kit.counters.received < 51 + 50 + 10


@pytest.mark.promise("P39")
def test_poison_in_a_batch_is_isolated(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            bad = any(message.sequence_number == 13 for message in messages)
            return sdk.MessageSizeExceededError() if bad else None

        kit.outlet.answer = answer
        for number in range(30):
            kit.inboxes[0].put(number)
        await kit.run_for(10)

    kit = run(loop, 1, work)

    assert kit.inboxes[0].aside == {"t13": "TooLargeForDestination"}
    assert sorted(kit.inboxes[0].completed) == [number for number in range(30) if number != 13]


@pytest.mark.promise("P40")
def test_a_lock_lost_after_the_send_is_counted_as_a_possible_duplicate(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.inboxes[0].loses_locks = True
        kit.inboxes[0].put(1)
        await kit.run_for(2)

    kit = run(loop, 1, work)

    assert kit.counters.possible_duplicates == 1
    assert kit.counters.restored == 0


def test_locks_are_renewed_while_a_send_is_slow(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.slow_s = 100.0
        kit.inboxes[0].put(1)
        await kit.run_for(150)

    kit = run(loop, 1, work)

    assert kit.inboxes[0].renewed >= 3
    assert kit.inboxes[0].completed == [1]


def test_after_a_crash_what_is_in_doubt_is_asked_for_before_it_is_sent_again(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    before = DoubtfulSends.open(tmp_path, "p")
    before.begin([("p/x-servicebus-transfer/0", 1, "m1", 0), ("p/x-servicebus-transfer/0", 2, "m2", 0)], 0)
    before.end([("p/x-servicebus-transfer/0", 2)])
    before.close()
    ledger = DoubtfulSends.open(tmp_path, "p")
    assert len(ledger) == 1

    async def work(kit: Kit) -> None:
        kit.outlet.known = {"m1"}
        kit.inboxes[0].put(1)
        kit.inboxes[0].put(3)
        await kit.run_for(2)

    kit = run(loop, 1, work, ledger)

    assert sorted(kit.inboxes[0].completed) == [1, 3]
    assert kit.outlet.sent == [("orders", [3])]
    assert len(ledger) == 0


def test_deduct_sets_aside_what_ran_out_in_the_backlog(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.inboxes[0].put(1)
        await asyncio.sleep(7_200)
        await kit.run_for(2)

    kit = run(loop, 1, work, deduct=True)

    assert kit.inboxes[0].aside == {"t1": "ExpiredInBacklog"}


def test_stop_cuts_a_poll_of_15_minutes_short_and_gives_held_messages_back(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.answer = lambda path, messages: sdk.ServiceBusConnectionError()
        kit.inboxes[0].put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(3)
        begun = kit.loop.now_ms()
        kit.syphon.stop()
        await task
        assert kit.loop.now_ms() - begun < 1_000

    kit = run(loop, 3, work)

    assert kit.inboxes[0].given_back == ["t1"]
    assert kit.inboxes[0].completed == []


def test_two_ledgers_of_one_primary_do_not_share_a_file(tmp_path: Path) -> None:
    one, two = DoubtfulSends.open(tmp_path, "p"), DoubtfulSends.open(tmp_path, "p")
    one.begin([("q", 1, "a", 0)], 0)

    assert len(two) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-0.ledger", "p-1.ledger"]
    one.close()
    two.close()
