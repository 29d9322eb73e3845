"""What may go wrong around a pump, and what it must not lead to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from azure.servicebus import exceptions as sdk

from pairbus.amqp.message.whole import PROPERTY_FIELDS
from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.ports import Delivery, Observer
from pairbus.drain.rules.message import BacklogMessage
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport, Restored
from pairbus.sdk.messages import sections
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import Kit, run
from tests.unit.drain.virtual_loop import VirtualLoop

HOUR_S = 3_600


def away_until(kit: Kit, ms: int, path: str = "orders") -> None:
    def answer(to: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
        is_away = to == path and kit.loop.now_ms() < ms
        return sdk.MessagingEntityDisabledError() if is_away else None

    kit.outlet.answer = answer


@pytest.mark.promise("P41")
def test_a_ledger_on_a_full_disk_does_not_stop_the_drain(loop: VirtualLoop) -> None:
    with Path("/dev/full").open("a+", encoding="utf-8") as full:
        ledger = DoubtfulSends(full)

        async def work(kit: Kit) -> None:
            for number in range(3):
                kit.inboxes[0].put(number)
            await kit.run_for(30)

        kit = run(loop, 1, work, ledger)

    assert kit.inboxes[0].completed == [0, 1, 2]


@pytest.mark.promise("P11")
def test_deduct_counts_the_time_that_a_message_waited_for_its_destination(
    loop: VirtualLoop,
) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 2 * HOUR_S * 1000)
        kit.inboxes[0].put(1)
        await kit.run_for(2 * HOUR_S + 60)

    kit = run(loop, 1, work, deduct=True)

    assert kit.outlet.sent == []
    assert kit.inboxes[0].aside == {"t1": "ExpiredInBacklog"}


@pytest.mark.promise("P11")
def test_a_frozen_time_to_live_begins_with_the_send_and_not_with_the_receive(
    loop: VirtualLoop,
) -> None:
    properties = [sections.NULL] * len(PROPERTY_FIELDS)
    properties[0] = sections.encode_text("m1")
    properties[8], properties[9] = sections.encode_timestamp(HOUR_S * 1000), sections.encode_timestamp(0)
    header = [sections.NULL, sections.NULL, sections.encode_uint(HOUR_S * 1000)]
    parts = [
        sections.Section(sections.HEADER, sections.encode_list(header)),
        sections.Section(sections.PROPERTIES, sections.encode_list(properties)),
        sections.Section(0x75, b"\xa0\x01x"),
    ]
    seen: list[int] = []

    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            if kit.loop.now_ms() < 2 * HOUR_S * 1000:
                return sdk.MessagingEntityDisabledError()
            found = sections.list_items(
                sections.find(sections.split(messages[0].payload), sections.PROPERTIES)
            )
            seen.append((sections.timestamp_of(found[8]) or 0) - kit.loop.now_ms())
            return None

        kit.outlet.answer = answer
        parked = parking.park(sections.join(parts), "orders", Passport("f", 0, 1, "r"))
        kit.inboxes[0].waiting.append(kit.inboxes[0].delivery(1, parked))
        await kit.run_for(2 * HOUR_S + 60)

    run(loop, 1, work)

    assert seen == [HOUR_S * 1000]


def test_the_oldest_age_is_that_of_what_waits_for_a_destination_that_is_away(loop: VirtualLoop) -> None:
    ages: list[int | None] = []

    async def work(kit: Kit) -> None:
        away_until(kit, 700_000)
        kit.inboxes[0].put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(300)
        kit.inboxes[0].put(2, "events")
        kit.inboxes[0].interrupt()
        await asyncio.sleep(300)
        ages.append(kit.syphon.progress()[0])
        await asyncio.sleep(200)
        ages.append(kit.syphon.progress()[0])
        kit.syphon.stop()
        await task

    run(loop, 1, work)

    assert ages == [600_000, None]


@pytest.mark.promise("P40")
def test_what_was_sent_while_locks_were_renewed_is_completed_at_once(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = kit.inboxes[0]
        answered = asyncio.Event()

        async def send(path: str, messages: Sequence[BacklogMessage]) -> None:
            await answered.wait()

        kit.outlet.send = send  # type: ignore[method-assign]
        inbox.on_renew = answered.set
        inbox.put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(40)
        assert inbox.renewed == 1
        assert inbox.completed == [1], "before its lock lapses"
        kit.syphon.stop()
        await task

    run(loop, 1, work)


@pytest.mark.promise("P36")
def test_a_syphon_that_stops_waits_for_the_answer_to_what_it_has_sent(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.slow_s = 1.0
        kit.inboxes[0].put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(0.5)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert kit.outlet.sent == [("orders", [1])]
    assert kit.inboxes[0].completed == [1]


@pytest.mark.promise("P44")
def test_a_syphon_that_stops_does_not_wait_for_a_silent_primary(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.slow_s = 600.0
        kit.inboxes[0].put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(1)
        begun = kit.loop.now_ms()
        kit.syphon.stop()
        await task
        assert kit.loop.now_ms() - begun < 5_000

    run(loop, 1, work)


@pytest.mark.promise("P36")
def test_two_copies_in_two_backlog_queues_come_home_once(loop: VirtualLoop) -> None:
    """A backlog queue that did not answer had stored the message, and another took it too."""

    async def work(kit: Kit) -> None:
        for inbox in kit.inboxes:
            inbox.put(7, detour=5)
        await kit.run_for(200)

    kit = run(loop, 2, work, locking=True)

    assert kit.outlet.sent == [("orders", [7])]
    assert [inbox.completed for inbox in kit.inboxes] == [[7], [7]]
    assert (kit.counters.restored, kit.counters.repeats_dropped) == (1, 1)


@pytest.mark.promise("P1")
def test_two_messages_with_one_id_are_not_taken_for_copies(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        for inbox, detour in zip(kit.inboxes, (5, 6), strict=True):
            inbox.put(7, detour=detour)
        await kit.run_for(10)

    kit = run(loop, 2, work)

    assert sum(len(numbers) for _, numbers in kit.outlet.sent) == 2


@pytest.mark.promise("P36")
def test_a_lock_lost_after_the_send_costs_no_second_send(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = kit.inboxes[0]
        inbox.loses_locks = True
        inbox.put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(2)
        inbox.loses_locks = False
        inbox.put(1)
        inbox.interrupt()
        await asyncio.sleep(2)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert kit.outlet.sent == [("orders", [1])]
    assert (kit.counters.possible_duplicates, kit.counters.restored) == (1, 1)


def test_short_locks_are_renewed_without_spinning(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 10_000_000)
        kit.inboxes[0].lock_ms = 10_000
        kit.inboxes[0].put(1)
        await kit.run_for(100)

    kit = run(loop, 1, work)

    assert 10 <= kit.inboxes[0].renewed <= 25
    assert kit.counters.receives <= 30


@pytest.mark.long
def test_one_destination_that_is_away_does_not_hold_up_others_behind_its_messages(loop: VirtualLoop) -> None:
    received: list[int] = []

    async def work(kit: Kit) -> None:
        away_until(kit, 1_200_000)
        for number in range(1, 1_500):
            kit.inboxes[0].put(number)
        for number in range(1_500, 1_520):
            kit.inboxes[0].put(number, "events")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(30)
        assert sum(len(numbers) for path, numbers in kit.outlet.sent if path == "events") == 20
        await asyncio.sleep(600)
        received.append(kit.counters.received)
        await asyncio.sleep(570 + 400)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work, locking=True)

    assert received[0] < 1_520 + 2_000, "no spinning receives"
    assert sorted(kit.inboxes[0].completed) == list(range(1, 1_520))
    home = [number for path, numbers in kit.outlet.sent if path == "orders" for number in numbers]
    assert home == list(range(1, 1_500)), "P14: in order, though many were passed over"


def test_after_an_outage_of_everything_all_is_home_within_seconds(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 120_000)
        for number in range(1, 1_500):
            kit.inboxes[0].put(number)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(135)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work, locking=True)

    assert kit.inboxes[0].completed == list(range(1, 1_500)), "no lock had to lapse first"
    assert kit.counters.passed_over == 0


def test_one_destination_that_is_slow_does_not_hold_up_others(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        async def send(path: str, messages: Sequence[BacklogMessage]) -> None:
            if path == "orders":
                await asyncio.sleep(25)
            kit.outlet.sent.append((path, [message.sequence_number for message in messages]))

        kit.outlet.send = send  # type: ignore[method-assign]
        for number in range(1, 600):
            kit.inboxes[0].put(number)
        kit.inboxes[0].put(600, "events")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(20)
        assert ("events", [600]) in kit.outlet.sent
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)


async def _withdraw(kit: Kit) -> bool:
    return await kit.syphon.withdraw(kit.inboxes[0].queue, "m1", ("f", 2))


@pytest.mark.promise("P45")
def test_a_cancelled_message_that_is_held_is_completed_and_goes_nowhere(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 10_000_000)
        kit.inboxes[0].put(1)
        kit.inboxes[0].withdrawn.add("m1")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(2)
        assert not await kit.syphon.withdraw(kit.inboxes[0].queue, "m1", ("another", 2))
        assert await _withdraw(kit)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert kit.inboxes[0].completed == [1]
    assert kit.outlet.sent == []
    assert (kit.counters.received, kit.counters.cancelled, kit.counters.restored) == (1, 1, 0)


@pytest.mark.promise("P44")
def test_a_caller_that_cancels_while_the_drain_stops_is_answered(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 10_000_000)
        inbox = kit.inboxes[0]
        inbox.put(1)
        inbox.withdrawn.add("m1")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(2)
        asked: list[asyncio.Future[bool]] = []

        def stop_and_ask() -> None:
            asked.append(asyncio.ensure_future(_withdraw(kit)))
            kit.syphon.stop()

        inbox.on_renew = stop_and_ask
        await task
        async with asyncio.timeout(60):
            await asked[0]

    run(loop, 1, work)


@pytest.mark.promise("P39")
@pytest.mark.parametrize(
    "passport",
    [
        '{"f":"x","t":1e999,"n":1,"r":""}',
        '{"f":"x","t":1,"n":1,"r":"","h":{"abs":99999999999999999999999}}',
        '{"f":"x","t":1,"n":1,"r":"","h":{"at":{"x-opt-partition-key":"first"}}}',
        "[" * 100_000,
    ],
)
def test_a_passport_that_makes_no_sense_does_not_block_its_queue(loop: VirtualLoop, passport: str) -> None:
    items = [
        (sections.encode_text(parking.ALIAS_PATH), sections.encode_text("orders")),
        (sections.encode_text(parking.ALIAS_PARTITION), sections.encode_text("p")),
        (sections.encode_text(parking.ALIAS_PASSPORT), sections.encode_text(passport)),
    ]
    payload = sections.join([
        sections.Section(sections.APPLICATION_PROPERTIES, sections.encode_map(items)),
        sections.Section(0x75, b"\xa0\x01x"),
    ])  # fmt: skip

    async def work(kit: Kit) -> None:
        kit.inboxes[0].waiting.append(kit.inboxes[0].delivery(1, payload))
        kit.inboxes[0].put(2)
        await kit.run_for(10)

    kit = run(loop, 1, work)

    assert kit.inboxes[0].aside == {"t1": "InvalidParkedProperty"}
    assert kit.inboxes[0].completed == [2]


def test_a_message_of_an_application_is_as_it_was(loop: VirtualLoop) -> None:
    seen: list[bytes] = []

    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            seen.extend(message.payload for message in messages)
            return None

        kit.outlet.answer = answer
        kit.inboxes[0].put(4)
        await kit.run_for(1)

    run(loop, 1, work)

    assert seen == [original(4, None, has_alias_name=False, has_life=True)]


@pytest.mark.promise("P38")
def test_while_everything_is_away_one_lock_is_renewed_and_the_rest_is_given_back(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 3_600_000)
        for number in range(1, 801):
            kit.inboxes[number % 2].put(number)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(3_590)
        assert kit.inboxes[0].renewed + kit.inboxes[1].renewed < 3_600 / 25, "one, every half lock"
        assert kit.counters.received == 800
        # Looks for messages of other destinations: a page each half minute and queue.
        assert kit.counters.receive_operations < 800 + 2 * 3_600 / 25
        await asyncio.sleep(30)
        assert sum(len(numbers) for _, numbers in kit.outlet.sent) == 800, "home within seconds"
        kit.syphon.stop()
        await task

    kit = run(loop, 2, work, locking=True)

    assert kit.counters.received <= 2 * 800


def test_locks_of_a_full_window_are_renewed_in_time_though_each_request_takes_long(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = kit.inboxes[0]
        renew = inbox.renew

        async def slowly(messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
            await asyncio.sleep(0.5)
            return await renew(messages)

        inbox.renew = slowly  # type: ignore[method-assign]
        kit.outlet.slow_s = 100.0
        for number in range(1, 301):
            inbox.put(number)
        await kit.run_for(700)

    kit = run(loop, 1, work, locking=True)

    assert (kit.counters.received, len(kit.inboxes[0].completed)) == (300, 300)


class FaultyObserver(Observer):
    """Fails where it is told that something works again, or no longer."""

    def __init__(self, failing: str) -> None:
        self._failing = failing

    def available(self, subject: str) -> None:
        if self._failing == "available":
            raise ValueError(subject)

    def unavailable(self, subject: str, sentence: str) -> None:
        if self._failing == "unavailable":
            raise ValueError(subject)


@pytest.mark.promise("P34")
def test_an_error_after_the_answer_ends_the_drain_and_what_was_sent_is_completed(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.syphon._problems._observer = FaultyObserver("available")
        away_until(kit, 10_000)
        for number in range(3):
            kit.inboxes[0].put(number)
        with pytest.raises(ValueError, match="orders"):
            await asyncio.wait_for(kit.syphon.run(once=True), HOUR_S)

    kit = run(loop, 1, work)

    assert sorted(number for _, batch in kit.outlet.sent for number in batch) == kit.inboxes[0].completed


def test_an_error_of_one_destinations_task_ends_the_drain(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.syphon._problems._observer = FaultyObserver("unavailable")
        away_until(kit, 10_000)
        kit.inboxes[0].put(1)
        with pytest.raises(ValueError, match="orders"):
            await asyncio.wait_for(kit.syphon.run(), HOUR_S)

    kit = run(loop, 1, work)

    assert kit.inboxes[0].given_back == ["t1"]


def test_an_error_of_one_queues_task_ends_the_drain_though_others_go_on(loop: VirtualLoop) -> None:
    async def gone(count: int, seconds: float) -> Sequence[Delivery]:
        raise sdk.MessagingEntityNotFoundError

    async def work(kit: Kit) -> None:
        kit.syphon._problems._observer = FaultyObserver("unavailable")
        kit.inboxes[0].receive = gone  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=kit.inboxes[0].queue):
            await asyncio.wait_for(kit.syphon.run(), HOUR_S)

    run(loop, 2, work)


def test_a_batch_that_cannot_be_restored_again_waits_for_its_next_try(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        away_until(kit, 10_000)
        restored, failures = kit.syphon._senders.restored, [OSError("once")]

        def fail_once(payload: bytes, enqueued_ms: int | None) -> Restored:
            if failures:
                raise failures.pop()
            return restored(payload, enqueued_ms)

        kit.syphon._senders.restored = fail_once
        kit.inboxes[0].put(1)
        await kit.run_for(60)

    kit = run(loop, 1, work, deduct=True)

    assert kit.inboxes[0].completed == [1]
