"""Sends of the paired client around false official ones, on a false clock."""

from __future__ import annotations

import asyncio
import gc
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from azure.servicebus import exceptions as sdk
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import CancelInDoubtError, ClientClosedError, EntityGoneError, Health, UsageError, outcome_of
from pairbus.pairing.parking import passport_of
from pairbus.pairing.runtime.attempts import LinkClosed
from pairbus.pairing.scheduled import ParkedSchedule
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import QUEUES, Bench, FakeSender, refuse, silence, text

REFUSED = sdk.ServiceBusConnectionError()


@pytest.mark.promise("P18")
async def test_a_silent_primary_leaves_time_for_the_backlog_when_others_made_the_entity_fail_over(
    loop: VirtualLoop,
) -> None:
    bench = Bench(failover_interval=timedelta(seconds=5))
    client = bench.paired()
    bench.primary.answer = silence
    first, second = client.get_queue_sender("orders"), client.get_queue_sender("orders")
    late = asyncio.ensure_future(second.send_messages(text(2), timeout=30))
    with pytest.raises(OperationTimeoutError):
        await first.send_messages(text(1), timeout=4)
    await late

    assert loop.now_ms() <= 30_000
    assert bench.parked() == 1
    assert client.backlog_queue_count == 3, "no queue is blamed"
    await client.close()


async def test_while_suspect_wait_brings_a_send_to_the_backlog_though_the_primary_is_silent(
    loop: VirtualLoop,
) -> None:
    bench = Bench(failover_interval=timedelta(seconds=10), while_suspect="wait")
    client = bench.paired()
    bench.primary.answer = silence

    await client.get_queue_sender("orders").send_messages(text(1), timeout=60)

    assert loop.now_ms() <= 60_000
    assert bench.parked() == 1
    await client.close()


async def test_while_suspect_wait_ends_when_the_primary_answers(loop: VirtualLoop) -> None:
    bench = Bench(failover_interval=timedelta(minutes=5), while_suspect="wait")
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)
    send = asyncio.ensure_future(client.get_queue_sender("orders").send_messages(text(1), timeout=60))
    await asyncio.sleep(20)
    assert client.health()["orders"].state is Health.SUSPECT
    bench.primary.answers.clear()
    bench.primary.answer = lambda sender: asyncio.sleep(0)
    await send

    assert (len(bench.primary.stored["orders"]), bench.parked()) == (1, 0)
    assert client.health()["orders"].state is Health.HEALTHY
    await client.close()


@pytest.mark.promise("P32")
async def test_a_caller_without_patience_takes_no_queue_from_the_others(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    client.fail_over("orders")
    bench.secondary.answer = silence
    sender = client.get_queue_sender("orders")
    for _ in range(5):
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(text(1), timeout=0.05)

    assert client.backlog_queue_count == 3
    await client.close()


@pytest.mark.promise("P16")
async def test_server_busy_is_not_tried_again_by_the_sdk_and_ten_seconds_pass(loop: VirtualLoop) -> None:
    bench = Bench(failover_interval=timedelta(minutes=1))
    client = bench.paired()
    at: list[int] = []

    async def answer(sender: FakeSender) -> None:
        """As the SDK does it: it asks its own judge whether to try again."""
        for _ in range(1 + sender._config.retry_total):
            at.append(loop.now_ms())
            if len(at) > 1:
                return
            await sender._handle_exception(sdk.ServiceBusServerBusyError())
            await asyncio.sleep(0.8)

    bench.primary.answer = answer
    await client.get_queue_sender("orders").send_messages(text(1), timeout=60)

    assert len(at) == 2
    assert at[1] - at[0] >= 10_000
    await client.close()


@pytest.mark.promise("P5")
async def test_an_attempt_in_doubt_before_the_last_one_makes_a_refusal_unknown(loop: VirtualLoop) -> None:
    bench = Bench(failover_interval=timedelta(minutes=1))
    client = bench.paired()

    async def answer(sender: FakeSender) -> None:
        await sender._handle_exception(sdk.OperationTimeoutError())
        raise sdk.ServiceBusAuthorizationError

    bench.primary.answer = answer
    with pytest.raises(sdk.ServiceBusAuthorizationError) as caught:
        await client.get_queue_sender("orders").send_messages(text(1))
    assert outcome_of(caught.value) == "unknown"

    bench.primary.answer = refuse(sdk.ServiceBusAuthorizationError())
    await asyncio.sleep(1)
    with pytest.raises(sdk.ServiceBusAuthorizationError) as caught:
        await client.get_queue_sender("orders").send_messages(text(2))
    assert outcome_of(caught.value) == "fail"
    statistics = client.statistics()
    assert (statistics.unknown, statistics.failed, statistics.sends) == (1, 1, 2)
    await client.close()


@pytest.mark.promise("P13")
async def test_what_a_large_secondary_takes_is_parked_also_by_the_first_send(loop: VirtualLoop) -> None:
    bench = Bench()
    bench.secondary.limit = 1_048_576
    client = bench.paired()
    client.fail_over("orders")

    await client.get_queue_sender("orders").send_messages(text("x" * 500_000))

    assert bench.parked() == 1
    await client.close()


async def test_a_silent_primary_does_not_hold_create_message_batch(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    bench.primary.answer = silence
    sender = client.get_queue_sender("orders")

    batch = await sender.create_message_batch()
    batch.add_message(text(1))
    await sender.send_messages(batch, timeout=10)

    assert loop.now_ms() <= 20_000
    assert bench.parked() == 1
    await client.close()


@pytest.mark.promise("P30")
async def test_before_pairing_a_failure_changes_no_state(loop: VirtualLoop) -> None:
    bench = Bench()
    bench.primary.answer = refuse(REFUSED)
    sender = bench.client.get_queue_sender("orders")
    with pytest.raises(sdk.ServiceBusConnectionError):
        await sender.create_message_batch()
    with pytest.raises(sdk.ServiceBusConnectionError):
        await sender.send_messages(text(1))

    assert bench.client.health()["orders"].state is Health.HEALTHY
    await bench.client.close()


def test_no_two_handles_of_scheduled_messages_are_equal() -> None:
    parked = [ParkedSchedule.make("p/x-servicebus-transfer/0", "m", "client", number) for number in (1, 2)]
    spooled = [ParkedSchedule.make("spool:/tmp/0", "m", "client", number) for number in (1, 2)]
    of_another_client = [ParkedSchedule.make("p/x-servicebus-transfer/0", "m", "other", 1)]
    handles = [*parked, *spooled, *of_another_client]

    assert len(set(handles)) == 5
    assert len({hash(handle) for handle in handles}) == 5
    assert all(-(1 << 63) <= handle < 0 for handle in handles)
    copies = pickle.loads(pickle.dumps(handles))
    assert copies == handles
    assert [(one.queue, one.detour, one.is_spooled) for one in copies] == [
        (one.queue, one.detour, one.is_spooled) for one in handles
    ]
    assert [one.is_spooled for one in handles] == [False, False, True, True, False]


@pytest.mark.promise("P5")
async def test_a_cancel_in_doubt_says_where_the_message_was_cancelled(loop: VirtualLoop) -> None:
    cancelled: Any = AsyncMock()

    client = Bench().paired()
    client._cancel_parked = cancelled  # type: ignore[method-assign]
    sender = client.get_queue_sender("orders")
    spooled = ParkedSchedule.make("spool:/tmp/0", "s", "client", 1, has_other_copy=True)
    parked = ParkedSchedule.make("p/x-servicebus-transfer/0", "p", "client", 1, has_other_copy=True)
    for handles, where in (
        ([spooled], "the spool: 's'"),
        ([parked], "the backlog: 'p'"),
        ([spooled, parked], "the backlog and the spool: 's', 'p'"),
    ):
        with pytest.raises(CancelInDoubtError, match=f"^cancelled in {where}"):
            await sender.cancel_scheduled_messages(handles)
    await client.close()


async def test_a_client_with_an_order_knows_the_age_of_parked_messages_without_a_session(
    loop: VirtualLoop,
) -> None:
    bench = Bench(order="session")
    client = bench.client
    client._state.order.paired = lambda *_given, **_named: None  # type: ignore[method-assign]
    bench.paired()
    client.fail_over("orders")
    await client.get_queue_sender("orders").send_messages(text(1))
    await asyncio.sleep(3)

    assert client.health()["orders"].oldest_parked_age_ms == 3_000
    assert client.statistics().oldest_parked_age_ms == 3_000
    await client.close()


async def test_handles_of_scheduled_messages_say_in_which_queue_each_is(loop: VirtualLoop) -> None:
    bench = Bench()
    bench.secondary.limit = 2_000
    client = bench.paired()
    client.fail_over("orders")
    sender = client.get_queue_sender("orders")
    await sender.send_messages(text(0))
    own = client.health()["orders"].backlog_queue
    assert own is not None
    calls = 0

    async def once(fake: FakeSender) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise REFUSED

    bench.secondary.answers[own] = once
    due = datetime.now(UTC) + timedelta(hours=1)
    handles = await sender.schedule_messages(
        [text("x" * 1_000, message_id="same"), text("y" * 1_000, message_id="same")], due, timeout=10
    )

    parked = [handle for handle in handles if isinstance(handle, ParkedSchedule)]
    assert len(set(parked)) == 2
    assert parked[0].queue == own != parked[1].queue
    for handle in parked:
        passports = [passport_of(payload) for payload in bench.secondary.stored[handle.queue]]
        assert [p for p in passports if p is not None and p.detour == handle.detour]
    with pytest.raises(UsageError, match="keep the object"):
        await sender.cancel_scheduled_messages(int(handles[0]))
    await client.close()


async def test_the_refusal_of_an_entity_that_is_gone_carries_its_cause(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    sender = client.get_queue_sender("orders")
    await sender.send_messages(text(0))
    bench.primary.answer = refuse(sdk.MessagingEntityNotFoundError())
    await sender.send_messages(text(1))
    await asyncio.sleep(1)

    with pytest.raises(EntityGoneError) as caught:
        await sender.send_messages(text(2))

    assert isinstance(caught.value.__cause__, sdk.MessagingEntityNotFoundError)
    assert outcome_of(caught.value) == "fail"
    assert bench.parked() == 1
    await client.close()


@pytest.mark.promise("P45")
async def test_a_cancelled_send_is_counted_and_its_torn_link_is_not_used_again(loop: VirtualLoop) -> None:
    bench = Bench(failover_interval=timedelta(minutes=1))
    client = bench.paired()
    sender = client.get_queue_sender("orders")
    bench.primary.answer = silence
    send = asyncio.ensure_future(sender.send_messages(text(1)))
    await asyncio.sleep(1)
    send.cancel()
    with pytest.raises(asyncio.CancelledError):
        await send
    bench.primary.answer = lambda fake: asyncio.sleep(0)
    await sender.send_messages(text(2))

    assert [fake.opened for fake in bench.primary.senders] == [2]
    statistics = client.statistics()
    assert (statistics.sends, statistics.unknown, statistics.to_primary) == (2, 1, 1)
    await client.close()
    assert all(fake.is_closed for fake in bench.primary.senders)


async def test_a_send_cancelled_on_its_way_to_the_backlog_is_unknown_and_leaves_a_fresh_link(
    loop: VirtualLoop,
) -> None:
    bench = Bench()
    client = bench.paired()
    client.fail_over("orders")
    sender = client.get_queue_sender("orders")
    bench.secondary.answer = silence
    send = asyncio.ensure_future(sender.send_messages(text(1)))
    await asyncio.sleep(1)
    send.cancel()
    with pytest.raises(asyncio.CancelledError):
        await send
    bench.secondary.answer = lambda fake: asyncio.sleep(0)
    await sender.send_messages(text(2))

    assert client.statistics().unknown == 1
    assert client.backlog_queue_count == 3
    assert bench.parked() == 1
    await client.close()
    assert all(fake.is_closed for fake in bench.secondary.senders)


async def test_a_sender_that_nobody_keeps_is_forgotten_and_its_counts_stay(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    for number in range(20):
        sender = client.get_queue_sender("orders")
        await sender.send_messages(text(number))
        if number % 2:
            await sender.close()
    del sender
    gc.collect()

    assert len(client._senders) == 0
    assert client.statistics().to_primary == 20
    assert client._state._tallies == []
    await client.close()


@pytest.mark.promise("P20")
async def test_a_send_in_flight_that_fails_after_the_failover_is_detoured(loop: VirtualLoop) -> None:
    bench = Bench(failover_interval=timedelta(minutes=1))
    client = bench.paired()

    async def late(sender: FakeSender) -> None:
        await asyncio.sleep(3)
        raise REFUSED

    bench.primary.answer = late
    send = asyncio.ensure_future(client.get_queue_sender("orders").send_messages(text(1)))
    await asyncio.sleep(1)
    client.fail_over("orders")
    await send

    assert bench.parked() == 1
    await client.close()


async def test_a_send_in_flight_does_not_undo_a_failover_by_hand(loop: VirtualLoop) -> None:
    bench = Bench(failover_interval=timedelta(minutes=1))
    client = bench.paired()
    bench.primary.answer = lambda sender: asyncio.sleep(3)
    send = asyncio.ensure_future(client.get_queue_sender("orders").send_messages(text(1)))
    await asyncio.sleep(1)
    client.fail_over("orders")
    await send

    assert client.health()["orders"].state is Health.FAILED_OVER
    assert bench.parked() == 0
    await client.close()


async def test_topics_are_protected_like_queues_and_queue_names_share_one_record(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)

    await client.get_topic_sender("News").send_messages([text(1), text(2)])
    await client.get_queue_sender("/news/").send_messages(text(3))

    assert bench.parked() == 3
    assert list(client.health()) == ["News"]
    assert client.health()["News"].parked == 3
    assert client.health()["News"].backlog_queue in QUEUES
    await client.close()


async def test_a_timeout_that_is_none_is_refused_like_the_sdk_does(loop: VirtualLoop) -> None:
    client = Bench().paired()
    sender = client.get_queue_sender("orders")
    for call in (
        sender.send_messages(text(1), timeout=0),
        sender.schedule_messages(text(1), datetime.now(UTC), timeout=-1),
    ):
        with pytest.raises(ValueError, match="seconds above 0"):
            await call
    assert client.statistics().sends == 0
    await client.close()


@pytest.mark.promise("P45")
async def test_statistics_add_up_though_the_client_closes_while_sends_are_under_way(
    loop: VirtualLoop,
) -> None:
    bench = Bench()
    client = bench.paired()
    answered = asyncio.Event()

    async def late(_: object) -> None:
        await answered.wait()

    bench.primary.answer = late
    sender = client.get_queue_sender("orders")
    sends = [asyncio.create_task(sender.send_messages(text(number))) for number in range(8)]
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.1)
    answered.set()
    results = await asyncio.gather(*sends, return_exceptions=True)
    await closing

    counts = client.statistics()
    assert counts.sends == 8
    assert counts.to_primary == sum(result is None for result in results)
    assert counts.sends == counts.to_primary + counts.to_backlog + counts.failed + counts.unknown


@pytest.mark.promise("P5")
async def test_a_send_on_what_is_closed_already_is_a_fail(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    closed, other = client.get_queue_sender("orders"), client.get_queue_sender("orders")
    await closed.close()
    with pytest.raises(ClientClosedError) as of_sender:
        await closed.send_messages(text(1))
    with pytest.raises(ClientClosedError) as of_schedule:
        await closed.schedule_messages(text(1), datetime.now(UTC))
    bench.primary.answer = silence
    under_way = asyncio.create_task(other.send_messages(text(2)))
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises(ClientClosedError) as of_client:
        await other.send_messages(text(3))
    with pytest.raises(ClientClosedError) as interrupted:
        await under_way

    for refused in (of_sender, of_schedule, of_client):
        assert outcome_of(refused.value) == "fail"
    assert outcome_of(interrupted.value) == "unknown", "its message had left"


@pytest.mark.promise("P44")
async def test_whatever_races_with_close_ends_in_the_error_of_a_closed_client(loop: VirtualLoop) -> None:
    bench = Bench()
    sender = bench.paired().get_queue_sender("orders")
    await sender.send_messages(text(1))
    link: Any = sender._primary
    # The link is closed, and nobody has said yet that its sender is.
    await link.close()

    async def closed(*_arguments: object, **_options: object) -> None:
        raise LinkClosed

    link.call, link.sender.cancel_scheduled_messages = closed, None
    with pytest.raises(ClientClosedError):
        await sender.cancel_scheduled_messages(7)
    for call in (
        lambda: sender.send_messages(text(2)),
        lambda: sender.schedule_messages(text(3), datetime.now(UTC)),
    ):
        with pytest.raises(ClientClosedError):
            await call()
    await bench.client.close()
    assert bench.parked() == 0, "it is no outage"
