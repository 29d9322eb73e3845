"""The ready file, and the connection string in it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from pairbus.server.ready import ReadyInfo, connection_string, write_ready_file


def test_the_connection_string_is_for_the_emulator_at_home_only() -> None:
    assert connection_string("127.0.0.1", 5672, "contoso", "K=") == (
        "Endpoint=sb://127.0.0.1:5672/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=K=;"
        "UseDevelopmentEmulator=true;Namespace=contoso"
    )
    assert connection_string("::1", 1, "n", "K").startswith("Endpoint=sb://[::1]:1/;")
    assert "sb://127.0.0.1:1/" in connection_string("0.0.0.0", 1, "n", "K")
    assert "UseDevelopmentEmulator" not in connection_string("10.0.0.1", 1, "n", "K")


def test_the_ready_file_is_whole_private_and_has_exactly_the_products_keys(tmp_path: Path) -> None:
    info = ReadyInfo(
        namespace="contoso",
        pid=7,
        amqp="127.0.0.1:1",
        http="127.0.0.1:2",
        connection_string="SECRET",
        ca_file=None,
    )

    write_ready_file(tmp_path / "ready.json", info)

    assert list(json.loads((tmp_path / "ready.json").read_text())) == [
        "namespace", "pid", "amqp", "http", "connection_string", "ca_file",
    ]  # fmt: skip
    assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
    assert "SECRET" not in repr(info)


def ready_info(pid: int = 7) -> ReadyInfo:
    return ReadyInfo(
        namespace="contoso", pid=pid, amqp="h:1", http="h:2", connection_string="SECRET", ca_file=None
    )


def test_the_ready_file_follows_no_link_and_keeps_no_foreign_mode(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    ready = tmp_path / "ready.json"
    ready.symlink_to(victim)
    (tmp_path / "ready.json.7.new").symlink_to(
        victim
    )  # a name that could once be guessed from the process id

    write_ready_file(ready, ready_info())

    assert victim.read_text() == "precious"
    assert not ready.is_symlink()
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    ready.unlink()
    ready.write_text("planted")
    ready.chmod(0o666)
    planted = ready.open()
    write_ready_file(ready, ready_info())
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    assert "SECRET" in ready.read_text()
    with planted:
        assert planted.read() == "planted"  # whoever held the old file open reads nothing new


def test_a_ready_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "ready.json").mkdir()
    with pytest.raises(OSError, match="ready.json"):
        write_ready_file(tmp_path / "ready.json", ready_info())
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


def test_the_first_names_of_ready_files_cannot_be_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append((str(path), flags))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    for _ in range(3):
        write_ready_file(tmp_path / "ready.json", ready_info())
    ours = [(path, flags) for path, flags in opened if str(tmp_path) in path]
    assert len({path for path, _ in ours}) == 3
    assert all(Path(path).parent == tmp_path for path, _ in ours)
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in ours)
