"""The audit log of management when the disk will not take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.server.audit import AuditLog


def test_M11_a_full_disk_does_not_turn_a_done_action_into_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pairbus.server.audit.os.write", full)
    log.write("create", "orders", "root", "201")

    assert "audit" in caplog.text
    log.close()
