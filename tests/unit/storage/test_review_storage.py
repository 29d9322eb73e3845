"""What a second reading of the store found: each of these went wrong once."""

from __future__ import annotations

import pytest

from pairbus.engine.records import MessageRemoved
from pairbus.model.message import Message
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import QUEUE, commit, ready_log, send


@pytest.mark.promise("B12")
def test_disk_is_not_called_full_for_ever_when_old_segments_are_used_again() -> None:
    disk = SimulatedDisk(capacity_bytes=60_000)
    store = ready_log(disk, reserve_bytes=4_000)
    taken: list[Message] = []
    while store.has_room(500):
        taken.append(send(store, len(taken) + 1))
        commit(store)
    assert store.statistics().is_full
    for message in taken:
        store.append(MessageRemoved(QUEUE, message.sequence_number, message.location, message.size))
        commit(store)

    disk.capacity_bytes = 1_000_000

    assert store.has_room(20_000), "a message longer than a segment has room again"
    commit(store)
    assert not store.statistics().is_full
    store.close()
