"""The stream reader called as an object, on an entity made of plain lists."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from pairbus.errors import UsageError
from pairbus.spark import reader
from pairbus.spark.entity import Browsed, Settlement
from pairbus.spark.offsets import Offset, Run, numbers_of, runs_of
from pairbus.spark.options import parse_source
from pairbus.spark.reader import RunsPartition, ServiceBusStreamReader

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"
LIMIT = ReadMaxRows(1)


class FakeEntity:
    """A queue: number to message; some numbers are held by somebody else."""

    def __init__(self, messages: Sequence[Browsed]) -> None:
        self.messages = {message.number: message for message in messages}
        self.held: set[int] = set()
        self.settled: list[int] = []
        self.error: Exception | None = None

    def highest(self) -> int | None:
        return max(self.messages, default=None)

    def browse(self, first: int, last: int | None = None) -> Iterator[Browsed]:
        if self.error is not None:
            raise self.error
        for number in sorted(self.messages):
            if number >= first and (last is None or number <= last):
                yield self.messages[number]

    def settle(self, runs: Sequence[Run]) -> Settlement:
        if self.error is not None:
            raise self.error
        numbers = list(numbers_of(runs))
        missing = [number for number in numbers if number not in self.messages]
        owed = [number for number in numbers if number in self.messages and number in self.held]
        for number in numbers:
            if number in self.messages and number not in self.held:
                del self.messages[number]
                self.settled.append(number)
        return Settlement(runs_of(owed), runs_of(missing))

    def close(self) -> None:
        pass


def messages(*numbers: int, **more: Any) -> list[Browsed]:
    given = {"is_active": True, "session_id": None, "payload": b"x" * 100, **more}
    return [Browsed(number, **given) for number in numbers]


def stream(entity: FakeEntity, **options: str) -> ServiceBusStreamReader:
    given = {"connectionString": CONNECTION, "queue": "orders", **options}
    made = ServiceBusStreamReader(parse_source(given, is_stream=True), StructType())
    made._entity = entity  # type: ignore[assignment]
    return made


def offset(value: dict[str, Any]) -> Offset:
    return Offset.parse(value, "orders")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(reader, "AWAY_SECONDS", 0.0)


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


def test_D2_messages_are_settled_only_when_their_batch_is_the_start_of_the_next() -> None:
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
    assert reading.reportLatestOffset() == {"entity": "orders", "seq": 3, "owed": 1, "taken": 0}

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


def test_D10_a_debt_without_end_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
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
