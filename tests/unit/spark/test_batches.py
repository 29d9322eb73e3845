"""Arrow batches as rows: the instants are those of Spark, in whatever zone a worker or a session is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pairbus.spark.connector.batches import BeyondCalendar, rows_of

ZONE = "Europe/Berlin"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", tz=ZONE)
INSTANTS = [
    # Summer time ends: half past two comes twice.
    *(datetime(2027, 10, 31, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)),
    # Summer time begins: half past two does not come.
    *(datetime(2027, 3, 28, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


@pytest.fixture(autouse=True)
def _worker_in_another_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", ZONE)
        time.tzset()
        yield
    time.tzset()


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def of_micros(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(TIME)


def column(values: pa.Array) -> list[Any]:
    return [row["c"] for row in rows_of(pa.record_batch({"c": values}))]


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_each_time_is_its_instant_also_in_the_repeated_hour(unit: str) -> None:
    exact = [moment.replace(microsecond=0) for moment in INSTANTS]
    times = of_micros([*map(micros, exact), None]).cast(pa.timestamp(unit, tz=ZONE))

    assert column(times) == [*exact, None]
    assert all(moment.tzinfo is UTC for moment in column(times) if moment)


@pytest.mark.parametrize("beyond", [micros(INSTANTS[-2]) - 1, micros(INSTANTS[-1]) + 1, 2**62, -(2**62)])
def test_a_time_that_python_has_no_value_for_spoils_no_other_row(beyond: int) -> None:
    assert column(of_micros([beyond, 0])) == [BeyondCalendar(beyond), EPOCH]


def test_times_inside_maps_lists_and_structs_are_instants_too() -> None:
    times = of_micros([*map(micros, INSTANTS[:2]), None])
    maps = pa.MapArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), times)
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 3], pa.int32()), times, mask=pa.array([False, True, False])
    )
    structs = pa.StructArray.from_arrays([times, pa.array(["x", "y", "z"])], ["at", "text"])

    assert column(maps) == [{"a": INSTANTS[0], "b": INSTANTS[1]}, {}, {"c": None}]
    assert column(maps.slice(1)) == [{}, {"c": None}]
    assert column(lists) == [INSTANTS[:2], None, [None]]
    assert column(structs) == [
        {"at": INSTANTS[0], "text": "x"},
        {"at": INSTANTS[1], "text": "y"},
        {"at": None, "text": "z"},
    ]
    assert column(structs.slice(2)) == [{"at": None, "text": "z"}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.map_(pa.string(), pa.string()), [{"a": "b"}, None, {}]),
        (
            pa.map_(pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])),
            [{"a": {"type": "int", "value": "5"}, "b": None}],
        ),
        (pa.struct([("a", pa.int32())]), [{"a": 1}, None]),
        (pa.large_list(pa.float64()), [[0.5], None, []]),
        (pa.binary(), [b"x", None]),
        (pa.timestamp("us"), [datetime(2027, 10, 31, 2, 30), None]),
        (pa.null(), [None, None]),
    ],
)
def test_other_values_are_what_they_were(kind: pa.DataType, values: list[Any]) -> None:
    given = [list(one.items()) if pa.types.is_map(kind) and one is not None else one for one in values]

    assert column(pa.array(given, kind)) == values


def test_a_batch_without_rows_has_none() -> None:
    assert column(pa.array([], pa.map_(pa.string(), TIME))) == []
    assert column(pa.array([], pa.struct([("a", TIME)]))) == []
