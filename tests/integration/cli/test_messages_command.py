"""``pairbus send``, ``receive`` and ``peek`` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner, Result

from pairbus.cli.root import root
from pairbus.errors import UsageError
from pairbus.testing import Namespace, Queue, Subscription, Topic

EVENTS = Topic("events", subscriptions=[Subscription("large", rules={"large": "size > 40"})])


@pytest.fixture(scope="module")
def broker() -> Iterator[Namespace]:
    queues: list[str | Queue] = [
        "plain",
        "tls",
        "file",
        "lines",
        "stop",
        "copies",
        "large",
        "dead",
        "empty",
        Queue("sessions", requires_session=True),
    ]
    with Namespace("contoso", queues=queues, topics=[EVENTS]) as namespace:
        yield namespace


def run(broker: Namespace, *arguments: str, typed: bytes | None = None) -> Result:
    environment = {"PAIRBUS_PRIMARY": broker.connection_string}
    return CliRunner().invoke(root, list(arguments), env=environment, input=typed)


def messages(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_standard_input_is_one_message(broker: Namespace) -> None:
    assert "sent 1" in run(broker, "send", "plain", typed=b"two\nlines\n").stdout
    assert "sent 1" in run(broker, "send", "plain", "-", typed=b"asked for").stdout

    found = messages(run(broker, "receive", "plain", "--count", "2", "--json"))
    assert [one["body"] for one in found] == ["two\nlines", "asked for"]


def test_over_TLS_the_authority_is_named_by_an_option(broker: Namespace) -> None:
    text = broker.connection_string.replace("UseDevelopmentEmulator=true;", "")
    text = text.replace(
        "Namespace=contoso", "Namespace=elsewhere"
    )  # no authority of this user is found by itself

    def over_tls(*words: str) -> Result:
        return CliRunner().invoke(root, list(words), env={"PAIRBUS_PRIMARY": text})

    trust = ("--ca-file", broker.ca_file)
    assert "sent 1" in over_tls("send", "tls", "over TLS", *trust).stdout
    assert "over TLS" in over_tls("peek", "tls", *trust).stdout
    assert "over TLS" in over_tls("receive", "tls", *trust).stdout
    refused = over_tls("send", "tls", "again")
    assert refused.exit_code == 3
    assert "--ca-file" in refused.stderr


def test_a_file_is_sent_byte_for_byte(broker: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "order.bin"
    file.write_bytes(b"\x00\xff\n")
    run(broker, "send", "file", "--file", str(file))

    with broker.client() as client, client.get_queue_receiver("file") as receiver:
        [message] = receiver.receive_messages(max_wait_time=45)
        assert b"".join(message.body) == b"\x00\xff\n"


def test_lines_are_sent_byte_for_byte(broker: Namespace) -> None:
    assert "sent 3" in run(broker, "send", "lines", "--lines", typed=b"a\n\xff\xfe\r\n\n").stdout

    with broker.client() as client, client.get_queue_receiver("lines") as receiver:
        found: list[bytes] = []
        while len(found) < 3:
            for message in receiver.receive_messages(max_message_count=3, max_wait_time=45):
                found.append(b"".join(message.body))
                receiver.complete_message(message)
    assert found == [b"a", b"\xff\xfe", b""]


def test_lines_stop_where_one_is_too_large_and_say_where(broker: Namespace) -> None:
    large = b"x" * 300_000
    result = run(broker, "send", "stop", "--lines", typed=b"a\nb\n" + large + b"\nd\n")
    assert result.exit_code == 3
    assert "sent 2 to stop; line 3 failed, and nothing after that was sent\n" in result.stderr

    found = messages(run(broker, "receive", "stop", "--count", "5", "--wait", "1", "--json"))
    assert [one["body"] for one in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--message-id", "m" * 200], "--message-id has 200 characters: at most 128 are allowed"),
        (["--session", "m" * 129], "--session has 129 characters: at most 128 are allowed"),
        (["--property", "a=\udcff"], "--property is not UTF-8 text"),
        (["--subject", "\udcff"], "--subject is not UTF-8 text"),
        (["\udcff"], "BODY is not UTF-8 text; --file sends any bytes"),
    ],
)
def test_what_no_message_can_carry_is_a_mistake(broker: Namespace, arguments: list[str], text: str) -> None:
    result = run(broker, "send", "plain", *arguments, *([] if len(arguments) == 1 else ["x"]))
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == text


def test_a_sequence_number_out_of_range_is_a_mistake(broker: Namespace) -> None:
    result = run(broker, "peek", "plain", "--from", "99999999999999999999")
    assert result.exit_code == 2
    assert "0<=x<=9223372036854775807" in result.stderr


def test_a_file_that_is_not_there_is_named(broker: Namespace, tmp_path: Path) -> None:
    result = run(broker, "send", "file", "--file", str(tmp_path / "nope"))
    assert isinstance(result.exception, UsageError)
    assert "nope cannot be read" in str(result.exception)


def test_copies(broker: Namespace) -> None:
    assert "sent 205" in run(broker, "send", "copies", "--count", "205", "again").stdout


def test_copies_that_fit_into_no_single_batch_are_sent_in_several(broker: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "large.bin"
    file.write_bytes(b"x" * 140_000)
    assert "sent 5" in run(broker, "send", "large", "--file", str(file), "--count", "5").output
    file.write_bytes(b"x" * 300_000)
    assert "exceeds the limit" in run(broker, "send", "large", "--file", str(file), "--count", "2").output

    with broker.client() as client, client.get_queue_receiver("large") as receiver:
        found = receiver.peek_messages(max_message_count=9)
        assert [len(b"".join(message.body)) for message in found] == [140_000] * 5


def test_typed_properties_reach_sql_filters(broker: Namespace) -> None:
    run(broker, "send", "events", "--property", "size=42", "text")
    run(broker, "send", "events", "--property", "size:=42", "--property", "urgent:=true", "number")

    found = messages(
        run(broker, "receive", "events/Subscriptions/large", "--count", "2", "--wait", "1", "--json")
    )
    assert [(one["body"], one["properties"]) for one in found] == [("number", {"size": 42, "urgent": True})]


def test_an_empty_queue_says_so(broker: Namespace) -> None:
    for arguments in (["peek", "empty"], ["receive", "empty", "--wait", "0.2"]):
        result = run(broker, *arguments)
        assert result.stdout == ""
        assert "nothing in empty" in result.stderr


def test_the_dead_letter_queue_has_an_option(broker: Namespace) -> None:
    with broker.client() as client, client.get_queue_sender("dead") as sender:
        sender.send_messages(ServiceBusMessage("spoilt"))
    run(broker, "receive", "dead", "--settle", "dead-letter")

    assert messages(run(broker, "peek", "dead", "--dead-letter", "--json"))[0]["body"] == "spoilt"
    assert messages(run(broker, "receive", "dead", "--dead-letter", "--json"))[0]["body"] == "spoilt"
    assert "the dead-letter queue of dead" in run(broker, "peek", "dead", "--dead-letter").stderr


def test_an_entity_with_sessions_says_what_to_give(broker: Namespace) -> None:
    result = run(broker, "peek", "sessions")
    assert result.exit_code == 3
    hint = " On an entity with sessions, give --session ID"
    assert result.stderr.endswith(f"{hint}, or --session '*' for the next one.\n")
    assert run(broker, "send", "sessions", "hello").stderr.endswith(f"{hint}.\n")


def test_an_entity_that_is_not_there(broker: Namespace) -> None:
    result = run(broker, "peek", "nothere")
    assert result.exit_code == 3
    assert "nothere" in result.stderr
    assert "pairbus entity list" in result.stderr


@pytest.mark.parametrize("settle", ["none", "complete", "delete"])
def test_a_body_that_is_not_text_is_shown_and_loses_nothing(
    broker: Namespace, tmp_path: Path, settle: str
) -> None:
    name = f"bytes-{settle}"
    broker.create_queue(name)
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00")
    run(broker, "send", name, "--file", str(file))
    run(broker, "send", name, "text")

    assert "\N{REPLACEMENT CHARACTER}" in run(broker, "peek", name).stdout
    found = messages(run(broker, "receive", name, "--count", "2", "--settle", settle, "--json"))
    assert [one["body"] for one in found] == ["\N{REPLACEMENT CHARACTER}\x00", "text"]
    assert [one.get("body_base64") for one in found] == ["/wA=", None]


def test_bodies_of_every_kind_are_shown(broker: Namespace) -> None:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    broker.create_queue("kinds")
    with broker.client() as client, client.get_queue_sender("kinds") as sender:
        for details in ({"value_body": {"a": 1}}, {"value_body": 7}, {"sequence_body": [[1, "two"], [3]]}):
            sender.send_messages(AmqpAnnotatedMessage(**details))

    for output in (run(broker, "peek", "kinds"), run(broker, "peek", "kinds", "--json")):
        assert output.exit_code == 0, output.output
    assert len(messages(run(broker, "peek", "kinds", "--json"))) == 3


def test_empty_standard_input_is_a_mistake(broker: Namespace) -> None:
    result = run(broker, "send", "plain", typed=b"")
    assert isinstance(result.exception, UsageError)
    assert "standard input is empty" in str(result.exception)


def test_a_session_queue_without_a_waiting_session_has_nothing(broker: Namespace) -> None:
    arguments = ("receive", "sessions", "--session", "*", "--wait", "1")
    assert "no session of sessions has a message" in run(broker, *arguments).stderr


def test_a_property_that_is_given_twice_is_a_mistake(broker: Namespace) -> None:
    result = run(broker, "send", "plain", "--property", "a=1", "--property", "a:=2", "x")
    assert isinstance(result.exception, UsageError)


@pytest.mark.parametrize("command", [("drain",), ("purge", "--yes"), ("redrive",), ("explain",)])
@pytest.mark.parametrize("queue", ["ordinary", "nothere"])
def test_backlog_commands_touch_backlog_queues_only(
    broker: Namespace, command: tuple[str, ...], queue: str
) -> None:
    if not _exists(broker, "ordinary"):
        broker.create_queue("ordinary")
    with broker.client() as client, client.get_queue_sender("ordinary") as sender:
        sender.send_messages(ServiceBusMessage("mine"))
    before = broker.administration_client().get_queue_runtime_properties("ordinary")
    environment = {"PAIRBUS_PRIMARY": broker.connection_string, "PAIRBUS_SECONDARY": broker.connection_string}

    result = CliRunner().invoke(root, ["backlog", command[0], queue, *command[1:]], env=environment)

    assert result.exit_code == 1, result.output
    assert f"there is no backlog queue '{queue}'" in result.stderr
    after = broker.administration_client().get_queue_runtime_properties("ordinary")
    assert (after.active_message_count, after.dead_letter_message_count) == (before.active_message_count, 0)


def _exists(broker: Namespace, name: str) -> bool:
    return any(queue.name == name for queue in broker.administration_client().list_queues())
