"""Places and files that a person names are checked before any message moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.cli import demo
from pairbus.cli.kit.places import check_directory
from pairbus.cli.root import main
from pairbus.errors import UsageError

NOBODY = (
    "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=R;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
)


def line_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2, line
    return line


@pytest.fixture(autouse=True)
def pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", f"{NOBODY};Namespace=contoso")
    monkeypatch.setenv("PAIRBUS_SECONDARY", f"{NOBODY};Namespace=backup")


def test_a_directory_that_is_checked_is_left_as_it_was(tmp_path: Path) -> None:
    check_directory(str(tmp_path / "new" / "deeper"), "--to")
    check_directory("hdfs://head/captured", "--to")
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(UsageError, match="--to is /proc/x, and nothing can be written there: "):
        check_directory("/proc/x", "--to")


@pytest.mark.parametrize(
    "command",
    [
        ["syphon", "--engine", "local", "--once", "--ledger"],
        ["syphon", "--engine", "spark", "--once", "--ledger"],
        ["backlog", "drain", "--extra", "--ledger"],
        ["capture", "orders", "--once", "--to"],
        ["up", "--data"],
    ],
    ids=" ".join,
)
def test_a_file_is_no_directory(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    line = line_of(capsys, *command, str(file))
    assert line == f"pairbus: {command[-1]} is {file}, and {file} is a file: name a directory"


def test_up_names_the_configuration_of_the_person(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "mine.json"
    config.write_text('{"UserConfig": {"Namespaces": [{"Name": "contoso", "Queue": []}]}}')
    line = line_of(capsys, "up", "--data", str(tmp_path / "data"), "--config", str(config))
    assert str(config) in line
    assert "'Queue'" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "command", [["peek", "orders"], ["entity", "list"], ["access", "list"]], ids=" ".join
)
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_is_none_is_wrong_usage(
    command: list[str], content: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    line = line_of(capsys, *command, "--ca-file", str(file))
    assert line.startswith(f"pairbus: the authority {file} cannot be used: ")


def test_a_demo_on_spark_needs_spark_before_it_starts_brokers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_obstacle", lambda: "Spark is not installed")
    line = line_of(capsys, "demo", "--engine", "spark")
    assert line == "pairbus: --engine spark cannot run here: Spark is not installed; or use --engine local"
