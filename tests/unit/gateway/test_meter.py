from __future__ import annotations

import base64

import pytest

from pairbus.amqp.encode import encode_binary
from pairbus.amqp.message.whole import encode_message
from pairbus.engine.queues.queue import REASON_MAX_DELIVERY_COUNT
from pairbus.gateway.broker import Broker
from pairbus.gateway.connection import GatewayConnection
from pairbus.gateway.http import HttpRequest
from pairbus.gateway.telemetry.audit_rows import AuditRows
from pairbus.gateway.telemetry.meter import IDLE_MINUTES_MAX, MINUTE_MS, UNIT_BYTES, Meter, Tally, stage_of
from pairbus.gateway.telemetry.metrics import ENTITIES_LABELLED_MAX, THE_REST, broker_metrics
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import QUEUE, Settings
from pairbus.sdk.credentials import sas_token
from pairbus.storage.memory import MemoryStore
from tests.simulation.wire import BATCH_FORMAT, ClientConnection
from tests.unit.gateway.atom_bench import queue_entry

START = 1_700_000_000_000 - 1_700_000_000_000 % MINUTE_MS
RULE = "RootManageSharedAccessKey"
KEY = "a2V5"
BACKLOG_QUEUE = "contoso/x-servicebus-transfer/0"


class Bench:
    """A broker and one client, joined without sockets, on a clock that the test moves."""

    def __init__(self, **settings: object) -> None:
        self.store = MemoryStore()
        list(self.store.replay())
        self.broker = Broker("contoso", self.store, bytes(16))
        self.broker.serve(None)
        self.now = START
        rules = (
            AccessRule(name=RULE, rights=RIGHTS, primary_key=KEY, secondary_key=KEY),
            AccessRule(name="listener", rights=("Listen",), primary_key="bGlzdGVu", secondary_key="eA=="),
        )
        self.broker.namespace.set_access_rules(rules, self.now)
        self.broker.namespace.create(QUEUE, "orders", Settings(**settings), self.now)  # type: ignore[arg-type]
        self.client, self.connection = self.connect()

    def connect(self) -> tuple[ClientConnection, GatewayConnection]:
        client = ClientConnection(user=RULE, password=KEY)
        connection = self.broker.connect("127.0.0.1:1", False, True, self.now)
        self.client, self.connection = client, connection
        self.exchange()
        return client, connection

    def exchange(self) -> None:
        for _ in range(8):
            data = self.client.take_output()
            if data:
                self.connection.receive(data, self.now)
            self.broker.tick(self.now)
            self.broker.pump(self.now)
            output = b"".join(self.connection.take_output())
            if not data and not output:
                return
            self.client.receive(output)

    def taken(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        return {
            (row.path, row.operation): (row.count, row.size, row.units)
            for row in self.broker.meter.take(self.now)
            if row.operation != "connections"
        }

    def counts(self) -> dict[str, int]:
        return {key[1]: value[0] for key, value in self.taken().items()}

    def get(self, authorization: str | None) -> tuple[int, str]:
        headers = {} if authorization is None else {"authorization": authorization}
        response = self.broker.http(
            HttpRequest("GET", "/metrics", headers, b"", "127.0.0.1:1", False), self.now
        )
        return response.status, response.body.decode()


def message(size: int = 1, **properties: object) -> bytes:
    return encode_message(body=b"x" * size, message_id="id", **properties)  # type: ignore[arg-type]


# --- the tally and the minutes -------------------------------------------------------------------------


@pytest.mark.promise("D6")
@pytest.mark.parametrize(
    ("size", "units"),
    [(0, 1), (1, 1), (UNIT_BYTES, 1), (UNIT_BYTES + 1, 2), (3 * UNIT_BYTES, 3), (3 * UNIT_BYTES + 1, 4)],
)
def test_an_operation_is_billed_for_every_64_kb_begun(size: int, units: int) -> None:
    tally = Tally("orders", "send", [])

    tally.add(size)

    assert (tally.count, tally.size, tally.units) == (1, size, units)


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("orders", "primary"),
        ("contoso/x-servicebus-transfer/0", "backlog"),
        ("Contoso/X-ServiceBus-Transfer/17", "backlog"),
        ("contoso/x-servicebus-transfer/0/$DeadLetterQueue", "backlog"),
        ("contoso/x-servicebus-transfer/zero", "primary"),
        ("a/b/x-servicebus-transfer/0", "primary"),
        ("contoso/x-servicebus-transfer/0/more", "primary"),
    ],
)
def test_stage_is_told_by_the_path(path: str, stage: str) -> None:
    assert stage_of(path) == stage


def test_what_was_counted_before_the_turn_of_a_minute_stays_in_it() -> None:
    meter = Meter()
    meter.roll(START)
    tally = meter.tally("orders", "send")
    tally.add(1)
    meter.roll(START + MINUTE_MS)
    tally.add(2)

    rows = [(row.minute, row.count, row.size) for row in meter.take(START + MINUTE_MS + 5)]

    assert rows == [(START, 1, 1), (START + MINUTE_MS, 1, 2)]
    assert meter.take(START + MINUTE_MS + 6) == []
    assert (tally.total, tally.total_size, tally.total_units) == (2, 3, 2)


def test_connections_are_told_in_every_minute_they_lasted() -> None:
    meter = Meter()
    meter.roll(START)
    meter.connected()
    meter.connected()
    meter.disconnected()

    rows = meter.take(START + 3 * MINUTE_MS)

    peaks = {(row.minute - START) // MINUTE_MS: row.connection_peak for row in rows}
    assert peaks == {0: 2, 1: 1, 2: 1, 3: 1}
    assert {(row.operation, row.count, row.units) for row in rows} == {("connections", 0, 0)}


def test_a_leap_of_the_clock_makes_no_flood_of_rows() -> None:
    meter = Meter()
    meter.roll(START)
    meter.connected()

    rows = meter.take(START + 10_000_000 * MINUTE_MS)

    assert len(rows) <= IDLE_MINUTES_MAX + 2


def test_places_that_are_gone_are_forgotten() -> None:
    bench = Bench()
    sender = bench.client.session().sender("orders")
    sender.send(message())
    bench.exchange()
    entity = bench.broker.namespace.find("orders")
    assert entity is not None

    bench.broker.namespace.delete(entity, bench.now)
    bench.exchange()
    bench.now += MINUTE_MS
    bench.exchange()

    assert [tally.path for tally in bench.broker.meter.tallies() if tally.path == "orders"] == []
    assert bench.counts()["send"] == 1  # what it did is told all the same


def test_the_totals_of_places_that_are_gone_stay() -> None:
    bench = Bench()
    create(bench, BACKLOG_QUEUE)
    session = bench.client.session()
    for path, count in (("orders", 3), (BACKLOG_QUEUE, 2)):
        sender = session.sender(path)
        for _ in range(count):
            sender.send(message(UNIT_BYTES))
        bench.exchange()
    before = totals(bench)
    assert sum(before.values()) == 10

    for path in ("orders", BACKLOG_QUEUE):
        entity = bench.broker.namespace.find(path)
        assert entity is not None
        bench.broker.namespace.delete(entity, bench.now)
        bench.exchange()
        bench.now += MINUTE_MS
        bench.exchange()
        assert totals(bench) == before
    samples = {metric.name: metric for metric in broker_metrics(bench.broker)}
    assert sum(sample.value for sample in samples["pairbus_operation_units_total"].samples) == 10


def test_work_on_a_whole_namespace_belongs_to_the_backlog_where_there_is_nothing_else() -> None:
    bench = Bench()

    def stages() -> set[str]:
        manage(bench, "GET", "$Resources/queues")
        return {row.stage for row in bench.broker.meter.take(bench.now) if not row.path}

    assert stages() == {"primary"}
    manage(bench, "PUT", BACKLOG_QUEUE)
    assert stages() == {"primary"}
    manage(bench, "DELETE", "orders")
    assert stages() == {"backlog"}
    manage(bench, "PUT", "orders")
    assert stages() == {"primary"}


def test_the_list_that_finds_no_backlog_queue_is_booked_on_the_backlog_once_there_are_some() -> None:
    bench = Bench()
    manage(bench, "DELETE", "orders")
    bench.broker.meter.take(bench.now)

    manage(bench, "GET", "$Resources/queues")
    manage(bench, "PUT", BACKLOG_QUEUE)

    rows = [row for row in bench.broker.meter.take(bench.now) if row.operation == "management"]
    assert [(row.path, row.stage) for row in rows] == [("", "backlog"), (BACKLOG_QUEUE, "backlog")]


def manage(bench: Bench, method: str, path: str) -> None:
    token = sas_token("http://localhost", RULE, KEY, bench.now // 1000 + 60)
    body = queue_entry() if method == "PUT" else b""
    request = HttpRequest(method, f"/{path}?api-version=2021-05", {"authorization": token}, body, "", False)
    assert bench.broker.http(request, bench.now).status < 300


def create(bench: Bench, path: str) -> None:
    bench.broker.namespace.create(QUEUE, path, Settings(), bench.now)


def totals(bench: Bench) -> dict[tuple[str, str], int]:
    """What the cost meter of the page shows."""
    shown: dict[tuple[str, str], int] = {}
    for tally in bench.broker.meter.tallies():
        key = (bench.broker.meter.stage(tally), tally.operation)
        shown[key] = shown.get(key, 0) + tally.total_units + tally.units
    return {key: units for key, units in shown.items() if units}


# --- what is counted ---------------------------------------------------------------------------------


def test_a_batch_counts_each_of_its_messages() -> None:
    bench = Bench()
    sender = bench.client.session().sender("orders")
    parts = [message(size) for size in (10, 70_000, 30)]
    batch = b"".join(b"\x00\x53\x75" + encode_binary(part) for part in parts)
    sender.send(batch, message_format=BATCH_FORMAT)
    bench.exchange()

    count, size, units = bench.taken()["orders", "send"]
    assert (count, size, units) == (3, sum(map(len, parts)), 4)


def test_refused_sends_are_not_counted_but_their_condition_is() -> None:
    bench = Bench(max_message_kb=256, requires_session=True)
    sender = bench.client.session().sender("orders")
    delivery = sender.send(message())
    bench.exchange()

    assert sender.outcomes[delivery].error is not None
    assert bench.taken() == {}
    assert sum(bench.broker.tracker.refusals.values()) == 1


def test_duplicates_and_pings_are_counted_as_they_are_billed() -> None:
    bench = Bench(requires_duplicate_detection=True)
    sender = bench.client.session().sender("orders")
    for _ in range(3):
        sender.send(message())
    sender.send(message(0, content_type="application/vnd.ms-servicebus-ping"))
    bench.exchange()

    assert bench.counts() == {"send": 3, "ping": 1}


def test_pairing_8_an_idle_long_poll_counts_as_one_receive() -> None:
    bench = Bench()
    receiver = bench.client.session().receiver("orders")
    bench.exchange()
    for _ in range(4):  # four polls of fifteen minutes: an hour
        receiver.grant(10)
        bench.exchange()
        bench.now += 15 * MINUTE_MS
    receiver.detach()
    bench.exchange()

    rows = [row for row in bench.broker.meter.take(bench.now) if row.operation == "empty_receive"]
    assert sum(row.count for row in rows) == 4


def test_a_receive_that_brought_something_is_not_an_empty_one() -> None:
    bench = Bench()
    session = bench.client.session()
    receiver = session.receiver("orders")
    receiver.grant(5)
    bench.exchange()
    session.sender("orders").send(message(100))
    bench.exchange()
    receiver.complete(receiver.deliveries[0])
    bench.exchange()
    receiver.detach()
    bench.exchange()

    assert bench.counts() == {"send": 1, "receive": 1, "settle": 1}


def test_a_drain_ends_a_receive_once() -> None:
    bench = Bench()
    receiver = bench.client.session().receiver("orders")
    receiver.grant(5)
    bench.exchange()
    receiver.grant(0, drain=True)
    bench.exchange()
    receiver.detach()
    bench.exchange()

    assert bench.counts() == {"empty_receive": 1}


def test_a_lost_connection_ends_its_receives() -> None:
    bench = Bench()
    bench.client.session().receiver("orders").grant(5)
    bench.exchange()
    bench.connection.lost(bench.now)

    assert bench.counts() == {"empty_receive": 1}


# --- the audit_rows -----------------------------------------------------------------------------------------


def test_the_trail_tells_sends_and_ends() -> None:
    bench = Bench(max_delivery_count=1)
    audit_rows = AuditRows()
    bench.broker.serve(audit_rows)
    session = bench.client.session()
    sender, receiver = session.sender("orders"), session.receiver("orders")
    for _ in range(3):
        sender.send(message())
    receiver.grant(3)
    bench.exchange()
    first, second, third = receiver.deliveries
    receiver.complete(first)
    receiver.abandon(second)
    receiver.dead_letter(third)
    bench.exchange()

    rows = [(row.kind, row.path, row.sequence_number, row.detail) for row in audit_rows.take()]

    assert rows[:3] == [("sent", "orders", number, "") for number in (1, 2, 3)]
    assert rows[3:5] == [
        ("completed", "orders", 1, ""),
        ("dead-lettered", "orders", 2, REASON_MAX_DELIVERY_COUNT),
    ]
    assert rows[5][:3] == ("dead-lettered", "orders", 3)


# --- metrics -------------------------------------------------------------------------------------------


def basic(user: str, key: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()


@pytest.mark.promise("M6")
@pytest.mark.parametrize(
    "authorization", [None, "", "Basic", "Basic !", basic(RULE, "wrong"), basic("nobody", KEY), "Bearer x"]
)
def test_metrics_are_for_those_who_hold_a_right(authorization: str | None) -> None:
    told: list[tuple[str, ...]] = []
    bench = Bench()
    bench.broker._on_audit = lambda *fields: told.append(fields)

    status, body = bench.get(authorization)

    assert status == 401
    assert "orders" not in body
    assert len(told) == 1  # M13


@pytest.mark.parametrize(("user", "key"), [(RULE, KEY), ("listener", "bGlzdGVu")])
def test_metrics_are_given_for_a_rules_name_and_key(user: str, key: str) -> None:
    status, body = Bench().get(basic(user, key))

    assert status == 200
    assert 'pairbus_messages{entity="orders",state="active"} 0' in body
    assert key not in body  # M7


@pytest.mark.promise("B66")
def test_metrics_agree_with_what_happened() -> None:
    bench = Bench()
    session = bench.client.session()
    sender, receiver = session.sender("orders"), session.receiver("orders")
    for _ in range(4):
        sender.send(message())
    receiver.grant(3)
    bench.exchange()
    first, second, third = receiver.deliveries
    receiver.complete(first)
    receiver.defer(second)
    receiver.dead_letter(third)
    bench.exchange()

    body = bench.get(basic(RULE, KEY))[1]

    for line in (
        'pairbus_messages{entity="orders",state="active"} 1',
        'pairbus_messages{entity="orders",state="deferred"} 1',
        'pairbus_messages{entity="orders",state="dead_letter"} 1',
        'pairbus_operations_total{entity="orders",operation="send"} 4',
        'pairbus_operations_total{entity="orders",operation="receive"} 3',
        'pairbus_operations_total{entity="orders",operation="settle"} 3',
        'pairbus_settlements_total{outcome="completed"} 1',
        'pairbus_settlements_total{outcome="deferred"} 1',
        'pairbus_settlements_total{outcome="dead_lettered"} 1',
        'pairbus_dead_lettered_total{reason="application"} 1',
        'pairbus_links{role="receiver"} 1',
    ):
        assert line in body.splitlines()


def test_an_expired_lock_is_counted() -> None:
    bench = Bench()
    session = bench.client.session()
    session.sender("orders").send(message())
    session.receiver("orders").grant(1)
    bench.exchange()
    bench.now += 61_000
    bench.exchange()

    assert bench.broker.counters.locks_expired == 1


def test_entities_beyond_the_bound_are_told_together() -> None:
    bench = Bench()
    for number in range(ENTITIES_LABELLED_MAX + 9):
        bench.broker.namespace.create(QUEUE, f"q{number:05}", Settings(), bench.now)

    metric = next(
        metric for metric in broker_metrics(bench.broker) if metric.name == "pairbus_entity_bytes_max"
    )

    labels = [sample.labels["entity"] for sample in metric.samples]
    assert len(labels) == ENTITIES_LABELLED_MAX + 1
    assert labels[-1] == THE_REST
    total = (ENTITIES_LABELLED_MAX + 10) * Settings().max_size_mb * 1_048_576
    assert sum(sample.value for sample in metric.samples) == total
