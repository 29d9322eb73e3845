"""The audit of messages over crashes: whatever the moment, its rows are exactly what the store holds (decision 0010)."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pairbus.amqp.message.scan import Scanned, scan
from pairbus.amqp.message.whole import encode_message
from pairbus.engine.records import AuditMarked, SequenceAdvanced
from pairbus.errors import StoreFailed
from pairbus.gateway.accept import store
from pairbus.gateway.broker import Broker
from pairbus.gateway.settlement import complete
from pairbus.gateway.telemetry.audit_rows import AuditRows
from pairbus.gateway.telemetry.meter import SEND, SendTallies
from pairbus.model.entity import QUEUE, Settings
from pairbus.model.message import Message
from pairbus.reports.certificate.value import UNPROVEN
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT, RECEIVED, SENT
from pairbus.reports.inputs import find_inputs
from pairbus.server.assemble import assemble, recover
from pairbus.server.config.options import Options
from pairbus.server.logs.audit_pauses import keep_number, known_of
from pairbus.server.logs.message_audit import AuditedStore, MessageAudit
from pairbus.server.logs.message_journal import blocks, journal_files
from pairbus.storage.codec import encode
from pairbus.storage.memory import MemoryDisk, MemoryStore
from pairbus.storage.ports import Batch

NOW = 1_699_999_200_000
RESERVE = 4 << 20


class Crash(BaseException):
    """The machine stops here."""


class CrashingStore(MemoryStore):
    """Stops the machine before or after it has made a batch durable."""

    crash = ""

    def commit(self, batch: Batch) -> None:
        if self.crash == "before":
            raise Crash
        super().commit(batch)
        if self.crash == "after":
            raise Crash


class Life:
    """One life of a broker on a disk and an audit directory that outlive it."""

    def __init__(
        self,
        disk: MemoryDisk,
        directory: Path,
        boot: int,
        journal_bytes_max: int = 1 << 20,
        *,
        now: int = NOW,
        retention_days: int = 90,
    ) -> None:
        self.inner = CrashingStore(disk)
        self.broker = Broker("contoso", self.inner, bytes(16))
        recover(self.broker.namespace, self.inner)
        self.audit_rows = AuditRows()
        self.audit = MessageAudit(
            directory,
            "contoso",
            known_of(self.broker.namespace, is_alone=True),
            f"boot{boot}",
            lambda: now,
            journal_bytes_max,
            retention_days=retention_days,
            reserve_bytes=RESERVE,
        )
        keep_number(self.broker.namespace, self.inner, self.audit.number)
        self.store = AuditedStore(self.inner, self.audit_rows, self.audit, self.audit.number)
        self.broker.serve(self.audit_rows, self.store)
        if self.broker.namespace.find("orders") is None:
            self.broker.namespace.create(QUEUE, "orders", Settings(), NOW)
        entity = self.broker.namespace.find("orders")
        assert entity is not None
        self.entity = entity
        self.audit.start()

    def tallies(self) -> SendTallies:
        return SendTallies(self.broker.meter, self.entity.path, SEND)

    def scanned(self, message_id: str) -> Scanned:
        return scan(encode_message(message_id=message_id, body=message_id.encode(), body_kind="data"), False)

    def send(self, message_id: str, now: int = NOW) -> None:
        store(self.broker, self.entity, self.scanned(message_id), self.tallies(), now, "")

    def complete_first(self) -> None:
        queue = self.entity.main
        message = queue.ready.first()
        assert message is not None
        queue.ready.take(message)
        complete(self.broker, queue, queue.lock(message, None, NOW), NOW)

    def commit(self) -> None:
        batch = self.store.seal()
        assert batch is not None
        self.store.commit(batch)

    def crash(self, when: str) -> None:
        self.inner.crash = when
        batch = self.store.seal()
        assert batch is not None
        with pytest.raises(Crash):
            self.store.commit(batch)

    def crash_quietly(self) -> None:
        """Between two commits: nothing is said or written any more."""
        self.audit._closed.put(None)
        self.audit._thread.join()
        self.audit._reserve.close()

    def stop(self) -> None:
        self.audit.finish()
        self.audit.stop()


def rows(directory: Path) -> list[dict[str, Any]]:
    assert journal_files(directory) == [], "everything is converted after an orderly stop"
    found: list[dict[str, Any]] = []
    for file in sorted(directory.glob("hour=*/part-*.parquet")):
        found += pyarrow.parquet.ParquetFile(file).read().to_pylist()
    return found


def balance(directory: Path) -> tuple[list[str], list[str]]:
    """Ids of sent and of completed rows, repeats included."""
    found = rows(directory)
    sent = [row["message_id"] for row in found if row["kind"] == "sent"]
    return sorted(sent), sorted(row["message_id"] for row in found if row["kind"] == "completed")


def stored(life: Life) -> list[str]:
    view = [life.inner.read(m.location, m.size) for m in life.entity.main.messages.values()]
    return sorted(blob.rsplit(b"\xa0", 1)[1][1:].decode() for blob in view)


def test_a_row_says_what_reconcile_joins_on(tmp_path: Path) -> None:
    life = Life(MemoryDisk(), tmp_path, 1)
    payload = encode_message(
        message_id="m1", body=b"hello", body_kind="data", application_properties={"x-ms-path": "orders/new"}
    )
    store(life.broker, life.entity, scan(payload, False), life.tallies(), NOW, "")
    life.commit()
    life.stop()

    (row,) = rows(tmp_path)
    assert row["time"].timestamp() * 1000 == NOW
    del row["time"]
    assert row == {
        "namespace": "contoso",
        "kind": "sent",
        "entity": "orders",
        "sequence_number": 1,
        "message_id": "m1",
        "size": len(payload),
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "destination": "orders/new",
        "detail": "",
        "session_id": None,
    }


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_the_commit_leaves_neither_a_false_row_nor_a_missing_one(
    tmp_path: Path, when: str
) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    for number in range(3):
        life.send(f"m{number}")
    life.commit()
    life.complete_first()
    life.send("m3")
    life.crash(when)  # the block is on disk; whether the batch is, the next life finds out

    life = Life(disk, tmp_path, 2)
    left = stored(life)
    life.send("m4")
    life.commit()
    life.stop()

    sent, completed = balance(tmp_path)
    is_durable = when == "after"
    assert completed == (["m0"] if is_durable else [])
    assert sent == ["m0", "m1", "m2", *(["m3"] if is_durable else []), "m4"]
    assert sorted(set(sent) - set(completed) - {"m4"}) == left


def test_a_torn_block_is_cut_off(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    life.send("m0")
    life.commit()
    (file,) = journal_files(tmp_path)
    whole = _written(file)
    life.send("m1")
    life.crash("before")
    data = file.read_bytes()[: _written(file)]
    life.audit.stop()
    assert len(data) > whole + 50
    for length in range(whole, len(data), 9):
        copy = tmp_path / f"torn{length}"
        copy.mkdir()
        (copy / file.name).write_bytes(data[:length])
        again = Life(twin_of(disk), copy, 2)
        again.stop()
        assert balance(copy) == (["m0"], [])


def _written(file: Path) -> int:
    return max(end for _, end, _ in blocks(file))


def twin_of(disk: MemoryDisk) -> MemoryDisk:
    twin = MemoryDisk()
    twin.contents = bytearray(disk.contents)
    return twin


def test_many_lives_and_crashes_add_up(tmp_path: Path) -> None:
    disk = MemoryDisk()
    durable: set[str] = set()
    for boot in range(12):
        life = Life(disk, tmp_path, boot, journal_bytes_max=400)
        assert stored(life) == sorted(durable)
        for number in range(4):
            life.send(f"{boot}-{number}")
            if durable:
                first = next(iter(life.entity.main.messages.values()))
                durable.discard(_id_of(life, first))
                life.complete_first()
            life.commit()
            durable.add(f"{boot}-{number}")
        life.send(f"{boot}-last")
        life.crash(("before", "after")[boot % 2])
        if boot % 2:
            durable.add(f"{boot}-last")
        life.audit.stop()
    life = Life(disk, tmp_path, 99)
    life.stop()

    sent, completed = balance(tmp_path)
    assert len(sent) == len(set(sent))
    assert len(completed) == len(set(completed))
    assert set(sent) - set(completed) == durable


def _id_of(life: Life, message: Message) -> str:
    return life.inner.read(message.location, message.size).rsplit(b"\xa0", 1)[1][1:].decode()


def test_converting_again_after_a_crash_changes_nothing(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    life.send("m0")
    life.commit()
    (file,) = journal_files(tmp_path)
    data = file.read_bytes()
    life.stop()
    file.write_bytes(data)  # as if the machine had stopped between the new file's name and the old one's end

    life = Life(disk, tmp_path, 2)
    life.stop()

    assert balance(tmp_path) == (["m0"], [])


@pytest.mark.promise("B11")
def test_an_audit_that_cannot_be_written_stops_acknowledging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(MemoryDisk(), tmp_path, 1)
    life.send("m0")
    batch = life.store.seal()
    assert batch is not None

    def fdatasync(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("pairbus.server.logs.message_journal.os.fdatasync", fdatasync)
    with pytest.raises(StoreFailed, match="audit"):
        life.store.commit(batch)
    assert life.inner.disk.contents == b""
    life.audit.stop()


def test_the_audit_marker_is_no_entity(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    life.send("m0")
    life.commit()
    life.stop()
    inner = MemoryStore(disk)
    broker = Broker("contoso", inner, bytes(16))

    records = recover(broker.namespace, inner)

    assert broker.namespace.audited_batch == 1
    assert records >= 3
    assert [entity.path for entity in broker.namespace.entities(QUEUE)] == ["orders"]


def test_a_store_with_the_marker_of_an_older_version_opens_and_goes_on(tmp_path: Path) -> None:
    disk = MemoryDisk()
    life = Life(disk, tmp_path, 1)
    life.send("m0")
    life.commit()
    life.stop()
    # Before AuditMarked the number was written as the next sequence number of a queue with the id 0.
    disk.contents = disk.contents.replace(encode(AuditMarked(1)), encode(SequenceAdvanced(0, 2, 0)))

    life = Life(disk, tmp_path, 2)
    assert life.broker.namespace.audited_batch == 1
    life.send("m1")
    life.commit()
    life.stop()

    broker = Broker("contoso", again := MemoryStore(disk), bytes(16))
    recover(broker.namespace, again)
    assert broker.namespace.audited_batch == 2


def start(disk: MemoryDisk, data: Path, at: int, *, is_audited: bool, has_crashed: bool = False) -> None:
    """A start of a broker up to its first commit, and its end."""
    options = Options(data=data, audit=is_audited, audit_days=100_000)  # the times are of long ago
    assembly = assemble(options, at, MemoryStore(disk))
    batch = assembly.store.seal()
    if batch is not None and not has_crashed:
        assembly.store.commit(batch)
    if assembly.message_audit is not None:
        assembly.message_audit.start()
        assembly.message_audit.finish()
    assembly.close()


def changes(data: Path) -> list[tuple[str, int, str]]:
    """What an audit log says of itself, also in journals: kind, time and detail."""
    found = find_inputs(None, [str(data)], AUDIT)
    rows = [
        row
        for path in found.parquet
        for row in pyarrow.parquet.read_table(path, partitioning=None).to_pylist()
        if row["kind"].startswith("audit-")
    ]
    return sorted((row["kind"], int(row["time"].timestamp() * 1000), row["detail"]) for row in rows)


def gaps(data: Path) -> list[tuple[int, int | None]]:
    """The times without audit that a certificate names."""
    found = find_inputs(None, [str(data)], AUDIT)
    certificate = arrow.reconcile({SENT: found, RECEIVED: found}).certificate
    assert certificate.verdict == UNPROVEN
    assert all(gap.hides_sends for gap in certificate.gaps)
    return [
        (
            round(gap.first.timestamp() * 1000),
            None if gap.last is None else round(gap.last.timestamp() * 1000),
        )
        for gap in certificate.gaps
        if gap.first is not None
    ]


def test_a_time_without_audit_is_noted_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the audit log is at hand in that time, or another node has it."""
    disk = MemoryDisk()
    caplog.set_level(logging.WARNING, logger="pairbus.server.logs.audit_pauses")
    for number, (is_audited, data, event) in enumerate(
        [
            (False, tmp_path / "one", ""),
            (True, tmp_path / "one", ""),
            (True, tmp_path / "one", ""),
            (False, tmp_path / "one", "message_audit.off"),
            (False, tmp_path / "one", "message_audit.off"),
            (True, tmp_path / "one", "message_audit.resumed"),
            (True, tmp_path / "one", ""),
            (False, tmp_path / "other", "message_audit.off"),
            (True, tmp_path / "one", "message_audit.resumed"),
        ]
    ):
        caplog.clear()
        start(disk, data, NOW + number * 1_000, is_audited=is_audited)
        assert [getattr(record, "event", "") for record in caplog.records] == [event] * bool(event)
        if number == 4:
            expected = [("audit-begun", NOW + 1_000, ""), ("audit-stopped", NOW + 3_000, "")]
            assert changes(tmp_path / "one") == expected
            assert gaps(tmp_path / "one") == [(NOW + 3_000, None)]

    resumed = [
        ("audit-resumed", NOW + 5_000, "2023-11-14T22:00:03.000+00:00"),
        ("audit-resumed", NOW + 8_000, "2023-11-14T22:00:07.000+00:00"),
    ]
    assert changes(tmp_path / "one") == sorted([*expected, *resumed])
    assert gaps(tmp_path / "one") == [(NOW + 3_000, NOW + 5_000), (NOW + 7_000, NOW + 8_000)]
    assert not (tmp_path / "other" / "messages-audit").exists()


def test_a_start_without_audit_that_never_served_leaves_no_trace(tmp_path: Path) -> None:
    """Nor does it make rows count that a crash had undone."""
    disk = MemoryDisk()
    start(disk, tmp_path, NOW, is_audited=True)
    life = Life(disk, tmp_path / "messages-audit", 1)
    life.send("m0")
    life.crash("before")
    life.crash_quietly()
    begun = [("audit-begun", NOW, "")]
    start(disk, tmp_path, NOW + 1_000, is_audited=False, has_crashed=True)
    start(disk, tmp_path, NOW + 2_000, is_audited=False)
    assert changes(tmp_path) == [*begun, ("audit-stopped", NOW + 2_000, "")]
    assert not [path for path in journal_files(tmp_path / "messages-audit") if "boot1" in path.name]
    start(disk, tmp_path, NOW + 3_000, is_audited=True)
    assert len(changes(tmp_path)) == 3


def test_when_the_audit_stopped_outlives_compaction_and_changes_of_access_rules() -> None:
    disk = MemoryDisk()
    broker = Broker("contoso", inner := MemoryStore(disk), bytes(16))
    recover(broker.namespace, inner)
    broker.namespace.set_audit_stopped(NOW, NOW)
    broker.namespace.set_access_rules((), NOW + 1)
    batch = inner.seal()
    assert batch is not None
    inner.commit(batch)
    for record in MemoryStore(disk).replay():
        broker.namespace.restate(record, NOW)
    again = inner.seal()
    assert again is not None
    inner.commit(again)

    broker = Broker("contoso", inner := MemoryStore(disk), bytes(16))
    recover(broker.namespace, inner)
    assert broker.namespace.audit_stopped_at == NOW
