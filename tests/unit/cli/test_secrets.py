"""Connection strings from files: found, preferred least, never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairbus.cli import main
from pairbus.cli.kit.secrets import from_files
from pairbus.errors import UsageError

TEXT = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=R;SharedAccessKey=canary;UseDevelopmentEmulator=true"


@pytest.mark.parametrize(
    "content", [TEXT, f"  {TEXT}\n", json.dumps({"connection_string": TEXT, "pid": 1}), f"\n{TEXT}\n\n"]
)
def test_a_file_holds_a_connection_string_or_is_a_ready_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    environment = {"PAIRBUS_PRIMARY_FILE": str(file), "PAIRBUS_SECONDARY_FILE": str(file)}

    from_files(environment)

    assert environment["PAIRBUS_PRIMARY"] == environment["PAIRBUS_SECONDARY"] == TEXT


def test_what_is_set_itself_wins(tmp_path: Path) -> None:
    environment = {"PAIRBUS_PRIMARY": "mine", "PAIRBUS_PRIMARY_FILE": str(tmp_path / "none")}

    from_files(environment)

    assert environment["PAIRBUS_PRIMARY"] == "mine"


@pytest.mark.promise("M7")
@pytest.mark.parametrize(
    "content",
    [b"canary", b"", b"\xff\xfe", b"{", b'{"connection_string": 5}', b"[1]", f"{TEXT}\n{TEXT}".encode()],
)
def test_a_file_that_holds_none_is_told_without_its_content(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)

    with pytest.raises(UsageError, match="holds no connection string") as caught:
        from_files({"PAIRBUS_SECONDARY_FILE": str(file)})

    assert "canary" not in str(caught.value)
    assert "PAIRBUS_SECONDARY_FILE" in str(caught.value)


def test_a_file_that_is_not_there_is_wrong_usage_but_for_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PAIRBUS_PRIMARY", raising=False)
    monkeypatch.setenv("PAIRBUS_PRIMARY_FILE", str(tmp_path / "none"))
    with pytest.raises(SystemExit) as ended:
        main(["peek", "orders"])
    assert ended.value.code == 2
    assert "No such file" in capsys.readouterr().err

    with pytest.raises(SystemExit) as helped:
        main(["peek", "--help"])
    assert helped.value.code == 0
