"""The audit of messages on a full disk, and how long it is kept (B12, decision 0011)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.errors import QuotaExceeded, StoreFailed
from pairbus.server.assemble import assemble
from pairbus.server.config.options import Options
from pairbus.server.logs.audit_reserve import (
    LEAST_BYTES,
    MESSAGE_BYTES,
    RESERVE_BYTES,
    RESERVE_FILE,
    AuditReserve,
)
from pairbus.server.logs.message_journal import blocks, journal_files
from pairbus.storage.memory import MemoryDisk
from tests.unit.server.test_message_audit import NOW, RESERVE, Life, balance

DAY = 86_400_000


class SmallDisk:
    """Stands in for the system's calls that reserve space and tell how much is left."""

    def __init__(self, directory: Path, capacity_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self.capacity_bytes = capacity_bytes
        monkeypatch.setattr("pairbus.server.logs.audit_reserve.os.posix_fallocate", self.fallocate)
        monkeypatch.setattr("pairbus.server.logs.audit_reserve.os.statvfs", self.statvfs)

    @property
    def free_bytes(self) -> int:
        used = sum(file.stat().st_size for file in self._directory.rglob("*") if file.is_file())
        return max(0, self.capacity_bytes - used)

    def fallocate(self, handle: int, offset: int, size: int) -> None:
        if offset + size - os.fstat(handle).st_size > self.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(handle, offset + size)

    def statvfs(self, _directory: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=self.free_bytes, f_frsize=1)


@pytest.mark.promise("B12")
def test_with_an_audit_a_full_disk_refuses_sends_and_takes_settlements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(tmp_path, 4 * RESERVE, monkeypatch)
    life = Life(MemoryDisk(), tmp_path, 1)
    for number in range(40):
        life.send(f"m{number}")
    life.commit()
    assert life.store.has_room(1)
    disk.capacity_bytes = RESERVE + (1 << 20)  # somebody else has filled the rest

    life.audit._reserve.review()
    assert not life.store.has_room(1)
    assert life.store.statistics().is_full
    for _ in range(40):
        life.complete_first()
        life.commit()

    life.audit._reserve.review()
    assert not life.store.has_room(1)
    disk.capacity_bytes = 4 * RESERVE
    life.audit._reserve.review()
    assert life.store.has_room(1), "sends work again without a restart"
    life.send("m40")
    life.commit()
    life.stop()
    sent, completed = balance(tmp_path)
    assert (len(sent), len(completed)) == (41, 40)


@pytest.mark.promise("B12")
def test_a_broker_that_starts_on_a_full_disk_settles_and_refuses_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = MemoryDisk()
    SmallDisk(tmp_path, 4 * RESERVE, monkeypatch)
    life = Life(stored, tmp_path, 1)
    life.send("m0")
    life.commit()
    life.crash_quietly()

    SmallDisk(tmp_path, RESERVE, monkeypatch)
    life = Life(stored, tmp_path, 2)
    assert not life.store.has_room(1)
    with pytest.raises(QuotaExceeded, match="disk"):
        life.broker.namespace.check_send(life.entity, life.scanned("m1"), 0)
    life.complete_first()
    life.commit()

    life.stop()
    assert balance(tmp_path) == (["m0"], ["m0"])


@pytest.mark.promise("B11")
@pytest.mark.long
def test_a_reserve_that_is_used_up_ends_acknowledging_and_no_row_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(tmp_path, 4 * RESERVE, monkeypatch)
    life = Life(MemoryDisk(), tmp_path, 1)
    disk.capacity_bytes = RESERVE
    monkeypatch.setattr("pairbus.server.logs.message_journal.GROWTH_BYTES", 1)
    with pytest.raises(StoreFailed, match="audit"):
        for number in range(1_000):
            life.send(f"m{number}" + "x" * 100_000)  # nobody asked for room
            life.commit()
    life.audit.stop()


def test_a_journal_grows_ahead_and_a_crash_leaves_only_its_rows(tmp_path: Path) -> None:
    stored = MemoryDisk()
    life = Life(stored, tmp_path, 1)
    life.send("m0")
    life.commit()
    (file,) = journal_files(tmp_path)
    written = max(end for _, end, _ in blocks(file))
    assert file.stat().st_size > written

    again = Life(stored, tmp_path, 2)

    again.stop()
    assert balance(tmp_path) == (["m0"], [])
    assert (tmp_path / RESERVE_FILE).stat().st_size == RESERVE


def test_hours_older_than_the_retention_are_removed(tmp_path: Path) -> None:
    stored = MemoryDisk()
    for days in (0, 1, 5):
        at = NOW + days * DAY
        life = Life(stored, tmp_path, days, now=at, retention_days=3)
        life.send(f"m{days}", at)
        life.commit()
        life.stop()

    assert balance(tmp_path)[0] == ["m5"]


def test_a_journal_that_could_not_be_converted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(MemoryDisk(), tmp_path, 1)
    life.send("m0")
    life.commit()

    def full(file: Path, directory: Path, namespace: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pairbus.server.logs.message_audit.convert", full)
    life.stop()
    assert len(journal_files(tmp_path)) == 1

    monkeypatch.undo()
    life.audit._tidy()

    assert balance(tmp_path) == (["m0"], [])


def test_where_space_cannot_be_reserved_the_audit_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("pairbus.server.logs.audit_reserve.os.posix_fallocate", unable)
    life = Life(MemoryDisk(), tmp_path, 1)
    assert life.store.has_room(1)
    life.send("m0")
    life.commit()
    life.stop()

    assert balance(tmp_path) == (["m0"], [])


def test_a_reserve_of_another_length_is_taken_over(tmp_path: Path) -> None:
    AuditReserve(tmp_path, 3_000).close()
    AuditReserve(tmp_path, 1_000).close()
    assert (tmp_path / RESERVE_FILE).stat().st_size == 1_000
    reserve = AuditReserve(tmp_path, 5_000)
    reserve.close()
    reserve.review()
    assert (tmp_path / RESERVE_FILE).stat().st_size == 5_000


def test_the_reserve_is_as_long_as_the_rows_of_what_is_stored(tmp_path: Path) -> None:
    stored = 0
    reserve = AuditReserve(tmp_path, message_count=lambda: stored)
    file = tmp_path / RESERVE_FILE
    assert file.stat().st_size == LEAST_BYTES
    for stored, length in (
        (1, LEAST_BYTES),
        (30_000, 32 << 20),
        (1_000_000, RESERVE_BYTES),
        (0, LEAST_BYTES),
    ):
        reserve.review()
        assert file.stat().st_size == length
        assert length >= min(RESERVE_BYTES, stored * MESSAGE_BYTES)
    reserve.close()


@pytest.mark.promise("B12")
def test_a_reserve_that_cannot_grow_with_the_messages_refuses_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = 0
    disk = SmallDisk(tmp_path, 2 * LEAST_BYTES, monkeypatch)
    reserve = AuditReserve(tmp_path, message_count=lambda: stored)
    file = tmp_path / RESERVE_FILE
    shorts = []
    for stored, capacity_bytes in (  # noqa: B007 - the reserve asks for it
        (0, 2 * LEAST_BYTES),
        (100_000, 2 * LEAST_BYTES),
        (100_000, 2 * RESERVE_BYTES),
    ):
        disk.capacity_bytes = capacity_bytes
        reserve.review()
        shorts.append((reserve.is_short, file.stat().st_size))
    assert shorts == [(False, LEAST_BYTES), (True, LEAST_BYTES), (False, RESERVE_BYTES)]
    reserve.close()


def test_an_audit_that_is_dropped_gives_its_reserve_back(tmp_path: Path) -> None:
    audited = Options(namespace="contoso", data=tmp_path, audit=True)
    assembly = assemble(audited, NOW)
    batch = assembly.store.seal()
    assert batch is not None
    assembly.store.commit(batch)
    assembly.close()
    file = tmp_path / "messages-audit" / RESERVE_FILE
    assert file.stat().st_size == LEAST_BYTES

    assemble(replace(audited, audit=False), NOW + 1).close()

    assert not file.exists()
