"""`make bench-settle`: what it costs to wait for each settlement before sending the next message.

70 ms round trip and 10 ms to store, both injected. 100 sends awaited one by one cannot take less than 8 s; 100 overlapped
ones stay under 1 s; 10 in flight lie in between. These are bounds of physics, not of speed, so a figure outside them is an error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from bench.latency import far_away
from bench.loadgen import Load, LoadGenerator
from bench.ours import OurBroker
from bench.peer import BenchError, Peer
from pairbus.testing.faults import FaultSwitchboard
from pairbus.testing.http import ManagementClient

BASE = Path("/var/tmp")
MESSAGES = 100
ONE_WAY_S = 0.035
STORE_S = 0.010
IN_FLIGHT_SOME = 10
ONE_BY_ONE_S_MIN = MESSAGES * (2 * ONE_WAY_S + STORE_S)
OVERLAPPED_S_MAX = 1.0
BODY = b"x" * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One way to send the messages, how long it took and what it had to stay within."""

    in_flight: int
    client: str
    took_s: float
    promise: str
    is_kept: bool


def send_one_by_one(peer: Peer) -> float:
    """The official client, which waits for the outcome of each send; the link is up before the clock starts."""
    text = (
        f"Endpoint=sb://{peer.host}:{peer.port};SharedAccessKeyName={peer.user};"
        f"SharedAccessKey={peer.password};UseDevelopmentEmulator=true"
    )
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender(peer.address) as sender,
    ):
        sender.send_messages(ServiceBusMessage(BODY))
        started = time.perf_counter()
        for _ in range(MESSAGES):
            sender.send_messages(ServiceBusMessage(BODY))
        return time.perf_counter() - started


def send_overlapped(generator: LoadGenerator, peer: Peer, in_flight: int) -> float:
    return generator.run(peer, Load(mode="send", window=in_flight, count=MESSAGES)).wall_s


def measure(generator: LoadGenerator, peer: Peer) -> list[Figure]:
    alone = send_one_by_one(peer)
    some = send_overlapped(generator, peer, IN_FLIGHT_SOME)
    every = send_overlapped(generator, peer, MESSAGES)
    return [
        Figure(
            in_flight=1,
            client="azure-servicebus, each send awaited",
            took_s=alone,
            promise=f"at least {ONE_BY_ONE_S_MIN:.0f} s",
            is_kept=alone >= ONE_BY_ONE_S_MIN,
        ),
        Figure(
            in_flight=IN_FLIGHT_SOME,
            client="bench/load.c, one link",
            took_s=some,
            promise="in between",
            is_kept=every < some < alone,
        ),
        Figure(
            in_flight=MESSAGES,
            client="bench/load.c, one link",
            took_s=every,
            promise=f"under {OVERLAPPED_S_MAX:.0f} s",
            is_kept=every < OVERLAPPED_S_MAX,
        ),
    ]


def print_report(figures: list[Figure], store_delay_by: str) -> None:
    print(f"{MESSAGES} sends of 1 KB, {2 * ONE_WAY_S * 1000:.0f} ms round trip (a proxy in between),")
    print(f"{STORE_S * 1000:.0f} ms to store (injected by {store_delay_by})\n")
    head = f"{'in flight':>9}  {'client':<36}{'seconds':>8}{'msgs/s':>8}   {'must be':<14}"
    print(f"{head}\n{'-' * len(head)}")
    for figure in figures:
        verdict = "" if figure.is_kept else "  NOT SO"
        rate = MESSAGES / figure.took_s
        print(
            f"{figure.in_flight:>9}  {figure.client:<36}{figure.took_s:>8.2f}{rate:>8.0f}   "
            f"{figure.promise:<14}{verdict}"
        )


def bench(*, is_store_delay_in_proxy: bool) -> bool:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-bench-", dir=BASE)))
        generator = LoadGenerator(home)
        broker = OurBroker(home, options=() if is_store_delay_in_proxy else ("--faults",))
        peer = stack.enter_context(broker)
        if not is_store_delay_in_proxy:
            FaultSwitchboard(ManagementClient(broker.http, broker.connection_string)).delay(
                round(STORE_S * 1000)
            )
        back_s = ONE_WAY_S + (STORE_S if is_store_delay_in_proxy else 0.0)
        port = stack.enter_context(far_away(peer.host, peer.port, there_s=ONE_WAY_S, back_s=back_s))
        figures = measure(generator, replace(peer, host="127.0.0.1", port=port))
    print_report(figures, "the proxy" if is_store_delay_in_proxy else "the broker's fault switchboard")
    return all(figure.is_kept for figure in figures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.settle", description=__doc__)
    parser.add_argument(
        "--store-delay-in-proxy", action="store_true", help="delay answers in the proxy, not the broker"
    )
    arguments = parser.parse_args()
    try:
        return 0 if bench(is_store_delay_in_proxy=arguments.store_delay_in_proxy) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
