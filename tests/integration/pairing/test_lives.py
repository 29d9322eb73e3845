"""A paired client is entered again after it was closed: each life is as the first one."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import ClientClosedError, PairedServiceBusClient, aio
from pairbus.testing import Pair
from tests.integration.pairing.kit import bodies, options, paired, text
from tests.waiting import until, wait_until

LIVES = 5
SEND_SECONDS = 30


def paired_aio(pair: Pair, **changes: object) -> aio.PairedServiceBusClient:
    return aio.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        options=options(**changes),
        retry_total=0,
    )


def clients_threads() -> set[threading.Thread]:
    """The threads but for those of the brokers, of which a new start makes others."""
    brokers = ("contoso-", "fabrikam-", "pairbus-contoso", "pairbus-fabrikam", "pairbus-segments", "asyncio_")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(brokers)}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.promise("P44")
def test_a_client_sends_in_one_block_and_receives_in_the_next(pair: Pair) -> None:
    client = paired(pair)
    with client:
        first_name = client.factory_name
        with client.get_queue_sender("orders") as former:
            former.send_messages(text(1))
    with pytest.raises(ClientClosedError, match="enter it again"):
        client.get_queue_sender("orders")

    with client:
        assert client.is_paired
        assert not client.is_closed
        assert client.factory_name != first_name
        assert client.statistics().sends == 0
        with client.get_queue_receiver("orders", max_wait_time=20) as receiver:
            (message,) = receiver.receive_messages()
            receiver.complete_message(message)
        with pytest.raises(ClientClosedError, match="get a new one"):
            former.send_messages(text(2))
    assert str(message) == "1"
    assert client.is_closed


@pytest.mark.promise("P44")
@pytest.mark.promise("P1")
def test_an_outage_in_the_second_life_loses_nothing_and_closing_leaves_nothing(pair: Pair) -> None:
    before = clients_threads()
    client = paired(pair, options(enable_syphon=True))
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(text(0))
    client.pair()
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(text(1))
        pair.primary.kill()
        sender.send_messages([text(2), text(3)], timeout=SEND_SECONDS)
        pair.primary.restart()
        wait_until(lambda: client.statistics().restored >= 2, "the drain of the second life")
        sender.send_messages(text(4), timeout=SEND_SECONDS)
    client.close()

    wait_until(lambda: clients_threads() <= before, "threads are gone")
    assert sorted(bodies(pair.primary, "orders", 5)) == ["0", "1", "2", "3", "4"]


@pytest.mark.promise("P44")
async def test_the_asynchronous_twin_lives_again_through_an_outage_and_leaves_no_task(pair: Pair) -> None:
    before = len(asyncio.all_tasks())
    client = paired_aio(pair, enable_syphon=True)
    async with client, client.get_queue_sender("orders") as former:
        await former.send_messages(text(0))
    async with client:
        with pytest.raises(ClientClosedError):
            await former.send_messages(text("never"))
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(text(1))
            await asyncio.to_thread(pair.primary.kill)
            await sender.send_messages([text(2), text(3)], timeout=SEND_SECONDS)
            await asyncio.to_thread(pair.primary.restart)
            await until(lambda: client.statistics().restored >= 2, "the drain of the second life")

    assert len(asyncio.all_tasks()) == before
    assert sorted(await asyncio.to_thread(bodies, pair.primary, "orders", 4)) == ["0", "1", "2", "3"]


@pytest.mark.promise("P44")
def test_a_client_lives_once_per_event_loop(pair: Pair) -> None:
    client = paired_aio(pair)

    async def once(number: int) -> None:
        async with client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(text(number))
            client.fail_over("orders")
            await sender.send_messages(text(number))

    for number in range(2):
        asyncio.run(once(number))

    assert client.statistics().to_backlog == 1
    assert sorted(bodies(pair.primary, "orders", 2)) == ["0", "1"]


@pytest.mark.promise("P44")
def test_many_lives_leave_no_thread_no_socket_and_no_state(pair: Pair, tmp_path: Path) -> None:
    client = paired(pair, options(enable_syphon=True, order="session", spool=tmp_path / "spool"))
    former: list[weakref.ref[object]] = []

    def live(client: PairedServiceBusClient) -> None:
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("m", session_id="s"))
            client.fail_over("orders")
            sender.send_messages(ServiceBusMessage("m", session_id="s"))
            former.append(weakref.ref(client._state))

    live(client)
    threads, files = threading.active_count(), open_files()
    for _ in range(LIVES):
        live(client)

    wait_until(lambda: threading.active_count() <= threads, "threads are gone")
    gc.collect()
    assert [one() for one in former[:-1]] == [None] * LIVES
    wait_until(lambda: open_files() <= files, "sockets and files are closed")


@pytest.mark.promise("P13")
def test_the_next_life_replays_the_spool_of_the_one_before(pair: Pair, tmp_path: Path) -> None:
    client = paired(pair, options(spool=tmp_path / "spool"))
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(text(0))
        pair.primary.kill()
        pair.secondary.kill()
        sender.send_messages(text(1), timeout=SEND_SECONDS)
        assert client.statistics().spooled == 1
    pair.primary.restart()
    pair.secondary.restart()
    with client:
        wait_until(lambda: client.statistics().spool_messages == 0, "the spool is empty")

    assert sorted(bodies(pair.primary, "orders", 2)) == ["0", "1"]


def of_session(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(str(number), session_id="one")


@pytest.mark.promise("P44")
def test_sends_beside_the_pairing_of_the_next_life_come_behind_what_its_spool_holds(
    pair: Pair, tmp_path: Path
) -> None:
    client = paired(pair, options(order="session", spool=tmp_path / "spool"))
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(of_session(0))
        pair.primary.kill()
        pair.secondary.kill()
        for number in (1, 2):
            sender.send_messages(of_session(number), timeout=SEND_SECONDS)
    pair.primary.restart()
    pair.secondary.restart()

    pairing = threading.Thread(target=client.pair)
    pairing.start()
    number = 3
    while number < 8:
        try:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(of_session(number), timeout=SEND_SECONDS)
            number += 1
        except ClientClosedError:  # the next life has not begun
            os.sched_yield()
    pairing.join()
    client.close()

    assert list(bodies(pair.primary, "orders", number)) == [str(one) for one in range(number)]


@pytest.mark.promise("P44")
async def test_the_asynchronous_twin_keeps_the_order_beside_its_pairing(pair: Pair, tmp_path: Path) -> None:
    client = paired_aio(pair, order="session", spool=tmp_path / "spool")
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(of_session(0))
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.secondary.kill)
        for number in (1, 2):
            await sender.send_messages(of_session(number), timeout=SEND_SECONDS)
    await asyncio.to_thread(pair.primary.restart)
    await asyncio.to_thread(pair.secondary.restart)

    pairing = asyncio.create_task(client.pair())
    number = 3
    while number < 8:
        try:
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(of_session(number), timeout=SEND_SECONDS)
            number += 1
        except ClientClosedError:  # the next life has not begun
            await asyncio.sleep(0)
    await pairing
    await client.close()

    found = await asyncio.to_thread(bodies, pair.primary, "orders", number)
    assert list(found) == [str(one) for one in range(number)]


@pytest.mark.promise("P44")
def test_a_client_that_was_dropped_is_gone_once_its_spool_is_empty(pair: Pair, tmp_path: Path) -> None:
    def use_and_drop() -> weakref.ref[PairedServiceBusClient]:
        client = paired(pair, options(spool=tmp_path / "spool"))
        pair.primary.kill()
        pair.secondary.kill()
        client.pair()
        client.get_queue_sender("orders").send_messages(text(0), timeout=SEND_SECONDS)
        return weakref.ref(client)

    dropped = use_and_drop()
    pair.primary.restart()
    pair.secondary.restart()

    def is_gone() -> bool:
        gc.collect()
        return dropped() is None

    wait_until(is_gone, "the client is gone")
    assert list(bodies(pair.primary, "orders", 1)) == ["0"]
