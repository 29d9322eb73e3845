"""End to end with two real broker processes: killed, stopped, silent, cut. P1, P2, P5, P9, P23, P26, P36."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus import ClientClosedError, Health, aio, outcome_of
from pairbus.testing import Pair, Queue
from tests.integration.pairing.kit import bodies, options, paired, text
from tests.waiting import until, wait_until

pytestmark = pytest.mark.timeout(400)

SEND_SECONDS = 12
"""Half of it must suffice for a detour, on a busy machine too."""
LATE_SECONDS_MAX = 30
"""By how much a machine may be busy with others where a time is promised."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    once = Queue(
        "once",
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=10),
    )
    with Pair(queues=["orders", once]) as started:
        yield started


def strike_and_heal(pair: Pair, kind: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """How an outage begins and ends."""
    primary = pair.primary
    return {
        "killed": (primary.kill, primary.restart),
        "stopped": (primary.pause, primary.resume),
        "silent": (primary.faults.black_hole, primary.faults.clear),
        "cut": (primary.faults.cut, primary.faults.clear),
    }[kind]


# The short form kills and silences, and stops and cuts with a few messages below; `make integration` does all in full.
@pytest.mark.promise("P1", "P2", "P23", "P26", "P36", "P41", "P45")
@pytest.mark.parametrize(
    "kind",
    [
        "killed",
        pytest.param("stopped", marks=pytest.mark.slow),
        "silent",
        pytest.param("cut", marks=pytest.mark.slow),
    ],
)
def test_every_accepted_send_arrives_when_the_primary_is(kind: str, pair: Pair) -> None:
    strike, heal = strike_and_heal(pair, kind)
    accepted: dict[str, list[str]] = {"orders": [], "once": []}
    in_doubt = 0
    with paired(pair, options(enable_syphon=True)) as client:

        def send(queue: str, first: int, count: int) -> None:
            nonlocal in_doubt
            with client.get_queue_sender(queue) as sender:
                for number in range(first, first + count):
                    try:
                        sender.send_messages(text(number, session_id=f"s{number}"), timeout=SEND_SECONDS)
                    except ServiceBusError as error:
                        in_doubt += outcome_of(error) == "unknown"
                    else:
                        accepted[queue].append(str(number))

        for queue in accepted:
            send(queue, 0, 5)
        strike()
        threads = [threading.Thread(target=send, args=(queue, 5, 20)) for queue in accepted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
        assert {report.state for report in client.health().values()} == {Health.FAILED_OVER}
        heal()
        wait_until(lambda: all(r.state is Health.HEALTHY for r in client.health().values()), "P26: recovery")
        for queue in accepted:
            send(queue, 25, 5)
        statistics = client.statistics()
        wait_until(lambda: client.statistics().restored >= statistics.to_backlog, "P41: the backlog drains")
        statistics = client.statistics()

    assert statistics.to_backlog >= 30
    assert (
        statistics.sends
        == statistics.to_primary + statistics.to_backlog + statistics.failed + statistics.unknown
    )
    assert len(accepted["orders"]) == len(accepted["once"]) == 30
    found = bodies(pair.primary, "orders", 30)
    assert set(accepted["orders"]) <= set(found)
    assert max(found.values()) <= 2 + statistics.in_doubt, "P36: one copy, one in-doubt attempt"
    assert set(bodies(pair.primary, "once", 30).values()) == {1}, "P2"


@pytest.mark.promise("P1", "P2", "P26", "P41")
def test_a_few_sends_arrive_when_the_primary_is_stopped_and_when_it_is_cut(pair: Pair) -> None:
    with (
        paired(pair, options(enable_syphon=True, backlog_queue_count=1)) as client,
        client.get_queue_sender("once") as sender,
    ):
        for number, kind in enumerate(("stopped", "cut")):
            strike, heal = strike_and_heal(pair, kind)
            sender.send_messages(text(f"{number} before"))
            strike()
            for step in range(3):
                sender.send_messages(text(f"{number} during {step}"), timeout=4)
            assert client.health()["once"].state is Health.FAILED_OVER, kind
            heal()
            wait_until(lambda: client.health()["once"].state is Health.HEALTHY, f"P26: {kind}")
        wait_until(lambda: client.statistics().restored >= 6, "P41: the backlog drains")

    found = bodies(pair.primary, "once", 8)
    assert len(found) == 8
    assert set(found.values()) == {1}, "P2"


@pytest.mark.promise("P6")
def test_both_down_raises_in_time_with_both_errors(pair: Pair) -> None:
    with paired(pair) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(text(0))
        pair.primary.kill()
        pair.secondary.kill()
        begun = time.monotonic()

        with pytest.raises(ServiceBusError) as caught:
            sender.send_messages(text(1), timeout=6)

        assert time.monotonic() - begun < 6 + LATE_SECONDS_MAX
        assert isinstance(caught.value.__cause__, ServiceBusError)
        pair.secondary.restart()
        wait_until(lambda: _sends(sender), "P33: the secondary is used again")
        pair.primary.restart()
        assert client.statistics().evictions >= 1


def _sends(sender: object) -> bool:
    try:
        sender.send_messages(text(2), timeout=SEND_SECONDS)  # type: ignore[attr-defined]
    except ServiceBusError:
        return False
    return True


@pytest.mark.promise("P32")
def test_a_backlog_queue_that_refuses_leaves_the_rotation_for_all_and_comes_back(pair: Pair) -> None:
    with paired(pair, seed=1) as client:
        first, second = client.get_queue_sender("orders"), client.get_queue_sender("orders")
        pair.primary.faults.refuse("orders")
        first.send_messages(text(0))
        bad = client.health()["orders"].backlog_queue
        assert bad is not None
        pair.secondary.faults.refuse(bad)
        first.send_messages(text(1), timeout=30)
        assert client.backlog_queue_count == 1
        second.send_messages(text(2), timeout=30)
        assert client.health()["orders"].backlog_queue != bad
        pair.secondary.faults.clear()

        def comes_back() -> bool:
            first.send_messages(text(3), timeout=30)
            return client.backlog_queue_count == 2

        wait_until(comes_back, "the queue is re-admitted")


@pytest.mark.promise("P44")
def test_close_leaves_no_thread_and_a_send_after_it_is_refused(pair: Pair) -> None:
    before = threading.active_count()
    client = paired(pair, options(enable_syphon=True))
    with client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(text(1))
        client.fail_over("orders")
        begun = time.monotonic()
    client.close()

    assert time.monotonic() - begun < 15 + LATE_SECONDS_MAX, "a poll of 15 minutes does not delay it"
    with pytest.raises(ClientClosedError):
        sender.send_messages(text(2))
    wait_until(lambda: threading.active_count() <= before, "threads are gone")
    pair.secondary.client()


async def test_the_asynchronous_twin_fails_over_recovers_drains_and_leaves_no_task(pair: Pair) -> None:
    before = len(asyncio.all_tasks())
    client = aio.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        options=options(enable_syphon=True),
        retry_total=0,
    )
    async with client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(text(0))
            pair.primary.kill()
            await sender.send_messages([text(1), text(2)], timeout=SEND_SECONDS)
            await sender.send_messages(text(3), timeout=SEND_SECONDS)
            pair.primary.restart()
            await until(lambda: client.statistics().restored >= 3, "the drain")
            await sender.send_messages(text(4))
        assert client.statistics().to_backlog == 3
    assert len(asyncio.all_tasks()) == before
    found = await asyncio.to_thread(bodies, pair.primary, "orders", 5)
    assert sorted(found) == ["0", "1", "2", "3", "4"]


def test_memory_returns_to_baseline_after_close(pair: Pair) -> None:
    kept: list[weakref.ref[object]] = []
    for _ in range(2):
        with paired(pair, options(enable_syphon=True)) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(text(1))
            client.fail_over("orders")
            sender.send_messages(text(2))
            kept += [weakref.ref(client._state), weakref.ref(sender), weakref.ref(client)]
        del client, sender

    def is_gone() -> bool:
        gc.collect()
        return not [reference for reference in kept if reference() is not None]

    wait_until(is_gone, "nothing of a closed client is kept")


async def test_the_asynchronous_twin_is_not_held_by_a_silent_primary(pair: Pair) -> None:
    client = aio.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, options=options(), retry_total=0
    )
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(text(0))
        pair.primary.pause()
        begun = time.monotonic()
        await sender.send_messages(text(1), timeout=SEND_SECONDS)
        assert time.monotonic() - begun < SEND_SECONDS + LATE_SECONDS_MAX
        assert client.statistics().to_backlog == 1
        pair.primary.resume()


def sockets() -> list[socket.socket]:
    return [found for found in gc.get_objects() if isinstance(found, socket.socket)]


def dead_sockets(earlier: list[socket.socket]) -> list[socket.socket]:
    """Sockets of connections that have ended and are still open here, but for those of other tests."""
    known = {id(found) for found in earlier}
    return [
        found
        for found in sockets()
        if id(found) not in known and found.proto == socket.IPPROTO_TCP and _is_dead(found)
    ]


def _is_dead(found: socket.socket) -> bool:
    if found.fileno() < 0 or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    try:
        found.getpeername()
    except OSError:
        return True
    return False


def test_no_socket_of_an_outage_waits_for_the_garbage_collector(pair: Pair) -> None:
    gc.collect()
    earlier = sockets()
    gc.disable()
    try:
        with paired(pair, options(failover_interval=timedelta(0))) as client:
            sender = client.get_queue_sender("orders")
            sender.send_messages(text("before"), timeout=SEND_SECONDS)
            pair.primary.kill()
            sender.send_messages(text("during"), timeout=SEND_SECONDS)

            wait_until(
                lambda: client.statistics().pings > 0 and not dead_sockets(earlier), "they are closed", 15
            )
    finally:
        gc.enable()
