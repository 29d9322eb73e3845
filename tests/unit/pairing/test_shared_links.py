"""Who opens a link and who waits for it: the senders and the SDK that ship, over a false network on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.constants import SessionTransferState
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusAuthenticationError, ServiceBusError

from pairbus import SendAvailabilityOptions
from pairbus.errors import UsageError
from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.errors import ClientClosedError
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import TRANSFER_SEGMENT
from pairbus.pairing.outcome import outcome_of
from pairbus.pairing.rules.health import Health
from pairbus.pairing.runtime.asyncio_link import AsyncioLink
from pairbus.pairing.runtime.attempts import LinkClosed
from pairbus.sdk.failures import Failure, classify
from tests.simulation.false_network import MARK, FalseNamespace, false_network
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import nothing_left

QUEUES = [f"p/{TRANSFER_SEGMENT}/{index}" for index in range(2)]


class Scene:
    """A paired client with the SDK's own defaults, and the namespaces it reaches."""

    def __init__(self, loop: VirtualLoop, primary: FalseNamespace, secondary: FalseNamespace) -> None:
        self.loop = loop
        self.primary = primary
        self.secondary = secondary

    def client(self, **options: Any) -> PairedServiceBusClient:
        values: dict[str, Any] = {"failover_interval": timedelta(0), **options}
        first, second = (
            ServiceBusClient.from_connection_string(
                f"Endpoint=sb://{namespace.host}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
            )
            for namespace in (self.primary, self.secondary)
        )
        client = PairedServiceBusClient(first, second, options=SendAvailabilityOptions(**values), seed=1)
        client._state.paired_with(QUEUES)
        return client


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    logging.disable(logging.CRITICAL)
    with false_network(monkeypatch, loop, 1) as (primary, secondary):
        yield Scene(loop, primary, secondary)
        await asyncio.sleep(3)
        nothing_left()
        assert not primary.connections | secondary.connections, "connections are left open"
    logging.disable(logging.NOTSET)


def message(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(f"<{number}>")


async def test_one_connection_is_opened_for_all_who_wait_and_one_who_gives_up_ends_nobody_elses(
    scene: Scene,
) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    scene.primary.opening_s = 3.0
    sends = [asyncio.ensure_future(sender.send_messages(message(number))) for number in range(8)]
    await asyncio.sleep(1)
    sends[0].cancel()
    await asyncio.gather(*sends[1:])

    assert scene.primary.opened == 1
    assert scene.primary.copies() == dict.fromkeys(range(1, 8), 1)
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await sends[0]
    assert outcome_of(cancelled.value) == "fail"
    await client.close()


async def test_the_first_detour_of_a_refused_connection_takes_about_a_second(scene: Scene) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    scene.primary.kill()
    begun = scene.loop.time()
    await asyncio.gather(*(sender.send_messages(message(number)) for number in range(2, 40)))

    assert scene.loop.time() - begun < 2.0
    assert scene.secondary.copies() == dict.fromkeys(range(2, 40), 1)
    await client.close()


@pytest.mark.promise("P5")
@pytest.mark.parametrize("retries", [0, 3])
async def test_a_refused_connection_is_a_fail_and_a_lost_one_is_unknown(scene: Scene, retries: int) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    client.primary._config.retry_total = retries
    scene.primary.kill()
    sender = client.get_queue_sender("orders")
    with pytest.raises(ServiceBusError) as refused:
        await sender.send_messages(message(1))
    assert outcome_of(refused.value) == "fail"
    assert (client.statistics().failed, client.statistics().unknown) == (1, 0)

    scene.primary.recover()
    await sender.send_messages(message(2))
    scene.primary.latency_s = 0.1
    send = asyncio.ensure_future(sender.send_messages(message(3)))
    await asyncio.sleep(0.15)
    scene.primary.kill()
    with pytest.raises(ServiceBusError) as lost:
        await send
    assert outcome_of(lost.value) == "unknown"
    await client.close()


async def test_a_fault_inside_the_client_is_no_outage(scene: Scene) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    scene.primary.fails_inside_opening = "client"
    results = await asyncio.gather(
        *(sender.send_messages(message(number)) for number in range(8)), return_exceptions=True
    )

    assert all(isinstance(result, ServiceBusError) for result in results)
    assert {outcome_of(result) for result in results if isinstance(result, Exception)} == {"fail"}
    assert client.health()["orders"].state is Health.HEALTHY
    assert not {Kind.SUSPECT, Kind.FAILED_OVER} & {event.kind for event in client.events()}
    scene.primary.fails_inside_opening = ""
    await sender.send_messages(message(9))
    await client.close()


async def test_a_refused_token_whose_text_speaks_of_404_is_raised_and_not_detoured(scene: Scene) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders404")
    await sender.send_messages(message(1))
    await sender.close()
    scene.primary.fails_inside_opening = "token"
    again = client.get_queue_sender("orders404")
    with pytest.raises(ServiceBusAuthenticationError):
        await again.send_messages(message(2))
    with pytest.raises(ServiceBusAuthenticationError):
        await again.__aenter__()

    assert client.health()["orders404"].state is Health.HEALTHY
    assert not scene.secondary.copies()
    await client.close()


async def test_a_slow_primary_serves_many_at_a_time(scene: Scene) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    scene.primary.latency_s = 0.1
    begun = scene.loop.time()
    await asyncio.gather(*(sender.send_messages(message(number)) for number in range(1_000)))

    assert scene.primary.copies() == dict.fromkeys(range(1_000), 1)
    assert scene.loop.time() - begun < 50, "one at a time they would take more than 200 s"
    await client.close()


@pytest.mark.promise("P44")
@pytest.mark.parametrize("after_s", [0.001, 0.02, 1.0])
async def test_who_waits_when_the_sender_is_closed_is_told_so_and_nothing_is_left(
    scene: Scene, after_s: float
) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    scene.primary.opening_s = 0.5
    scene.primary.latency_s = 0.4
    sends = [asyncio.ensure_future(sender.send_messages(message(number))) for number in range(20)]
    await asyncio.sleep(after_s)
    await client.close()
    results = await asyncio.gather(*sends, return_exceptions=True)

    for number, result in enumerate(results):
        assert result is None or isinstance(result, ClientClosedError)
        stored = scene.primary.copies()[number] + scene.secondary.copies()[number]
        if result is None:
            assert stored == 1
        elif outcome_of(result) == "fail":
            assert stored == 0


async def test_the_cause_of_a_failed_detour_is_what_the_outage_began_with(scene: Scene) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    scene.primary.kill()
    await sender.send_messages(message(1))
    assert client.health()["orders"].state is Health.FAILED_OVER
    scene.secondary.kill()
    with pytest.raises(ServiceBusError) as failed:
        await sender.send_messages(message(2), timeout=10)

    assert isinstance(failed.value.__cause__, ServiceBusError)
    assert failed.value.__cause__.__traceback__ is None
    await client.close()


async def test_asking_about_an_unknown_entity_makes_no_record_of_it(scene: Scene) -> None:
    client = scene.client()

    for ask in (client.explain, client.mark_healthy):
        with pytest.raises(UsageError, match="'ordres' is not known"):
            ask("ordres")
    assert client.health() == {}
    await client.close()


async def test_who_is_cancelled_in_the_moment_of_getting_the_link_leaves_it_to_the_next(scene: Scene) -> None:
    client = scene.client()
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    link = sender._primary_link()
    served: list[str] = []

    async def use(who: str) -> None:
        served.append(who)
        await asyncio.sleep(0.1)

    async def first() -> None:
        await link.call(use, 60, "first")
        second.cancel()  # the link is the second one's since this very moment, and it does not know it yet

    second: asyncio.Task[None]
    holding = asyncio.ensure_future(first())
    await asyncio.sleep(0.01)
    second = asyncio.ensure_future(link.call(use, 60, "second"))
    await asyncio.gather(holding, second, return_exceptions=True)

    assert second.cancelled()
    await link.call(use, 10, "third")
    assert served == ["first", "third"]
    await sender.send_messages(message(2), timeout=10)
    assert scene.primary.copies() == {1: 1, 2: 1}
    await client.close()


@pytest.mark.promise("P5")
async def test_a_message_whose_caller_gave_up_before_it_was_written_is_not_written_later(
    scene: Scene,
) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    client.primary._config.retry_total = 0
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    link = sender._primary_link()
    session: Any = link.sender._handler._link._session
    write = session._outgoing_transfer
    window_opens_at = scene.loop.time() + 10
    written: list[bytes] = []

    async def write_if_window(delivery: Any, trace: Any) -> None:
        if scene.loop.time() < window_opens_at:
            delivery.transfer_state = SessionTransferState.BUSY
        else:
            written.extend(MARK.findall(bytes(delivery.frame["payload"])))
            await write(delivery, trace)

    session._outgoing_transfer = write_if_window
    held = asyncio.ensure_future(link.call(asyncio.sleep, 60, 0.1))
    await asyncio.sleep(0.01)
    impatient = asyncio.ensure_future(sender.send_messages(message(2), timeout=2))
    patient = asyncio.ensure_future(sender.send_messages(message(3), timeout=60))
    await held
    with pytest.raises(OperationTimeoutError):
        await impatient
    await patient

    assert written == [b"3"]
    await client.close()


async def test_a_connection_that_left_those_who_shared_it_without_an_answer_is_replaced(scene: Scene) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    client.primary._config.retry_total = 0
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    held = asyncio.ensure_future(sender._primary_link().call(asyncio.sleep, 60, 0.1))
    await asyncio.sleep(0.01)
    scene.primary.get_lost()
    sends = [asyncio.ensure_future(sender.send_messages(message(n), timeout=2)) for n in (2, 3)]
    await held
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(result) for result in results] == [OperationTimeoutError] * 2

    scene.primary.recover()
    await asyncio.sleep(1)
    await sender.send_messages(message(4), timeout=5)
    assert scene.primary.opened == 2
    await client.close()


@pytest.mark.promise("P5")
@pytest.mark.parametrize("does", ["send", "send two", "schedule", "enter"])
async def test_who_is_cancelled_while_a_silent_link_opens_leaves_the_sender_to_the_next(
    scene: Scene, does: str
) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    sender = client.get_queue_sender("orders")
    scene.primary.get_lost()
    work = {
        "send": lambda: sender.send_messages(message(1)),
        "send two": lambda: asyncio.gather(*(sender.send_messages(message(n)) for n in (1, 2))),
        "schedule": lambda: sender.schedule_messages(message(1), datetime(2100, 1, 1, tzinfo=UTC)),
        "enter": sender.__aenter__,
    }
    given_up = asyncio.ensure_future(work[does]())
    await asyncio.sleep(1)
    given_up.cancel()
    begun = scene.loop.time()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await given_up
    assert scene.loop.time() - begun < 0.1
    if does == "send":
        assert outcome_of(cancelled.value) == "fail"

    scene.primary.recover()
    await sender.send_messages(message(3))

    assert scene.loop.time() - begun < 2
    assert scene.primary.copies() == {3: 1}
    await client.close()


@pytest.mark.promise("P5")
async def test_those_who_shared_a_silent_connection_and_were_cancelled_leave_no_one_to_it(
    scene: Scene,
) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    held = asyncio.ensure_future(sender._primary_link().call(asyncio.sleep, 60, 0.1))
    await asyncio.sleep(0.01)
    scene.primary.get_lost()
    sends = [asyncio.ensure_future(sender.send_messages(message(n))) for n in (2, 3)]
    await held
    await asyncio.sleep(1)
    scene.primary.recover()
    begun = scene.loop.time()
    for send in sends:
        send.cancel()
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [outcome_of(result) for result in results if isinstance(result, BaseException)] == ["unknown"] * 2

    await sender.send_messages(message(4))

    assert scene.loop.time() - begun < 2
    assert scene.primary.opened == 2
    await client.close()


async def test_who_comes_in_the_moment_in_which_all_others_are_cancelled_gets_an_opening_of_its_own(
    scene: Scene,
) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    sender = client.get_queue_sender("orders")
    scene.primary.get_lost()
    sends = [asyncio.ensure_future(sender.send_messages(message(n))) for n in (1, 2, 3)]
    await asyncio.sleep(1)
    scene.primary.recover()
    begun = scene.loop.time()
    for send in sends:
        send.cancel()
    await sender.send_messages(message(4))

    assert scene.loop.time() - begun < 2
    assert scene.primary.opened == 2
    await asyncio.gather(*sends, return_exceptions=True)
    await client.close()


@pytest.mark.parametrize("before", [0.0, 0.05], ids=["in this moment", "a moment before"])
async def test_who_comes_when_all_who_share_a_silent_connection_are_cancelled_gets_another_one(
    scene: Scene, before: float
) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(1))
    held = asyncio.ensure_future(sender._primary_link().call(asyncio.sleep, 60, 0.1))
    await asyncio.sleep(0.01)
    scene.primary.get_lost()
    sends = [asyncio.ensure_future(sender.send_messages(message(n))) for n in (2, 3)]
    await held
    await asyncio.sleep(1.03)  # in the middle of a read
    scene.primary.recover()
    begun = scene.loop.time()
    late: list[asyncio.Future[None]] = []
    if before:
        late.append(asyncio.ensure_future(sender.send_messages(message(4))))
        await asyncio.sleep(before)
    for send in sends:
        send.cancel()
    await sender.send_messages(message(5))
    await asyncio.gather(*late)

    assert scene.loop.time() - begun < 2
    assert scene.primary.opened == 2
    assert scene.primary.copies()[5] == 1
    await asyncio.gather(*sends, return_exceptions=True)
    await client.close()


async def failed_over_and_back(scene: Scene, client: PairedServiceBusClient) -> None:
    """The entity fails over, new connections to the primary work again, and a ping finds that out."""
    client.fail_over("orders")
    await asyncio.sleep(0.5)
    scene.primary.recover()
    while client.health()["orders"].state is not Health.HEALTHY:  # noqa: ASYNC110 - on virtual time it costs nothing
        await asyncio.sleep(0.01)


async def test_an_opening_from_before_the_answer_to_a_ping_is_not_waited_for(scene: Scene) -> None:
    client = scene.client(failover_interval=timedelta(seconds=2), ping_primary_interval=timedelta(seconds=1))
    sender = client.get_queue_sender("orders")
    scene.primary.get_lost()
    first = asyncio.ensure_future(sender.send_messages(message(1)))
    await asyncio.sleep(1)
    await failed_over_and_back(scene, client)
    begun = scene.loop.time()
    await asyncio.gather(first, sender.send_messages(message(2)))

    assert scene.loop.time() - begun < 2
    assert scene.primary.copies() == {1: 1, 2: 1}
    await client.close()


@pytest.mark.parametrize("has_id", [False, True], ids=["without an id", "with an id"])
@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
async def test_a_time_out_of_an_attempt_from_before_the_answer_to_a_ping_is_held_against_nobody(
    scene: Scene, is_shared: bool, has_id: bool
) -> None:
    client = scene.client(failover_interval=timedelta(seconds=2), ping_primary_interval=timedelta(seconds=1))
    seen: list[Kind] = []
    client._state.events._listener = lambda event: seen.append(event.kind)
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(0))
    held = asyncio.ensure_future(sender._primary_link().call(asyncio.sleep, 60, 0.1 if is_shared else 0))
    await asyncio.sleep(0.01)
    scene.primary.get_lost()
    messages = [message(n) for n in (1, 2)]
    if has_id:
        for number, one in enumerate(messages):
            one.message_id = str(number)
    waiting = [asyncio.ensure_future(sender.send_messages(one)) for one in messages]
    await held
    await asyncio.sleep(1)
    await failed_over_and_back(scene, client)
    waiting.append(asyncio.ensure_future(sender.send_messages(message(3))))
    await asyncio.gather(*waiting)

    assert Kind.SUSPECT not in seen
    assert scene.primary.copies() + scene.secondary.copies() == dict.fromkeys(range(4), 1)
    await client.close()


async def test_a_connection_without_answers_is_replaced_though_callers_keep_coming(scene: Scene) -> None:
    client = scene.client(failover_interval=timedelta(minutes=5), while_suspect="raise")
    client.primary._config.retry_total = 0
    sender = client.get_queue_sender("orders")
    await sender.send_messages(message(0))
    scene.primary.latency_s = 0.1
    sends = []
    for number in range(1, 200):
        if number == 20:
            scene.primary.get_lost()
        if number == 40:
            scene.primary.recover()
        sends.append(asyncio.ensure_future(sender.send_messages(message(number), timeout=2)))
        await asyncio.sleep(0.1)
    results = await asyncio.gather(*sends, return_exceptions=True)

    assert results[100:] == [None] * 99, "the network has been back for seconds"
    await client.close()


def test_a_link_that_is_closed_ends_the_sdks_attempts_without_a_traceback_in_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = LinkClosed()
    with caplog.at_level(logging.DEBUG):
        seen = PyamqpTransport.create_servicebus_exception(logging.getLogger("azure.servicebus"), error)

    assert seen is error
    assert not error._retryable
    assert classify(error) is Failure.INVALID, "it says nothing of the primary"
    assert caplog.records == []


class SilentSender:
    """As much of the official sender as its link uses. It answers nobody."""

    _amqp_transport = _send = _open = _close_handler = _handle_exception = None

    async def send_messages(self, message: object, **options: object) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_time_limit_ends_in_the_sdks_own_error() -> None:
    link = AsyncioLink(SilentSender(), lambda: True)
    with pytest.raises(OperationTimeoutError, match="did not end in time") as caught:
        await link.send("message", 0.005, 0.01)
    assert isinstance(caught.value.__cause__, TimeoutError)
