"""The stream reader called as an object, on an entity made of plain lists."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from pairbus.errors import UsageError
from pairbus.spark.connector import identity, reader
from pairbus.spark.connector.entity import Browsed, Settlement, is_same
from pairbus.spark.connector.identity import CheckpointMismatch
from pairbus.spark.connector.offsets import Offset, Run, mark_of, numbers_of, runs_of
from pairbus.spark.connector.options import parse_source
from pairbus.spark.connector.reader import RunsPartition, ServiceBusStreamReader

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"
LIMIT = ReadMaxRows(1)


class FakeEntity:
    """A queue: number to message; some numbers are held by somebody else."""

    def __init__(self, messages: Sequence[Browsed], created_ms: int | None = None) -> None:
        self.messages = {message.number: message for message in messages}
        self.created_ms = created_ms
        self.held: set[int] = set()
        self.settled: list[int] = []
        self.error: Exception | None = None

    def highest(self, known: int = 0) -> int | None:
        return max((number for number in self.messages if number >= known), default=None)

    def browse(self, first: int, last: int | None = None) -> Iterator[Browsed]:
        if self.error is not None:
            raise self.error
        for number in sorted(self.messages):
            if number >= first and (last is None or number <= last):
                yield self.messages[number]

    def settle(self, due: Mapping[int, int], last_ms: int) -> Settlement:
        if self.error is not None:
            raise self.error
        there = {number: self.messages[number] for number in due if number in self.messages}
        foreign = tuple(n for n, message in there.items() if not is_same(message, due[n], last_ms))
        if foreign:
            return Settlement(foreign=foreign)
        missing = [number for number in due if number not in there]
        owed = [number for number in there if number in self.held]
        for number in there:
            if number not in self.held:
                del self.messages[number]
                self.settled.append(number)
        return Settlement(runs_of(owed), runs_of(missing))

    def close(self) -> None:
        pass


def messages(*numbers: int, enqueued_ms: int = 1_000, **more: Any) -> list[Browsed]:
    given = {"is_active": True, "session_id": None, "payload": b"x" * 100, **more}
    return [
        Browsed(
            n,
            **given,
            enqueued_ms=enqueued_ms + n,
            mark=mark_of(enqueued_ms + n, f"m{n}".encode()),
        )
        for n in numbers
    ]


def stream(entity: FakeEntity, connection: str = CONNECTION, **options: str) -> ServiceBusStreamReader:
    given = {"connectionString": connection, "queue": "orders", **options}
    made = ServiceBusStreamReader(parse_source(given, is_stream=True), StructType())
    made._entity = entity  # type: ignore[assignment]
    CREATED[id(made._options)] = entity
    return made


def offset(value: dict[str, Any]) -> Offset:
    return Offset.parse(value, "orders")


CREATED: dict[int, FakeEntity] = {}
"""Which entity the options of a reader stand for: what the management API would tell of it."""


@pytest.fixture(autouse=True)
def _no_pause_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(reader, "UNAVAILABLE_SECONDS", 0.0)
    monkeypatch.setattr(reader, "LAG_SECONDS", 0.0)
    monkeypatch.setattr(identity, "created_ms", lambda options: CREATED[id(options)].created_ms)


def test_a_batch_ends_at_the_number_of_messages_or_of_bytes_whichever_comes_first() -> None:
    start = Offset("orders", 0).as_json()
    by_count = stream(FakeEntity(messages(*range(1, 10))), maxMessagesPerTrigger="4")
    by_bytes = stream(FakeEntity(messages(*range(1, 10))), maxBytesPerTrigger="250")
    one_large = stream(FakeEntity(messages(1, 2)), maxBytesPerTrigger="1")

    assert offset(by_count.latestOffset(start, LIMIT)).runs == ((1, 4),)
    assert offset(by_bytes.latestOffset(start, LIMIT)).runs == ((1, 3),)
    assert offset(one_large.latestOffset(start, LIMIT)).runs == ((1, 1),)


def test_messages_that_are_deferred_or_scheduled_are_passed_over_and_never_settled() -> None:
    entity = FakeEntity([*messages(1, 3), *messages(2, is_active=False)])
    reading = stream(entity)

    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    reading.latestOffset(end, LIMIT)

    assert offset(end).runs == ((1, 1), (3, 3))
    assert entity.settled == [1, 3]
    assert set(entity.messages) == {2}


@pytest.mark.promise("D2")
def test_messages_are_settled_only_when_their_batch_is_the_start_of_the_next() -> None:
    entity = FakeEntity(messages(*range(1, 6)))
    reading = stream(entity, maxMessagesPerTrigger="3")

    first = reading.latestOffset(reading.initialOffset(), LIMIT)
    reading.partitions(reading.initialOffset(), first)
    reading.commit(first)
    assert entity.settled == []
    second = reading.latestOffset(first, LIMIT)
    assert entity.settled == [1, 2, 3]
    assert reading.latestOffset(second, LIMIT) == second
    assert entity.settled == [1, 2, 3, 4, 5]


def test_what_became_visible_below_the_offset_later_is_not_settled_unread() -> None:
    entity = FakeEntity(messages(1, 2, 5))
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    entity.messages |= {message.number: message for message in messages(3, 4)}

    reading.latestOffset(end, LIMIT)

    assert entity.settled == [1, 2, 5]
    assert set(entity.messages) == {3, 4}


def test_available_now_ends_at_what_is_there_at_the_start() -> None:
    entity = FakeEntity(messages(1, 2))
    reading = stream(entity)
    reading.prepareForTriggerAvailableNow()
    entity.messages |= {message.number: message for message in messages(3)}

    end = reading.latestOffset(reading.initialOffset(), LIMIT)

    assert offset(end).runs == ((1, 2),)
    assert reading.latestOffset(end, LIMIT) == end
    assert set(entity.messages) == {3}


def test_browsing_settles_nothing_and_begins_where_it_is_told() -> None:
    entity = FakeEntity(messages(1, 2, 3))
    from_two = stream(entity, mode="browse", startingSequence="2")
    latest = stream(entity, mode="browse", startingSequence="latest")

    end = from_two.latestOffset(from_two.initialOffset(), LIMIT)
    from_two.latestOffset(end, LIMIT)

    assert offset(end).runs == ((2, 3),)
    assert latest.latestOffset(latest.initialOffset(), LIMIT) == latest.initialOffset()
    assert entity.settled == []


def test_another_consumer_that_holds_messages_is_named_and_they_are_settled_when_it_lets_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entity = FakeEntity(messages(1, 2, 3))
    entity.held = {2}
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)

    with caplog.at_level(logging.WARNING, "pairbus.spark"):
        reading.latestOffset(end, LIMIT)
    assert "orders: another consumer holds 1 messages that are committed here (first: 2)" in caplog.text
    report = reading.reportLatestOffset()
    assert (report["entity"], report["seq"], report["owed"], report["taken"]) == ("orders", 3, 1, 0)

    # A restart knows from the checkpoint what is owed.
    entity.messages |= {message.number: message for message in messages(4)}
    after = reading.latestOffset(end, LIMIT)
    assert offset(after).owed == ((2, 2),)
    entity.held = set()
    stream(entity).latestOffset(after, LIMIT)
    assert entity.messages == {}


def test_another_consumer_that_takes_messages_is_named_and_an_expired_one_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entity = FakeEntity([*messages(1, 2), *messages(3, expires_ms=1_000)])
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    for number in (2, 3):
        del entity.messages[number]

    with caplog.at_level(logging.WARNING, "pairbus.spark"):
        reading.latestOffset(end, LIMIT)

    assert "another consumer took 1 messages of a batch (first: 2)" in caplog.text
    assert reading.reportLatestOffset()["taken"] == 1
    # What a batch of an earlier process lacks, that process may have settled: nobody is blamed.
    anew = stream(entity)
    anew.latestOffset(end, LIMIT)
    assert anew.reportLatestOffset()["taken"] == 0


@pytest.mark.promise("D10")
def test_a_debt_without_end_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    entity = FakeEntity(messages(1, 3, 5, 7))
    entity.held = {1, 3, 5, 7}
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    monkeypatch.setattr(reader, "RUNS_MAX", 3)

    with pytest.raises(UsageError, match="another consumer holds 4 messages"):
        reading.latestOffset(end, LIMIT)


def test_a_stream_outlasts_a_namespace_that_is_away_but_a_run_with_an_end_does_not_end_early() -> None:
    entity = FakeEntity(messages(1))
    entity.error = ServiceBusConnectionError(message="refused")
    reading = stream(entity)
    start = reading.initialOffset()

    assert reading.latestOffset(start, LIMIT) == start
    entity.error = None
    reading._entity = entity  # type: ignore[assignment]
    assert offset(reading.latestOffset(start, LIMIT)).runs == ((1, 1),)

    once = stream(entity)
    once.prepareForTriggerAvailableNow()
    entity.error = ServiceBusConnectionError(message="refused")
    with pytest.raises(ServiceBusConnectionError):
        once.latestOffset(start, LIMIT)


def test_a_reader_and_its_partitions_travel_without_their_connection() -> None:
    reading = stream(FakeEntity(messages(1)))
    end = reading.latestOffset(reading.initialOffset(), LIMIT)

    arrived = pickle.loads(pickle.dumps(reading))
    (partition,) = pickle.loads(pickle.dumps(reading.partitions(reading.initialOffset(), end)))

    assert arrived._entity is None
    assert isinstance(partition, RunsPartition)
    assert partition.runs == ((1, 1),)


def test_a_partitioned_entity_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="is partitioned .*: read it in batches"):
        stream(FakeEntity(messages(2**48))).latestOffset(Offset("orders", 0).as_json(), LIMIT)


# --- a checkpoint belongs to one entity, not to its name ------------------------------------------

OTHER_NAMESPACE = CONNECTION.replace("sb://example/", "sb://another/")


def committed(entity: FakeEntity, *, is_settled: bool = False) -> dict[str, Any]:
    """The offset of a stream that has read and committed all of an entity, as the checkpoint gives it back."""
    before = stream(entity)
    end = before.latestOffset(before.initialOffset(), LIMIT)
    if is_settled:
        assert before.latestOffset(end, LIMIT) == end
        assert entity.messages == {}
    return json.loads(json.dumps(end))  # type: ignore[no-any-return]


def cast_runs(partition: object) -> tuple[Run, ...]:
    assert isinstance(partition, RunsPartition)
    return partition.runs


def replaced(how: str) -> tuple[FakeEntity, str]:
    """An entity of the same name with other messages under the same numbers, and the way to it."""
    if how == "created again, and the connection may manage":
        # Even messages that look the same are other messages.
        return FakeEntity(messages(*range(1, 9)), created_ms=9_000), CONNECTION
    if how == "created again":
        return FakeEntity(messages(*range(1, 9), enqueued_ms=50_000)), CONNECTION
    if how == "created again, and read in part by another consumer":
        return FakeEntity(messages(4, 7, 8, enqueued_ms=50_000)), CONNECTION
    if how == "the same namespace with an older entity":
        return FakeEntity(messages(*range(1, 9), enqueued_ms=500)), CONNECTION
    assert how == "another namespace"
    return FakeEntity(messages(*range(1, 9))), OTHER_NAMESPACE


REPLACED = (
    "created again, and the connection may manage",
    "created again",
    "created again, and read in part by another consumer",
    "the same namespace with an older entity",
    "another namespace",
)


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_checkpoint_of_another_entity_with_the_same_name_completes_nothing_and_ends_the_query(
    how: str, is_settled: bool
) -> None:
    start = committed(FakeEntity(messages(*range(1, 6)), created_ms=3_000), is_settled=is_settled)
    entity, connection = replaced(how)
    there = set(entity.messages)

    with pytest.raises(CheckpointMismatch, match=r"orders.*No message was completed.*failOnDataLoss=false"):
        stream(entity, connection).latestOffset(start, LIMIT)

    assert entity.settled == []
    assert set(entity.messages) == there


@pytest.mark.parametrize("how", REPLACED)
def test_without_failing_on_data_loss_the_new_entity_is_read_whole_and_only_then_completed(how: str) -> None:
    start = committed(FakeEntity(messages(*range(1, 6)), created_ms=3_000))
    entity, connection = replaced(how)
    there = sorted(entity.messages)
    reading = stream(entity, connection, failOnDataLoss="false", maxMessagesPerTrigger="3")

    read: list[int] = []
    end = start
    for _ in range(4):
        begin, end = end, reading.latestOffset(end, LIMIT)
        assert set(entity.settled) <= set(read), "completed before it was read"
        if end == begin:
            break
        read += [n for part in reading.partitions(begin, end) for n in numbers_of(cast_runs(part))]

    assert read == there
    assert entity.messages == {}
    # A restart goes on from there: the checkpoint is now that of the new entity.
    assert stream(entity, connection).latestOffset(end, LIMIT) == end


def test_an_entity_that_is_replaced_while_the_query_runs_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "SWEEP_SECONDS", 0.0)
    entity = FakeEntity(messages(1, 2, 3))
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    entity.messages = {message.number: message for message in messages(1, 2, 3, 4, enqueued_ms=50_000)}

    with pytest.raises(CheckpointMismatch, match="message 1 is not the one that the last batch read"):
        reading.latestOffset(end, LIMIT)
    assert entity.settled == []

    # The same where the last batch was settled before.
    entity = FakeEntity(messages(1, 2, 3))
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    assert reading.latestOffset(end, LIMIT) == end
    entity.messages = {message.number: message for message in messages(2, 3, enqueued_ms=50_000)}
    with pytest.raises(CheckpointMismatch, match="message 2 is not the one that an earlier batch read"):
        reading.latestOffset(end, LIMIT)


def test_a_checkpoint_of_an_older_release_completes_nothing() -> None:
    """It does not say which entity it means: what it names may be messages that nobody has read."""
    old = {"v": 1, "entity": "orders", "seq": 5, "runs": [[1, 5]], "owed": []}
    entity = FakeEntity(messages(*range(4, 9)))

    with pytest.raises(CheckpointMismatch, match="older release.* message 4"):
        stream(entity).latestOffset(old, LIMIT)
    assert entity.settled == []
    # Where nothing is left of what it names, it goes on as ever.
    rest = FakeEntity(messages(6, 7))
    assert offset(stream(rest).latestOffset(old, LIMIT)).runs == ((6, 7),)
    assert rest.settled == []
    # Told to, it reads everything that is there.
    assert offset(stream(entity, failOnDataLoss="false").latestOffset(old, LIMIT)).runs == ((4, 8),)
    assert entity.settled == []
    # A stream that only browses settles nothing anyhow.
    assert offset(stream(entity, mode="browse").latestOffset(old, LIMIT)).runs == ((6, 8),)


def test_a_task_never_reads_another_entitys_messages_as_its_batch() -> None:
    """A batch that was planned and not finished is read again after a restart, before anything else is asked."""
    reading = stream(FakeEntity(messages(1, 2, 3)), partitions="2")
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    first, second = reading.partitions(reading.initialOffset(), end)
    assert isinstance(first, RunsPartition)
    assert isinstance(second, RunsPartition)
    entity = FakeEntity([*messages(1), *messages(2, 3, enqueued_ms=50_000)])
    entity.browse_runs = lambda runs: (entity.messages[n] for n in numbers_of(runs))  # type: ignore[attr-defined]
    strict, lenient = reading._reading, stream(entity, failOnDataLoss="false")._reading

    assert [message.number for message in strict._of_batch(entity, first)] == [1]  # type: ignore[arg-type]
    with pytest.raises(CheckpointMismatch, match="message 2 is not the one that the batch was planned with"):
        list(strict._of_batch(entity, second))  # type: ignore[arg-type]
    assert list(lenient._of_batch(entity, second)) == []  # type: ignore[arg-type]


def test_a_message_that_becomes_visible_under_a_lower_number_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SWEEP_SECONDS", 0.0)
    entity = FakeEntity(messages(1, 2, 5))
    reading = stream(entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    entity.messages |= {message.number: message for message in messages(3, 4)}

    late = reading.latestOffset(end, LIMIT)

    assert offset(late).runs == ((3, 4),)
    assert offset(late).sequence == 5
    assert reading.latestOffset(late, LIMIT) == late
    assert entity.messages == {}


# --- what the progress tells ----------------------------------------------------------------------


def test_the_progress_tells_how_many_messages_wait() -> None:
    entity = FakeEntity(messages(*range(1, 2_001)))
    reading = stream(entity, maxMessagesPerTrigger="200")

    reading.latestOffset(reading.initialOffset(), LIMIT)

    report = reading.reportLatestOffset()
    assert (report["seq"], report["highest"], report["waiting"]) == (200, 2_000, 1_800)
    entity.error = ServiceBusConnectionError(message="refused")
    assert reading.reportLatestOffset()["waiting"] == 1_800


def test_messages_that_another_consumer_holds_do_not_end_a_run_with_an_end_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "IDLE_SECONDS", 60.0)
    entity = FakeEntity(messages(*range(1, 11)))
    entity.held = {1, 2}
    reading = stream(entity, maxMessagesPerTrigger="6")
    reading.prepareForTriggerAvailableNow()

    first = reading.latestOffset(reading.initialOffset(), LIMIT)
    second = reading.latestOffset(first, LIMIT)

    assert (offset(first).runs, offset(second).runs) == (((1, 6),), ((7, 10),))


@pytest.mark.parametrize("held", [{1, 2, 3}, {2}])
def test_the_last_progress_of_a_run_with_an_end_tells_what_could_not_be_settled(held: set[int]) -> None:
    entity = FakeEntity(messages(1, 2, 3))
    entity.held = held
    reading = stream(entity)
    reading.prepareForTriggerAvailableNow()
    end = reading.latestOffset(reading.initialOffset(), LIMIT)

    last = reading.latestOffset(end, LIMIT)

    assert last != end
    assert reading.partitions(end, last) == []
    assert reading.reportLatestOffset()["owed"] == len(held)
    assert list(numbers_of(offset(last).owed)) == sorted(held)
    assert reading.latestOffset(last, LIMIT) == last
