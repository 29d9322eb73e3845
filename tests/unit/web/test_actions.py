from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairbus.engine.entity import Entity
from pairbus.engine.ports import WallClock
from pairbus.engine.queues.consumer import Consumer
from pairbus.gateway.telemetry.audit_rows import AuditRows
from pairbus.model.entity import QUEUE, Settings
from pairbus.web.actions import PURGE_MAX
from tests.unit.web.page_kit import NOW, Bench

API = "/$page/api"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def entity(bench: Bench, path: str = "orders") -> Entity:
    found = bench.broker.namespace.find(path)
    assert found is not None
    return found


def done(bench: Bench, name: str, wish: dict[str, Any], status: int = 200) -> Any:
    answer = bench.sign_in().post(f"{API}/{name}", wish)
    assert answer.status == status, answer.body
    return json.loads(answer.body)


def shown_of(bench: Bench, place: str = "main") -> str:
    """What the page knows of a queue whose messages it has shown."""
    return str(bench.sign_in().read(f"{API}/messages?path=orders&place={place}")["incarnation"])


def test_a_test_message_is_like_a_clients(bench: Bench) -> None:
    wish = {
        "path": "orders",
        "body": '{"a":1}',
        "subject": "s",
        "content_type": "application/json",
        "message_id": "m",
        "properties": {"k": "v"},
    }
    assert done(bench, "send", wish)["sent"] == 1
    shown = bench.sign_in().read(f"{API}/messages?path=orders")["messages"][0]

    assert (shown["subject"], shown["message_id"], shown["content_type"]) == ("s", "m", "application/json")
    assert shown["properties"] == [{"name": "k", "value": "v", "type": "str"}]


def test_typed_lines_of_the_form_keep_their_types(bench: Bench) -> None:
    lines = ["region = north", "size := 42", "price := 1.5", "urgent := true", "note := null", "n = 5"]
    done(bench, "send", {"path": "orders", "properties": lines})
    shown = bench.sign_in().read(f"{API}/messages?path=orders")["messages"][0]["properties"]

    assert {one["name"]: one["type"] for one in shown} == {
        "region": "str", "size": "int", "price": "float", "urgent": "bool", "note": "null", "n": "str",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "bad line",
        "= 5",
        ":= 5",
        "a := five",
        "a := [1]",
        "a := NaN",
        "a := 9223372036854775808",
        "a := 1e999",
        7,
    ],
)
def test_a_line_of_the_form_that_is_not_understood_is_refused_by_name(bench: Bench, line: object) -> None:
    answer = done(bench, "send", {"path": "orders", "properties": ["good = 1", line]}, 400)

    assert str(line) in json.dumps(answer, ensure_ascii=False)
    assert entity(bench).counts().total == 0


def test_a_property_that_is_given_twice_is_refused(bench: Bench) -> None:
    done(bench, "send", {"path": "orders", "properties": ["a = 1", "a := 1"]}, 400)


def test_a_delayed_message_is_scheduled(bench: Bench) -> None:
    done(bench, "send", {"path": "orders", "body": "x", "delay_seconds": 60})
    assert (entity(bench).counts().active, entity(bench).counts().scheduled) == (0, 1)


def test_a_delay_counts_by_the_wall_clock_also_while_the_own_clock_is_ahead(bench: Bench) -> None:
    class Behind(WallClock):
        def lead_ms(self) -> int:
            return 3_600_000

    bench.broker.follow_wall_clock(Behind())
    done(bench, "send", {"path": "orders", "body": "x", "delay_seconds": 60})

    (message,) = entity(bench).main.messages.values()
    assert message.extra is not None
    assert message.extra.scheduled_at == bench.now - 3_600_000 + 60_000


@pytest.mark.parametrize("wish", [{"count": 0}, {"count": 101}, {"count": "2"}, {"count": True}, {"delay_seconds": -1}, {"body": 7}, {"properties": [1]}])  # fmt: skip
def test_a_wish_out_of_range_is_refused_and_changes_nothing(bench: Bench, wish: dict[str, Any]) -> None:
    done(bench, "send", {"path": "orders", **wish}, 400)
    assert entity(bench).counts().total == 0


def test_a_session_queue_refuses_a_message_without_session(bench: Bench) -> None:
    bench.broker.namespace.create(QUEUE, "sessions", replace(Settings(), requires_session=True), NOW)
    assert "SessionId" in done(bench, "send", {"path": "sessions", "body": "x"}, 400)["error"]
    assert entity(bench, "sessions").counts().total == 0
    done(bench, "send", {"path": "sessions", "body": "x", "session_id": "a"})
    assert entity(bench, "sessions").counts().active == 1


def test_redrive_sends_to_the_source_as_new(bench: Bench) -> None:
    bench.store("orders", b"a", message_id="1")
    bench.store("orders", b"b", message_id="2")
    bench.kill_all("orders")
    numbers = list(entity(bench).dead_letter.messages)

    assert done(
        bench,
        "redrive",
        {"path": "orders", "numbers": numbers[:1], "incarnation": shown_of(bench, "dead-letter")},
    ) == {
        "redriven": 1,
        "held": 0,
        "left": 1,
    }
    assert done(bench, "redrive", {"path": "orders"}) == {"redriven": 1, "held": 0, "left": 0}

    shown = bench.sign_in().read(f"{API}/messages?path=orders")["messages"]
    assert [(one["message_id"], one["delivery_count"], one["dead_letter_reason"]) for one in shown] == [
        ("1", 0, None),
        ("2", 0, None),
    ]
    assert entity(bench).counts().total == 2


def test_the_audit_log_tells_a_redrive_from_a_send(bench: Bench) -> None:
    rows = bench.broker.audit_rows = AuditRows()
    bench.store("orders", b"a", message_id="1")
    bench.kill_all("orders")
    rows.take()

    done(bench, "redrive", {"path": "orders"})

    assert [(row.kind, row.path, row.detail) for row in rows.take()] == [
        ("sent", "orders", "redriven"),
        ("completed", "orders/$DeadLetterQueue", ""),
    ]


def test_redrive_passes_duplicate_detection(bench: Bench) -> None:
    settings = replace(Settings(), requires_duplicate_detection=True)
    bench.broker.namespace.create(QUEUE, "once", settings, NOW)
    bench.store("once", message_id="1")
    bench.kill_all("once")

    assert done(bench, "redrive", {"path": "once"})["redriven"] == 1
    assert entity(bench, "once").counts().active == 1


def test_redrive_of_a_subscription_goes_to_it_alone(bench: Bench) -> None:
    path = "events/Subscriptions/all"
    bench.store("events")
    bench.kill_all(path)
    assert done(bench, "redrive", {"path": path})["redriven"] == 1
    assert (entity(bench, path).counts().active, entity(bench, path).counts().dead_letter) == (1, 0)


@pytest.mark.promise("M11")
def test_a_redrive_that_cannot_be_whole_changes_nothing(bench: Bench) -> None:
    bench.store("orders")
    bench.kill_all("orders")
    queue = entity(bench)
    bench.broker.namespace.update(queue, replace(queue.settings, status="SendDisabled"), NOW)
    answer = bench.sign_in().post(f"{API}/redrive", {"path": "orders"})

    assert answer.status >= 400
    assert (queue.counts().active, queue.counts().dead_letter) == (0, 1)


def test_receivers_count_while_they_are_attached_whether_they_wait_or_not(bench: Bench) -> None:
    def counts(path: str) -> tuple[int, int]:
        shown = bench.sign_in().read(f"{API}/entity?path={path}")
        return shown["receivers"], shown["receivers_waiting"]

    queue = entity(bench).main
    busy, waits = Consumer(None, False), Consumer(None, False)
    for consumer in (busy, waits):
        queue.attach(consumer, NOW)
    queue.set_credit(waits, 1)
    assert counts("orders") == (2, 1)
    queue.detach(waits, NOW)
    assert counts("orders") == (1, 0)

    bench.broker.namespace.create(QUEUE, "sessions", replace(Settings(), requires_session=True), NOW)
    bench.store("sessions", group_id="a")
    table = entity(bench, "sessions").main.sessions
    assert table is not None
    table.hold(table.get("a"), Consumer(None, False), NOW + 60_000)
    table.wait(Consumer(None, False))
    assert counts("sessions") == (2, 1)


def test_messages_that_a_receiver_holds_are_left_to_it(bench: Bench) -> None:
    bench.store("orders")
    queue = entity(bench)
    message = next(iter(queue.main.messages.values()))
    queue.main.ready.take(message)
    queue.main.lock(message, None, NOW)

    assert (
        done(
            bench,
            "purge",
            {"path": "orders", "numbers": [message.sequence_number], "incarnation": shown_of(bench)},
        )["held"]
        == 1
    )
    assert done(bench, "purge", {"path": "orders", "confirm": "orders"})["purged"] == 0
    assert queue.counts().active == 1


@pytest.mark.parametrize("confirm", [None, "", "ORDERS", "order", "orders/$DeadLetterQueue"])
def test_purging_everything_needs_the_path_typed(bench: Bench, confirm: str | None) -> None:
    bench.store("orders")
    done(bench, "purge", {"path": "orders", "confirm": confirm}, 400)
    assert entity(bench).counts().active == 1


def test_purging_a_place_leaves_the_others(bench: Bench) -> None:
    bench.store("orders")
    bench.kill_all("orders")
    bench.store("orders")
    wish = {"path": "orders", "place": "dead-letter", "confirm": "orders/$DeadLetterQueue"}

    assert done(bench, "purge", wish)["purged"] == 1
    assert (entity(bench).counts().active, entity(bench).counts().dead_letter) == (1, 0)


def test_single_messages_can_be_deleted_scheduled_ones_too(bench: Bench) -> None:
    first = bench.store("orders")
    done(bench, "send", {"path": "orders", "body": "x", "delay_seconds": 60})
    later = next(number for number in entity(bench).main.messages if number != first)

    assert (
        done(bench, "purge", {"path": "orders", "numbers": [first, later], "incarnation": shown_of(bench)})[
            "purged"
        ]
        == 2
    )
    assert entity(bench).counts().total == 0
    done(bench, "purge", {"path": "orders", "numbers": [first], "incarnation": shown_of(bench)}, 404)


def test_faults_are_switched_on_and_off(bench: Bench) -> None:
    on = done(bench, "faults", {"kind": "delay", "entity": "orders", "delay_ms": 5, "duration_ms": 1000})
    assert on["faults"][0]["kind"] == "delay"
    done(bench, "faults", {"kind": "storm"}, 400)
    assert done(bench, "faults/clear", {})["faults"] == []


def test_a_broker_without_switchboard_offers_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, faults=False)
    visitor = bench.sign_in()

    assert visitor.read(f"{API}/session")["namespaces"][0]["faults"] is False
    assert visitor.get(f"{API}/faults").status >= 400
    assert visitor.post(f"{API}/faults", {"kind": "refuse"}).status >= 400
    assert not bench.broker.faults.is_on


def test_purging_takes_what_is_scheduled_and_deferred_too(bench: Bench) -> None:
    bench.store("orders")
    bench.store("orders")
    done(bench, "send", {"path": "orders", "body": "x", "delay_seconds": 60})
    bench.defer_one("orders")
    assert entity(bench).counts().deferred == 1

    assert done(bench, "purge", {"path": "orders", "confirm": "orders"}) == {
        "purged": 3,
        "held": 0,
        "left": 0,
    }
    assert entity(bench).counts().total == 0


@pytest.mark.promise("M12")
def test_one_request_deletes_a_bounded_number_and_says_what_is_left(bench: Bench) -> None:
    for _ in range(PURGE_MAX + 3):
        bench.store("orders")
    wish = {"path": "orders", "confirm": "orders"}

    assert done(bench, "purge", wish) == {"purged": PURGE_MAX, "held": 0, "left": 3}
    assert done(bench, "purge", wish) == {"purged": 3, "held": 0, "left": 0}


@pytest.mark.parametrize("numbers", [[], [1.5], [True], [[1]], [{"a": 1}], ["1"], "1", 1, [1] * 251])
@pytest.mark.parametrize("name", ["purge", "redrive"])
def test_numbers_that_are_no_sequence_numbers_are_refused(bench: Bench, name: str, numbers: object) -> None:
    bench.store("orders")
    done(bench, name, {"path": "orders", "numbers": numbers, "confirm": "orders"}, 400)
    assert entity(bench).counts().active == 1


@pytest.mark.parametrize("place", ["nonsense", ["main"], 7, {"a": 1}])
def test_a_place_that_is_none_is_refused_and_nothing_is_purged(bench: Bench, place: object) -> None:
    bench.store("orders")
    done(bench, "purge", {"path": "orders", "place": place, "confirm": "orders"}, 400)
    assert entity(bench).counts().active == 1


def test_a_number_of_a_queue_that_was_deleted_names_nothing_in_the_new_one(bench: Bench) -> None:
    done(bench, "send", {"path": "orders", "body": "old"})
    shown = bench.sign_in().read(f"{API}/messages?path=orders")
    wish = {
        "path": "orders",
        "numbers": [shown["messages"][0]["sequence_number"]],
        "incarnation": shown["incarnation"],
    }
    namespace, before = bench.broker.namespace, entity(bench)
    namespace.delete(before, bench.now)
    namespace.create(before.kind, "orders", before.settings, bench.now)
    done(bench, "send", {"path": "orders", "body": "new"})
    assert shown_of(bench) != wish["incarnation"]

    done(bench, "purge", wish, 404)
    done(bench, "purge", {**wish, "incarnation": None}, 404)

    assert entity(bench).counts().active == 1
