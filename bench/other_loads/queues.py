"""Queues that are not plain, or many: sessions, duplicate detection, receive-and-delete, 1,000 at once; other wires; an open page."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Final

from bench.loadgen import Load
from bench.other_loads.client import receive_in_visits
from bench.other_loads.kit import (
    Management,
    Row,
    Setting,
    beside,
    cost_of,
    elsewhere,
    generated,
    resident_mib,
)
from bench.ours import QUEUE, OurBroker
from bench.peer import Peer
from bench.tunnel import LAYERS, tunnel

SESSIONS: Final = 10_000
VISITS: Final = 1_000
EACH: Final = 2
"""Messages of a session."""
IDS: Final = 1_000_000
IDS_PART: Final = 100_000
QUEUES: Final = 1_000
ROUNDS_OF_ALL: Final = 20
"""Messages of each connection."""
PAGES: Final = 5
POLL_S: Final = 1.0
"""The interval of the live page."""


def _queue(name: str, **settings: object) -> Mapping[str, object]:
    return {"Name": name, "Properties": {"MaxSizeInMegabytes": 5120, **settings}}


def sessions(setting: Setting) -> list[Row]:
    declared = {"Queues": [_queue("sessions", RequiresSession=True)]}
    rows = []
    with OurBroker(setting.home, declared=declared) as peer:
        setting.show(f"{SESSIONS} sessions")
        load = Load(mode="send", window=100, count=SESSIONS * EACH)
        plain, sent = beside(
            setting,
            peer,
            generated(setting, peer, load),
            generated(
                setting,
                peer,
                Load(
                    mode="send",
                    window=100,
                    count=SESSIONS * EACH,
                    address="sessions",
                    sessions=SESSIONS,
                ),
            ),
        )
        rows.append(
            Row(
                load=f"{SESSIONS:,} sessions: send",
                cost=sent.cpu_us,
                yardstick=plain.cpu_us,
                unit="µs CPU",
                note=f"{sent.per_s:,.0f} beside {plain.per_s:,.0f} messages/s",
            )
        )
        visited, accepted = beside(
            setting,
            peer,
            lambda: receive_in_visits(peer, QUEUE, VISITS, EACH, by_session=False),
            lambda: receive_in_visits(peer, "sessions", VISITS, EACH, by_session=True),
        )
        rows.append(
            Row(
                load=f"{SESSIONS:,} sessions: accept the next, {EACH} messages, close",
                cost=accepted.cpu_us * EACH,
                yardstick=visited.cpu_us * EACH,
                unit="µs CPU",
                note="beside a receiver of the plain queue that attaches for as many",
            )
        )
    return rows


def receive_and_delete(setting: Setting) -> list[Row]:
    with OurBroker(setting.home) as peer:
        setting.show("receive and delete")
        plain, deleted = beside(
            setting,
            peer,
            generated(setting, peer, Load(window=100, seconds=setting.seconds)),
            generated(setting, peer, Load(window=100, seconds=setting.seconds, deletes=True)),
        )
    return [
        Row(
            load="receive and delete",
            cost=deleted.cpu_us,
            yardstick=plain.cpu_us,
            unit="µs CPU, send + receive",
            note=f"{deleted.per_s:,.0f} beside {plain.per_s:,.0f} messages/s",
        )
    ]


def duplicates(setting: Setting) -> list[Row]:
    rows = []
    declared = {
        "Queues": [_queue("ids", RequiresDuplicateDetection=True, DuplicateDetectionHistoryTimeWindow="PT1H")]
    }
    with OurBroker(setting.home, declared=declared) as peer:
        load = Load(window=100, seconds=setting.seconds)
        for known in (0, IDS):
            setting.show(f"duplicate detection, {known:,} ids known")
            before = resident_mib(peer.pid)
            for _ in range(known // IDS_PART):
                generated(setting, peer, Load(window=1000, count=IDS_PART, address="ids"))()
            grown = resident_mib(peer.pid) - before
            plain, checked = beside(
                setting,
                peer,
                generated(setting, peer, load),
                generated(setting, peer, Load(window=100, seconds=setting.seconds, address="ids")),
            )
            rows.append(
                Row(
                    load=f"duplicate detection, {known:,} ids known",
                    cost=checked.cpu_us,
                    yardstick=plain.cpu_us,
                    unit="µs CPU, send + receive",
                    note=f"{grown:.0f} MiB more resident" if known else "",
                )
            )
    return rows


def many_queues(setting: Setting) -> list[Row]:
    """Beside one queue with as many connections. To open thousands of them costs more than to use them, so what is told is the
    difference between many messages and one for each connection.
    """
    declared = {"Queues": [_queue(f"many-{number}") for number in range(QUEUES)]}
    rows = []
    with OurBroker(setting.home, declared=declared) as peer:
        for window in (1, 10):
            setting.show(f"{QUEUES} queues, window {window}")
            load = Load(window=window, connections=QUEUES)
            spread = dataclasses.replace(load, address="many", spread=QUEUES)
            plain_us, spread_us = [], []
            for _ in range(setting.rounds):
                plain_us.append(_marginal_us(setting, peer, load))
                spread_us.append(_marginal_us(setting, peer, spread))
            rows.append(
                Row(
                    load=f"{QUEUES:,} queues at once, window {window}",
                    cost=median(spread_us),
                    yardstick=median(plain_us),
                    unit="µs CPU, send + receive",
                    note=f"{2 * QUEUES:,} connections; beside one queue with as many",
                )
            )
    return rows


def _marginal_us(setting: Setting, peer: Peer, load: Load) -> float:
    few, many = QUEUES, QUEUES * ROUNDS_OF_ALL
    spent = []
    for count in (few, many):
        cost = cost_of(peer, generated(setting, peer, dataclasses.replace(load, count=count)))
        spent.append(cost.cpu_us * count)
    return (spent[1] - spent[0]) / (many - few)


def wires(setting: Setting) -> list[Row]:
    rows = []
    with OurBroker(setting.home) as peer:
        for layer in LAYERS:
            for window in (100, 1000):
                setting.show(f"{layer}, window {window}")
                load = Load(window=window, seconds=setting.seconds)
                with tunnel(layer, (peer.host, peer.port)) as port:
                    plain, wrapped = beside(
                        setting,
                        peer,
                        generated(setting, peer, load),
                        generated(setting, elsewhere(peer, port), load),
                    )
                rows.append(
                    Row(
                        load=f"AMQP over {layer}, window {window}",
                        cost=wrapped.cpu_us,
                        yardstick=plain.cpu_us,
                        unit="µs CPU, send + receive",
                    )
                )
    return rows


@contextlib.contextmanager
def pages(peer: Peer, count: int) -> Iterator[None]:
    """So many live pages are open."""
    ended = threading.Event()

    def watch() -> None:
        management = Management(peer)
        while not ended.wait(POLL_S):
            management.ask("GET", "/$page/api/overview")
        management.close()

    threads = [threading.Thread(target=watch, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _watched(peer: Peer, work: Callable[[], int]) -> Callable[[], int]:
    def watched() -> int:
        with pages(peer, PAGES):
            return work()

    return watched


def open_page(setting: Setting) -> list[Row]:
    rows = []
    for entities in (1, 1_000):
        declared = {"Queues": [_queue(f"other-{number}") for number in range(entities - 1)]}
        with OurBroker(setting.home, declared=declared) as peer:
            setting.show(f"{PAGES} live pages of {entities} entities")
            load = Load(window=100, seconds=max(2.0, setting.seconds))

            plain, seen = beside(
                setting,
                peer,
                generated(setting, peer, load),
                _watched(peer, generated(setting, peer, load)),
            )
            rows.append(
                Row(
                    load=f"{PAGES} live pages open, {entities:,} entities",
                    cost=seen.cpu_us,
                    yardstick=plain.cpu_us,
                    unit="µs CPU, send + receive",
                    note=f"{seen.per_s:,.0f} beside {plain.per_s:,.0f} messages/s",
                )
            )
    return rows
