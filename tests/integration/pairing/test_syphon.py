"""The syphon with real brokers: the retired SDK's backlogs, poison, several at once, the command line. P12, P34-P42."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule
from click.testing import CliRunner

from pairbus import UsageError
from pairbus.amqp.encode import encode_value
from pairbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Double,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)
from pairbus.cli.root import root
from pairbus.drain.azure_ports import AzureOutlet
from pairbus.drain.rules.message import BacklogMessage
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.messages import message_bytes, sections
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.pairing.kit import bodies, by_hand, options, paired, take, text
from tests.integration.pairing.syphon_process import SyphonProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

BACKLOG = "contoso/x-servicebus-transfer/0"
KEY = "cHJpbWFyeS1rZXktb2YtdGhlLXJ1bGUtMDEyMzQ1Njc="


@pytest.fixture
def pair() -> Iterator[Pair]:
    queues: list[str | Queue] = ["orders", "events", Queue("sessions", requires_session=True)]
    with Pair(Namespace("contoso", queues=queues), Namespace("fabrikam")) as started:
        yield started


def send_raw(namespace: Namespace, queue: str, payloads: list[bytes]) -> None:
    with namespace.client() as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(message_bytes.batch_of(message_bytes.new_batch(200_000, sender), payloads))


def message(body: bytes, properties: list[tuple[str, bytes]], message_id: str = "id-1") -> bytes:
    head = [sections.encode_text(message_id)] + [sections.NULL] * 12
    items = [(sections.encode_text(name), value) for name, value in properties]
    return sections.join(
        [
            sections.Section(sections.PROPERTIES, sections.encode_list(head)),
            sections.Section(sections.APPLICATION_PROPERTIES, sections.encode_map(items)),
            sections.Section(0x75, b"\xa0" + bytes((len(body),)) + body),
        ]
    )


def with_session(payload: bytes, session_id: str | None) -> bytes:
    if session_id is None:
        return payload
    parts = sections.split(payload)
    head = [sections.encode_text("id-1")] + [sections.NULL] * 9 + [sections.encode_text(session_id)]
    return sections.join(sections.replace(parts, sections.PROPERTIES, sections.encode_list(head)))


@dataclass
class Told:
    returncode: int
    stdout: str
    stderr: str


def pairbus(pair: Any, *arguments: str) -> Told:
    """The command line, without the price of a process."""
    environment = {
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }
    # Outside of its standalone mode click hands back what the command returned.
    result = CliRunner().invoke(root, list(arguments), env=environment, standalone_mode=False)
    code = 2 if isinstance(result.exception, UsageError) else result.exit_code or result.return_value or 0
    return Told(code, result.stdout, f"{result.stderr}{result.exception!r}")


@pytest.mark.promise("P12", "P34")
def test_backlogs_written_by_the_retired_sdk_are_drained(pair: Pair) -> None:
    with paired(pair, options(enable_syphon=True)) as client:
        ticks = b"\x81" + struct.pack(">q", 3_000_000_000)
        old = message(
            b"old",
            [
                ("mine", b"\x98" + bytes(range(16))),
                ("x-ms-path", sections.encode_text("sessions")),
                ("x-ms-sessionid", sections.encode_text("s1")),
                ("x-ms-timetolive", b"\x00" + sections.encode_symbol("com.microsoft:timespan") + ticks),
            ],
        )
        # A char: the official Python SDK cannot read it, and must not stumble over it on the way.
        foreign = message(
            b"c", [("char", b"\x73\x00\x00\x00\x41"), ("x-ms-path", sections.encode_text("events"))]
        )
        send_raw(pair.secondary, BACKLOG, [foreign, old])
        wait_until(lambda: client.statistics().restored == 2, "home")

    with (
        pair.primary.client() as official,
        official.get_queue_receiver("sessions", session_id="s1") as receiver,
    ):
        (found,) = take(receiver, 1)
        assert (str(found), found.session_id, found.message_id) == ("old", "s1", "id-1")
        assert found.time_to_live is not None
        assert found.time_to_live.total_seconds() == 300
        assert list(found.application_properties or {}) == [b"mine"]


@pytest.mark.promise("P39")
def test_poison_is_set_aside_with_a_reason_and_the_rest_flows(pair: Pair) -> None:
    path = ("x-ms-path", sections.encode_text("orders"))
    batch = [
        message(b"a", [path], "a"),
        message(b"lost", [], "lost"),
        message(b"odd", [path, ("x-ms-timetolive", sections.encode_text("soon"))], "odd"),
        message(b"nowhere", [("x-ms-path", sections.encode_text("gone"))], "nowhere"),
        message(b"system", [("x-ms-path", sections.encode_text("orders/$deadletterqueue"))], "system"),
        message(b"no session", [("x-ms-path", sections.encode_text("sessions"))], "no session"),
        message(b"b", [path], "b"),
    ]
    with paired(pair, options(enable_syphon=True)) as client:
        send_raw(pair.secondary, BACKLOG, batch)
        wait_until(lambda: client.statistics().set_aside == 5 and client.statistics().restored == 2, "sorted")

    assert bodies(pair.primary, "orders", 2) == {"a": 1, "b": 1}
    listed = pairbus(pair, "backlog", "explain", BACKLOG, "--json")
    reasons = {row["message_id"]: row["reason"] for row in json.loads(listed.stdout)}
    assert reasons == {
        "lost": "NotFromPairedNamespace",
        "odd": "InvalidParkedProperty",
        "nowhere": "DestinationNotFound",
        "system": "ForbiddenPath",
        "no session": "RefusedByDestination",
    }
    assert all("expected" in row["description"] for row in json.loads(listed.stdout))


def test_set_aside_messages_can_be_sent_round_again_and_removed(pair: Pair) -> None:
    with paired(pair, options()):
        pass
    send_raw(pair.secondary, BACKLOG, [message(b"x", [("x-ms-path", sections.encode_text("later"))])])
    first = pairbus(pair, "syphon", "--engine", "local", "--once", "--json")
    assert first.returncode == 1, first.stderr
    assert json.loads(first.stdout)["set_aside"] == 1
    none = pairbus(pair, "backlog", "redrive", BACKLOG, "--reason", "Nope")
    assert none.returncode == 1
    assert "DestinationNotFound (1)" in none.stderr
    early = pairbus(pair, "backlog", "redrive", BACKLOG)
    assert early.returncode == 1
    assert "the primary has no entity 'later'" in early.stderr
    pair.primary.create_queue("later")
    moved = pairbus(pair, "backlog", "redrive", BACKLOG, "--reason", "DestinationNotFound")
    assert "1 message " in moved.stdout, moved.stderr
    second = pairbus(pair, "syphon", "--engine", "local", "--once", "--json")

    assert json.loads(second.stdout)["restored"] == 1
    assert bodies(pair.primary, "later", 1) == {"x": 1}
    assert pairbus(pair, "backlog", "purge", BACKLOG).returncode == 2
    assert pairbus(pair, "backlog", "purge", BACKLOG, "--yes").returncode == 1


def test_messages_are_redriven_once_while_a_syphon_dead_letters_them_again_at_once(pair: Pair) -> None:
    batch = [message(b"lost", [], f"lost-{number}") for number in range(5)]
    batch += [message(b"nowhere", [("x-ms-path", sections.encode_text("gone"))], "nowhere")]
    with paired(pair, options(enable_syphon=True)) as client:
        send_raw(pair.secondary, BACKLOG, batch)
        wait_until(lambda: client.statistics().set_aside == 6, "dead-lettered")

        moved = pairbus(pair, "backlog", "redrive", BACKLOG)
        wait_until(lambda: client.statistics().set_aside == 11, "dead-lettered again")

        assert moved.returncode == 0, moved.stderr
        assert "5 messages back in" in moved.stdout
        assert "1 message left: the primary has no entity 'gone'" in moved.stderr
        purged = pairbus(pair, "backlog", "purge", BACKLOG, "--yes", "--reason", "NotFromPairedNamespace")
        assert "5 messages of" in purged.stdout, purged.stderr
        assert "1 message left: dead-lettered for other reasons: DestinationNotFound (1)" in purged.stderr


EVERY_TYPE = {
    name: encode_value(value)
    for name, value in {
        "null": None, "boolean": True, "ubyte": UByte(1), "ushort": UShort(1), "uint": UInt(1), "ulong": ULong(1),
        "byte": Byte(1), "short": Short(1), "int": Int(1), "long": Long(1), "float": Float(1.5),
        "double": Double(1.5), "decimal32": Decimal32(bytes(4)), "decimal64": Decimal64(bytes(8)),
        "decimal128": Decimal128(bytes(16)), "char": Char(65), "timestamp": Timestamp(2**62),
        "uuid": Uuid(bytes(16)), "binary": b"\xff", "string": "é", "symbol": Symbol("s"),
        "list": [Char(65), None], "map": {"k": Char(65)}, "array": Array([Int(1)]),
        "described": Described(Symbol("com.microsoft:timespan"), Long(1)),
    }.items()
}  # fmt: skip


def test_messages_with_properties_of_every_amqp_type_are_listed_explained_and_drained(pair: Pair) -> None:
    with paired(pair, options()):
        pass
    path = ("x-ms-path", sections.encode_text("orders"))
    home = [message(b"x", [(name, value), path], name) for name, value in EVERY_TYPE.items()]
    aside = [message(b"x", [(name, value)], f"{name}-aside") for name, value in EVERY_TYPE.items()]
    odd = [
        message(b"x", [path, ("x-ms-sessionid", value)], f"{name}-odd")
        for name, value in EVERY_TYPE.items()
        if name != "string"
    ]
    send_raw(pair.secondary, BACKLOG, [*home, *aside, *odd])

    listed = pairbus(pair, "backlog", "list", "--messages", "1000", "--json")
    assert listed.returncode == 0, listed.stderr
    assert len(json.loads(listed.stdout)) == len(home) + len(aside) + len(odd)
    assert pairbus(pair, "backlog", "list", "--messages", "1000").returncode == 0
    queues = {row["name"]: row for row in json.loads(pairbus(pair, "backlog", "list", "--json").stdout)}
    assert queues[BACKLOG]["oldest_destination"] == "orders"
    assert {name for name, row in queues.items() if row["oldest_age_s"] is not None} == {BACKLOG}
    drained = pairbus(pair, "syphon", "--engine", "local", "--once", "--json")
    assert drained.returncode == 1, drained.stderr
    counted = json.loads(drained.stdout)
    assert (counted["restored"], counted["set_aside"]) == (len(home), len(aside) + len(odd))
    for by_name in [], ["--queues", "1"]:
        nothing = pairbus(pair, "backlog", *by_name, "list", "--messages", "5")
        assert nothing.returncode == 1
        count = len(aside) + len(odd)
        told = f"no message waits to be drained; {count} are dead-lettered (--set-aside shows them)"
        assert told in nothing.stderr
    explained = pairbus(pair, "backlog", "explain", BACKLOG, "--json")
    assert explained.returncode == 0, explained.stderr
    assert {row["reason"] for row in json.loads(explained.stdout)} == {
        "NotFromPairedNamespace",
        "InvalidParkedProperty",
    }


def test_a_path_that_no_entity_can_have_is_dead_lettered(pair: Pair) -> None:
    with paired(pair, options()):
        pass
    send_raw(pair.secondary, BACKLOG, [message(b"x", [("x-ms-path", sections.encode_text("a%2fb"))])])

    drained = pairbus(pair, "syphon", "--engine", "local", "--once", "--json")

    assert json.loads(drained.stdout)["set_aside"] == 1
    (row,) = json.loads(pairbus(pair, "backlog", "explain", BACKLOG, "--json").stdout)
    assert row["reason"] == "ForbiddenPath"


def test_a_drain_into_another_primary_of_the_same_name_is_refused_before_a_message_is_touched(
    pair: Pair,
) -> None:
    with paired(pair, by_hand()) as client:
        client.fail_over("orders")
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(text("mine"))
    with Namespace("contoso", queues=["orders"]) as other:
        wrong: Any = SimpleNamespace(primary=other, secondary=pair.secondary)
        for command in (
            ["syphon", "--engine", "local", "--once"],
            ["backlog", "--queues", "1", "drain", "--extra"],
        ):
            refused = pairbus(wrong, *command)
            assert refused.returncode != 0
            assert "OtherPrimaryError" in refused.stderr
            assert "--primary-alias" in refused.stderr
        moved = pairbus(
            wrong, "syphon", "--engine", "local", "--once", "--json",
            "--primary-alias", pair.primary.amqp_address,
        )  # fmt: skip
        assert json.loads(moved.stdout)["restored"] == 1, moved.stderr
        assert bodies(other, "orders", 1) == {"mine": 1}


@pytest.mark.promise("P37")
def test_several_syphons_on_the_same_queues_bring_each_message_home_once(pair: Pair) -> None:
    with paired(pair, by_hand(enable_syphon=True)) as one, paired(pair, by_hand(enable_syphon=True)) as two:
        one.fail_over("orders")
        with one.get_queue_sender("orders") as sender, one.get_queue_sender("orders") as other:
            for number in range(10):
                sender.send_messages([text(f"{number}-{index}") for index in range(20)])
                other.send_messages([text(f"o{number}-{index}") for index in range(20)])
        one.mark_healthy("orders")
        wait_until(lambda: one.statistics().restored + two.statistics().restored >= 400, "all home")

    found = bodies(pair.primary, "orders", 400)
    assert len(found) == 400
    assert set(found.values()) == {1}


def test_a_destination_that_is_away_does_not_hold_up_others_and_is_retried_soon(pair: Pair) -> None:
    with paired(pair, by_hand(enable_syphon=True)) as client:
        for entity in ("orders", "events"):
            client.fail_over(entity)
        pair.primary.faults.refuse("orders")
        with client.get_queue_sender("orders") as orders, client.get_queue_sender("events") as events:
            orders.send_messages([text(f"o{number}") for number in range(20)])
            events.send_messages([text(f"e{number}") for number in range(20)])
        client.mark_healthy("events")
        wait_until(lambda: client.statistics().restored == 20, "events flow")
        pair.primary.faults.clear()
        client.mark_healthy("orders")
        wait_until(lambda: client.statistics().restored == 40, "orders follow")
        assert client.statistics().set_aside == 0

    assert len(bodies(pair.primary, "orders", 20)) == 20
    assert len(bodies(pair.primary, "events", 20)) == 20


async def test_another_message_with_the_same_id_is_no_proof_of_delivery(pair: Pair) -> None:
    def parked(body: bytes) -> BacklogMessage:
        payload = message(body, [], "same")
        return BacklogMessage(BACKLOG, 1, "orders", payload, "same", None, None, 0, in_doubt_since_ms=0)

    async with pair.primary.aio_client() as client:
        outlet = AzureOutlet(client)
        await outlet.send("orders", [parked(b"one")])

        one, two = parked(b"one"), parked(b"two")
        found = await outlet.already_delivered("orders", [one, two, parked(b"one")], frozenset({"same"}))
        await outlet.close()

    assert found == [one], "another body is no proof, and one message there stands for one in the backlog"


@pytest.mark.promise("P39")
async def test_a_refused_message_leaves_the_link_to_its_destination_as_it_was(pair: Pair) -> None:
    def parked(session_id: str | None) -> BacklogMessage:
        payload = with_session(message(b"one", []), session_id)
        return BacklogMessage(BACKLOG, 1, "sessions", payload, "id", session_id, None, 0)

    async with pair.primary.aio_client() as client:
        outlet = AzureOutlet(client)
        await outlet.send("sessions", [parked("a")])
        link: Any = outlet._senders["sessions"]
        connection = link._handler
        for _ in range(3):
            with pytest.raises(ServiceBusError) as refused:
                await outlet.send("sessions", [parked(None)])
            assert classify(refused.value) is Failure.INVALID
        await outlet.send("sessions", [parked("a")])

        assert link._handler is connection, "another connection for each refusal costs a second each"
        await outlet.close()


def key_of(namespace: Namespace, right: AccessRights, queue: str) -> str:
    """A connection string whose key has one right at a queue, and nothing more."""
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[right],
        key_name="few",
        primary_key=KEY,
        secondary_key=KEY,
    )
    with namespace.administration_client() as management:
        management.update_queue(management.get_queue(queue), authorization_rules=[rule])
    given = dict(part.split("=", 1) for part in namespace.connection_string.split(";") if part)
    given |= {"SharedAccessKeyName": "few", "SharedAccessKey": KEY}
    return ";".join(f"{name}={value}" for name, value in given.items())


@pytest.mark.promise("P42")
def test_a_drain_needs_listen_at_the_backlog_queues_and_send_at_the_destinations_alone(pair: Pair) -> None:
    with paired(pair, by_hand(backlog_queue_count=1)) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        sender.send_messages([text(1), text(2)])
    few = SimpleNamespace(
        primary=SimpleNamespace(connection_string=key_of(pair.primary, AccessRights.SEND, "orders")),
        secondary=SimpleNamespace(connection_string=key_of(pair.secondary, AccessRights.LISTEN, BACKLOG)),
    )

    refused = pairbus(few, "syphon", "--engine", "local", "--once")
    assert "--queues N" in refused.stderr, "the way out"
    listed = pairbus(few, "backlog", "--queues", "2", "list", "--messages", "5", "--json")
    assert [row["path"] for row in json.loads(listed.stdout)] == ["orders", "orders"]
    drained = pairbus(few, "syphon", "--engine", "local", "--once", "--queues", "2")
    assert "2 messages delivered" in drained.stderr, drained.stderr
    assert f"no backlog queue '{BACKLOG[:-1]}1'" in drained.stderr, "what does not exist is said"

    by_name = pairbus(few, "backlog", "drain", BACKLOG)
    assert "0 messages delivered" in by_name.stdout, by_name.stderr
    assert pairbus(few, "backlog", "drain", f"{BACKLOG[:-1]}7").returncode != 0
    assert sum(bodies(pair.primary, "orders", 2).values()) == 2


def test_a_disabled_queue_is_named_and_the_others_are_listed(pair: Pair) -> None:
    with paired(pair, by_hand(backlog_queue_count=3)):
        pass
    names = [f"{BACKLOG[:-1]}{index}" for index in range(3)]
    for name in names:
        send_raw(pair.secondary, name, [message(b"x", [("x-ms-path", sections.encode_text("orders"))])])
    strings = [key_of(pair.secondary, AccessRights.LISTEN, name) for name in names]
    may_not_list = SimpleNamespace(
        primary=pair.primary, secondary=SimpleNamespace(connection_string=strings[0])
    )
    with pair.secondary.administration_client() as management:
        disabled = management.get_queue(names[1])
        disabled.status = "Disabled"
        management.update_queue(disabled)

    for who, given in ((pair, ()), (may_not_list, ("--queues", "3"))):
        listed = pairbus(who, "backlog", *given, "list", "--json")
        rows = json.loads(listed.stdout)
        assert [(row["name"], row["oldest_destination"]) for row in rows] == [
            (name, None if name == names[1] else "orders") for name in names
        ]
        assert [bool(row["problem"]) for row in rows] == [False, True, False]
        assert f"could not be read: {names[1]}: entity disabled" in listed.stderr
        assert listed.returncode == 3, "not all could be read"
        shown = pairbus(who, "backlog", *given, "list", "--messages", "5", "--json")
        assert [row["queue"] for row in json.loads(shown.stdout)] == [names[0], names[2]]
        assert (shown.returncode, "could not be read" in shown.stderr) == (3, True)


@pytest.mark.promise("P41")
def test_a_backlog_queue_that_was_deleted_is_no_success(pair: Pair) -> None:
    with paired(pair, by_hand(backlog_queue_count=3)) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        sender.send_messages(text(1))
        queue = str(client.health()["orders"].backlog_queue)
    deleted = f"{BACKLOG[:-1]}0" if queue != BACKLOG else f"{BACKLOG[:-1]}1"
    with pair.secondary.administration_client() as management:
        management.delete_queue(deleted)

    drained = pairbus(pair, "syphon", "--engine", "local", "--once", "--json")
    assert json.loads(drained.stdout)["restored"] == 1, "the others are drained all the same"
    assert f"{deleted} does not exist" in drained.stderr
    assert drained.returncode == 3
    assert pairbus(pair, "syphon", "--engine", "local", "--once").returncode == 3
    by_name = pairbus(pair, "syphon", "--engine", "local", "--once", "--queues", "3")
    assert (by_name.returncode, f"no backlog queue '{deleted}'" in by_name.stderr) == (3, True)

    pair.secondary.create_queue(deleted)
    assert pairbus(pair, "syphon", "--engine", "local", "--once").returncode == 0


@pytest.mark.promise("P41")
@pytest.mark.parametrize(
    "command", [("syphon", "--engine", "local", "--once"), ("backlog", "drain", BACKLOG)]
)
def test_a_backlog_queue_that_is_deleted_and_created_again_while_it_is_drained_is_no_success(
    pair: Pair, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with paired(pair, by_hand(backlog_queue_count=1)) as client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        sender.send_messages(text(1))
    with pair.primary.administration_client() as management:
        orders = management.get_queue("orders")
        orders.status = "Disabled"
        management.update_queue(orders)
    program = ("-m", "pairbus", *command)
    with SyphonProcess(pair, tmp_path, program=program) as drain:
        wait_until(lambda: "'orders': entity disabled" in drain.log.read_text(), "it holds the message")
        with pair.secondary.administration_client() as management:
            management.delete_queue(BACKLOG)
            wait_until(lambda: "somebody deleted it" in drain.log.read_text(), "it notices")
            management.create_queue(BACKLOG)
        with pair.primary.administration_client() as management:
            orders.status = "Active"
            management.update_queue(orders)
        assert drain.wait(60) == 3, drain.log.read_text()
        assert f"{BACKLOG} works again" in drain.log.read_text()


def test_a_secondary_without_backlog_queues_may_have_had_some(pair: Pair) -> None:
    drained = pairbus(pair, "syphon", "--engine", "local", "--once")

    assert drained.returncode == 0
    assert "nothing to drain" in drained.stderr
    assert "`pairbus reconcile` names the messages that never arrived" in drained.stderr


def test_extra_queues_are_listed_and_drained_on_request(pair: Pair) -> None:
    with paired(pair, options(backlog_queue_count=2)):
        pass
    extra = "contoso/x-servicebus-transfer/7"
    pair.secondary.create_queue(extra)
    send_raw(pair.secondary, extra, [message(b"far", [("x-ms-path", sections.encode_text("orders"))])])

    listed = json.loads(pairbus(pair, "backlog", "--queues", "2", "list", "--json").stdout)
    assert [(row["name"], row["messages"]) for row in listed if row["is_extra"]] == [(extra, 1)]
    drained = pairbus(pair, "backlog", "--queues", "2", "drain", "--extra")

    assert "1 message delivered" in drained.stdout, drained.stderr
    assert bodies(pair.primary, "orders", 1) == {"far": 1}


def test_explain_reads_the_journal(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_JOURNAL", str(tmp_path / "journal"))
    with paired(pair) as client:
        client.fail_over("orders")
        client.mark_healthy("orders")
        assert any("by hand" in line for line in client.explain("orders"))

    told = pairbus(pair, "explain", "Orders")

    assert told.returncode == 0, told.stderr
    assert "failed over" in told.stdout
    assert "recovered" in told.stdout
    assert pairbus(pair, "explain", "nothing").returncode == 1


@pytest.mark.promise("P8")
def test_every_kind_of_property_survives_the_real_detour(pair: Pair) -> None:
    import datetime
    import uuid

    properties: dict[Any, Any] = {
        "text": "é",
        "int": 5,
        "long": {"TYPE": "LONG", "VALUE": 2**40},
        "when": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "uuid": uuid.uuid4(),
        "float": 1.5,
        "X-MS-Path": "mine",
    }
    sent = ServiceBusMessage(
        b"body", application_properties=properties, session_id="s", correlation_id="c", reply_to="r", subject="l",
        to="t", content_type="text/plain", reply_to_session_id="rs",
    )  # fmt: skip
    with paired(pair, by_hand(enable_syphon=True)) as client, client.get_queue_sender("sessions") as sender:
        sender.send_messages(sent)
        client.fail_over("sessions")
        sender.send_messages(sent)
        assert sent.application_properties == properties, "the caller's object is never changed"
        client.mark_healthy("sessions")
        wait_until(lambda: client.statistics().restored == 1, "home")

    with (
        pair.primary.client() as official,
        official.get_queue_receiver("sessions", session_id="s") as receiver,
    ):
        direct, detoured = take(receiver, 2)
        for name in (
            "application_properties",
            "message_id",
            "correlation_id",
            "reply_to",
            "subject",
            "to",
            "content_type",
        ):
            assert getattr(direct, name) == getattr(detoured, name), name
        assert detoured.reply_to_session_id == "rs"
        assert b"".join(direct.body) == b"".join(detoured.body)
