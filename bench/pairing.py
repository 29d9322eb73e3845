"""What pairing costs and how fast it reacts, as ratios from one run.

1. A healthy paired send beside a plain send of the official SDK, interleaved (target: at most 1.02): by one caller of the synchronous
   client, by one of the asynchronous client, and by many coroutines that share one paired sender. Coroutines of the SDK have a sender
   each, as it demands. A second plain sender takes part, so that one sees how far a ratio is from 1 by chance.
2. The in-process drain beside what the official SDK can do with receive + send + complete (target: at least 0.8).
3. From the kill of the primary to the first parked message, beyond the failover interval.
4. From the primary's recovery to failback, beyond the ping interval.
5. Sends that go to the spool, while both namespaces are away, beside single sends of the official SDK, in turns: by one caller, by
   threads and by coroutines (target: coroutines send at least 5 times as many messages as one caller of the SDK). Each send waits
   for a sync of the disk, which all who wait share; one caller alone shares it with nobody. Threads and coroutines of the SDK have
   a sender each, as it demands. On both sides the messages are made before the time starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.exceptions import ServiceBusError

from bench.peer import progress
from pairbus.errors import PairingError
from pairbus.pairing.client.aio import PairedServiceBusClient as AsyncPaired
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.rules.health import Health
from pairbus.testing import Pair

QUEUE: Final = "bench"
PLAIN: Final = "plain"
CHUNK: Final = 10
PAGE: Final = 100
WARM_UP: Final = 20
COROUTINES: Final = 100
"""Coroutines that share one paired sender. One round is as long as several of one caller."""
COROUTINE_ROUNDS: Final = 4
DRAIN_ROUNDS: Final = 5
BODY: Final = b"x" * 1024
FAILOVER_S: Final = 1.0
PING_S: Final = 1.0
PATIENCE_S: Final = 120.0
HEALTHY_RATIO_MAX: Final = 1.02
SPOOL_RATIO_MIN: Final = 5.0
SPOOL_ROUNDS: Final = 5
SPOOL_ONE: Final = 100
SPOOL_THREADS: Final = 8
SPOOL_COROUTINES: Final = 100
SPOOL_EACH: Final = 40
"""Sends of one thread or coroutine; one caller alone makes ``SPOOL_ONE``."""
DRAIN_RATIO_MIN: Final = 0.8


@dataclass(frozen=True, slots=True)
class Healthy:
    """Milliseconds of one send, and the median of neighbours' ratios."""

    plain_ms: float
    paired_ms: float
    ratio: float
    control_ratio: float
    """That of a second plain sender beside the first: how far a ratio is from 1 by chance in this run."""

    def line(self, what: str) -> str:
        """For people."""
        return (
            f"healthy send, {what}: plain SDK {self.plain_ms:.3f} ms, paired {self.paired_ms:.3f} ms, "
            f"ratio {self.ratio:.3f} (target <= {HEALTHY_RATIO_MAX}; plain beside plain {self.control_ratio:.3f})"
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """Messages a second."""

    sdk_per_s: float
    syphon_per_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Reaction:
    """Seconds from the kill and from the return."""

    kill_to_parked_s: float
    beyond_interval_s: float
    recovery_to_failback_s: float
    beyond_ping_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Single sends a second of one side: by one caller, by threads, by coroutines."""

    one: float
    threads: float
    coroutines: float


@dataclass(frozen=True, slots=True)
class Spool:
    """Sends of the official SDK to its primary, and sends into the spool."""

    sdk: Rates
    spool: Rates
    ratio: float
    """Of coroutines that send into the spool to one caller of the SDK: the median of neighbours' ratios, as the following ones."""
    alike: Rates
    """Ratios of the spool to the SDK with as many callers: not messages a second."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Everything, from one run on one pair."""

    healthy: Healthy
    healthy_aio: Healthy
    healthy_coroutines: Healthy
    drain: Drain
    reaction: Reaction
    spool: Spool

    def lines(self) -> list[str]:
        """For people."""
        drain, reaction = self.drain, self.reaction
        lines = [
            self.healthy.line("one caller"),
            self.healthy_aio.line("one coroutine"),
            self.healthy_coroutines.line(f"{COROUTINES} coroutines"),
        ]
        lines.append(
            f"drain: plain SDK {drain.sdk_per_s:.0f}/s, syphon {drain.syphon_per_s:.0f}/s, "
            f"ratio {drain.ratio:.2f} (target >= {DRAIN_RATIO_MIN})"
        )
        lines.append(
            f"kill to first parked message: {reaction.kill_to_parked_s:.2f} s, "
            f"{reaction.beyond_interval_s:+.2f} s beyond the failover interval"
        )
        lines.append(
            f"recovery to failback: {reaction.recovery_to_failback_s:.2f} s, "
            f"{reaction.beyond_ping_s:+.2f} s beyond the ping interval"
        )
        return [*lines, spool_line(self.spool)]


def spool_line(result: Spool) -> str:
    """For people."""
    sdk, spooled, alike = result.sdk, result.spool, result.alike
    return (
        f"spooled sends: by {SPOOL_COROUTINES} coroutines {spooled.coroutines:.0f}/s, one caller of the plain SDK {sdk.one:.0f}/s, "
        f"ratio {result.ratio:.1f} (target >= {SPOOL_RATIO_MIN:g}); with as many callers, spool and SDK: "
        f"one {spooled.one:.0f}/s and {sdk.one:.0f}/s, ratio {alike.one:.1f}; "
        f"{SPOOL_THREADS} threads {spooled.threads:.0f}/s and {sdk.threads:.0f}/s, ratio {alike.threads:.1f}; "
        f"{SPOOL_COROUTINES} coroutines {spooled.coroutines:.0f}/s and {sdk.coroutines:.0f}/s, ratio {alike.coroutines:.1f}"
    )


def pairing(rounds: int, messages: int, state: Path) -> Pairing:
    """Measure on one pair. ``state`` is a directory for ledgers."""
    with Pair(queues=[QUEUE]) as pair:
        pair.secondary.create_queue(PLAIN)
        progress("healthy sends, in turns with the plain SDK")
        healthy = _healthy(pair, rounds, state)
        healthy_aio = asyncio.run(_healthy_aio(pair, rounds))
        healthy_coroutines = asyncio.run(_healthy_coroutines(pair, max(1, rounds // COROUTINE_ROUNDS)))
        progress("the drain, in turns with the plain SDK")
        drained = _drain(pair, messages, state)
        progress("a kill, a failover, a return")
        reaction = _reaction(pair, state)
        progress("sends into the spool, in turns with the plain SDK")
        return Pairing(healthy, healthy_aio, healthy_coroutines, drained, reaction, spool(pair, state))


def spool(pair: Pair, state: Path) -> Spool:
    """Single sends with the SDK to ``pair``, and into spools for another pair, which is away."""
    with Pair(queues=[QUEUE]) as away:
        strings = away.primary.connection_string, away.secondary.connection_string
        away.primary.kill()
        away.secondary.kill()
        rounds = [_spool_round(pair, strings, state / f"spool-{turn}") for turn in range(SPOOL_ROUNDS)]
        away.primary.restart()
        away.secondary.restart()
    return Spool(
        _medians([sdk for sdk, _ in rounds]),
        _medians([spooled for _, spooled in rounds]),
        statistics.median(spooled.coroutines / sdk.one for sdk, spooled in rounds),
        _medians(
            [
                Rates(
                    spooled.one / sdk.one, spooled.threads / sdk.threads, spooled.coroutines / sdk.coroutines
                )
                for sdk, spooled in rounds
            ]
        ),
    )


def _medians(rates: list[Rates]) -> Rates:
    one, threads, coroutines = (
        statistics.median(column)
        for column in zip(*((rate.one, rate.threads, rate.coroutines) for rate in rates), strict=True)
    )
    return Rates(one, threads, coroutines)


def _spool_round(pair: Pair, strings: tuple[str, str], directory: Path) -> tuple[Rates, Rates]:
    with pair.primary.client() as client:
        sdk_one, sdk_threads = _thread_rates(
            [client.get_queue_sender(QUEUE) for _ in range(SPOOL_THREADS)], WARM_UP
        )
    options = _spool_options(directory / "threads")
    with PairedServiceBusClient.from_connection_strings(*strings, options=options, retry_total=0) as paired:
        one, threads = _thread_rates([paired.get_queue_sender(QUEUE)] * SPOOL_THREADS, 1)
    sdk_coroutines = asyncio.run(_sdk_coroutines(pair.primary.connection_string))
    coroutines = asyncio.run(_spool_coroutines(strings, directory / "coroutines"))
    return Rates(sdk_one, sdk_threads, sdk_coroutines), Rates(one, threads, coroutines)


def _thread_rates(senders: list[Any], warm_up: int) -> tuple[float, float]:
    """Sends a second of one caller, and of one thread for each sender. Closes the senders."""
    ready = threading.Barrier(len(senders) + 1, timeout=PATIENCE_S)
    ends: list[float] = []
    loads = [[ServiceBusMessage(BODY) for _ in range(SPOOL_EACH)] for _ in senders]

    def work(sender: Any, load: list[ServiceBusMessage]) -> None:
        _send(sender, warm_up)
        ready.wait()
        ready.wait()
        for message in load:
            sender.send_messages(message)
        ends.append(time.perf_counter())
        ready.wait()  # several may share one sender
        sender.close()

    callers = [
        threading.Thread(target=work, args=pair, daemon=True) for pair in zip(senders, loads, strict=True)
    ]
    for caller in callers:
        caller.start()
    ready.wait()
    one = 1 / _send(senders[0], SPOOL_ONE)
    begun = time.perf_counter()
    ready.wait()
    ready.wait()
    for caller in callers:
        caller.join()
    return one, len(senders) * SPOOL_EACH / (max(ends) - begun)


async def _sdk_coroutines(primary: str) -> float:
    async with AsyncClient.from_connection_string(primary) as client:
        senders = [client.get_queue_sender(QUEUE) for _ in range(SPOOL_COROUTINES)]
        rate = await _coroutine_rate(senders)
        await asyncio.gather(*(sender.close() for sender in senders))
        return rate


async def _spool_coroutines(strings: tuple[str, str], directory: Path) -> float:
    client = AsyncPaired.from_connection_strings(*strings, options=_spool_options(directory), retry_total=0)
    async with client:
        return await _coroutine_rate([client.get_queue_sender(QUEUE)] * SPOOL_COROUTINES)


async def _coroutine_rate(senders: list[Any], each: int = SPOOL_EACH) -> float:
    """Sends a second, by one coroutine for each sender, which sends ``each`` messages."""
    different = {id(sender): sender for sender in senders}.values()
    await asyncio.gather(*(sender.send_messages(ServiceBusMessage(BODY)) for sender in different))
    loads = [[ServiceBusMessage(BODY) for _ in range(each)] for _ in senders]

    async def work(sender: Any, load: list[ServiceBusMessage]) -> None:
        for message in load:
            await sender.send_messages(message)

    begun = time.perf_counter()
    await asyncio.gather(*(work(sender, load) for sender, load in zip(senders, loads, strict=True)))
    return len(senders) * each / (time.perf_counter() - begun)


def _spool_options(directory: Path) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        backlog_queue_count=1,
        failover_interval=timedelta(0),
        ping_primary_interval=timedelta(minutes=5),
        spool=directory,
    )


def _paired(pair: Pair, state: Path, **changes: Any) -> PairedServiceBusClient:
    options: dict[str, Any] = {
        "backlog_queue_count": 4,
        "failover_interval": timedelta(seconds=FAILOVER_S),
        "ping_primary_interval": timedelta(seconds=PING_S),
        **changes,
    }
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        options=SendAvailabilityOptions(**options),
        retry_total=0,
    )
    client.ledger = state
    return client


def _paired_aio(pair: Pair) -> AsyncPaired:
    options = SendAvailabilityOptions(backlog_queue_count=4, failover_interval=timedelta(seconds=FAILOVER_S))
    return AsyncPaired.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, options=options, retry_total=0
    )


def _healthy(pair: Pair, rounds: int, state: Path) -> Healthy:
    """Chunks of plain and paired sends take turns, so that foreign load meets both alike."""
    with (
        pair.primary.client() as plain_client,
        pair.primary.client() as other_client,
        _paired(pair, state) as client,
        plain_client.get_queue_sender(QUEUE) as plain,
        other_client.get_queue_sender(QUEUE) as other,
        client.get_queue_sender(QUEUE) as ours,
    ):
        senders: list[tuple[str, Any]] = [("plain", plain), ("other", other), ("paired", ours)]
        for _, sender in senders:
            _send(sender, WARM_UP)
        times: dict[str, list[float]] = {name: [] for name, _ in senders}
        orders = list(permutations(senders))
        for turn in range(rounds):
            for name, sender in orders[turn % len(orders)]:
                times[name].append(_send(sender, CHUNK))
    return _compared(times)


async def _healthy_aio(pair: Pair, rounds: int) -> Healthy:
    """The same with the asynchronous clients."""
    primary = pair.primary.connection_string
    async with (
        AsyncClient.from_connection_string(primary) as plain_client,
        AsyncClient.from_connection_string(primary) as other_client,
        _paired_aio(pair) as client,
        plain_client.get_queue_sender(QUEUE) as plain,
        other_client.get_queue_sender(QUEUE) as other,
        client.get_queue_sender(QUEUE) as ours,
    ):
        senders: list[tuple[str, Any]] = [("plain", plain), ("other", other), ("paired", ours)]
        for _, sender in senders:
            await _send_aio(sender, WARM_UP)
        times: dict[str, list[float]] = {name: [] for name, _ in senders}
        orders = list(permutations(senders))
        for turn in range(rounds):
            for name, sender in orders[turn % len(orders)]:
                times[name].append(await _send_aio(sender, CHUNK))
    return _compared(times)


async def _healthy_coroutines(pair: Pair, rounds: int) -> Healthy:
    """Many coroutines, with one paired sender for all and with a sender of the SDK for each."""
    primary = pair.primary.connection_string
    async with (
        AsyncClient.from_connection_string(primary) as plain_client,
        AsyncClient.from_connection_string(primary) as other_client,
        _paired_aio(pair) as client,
        client.get_queue_sender(QUEUE) as ours,
    ):
        senders: list[tuple[str, list[Any]]] = [
            ("plain", [plain_client.get_queue_sender(QUEUE) for _ in range(COROUTINES)]),
            ("other", [other_client.get_queue_sender(QUEUE) for _ in range(COROUTINES)]),
            ("paired", [ours] * COROUTINES),
        ]
        times: dict[str, list[float]] = {name: [] for name, _ in senders}
        orders = list(permutations(senders))
        for turn in range(-1, rounds):
            for name, several in orders[turn % len(orders)]:
                took = 1 / await _coroutine_rate(several, CHUNK)
                if turn >= 0:
                    times[name].append(took)
        await asyncio.gather(*(sender.close() for _, several in senders for sender in set(several)))
    return _compared(times)


def _compared(times: dict[str, list[float]]) -> Healthy:
    # Neighbours in time are compared with each other; the median leaves out the turns that a foreign load hit.
    return Healthy(
        statistics.median(times["plain"]) * 1000,
        statistics.median(times["paired"]) * 1000,
        _median_ratio(times["paired"], times["plain"]),
        _median_ratio(times["other"], times["plain"]),
    )


def _median_ratio(ours: list[float], plain: list[float]) -> float:
    return statistics.median(mine / theirs for mine, theirs in zip(ours, plain, strict=True))


def _send(sender: Any, count: int) -> float:
    messages = [ServiceBusMessage(BODY) for _ in range(count)]
    begun = time.perf_counter()
    for message in messages:
        sender.send_messages(message)
    return (time.perf_counter() - begun) / count


async def _send_aio(sender: Any, count: int) -> float:
    messages = [ServiceBusMessage(BODY) for _ in range(count)]
    begun = time.perf_counter()
    for message in messages:
        await sender.send_messages(message)
    return (time.perf_counter() - begun) / count


def _reaction(pair: Pair, state: Path) -> Reaction:
    """Kill, park, restart, fail back."""
    with _paired(pair, state) as client, client.get_queue_sender(QUEUE) as sender:
        sender.send_messages(ServiceBusMessage(BODY))
        pair.primary.kill()
        killed = time.monotonic()
        while client.statistics().to_backlog == 0:
            _check_patience(killed, "a failover")
            try:
                sender.send_messages(ServiceBusMessage(BODY), timeout=5)
            except ServiceBusError:
                continue
        parked = time.monotonic()
        pair.primary.restart()
        recovered = time.monotonic()
        while client.health()[QUEUE].state is not Health.HEALTHY:
            _check_patience(recovered, "a failback")
            time.sleep(0.005)
        back = time.monotonic()
    return Reaction(
        parked - killed, parked - killed - FAILOVER_S, back - recovered, back - recovered - PING_S
    )


def _drain(pair: Pair, messages: int, state: Path) -> Drain:
    """The same messages through the SDK alone and through the in-process syphon, in turns."""
    plain: list[float] = []
    ours: list[float] = []
    options = {
        "failover_interval": timedelta(0),
        "enable_syphon": True,
        "ping_primary_interval": timedelta(minutes=5),
    }
    with _paired(pair, state, **options) as client, client.get_queue_sender(QUEUE) as sender:
        for _ in range(DRAIN_ROUNDS):
            plain.append(asyncio.run(_plain_drain(pair, messages)))
            ours.append(_our_drain(client, sender, messages))
    ratios = [mine / theirs for mine, theirs in zip(ours, plain, strict=True)]
    return Drain(statistics.median(plain), statistics.median(ours), statistics.median(ratios))


def _our_drain(client: PairedServiceBusClient, sender: Any, messages: int) -> float:
    before = client.statistics().restored
    client.fail_over(QUEUE)
    for _ in range(messages // PAGE):
        sender.send_messages([ServiceBusMessage(BODY) for _ in range(PAGE)])
    client.mark_healthy(QUEUE)
    # As with the SDK alone, the links are open when the time starts.
    first = _wait_for(client, before + 1)
    begun = time.perf_counter()
    _wait_for(client, before + messages)
    return max(1, before + messages - first) / (time.perf_counter() - begun)


def _wait_for(client: PairedServiceBusClient, count: int) -> int:
    begun = time.monotonic()
    while (restored := client.statistics().restored) < count:
        _check_patience(begun, "a drain")
        time.sleep(0.002)
    return restored


def _check_patience(begun: float, what: str) -> None:
    if time.monotonic() > begun + PATIENCE_S:
        raise PairingError(
            f"the benchmark waited {PATIENCE_S:.0f} s for {what} in vain: is this machine very busy?"
        )


async def _plain_drain(pair: Pair, messages: int) -> float:
    """Receive from a queue of the secondary, send to the primary, complete: what the SDK can do without us."""
    async with (
        AsyncClient.from_connection_string(pair.secondary.connection_string) as secondary,
        AsyncClient.from_connection_string(pair.primary.connection_string) as primary,
    ):
        async with secondary.get_queue_sender(PLAIN) as filler:
            for _ in range(messages // PAGE):
                await filler.send_messages([ServiceBusMessage(BODY) for _ in range(PAGE)])
        async with (
            secondary.get_queue_receiver(PLAIN) as receiver,
            primary.get_queue_sender(QUEUE) as sender,
        ):
            begun = time.perf_counter()
            done = 0
            while done < messages:
                received = await receiver.receive_messages(max_message_count=PAGE, max_wait_time=5)
                await sender.send_messages([ServiceBusMessage(b"".join(item.body)) for item in received])
                for item in received:
                    await receiver.complete_message(item)
                done += len(received)
            return messages / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(prog="pairbus bench pairing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=80, help="turns of healthy sends; default %(default)s")
    parser.add_argument(
        "--messages",
        type=int,
        default=1_000,
        help="to drain in one round, by the hundred; default %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.messages < PAGE:
        parser.error(f"--rounds is at least 1 and --messages at least {PAGE}")
    for name in ("azure", "pairbus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="pairbus-bench-") as state:
        result = pairing(arguments.rounds, arguments.messages - arguments.messages % PAGE, Path(state))
    print(json.dumps(asdict(result)) if arguments.json else "\n".join(result.lines()))


if __name__ == "__main__":
    main()
