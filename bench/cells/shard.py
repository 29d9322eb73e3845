"""A shard filled with messages, and the restart of a broker that replays it.

python -m bench.cells.shard POSTGRES_URL SHARD      prints what the replay took
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from pairbus.engine.records import MessageStored
from pairbus.gateway.broker import Broker
from pairbus.model.entity import QUEUE, Settings
from pairbus.model.message import Message
from pairbus.server.assemble import recover
from pairbus.storage.postgres.opening import open_database
from pairbus.storage.table.ports import Acquired, SequenceTaken
from pairbus.storage.table.store import TableStore
from tests.soak.scale import resident_mib

if TYPE_CHECKING:
    from pairbus.storage.ports import Store
    from pairbus.storage.table.ports import LeaseTable

ADDRESS = "127.0.0.1:5671"
LEASE_MS = 10_000
MESSAGE_BYTES = 1024
BROKER_RANDOM_BYTES = 32


def acquire(lease: LeaseTable) -> Acquired:
    """Take a shard that nobody holds."""
    for _ in range(3):
        try:
            acquired = lease.acquire("bench", ADDRESS, LEASE_MS)
        except SequenceTaken:
            continue  # the range of the fence was made just now
        if acquired is not None:
            return acquired
    raise AssertionError("somebody else holds the shard")


def open_shard(url: str, name: str) -> TableStore:
    """Take the shard, open its log, and give the lease back: nobody else is there."""
    database = open_database(url, name)
    lease = database.lease()
    acquired = acquire(lease)
    lease.release(acquired.epoch)
    lease.close()
    return TableStore(
        database.writer(), database.reader(), epoch=acquired.epoch, fence=acquired.fence, reserve_bytes=0
    )


def new_broker(store: Store) -> Broker:
    return Broker("bench", store, bytes(BROKER_RANDOM_BYTES))


def fill(url: str, name: str, messages: int, batch_messages: int) -> None:
    """So many queued messages, in frames of ``batch_messages``."""
    store = open_shard(url, name)
    namespace = new_broker(store).namespace
    recover(namespace, store)
    namespace.create(QUEUE, "bench", Settings(), 1)
    queue, blob = min(namespace.context.queues), bytes(MESSAGE_BYTES)
    for number in range(1, messages + 1):
        store.append(MessageStored(queue, Message(number, number, 0, len(blob), None), blob, b""))
        if number % batch_messages == 0:
            batch = store.seal()
            assert batch is not None
            store.commit(batch)
    store.close()


def replay(url: str, name: str) -> dict[str, float]:
    """What the shipping recovery of a shard takes: processor time of this process, the clock's, and memory."""
    store = open_shard(url, name)
    namespace = new_broker(store).namespace
    memory, cpu, started = resident_mib(os.getpid()), time.process_time(), time.perf_counter()
    recover(namespace, store)
    return {
        "messages": sum(1 for _ in namespace.live_messages()),
        "seconds": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "grown_bytes": (resident_mib(os.getpid()) - memory) * 2**20,
    }


if __name__ == "__main__":
    print(json.dumps(replay(sys.argv[1], sys.argv[2])))
