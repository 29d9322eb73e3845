"""The audit log of management when the disk will not take it."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from pairbus.gateway.broker import Broker
from pairbus.model.entity import QUEUE, Settings
from pairbus.server.assemble import assemble
from pairbus.server.config.options import Options
from pairbus.server.logs import audit as audit_module
from pairbus.server.logs.audit import REFUSALS_PER_MINUTE, AuditLog


@pytest.mark.promise("M11")
def test_a_full_disk_does_not_turn_a_done_action_into_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pairbus.server.logs.audit.os.write", full)
    log.write("create", "orders", "root", "201")

    assert "audit" in caplog.text
    log.close()


def records(directory: Path, name: str) -> list[dict[str, object]]:
    files = sorted(directory.glob(f"{name}-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def refusals(directory: Path) -> int:
    """How many refusals the log tells of."""
    return sum(int(str(record.get("count", 1))) for record in records(directory, "refused"))


@pytest.mark.promise("M13")
def test_refusals_never_push_out_the_record_of_an_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FILE_BYTES_MAX", "REFUSED_FILE_BYTES_MAX"):
        monkeypatch.setattr(audit_module, name, 2_000)
    now = 0

    def clock() -> int:
        return now

    log = AuditLog(tmp_path, clock)
    log.write("create", "orders", "root", "201", "10.0.0.1:5000")
    for minute in range(200):
        now = minute * 60_000
        for _ in range(2 * REFUSALS_PER_MINUTE):
            log.write_refusal("put-token", "orders", "", "refused", "10.0.0.2:5000")
    log.close()

    assert [record["path"] for record in records(tmp_path, "audit")] == ["orders"]
    sizes = [file.stat().st_size for file in tmp_path.glob("refused-*.jsonl")]
    assert len(sizes) == audit_module.REFUSED_FILES_MAX
    assert max(sizes) <= 2_000


@pytest.mark.promise("M13")
def test_a_flood_of_refusals_is_counted_and_every_count_is_kept(tmp_path: Path) -> None:
    now = 1_700_000_000_000

    def clock() -> int:
        return now

    log = AuditLog(tmp_path, clock)
    for number in range(5_000):
        log.write_refusal("put-token", "orders", "", "refused", f"10.0.0.{number % 3}:{number}")
    first = refusals(tmp_path)
    now += 60_000
    log.flush()
    after_a_minute = refusals(tmp_path)
    log.write_refusal("login", "", "root", "refused", "10.0.0.9:1")
    for number in range(1_000):
        log.write_refusal("login", "", "root", "refused", f"10.1.{number // 250}.{number % 250}:1")
    log.close()

    assert (first, after_a_minute, refusals(tmp_path)) == (REFUSALS_PER_MINUTE, 5_000, 6_001)
    lines = records(tmp_path, "refused")
    assert len(lines) <= 2 * (REFUSALS_PER_MINUTE + audit_module.REFUSAL_GROUPS_MAX + 1)
    assert {line["peer"] for line in lines if "count" in line} >= {"10.0.0.0", "10.0.0.1", "10.0.0.2"}
    assert {line["result"] for line in lines} == {"refused"}


@pytest.mark.promise("M13")
def test_audit_records_are_appended_and_survive_a_reopening(tmp_path: Path) -> None:
    for number in range(2):
        log = AuditLog(tmp_path / "audit", lambda: 1_700_000_000_000)
        log.write("create", f"q{number}\n", "RootManageSharedAccessKey", "201")
        log.close()

    files = list((tmp_path / "audit").iterdir())
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [line["path"] for line in lines] == ["q0\n", "q1\n"]
    assert lines[0]["time"] == "2023-11-14T22:13:20.000Z"
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


@pytest.mark.promise("M12")
def test_the_audit_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "FILE_BYTES_MAX", 300)
    log = AuditLog(tmp_path)
    for number in range(200):
        log.write("login", str(number), "peer", "refused")
    log.close()

    files = sorted(tmp_path.iterdir())
    assert len(files) == audit_module.FILES_MAX
    assert json.loads(files[-1].read_text().splitlines()[-1])["path"] == "199"


@pytest.mark.promise("M13")
def test_the_deletion_of_an_idle_entity_is_recorded_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, idle_ms = 1_700_000_000_000, 300_000
    assembly = assemble(Options(namespace="contoso", data=tmp_path, tls=False), now)
    assert isinstance(assembly.broker, Broker)
    namespace = assembly.broker.namespace
    namespace.create(QUEUE, "orders", Settings(auto_delete_on_idle_ms=idle_ms), now)
    with caplog.at_level(logging.INFO):
        namespace.tick(now + idle_ms)
    assembly.close()

    assert namespace.find("orders") is None
    told = [vars(one) for one in caplog.records if vars(one).get("event") == "entity.idle_deleted"]
    assert [(one["path"], one["kind"]) for one in told] == [("orders", "queue")]
    (record,) = records(tmp_path / "audit", "audit")
    assert (record["action"], record["path"], record["result"]) == ("delete idle queue", "orders", "deleted")
