"""`make bench-spark`: the Spark syphon with 1, 2 and 4 tasks beside the in-process one and plain SDK receive + send.

Every way drains the same backlog between the same two brokers, in turns and in one run, so that a busy machine hurts all
alike: read the ratios. Spark's session is warm; what it costs to start is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.drain.hosting import build
from pairbus.pairing.statistics import Counters
from pairbus.spark.drain.driver import SyphonOptions, run_syphon
from pairbus.spark.session import spark_session
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.spark.kit import parked, send_payloads

BACKLOG = [f"primary/x-servicebus-transfer/{index}" for index in range(4)]
DESTINATIONS = ("a", "b", "c")
BODY = b"x" * 1024
PAGE = 100
LOCAL = "in-process syphon"
PLAIN = "plain SDK receive + send"


@dataclass(frozen=True, slots=True)
class Figure:
    """One way to drain and how fast it was."""

    way: str
    rates: list[float]

    @property
    def rate(self) -> float:
        return median(self.rates)


def fill(pair: Pair, messages: int) -> None:
    share = messages // len(BACKLOG)
    with pair.secondary.client() as client:
        for queue in BACKLOG:
            payloads = [
                parked(DESTINATIONS[n % len(DESTINATIONS)], f"{queue}-{n}", BODY) for n in range(share)
            ]
            send_payloads(client, queue, payloads)


def left(pair: Pair) -> int:
    with pair.secondary.administration_client() as client:
        return sum(int(queue.active_message_count or 0) for queue in client.list_queues_runtime_properties())


def drain_plain(pair: Pair) -> None:
    """What a script with the official client does: receive, send, complete, one after the other."""
    with pair.secondary.client() as source, pair.primary.client() as target:
        senders = {name: target.get_queue_sender(name) for name in DESTINATIONS}
        for queue in BACKLOG:
            with source.get_queue_receiver(queue) as receiver:
                while messages := receiver.receive_messages(max_message_count=PAGE, max_wait_time=1):
                    for name, sender in senders.items():
                        wanted = [m for m in messages if _path(m.application_properties) == name]
                        if wanted:
                            sender.send_messages([ServiceBusMessage(b"".join(m.body)) for m in wanted])
                    for message in messages:
                        receiver.complete_message(message)
        for sender in senders.values():
            sender.close()


def _path(properties: object) -> str:
    assert isinstance(properties, dict)
    value = properties.get(b"x-ms-path", properties.get("x-ms-path"))
    return value.decode() if isinstance(value, bytes) else str(value)


def drain_in_process(pair: Pair) -> None:
    async def run() -> None:
        async with (
            ServiceBusClient.from_connection_string(pair.primary.connection_string) as primary,
            ServiceBusClient.from_connection_string(pair.secondary.connection_string) as secondary,
        ):
            folder = Path(tempfile.mkdtemp(prefix="pairbus-bench-"))
            syphon, book = build(
                primary, secondary, BACKLOG, name="primary", counters=Counters(), ledger=folder
            )
            await syphon.run(once=True)
            book.close()

    asyncio.run(run())


def measure(pair: Pair, messages: int, drain: Callable[[], None]) -> float:
    fill(pair, messages)
    began = time.perf_counter()
    drain()
    took = time.perf_counter() - began
    rest = left(pair)
    assert rest == 0, f"{rest} messages were left"
    return messages / took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    messages = given.messages // len(BACKLOG) * len(BACKLOG)
    primary = Namespace("primary", process=True, queues=list(DESTINATIONS))
    secondary = Namespace("secondary", process=True, queues=[Queue(name) for name in BACKLOG])
    with Pair(primary, secondary) as pair:
        began = time.perf_counter()
        spark = spark_session("pairbus bench", master=f"local[{max(given.tasks)},4]")
        started_s = time.perf_counter() - began

        def on_spark(tasks: int) -> Callable[[], None]:
            options = SyphonOptions(
                primary=pair.primary.connection_string,
                secondary=pair.secondary.connection_string,
                once=True,
                tasks=tasks,
                slice_seconds=600,
            )
            return lambda: _all_home(run_syphon(options, spark=spark).exit_code)

        ways: dict[str, Callable[[], None]] = {
            PLAIN: lambda: drain_plain(pair),
            LOCAL: lambda: drain_in_process(pair),
            **{f"Spark, {tasks} task{'s' * (tasks > 1)}": on_spark(tasks) for tasks in given.tasks},
        }
        on_spark_warm = on_spark(max(given.tasks))
        measure(pair, len(BACKLOG) * PAGE, on_spark_warm)  # Python workers start here, not in a round
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, drain in ways.items():
                rates[way].append(measure(pair, messages, drain))
                print(f"{way}: {rates[way][-1]:,.0f} messages/s", file=sys.stderr, flush=True)
    _print([Figure(way, found) for way, found in rates.items()], started_s, messages, as_json=given.json)
    return 0


def _all_home(exit_code: int) -> None:
    assert exit_code == 0, "the syphon could not bring everything home"


def _print(figures: list[Figure], started_s: float, messages: int, *, as_json: bool) -> None:
    by_way = {figure.way: figure.rate for figure in figures}
    if as_json:
        print(json.dumps({"messages": messages, "session_s": started_s, "rates": by_way}))
        return
    print(
        f"{messages:,} messages of 1 KB, 4 backlog queues, 3 destinations; Spark's session took {started_s:.1f} s"
    )
    print(f"{'way':<28}{'messages/s':>12}{'to in-process':>16}{'to plain SDK':>15}")
    for figure in figures:
        ratios = (figure.rate / by_way[LOCAL], figure.rate / by_way[PLAIN])
        print(f"{figure.way:<28}{figure.rate:>12,.0f}{ratios[0]:>16.2f}{ratios[1]:>15.2f}")


if __name__ == "__main__":
    sys.exit(main())
