"""A broker whose audit log is damaged or gone: what can be read is kept, and what is missing is said (B10, decision 0205)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pairbus.errors import UsageError
from pairbus.reports.certificate.value import HOLDS, UNPROVEN, Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT, RECEIVED, SENT, check_whole
from pairbus.reports.inputs import find_inputs
from pairbus.server.logs.journal_mending import Known, mend_journals
from pairbus.server.logs.message_journal import blocks, journal_files
from pairbus.storage.memory import MemoryDisk
from tests.unit.server.test_message_audit import NOW, Life, twin_of

MESSAGES = 8
Harm = Callable[[bytearray, list[int]], bytes]
HARMS: dict[str, tuple[int, Harm]] = {
    "a flipped bit in the middle": (7, lambda data, ends: _flipped(data, ends[3] + 60)),
    "a flipped bit in the last block": (7, lambda data, ends: _flipped(data, ends[-2] + 60)),
    "zeros in the middle": (6, lambda data, ends: _zeroed(data, ends[3] + 9, ends[3] + 209)),
    "zeros from the middle on": (4, lambda data, ends: _zeroed(data, ends[3], len(data))),
    "without its beginning": (6, lambda data, _: bytes(data[200:])),
    "cut within a block": (4, lambda data, ends: bytes(data[: ends[3] + 60])),
    "cut between blocks": (4, lambda data, ends: bytes(data[: ends[3]])),
    "cut to nothing": (0, lambda _, __: b""),
}
"""What happens to a journal, and how many of its rows are left."""
SEEN_BY_STORE_ALONE = {"zeros from the middle on"}


def _flipped(data: bytearray, at: int) -> bytes:
    data[at] ^= 0x20
    return bytes(data)


def _zeroed(data: bytearray, start: int, stop: int) -> bytes:
    return bytes(data[:start]) + bytes(stop - start) + bytes(data[stop:])


@pytest.fixture
def killed(tmp_path: Path) -> MemoryDisk:
    """The disk of a broker that was killed; its audit log is in ``tmp_path / "log"``."""
    disk = MemoryDisk()
    life = Life(disk, tmp_path / "log", 1)
    for number in range(MESSAGES):
        life.send(f"m{number}", NOW + number)
        life.commit()
    life.crash_quietly()
    return disk


def certified(directory: Path) -> Certificate:
    found = {SENT: find_inputs(None, [str(directory)], AUDIT)}
    found[RECEIVED] = found[SENT]
    check_whole(found)
    return arrow.reconcile(found).certificate


def notes(directory: Path) -> list[tuple[int, str]]:
    """The rows that say what is missing."""
    found: list[dict[str, Any]] = []
    for part in directory.rglob("part-*.parquet"):
        found += pyarrow.parquet.ParquetFile(part).read().to_pylist()
    return sorted(
        (round(row["time"].timestamp() * 1000), row["detail"])
        for row in found
        if row["kind"] == "audit-resumed"
    )


def restarted(disk: MemoryDisk, directory: Path, boot: int) -> None:
    life = Life(disk, directory, boot)
    life.stop()


@pytest.mark.promise("B10")
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_journal_is_refused_and_a_broker_notes_what_is_missing(
    tmp_path: Path, killed: MemoryDisk, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    log = tmp_path / "log"
    (journal,) = journal_files(log)
    whole = journal.read_bytes()
    assert certified(log).verdict == HOLDS
    ends = [end for _, end, _ in blocks(journal)]
    left, hurts = HARMS[harm]
    hurt = hurts(bytearray(whole), ends)
    journal.write_bytes(hurt)
    if harm not in SEEN_BY_STORE_ALONE:
        with pytest.raises(
            UsageError, match=rf"{journal.name} cannot be read \(it is damaged at byte [0-9,]+"
        ):
            certified(log)

    restarted(twin_of(killed), log, 2)

    events = {
        getattr(record, "event", ""): record for record in caplog.records if record.levelno >= logging.ERROR
    }
    assert "message_audit.missing" in events
    if harm not in SEEN_BY_STORE_ALONE:
        assert getattr(events["message_audit.damaged"], "file", "") == str(journal)
        assert (log / f"{journal.name}.damaged").read_bytes() == hurt
    told = certified(log)
    assert told.verdict == UNPROVEN
    assert told.accepted == left
    # It is noted once.
    noted = notes(log)
    restarted(twin_of(killed), log, 3)
    assert notes(log) == noted


@pytest.mark.promise("B10")
@pytest.mark.parametrize("gone", ["directory", "journal", "newest part"])
def test_a_broker_misses_an_audit_log_that_is_gone(tmp_path: Path, killed: MemoryDisk, gone: str) -> None:
    log = tmp_path / "log"
    if gone == "directory":
        shutil.rmtree(log)
    elif gone == "journal":
        journal_files(log)[0].unlink()
    else:
        restarted(killed, log, 2)
        (part,) = log.rglob("part-*.parquet")
        part.unlink()

    restarted(twin_of(killed), log, 3)

    assert len(notes(log)) == 1
    assert certified(log).verdict == UNPROVEN
    life = Life(killed, log, 4)
    life.send("later", NOW + 1_000_000)
    life.commit()
    life.crash_quietly()
    restarted(killed, log, 5)
    assert len(notes(log)) == 1
    assert certified(log).verdict == UNPROVEN


def test_nothing_is_noted_of_an_audit_log_that_is_whole(
    tmp_path: Path, killed: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed and stopped in turns, also before anything was written."""
    log = tmp_path / "log"
    for boot in range(2, 9):
        life = Life(killed, log, boot)
        if boot % 4:
            life.send(f"more{boot}", NOW)
            life.commit()
        if boot % 3:
            life.crash_quietly()
        else:
            life.stop()
    restarted(killed, log, 9)
    assert notes(log) == []
    assert certified(log).verdict == HOLDS
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.promise("B10")
def test_a_node_notes_damage_and_nothing_of_blocks_that_other_nodes_have(
    tmp_path: Path, killed: MemoryDisk
) -> None:
    log = tmp_path / "log"
    (journal,) = journal_files(log)
    ends = [end for _, end, _ in blocks(journal)]
    whole = journal.read_bytes()
    others = Known(MESSAGES + 90, NOW, is_alone=False)

    (mended,) = mend_journals(log, "contoso", others, "boot2", NOW + 99)
    assert [number for number, _, _ in blocks(mended)] == list(range(1, MESSAGES + 1))

    journal.write_bytes(HARMS["zeros in the middle"][1](bytearray(whole), ends))
    (mended,) = mend_journals(log, "contoso", others, "boot3", NOW + 99)
    found = list(blocks(mended))
    assert [number for number, _, _ in found] == list(range(1, MESSAGES + 1))
    assert [number for number, _, data in found if b"audit-resumed" in data] == [6]


def test_a_journal_that_a_broker_writes_while_it_is_copied_is_whole(
    tmp_path: Path, killed: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy has the end of a block, and not its beginning."""
    log = tmp_path / "log"
    (journal,) = journal_files(log)
    ends = [end for _, end, _ in blocks(journal)]
    whole = journal.read_bytes()
    copies = [whole[: ends[2]] + bytes(ends[3] - ends[2]) + whole[ends[3] :], whole]

    def copied(source: Path, target: Path) -> Path:
        target.write_bytes(copies.pop(0))
        return target

    monkeypatch.setattr("pairbus.reports.inputs.shutil.copy", copied)
    found = certified(log)
    assert (found.verdict, found.accepted, copies) == (HOLDS, MESSAGES, [])
