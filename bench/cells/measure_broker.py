"""What the broker costs: processor time of a message, a commit and a connection, and memory."""

from __future__ import annotations

import base64
import re
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import ours
from bench.cells import measure_database
from bench.cells.clock import processor_s
from bench.loadgen import Load
from bench.machine import busy_s
from bench.peer import BenchError
from tests.soak.scale import Idle, resident_mib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.loadgen import LoadGenerator
    from bench.peer import Peer

WINDOWS = (1, 10, 100, 1000)
SEND_WINDOW = 1000
SENT = 10_000
RELAY_WINDOW = 100
RUN_SECONDS = 0.6
OPENED = 300


class BrokerRun(NamedTuple):
    """One connection pair that sends and receives with a window."""

    window: int
    connections: int
    messages_per_s: float
    ack_ms_p50: float
    cpu_us: float
    """Of the broker, for each message sent, received and settled."""
    commits_per_message: float
    turns_per_message: float
    foreign_cpus: float


class Idleness(NamedTuple):
    """What a broker takes that has nothing to do."""

    resident_mib: float
    cpu_share: float
    """Processors."""
    open_cpu_us: float
    """For one connection opened, with a sender attached; plain text, no TLS."""
    connection_kib: float


def counters(peer: Peer, http: str) -> dict[str, float]:
    """The broker's turns and commits so far."""
    login = base64.b64encode(f"{peer.user}:{peer.password}".encode()).decode()
    request = urllib.request.Request(f"http://{http}/metrics", headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        text = answer.read().decode()
    found = dict(
        re.findall(r"^(pairbus_turns_total|pairbus_commit_seconds_count) ([0-9.e+]+)$", text, re.MULTILINE)
    )
    return {name: float(value) for name, value in found.items()}


def run(
    generator: LoadGenerator,
    peer: Peer,
    http: str,
    window: int,
    connections: int = 1,
    count: int = 0,
    mode: str = "both",
) -> BrokerRun:
    before, busy, cpu, started = (
        counters(peer, http),
        busy_s(),
        processor_s(peer.pid),
        time.monotonic(),
    )
    seconds = 0.0 if count else RUN_SECONDS
    result = generator.run(
        peer, Load(mode=mode, window=window, connections=connections, seconds=seconds, count=count)
    )
    cpu, busy, took = processor_s(peer.pid) - cpu, busy_s() - busy, time.monotonic() - started
    after = counters(peer, http)
    if not result.messages:
        raise BenchError("the broker accepted nothing")
    return BrokerRun(
        window=window,
        connections=connections,
        messages_per_s=result.msgs_per_s,
        ack_ms_p50=result.ack_us_p50 / 1e3,
        cpu_us=cpu / result.messages * 1e6,
        commits_per_message=(after["pairbus_commit_seconds_count"] - before["pairbus_commit_seconds_count"])
        / result.messages,
        turns_per_message=(after["pairbus_turns_total"] - before["pairbus_turns_total"]) / result.messages,
        foreign_cpus=max(0.0, busy - cpu - result.generator_cpu_s) / took,
    )


def broker_runs(
    generator: LoadGenerator, base: Path, turns: int
) -> Iterator[tuple[list[BrokerRun], BrokerRun]]:
    """Sending and receiving by window, and sending alone; so many times."""
    broker = ours.OurBroker(base, options=("--http", "127.0.0.1:0"))
    with broker as peer:
        generator.run(peer, Load(seconds=RUN_SECONDS))
        for _ in range(turns):
            both = [run(generator, peer, broker.http, window) for window in WINDOWS]
            yield both, run(generator, peer, broker.http, SEND_WINDOW, count=SENT, mode="send")
            generator.run(peer, Load(mode="receive", window=SEND_WINDOW, count=SENT))


class _Address(NamedTuple):
    """As much of a test namespace as ``Idle`` needs."""

    amqp_address: str
    connection_string: str


def idleness(base: Path) -> Idleness:
    broker = ours.OurBroker(base, options=("--http", "127.0.0.1:0"))
    with broker as peer:
        time.sleep(1.0)
        memory, cpu, started = resident_mib(peer.pid), processor_s(peer.pid), time.monotonic()
        time.sleep(5.0)
        share = (processor_s(peer.pid) - cpu) / (time.monotonic() - started)
        idle = Idle(_Address(f"{peer.host}:{peer.port}", broker.connection_string))  # type: ignore[arg-type]
        idle.open(20)
        cpu, before = processor_s(peer.pid), resident_mib(peer.pid)
        idle.open(OPENED)
        opened = (processor_s(peer.pid) - cpu) / OPENED
        grown = (resident_mib(peer.pid) - before) / OPENED * 1024
        for connection in idle.sockets:
            connection.close()
    return Idleness(memory, share, opened * 1e6, grown)


def relay_us(generator: LoadGenerator, base: Path, turns: int) -> float:
    """Processor time per message of a node that relays to the owner, at window 100: the least of some short runs."""
    with measure_database.servers(standby=False) as servers:
        options = ("--store", servers.url, "--lease", "10", "--node")
        with (
            ours.OurBroker(base, options=(*options, "owner")),
            ours.OurBroker(base, options=(*options, "other")) as relay,
        ):
            generator.run(relay, Load(seconds=RUN_SECONDS))
            found = []
            for _ in range(turns):
                before = processor_s(relay.pid)
                result = generator.run(relay, Load(window=RELAY_WINDOW, seconds=RUN_SECONDS))
                found.append((processor_s(relay.pid) - before) / result.messages * 1e6)
    return min(found)
