"""A long backlog: what it takes, what receiving from it costs, how soon it is there again, and how long the loop pauses."""

from __future__ import annotations

import time
from typing import Final

from bench.loadgen import Load
from bench.other_loads.kit import Management, Row, Setting, cost_of, generated, resident_mib
from bench.other_loads.pauses import Pauses
from bench.ours import QUEUE, OurBroker
from bench.peer import Peer

MESSAGES: Final = 1_000_000
MESSAGES_FULL: Final = 10_000_000
FEW: Final = 20_000
TAKEN: Final = 100_000
FILL_PART: Final = 200_000
SETTLE_S: Final = 8.0
"""After a load: so long the collector and the C library's heap get to do what they do by themselves."""


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
        rows.append(pauses.row(f"{messages:,} messages arrive", peer))
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
        rows.append(pauses.row(f"{TAKEN:,} of {messages:,} messages leave", peer))
        started = time.monotonic()
        peer = broker.reopen()
        opened = time.monotonic() - started
        setting.generator.run(peer, Load(mode="receive", window=1, count=1, address="long"))
        delivered = time.monotonic() - started
        rows.append(
            Row(
                load=f"kill -9 and open again with {messages - TAKEN:,} messages",
                cost=opened,
                yardstick=2.0,
                unit="s until ready, beside the goal",
                note=f"first delivery after {delivered:.1f} s; {peer.cpu_seconds():.1f} s of CPU, start of the program included; "
                f"{resident_mib(peer.pid):.0f} MiB resident",
            )
        )
        pauses.take(peer)  # opening is one long callback, before anybody is served
        generated(setting, peer, Load(window=100, seconds=setting.seconds, address=QUEUE))()
        time.sleep(SETTLE_S)
        rows.append(pauses.row("after opening again", peer))
        _purge(peer)
        generated(setting, peer, Load(window=100, seconds=setting.seconds, address=QUEUE))()
        rows.append(pauses.row(f"a queue of {messages - TAKEN:,} messages is deleted", peer))
    return rows
