"""The log on a real directory: the lock, the thread that makes segments ready, a small real disk."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.errors import StoreFailed, StoreUnavailable
from pairbus.storage.files import RealFileSystem
from pairbus.storage.identity import LOCK_FILE
from pairbus.storage.log.pool import READY_MIN
from pairbus.storage.log.store import FIRST_SEGMENT_BYTES, LogStore
from pairbus.storage.tools.inspect import check
from tests.integration.server import full_disk
from tests.small_disk import own_mounts
from tests.unit.storage.helpers import commit, numbers, replay, send

WAIT_SECONDS = 50.0

CHILD = """
import sys
from pairbus.engine.records import MessageStored
from pairbus.model.message import Message
from pairbus.storage.log.store import LogStore
store = LogStore.open(sys.argv[1], segment_bytes=1 << 20)
list(store.replay())
number = 0
while True:
    number += 1
    message = Message(number, number, 0, 500, None)
    store.append(MessageStored(4, message, bytes([number % 251]) * 500, b""))
    store.commit(store.seal())
    print(number, flush=True)
"""


def wait_until_ready(store: LogStore) -> None:
    pool = store._pool
    with pool._changed:
        assert pool._changed.wait_for(lambda: len(pool._ready) >= READY_MIN, WAIT_SECONDS)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    yield process
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.mark.promise("B69")
def test_a_second_process_is_refused_and_told_who_owns_the_data(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert writer.stdout is not None
    writer.stdout.readline()
    with pytest.raises(StoreUnavailable, match=f"in use by process {writer.pid}: stop that broker"):
        LogStore.open(tmp_path)
    with pytest.raises(StoreUnavailable, match="in use"):
        check(tmp_path)


@pytest.mark.promise("B69")
def test_a_second_process_is_refused_although_the_lock_file_was_removed(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert writer.stdout is not None
    writer.stdout.readline()
    (tmp_path / LOCK_FILE).unlink()
    with pytest.raises(StoreUnavailable, match="in use by process"):
        LogStore.open(tmp_path)
    with pytest.raises(StoreUnavailable, match="in use by process"):
        check(tmp_path)
    # The owner goes on, and has made the file again with its next commits.
    for _ in range(2):
        writer.stdout.readline()
    until = time.monotonic() + WAIT_SECONDS
    while not (tmp_path / LOCK_FILE).exists() and time.monotonic() < until:
        writer.stdout.readline()
    with pytest.raises(StoreUnavailable, match=f"in use by process {writer.pid}"):
        LogStore.open(tmp_path)
    assert writer.poll() is None


@pytest.mark.promise("B69")
def test_the_lock_file_that_is_made_again_excludes_earlier_versions(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path)
    replay(store)
    wait_until_ready(store)
    (tmp_path / LOCK_FILE).unlink()
    send(store, 1)
    commit(store)
    with (tmp_path / LOCK_FILE).open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    store.close()
    LogStore.open(tmp_path).close()


@pytest.mark.promise("B69")
@pytest.mark.parametrize("locks_directories", [True, False])
def test_the_owner_stops_when_somebody_else_has_the_lock_file(
    tmp_path: Path, locks_directories: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not locks_directories:
        without_directory_locks(monkeypatch)
    store = LogStore.open(tmp_path)
    replay(store)
    send(store, 1)
    commit(store)
    wait_until_ready(store)
    (tmp_path / LOCK_FILE).unlink()
    with (tmp_path / LOCK_FILE).open("x") as file:  # as an earlier version begins, which locks this file only
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        send(store, 2)
        with pytest.raises(StoreFailed, match="lock was removed or replaced while the broker ran"):
            commit(store)
        store.close()
    store = LogStore.open(tmp_path)
    assert numbers(replay(store)) == [1]
    store.close()


@pytest.mark.promise("B69")
def test_the_owner_stops_without_its_lock_file_where_directories_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_directory_locks(monkeypatch)
    store = LogStore.open(tmp_path)
    replay(store)
    with pytest.raises(StoreUnavailable, match="in use"):
        LogStore.open(tmp_path)
    wait_until_ready(store)
    (tmp_path / LOCK_FILE).unlink()
    send(store, 1)
    with pytest.raises(StoreFailed, match="lock was removed or replaced"):
        commit(store)
    store.close()


@pytest.mark.promise("B69")
def test_the_owner_stops_when_its_directory_was_replaced(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path / "store")
    replay(store)
    wait_until_ready(store)
    (tmp_path / "store").rename(tmp_path / "aside")
    (tmp_path / "store").mkdir()
    send(store, 1)
    with pytest.raises(StoreFailed, match="lock was removed or replaced"):
        commit(store)
    store.close()
    assert list((tmp_path / "store").iterdir()) == []


def without_directory_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, which locks only files that are open for writing."""
    flock = fcntl.flock

    def refuse(handle: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.promise("B1")
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(200)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    told += [int(line) for line in rest.splitlines()]
    store = LogStore.open(tmp_path)
    found = numbers(replay(store))
    assert found[: len(told)] == told
    assert len(found) <= len(told) + 1
    store.close()


def test_a_first_start_makes_one_small_segment_and_private_files(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path / "deep" / "data", namespace="ns")
    assert list(store.replay()) == []
    directory = tmp_path / "deep" / "data"
    assert (directory / "0000000001.segment").stat().st_size == FIRST_SEGMENT_BYTES
    assert directory.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in directory.iterdir())
    store.close()


def test_segments_are_made_ready_beside_the_others(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, segment_bytes=64 * 1024)
    replay(store)
    wait_until_ready(store)
    for number in range(1, 2000):
        send(store, number)
        commit(store)
    assert store.statistics().segments > 10
    wait_until_ready(store)
    store.close()
    store.close()
    store = LogStore.open(tmp_path, segment_bytes=64 * 1024)
    assert numbers(replay(store)) == list(range(1, 2000))
    assert store.statistics().spare_segments >= READY_MIN
    store.close()


@pytest.mark.promise("B67")
def test_closing_leaves_no_handle_open(tmp_path: Path) -> None:
    def handles() -> set[str]:
        found = set()
        for entry in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{entry}")
            except OSError:
                continue
            if target.startswith(str(tmp_path)):
                found.add(target)
        return found

    store = LogStore.open(tmp_path, segment_bytes=64 * 1024, cache_bytes=1000)
    replay(store)
    messages = [send(store, number) for number in range(1, 1000)]
    commit(store)
    send(store, 1000)
    commit(store)
    assert all(store.read(m.location, m.size) for m in messages)
    store.close()
    assert handles() == set()
    LogStore.open(tmp_path).close()
    assert handles() == set()


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        LogStore.open(tmp_path / "file" / "data")
    with pytest.raises(StoreUnavailable, match="holds no data"):
        check(tmp_path)


def test_create_leaves_nothing_behind_when_there_is_no_space(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    with pytest.raises(OSError, match=r"No space|too large|Invalid|File too large"):
        files.create("huge", 1 << 62)
    assert files.names() == []
    files.unlock()


@pytest.mark.promise("B12")
def test_a_really_full_disk_refuses_sends_and_recovers(tmp_path: Path) -> None:
    done = subprocess.run(
        [*own_mounts(), sys.executable, "-m", full_disk.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert (done.returncode, done.stdout) == (0, "everything is there\n"), done.stderr
