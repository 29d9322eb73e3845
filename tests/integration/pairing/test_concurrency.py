"""One paired sender for many coroutines, and for many threads, while its primary is killed and comes back."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections import Counter

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

from pairbus.aio import PairedServiceBusClient
from pairbus.pairing.events import Kind
from pairbus.pairing.outcome import outcome_of
from pairbus.pairing.rules.health import Health
from pairbus.sdk.failures import Failure, classify
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import options, paired
from tests.waiting import until, wait_until

ROUNDS = 3
"""How often each coroutine sends in each part of the story."""
DETOUR_SECONDS_MAX = 6.0
"""The first detour takes about a second; a busy machine may take longer, but not the twelve of the SDK's own retries."""


def in_both(pair: Pair, queues: list[str]) -> Counter[str]:
    """How often each body is stored, at home or in the backlog."""
    found: Counter[str] = Counter()
    for namespace, names in ((pair.primary, ["orders"]), (pair.secondary, queues)):
        with namespace.client() as client:
            for name in names:
                with client.get_queue_receiver(name) as reader:
                    number = 1
                    # Browsing sees locked messages too, and knows without a wait where the queue ends.
                    while messages := reader.peek_messages(250, sequence_number=number):
                        found.update(str(message) for message in messages)
                        number = (messages[-1].sequence_number or 0) + 1
    return found


def sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


async def story(pair: Pair, coroutines: int) -> dict[str, str]:
    """Send in four parts: fresh, killed in the midst, failed over, after failback. What became of each send."""
    outcomes: dict[str, str] = {}
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, options=options()
    )
    async with client, client.get_queue_sender("orders") as sender:

        async def caller(part: str, number: int, pause: float) -> None:
            for step in range(ROUNDS):
                body = f"{part} {number} {step}"
                try:
                    await sender.send_messages(ServiceBusMessage(body))
                except ServiceBusError as error:
                    outcomes[body] = outcome_of(error)
                else:
                    outcomes[body] = "ok"
                await asyncio.sleep(pause)

        async def part(name: str, pause: float = 0.0) -> None:
            await asyncio.gather(*(caller(name, number, pause) for number in range(coroutines)))

        await part("fresh")
        assert not {Kind.SUSPECT, Kind.FAILED_OVER} & {event.kind for event in client.events()}
        burst = asyncio.ensure_future(part("killed", 0.2))
        await until(lambda: any(body.startswith("killed") for body in outcomes), "the first sends return")
        await asyncio.to_thread(pair.primary.kill)
        await burst
        assert client.health()["orders"].state is Health.FAILED_OVER
        await part("away")
        await asyncio.to_thread(pair.primary.restart)
        await until(lambda: client.health()["orders"].state is Health.HEALTHY, "failback")
        await part("back")
        assert client.health()["orders"].state is Health.HEALTHY
        assert not [event for event in client.events() if event.kind is Kind.QUEUE_EVICTED]
        cancelled = [asyncio.ensure_future(caller("cancelled", number, 0)) for number in range(coroutines)]
        kept = [asyncio.ensure_future(caller("kept", number, 0)) for number in range(coroutines)]
        await asyncio.sleep(0.005)  # any moment will do: some wait for their turn, some for an answer
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*kept)
        await asyncio.gather(*cancelled, return_exceptions=True)
    return outcomes


def hold_to_promises(pair: Pair, coroutines: int) -> None:
    before = sockets()

    async def whole() -> dict[str, str]:
        outcomes = await story(pair, coroutines)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"P44: left behind: {left}"
        return outcomes

    outcomes = asyncio.run(whole())
    assert sockets() <= before, "P44: connections are left"
    found = in_both(pair, [f"primary/x-servicebus-transfer/{index}" for index in range(2)])
    parts = ("fresh", "killed", "away", "back", "kept")
    counted = Counter(body.split()[0] for body, outcome in outcomes.items() if outcome == "ok")
    assert [counted[part] for part in parts] == [coroutines * ROUNDS] * len(parts), "every send returned"
    lost = [body for body, outcome in outcomes.items() if outcome == "ok" and not found[body]]
    assert not lost, f"P1: {len(lost)} of {len(outcomes)} returned and are nowhere: {lost[:3]}"
    for body, count in found.items():
        most = 2 if body.startswith("killed") else 1
        assert count <= most, f"P36: {body!r} is stored {count} times"


@pytest.mark.promise("P1")
def test_coroutines_share_a_sender_while_the_primary_is_killed_and_comes_back() -> None:
    with Pair(queues=["orders"]) as pair:
        hold_to_promises(pair, 32)


@pytest.mark.promise("P1")
@pytest.mark.slow
def test_a_thousand_coroutines_share_a_sender_while_the_primary_is_killed_and_comes_back() -> None:
    with Pair(queues=["orders"]) as pair:
        hold_to_promises(pair, 1_000)


@pytest.mark.promise("P1")
def test_threads_share_a_sender_and_the_first_detour_takes_about_a_second() -> None:
    accepted: list[str] = []
    with Pair(queues=["orders"]) as pair:
        with paired(pair, retry_total=3) as client, client.get_queue_sender("orders") as sender:

            def caller(part: str, number: int) -> None:
                for step in range(ROUNDS):
                    sender.send_messages(ServiceBusMessage(f"{part} {number} {step}"))
                    accepted.append(f"{part} {number} {step}")

            def part(name: str) -> None:
                threads = [threading.Thread(target=caller, args=(name, number)) for number in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(90)

            part("fresh")
            pair.primary.kill()
            begun = time.monotonic()
            sender.send_messages(ServiceBusMessage("first"))
            taken = time.monotonic() - begun
            part("away")
            pair.primary.restart()
            wait_until(lambda: client.health()["orders"].state is Health.HEALTHY, "P26: recovery")
            part("back")
        found = in_both(pair, [f"primary/x-servicebus-transfer/{index}" for index in range(2)])
    assert taken < DETOUR_SECONDS_MAX, f"the first detour took {taken:.1f} s"
    assert len(accepted) == 3 * 8 * ROUNDS
    assert not [body for body in accepted if not found[body]], "P1"
    assert max(found.values()) == 1, "P36"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pairbus-closing")]


def test_entering_a_sender_proves_key_and_name_as_the_official_client_does() -> None:
    queues = ["orders", "orders404"]
    with Namespace("secondary") as secondary, Namespace("primary", queues=queues) as primary:

        def client(text: str) -> PairedServiceBusClient:
            return PairedServiceBusClient.from_connection_strings(
                text, secondary.connection_string, options=options(), retry_total=0
            )

        async def act() -> None:
            async with client(primary.connection_string) as good:
                with pytest.raises(ServiceBusError) as missing:
                    await good.get_queue_sender("nowhere").__aenter__()
                assert classify(missing.value) is Failure.NOT_FOUND
                async with good.get_queue_sender("orders") as sender:
                    await sender.send_messages(ServiceBusMessage("1"))
            wrong = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=d3Jvbmc=", primary.connection_string)
            async with client(wrong) as bad:
                for name in queues:
                    sender = bad.get_queue_sender(name)
                    with pytest.raises(ServiceBusAuthenticationError) as refused:
                        await sender.__aenter__()
                    assert classify(refused.value) is Failure.UNAUTHORIZED
                    with pytest.raises(ServiceBusAuthenticationError):
                        await sender.send_messages(ServiceBusMessage("2"))
                    assert bad.health()[name].state is Health.HEALTHY

        asyncio.run(act())


@pytest.mark.promise("P28", "P30")
def test_a_sender_is_entered_and_sends_while_its_primary_is_down() -> None:
    with Pair(queues=["orders"]) as pair:
        texts = (pair.primary.connection_string, pair.secondary.connection_string)
        pair.primary.kill()

        async def act() -> None:
            client = PairedServiceBusClient.from_connection_strings(*texts, options=options(), retry_total=1)
            async with client, client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("1"))
                assert client.statistics().to_backlog == 1

        asyncio.run(act())
