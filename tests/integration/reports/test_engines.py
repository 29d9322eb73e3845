"""Both engines give the same reports for the same files, whatever is wrong with them."""

from __future__ import annotations

import csv
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from pairbus.reports.bill.catalogue import builtin_tables
from pairbus.reports.bill.days import Pricing
from pairbus.reports.bill.model import UNBILLED_DEFAULT
from pairbus.reports.bill.money import SCALE
from pairbus.reports.certificate.value import Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import (
    AUDIT,
    BACKLOG,
    DEAD_LETTER,
    DELIVERIES,
    HELD,
    KINDS,
    NOTES,
    RECEIVED,
    ROLES,
    SENT,
    SPOOL,
)
from pairbus.reports.engines.base import Engine
from pairbus.reports.engines.spark import SparkEngine
from pairbus.reports.engines.usage_log import USAGE, usage_range
from pairbus.reports.inputs import find_all, find_inputs
from pairbus.reports.views.json import cost_json
from tests.integration.reports.copies_kit import Copies, copies
from tests.integration.reports.ledger_kit import (
    BACKLOG_QUEUE,
    COPIED,
    NOON_MS,
    OPEN,
    SHA,
    row,
    write,
    write_table,
)
from tests.integration.reports.planted_kit import plant
from tests.integration.reports.test_cost import scripted_outage
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java
NOW = datetime(2026, 11, 20, tzinfo=UTC)
USAGE_ROW = {
    "bucket": "2026-11-15T10:00:00Z", "namespace": "contoso", "entity": "orders", "operation": "send", "stage": "primary",
    "count": 1, "bytes": 5, "units": 1, "connection_peak": 0, "part": "one",
}  # fmt: skip
TIMES = (
    "2026-11-15", "2026-11-15T10:00", "2026-11-15 10:00:30.123456", "2026-11-15T10:00:00+01:00", "2026-11-15T10:00:00-0530", "2026-1-5",
    1_794_744_000_000, "1794744000000", 99_999_999_999_999, 999_999_999_999_999, 1e12, "2026", "10:00", "2026-02-30", "2026-11-15T24:00:00",
    "2026-11-15T10:00:00+19:00", " 2026-11-15", "20261115", "2026-11-15T10:00:00.1234567891Z", "99999999999999999999", "yesterday", "", None, True,
)  # fmt: skip
"""Times as lines of JSON may give them, and texts that are none."""
LINES = (
    "", "{broken", "null", "5", '"text"', "[]", "[1]", "{}", '{"bucket": 1} and more', "{'single': 1}", "\ufeff", '{"count": NaN}',
    json.dumps(USAGE_ROW) + json.dumps(USAGE_ROW), f"[{json.dumps(USAGE_ROW)}]", '{"entity": "a\tb"}', '{"entity": "\\ud800"}', "\x00",
)  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> SparkEngine:
    return SparkEngine(small_session())


def quarantine(directory: Path) -> list[tuple[object, ...]]:
    table = pyarrow.parquet.read_table(directory / "quarantine")
    names = [name for name in ("role", "source", "reason", "raw") if name in table.column_names]
    # Spark keeps bytes that are no text.
    columns = [table[name].cast(pyarrow.binary()).to_pylist() for name in names]
    return sorted(
        tuple(value.decode(errors="replace") for value in entry) for entry in zip(*columns, strict=True)
    )


def assert_same_bill(spark: SparkEngine, tmp_path: Path, *places: Path) -> dict[str, object]:
    """The report, the table it rests on and the quarantined rows are the same."""
    inputs = find_inputs(None, [str(place) for place in places], USAGE)
    wanted = usage_range(inputs, None, None, NOW)
    pricing = Pricing(tables=builtin_tables(), tier="standard", currency="USD", unbilled=UNBILLED_DEFAULT)
    tables = []
    reports = []
    engines: dict[str, Engine] = {"here": arrow, "spark": spark}
    for name, engine in engines.items():
        priced = engine.price(wanted, pricing)
        priced.write_parquet(str(tmp_path / name))
        priced.write_csv(str(tmp_path / f"{name}-csv"))
        tables.append(pyarrow.parquet.read_table(tmp_path / name / "bill").to_pylist())
        reports.append(priced.report)
    assert cost_json(reports[0]) == cost_json(reports[1])
    assert reports[0] == reports[1]
    order = ("day", "namespace", "entity", "stage", "operation")
    here, there = (sorted(table, key=lambda entry: [entry[name] for name in order]) for table in tables)
    assert here == there
    assert quarantine(tmp_path / "here") == quarantine(tmp_path / "spark")
    csv_files = [next((tmp_path / f"{name}-csv" / "bill").glob("*.csv")) for name in ("here", "spark")]
    sheets = [list(csv.reader(file.open(newline=""))) for file in csv_files]
    assert sheets[0] == sheets[1]
    assert csv_files[0].read_text() == csv_files[1].read_text()
    amounts = {line[-1] for line in sheets[0][1:]}
    assert all(re.fullmatch(r"(\d+\.\d{10})?", amount) for amount in amounts), amounts
    changes = [(abs(ms), [(NOON_MS - 7_200_000, NOON_MS)], 90_000) for ms in (0, 125_000)]
    for early, spans, failover in changes:
        results = [
            engine.recorded_usage(wanted, UNBILLED_DEFAULT, early, spans, failover)
            for engine in engines.values()
        ]
        assert results[0] == results[1]
    return cost_json(reports[0])


def test_bills_of_whole_damaged_and_impossible_logs_are_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    data = tmp_path / "data [1]"
    scripted_outage(data)
    part = data / "primary" / "usage" / "hour=2026-11-15T10" / "part-life1.parquet"
    copy = tmp_path / "copy" / "hour=2026-11-15T10" / part.name
    copy.parent.mkdir(parents=True)
    # Without the broker's metadata, as parts of earlier versions are: a part that lost its seal is damaged.
    table = pyarrow.parquet.read_table(part, partitioning=None).replace_schema_metadata()
    pyarrow.parquet.write_table(table.slice(0, 3), copy)
    # Rows of another hour, rows that are there twice, and a file that was cut short.
    misplaced = tmp_path / "copy" / "hour=2026-11-15T14" / "part-life3.parquet"
    misplaced.parent.mkdir()
    pyarrow.parquet.write_table(pyarrow.concat_tables([table, table.slice(0, 5)]), misplaced)
    twice = tmp_path / "copy" / "twice.parquet"
    pyarrow.parquet.write_table(pyarrow.concat_tables([table, table.slice(0, 5)]), twice)
    (tmp_path / "copy" / "cut.parquet").write_bytes(part.read_bytes()[:100])
    lines = [
        USAGE_ROW, USAGE_ROW, {**USAGE_ROW, "count": 3, "units": 3}, {**USAGE_ROW, "part": None}, {**USAGE_ROW, "part": "two"},
        {**USAGE_ROW, "entity": "=cmd()\n,\"ä"}, {**USAGE_ROW, "stage": "backlog", "entity": "q/$DeadLetterQueue"},
        {**USAGE_ROW, "stage": "backlog", "operation": "management", "entity": ""},
        {**USAGE_ROW, "count": -1}, {**USAGE_ROW, "count": 10**15 + 1, "units": 10**15 + 1}, {**USAGE_ROW, "count": 2**63},
        {**USAGE_ROW, "connection_peak": 2**31}, {**USAGE_ROW, "count": "1"}, {**USAGE_ROW, "units": 1.0}, {**USAGE_ROW, "units": None},
        {**USAGE_ROW, "entity": 5}, {**USAGE_ROW, "namespace": None}, {**USAGE_ROW, "operation": "sing"}, {**USAGE_ROW, "stage": "moon"},
        {**USAGE_ROW, "operation": "connections"}, {**USAGE_ROW, "units": 0}, *({**USAGE_ROW, "bucket": time} for time in TIMES),
        {**USAGE_ROW, "bucket": "2026-10-31T23:59:00Z", "units": 30_000_000}, {**USAGE_ROW, "bucket": "2023-01-01"},
    ]  # fmt: skip
    text = "\n".join([*LINES, *map(json.dumps, lines)])
    (tmp_path / "more.jsonl").write_bytes(text.encode() + b'\r\n{"entity": "\xff\xfe"}\n')

    found = assert_same_bill(
        spark, tmp_path, data / "primary", data / "secondary", tmp_path / "copy", tmp_path / "more.jsonl"
    )

    rows = found["rows"]
    assert isinstance(rows, dict)
    assert len(rows["quarantined"]) > 10
    assert rows["repeated"] > 5
    assert list(rows["damaged_files"]) == [str(tmp_path / "copy" / "cut.parquet")]


def test_a_bill_of_billions_is_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    """Its amounts have more digits than a number of 64 bits, in the unit in which they are divided among the rows."""
    rows = [
        {**USAGE_ROW, "entity": f"queue-{number}", "count": 10**15 - number, "units": 10**15 - number}
        for number in range(40)
    ]
    rows.append({**rows[0], "bucket": "2026-11-16T10:00:00Z", "count": 1, "units": 1})
    log = tmp_path / "usage.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))

    found = assert_same_bill(spark, tmp_path, log)

    assert Decimal(str(found["total"])) > 2**63 / Decimal(10**SCALE)


def test_a_bill_of_nothing_is_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    assert assert_same_bill(spark, tmp_path, tmp_path / "none.jsonl")["operations"] == 0


def certificates(
    spark: SparkEngine,
    tmp_path: Path,
    places: dict[str, list[str]],
    until: datetime | None = None,
    with_body: bool = True,
) -> Certificate:
    """The certificate that both engines give; their files are the same, too."""
    inputs = {role: find_inputs(None, paths, AUDIT) for role, paths in places.items()}
    found = []
    named = []
    schemas = []
    engines: dict[str, Engine] = {"here": arrow, "spark": spark}
    for name, engine in engines.items():
        done = engine.reconcile(inputs, until, with_body=with_body, with_order=True)
        done.write(str(tmp_path / name))
        table = pyarrow.parquet.read_table(tmp_path / name / "messages")
        schemas.append([(field.name, field.type) for field in table.schema])
        named.append(sorted(map(str, table.to_pylist())))
        found.append(done.certificate)
    assert found[0] == found[1]
    assert named[0] == named[1]
    assert schemas[0] == schemas[1]
    if found[0].quarantined:
        assert quarantine(tmp_path / "here") == quarantine(tmp_path / "spark")
    return found[0]


def test_certificates_of_every_kind_in_every_place_are_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    """Each kind of row at each kind of path in each input, alone and with others of its message."""
    entities = [
        "orders",
        "Orders/$DeadLetterQueue",
        "events/Subscriptions/a",
        "events/subscriptions/a/$deadletterqueue",
    ]
    entities += [
        BACKLOG_QUEUE,
        f"{BACKLOG_QUEUE}/$DeadLetterQueue",
        f"{BACKLOG_QUEUE}/$Transfer/$DeadLetterQueue",
        "/x",
        "a/x-servicebus-transfer/b",
    ]
    rows = [
        row(
            kind,
            f"{kind}-{at}-{detail}",
            entity=entity,
            destination=destination,
            detail=detail,
            sequence_number=at * 7,
            time=NOON_MS
            - (kind == "entity-deleted"),  # before all else: else nothing would be left in the backlog
        )
        for kind in (*KINDS, "", "SENT")
        if kind not in NOTES  # their world is that of the copies
        for at, entity in enumerate(entities)
        for destination, detail in (("", ""), ("Target", "TTLExpiredException"))
    ]
    kinds = ("sent", DELIVERIES[0], HELD[0], "dead-lettered", "expired", "cancelled")
    rows += [
        row(kind, f"together-{at}", entity=entity, sequence_number=at, time=NOON_MS + at * 1_000)
        for at, entity in enumerate(entities)
        for kind in kinds
    ]
    places = {role: [write(tmp_path / f"{role}.parquet", rows)] for role in ROLES}

    # What is in a spool was accepted, so that nothing would be unexpected beside it.
    found = certificates(spark, tmp_path, {role: files for role, files in places.items() if role != SPOOL})

    assert {fate for fate, count in found.fates.items() if count} >= {
        "arrived",
        "set_aside",
        "dead_lettered",
        "unexpected",
    }
    certificates(spark, tmp_path / "sent", {SENT: places[SENT], RECEIVED: places[RECEIVED]}, with_body=False)
    until = datetime.fromtimestamp(NOON_MS / 1000 + 3, UTC)
    for role in (BACKLOG, DEAD_LETTER, RECEIVED, SPOOL):
        empty = write(tmp_path / "empty.parquet", [])
        some = {SENT: places[SENT], RECEIVED: [empty], role: places[role]}
        certificates(spark, tmp_path / f"only-{role}", some, until)


def test_certificates_of_deleted_backlog_queues_are_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    """Whose deletion it is depends on the namespace and on the time; dead-letter queues go with their queues."""
    queues = [BACKLOG_QUEUE, BACKLOG_QUEUE.upper(), f"{BACKLOG_QUEUE[:-1]}4"]
    places = [
        place
        for queue in queues
        for place in (queue, f"{queue}/$DeadLetterQueue", f"{queue}/$Transfer/$deadletterqueue")
    ]
    rows = [
        row(
            kind, f"{at}-{place_at}-{namespace}-{earlier}", entity=place, destination="orders", namespace=namespace,
            time=NOON_MS + at * 1_000 - earlier, sequence_number=at,
        )
        for at, kind in enumerate(("sent", "held", "dead-lettered", "completed", "cancelled", "expired"))
        for place_at, place in enumerate(places)
        for namespace in ("contoso", "other", None)
        for earlier in (0, 3_000)
    ]  # fmt: skip
    gone = {"sha256": None, "sequence_number": 0}
    rows += [
        row("entity-deleted", "", entity=BACKLOG_QUEUE, time=NOON_MS, **gone),
        row("Entity-Deleted", "", entity=BACKLOG_QUEUE, time=NOON_MS - 60_000, **gone),
        row("entity-deleted", "", entity=queues[2], time=NOON_MS + 1_000, namespace=None, **gone),
        row("entity-deleted", "", entity="orders", time=NOON_MS + 60_000, **gone),
    ]
    backlog = write(tmp_path / "backlog.parquet", rows)
    empty = write(tmp_path / "empty.parquet", [])

    for name, given in {
        "backlog": {SENT: [backlog], RECEIVED: [empty], BACKLOG: [backlog]},
        "listed": {SENT: [backlog], RECEIVED: [backlog], DEAD_LETTER: [backlog], SPOOL: [backlog]},
    }.items():
        found = certificates(spark, tmp_path / name, given)
        if name == "backlog":
            assert all(found.fates[fate] for fate in ("in_backlog", "lost")), found.fates


def test_certificates_of_rows_that_cannot_be_true_are_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    good = row("sent", "a", time="2026-11-15T12:00:00Z")
    lines = [
        good, *({**good, "time": time, "message_id": f"time-{at}"} for at, time in enumerate(TIMES)), {**good, "kind": "sung"},
        {**good, "kind": None}, {**good, "message_id": None}, {**good, "message_id": ""}, {**good, "message_id": 7}, {**good, "entity": None},
        {**good, "entity": "", "destination": "/"}, {**good, "sha256": "12"}, {**good, "sha256": "G" * 64}, {**good, "sha256": SHA.upper()},
        {**good, "sha256": None, "body_sha256": SHA}, {**good, "sha256": ""}, {**good, "sequence_number": "1"}, {**good, "sequence_number": 2**63},
        {**good, "kind": "entity-deleted", "sha256": None}, {**good, "message_id": "ä\u202e<b>"}, {**good, "destination": "ORDERS/Ä"},
    ]  # fmt: skip
    text = "\n".join([*LINES, *map(json.dumps, lines)])
    (tmp_path / "sent.jsonl").write_bytes(text.encode() + b'\r\n{"entity": "\xff\xfe"}\n')
    received = write(tmp_path / "received.parquet", [row("received", "a"), row("received", "unknown")])

    found = certificates(spark, tmp_path, {SENT: [str(tmp_path / "sent.jsonl")], RECEIVED: [received]})

    assert len(found.reasons) > 4
    assert found.fates["lost"] > 0


def test_certificates_of_planted_ledgers_are_the_same(spark: SparkEngine, tmp_path: Path) -> None:
    arguments = plant(5_000, seed=11).write(tmp_path / "ledgers", 3, None)
    places = {
        role.removeprefix("--"): [path] for role, path in zip(arguments[::2], arguments[1::2], strict=True)
    }

    found = certificates(spark, tmp_path, places)

    assert found.fates["lost"] > 0
    assert found.outages
    for outage in found.outages:
        assert sum(outage.fates.values()) == outage.messages
    assert found.overtaken


def assert_accounted_for(world: Copies, found: Certificate, messages: Path) -> None:
    assert {fate: number for fate, number in found.fates.items() if number} == world.fates
    named = pyarrow.parquet.read_table(messages).to_pylist()
    assert world.named == {(one["fate"], one["message_id"], one["sha256"]): one["copies"] for one in named}


@pytest.mark.promise("D4")
def test_of_messages_accepted_several_times_both_engines_account_for_every_copy(
    spark: SparkEngine, tmp_path: Path
) -> None:
    """A copy that was cancelled or expired says nothing about another copy that is nowhere. The brokers still run."""
    world = copies(400, seed=0)
    found = certificates(spark, tmp_path, world.write(tmp_path / "ledgers", OPEN))
    assert_accounted_for(world, found, tmp_path / "spark" / "messages")


@pytest.mark.promise("D4")
@pytest.mark.parametrize("layout", ["", OPEN, COPIED])
@pytest.mark.parametrize("seed", range(1, 6))
def test_of_messages_accepted_several_times_every_copy_is_accounted_for(
    tmp_path: Path, seed: int, layout: str
) -> None:
    """However the same rows are kept."""
    world = copies(400, seed)
    done = arrow.reconcile(find_all(None, world.write(tmp_path / "ledgers", layout), AUDIT))
    done.write(str(tmp_path))
    assert_accounted_for(world, done.certificate, tmp_path / "messages")


def test_times_in_nanoseconds_are_read(spark: SparkEngine, tmp_path: Path) -> None:
    """As pandas writes them; beside other files, and with rows that cannot be true."""
    rows = [row("sent", "a", time=NOON_MS + 5), row("sent", "b"), row("sung", "c")]
    fine = pyarrow.parquet.read_table(write(tmp_path / "ms.parquet", rows))
    at = fine.schema.get_field_index("time")
    for name, zone in (("utc", "UTC"), ("plain", None)):
        times = fine["time"].cast(pyarrow.timestamp("ns", tz="UTC")).cast(pyarrow.int64())
        table = fine.set_column(at, "time", times.cast(pyarrow.timestamp("ns", tz=zone)))
        path = write_table(tmp_path / f"{name}.parquet", table)
        other = write(tmp_path / "other.parquet", [row("sent", "d")])
        received = write(
            tmp_path / "received.parquet", [row("sent", name, time=NOON_MS + 7) for name in "abd"]
        )

        found = certificates(spark, tmp_path / name, {SENT: [path, other], RECEIVED: [received]})

        assert (found.fates["arrived"], found.quarantined) == (3, 1)
        assert found.delays[0].direct == 3
