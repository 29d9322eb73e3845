"""The writer called as an object, on outlets that only remember."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from pyarrow import parquet
from pyspark.sql import Row

from pairbus.drain.ports import NotSent
from pairbus.drain.rules.message import BacklogMessage
from pairbus.errors import PairbusError, UsageError
from pairbus.spark.connector import sink as writer
from pairbus.spark.connector.options import parse_sink
from pairbus.spark.connector.schema import FIELDS, payload_of, row_of

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"
SENT: list[list[BacklogMessage]] = []
REFUSED: dict[str, Exception] = {}


class FakeOutlet:
    """Takes everything but messages that it was told to refuse."""

    def __init__(self, client: object) -> None:
        pass

    async def send(self, path: str, letters: Sequence[BacklogMessage]) -> None:
        for letter in letters:
            if letter.message_id in REFUSED:
                raise REFUSED[letter.message_id]
        SENT.append(list(letters))

    async def largest(self, path: str) -> int:
        if path == "nowhere":
            raise MessagingEntityNotFoundError(message="no such entity")
        if path == "other kind":
            raise ServiceBusError("no senders here", error=AMQPException(condition=b"amqp:not-allowed"))
        if path == "away":
            raise ServiceBusServerBusyError(message="busy")
        return LARGEST

    async def close(self) -> None:
        pass


LARGEST = 100_000


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    SENT.clear()
    REFUSED.clear()
    monkeypatch.setattr(writer, "AzureOutlet", FakeOutlet)
    monkeypatch.setattr(writer, "PAUSE_SECONDS_MIN", 0.0)


def write(rows: list[Row], **options: str) -> writer.Sent:
    given = {"connectionString": CONNECTION, "queue": "out", **options}
    return writer.ServiceBusWriter(parse_sink(given, list(rows[0].asDict()))).send(plain(rows))


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in rows]


def shuffled(count: int, sessions: int) -> list[Row]:
    rows = [Row(body=b"x", session_id=f"s{n % sessions}", sequence_number=n) for n in range(count)]
    random.Random(7).shuffle(rows)
    return rows


def in_order() -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for batch in SENT:
        for letter in batch:
            found.setdefault(letter.session_id, []).append(letter.sequence_number)
    return found


@pytest.mark.promise("D4")
@pytest.mark.parametrize("at_once", [10_000, 100, 7, 1])
def test_sessions_are_sent_in_order_whatever_the_order_of_rows_and_however_few_fit_in_memory(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(writer, "ROWS_AT_ONCE", at_once)

    assert write(shuffled(300, 11), inFlight="3", batchSize="9").messages == 300

    assert in_order() == {f"s{s}": list(range(s, 300, 11)) for s in range(11)}


@pytest.mark.promise("D10")
def test_memory_is_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BYTES_AT_ONCE", 2_000)
    rows = [Row(body=b"x" * 500, session_id="s", sequence_number=n) for n in reversed(range(40))]

    write(rows)

    assert in_order() == {"s": list(range(40))}


def test_a_row_of_original_bytes_keeps_its_own_session_and_id() -> None:
    raw = [
        payload_of({"body": b"x", "message_id": f"m{n}", "session_id": "s", "partition_key": "s"}, None)
        for n in range(3)
    ]

    write([Row(raw=raw[n], sequence_number=n) for n in (2, 0, 1)])

    (batch,) = SENT
    assert [(letter.message_id, letter.session_id, letter.partition_key) for letter in batch] == [
        (f"m{n}", "s", "s") for n in range(3)
    ]
    assert [letter.payload for letter in batch] == raw


def test_no_send_holds_more_messages_than_it_was_told() -> None:
    write([Row(body=b"x") for _ in range(25)], batchSize="10", inFlight="1")

    assert [len(batch) for batch in SENT] == [10, 10, 5]


def test_a_busy_broker_is_asked_again_and_a_task_that_got_no_answer_fails(tmp_path: Path) -> None:
    REFUSED["m1"] = ServiceBusServerBusyError(message="busy")

    with pytest.raises(PairbusError, match="'out' took no messages in 6 attempts: server busy: .*busy"):
        write([Row(body=b"x", message_id="m1")], onError="quarantine", quarantinePath=str(tmp_path))


def test_a_quarantine_that_cannot_be_written_is_refused_before_the_first_row_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (str(tmp_path / "file"), f"{tmp_path}/file/below", "nosuch://bucket/bad"):
        with pytest.raises(UsageError, match="option quarantinePath is .*: it cannot be written"):
            write([Row(body=b"x", message_id="m1")], onError="quarantine", quarantinePath=path)

    assert SENT == []
    write([Row(body=b"x", message_id="m1")], onError="quarantine", quarantinePath=str(tmp_path / "a" / "b"))
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.promise("D5")
def test_a_poisoned_row_fails_the_task_or_is_kept_with_its_reason(tmp_path: Path) -> None:
    REFUSED["m1"] = MessageSizeExceededError(message="256 KB is the limit")
    rows = [Row(body=b"x", message_id=f"m{n}", subject=None if n else 5) for n in range(4)]

    with pytest.raises(
        UsageError, match="subject is a int: expected a string; with the option onError=quarantine"
    ):
        write(rows)
    SENT.clear()
    sent = write(rows, onError="quarantine", quarantinePath=str(tmp_path))

    kept = _quarantined(tmp_path)
    assert (sent.messages, sent.quarantined) == (2, 2)
    assert kept["m0"][0] == "subject is a int: expected a string"
    assert kept["m1"][0].startswith("message too large")
    assert json.loads(kept["m1"][1])["body"] == {"base64": "eA=="}


@pytest.mark.promise("D5")
def test_a_row_refused_after_it_was_on_disk_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ROWS_AT_ONCE", 2)
    REFUSED["m3"] = MessageSizeExceededError(message="too large")
    rows = [Row(body=b"x", message_id=f"m{n}", session_id="s", sequence_number=n) for n in range(6)]

    write(rows, onError="quarantine", quarantinePath=str(tmp_path))

    ((_, row, raw),) = _quarantined(tmp_path).values()
    assert json.loads(row)["sequence_number"] == 3
    assert raw == b"x"


@pytest.mark.promise("D1", "D3")
def test_a_task_that_is_run_again_quarantines_nothing_twice(tmp_path: Path) -> None:
    rows = [Row(body=b"x", message_id=f"m{n}", subject=5) for n in range(4)]

    for again in (rows, rows[::-1]):
        write(again, onError="quarantine", quarantinePath=str(tmp_path))

    assert len(list(tmp_path.iterdir())) == 1
    assert len(_quarantined(tmp_path)) == 4


@pytest.mark.promise("D5")
def test_equal_rows_of_two_parts_or_batches_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in (("", 0), ("", 1), ("query-0-0", 0), ("query-1-0", 0), ("query-1-0", 0)):
        monkeypatch.setattr(writer, "_task", lambda task=task: task)
        write([Row(body=b"x", subject=5)], onError="quarantine", quarantinePath=str(tmp_path))

    assert parquet.read_table(tmp_path).num_rows == 4


def _quarantined(directory: Path) -> dict[str, tuple[str, str, Any]]:
    rows = parquet.read_table(directory).to_pylist()
    return {row["message_id"]: (row["reason"], row["row"], row["raw"]) for row in rows}


# --- ids of rows that have none -------------------------------------------------------------------


def sent_ids() -> list[str]:
    found = [letter.message_id for batch in SENT for letter in batch]
    SENT.clear()
    return sorted(found)


@pytest.mark.promise("D3")
def test_a_task_that_is_run_again_gives_its_rows_the_same_ids_whatever_their_order() -> None:
    """Its first attempt may have sent some of them: a destination with duplicate detection keeps one of each."""
    rows = [Row(body=f"{n % 7}".encode(), subject="same") for n in range(20)]
    given = {"connectionString": CONNECTION, "queue": "out"}
    planned = writer.ServiceBusWriter(parse_sink(given, list(rows[0].asDict())))

    attempts = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        pickle.loads(pickle.dumps(planned)).send(plain(rows))
        attempts.append(sent_ids())

    assert attempts[0] == attempts[1] == attempts[2]
    assert len(set(attempts[0])) == 20, "equal rows are different messages"
    # Another job sends new messages, though its rows be the same.
    writer.ServiceBusWriter(parse_sink(given, list(rows[0].asDict()))).send(plain(rows))
    assert not set(sent_ids()) & set(attempts[0])


@pytest.mark.promise("D10")
def test_ids_for_many_rows_need_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COUNTED_MAX", 5)

    write([Row(body=f"{n % 11}".encode()) for n in range(50)])

    assert len(set(sent_ids())) == 50


def test_an_id_made_of_the_source_tells_an_entity_from_the_one_that_replaced_it() -> None:
    """Both have a message 1; a destination with duplicate detection must keep both."""
    moments = [datetime(2026, 11, day, tzinfo=UTC) for day in (14, 15)]

    for moment in moments:
        write([Row(body=b"x", entity="orders", sequence_number=1, enqueued_time=moment)])

    assert len(set(sent_ids())) == 2
    write([Row(body=b"x", entity="orders", sequence_number=1)])
    assert sent_ids() == ["orders:1"]


# --- what is judged before anything is sent -------------------------------------------------------


@pytest.mark.promise("D5")
def test_properties_of_a_type_that_cannot_be_sent_are_quarantined(tmp_path: Path) -> None:
    rows = [Row(body=b"x", message_id="good", application_properties={"a": "b"})]
    rows += [
        Row(body=b"x", message_id=f"p{n}", application_properties={"a": value})
        for n, value in enumerate((5, [1]))
    ]

    done = write(rows, onError="quarantine", quarantinePath=str(tmp_path))

    assert (done.messages, done.quarantined) == (1, 2)
    assert set(_quarantined(tmp_path)) == {"p0", "p1"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Row(path="out", body=b"x" * 200_000), "200,.* bytes, and out takes 100,000 at the most"),
        (Row(path="nowhere", body=b"x"), "entity not found"),
    ],
)
@pytest.mark.parametrize("place", [0, 150, 199])
def test_a_row_that_no_destination_takes_fails_its_task_before_anything_is_sent(
    bad: Row, reason: str, place: int
) -> None:
    """The task is run again: what it had sent would be there twice."""
    rows = [Row(path="out", body=b"x") for _ in range(199)]
    rows.insert(place, bad)
    options = parse_sink({"connectionString": CONNECTION}, ["path", "body"])

    with pytest.raises(UsageError, match=reason):
        writer.ServiceBusWriter(options).send(plain(rows))

    assert SENT == []


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("t/Subscriptions/s", "path: expected a queue or a topic, found 't/Subscriptions/s'"),
        ("other kind", "invalid argument or state: 'other kind' takes no messages: .*no senders here"),
    ],
)
def test_a_path_that_takes_no_messages_is_refused_by_name_and_the_others_are_sent(
    tmp_path: Path, path: str, reason: str
) -> None:
    rows = [{"path": name, "body": b"x", "message_id": name} for name in (path, "out")]
    given = {"connectionString": CONNECTION, "onError": "quarantine", "quarantinePath": str(tmp_path)}

    done = writer.ServiceBusWriter(parse_sink(given, list(rows[0]))).send(rows)

    assert (done.messages, sent_ids()) == (1, ["out"])
    assert re.match(reason, _quarantined(tmp_path)[path][0])
    with pytest.raises(UsageError, match=f"a row cannot be sent: {reason}"):
        writer.ServiceBusWriter(parse_sink({"connectionString": CONNECTION}, list(rows[0]))).send(rows)
    assert sent_ids() == []


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (
            ServiceBusServerBusyError(message="busy"),
            "'out' took no messages in 6 attempts: server busy: .*busy",
        ),
        (MessagingEntityDisabledError(message="disabled"), "a row cannot be sent: entity disabled: disabled"),
    ],
)
def test_what_kept_a_link_from_opening_is_what_the_error_says(cause: Exception, error: str) -> None:
    REFUSED["m1"] = NotSent()
    REFUSED["m1"].__cause__ = cause

    with pytest.raises(PairbusError, match=error):
        write([Row(body=b"x", message_id="m1")])


def test_a_destination_that_is_away_is_judged_by_sending() -> None:
    options = parse_sink({"connectionString": CONNECTION}, ["path", "body"])

    assert writer.ServiceBusWriter(options).send([{"path": "away", "body": b"x" * 200_000}]).messages == 1


@pytest.mark.parametrize("spelt", [str.upper, str.title, str.lower])
@pytest.mark.parametrize("has_raw", [True, False])
def test_a_masked_column_in_another_letter_case_is_sent_and_the_original_is_not(
    spelt: Callable[[str], str], has_raw: bool
) -> None:
    """Spark ignores the case of names: ``withColumn("Body", …)`` replaces ``body`` by a column ``Body``."""
    given = {"body": b"secret body", "subject": "secret subject", "message_id": "m1", "session_id": "s1"}
    original = payload_of(given, None)
    row = dict(zip(FIELDS, row_of(original, "orders"), strict=True)) | {
        "body": b"MASKED",
        "subject": "MASKED",
    }
    if not has_raw:
        del row["raw"]

    write([Row(**{spelt(name): value for name, value in row.items()})])

    ((letter,),) = SENT
    assert b"secret" not in letter.payload
    assert letter.payload.count(b"MASKED") == 2
    assert (letter.message_id, letter.session_id) == ("m1", "s1")


def test_a_column_option_in_another_letter_case_is_used() -> None:
    write([Row(text=b"MASKED", body=b"secret")], bodyColumn="Text")

    assert b"MASKED" in SENT[0][0].payload
    assert b"secret" not in SENT[0][0].payload


@pytest.mark.promise("D5")
def test_a_quarantined_row_is_json_whatever_its_numbers_are(tmp_path: Path) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    write(
        [Row(Body=b"x", Message_Id="m", Subject=5, state=float("nan"), expires_at=[float("inf"), 0.5])],
        onError="quarantine",
        quarantinePath=str(tmp_path),
    )

    (reason, row, raw) = _quarantined(tmp_path)["m"]
    assert "subject is a int" in reason
    kept = json.loads(row, parse_constant=refuse)
    assert (kept["state"], kept["expires_at"], raw) == ("nan", ["inf", 0.5], b"x")


# --- times ----------------------------------------------------------------------------------------


def times(values: list[int | None]) -> pa.Array:
    """Timestamps as Spark gives them to a task, in the zone of the session."""
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", tz="Europe/Berlin"))


@pytest.mark.promise("D5")
def test_a_time_beyond_the_calendar_is_quarantined_with_its_column_and_the_others_are_sent(
    tmp_path: Path,
) -> None:
    noon, beyond = 1_794_744_000_000_000, -62_135_596_800_000_001
    moments = times([noon, beyond, noon])
    properties = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pa.array(["p"] * 3), times([beyond, noon, noon])
    )
    ids = pa.array(["property", "schedule", "good"])
    columns = {"body": pa.array([b"x"] * 3), "message_id": ids, "scheduled_enqueue_time": moments}
    batch = pa.record_batch({**columns, "application_properties": properties})
    given = {
        "connectionString": CONNECTION,
        "queue": "out",
        "onError": "quarantine",
        "quarantinePath": str(tmp_path),
    }
    types = {"application_properties": "map<string,timestamp>"}
    options = parse_sink(given, batch.schema.names, types)

    done = writer.ServiceBusWriter(options).write(iter([batch]))

    kept = {name: (reason, json.loads(row)) for name, (reason, row, _) in _quarantined(tmp_path).items()}
    expected = f"{beyond} microseconds since 1970: expected a time in the years 1 to 9999"
    assert (done.messages, done.quarantined, sent_ids()) == (1, 2, ["good"])
    assert kept["schedule"][0] == f"scheduled_enqueue_time is {expected}"
    assert kept["property"][0] == f"application property 'p' is {expected}"
    assert kept["property"][1]["scheduled_enqueue_time"] == "2026-11-15T12:00:00+00:00"


def test_an_id_made_of_the_source_needs_a_time_of_the_calendar() -> None:
    batch = pa.record_batch(
        {"body": [b"x"], "entity": ["orders"], "sequence_number": [1], "enqueued_time": times([2**62])}
    )
    options = parse_sink({"connectionString": CONNECTION, "queue": "out"}, batch.schema.names)

    with pytest.raises(UsageError, match="enqueued_time is .* in the years 1 to 9999"):
        writer.ServiceBusWriter(options).write(iter([batch]))
