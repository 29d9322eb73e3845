from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pairbus.cli import capture as command
from pairbus.cli.capture import capture, entity_options
from pairbus.errors import PairbusError, UsageError
from pairbus.spark.capture.stream import CaptureOptions, _Warnings
from pairbus.testing import Namespace

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("arguments", "connection", "said"),
    [
        (["--to", "x"], CONNECTION, "ENTITY is missing: .* or give --compact"),
        (["orders", "--to", "x"], None, "no namespace is named: set PAIRBUS_PRIMARY"),
        (
            ["orders", "--to", "x", "--ca-file", "/nowhere"],
            CONNECTION,
            "the authority /nowhere",
        ),
        (["orders/Rules", "--to", "x"], "hello", "is no connection string"),
        (["orders", "--to", "x", "--every", "5 secs"], CONNECTION, "--every is '5 secs': .* '5 seconds'"),
        (["orders", "--to", f"{__file__}/x"], CONNECTION, "test_capture.py is a file: name a directory"),
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


def test_an_entity_that_is_not_there_is_told_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pairbus.spark.session.spark_session", None)
    with Namespace("contoso", queues=["orders"]) as namespace:
        arguments = ["absent", "--to", str(tmp_path / "out")]
        result = CliRunner().invoke(capture, arguments, env={"PAIRBUS_PRIMARY": namespace.connection_string})

    assert isinstance(result.exception, UsageError)
    assert "there is no entity 'absent' in the namespace" in str(result.exception)


@pytest.fixture
def signals() -> Iterator[None]:
    """Handlers of signals as they were."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    filters = list(logging.getLogger().filters)
    yield
    logging.getLogger().filters[:] = filters
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_signal_ends_a_capture_also_when_spark_has_a_handler_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[bool] = []

    def start(*_: object, **__: object) -> SimpleNamespace:
        signal.signal(signal.SIGINT, lambda *_: pytest.fail("Spark's handler"))
        return SimpleNamespace(stop=lambda: None)

    def work(_options: object, _entity: str, _spark: object, stop: threading.Event, **_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        stopped.append(stop.is_set())

    monkeypatch.setattr("pairbus.spark.session.spark_session", start)
    monkeypatch.setattr(command, "check_entity", lambda _: None)
    monkeypatch.setattr(command, "_capture", work)
    monkeypatch.setenv("PAIRBUS_PRIMARY", CONNECTION)
    capture.main(["orders", "--to", str(tmp_path)], standalone_mode=False)

    assert stopped == [True]


@pytest.mark.usefixtures("signals")
def test_a_capture_whose_java_got_the_same_signal_ends_without_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        logging.error("Exception while sending command.")  # noqa: LOG015 - as py4j does
        raise PairbusError("the Java process that Spark runs in ended with exit code 143")

    monkeypatch.setattr(
        "pairbus.spark.session.spark_session", lambda *_, **__: SimpleNamespace(stop=lambda: None)
    )
    monkeypatch.setattr(command, "check_entity", lambda _: None)
    monkeypatch.setattr(command, "_capture", work)
    monkeypatch.setenv("PAIRBUS_PRIMARY", CONNECTION)
    capture.main(["orders", "--to", str(tmp_path)], standalone_mode=False)

    assert capfd.readouterr().err.splitlines() == [
        "pairbus capture: stopped, and Java with it: the next start continues where the last batch ended"
    ]


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
    monkeypatch.setattr(command, "check_entity", lambda _: None)
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
