"""What `pairbus syphon` says and how it reads its options."""

from __future__ import annotations

import sys

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError
from click.testing import CliRunner

from pairbus.cli import root as roots
from pairbus.cli.kit.output import status
from pairbus.cli.kit.pair import PairFlags, refusals
from pairbus.cli.kit.spark import spark_settings
from pairbus.cli.pairing import syphon as syphon_command
from pairbus.errors import PairingError, UsageError
from pairbus.pairing.statistics import Counters
from pairbus.sdk.place import errors_of


def test_settings_are_taken_apart_at_the_first_equals_sign() -> None:
    given = ["spark.executor.memory=2g", "spark.driver.extraJavaOptions=-Da=b"]

    assert spark_settings(given) == {
        "spark.executor.memory": "2g",
        "spark.driver.extraJavaOptions": "-Da=b",
    }


@pytest.mark.parametrize("given", ["spark.executor.memory", "executor.memory=2g", ""])
def test_a_setting_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"expected spark\.KEY=VALUE"):
        spark_settings([given])


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_status_line_is_shown_to_a_person_who_waits_and_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_watched: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_watched)

    with status("starting Spark…"):
        pass

    assert capsys.readouterr() == ("", "starting Spark…\r\x1b[2K" if is_watched else "")


def test_the_help_shows_a_cluster() -> None:
    result = CliRunner().invoke(roots.root, ["syphon", "--help"], prog_name="pairbus")

    assert "--master spark://" in result.output
    assert "must be installed on the workers" in result.output


@pytest.mark.parametrize(("arguments", "code"), [(["--once"], 1), ([], 0)])
def test_a_drain_that_ends_says_that_something_could_not_be_delivered(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    """With --once, as on Spark. One that was stopped has only been stopped."""

    async def drain(_: object, counters: Counters, __: object) -> bool:
        counters.set_aside = 20
        return True

    monkeypatch.setattr(syphon_command, "_drain", drain)
    monkeypatch.setattr(syphon_command.SyphonFlags, "backlog", lambda *_: None)

    result = CliRunner().invoke(
        roots.root, ["syphon", "--engine", "local", *arguments], prog_name="pairbus", standalone_mode=False
    )

    assert result.exception is None
    assert result.return_value == code


@pytest.mark.parametrize("given", [("--tasks", "3"), ("--master", "local"), ("--conf", "spark.a=b")])
def test_options_of_spark_are_refused_without_spark(given: tuple[str, str]) -> None:
    result = CliRunner().invoke(roots.root, ["syphon", "--engine", "local", *given])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{given[0]} is for Spark: leave it out, or leave out --engine local"


@pytest.mark.parametrize(
    "command", [["syphon"], ["backlog", "list"], ["spool", "replay", "somewhere"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize("count", ["0", "10001", "1000000000000"])
def test_a_number_of_backlog_queues_that_no_client_may_have_is_refused(
    command: list[str], count: str
) -> None:
    """Their names would take gigabytes."""
    words = [command[0], "--queues", count] if command[0] != "spool" else [*command, "--queues", count]

    result = CliRunner().invoke(roots.root, words, prog_name="pairbus")

    assert result.exit_code == 2
    assert "is not in the range 1<=x<=10000" in result.output


@pytest.mark.parametrize(
    "command",
    [["syphon"], ["backlog", "drain", "--extra"], ["spool", "replay", "somewhere"]],
    ids=lambda words: words[0],
)
def test_an_alias_of_the_primary_that_can_be_no_address_is_refused(command: list[str]) -> None:
    given = ["--primary-alias", "old-host:5672", "--primary-alias", "h:99999"]

    result = CliRunner().invoke(roots.root, [*command, *given], prog_name="pairbus")

    assert result.exit_code == 2
    assert "'h:99999' can be no address" in result.output


def test_an_error_of_a_pair_names_both_namespaces_when_it_may_be_of_either() -> None:
    ending = ";SharedAccessKeyName=R;SharedAccessKey=c2VjcmV0"
    pair = PairFlags(primary=f"Endpoint=sb://a:1,b:2/{ending}", secondary=f"Endpoint=sb://c/{ending}")

    with pytest.raises(PairingError) as caught, refusals(pair):
        raise ServiceBusConnectionError(message="")

    assert str(caught.value).startswith("the primary a:1,b:2 or the secondary c: the namespace could not be")


def test_an_error_that_is_known_to_be_of_one_namespace_names_that_one() -> None:
    with pytest.raises(PairingError) as caught, refusals(PairFlags()), errors_of("the secondary c"):
        raise ServiceBusError(message="too bad")

    assert str(caught.value) == "the secondary c: the namespace refused: too bad"
