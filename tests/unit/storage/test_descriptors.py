"""A moment without file descriptors is no end: the store goes on with its reserve and tries again."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus.errors import StoreFailed
from pairbus.server.logs.audit_reserve import AuditReserve
from pairbus.server.logs.message_journal import AuditJournal
from pairbus.storage.files import RESERVED_HANDLES, RealFileSystem
from pairbus.storage.log.store import LogStore
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import commit, numbers, open_log, ready_log, replay, send


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_segment_that_could_not_be_made_for_want_of_descriptors_is_made_later(number: int) -> None:
    disk = SimulatedDisk()
    store = ready_log(disk)
    for _ in range(3):
        disk.fail("create", number)
    for message in range(1, 61):
        send(store, message, 900)
        commit(store)
    assert store.statistics().spare_segments
    store.close()
    assert numbers(replay(open_log(disk))) == list(range(1, 61))


def test_an_old_segment_is_not_lost_when_it_cannot_be_opened(disk: SimulatedDisk, store: LogStore) -> None:
    store._pool.release("0000000000.segment", 4096)
    disk.fail("open", errno.EMFILE)
    while store._pool.step():
        pass
    assert [name for name, _ in store._pool._released] == ["0000000000.segment"]


def test_any_other_fault_is_still_final(disk: SimulatedDisk, store: LogStore) -> None:
    disk.fail("create", errno.EIO)
    with pytest.raises(StoreFailed, match="no new segment could be made"):
        for number in range(1, 60):
            send(store, number, 900)
            commit(store)


@contextmanager
def all_descriptors_taken() -> Iterator[None]:
    """Nothing can be opened meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    taken: list[int] = []
    try:
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            yield
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_store_reads_and_writes_while_others_hold_every_descriptor(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, segment_bytes=4096, cache_bytes=0, reserve_bytes=0, is_background=False)
    replay(store)
    messages = [send(store, number, 900) for number in range(1, 40)]
    commit(store)
    with all_descriptors_taken():
        for message in messages:
            assert store.read(message.location, message.size) == bytes([message.sequence_number]) * 900
        for number in range(40, 80):
            send(store, number, 900)
            commit(store)
    store.close()


def test_a_new_journal_of_the_audit_finds_its_descriptors(tmp_path: Path) -> None:
    reserve = AuditReserve(tmp_path, 0)
    with all_descriptors_taken():
        journal = AuditJournal(tmp_path, "contoso", 1, "boot", reserve)
    journal.close()
    reserve.close()


def test_the_reserve_is_filled_again_and_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = RealFileSystem(tmp_path)
    handle = files.create("one", 0)
    files.close(handle)
    with all_descriptors_taken():
        handles = [files.open("one") for _ in range(RESERVED_HANDLES)]
        with pytest.raises(OSError, match="Too many open files"):
            files.open("one")
        files.close(handles.pop())
        assert files.names() == ["one"]
    for handle in handles:
        files.close(handle)
    with all_descriptors_taken():
        for handle in [files.open("one") for _ in range(RESERVED_HANDLES)]:
            files.close(handle)
    files.unlock()
    assert len(os.listdir("/proc/self/fd")) == before
