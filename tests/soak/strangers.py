"""Peers without a key against one broker: many one after the other, then many at once, each as bad as it can be.

    python tests/soak/strangers.py [--visits 10000] [--crowd 1000] [--seconds 20]

A client with a key sends and receives all the while. Prints what it measured and ends with 1 when a bound is broken:
resident memory back within 10 % of what it was before the first stranger, the client's p99 at most 5 times its p99
without strangers, ``/health`` answered throughout.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import selectors
import socket
import statistics
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pairbus.amqp.transport.framing import amqp_frame
from pairbus.testing import Namespace
from tests.simulation.wire import ClientConnection
from tests.soak.scale import key_of, resident_mib
from tests.unit.gateway.test_strangers import BEGUN, FLOODS, opening

RESIDENT_GROWTH_MAX = 1.10
P99_GROWTH_MAX = 5.0
PROBES_PER_SECOND = 100
WARM_UP = 2_000
"""Messages before the first measurement."""
FIRST_QUIET_SECONDS = 75
"""Long enough for the first minute of usage to be written, which loads libraries that stay."""
VISIT_SECONDS_MAX = 2.0
SETTLE_SECONDS = 30
"""How long the broker has to give memory back."""


def floods() -> list[bytes]:
    """What strangers send: the worst for memory, the worst for time, requests, and nothing at all."""
    requests = b"GET /orders?api-version=2021-05 HTTP/1.1\r\nHost: x\r\n\r\n"
    token = b"PUT /orders HTTP/1.1\r\nHost: x\r\nAuthorization: SharedAccessSignature sr=x&sig=y&se=9999999999&skn=z\r\n\r\n"
    many = [opening() + flood for flood in FLOODS.values()]
    empty = opening() + BEGUN + amqp_frame(0, b"") * 3_000
    return [*many, empty, requests * 400, token * 200, b"hello there", b"", b"\x16\x03\x01\x00\x05hello"]


class Probe:
    """A client with a key: one message out and back, again and again, each timed."""

    def __init__(self, address: tuple[str, int], key: str) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = ClientConnection(user="RootManageSharedAccessKey", password=key)
        session = self._client.session()
        self._sender = session.sender("orders")
        self._receiver = session.receiver("orders", receive_and_delete=True)
        self._exchange(lambda: self._sender.is_attached and self._receiver.is_attached)
        self._receiver.grant(1_000)
        self._flush()

    def once(self) -> float:
        """Seconds from sending one message to its being accepted and delivered."""
        began = time.perf_counter()
        number = self._sender.send(b"\x00\x53\x75\xa0\x05probe")
        received = len(self._receiver.deliveries)
        self._exchange(lambda: number in self._sender.outcomes and len(self._receiver.deliveries) > received)
        took = time.perf_counter() - began
        self._sender.outcomes.clear()
        self._receiver.deliveries.clear()
        if self._receiver.credit < 500:
            self._receiver.grant(1_000)
            self._flush()
        return took

    def _exchange(self, is_done) -> None:  # type: ignore[no-untyped-def]
        self._flush()
        while not is_done():
            data = self._socket.recv(65_536)
            if not data:
                raise SystemExit("the client with a key was disconnected")
            self._client.receive(data)
            self._flush()

    def _flush(self) -> None:
        output = self._client.take_output()
        if output:
            self._socket.sendall(output)


def probe(address: tuple[str, int], key: str, results, stop) -> None:  # type: ignore[no-untyped-def]
    """Measure until told to stop; a process of its own."""
    client = Probe(address, key)
    for _ in range(WARM_UP):
        client.once()
    results.put("warm")
    while not stop.is_set():
        results.put((time.monotonic(), client.once()))
        time.sleep(1 / PROBES_PER_SECOND)


def visit(address: tuple[str, int], data: bytes) -> None:
    """One stranger: sends everything, reads what comes, goes when the broker has had enough or time is up."""
    try:
        with socket.create_connection(address, timeout=VISIT_SECONDS_MAX) as sock:
            sock.settimeout(VISIT_SECONDS_MAX)
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
    except OSError:
        return


def one_after_the_other(address: tuple[str, int], visits: int) -> None:
    """A process of its own; elsewhere in the world, so it yields the processor to the broker and the client."""
    os.nice(10)
    kinds = floods()
    for number in range(visits):
        visit(address, kinds[number % len(kinds)])


def at_once(address: tuple[str, int], crowd: int, seconds: float) -> None:
    """Keep this many connections open; whenever one is cut, come again with another flood."""
    os.nice(10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    chance = random.Random(1)
    kinds = floods()
    selector = selectors.DefaultSelector()
    until = time.monotonic() + seconds
    arrivals = 0

    def arrive() -> None:
        nonlocal arrivals
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address)
        selector.register(
            sock, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(chance.choice(kinds))
        )
        arrivals += 1

    for _ in range(crowd):
        arrive()
    while time.monotonic() < until:
        for key, events in selector.select(timeout=1):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                rest = key.data
                if events & selectors.EVENT_WRITE:
                    rest = rest[sock.send(rest) :] if rest else rest
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0)
                    selector.modify(sock, wanted, rest)
                if events & selectors.EVENT_READ and not sock.recv(65_536):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(sock)
                sock.close()
                arrive()
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    print(f"  {crowd:,} strangers at once, {arrivals:,} arrivals in {seconds:.0f} s")


def p99_ms(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] * 1000


class Soak:
    """One broker, one client that measures, and what strangers do meanwhile."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        host, _, port = namespace.amqp_address.rpartition(":")
        self.address = (host, int(port))
        self.broken: list[str] = []
        context = multiprocessing.get_context("spawn")
        self._context = context
        self._results = context.Queue()
        self._stop = context.Event()
        self._probe = context.Process(
            target=probe, args=(self.address, key_of(namespace.connection_string), self._results, self._stop)
        )
        self._probe.start()
        assert self._results.get() == "warm"
        self._quiet_times: list[float] = []
        self._p99s: dict[str, float] = {}
        self.baseline_mib = 0.0

    def quiet(self, seconds: float) -> None:
        """Measure without strangers, before them and in between: a busy machine changes from minute to minute."""
        times = self._during(lambda: time.sleep(seconds))
        self._quiet_times += times
        if not self.baseline_mib:
            self.baseline_mib = resident_mib(self.namespace.pid)
        print(
            f"  without strangers: p99 {p99_ms(times):.1f} ms, resident {resident_mib(self.namespace.pid):.0f} MiB"
        )

    def under(self, name: str, target, *args: object) -> None:  # type: ignore[no-untyped-def]
        """Measure while strangers do this; then memory must come back."""
        attack = self._context.Process(target=target, args=(self.address, *args))
        unhealthy = 0
        peak = 0.0

        def watch() -> None:
            nonlocal unhealthy, peak
            attack.start()
            while attack.is_alive():
                unhealthy += not self._is_healthy()
                peak = max(peak, resident_mib(self.namespace.pid))
                time.sleep(0.25)

        times = self._during(watch)
        p99 = p99_ms(times)
        resident = self._settled_mib()
        print(
            f"  {name}: p99 {p99:.1f} ms, worst {max(times) * 1000:.0f} ms, "
            f"peak {peak:.0f} MiB, then {resident:.0f} MiB ({resident / self.baseline_mib:.0%}), "
            f"/health failed {unhealthy} times"
        )
        self._p99s[name] = p99
        if resident > RESIDENT_GROWTH_MAX * self.baseline_mib:
            self.broken.append(f"{name}: resident {resident:.0f} MiB")
        if unhealthy:
            self.broken.append(f"{name}: /health failed {unhealthy} times")

    def judge(self) -> None:
        """Compare the client's p99 beside strangers with that of all the time without them."""
        quiet = p99_ms(self._quiet_times)
        for name, p99 in self._p99s.items():
            print(f"  {name}: p99 {p99:.1f} ms, {p99 / quiet:.1f} times the {quiet:.1f} ms without them")
            if p99 > P99_GROWTH_MAX * quiet:
                self.broken.append(f"{name}: p99 {p99:.1f} ms against {quiet:.1f} ms")

    def close(self) -> None:
        self._stop.set()
        while self._probe.is_alive():
            while not self._results.empty():
                self._results.get()
            time.sleep(0.05)

    def _during(self, act) -> list[float]:  # type: ignore[no-untyped-def]
        began = time.monotonic()
        act()
        ended = time.monotonic()
        times: list[float] = []
        while True:
            at, took = self._results.get()
            if at > ended:
                return times
            if at >= began:
                times.append(took)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.namespace.http_address}/health", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "healthy")
        except OSError:
            return False

    def _settled_mib(self) -> float:
        until = time.monotonic() + SETTLE_SECONDS
        resident = resident_mib(self.namespace.pid)
        while resident > RESIDENT_GROWTH_MAX * self.baseline_mib and time.monotonic() < until:
            time.sleep(1)
            resident = resident_mib(self.namespace.pid)
        return resident


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--visits", type=int, default=10_000)
    parser.add_argument("--crowd", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with Namespace("strangers", queues=["orders"], process=True) as namespace:
        soak = Soak(namespace)
        soak.quiet(FIRST_QUIET_SECONDS)
        soak.under(f"{options.visits:,} one after the other", one_after_the_other, options.visits)
        soak.quiet(10)
        soak.under(f"{options.crowd:,} at once", at_once, options.crowd, options.seconds)
        soak.quiet(10)
        soak.judge()
        soak.close()
    for line in soak.broken:
        print(f"BROKEN: {line}")
    return 1 if soak.broken else 0


if __name__ == "__main__":
    sys.exit(main())
