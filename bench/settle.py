"""What it costs to wait for each settlement before sending the next message.

70 ms round trip and 10 ms to store, both injected. 100 sends awaited one by one cannot take less than 8 s; 100 overlapped
ones stay under 1 s; 10 in flight lie in between. These are bounds of physics, not of speed, so a figure outside them is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from bench.far import far_away
from bench.link import PipelinedLink
from bench.peer import progress
from pairbus.amqp.message.whole import encode_message
from pairbus.testing import Namespace

QUEUE: Final = "bench"
MESSAGES: Final = 100
ONE_WAY_S: Final = 0.035
STORE_S: Final = 0.010
IN_FLIGHT_SOME: Final = 10
ONE_BY_ONE_S_MIN: Final = MESSAGES * (2 * ONE_WAY_S + STORE_S)
OVERLAPPED_S_MAX: Final = 1.0
BODY: Final = b"x" * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One way to send the messages, how long it took and what it had to stay within."""

    in_flight: int
    client: str
    seconds: float
    messages_per_second: float
    promise: str
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """All ways, from one run against one broker."""

    messages: int
    round_trip_ms: float
    store_ms: float
    figures: tuple[Figure, ...]

    @property
    def holds(self) -> bool:
        """Whether every figure is where it must be."""
        return all(figure.is_kept for figure in self.figures)

    def lines(self) -> list[str]:
        """A table for people."""
        lines = [
            f"{self.messages} sends of 1 KB, {self.round_trip_ms:.0f} ms round trip (a proxy in between),",
            f"{self.store_ms:.0f} ms to store (injected by the broker's fault switchboard)",
            "",
            f"{'in flight':>9}  {'client':<36}{'seconds':>8}{'msgs/s':>8}   must be",
        ]
        lines.append("-" * 80)
        for one in self.figures:
            verdict = "" if one.is_kept else "  NOT SO"
            lines.append(
                f"{one.in_flight:>9}  {one.client:<36}{one.seconds:>8.2f}{one.messages_per_second:>8.0f}   "
                f"{one.promise}{verdict}"
            )
        return lines


def settle() -> Settle:
    with Namespace("bench", process=True, queues=[QUEUE]) as namespace:
        namespace.faults.delay(round(STORE_S * 1000))
        host, _, port = namespace.amqp_address.rpartition(":")
        with far_away(host, int(port), there_s=ONE_WAY_S, back_s=ONE_WAY_S) as far:
            progress(f"one by one: takes {ONE_BY_ONE_S_MIN:.0f} s or more")
            alone = _one_by_one(namespace.connection_string.replace(f":{port}", f":{far}", 1))
            address = f"127.0.0.1:{far}"
            progress("overlapped")
            some, every = (
                _overlapped(address, namespace.connection_string, in_flight)
                for in_flight in (IN_FLIGHT_SOME, MESSAGES)
            )
    return Settle(
        messages=MESSAGES,
        round_trip_ms=2 * ONE_WAY_S * 1000,
        store_ms=STORE_S * 1000,
        figures=judged(alone, some, every),
    )


def judged(alone: float, some: float, every: float) -> tuple[Figure, ...]:
    """Three times against their bounds."""
    link = "one link, answers not awaited"
    return (
        _figure(
            1,
            "baseline: azure-servicebus, awaited",
            alone,
            f"at least {ONE_BY_ONE_S_MIN:.0f} s",
            alone >= ONE_BY_ONE_S_MIN,
        ),
        _figure(IN_FLIGHT_SOME, link, some, "in between", every < some < alone),
        _figure(MESSAGES, link, every, f"under {OVERLAPPED_S_MAX:.0f} s", every < OVERLAPPED_S_MAX),
    )


def _figure(in_flight: int, client: str, seconds: float, promise: str, is_kept: bool) -> Figure:
    return Figure(
        in_flight=in_flight,
        client=client,
        seconds=round(seconds, 3),
        messages_per_second=round(MESSAGES / seconds, 1),
        promise=promise,
        is_kept=is_kept,
    )


def _one_by_one(connection_string: str) -> float:
    """The official client, which waits for the outcome of each send; the link is up before the clock starts."""
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        sender.send_messages(ServiceBusMessage(BODY))
        begun = time.perf_counter()
        for _ in range(MESSAGES):
            sender.send_messages(ServiceBusMessage(BODY))
        return time.perf_counter() - begun


def _overlapped(address: str, connection_string: str, in_flight: int) -> float:
    with PipelinedLink(address, connection_string, QUEUE) as link:
        return link.send(encode_message(body=BODY), MESSAGES, in_flight)


def main() -> int:
    parser = argparse.ArgumentParser(prog="pairbus bench settle", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    result = settle()
    print(json.dumps({**asdict(result), "holds": result.holds}) if as_json else "\n".join(result.lines()))
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
