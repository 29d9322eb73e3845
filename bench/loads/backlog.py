"""A long backlog: what it takes, what receiving from it costs, how soon it is there again, and how long the loop pauses."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Final

from bench.loadgen import Load
from bench.loads.kit import Management, Row, Setting, cost_of, generated, resident_mib
from bench.ours import QUEUE, OurBroker
from bench.peer import BenchError, Peer
from bench.watched import PAUSES_FILE

MESSAGES: Final = 1_000_000
MESSAGES_FULL: Final = 10_000_000
FEW: Final = 20_000
TAKEN: Final = 100_000
PAUSE_MS_MAX: Final = 50
FILL_PART: Final = 1_000_000
ANSWER_S_MAX: Final = 30.0
SETTLE_S: Final = 8.0
"""After a load: so long the collector and the C library's heap get to do what they do by themselves."""


class Pauses:
    """The longest callbacks of a watched broker."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "pauses.json"
        os.environ[PAUSES_FILE] = str(self._file)

    def take(self, peer: Peer) -> dict[str, list[tuple[float, str]]]:
        """Those since last taken, longest first, in milliseconds."""
        self._file.unlink(missing_ok=True)
        os.kill(peer.pid, signal.SIGUSR2)
        deadline = time.monotonic() + ANSWER_S_MAX
        while not self._file.exists():
            if time.monotonic() > deadline:
                raise BenchError("the watched broker tells no pauses")
            time.sleep(0.05)
        told: dict[str, list[tuple[float, str]]] = json.loads(self._file.read_text())
        return told


def _fill(setting: Setting, peer: Peer, count: int) -> None:
    while count > 0:
        part = min(count, FILL_PART)
        setting.generator.run(peer, Load(mode="send", window=1000, connections=2, count=part, address="long"))
        count -= part


def _purge(peer: Peer) -> None:
    management = Management(peer)
    management.ask("DELETE", "/long?api-version=2021-05")
    management.close()


def measure(setting: Setting) -> list[Row]:
    messages = MESSAGES_FULL if setting.is_full else MESSAGES
    rows: list[Row] = []
    pauses = Pauses(setting.home)
    size_mb = 81_920 if setting.is_full else 5120
    declared = {"Queues": [{"Name": "long", "Properties": {"MaxSizeInMegabytes": size_mb}}]}
    broker = OurBroker(setting.home, declared=declared, module="bench.watched")
    with broker as peer:
        empty = resident_mib(peer.pid)
        _fill(setting, peer, FEW)
        few = cost_of(
            peer, generated(setting, peer, Load(mode="receive", window=100, count=FEW, address="long"))
        )
        setting.show(f"{messages:,} messages queued")
        pauses.take(peer)
        _fill(setting, peer, messages)
        time.sleep(SETTLE_S)
        _pause_row(rows, f"{messages:,} messages arrive", pauses, peer)
        resident = resident_mib(peer.pid)
        rows.append(
            Row(
                load=f"{messages:,} messages of 1 KB queued: memory",
                cost=resident,
                yardstick=empty,
                unit="MiB resident, beside an empty broker",
                note=f"{(resident - empty) * 1024 * 1024 / messages:.0f} bytes a message",
            )
        )
        many = cost_of(
            peer, generated(setting, peer, Load(mode="receive", window=100, count=TAKEN, address="long"))
        )
        rows.append(
            Row(
                load=f"receive {TAKEN:,} from a backlog of {messages:,}",
                cost=many.cpu_us,
                yardstick=few.cpu_us,
                unit=f"µs CPU, beside a backlog of {FEW:,}",
                note=f"{many.per_s:,.0f} messages/s",
            )
        )
        generated(setting, peer, Load(window=100, seconds=setting.seconds, address=QUEUE))()
        time.sleep(SETTLE_S)
        _pause_row(rows, f"{TAKEN:,} of {messages:,} messages leave", pauses, peer)
        started = time.monotonic()
        peer = broker.reopen()
        opened = time.monotonic() - started
        rows.append(
            Row(
                load=f"kill -9 and open again with {messages - TAKEN:,} messages",
                cost=opened,
                yardstick=2.0,
                unit="s until ready, beside the goal",
                note=f"{resident_mib(peer.pid):.0f} MiB resident",
            )
        )
        generated(setting, peer, Load(window=100, seconds=setting.seconds, address=QUEUE))()
        time.sleep(SETTLE_S)
        _pause_row(rows, "after opening again", pauses, peer)
        _purge(peer)
        _pause_row(rows, f"a queue of {messages - TAKEN:,} messages is deleted", pauses, peer)
    return rows


def _pause_row(rows: list[Row], what: str, pauses: Pauses, peer: Peer) -> None:
    told = pauses.take(peer)
    longest, callback = told["cpu"][0] if told["cpu"] else (0.0, "")
    collected = told["gc"][0][0] if told["gc"] else 0.0
    wall = told["wall"][0][0] if told["wall"] else 0.0
    rows.append(
        Row(
            load=f"longest pause of the loop: {what}",
            cost=longest,
            yardstick=PAUSE_MS_MAX,
            unit="ms of the loop's own CPU, beside the goal",
            note=f"by the wall {wall:.0f} ms; longest garbage collection {collected:.0f} ms; {callback.split(' at 0x')[0][:60]}",
        )
    )
