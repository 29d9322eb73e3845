"""``full_disk.py DIRECTORY``: a log on a small disk of its own, which fills up, wins garbage back, and then grows. Run with ``tests.small_disk.own_mounts``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from pairbus.engine.records import MessageRemoved, MessageStored, Record
from pairbus.model.message import Message
from pairbus.storage.log.store import LogStore
from tests.small_disk import mount_command
from tests.unit.storage.helpers import QUEUE, commit, remove, replay, send
from tests.waiting import wait_until

WAIT_SECONDS = 50.0


def main(disk: Path) -> None:
    subprocess.run(mount_command(disk, "2m"), check=True)
    store = LogStore.open(disk / "data", segment_bytes=64 * 1024, reserve_bytes=32 * 1024)
    replay(store)
    number = 0
    sent: dict[int, Message] = {}
    while store.has_room(5000):
        number += 1
        sent[number] = send(store, number, 5000)
        commit(store)
        assert number < 1000
    assert number > 100
    assert not store.has_room(5000)
    _win_garbage_back(store, sent)
    (disk / "data" / "lock").read_text()
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    wait_until(lambda: not store._pool.is_full, "the pool has seen the space")
    assert store.has_room(5000)
    store.close()
    store = LogStore.open(disk / "data", segment_bytes=64 * 1024)
    assert sorted(_alive(replay(store))) == sorted(sent)
    store.close()
    print("everything is there")


def _win_garbage_back(store: LogStore, sent: dict[int, Message]) -> None:
    """Two messages in five go, evenly, so that no segment is dead: sends must work again on the disk as it is."""
    for number in [number for number in sent if number % 5 in (1, 3)]:
        remove(store, sent.pop(number))
    commit(store)
    until = time.monotonic() + WAIT_SECONDS
    while not store.has_room(5000):
        assert time.monotonic() < until, store.statistics()
        for record in store.restate(50):
            if isinstance(record, MessageStored):
                message = sent.get(record.message.sequence_number)
                if message is not None and message.location == record.message.location:
                    blob = store.read(message.location, message.size)
                    store.append(MessageStored(QUEUE, message, blob, b""))
        commit(store)


def _alive(records: list[Record]) -> set[int]:
    alive: set[int] = set()
    for record in records:
        if isinstance(record, MessageStored):
            alive.add(record.message.sequence_number)
        elif isinstance(record, MessageRemoved):
            alive.discard(record.sequence_number)
    return alive


if __name__ == "__main__":
    main(Path(sys.argv[1]))
