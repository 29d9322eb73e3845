from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.types import Int, Timestamp, Uuid
from pairbus.gateway.http import HttpRequest
from pairbus.model.entity import QUEUE, SETTINGS, SUBSCRIPTION, TOPIC, Settings, settings_of
from pairbus.pairing.parking import Passport, park
from pairbus.sdk.credentials import sas_token
from pairbus.web.messages import BODY_BYTES_SHOWN_MAX, BODY_BYTES_WHOLE_MAX, PAGE_MAX, shown_parts
from pairbus.web.queries import _TITLES, _settings, operations
from tests.unit.web.page_kit import KEYS, NOW, Bench

API = "/$page/api"
CANARY = "<img src=x onerror=alert(1)></script>\u2028&"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def row(bench: Bench, path: str) -> dict[str, Any]:
    shown = bench.sign_in().read(f"{API}/overview")
    found: dict[str, Any] = next(one for one in shown["entities"] if one["path"] == path)
    return found


def managed(bench: Bench, path: str) -> dict[str, int]:
    """The counts that the management API tells of an entity."""
    token = sas_token("http://localhost", "manager", KEYS["manager"], NOW // 1000 + 60)
    target = f"/{path}?api-version=2021-05"
    headers = {"authorization": token}
    answer = bench.broker.http(HttpRequest("GET", target, headers, b"", "127.0.0.1:1", False), bench.now)
    assert answer.status == 200, answer.body
    found = re.findall(rb"<(?:\w+:)?(\w*MessageCount)[^>]*>(\d+)<", answer.body)
    return {name.decode(): int(number) for name, number in found}


@pytest.mark.promise("M15")
def test_counts_are_those_of_the_management_api(bench: Bench) -> None:
    later = {"x-opt-scheduled-enqueue-time": Timestamp(NOW + 60_000)}
    for _ in range(5):
        bench.store("orders")
        bench.store("events")
    bench.kill_all("orders")
    bench.kill_all("events/Subscriptions/all")
    for path in ("orders", "events"):
        bench.store(path, b"12345")
        bench.store(path)
        bench.store(path, message_annotations=later)
    queue = bench.broker.namespace.find("orders")
    assert queue is not None
    bench.defer_one("orders")
    bench.broker.namespace.create(QUEUE, "target", replace(Settings(), requires_session=True), NOW)
    bench.broker.namespace.create(QUEUE, "relay", replace(Settings(), forward_to="target"), NOW)
    bench.store("relay")
    bench.broker.pump(NOW)

    names = {
        "active": "ActiveMessageCount",
        "scheduled": "ScheduledMessageCount",
        "dead_letter": "DeadLetterMessageCount",
        "transfer": "TransferMessageCount",
        "transfer_dead_letter": "TransferDeadLetterMessageCount",
    }
    for path in ("orders", "other", "events", "events/Subscriptions/all", "relay", "target"):
        shown, told = row(bench, path), managed(bench, path)
        assert {name: shown[name] for name in names} == {
            name: told[there] for name, there in names.items()
        }, path
    assert (row(bench, "orders")["active"], row(bench, "orders")["deferred"]) == (2, 1)
    assert row(bench, "events/Subscriptions/all")["dead_letter"] == 5
    assert row(bench, "events")["scheduled"] == 1
    assert row(bench, "relay")["transfer_dead_letter"] == 1
    assert row(bench, "orders")["size_bytes"] == queue.size_bytes


def test_sends_and_receives_are_counted_for_rates(bench: Bench) -> None:
    bench.sign_in().post(f"{API}/send", {"path": "orders", "count": 3})
    bench.sign_in().post(f"{API}/send", {"path": "events", "count": 2})

    assert row(bench, "orders")["sent"] == 3
    assert row(bench, "events")["sent"] == 2
    assert row(bench, "events/Subscriptions/all")["sent"] == 2


def test_the_cost_meter_keeps_what_deleted_entities_were_billed(bench: Bench) -> None:
    bench.sign_in().post(f"{API}/send", {"path": "orders", "count": 3})
    before = operations(bench.broker)
    entity = bench.broker.namespace.find("orders")
    assert entity is not None

    bench.broker.namespace.delete(entity, bench.now)
    bench.now += 60_000
    bench.broker.pump(bench.now)
    bench.now += 60_000
    bench.broker.pump(bench.now)

    assert bench.broker.meter.tallies()
    assert operations(bench.broker) == before


def test_peeking_pages_through_everything_once_and_changes_nothing(bench: Bench) -> None:
    numbers = [bench.store("orders") for _ in range(45)]
    visitor = bench.sign_in()
    seen: list[int] = []
    start: int | None = 0
    while start is not None:
        page = visitor.read(f"{API}/messages?path=orders&from={start}&count=20")
        seen += [one["sequence_number"] for one in page["messages"]]
        start = page["next"]

    assert seen == numbers
    assert row(bench, "orders")["active"] == 45
    assert len(visitor.read(f"{API}/messages?path=orders&count=200")["messages"]) == 45 <= PAGE_MAX


@pytest.mark.promise("M8")
def test_foreign_text_leaves_as_inert_json(bench: Bench) -> None:
    bench.store(
        "orders", CANARY.encode(), subject=CANARY, message_id=CANARY, application_properties={CANARY: CANARY}
    )
    bench.kill_all("orders", CANARY, CANARY)
    answer = bench.sign_in().get(f"{API}/messages?path=orders&place=dead-letter")

    assert b"<" not in answer.body
    assert dict(answer.headers)["Content-Type"] == "application/json"
    message = json.loads(answer.body)["messages"][0]
    assert message["subject"] == message["dead_letter_reason"] == message["body"]["text"] == CANARY
    assert {"name": CANARY, "value": CANARY, "type": "str"} in message["properties"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain", "plain"),
        ("größe".encode(), "größe"),
        (b"\xff\xfe", None),
        (b"a\x00b", None),
        (b"", ""),
        (b"x" * (BODY_BYTES_SHOWN_MAX + 5), "x" * BODY_BYTES_SHOWN_MAX),
        (b"x" * (BODY_BYTES_SHOWN_MAX - 1) + "é".encode() + b"y", "x" * (BODY_BYTES_SHOWN_MAX - 1)),
    ],
)
def test_bodies_are_text_where_they_are_text(bench: Bench, body: bytes, text: str | None) -> None:
    bench.store("orders", body)
    shown = bench.sign_in().read(f"{API}/messages?path=orders")["messages"][0]["body"]

    assert (shown["text"], shown["size"]) == (text, len(body))
    assert bytes.fromhex(shown["hex"]) == body[:BODY_BYTES_SHOWN_MAX]
    assert shown["is_cut"] == (len(body) > BODY_BYTES_SHOWN_MAX)


def test_values_of_every_type_are_shown(bench: Bench) -> None:
    users: dict[str, object] = {
        "n": Int(7),
        "u": Uuid(bytes(16)),
        "b": b"\x01\x02",
        "t": True,
        "z": None,
        "f": 1.5,
    }
    bench.store("orders", application_properties=users)
    shown = bench.sign_in().read(f"{API}/messages?path=orders")["messages"][0]["properties"]

    values = {one["name"]: one["value"] for one in shown}
    assert values == {
        "n": "7",
        "u": "00000000-0000-0000-0000-000000000000",
        "b": "0102",
        "t": "true",
        "z": None,
        "f": "1.5",
    }


def test_a_message_that_cannot_be_read_is_shown_as_bytes() -> None:
    shown = shown_parts(b"\x00\x53\x75\xff")
    assert shown["unreadable"]


def test_backlog_messages_are_shown_as_their_originals(bench: Bench) -> None:
    from pairbus.amqp.message.scan import scan
    from pairbus.amqp.message.whole import encode_message

    path = "fabrikam/x-servicebus-transfer/0"
    entity = bench.broker.namespace.create(QUEUE, path, Settings(), NOW)
    original = encode_message(message_id="m-1", group_id="s-1", body=b"boots", body_kind="data")
    parked = park(original, "Orders", Passport("f", NOW - 5_000, 1, "timeout"))
    bench.broker.namespace.send(entity, scan(parked, True), NOW)
    stray = encode_message(message_id="stray", body=b"x", body_kind="data")
    bench.broker.namespace.send(entity, scan(stray, True), NOW)

    first, second = bench.sign_in().read(f"{API}/messages?path={path}")["messages"]

    assert first["original"]["path"] == "Orders"
    assert first["original"]["session_id"] == "s-1"
    assert first["original"]["body"]["text"] == "boots"
    assert first["original"]["detoured_because"] == "timeout"
    assert first["original"]["properties"] == []
    assert "error" in second["original"]
    assert row(bench, path)["backlog"] is True


def test_settings_are_written_for_people(bench: Bench) -> None:
    shown = bench.sign_in().read(f"{API}/entity?path=orders")["settings"]
    values = {one["name"]: one["value"] for one in shown}
    assert values["Lock duration"] == "1 min"
    assert values["Default time to live"] is None
    assert values["Max size"] == "1,024 MB"


@pytest.mark.parametrize("kind", [QUEUE, TOPIC, SUBSCRIPTION])
def test_the_page_shows_the_settings_that_a_kind_of_entity_has(kind: int) -> None:
    fields = {one.field for one in settings_of(kind)}
    shown = [one["name"] for one in _settings(kind, Settings())]

    assert shown == [title for field, title in _TITLES.items() if field in {*fields, "access_rules"}]
    assert set(_TITLES) < {one.field for one in SETTINGS} | {"access_rules"}


@pytest.mark.promise("M12")
def test_a_large_body_is_shown_whole_when_asked_for_one_at_a_time(bench: Bench) -> None:
    settings = replace(Settings(), max_message_kb=2_048)
    bench.broker.namespace.create(QUEUE, "large", settings, NOW)
    bench.store("large", b"a" * 200_000)
    bench.store("large", b"b" * (BODY_BYTES_WHOLE_MAX + 5))
    visitor = bench.sign_in()
    read = "messages?path=large&count=20"

    for shown in visitor.read(f"{API}/{read}")["messages"]:
        assert (len(shown["body"]["text"]), shown["body"]["is_cut"]) == (BODY_BYTES_SHOWN_MAX, True)
    (first,) = visitor.read(f"{API}/{read}&whole=1")["messages"]
    assert (first["body"]["text"], first["body"]["is_cut"]) == ("a" * 200_000, False)
    (second,) = visitor.read(f"{API}/{read}&whole=1&from={first['sequence_number'] + 1}")["messages"]
    assert (len(second["body"]["text"]), second["body"]["is_cut"]) == (BODY_BYTES_WHOLE_MAX, True)


def test_a_backlog_queue_tells_since_when_its_first_message_waits(bench: Bench) -> None:
    path = "fabrikam/x-servicebus-transfer/1"
    bench.broker.namespace.create(QUEUE, path, Settings(), NOW)
    assert row(bench, path)["oldest_at"] is None
    bench.store(path)
    bench.now += 5_000
    bench.store(path)
    bench.store("orders")
    assert row(bench, path)["oldest_at"] == NOW
    assert row(bench, "orders")["oldest_at"] is None
