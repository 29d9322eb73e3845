"""``full_disk.py DIRECTORY``: a log on a small disk of its own, which fills up and then grows. Run with ``tests.small_disk.own_mounts``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pairbus.storage.log.store import LogStore
from tests.small_disk import mount_command
from tests.unit.storage.helpers import commit, numbers, replay, send

WAIT_SECONDS = 50.0


def main(disk: Path) -> None:
    subprocess.run(mount_command(disk, "2m"), check=True)
    store = LogStore.open(disk / "data", segment_bytes=64 * 1024, reserve_bytes=32 * 1024)
    replay(store)
    number = 0
    while store.has_room(5000):
        number += 1
        send(store, number, 5000)
        commit(store)
        assert number < 1000
    assert number > 100
    assert not store.has_room(5000)
    (disk / "data" / "lock").read_text()
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    pool = store._pool
    with pool._changed:
        assert pool._changed.wait_for(lambda: not pool.is_full, WAIT_SECONDS)
    assert store.has_room(5000)
    store.close()
    store = LogStore.open(disk / "data", segment_bytes=64 * 1024)
    assert numbers(replay(store)) == list(range(1, number + 1))
    store.close()
    print("everything is there")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
