"""`pairbus drill` when it cannot be: one line, the way out, the exit code that is promised, no key."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pairbus.cli import main
from pairbus.cli.drill import drill
from pairbus.stage.drill.plan import AUTO, OUTAGES

PRIMARY = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=R;SharedAccessKey=canary;UseDevelopmentEmulator=true;Namespace=a"
SECONDARY = PRIMARY.replace(":1/", ":2/")


@pytest.fixture(autouse=True)
def pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", PRIMARY)
    monkeypatch.setenv("PAIRBUS_SECONDARY", SECONDARY)
    # The test run keeps its own way to be stopped.
    monkeypatch.setattr("signal.signal", lambda number, handler: None)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["drill", *arguments])
    told = capsys.readouterr()
    assert told.out == ""
    [line] = told.err.splitlines()
    assert "canary" not in line, "M7"
    assert isinstance(ended.value.code, int)
    return ended.value.code, line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--at", "25:00"], "HH:MM"),
        (["--at", "03:30", "--in", "10m"], "give one"),
        (["--in", "soon"], "'soon'"),
        (["--in", "400d"], "7 days ahead"),
        (["--for", "1d"], "1 h"),
        (["--fault", "flood"], "'black-hole'"),
        (["--entity", "orders"], "--yes"),
        (["--rate", "0"], "--rate"),
        (["--ca-file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(capsys, *arguments)

    assert code == 2
    assert says in line


def test_no_secondary_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PAIRBUS_SECONDARY")

    code, line = said(capsys)

    assert code == 2
    assert "PAIRBUS_SECONDARY" in line


@pytest.mark.parametrize("arguments", [[], ["--fault", "refuse"], ["--fault", "manual"], ["--in", "10m"]])
def test_a_primary_that_is_away(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(capsys, *arguments)

    assert code == 3
    assert "could not be reached" in line
    assert "the primary 127.0.0.1:1" in line


def test_every_outage_can_be_asked_for() -> None:
    [fault] = [one for one in drill.params if one.name == "fault"]
    assert isinstance(fault.type, click.Choice)
    assert set(fault.type.choices) == {AUTO, *OUTAGES}


@pytest.mark.parametrize("given", [("--primary", "a/b"), ("--secondary", "-x")])
def test_up_refuses_the_name_of_a_namespace_before_it_starts_one(
    given: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", "--data", str(tmp_path), *given])

    assert ended.value.code == 2
    assert f"{given[0]} {given[1]!r}: a namespace has 1 to 50 letters" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
