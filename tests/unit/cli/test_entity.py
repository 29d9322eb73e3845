"""``pairbus entity`` through the official client, against the management API in this process."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
)
from click.testing import CliRunner, Result

from pairbus.cli.entities.work import displayable
from pairbus.cli.kit.errors import UNREADABLE, way_out
from pairbus.cli.kit.namespace import _local_authority, shown_namespace
from pairbus.cli.root import root
from pairbus.errors import UsageError
from pairbus.gateway.http import HttpResponse
from tests.unit.gateway.atom_bench import HOST, Bench, connection_string, entry, queue_entry


@pytest.fixture
def bench() -> Bench:
    return Bench()


def run(bench: Bench, *arguments: str, key: str | None = None, typed: str | None = None) -> Result:
    text = connection_string() if key is None else connection_string(key=key)
    return CliRunner().invoke(
        root, ["entity", *arguments], obj=bench.options("sync"), env={"PAIRBUS_PRIMARY": text}, input=typed
    )


def done(bench: Bench, *arguments: str) -> str:
    result = run(bench, *arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_a_queue_is_created_shown_changed_and_deleted(bench: Bench) -> None:
    done(bench, "create", "queue", "a/b", "--set", "lock_duration=PT30S", "--set", "requires_session=true")
    done(bench, "update", "a/b", "--set", "max_delivery_count=3", "--set", "user_metadata=mine")

    shown = json.loads(done(bench, "show", "a/b", "--json"))

    assert shown["kind"] == "queue"
    assert (shown["lock_duration"], shown["requires_session"]) == ("0:00:30", True)
    assert (shown["max_delivery_count"], shown["user_metadata"]) == (3, "mine")
    assert shown["active_message_count"] == 0
    done(bench, "update", "a/b", "--set", "user_metadata=")
    assert json.loads(done(bench, "show", "a/b", "--json"))["user_metadata"] is None
    done(bench, "delete", "--yes", "a/b")
    assert run(bench, "show", "a/b").exit_code == 1


def test_topics_subscriptions_and_rules_have_paths(bench: Bench) -> None:
    done(bench, "create", "topic", "t")
    done(bench, "create", "subscription", "t/Subscriptions/s", "--set", "max_delivery_count=4")
    done(
        bench,
        "create",
        "rule",
        "t/subscriptions/s/rules/red",
        "--filter",
        "colour = 'red'",
        "--action",
        "SET a = 1",
    )

    assert json.loads(done(bench, "show", "t", "--json"))["subscription_count"] == 1
    assert json.loads(done(bench, "show", "t/Subscriptions/s", "--json"))["max_delivery_count"] == 4
    rule = json.loads(done(bench, "show", "t/Subscriptions/s/Rules/red", "--json"))
    assert (rule["filter"], rule["action"]) == ("colour = 'red'", "SET a = 1")
    done(bench, "update", "t/Subscriptions/s", "--set", "status=ReceiveDisabled")
    assert [row["name"] for row in json.loads(done(bench, "list", "t", "--json"))] == ["s"]
    rules = json.loads(done(bench, "list", "t/Subscriptions/s", "--json"))
    assert [(row["name"], row["filter"]) for row in rules] == [("$Default", "1=1"), ("red", "colour = 'red'")]
    done(bench, "delete", "--yes", "t/Subscriptions/s/Rules/red")
    done(bench, "delete", "--yes", "t")
    assert json.loads(done(bench, "list", "--json")) == []


def test_everything_is_listed(bench: Bench) -> None:
    for kind, name in (("queue", "q2"), ("topic", "t1"), ("queue", "q1")):
        done(bench, "create", kind, name)

    rows = json.loads(done(bench, "list", "--json"))

    assert [(row["kind"], row["name"]) for row in rows] == [("queue", "q1"), ("queue", "q2"), ("topic", "t1")]
    assert rows[-1]["subscriptions"] == 0


def test_a_list_has_a_header_and_one_meaning_for_each_column(bench: Bench) -> None:
    done(bench, "create", "queue", "orders")
    done(bench, "create", "topic", "events")

    header, queue, topic = done(bench, "list").splitlines()

    assert header.split() == ["KIND", "NAME", "ACTIVE", "DEAD", "LETTER", "SCHEDULED", "SUBSCRIPTIONS"]
    assert queue.split() == ["queue", "orders", "0", "0", "0", "-"]
    assert topic.split() == ["topic", "events", "-", "-", "0", "0"]


def test_an_empty_namespace_says_so(bench: Bench) -> None:
    assert "nothing in the namespace" in run(bench, "list").stderr


def test_delete_asks_and_a_no_keeps_the_entity(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    done(bench, "create", "queue", "q")
    monkeypatch.setattr("pairbus.cli.entities.entity.is_person_there", lambda: True)

    refused = run(bench, "delete", "q", typed="n\n")

    assert "Delete queue q?" in refused.output
    assert "queue q stays" in refused.output
    assert run(bench, "show", "q").exit_code == 0
    assert "deleted queue q" in run(bench, "delete", "q", typed="y\n").output
    assert run(bench, "show", "q").exit_code == 1


def test_delete_without_a_person_needs_yes(bench: Bench) -> None:
    done(bench, "create", "queue", "q")

    result = run(bench, "delete", "q")

    assert isinstance(result.exception, UsageError)
    assert "--yes" in str(result.exception)
    assert run(bench, "show", "q").exit_code == 0


def test_errors_of_the_service_become_sentences_with_a_way_out(bench: Bench) -> None:
    done(bench, "create", "queue", "q")
    twice, missing = run(bench, "create", "queue", "q"), run(bench, "show", "nothere")
    wrong, refused = (
        run(bench, "list", key="d3Jvbmc="),
        run(bench, "create", "queue", "r", "--set", "lock_duration=P25D"),
    )

    assert "'q' already exists" in twice.stderr
    assert "--if-missing" in twice.stderr
    assert "there is no entity 'nothere'" in missing.stderr
    assert "pairbus entity list" in missing.stderr
    assert "the key was refused" in wrong.stderr
    assert "LockDuration is" in refused.stderr
    for result in (twice, missing, wrong, refused):
        for noise in ("TrackingId", "aka.ms", "invalid status"):
            assert noise not in result.stderr


def test_the_namespace_may_be_named_before_or_after_the_subcommand(bench: Bench, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps({"connection_string": connection_string()}))
    for arguments in (["--ready-file", str(ready), "list"], ["list", "--ready-file", str(ready)]):
        result = CliRunner().invoke(
            root, ["entity", *arguments], obj=bench.options("sync"), env={"PAIRBUS_PRIMARY": ""}
        )
        assert result.exit_code == 0, result.output


@pytest.mark.promise("M11")
def test_repeating_says_no_unless_that_is_allowed(bench: Bench) -> None:
    done(bench, "create", "queue", "q")

    assert run(bench, "create", "queue", "q").exit_code == 1
    assert run(bench, "create", "queue", "q", "--if-missing").exit_code == 0
    done(bench, "delete", "--yes", "q")
    assert run(bench, "delete", "--yes", "q").exit_code == 1
    assert run(bench, "delete", "--yes", "q", "--if-exists").exit_code == 0


@pytest.mark.parametrize(("there", "wanted"), [("queue", "topic"), ("topic", "queue")])
def test_if_missing_does_not_accept_an_entity_of_another_kind(bench: Bench, there: str, wanted: str) -> None:
    done(bench, "create", there, "q")

    result = run(bench, "create", wanted, "q", "--if-missing")

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"q is a {there}, not a {wanted}" in result.stderr


def test_if_missing_accepts_subscriptions_and_rules_that_are_there(bench: Bench) -> None:
    done(bench, "create", "topic", "t")
    for kind, path in (("subscription", "t/Subscriptions/s"), ("rule", "t/Subscriptions/s/Rules/red")):
        done(bench, "create", kind, path)
        assert "was there already" in done(bench, "create", kind, path, "--if-missing")


def test_a_rule_that_is_there_is_changed_in_the_way_that_works(bench: Bench) -> None:
    done(bench, "create", "topic", "t")
    done(bench, "create", "subscription", "t/Subscriptions/s")
    path = "t/Subscriptions/s/Rules/red"
    done(bench, "create", "rule", path)

    twice = run(bench, "create", "rule", path)

    assert twice.exit_code == 1
    assert f"pairbus entity delete {path} and create it again" in twice.stderr
    assert "pairbus entity update" not in twice.stderr


def test_refusals_are_one_line_and_exit_code_3(bench: Bench) -> None:
    for result in (
        run(bench, "create", "queue", "q", "--set", "lock_duration=P25D"),
        run(bench, "list", key="d3Jvbmc="),
    ):
        assert result.exit_code == 3
        assert result.stderr.startswith("pairbus: ")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "queue", "q", "--set", "colour=red"),
        ("create", "queue", "q", "--set", "lock_duration"),
        ("create", "queue", "q", "--set", "requires_session=perhaps"),
        ("create", "queue", "q", "--set", "max_delivery_count=few"),
        ("create", "queue", "q", "--filter", "a = 1"),
        ("create", "queue", "t/Subscriptions/s"),
        ("create", "subscription", "t"),
        ("create", "rule", "t/Subscriptions/s/Rules/r", "--set", "status=Active"),
        ("show", "t/Subscriptions"),
        ("update", "t/Subscriptions/s/Rules/r", "--set", "a=b"),
    ],
)
def test_wrong_usage_is_told_and_nothing_is_changed(bench: Bench, arguments: tuple[str, ...]) -> None:
    before = list(bench.journal.records)

    result = run(bench, *arguments)

    assert isinstance(result.exception, UsageError)  # `main` makes exit code 2 of it
    assert bench.journal.records == before


def test_without_a_namespace_the_way_out_is_told() -> None:
    result = CliRunner().invoke(root, ["entity", "list"], env={"PAIRBUS_PRIMARY": ""})

    assert isinstance(result.exception, UsageError)
    assert "PAIRBUS_PRIMARY" in str(result.exception)


@pytest.mark.promise("M7")
def test_keys_are_not_shown(bench: Bench) -> None:
    canary = "Y2FuYXJ5"
    client = ServiceBusAdministrationClient.from_connection_string(
        connection_string(), **bench.options("sync")
    )
    given = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        rights=["Send"],
        key_name="k",
        primary_key=canary,
        secondary_key=canary,
    )
    client.create_queue("q", authorization_rules=[given])

    shown = done(bench, "show", "q") + done(bench, "show", "q", "--json")

    assert "['k']" in shown
    assert canary not in shown


@pytest.mark.promise("M8")
def test_what_others_wrote_does_not_steer_the_terminal(bench: Bench) -> None:
    done(bench, "create", "queue", "q", "--set", "user_metadata=a\u009b31mb\u202ec\nforged")

    line = next(line for line in done(bench, "show", "q").splitlines() if line.startswith("user_metadata"))

    assert line.split(maxsplit=1)[1] == "a\\x9b31mb\\u202ec\\nforged"


def test_a_ready_file_names_the_namespace(bench: Bench, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps({"connection_string": connection_string(), "ca_file": "ca.pem"}))

    result = CliRunner().invoke(
        root, ["entity", "--ready-file", str(ready), "list", "--json"], obj=bench.options("sync")
    )

    assert (result.exit_code, result.stdout) == (0, "[]\n")
    ready.write_text("{}")
    broken = CliRunner().invoke(root, ["entity", "--ready-file", str(ready), "list"])
    assert isinstance(broken.exception, UsageError)


def test_a_local_brokers_authority_is_found(tmp_path: Path) -> None:
    authority = tmp_path / "pairbus" / "contoso" / "tls" / "ca.pem"
    authority.parent.mkdir(parents=True)
    authority.write_text("")
    environment = {"XDG_DATA_HOME": str(tmp_path)}

    def found(host: str, name: str) -> str | None:
        return _local_authority(
            f"Endpoint=sb://{host}/;SharedAccessKeyName=a;SharedAccessKey=b;Namespace={name}", environment
        )

    assert found("127.0.0.1:5672", "contoso") == str(authority)
    assert found("localhost:5672", "other") is None
    assert found("example.com:5672", "contoso") is None
    assert found("localhost:5672", "../contoso") is None


@pytest.mark.parametrize("text", ["30s", "PT30S", "0:00:30", "pt30s"])
def test_a_length_of_time_is_taken_as_people_write_it(bench: Bench, text: str) -> None:
    done(bench, "create", "queue", "q", "--set", f"lock_duration={text}")
    assert json.loads(done(bench, "show", "q", "--json"))["lock_duration"] == "0:00:30"


def test_no_limit_has_a_word(bench: Bench) -> None:
    done(bench, "create", "queue", "q", "--set", "default_message_time_to_live=unlimited")
    shown = json.loads(done(bench, "show", "q", "--json"))
    assert (shown["default_message_time_to_live"], shown["auto_delete_on_idle"]) == ("unlimited", "unlimited")
    done(bench, "update", "q", "--set", "default_message_time_to_live=1 days, 2:00:00")
    assert json.loads(done(bench, "show", "q", "--json"))["default_message_time_to_live"] == "1 day, 2:00:00"


@pytest.mark.parametrize("text", ["5", "soon", "P", "PT", "1:2", "-5s"])
def test_a_length_of_time_that_is_none_is_refused_by_name(bench: Bench, text: str) -> None:
    result = run(bench, "create", "queue", "q", "--set", f"lock_duration={text}")
    assert isinstance(result.exception, UsageError)
    assert text in str(result.exception)


def test_a_queue_has_no_subscriptions_to_list(bench: Bench) -> None:
    done(bench, "create", "queue", "q")
    result = run(bench, "list", "q")
    assert isinstance(result.exception, UsageError)
    assert "is a queue" in str(result.exception)
    assert run(bench, "list", "nothere").exit_code == 1


@pytest.mark.parametrize(
    ("kind", "path", "missing"),
    [
        ("subscription", "events/Subscriptions/all", "events"),
        ("rule", "there/Subscriptions/all/Rules/big", "there/Subscriptions/all"),
    ],
)
def test_a_creation_names_what_it_did_not_find(bench: Bench, kind: str, path: str, missing: str) -> None:
    done(bench, "create", "topic", "there")

    result = run(bench, "create", kind, path)

    assert f"there is no entity '{missing}' in the namespace" in result.stderr


def test_errors_name_the_namespace_and_its_address_and_never_the_key(bench: Bench) -> None:
    done(bench, "create", "queue", "orders")
    place = shown_namespace(connection_string())
    assert re.fullmatch("the namespace( contoso)? at [^ ]+", place)
    for says, result in (
        (f"there is no entity 'absent' in {place}: ", run(bench, "show", "absent")),
        (f"{place}: ", run(bench, "create", "queue", "orders")),
        (f"{place}: the key was refused", run(bench, "list", key="d3Jvbmc=")),
        (f"{place} refused: ", run(bench, "create", "queue", "big", "--set", "max_delivery_count=0")),
    ):
        assert says in result.stderr, result.stderr
        assert "d3Jvbmc=" not in result.stderr


def test_a_rule_is_shown_in_the_words_of_a_person() -> None:
    filter_ = CorrelationRuleFilter(label="x", properties={"colour": "red"})
    shown = displayable(SimpleNamespace(filter=filter_, created_at_utc=datetime(1, 1, 1, tzinfo=UTC)))
    assert shown == {"filter": "label = 'x' AND properties.colour = 'red'", "created_at_utc": None}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"status": "healthy"}', "application/json"),
        (b"ok", "text/plain"),
        (b"", "application/xml"),
        (b"<html><body>hello</body></html>", "text/html"),
        (b"<!DOCTYPE html><br>", "text/html"),
        (b"<entry xmlns='http://www.w3.org/2005/Atom'><title>", "application/atom+xml"),
        (b"<a/>", "application/xml"),
        (entry(""), "application/atom+xml"),
        (queue_entry("<LockDuration>x</LockDuration>"), "application/atom+xml"),
        (b"x", "application/octet-stream"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "q"],
        ["show", "q"],
        ["show", "t/Subscriptions/s"],
        ["show", "t/Subscriptions/s/Rules/r"],
        ["create", "queue", "q"],
        ["create", "topic", "q"],
        ["create", "rule", "t/Subscriptions/s/Rules/r"],
        ["update", "q", "--set", "max_delivery_count=3"],
        ["delete", "q", "--yes"],
    ],
)
def test_an_answer_that_cannot_be_read_is_one_line_that_names_the_address(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    body: bytes,
    kind: str,
) -> None:
    monkeypatch.setattr(bench, "carry", lambda _request: HttpResponse(200, [("content-type", kind)], body))
    result = run(bench, *arguments)
    if isinstance(result.exception, SystemExit) or result.exception is None:
        return  # the client found nothing in it, which is no fault
    line = way_out(result.exception)

    assert line is not None, result.exc_info
    assert line == f"the namespace at {HOST}: {UNREADABLE}"
