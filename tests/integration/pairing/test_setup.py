"""Pairing with real brokers: P7, P29, P30."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from pairbus import (
    AlreadyPairedError,
    NamespaceNameUnknownError,
    NoBacklogQueuesError,
    PairedServiceBusClient,
    SameNamespaceError,
)
from pairbus.aio import PairedServiceBusClient as AsyncPairedClient
from pairbus.pairing.events import Event, Kind
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import bodies, by_hand, operations, options, paired, text
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
UNLIMITED = timedelta(days=10_675_199, hours=2, minutes=48, seconds=5, microseconds=477_581)


def kinds(events: list[Event], kind: Kind) -> list[str]:
    return [event.subject for event in events if event.kind is kind]


@pytest.mark.promise("P29")
def test_pairing_creates_exactly_the_missing_queues_with_the_prescribed_settings(pair: Pair) -> None:
    pair.secondary.create_queue(
        "contoso/x-servicebus-transfer/1", max_delivery_count=7, requires_session=True
    )
    pair.secondary.create_queue("contoso/x-servicebus-transfer/9")
    with (
        pair.secondary.client() as official,
        official.get_queue_sender("contoso/x-servicebus-transfer/9") as stranded,
    ):
        stranded.send_messages([text(1), text(2)])
    with paired(pair, options(backlog_queue_count=3)) as client:
        events = client.events()
        assert client.backlog_queue_count == 2, "sends to a queue that requires sessions would fail"
        assert client._state.drained_only == ["contoso/x-servicebus-transfer/1"]

    with pair.secondary.administration_client() as management:
        names = sorted(queue.name for queue in management.list_queues())
        created = management.get_queue("contoso/x-servicebus-transfer/0")
        untouched = management.get_queue("contoso/x-servicebus-transfer/1")
    assert names == [f"contoso/x-servicebus-transfer/{index}" for index in (0, 1, 2, 9)]
    assert kinds(events, Kind.QUEUE_CREATED) == [f"contoso/x-servicebus-transfer/{index}" for index in (0, 2)]
    assert (created.max_size_in_megabytes, created.max_delivery_count) == (5120, 2147483647)
    assert created.lock_duration == timedelta(minutes=1)
    assert (created.dead_lettering_on_message_expiration, created.enable_batched_operations) == (True, True)
    assert created.default_message_time_to_live == created.auto_delete_on_idle
    assert str(created.default_message_time_to_live) in (str(UNLIMITED), "P10675199DT2H48M5.4775807S")
    assert (created.requires_session, created.requires_duplicate_detection) == (False, False)
    assert untouched.max_delivery_count == 7
    assert set(kinds(events, Kind.PROPERTY_DIFFERENCE)) == {"contoso/x-servicebus-transfer/1"}
    assert kinds(events, Kind.QUEUE_UNUSABLE) == ["contoso/x-servicebus-transfer/1"]
    assert [event.is_loud for event in events if "requires sessions" in event.text] == [True]
    extra = [event for event in events if event.kind is Kind.EXTRA_QUEUE]
    assert [(event.subject, event.data["messages"]) for event in extra] == [
        ("contoso/x-servicebus-transfer/9", 2)
    ]


@pytest.mark.promise("P29")
def test_two_clients_pairing_at_once_end_in_the_same_state(pair: Pair) -> None:
    clients = [paired(pair, options(backlog_queue_count=5)) for _ in range(2)]
    threads = [threading.Thread(target=client.pair) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)

    assert [client.backlog_queue_count for client in clients] == [5, 5]
    for client in clients:
        client.close()


def test_pairing_needs_only_the_secondary() -> None:
    with Namespace("contoso", process=True, queues=["orders"]) as primary, Namespace("fabrikam") as secondary:
        text_of_primary = primary.connection_string
        primary.kill()
        client = PairedServiceBusClient.from_connection_strings(
            text_of_primary, secondary.connection_string, options=options(), retry_total=0
        )
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(text(1), timeout=30)
            assert client.statistics().to_backlog == 1
        primary.restart()


def test_refusals(pair: Pair) -> None:
    primary, secondary = pair.primary.connection_string, pair.secondary.connection_string
    with pytest.raises(SameNamespaceError):
        PairedServiceBusClient.from_connection_strings(primary, primary)
    with pytest.raises(NamespaceNameUnknownError):
        PairedServiceBusClient.from_connection_strings(primary.partition(";Namespace=")[0], secondary)
    shared = options()
    with paired(pair, shared) as client:
        with pytest.raises(AlreadyPairedError):
            client.pair()
        with paired(pair, shared) as another:
            assert another.is_paired, "one options object serves any number of clients"
        with pytest.raises(AlreadyPairedError, match="primary of another"):
            PairedServiceBusClient.from_connection_strings(secondary, primary).pair()
    paired(pair, shared).pair()


@pytest.mark.promise("P30")
def test_without_a_usable_queue_pairing_raises_and_can_be_tried_again(pair: Pair) -> None:
    broken = pair.secondary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=WRONG")
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, broken, options=options(), retry_total=0
    )
    for _ in range(2):
        with pytest.raises(NoBacklogQueuesError):
            client.pair()
    assert not client.is_paired
    client.close()


@pytest.mark.promise("P7")
def test_senders_made_before_pairing_are_protected_after_it(pair: Pair) -> None:
    client = paired(pair, by_hand())
    sender = client.get_queue_sender("orders")
    sender.send_messages(text(1))
    client.pair()
    client.fail_over("/Orders/")
    sender.send_messages(text(2))

    assert client.statistics().to_backlog == 1
    assert list(client.health()) == ["orders"]
    client.close()
    assert bodies(pair.primary, "orders", 1) == {"1": 1}, "P7: receivers read the primary only"


def test_healthy_pairing_adds_no_operation(pair: Pair) -> None:
    with paired(pair) as client, client.get_queue_sender("orders") as sender:
        for number in range(10):
            sender.send_messages(text(number))
        sender.send_messages([text(10), text(11)])
        statistics = client.statistics()

    assert statistics.operations_primary == statistics.sends == 12
    assert (statistics.operations_backlog, statistics.pings) == (0, 0)
    assert operations(pair.primary) == {("orders", "send"): 12}, "the broker has counted the same"


OUR_CALLS_MAX = 6
"""Calls of our functions in one healthy send on threads. Two of them stand in for functions of the SDK."""
OUR_CALLS_AIO_MAX = 8
"""Likewise on asyncio."""


@contextmanager
def counted_calls(ours: list[str], others: list[str]) -> Iterator[None]:
    """What pairing costs, counted instead of timed: a busy machine changes times. A coroutine that goes on is no further call."""
    frames: set[FrameType] = set()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame not in frames:
            frames.add(frame)
            is_ours = f"{os.sep}pairbus{os.sep}" in frame.f_code.co_filename
            (ours if is_ours else others).append(frame.f_code.co_qualname)

    gc.disable()  # what other tests left behind would be finalized in between, and be counted
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


PATIENT: dict[str, Any] = {"failover_interval": timedelta(seconds=10)}


def test_a_healthy_send_goes_through_few_functions_of_ours(pair: Pair) -> None:
    ours: list[str] = []
    of_the_sdk: dict[bool, list[str]] = {True: [], False: []}
    with (
        pair.primary.client() as official,
        official.get_queue_sender("orders") as plain,
        paired(pair, options(**PATIENT)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for one in (plain, sender):
            one.send_messages(text(1))
            message = text(2)
            with counted_calls(ours, of_the_sdk[one is sender]):
                one.send_messages(message)

    assert len(ours) <= OUR_CALLS_MAX, ours
    assert len(of_the_sdk[True]) <= len(of_the_sdk[False]), "the SDK has nothing more to do"


async def test_a_healthy_send_on_asyncio_goes_through_few_functions_of_ours(pair: Pair) -> None:
    ours: list[str] = []
    client = AsyncPairedClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, options=options(**PATIENT)
    )
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(text(1))
        message = text(2)
        with counted_calls(ours, []):
            await sender.send_messages(message)

    assert len(ours) <= OUR_CALLS_AIO_MAX, ours


@pytest.mark.promise("D6")
def test_a_detoured_message_is_four_charges_on_the_brokers_own_count(pair: Pair) -> None:
    with paired(pair, by_hand(backlog_queue_count=1, enable_syphon=True)) as client:
        client.fail_over("orders")
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(text(1))
        client.mark_healthy("orders")
        wait_until(lambda: client.statistics().restored == 1, "home")
        assert client.statistics().operations_primary == 1
    assert bodies(pair.primary, "orders", 1) == {"1": 1}

    backlog = "contoso/x-servicebus-transfer/0"
    at_secondary, at_primary = operations(pair.secondary), operations(pair.primary)
    charges = [at_secondary[backlog, "send"], at_secondary[backlog, "receive"]]
    charges += [at_primary["orders", "send"], at_primary["orders", "receive"]]
    assert charges == [1, 1, 1, 1]


@pytest.mark.promise("P13")
def test_the_size_guard_names_the_overhead_and_headroom_tells_beforehand(pair: Pair) -> None:
    from pairbus import MessageTooLargeForBacklogError

    with paired(pair, by_hand()) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        fits = text("x" * 261_000)
        assert client.headroom(fits, "orders") > 0
        sender.send_messages(fits)
        large = text("x" * 262_000)
        assert client.headroom(large, "orders") < 0
        with pytest.raises(MessageTooLargeForBacklogError, match="for parking"):
            sender.send_messages(large)
        assert client.backlog_queue_count == 2


def test_schedule_while_failed_over_can_be_cancelled_until_it_has_left(pair: Pair) -> None:
    from datetime import UTC, datetime

    from pairbus import ScheduledMessageGoneError

    with paired(pair, by_hand()) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        due = datetime.now(UTC) + timedelta(hours=1)
        handles = sender.schedule_messages([text(1), text(2)], due)
        sender.cancel_scheduled_messages(handles[0])
        with pytest.raises(ScheduledMessageGoneError):
            sender.cancel_scheduled_messages(handles[0])
        client.mark_healthy("orders")
        numbers = sender.schedule_messages(text(3), due)
        sender.cancel_scheduled_messages(numbers)

        assert all(handle < 0 for handle in handles)
        assert numbers[0] > 0


def test_cancel_takes_the_one_that_is_meant_though_others_have_its_id(pair: Pair) -> None:
    from datetime import UTC, datetime

    with paired(pair, by_hand(backlog_queue_count=1)) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        due = datetime.now(UTC) + timedelta(hours=1)
        sender.send_messages(text("plain", message_id="same"))
        handles = [
            sender.schedule_messages(text(name, message_id="same"), due)[0] for name in ("first", "second")
        ]

        sender.cancel_scheduled_messages(handles[1], timeout=20)

        with (
            pair.secondary.client() as official,
            official.get_queue_receiver("contoso/x-servicebus-transfer/0") as receiver,
        ):
            assert [str(message) for message in receiver.peek_messages(10)] == ["plain", "first"]


@pytest.mark.promise("P24")
def test_threads_that_cancel_at_once_take_out_every_message_that_is_in_the_backlog(pair: Pair) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from datetime import UTC, datetime

    with paired(pair, by_hand(backlog_queue_count=1)) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        due = datetime.now(UTC) + timedelta(hours=1)
        handles = sender.schedule_messages([text(number) for number in range(6)], due)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(sender.cancel_scheduled_messages, handles))

        with (
            pair.secondary.client() as official,
            official.get_queue_receiver("contoso/x-servicebus-transfer/0") as receiver,
        ):
            assert receiver.peek_messages(10) == []


def test_a_cancel_ends_in_time_when_the_secondary_is_silent() -> None:
    from datetime import UTC, datetime

    from azure.servicebus.exceptions import OperationTimeoutError

    with (
        Pair(Namespace("contoso", queues=["orders"]), Namespace("fabrikam", process=True)) as pair,
        paired(pair, by_hand(backlog_queue_count=1)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        client.fail_over("orders")
        handles = sender.schedule_messages([text(1)], datetime.now(UTC) + timedelta(hours=1))
        pair.secondary.pause()
        try:
            with pytest.raises(OperationTimeoutError, match="could not be taken out"):
                sender.cancel_scheduled_messages(handles, timeout=1)
        finally:
            pair.secondary.resume()

        sender.cancel_scheduled_messages(handles)


@pytest.mark.promise("P5")
def test_a_cancel_says_when_the_primary_may_hold_another_copy() -> None:
    from datetime import UTC, datetime

    from pairbus import CancelInDoubtError

    with (
        Pair(Namespace("contoso", queues=["orders"], process=True), Namespace("fabrikam")) as pair,
        paired(pair, options(backlog_queue_count=1)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(text("the link is open"))
        # The link for schedules is another one.
        sender.cancel_scheduled_messages(
            sender.schedule_messages(text(0), datetime.now(UTC) + timedelta(hours=1))
        )
        pair.primary.pause()
        try:
            handles = sender.schedule_messages(
                text(1, message_id="victim"), datetime.now(UTC) + timedelta(hours=1), timeout=12
            )
            with pytest.raises(CancelInDoubtError, match="victim.*had no answer") as caught:
                sender.cancel_scheduled_messages(handles)
        finally:
            pair.primary.resume()

        assert caught.value.message_ids == ["victim"]
        with (
            pair.secondary.client() as official,
            official.get_queue_receiver("contoso/x-servicebus-transfer/0") as receiver,
        ):
            assert receiver.peek_messages(10) == []


def test_a_schedule_without_a_time_gives_handles_as_the_official_client_does(pair: Pair) -> None:
    with paired(pair, by_hand()) as client, client.get_queue_sender("orders") as sender:
        numbers = sender.schedule_messages(text(1), None)  # type: ignore[arg-type]

        assert [number > 0 for number in numbers] == [True]


def test_the_entity_that_is_gone_refuses_until_it_is_back(pair: Pair) -> None:
    from azure.servicebus.exceptions import MessagingEntityNotFoundError

    from pairbus import EntityGoneError

    with paired(pair) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(text(1))
        with pair.primary.administration_client() as management:
            management.delete_queue("orders")
        sender.send_messages(text(2), timeout=30)
        wait_until(lambda: client.health()["orders"].state.value == "refusing", "refusing")
        with pytest.raises(EntityGoneError) as caught:
            sender.send_messages(text(3))
        assert isinstance(caught.value.__cause__, MessagingEntityNotFoundError)
        assert client.health()["orders"].why.startswith("MessagingEntityNotFoundError: status 404")
        pair.primary.create_queue("orders")
        wait_until(lambda: client.health()["orders"].state.value == "healthy", "healthy again")
        sender.send_messages(text(4))
        assert kinds(client.events(), Kind.REFUSED) == ["orders"]


@pytest.mark.promise("P43")
def test_when_one_side_is_closed_alone_the_other_is_faulted_after_five_seconds(pair: Pair) -> None:
    import time

    from pairbus import PartnerClosedError

    with paired(pair, options(enable_syphon=True)) as client, client.get_queue_sender("orders") as sender:
        begun = time.monotonic()
        client.secondary.close()
        try:
            sender.send_messages(text(1))
        except PartnerClosedError:
            assert time.monotonic() - begun > 4.9, "only a machine that stood still comes too late"
        wait_until(lambda: kinds(client.events(), Kind.FAULTED), "faulted")

        assert time.monotonic() - begun > 4.9
        with pytest.raises(PartnerClosedError):
            sender.send_messages(text(2))


@pytest.mark.parametrize("holder", ["backlog", "drain"])
def test_the_audit_of_the_secondary_says_that_a_parked_message_was_cancelled(holder: str) -> None:
    """Also if the drain of the client holds the message: a certificate must not call it lost."""
    from datetime import UTC, datetime

    import pyarrow.parquet

    settings = options(backlog_queue_count=1, enable_syphon=holder == "drain")
    with Pair(
        Namespace("contoso", queues=["orders"], process=True), Namespace("fabrikam", process=True, audit=True)
    ) as pair:
        with paired(pair, settings) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(text("the link is open"))
            pair.primary.kill()
            sender.send_messages(text("parked"))  # failed over: no copy of what follows can be at the primary
            handles = sender.schedule_messages([text(1), text(2)], datetime.now(UTC) + timedelta(hours=1))
            sender.cancel_scheduled_messages(handles[0])
        pair.secondary.stop()

        parts = pair.secondary.data.glob("messages-audit/hour=*/*.parquet")
        rows = [
            row for part in parts for row in pyarrow.parquet.read_table(part, partitioning=None).to_pylist()
        ]
        kinds = sorted(row["kind"] for row in rows if row["destination"] == "orders")
        assert kinds == ["cancelled", "sent", "sent", "sent"]
