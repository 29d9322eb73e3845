from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pairbus.cli import capture as command
from pairbus.cli.capture import capture, entity_options
from pairbus.errors import PairbusError, UsageError

pytest.importorskip("pyspark")

from pairbus.spark.capture.stream import CaptureOptions, _Warnings

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("arguments", "connection", "said"),
    [
        (["--to", "x"], CONNECTION, "ENTITY is missing: .* or give --compact"),
        (["orders", "--to", "x"], None, "no namespace is named: set PAIRBUS_PRIMARY"),
        (
            ["orders", "--to", "x", "--ca-file", "/nowhere"],
            CONNECTION,
            "option caFile: the authority /nowhere",
        ),
        (["orders/Rules", "--to", "x"], "hello", "is no connection string"),
    ],
)
def test_a_wrong_command_is_refused_before_spark_starts(
    arguments: list[str], connection: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.spark.session.spark_session", None)

    result = CliRunner().invoke(capture, arguments, env={"PAIRBUS_PRIMARY": connection})

    assert isinstance(result.exception, UsageError)
    with pytest.raises(UsageError, match=said):
        raise result.exception


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_person_who_waits_for_spark_is_told_so_and_nobody_else(
    is_watched: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object, **__: object) -> None:
        click.echo("Java starts here", err=True)
        raise PairbusError("no Spark")

    monkeypatch.setattr("pairbus.spark.session.spark_session", start)
    monkeypatch.setattr(command.sys.stderr, "isatty", lambda: is_watched)  # type: ignore[attr-defined]
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("PAIRBUS_PRIMARY", CONNECTION)

    with pytest.raises(PairbusError, match="no Spark"):
        capture.main(["orders", "--to", "x"], standalone_mode=False)

    told = capfd.readouterr().err
    assert told == ("starting Spark…Java starts here\n\r\x1b[2K" if is_watched else "Java starts here\n")


@pytest.mark.parametrize(
    ("entity", "options"),
    [
        ("orders", {"queue": "orders"}),
        ("orders/$DeadLetterQueue", {"queue": "orders", "subQueue": "deadletter"}),
        ("a/b/$Transfer/$DeadLetterQueue", {"queue": "a/b", "subQueue": "transferdeadletter"}),
        ("events/Subscriptions/all", {"topic": "events", "subscription": "all"}),
        (
            "events/subscriptions/all/$deadletterqueue",
            {"topic": "events", "subscription": "all", "subQueue": "deadletter"},
        ),
    ],
)
def test_an_entity_of_the_command_line_becomes_options(entity: str, options: dict[str, str]) -> None:
    assert entity_options(entity) == options


def test_another_consumer_is_told_of_once_each_time_it_is_found() -> None:
    told: list[str] = []
    warnings = _Warnings(told.append)

    def report(owed: int, taken: int) -> Any:
        offset = {"entity": "orders", "seq": 9, "owed": owed, "taken": taken}
        return SimpleNamespace(json=json.dumps({"sources": [{"latestOffset": offset}]}))

    for progress in (
        None,
        report(0, 0),
        report(2, 0),
        report(2, 0),
        report(0, 0),
        report(1, 3),
        report(1, 3),
    ):
        warnings.look(progress)

    assert told == [
        "another consumer holds messages of orders that are in the files already",
        "another consumer took 3 messages of orders: they may be missing in the files",
        "another consumer holds messages of orders that are in the files already",
    ]


def test_options_do_not_show_their_secret() -> None:
    assert "c2VjcmV0" not in repr(CaptureOptions(source={"connectionString": CONNECTION}, path="x"))
