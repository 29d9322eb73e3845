"""The life of a paired client around false official ones, on a false clock: pairing, pings, closing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ServiceResponseTimeoutError
from azure.servicebus import exceptions as sdk

from pairbus import (
    AlreadyPairedError,
    ClientClosedError,
    Health,
    NoBacklogQueuesError,
    PartnerClosedError,
    SendAvailabilityOptions,
)
from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.client.backlog.later import pair_later
from pairbus.pairing.client.backlog.management import Management
from pairbus.pairing.client.registry import pairings
from pairbus.pairing.events import Event, Kind
from pairbus.pairing.naming import TRANSFER_SEGMENT
from pairbus.pairing.rules.order_values import Route
from pairbus.pairing.rules.queues import BacklogQueue
from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime
from pairbus.sdk.management.admin import NoManageRight, aio_admin_client
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import (
    QUEUES,
    Bench,
    FakeClient,
    FakeSender,
    accept,
    refuse,
    silence,
    text,
)

REFUSED = sdk.ServiceBusConnectionError()


class Hosting(PairedServiceBusClient):
    """A client that would host pumps."""

    started = 0
    stopped = 0
    failure: Exception | None = None

    async def _start_drain(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.started += 1

    async def _stop_drain(self, seconds: float) -> None:
        self.stopped += 1


def hosting(**options: Any) -> tuple[Bench, Hosting]:
    async def usable_queues(**_: object) -> list[str]:
        await asyncio.sleep(1)
        return QUEUES

    bench = Bench(Hosting, enable_syphon=True, **options)
    assert isinstance(bench.client, Hosting)
    bench.client._setup.usable_queues = usable_queues  # type: ignore[method-assign]
    return bench, bench.client


@pytest.mark.promise("P30")
async def test_a_client_whose_pumps_do_not_start_is_not_paired_and_can_be_paired_again(
    loop: VirtualLoop,
) -> None:
    _, client = hosting()
    client.failure = PermissionError("no place for a ledger")
    with pytest.raises(PermissionError):
        await client.pair()
    before = client.is_paired
    client.failure = None

    await client.pair()

    assert (before, client.is_paired) == (False, True)
    with pytest.raises(AlreadyPairedError):
        await client.pair()
    await client.close()


@pytest.mark.promise("P44")
async def test_a_client_that_is_closed_while_it_pairs_starts_no_pumps(loop: VirtualLoop) -> None:
    _, client = hosting()
    pairing = asyncio.ensure_future(client.pair())
    await asyncio.sleep(0.5)
    await client.close()
    with pytest.raises(ClientClosedError):
        await pairing

    assert client.started == 0
    assert not client.is_paired
    pairings.enter("p.servicebus.windows.net:5671", "s.servicebus.windows.net:5671")
    pairings.leave("p.servicebus.windows.net:5671", "s.servicebus.windows.net:5671")


@pytest.mark.promise("P30")
async def test_a_drain_that_does_not_start_once_the_secondary_answers_is_reported_and_tried_again(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    _, client = hosting(spool=tmp_path, ping_primary_interval=timedelta(seconds=10))
    found, answers = client._setup.usable_queues, iter([REFUSED])

    async def usable_queues(**_: object) -> list[str]:
        for cause in answers:
            raise NoBacklogQueuesError("it does not answer") from cause
        return await found()

    client._setup.usable_queues = usable_queues  # type: ignore[method-assign]
    client.failure = PermissionError("no place for a ledger")
    await client.pair()
    await asyncio.sleep(35)

    stopped = [event for event in client.events() if event.kind is Kind.SYPHON_STOPPED]
    assert [event.is_loud for event in stopped] == [True]
    assert "no place for a ledger" in stopped[0].text
    assert client.is_paired

    client.failure = None
    await asyncio.sleep(15)
    assert client.started == 1
    await client.close()


@pytest.mark.promise("P15")
@pytest.mark.parametrize("policy", ["raise", "overtake"])
async def test_the_fence_policy_applies_in_time_to_a_client_that_has_not_seen_its_secondary(
    loop: VirtualLoop, tmp_path: Path, policy: str
) -> None:
    async def unreachable(**_: object) -> list[str]:
        raise NoBacklogQueuesError("it does not answer") from REFUSED

    bench = Bench(
        order="session",
        fence_policy=policy,
        fence_timeout=timedelta(seconds=90),
        ping_primary_interval=timedelta(seconds=60),
        spool=tmp_path,
    )
    client = bench.client
    assert client._spooling is not None
    client._spooling.open()
    client._setup.usable_queues = unreachable  # type: ignore[method-assign]
    client._state.paired_with([])
    client._runtime.spawn(pair_later, client)
    book = client._state.order

    await asyncio.sleep(89)
    assert book.route(("orders", "s")) is Route.PARK
    await asyncio.sleep(2)

    assert book.route(("orders", "s")) is (Route.REFUSE if policy == "raise" else Route.DIRECT)
    expected = Kind.FENCE_TIMED_OUT if policy == "raise" else Kind.FENCE_OVERTAKEN
    assert [event.subject for event in client.events() if event.kind is expected] == [client._state.secondary]
    await asyncio.sleep(300)
    assert sum(event.kind is expected for event in client.events()) == 1
    await client.close()


@pytest.mark.promise("P44")
async def test_close_returns_in_time_with_many_senders_whose_peer_is_gone(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    senders = [client.get_queue_sender(f"q{number}") for number in range(40)]
    for sender in senders:
        await sender.send_messages(text(1))
    bench.primary.closing_s = 100.0
    begun = loop.now_ms()

    await client.close(timeout=9)

    assert loop.now_ms() - begun <= 9_000
    await client.close()


async def test_closing_the_primary_side_stops_pings_and_pumps_and_sends_are_refused(
    loop: VirtualLoop,
) -> None:
    bench, client = hosting()
    await client.pair()
    bench.primary.answer = refuse(REFUSED)
    sender = client.get_queue_sender("orders")
    await sender.send_messages(text(1))
    await asyncio.sleep(25)
    assert client.statistics().pings == 3
    await client.primary.close()
    await asyncio.sleep(1)
    pings = client.statistics().pings

    with pytest.raises(ClientClosedError):
        await sender.send_messages(text(2))
    await asyncio.sleep(3)
    assert client.stopped == 1
    assert bench.parked() == 1, "never detoured"
    await asyncio.sleep(100)
    assert client.statistics().pings == pings
    await client.close()


@pytest.mark.promise("P43")
async def test_the_five_seconds_and_an_error_of_its_own_for_each_who_meets_the_fault(
    loop: VirtualLoop,
) -> None:
    bench, client = hosting()
    await client.pair()
    sender = client.get_queue_sender("orders")
    await client.secondary.close()
    await asyncio.sleep(4.9)
    await sender.send_messages(text(1))
    assert not client.is_closed
    await asyncio.sleep(0.2)

    caught = []
    for _ in range(2):
        with pytest.raises(PartnerClosedError, match="s.servicebus.windows.net") as error:
            await sender.send_messages(text(2))
        caught.append(error.value)
    assert caught[0] is not caught[1]
    assert bench.primary.closed == 1, "the other side is faulted"
    assert [event.kind for event in client.events()].count(Kind.FAULTED) == 1
    await client.close()


@pytest.mark.promise("P43")
async def test_nothing_is_faulted_when_both_sides_are_closed_within_the_time(loop: VirtualLoop) -> None:
    _, client = hosting()
    await client.pair()
    await client.secondary.close()
    await asyncio.sleep(3)
    await client.close()
    await asyncio.sleep(10)

    assert Kind.FAULTED not in [event.kind for event in client.events()]


@pytest.mark.promise("P26")
async def test_an_entity_recovers_though_the_journal_and_the_listener_fail(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()

    def full(event: Event, at_ms: int) -> None:
        raise OSError(28, "No space left on device")

    client._state.journal = full
    bench.primary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text(1))
    assert bench.parked() == 1
    bench.primary.answer = lambda sender: asyncio.sleep(0)
    await asyncio.sleep(20)

    assert client.health()["orders"].state is Health.HEALTHY
    await client.close()


@pytest.mark.promise("P26")
async def test_a_watch_that_stumbles_goes_on(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    tell = client._state.emit
    failures = [RuntimeError("odd"), RuntimeError("odd again")]

    def stumbling(kind: Kind, *arguments: Any, **data: Any) -> None:
        if kind is Kind.PING_SENT and failures:
            raise failures.pop()
        tell(kind, *arguments, **data)

    client._state.emit = stumbling  # type: ignore[method-assign]
    client.fail_over("orders")
    await asyncio.sleep(60)

    assert failures == []
    assert client.health()["orders"].state is Health.HEALTHY
    assert bench.primary.stored["orders"], "a ping arrived"
    await client.close()


@pytest.mark.promise("P26")
async def test_a_primary_that_takes_longer_to_answer_than_the_interval_recovers(loop: VirtualLoop) -> None:
    """Opening a link over TLS takes a second and more; each ping opens one."""

    bench = Bench(ping_primary_interval=timedelta(seconds=1))
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text(1))
    bench.primary.answer = lambda sender: asyncio.sleep(2.5)
    await asyncio.sleep(6)

    assert client.health()["orders"].state is Health.HEALTHY
    await client.close()


@pytest.mark.promise("P25")
async def test_an_entity_whose_answer_takes_longer_than_a_ping_waits_is_found_all_the_same(
    loop: VirtualLoop,
) -> None:
    async def slow(sender: FakeSender) -> None:
        await asyncio.sleep(12)
        await accept(sender)

    bench = Bench(ping_primary_interval=timedelta(seconds=1))
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text(1))
    bench.primary.answer = slow
    await asyncio.sleep(60)

    assert client.health()["orders"].state is Health.HEALTHY
    await client.close()


@pytest.mark.promise("P22")
async def test_one_ping_per_interval_and_one_in_flight_also_when_none_is_answered(loop: VirtualLoop) -> None:
    bench = Bench(ping_primary_interval=timedelta(seconds=20))
    client = bench.paired()
    bench.primary.answer = silence
    await client.get_queue_sender("orders").send_messages(text(1), timeout=10)
    begun = loop.now_ms()
    await asyncio.sleep(605)

    assert client.statistics().pings == 31
    assert loop.now_ms() - begun == 605_000
    client.ping_primary_interval = timedelta(seconds=30)
    before = client.statistics().pings
    await asyncio.sleep(600)
    assert client.statistics().pings - before == 20
    await client.close()


async def test_a_ping_that_failed_is_not_called_answered(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text(1))
    await asyncio.sleep(25)
    kinds = [event.kind for event in client.events()]
    assert Kind.PING_FAILED in kinds
    assert Kind.PING_ANSWERED not in kinds
    bench.primary.answer = accept
    await asyncio.sleep(25)

    assert client.events()[-1].kind is Kind.RECOVERED
    assert client.events()[-2].kind is Kind.PING_ANSWERED
    await client.close()


async def test_the_answer_to_a_ping_counts_before_its_link_is_closed(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text(1))
    bench.primary.answer = accept
    bench.primary.closing_s = 2.0
    await asyncio.sleep(11)

    assert client.health()["orders"].state is Health.HEALTHY
    await asyncio.sleep(5)
    await client.close()


async def test_a_key_that_the_primary_refuses_during_an_outage_is_reported_loudly_and_once(
    loop: VirtualLoop,
) -> None:
    bench = Bench()
    client = bench.paired()
    bench.primary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text(1))
    bench.primary.answer = refuse(sdk.ServiceBusAuthenticationError(message="bad key"))
    await asyncio.sleep(65)

    loud = [event for event in client.events() if event.is_loud]
    assert [(event.kind, event.subject) for event in loud] == [(Kind.PING_FAILED, "orders")]
    assert "make a new client with a key that is valid" in loud[0].text
    assert "make a new client" in client.health()["orders"].why
    bench.primary.answer = accept
    await asyncio.sleep(25)
    assert client.events()[-1].kind is Kind.RECOVERED
    await client.close()


async def test_health_of_a_closed_client_shows_the_applications_entities_only(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()

    async def broken() -> None:
        raise RuntimeError("cannot close")

    bench.primary.close = broken  # type: ignore[method-assign]
    client.fail_over("orders")
    await client.close()

    assert list(client.health()) == ["orders"]
    assert client.events()[-1].kind is Kind.CLOSED


async def test_a_closed_client_is_not_kept_alive_by_the_official_ones(loop: VirtualLoop) -> None:
    primary: Any = FakeClient("p.servicebus.windows.net")
    secondary: Any = FakeClient("s.servicebus.windows.net")
    client = PairedServiceBusClient(primary, secondary, options=SendAvailabilityOptions())
    await client.close()
    reference = weakref.ref(client)
    del client
    gc.collect()

    assert reference() is None
    await primary.close()


async def test_keys_and_signatures_of_azure_core_are_understood(loop: VirtualLoop) -> None:
    client: Any = FakeClient("s.servicebus.windows.net")
    client._credential = AzureNamedKeyCredential("Root", "c2VjcmV0")
    official = aio_admin_client(client, {})
    assert type(official._credential).__name__ == "ServiceBusSharedKeyCredential"
    await official.close()
    client._credential = AzureSasCredential("SharedAccessSignature sr=x&sig=y&se=1&skn=z")
    with pytest.raises(NoManageRight):
        await Management(AsyncioRuntime(), client, {}).backlog_queues("p")


class SilentSecondary:
    """Lists its queues, and answers no request to create one."""

    def __init__(self) -> None:
        self.asked = 0

    async def backlog_queues(self, _primary: str) -> list[Any]:
        return []

    async def create(self, _name: str, _identity: str) -> bool:
        self.asked += 1
        raise ServiceResponseTimeoutError("Read timed out.")


async def test_a_secondary_that_falls_silent_is_asked_for_one_queue_and_no_more(loop: VirtualLoop) -> None:
    bench = Bench()
    secondary: Any = SilentSecondary()
    bench.client._setup._management = secondary
    with pytest.raises(NoBacklogQueuesError, match="Read timed out"):
        await bench.client.pair()
    assert secondary.asked == 1
    await bench.client.close()


@pytest.mark.promise("P15", "P29")
async def test_sessions_of_queues_beyond_the_count_are_looked_for_and_the_event_says_how_to_drain_them(
    loop: VirtualLoop,
) -> None:
    class Listing:
        async def backlog_queues(self, primary: str) -> list[BacklogQueue]:
            return [BacklogQueue(index, f"{primary}/{TRANSFER_SEGMENT}/{index}") for index in range(4)]

        async def message_count(self, queue: str) -> int:
            return 6 if queue.endswith("2") else 0

    client = Bench(order="session", backlog_queue_count=2).client
    client._setup._management = Listing()  # type: ignore[assignment]

    client._state.paired_with(await client._setup.usable_queues())

    assert client._state.order.wanted() == [f"p/{TRANSFER_SEGMENT}/{index}" for index in (0, 1, 2)]
    assert client._state.usable_queues == client._state.drained_queues
    told = [event.text for event in client.events() if event.kind is Kind.EXTRA_QUEUE]
    assert f"`pairbus backlog drain p/{TRANSFER_SEGMENT}/2` delivers them" in told[0]
    assert "backlog_queue_count of 3 or more" in told[0]
    assert "backlog drain" not in told[1]


async def test_a_client_that_is_dropped_is_kept_by_its_background_work_alone(loop: VirtualLoop) -> None:
    seen: list[object] = []

    def dropped() -> weakref.ref[PairedServiceBusClient]:
        primary: Any = FakeClient("p.servicebus.windows.net")
        secondary: Any = FakeClient("s.servicebus.windows.net")
        client = PairedServiceBusClient(
            primary, secondary, on_event=lambda event: seen.append((client.is_paired, sender.entity_name))
        )
        sender = client.get_queue_sender("orders")
        client._state.paired_with(QUEUES)
        client.fail_over("orders")
        return weakref.ref(client)

    reference = dropped()
    await asyncio.sleep(1)
    gc.collect()
    client = reference()
    assert client is not None, "it goes on asking whether the entity is back"
    client.mark_healthy("orders")
    del client
    await asyncio.sleep(1)
    gc.collect()
    assert reference() is None, "its own callback does not keep it"
    assert seen
