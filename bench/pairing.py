"""What pairing costs and how fast it reacts, as ratios from one run: ``make bench-pairing``.

1. A healthy paired send beside a plain send of the official SDK, interleaved (target: at most 1.02).
2. From the kill of the primary to the first parked message, beyond the failover interval.
3. From the primary's recovery to failback, beyond the ping interval.
4. The in-process drain beside what the official SDK can do with receive + send + complete (target: at least 0.8).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus import Health, PairedServiceBusClient, SendAvailabilityOptions
from pairbus.testing import Pair

CHUNK = 10
DRAIN_ROUNDS = 5
BODY = b"x" * 1024
FAILOVER_S = 1.0
PING_S = 1.0


def paired(pair: Pair, **changes: Any) -> PairedServiceBusClient:
    options = {
        "backlog_queue_count": 4,
        "failover_interval": timedelta(seconds=FAILOVER_S),
        "ping_primary_interval": timedelta(seconds=PING_S),
        **changes,
    }
    return PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        options=SendAvailabilityOptions(**options),
        retry_total=0,
    )


def healthy_ratio(pair: Pair, rounds: int) -> dict[str, float]:
    """Chunks of plain and paired sends take turns, so that foreign load meets both alike."""
    with pair.primary.client() as plain_client, paired(pair) as client:  # noqa: SIM117 - the senders need both
        with plain_client.get_queue_sender("bench") as plain, client.get_queue_sender("bench") as ours:
            for sender in (plain, ours):
                for _ in range(20):
                    sender.send_messages(ServiceBusMessage(BODY))
            times: dict[str, list[float]] = {"plain": [], "paired": []}
            for turn in range(rounds):
                order = [("plain", plain), ("paired", ours)]
                for name, sender in order if turn % 2 else reversed(order):
                    messages = [ServiceBusMessage(BODY) for _ in range(CHUNK)]
                    begun = time.perf_counter()
                    for message in messages:
                        sender.send_messages(message)
                    times[name].append((time.perf_counter() - begun) / CHUNK)
    # Neighbours in time are compared with each other; the median leaves out the turns that a foreign load hit.
    ratios = [ours / plain for plain, ours in zip(times["plain"], times["paired"], strict=True)]
    return {
        "plain_ms": statistics.median(times["plain"]) * 1000,
        "paired_ms": statistics.median(times["paired"]) * 1000,
        "ratio": statistics.median(ratios),
    }


def reactions(pair: Pair) -> dict[str, float]:
    """Kill, park, restart, fail back."""
    with paired(pair) as client, client.get_queue_sender("bench") as sender:
        sender.send_messages(ServiceBusMessage(BODY))
        pair.primary.kill()
        killed = time.monotonic()
        while client.statistics().to_backlog == 0:
            try:
                sender.send_messages(ServiceBusMessage(BODY), timeout=5)
            except ServiceBusError:
                continue
        parked = time.monotonic()
        pair.primary.restart()
        recovered = time.monotonic()
        while client.health()["bench"].state is not Health.HEALTHY:
            time.sleep(0.005)
        back = time.monotonic()
    return {
        "kill_to_parked_s": parked - killed,
        "beyond_interval_s": parked - killed - FAILOVER_S,
        "recovery_to_failback_s": back - recovered,
        "beyond_ping_s": back - recovered - PING_S,
    }


def drain(pair: Pair, messages: int) -> dict[str, float]:
    """The same messages through the SDK alone and through the in-process syphon, in turns."""
    plain: list[float] = []
    ours: list[float] = []
    options = {
        "failover_interval": timedelta(0),
        "enable_syphon": True,
        "ping_primary_interval": timedelta(minutes=5),
    }
    with paired(pair, **options) as client, client.get_queue_sender("bench") as sender:
        for _ in range(DRAIN_ROUNDS):
            plain.append(asyncio.run(_plain_drain(pair, messages)))
            ours.append(_our_drain(client, sender, messages))
    ratios = [mine / theirs for mine, theirs in zip(ours, plain, strict=True)]
    return {
        "sdk_per_s": statistics.median(plain),
        "syphon_per_s": statistics.median(ours),
        "ratio": statistics.median(ratios),
    }


def _our_drain(client: PairedServiceBusClient, sender: Any, messages: int) -> float:
    before = client.statistics().restored
    client.fail_over("bench")
    for _ in range(messages // 100):
        sender.send_messages([ServiceBusMessage(BODY) for _ in range(100)])
    client.mark_healthy("bench")
    # As with the SDK alone, the links are open when the time starts.
    first = _wait_for(client, before + 1)
    begun = time.perf_counter()
    _wait_for(client, before + messages)
    return (before + messages - first) / (time.perf_counter() - begun)


def _wait_for(client: PairedServiceBusClient, count: int) -> int:
    while (restored := client.statistics().restored) < count:
        time.sleep(0.002)
    return restored


async def _plain_drain(pair: Pair, messages: int) -> float:
    """Receive from a queue of the secondary, send to the primary, complete: what the SDK can do without us."""
    async with (
        AsyncClient.from_connection_string(pair.secondary.connection_string) as secondary,
        AsyncClient.from_connection_string(pair.primary.connection_string) as primary,
    ):
        async with secondary.get_queue_sender("plain") as filler:
            for _ in range(messages // 100):
                await filler.send_messages([ServiceBusMessage(BODY) for _ in range(100)])
        async with (
            secondary.get_queue_receiver("plain") as receiver,
            primary.get_queue_sender("bench") as sender,
        ):
            begun = time.perf_counter()
            done = 0
            while done < messages:
                received = await receiver.receive_messages(max_message_count=100, max_wait_time=5)
                await sender.send_messages([ServiceBusMessage(b"".join(item.body)) for item in received])
                for item in received:
                    await receiver.complete_message(item)
                done += len(received)
            return messages / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("pairbus").setLevel(logging.CRITICAL)
    os.environ.setdefault("PAIRBUS_STATE_DIR", tempfile.mkdtemp(prefix="pairbus-bench-"))
    with Pair(queues=["bench"]) as pair:
        pair.secondary.create_queue("plain")
        healthy = healthy_ratio(pair, given.rounds)
        drained = drain(pair, given.messages)
        reaction = reactions(pair)
    result = {"healthy": healthy, "drain": drained, "reaction": reaction}
    if given.json:
        print(json.dumps(result))
        return
    print(
        f"healthy send: plain {healthy['plain_ms']:.3f} ms, paired {healthy['paired_ms']:.3f} ms, ratio {healthy['ratio']:.3f} (target <= 1.02)"
    )
    print(
        f"kill to first parked message: {reaction['kill_to_parked_s']:.2f} s, {reaction['beyond_interval_s']:+.2f} s beyond the interval"
    )
    print(
        f"recovery to failback: {reaction['recovery_to_failback_s']:.2f} s, {reaction['beyond_ping_s']:+.2f} s beyond the ping interval"
    )
    print(
        f"drain: SDK alone {drained['sdk_per_s']:.0f}/s, syphon {drained['syphon_per_s']:.0f}/s, ratio {drained['ratio']:.2f} (target >= 0.8)"
    )


if __name__ == "__main__":
    main()
