"""A store that has lost acknowledged commits: the audit log keeps their rows, and no certificate says that nothing is lost (B10, decision 0212)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pairbus.errors import StoreFailed
from pairbus.reports.certificate.value import HOLDS, UNPROVEN
from pairbus.server.logs.audit_pauses import note_no_audit
from pairbus.server.logs.journal_ahead import catch_up
from pairbus.server.logs.journal_mending import Known
from pairbus.server.logs.message_journal import blocks, journal_files
from pairbus.server.offline.audit_note import note_given_up
from pairbus.storage.memory import MemoryDisk
from tests.unit.server.test_audit_damage import certified, notes, restarted
from tests.unit.server.test_message_audit import NOW, Life, stored, twin_of

LATER = NOW + 50_000
CLOSED = pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "stopped"])


def accepted(life: Life, *names: str, now: int = NOW) -> None:
    for at, name in enumerate(names):
        life.send(name, now + at)
        life.commit()


def ended(life: Life, *, is_closed: bool) -> None:
    if is_closed:
        life.stop()
    else:
        life.crash_quietly()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.promise("B10")
@CLOSED
def test_a_store_that_was_replaced_by_an_older_copy_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_closed: bool
) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    accepted(life, "a1", "a2")
    older = twin_of(disk)
    accepted(life, "a3", "a4", "a5", now=NOW + 10)
    ended(life, is_closed=is_closed)

    life = Life(older, tmp_path, 2, now=LATER)
    assert stored(life) == ["a1", "a2"]
    accepted(life, "b1", now=LATER + 1)
    ended(life, is_closed=is_closed)
    restarted(older, tmp_path, 3)

    assert events(caplog) == ["message_audit.ahead"]
    (note,) = notes(tmp_path)
    assert note[0] == LATER
    told = certified(tmp_path)
    assert (told.verdict, told.accepted) == (UNPROVEN, 6)


@pytest.mark.promise("B10")
def test_one_commit_that_is_gone_is_noticed_after_an_orderly_stop(tmp_path: Path) -> None:
    """A closed journal holds only what was durable, so one block is enough."""
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    accepted(life, "a1")
    older = twin_of(disk)
    accepted(life, "a2")
    life.stop()
    restarted(older, tmp_path, 2)
    assert len(notes(tmp_path)) == 1
    assert (certified(tmp_path).verdict, certified(tmp_path).accepted) == (UNPROVEN, 2)


@pytest.mark.parametrize("ends", ["killed", "failed and stopped"])
def test_a_batch_that_never_happened_is_no_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A crash, or a commit that fails before an orderly stop, leaves one block beyond the store."""
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    accepted(life, "a1")
    life.send("never")
    if ends == "killed":
        life.crash("before")
        life.crash_quietly()
    else:

        def fails(_: object) -> None:
            raise StoreFailed("the disk is gone")

        monkeypatch.setattr(life.inner, "commit", fails)
        with pytest.raises(StoreFailed):
            life.commit()
        life.stop()
    restarted(disk, tmp_path, 2)
    assert (notes(tmp_path), events(caplog)) == ([], [])
    assert (certified(tmp_path).verdict, certified(tmp_path).accepted) == (HOLDS, 1)


@CLOSED
def test_it_is_noted_once_over_crashes_of_the_start(tmp_path: Path, *, is_closed: bool) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    accepted(life, "a1")
    older = twin_of(disk)
    accepted(life, "a2", "a3")
    ended(life, is_closed=is_closed)
    for boot in range(2, 5):  # the store does not know yet when the start is killed
        assert catch_up(tmp_path, "contoso", Known(1, NOW), f"boot{boot}", NOW + 99).number == 4
    restarted(older, tmp_path, 6)
    assert len(notes(tmp_path)) == 1
    life = Life(older, tmp_path, 7)
    life.send("never")
    life.crash("before")
    life.crash_quietly()
    restarted(older, tmp_path, 8)
    assert len(notes(tmp_path)) == 1
    assert certified(tmp_path).accepted == 3


def test_a_start_without_an_audit_keeps_the_rows(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    accepted(life, "a1")
    older = twin_of(disk)
    accepted(life, "a2", "a3")
    life.stop()

    life = Life(twin_of(older), tmp_path / "other", 2)
    unaudited = life.broker.namespace
    note_no_audit(unaudited, life.inner, tmp_path, "boot3", LATER, is_alone=True)
    life.crash_quietly()

    assert unaudited.audited_batch == 5
    kinds = [
        (number, data.count(b"audit-"))
        for file in journal_files(tmp_path)
        for number, _, data in blocks(file)
    ]
    assert kinds == [(4, 1), (5, 1)]


@pytest.mark.promise("B10")
@CLOSED
def test_a_repair_of_the_store_notes_the_loss_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_closed: bool
) -> None:
    """Also of one commit, which nothing but the repair can tell from one that a crash cut short."""
    data, log = tmp_path, tmp_path / "messages-audit"
    disk = MemoryDisk()
    life = Life(disk, log, 1)
    accepted(life, "a1")
    older = twin_of(disk)
    accepted(life, "a2")
    ended(life, is_closed=is_closed)

    note_given_up(data, "contoso", 1, LATER)

    assert (certified(log).verdict, certified(log).accepted) == (UNPROVEN, 2)
    restarted(older, log, 2)
    assert len(notes(log)) == 1
    assert (certified(log).verdict, certified(log).accepted) == (UNPROVEN, 2)
    assert "message_audit.ahead" in events(caplog)


def test_a_repair_writes_nothing_where_there_was_no_audit(tmp_path: Path) -> None:
    note_given_up(tmp_path, "contoso", 0, LATER)
    assert list(tmp_path.iterdir()) == []
    assert Known(0).number_expected == 0
