"""Values as text, and back."""

from __future__ import annotations

import math

import pytest

from pairbus.amqp.types import Decimal32, Symbol, Timestamp, Uuid
from pairbus.engine.rules.message_view import MISSING, MappingView
from pairbus.engine.rules.sql.declared import declared
from pairbus.engine.rules.sql.nodes import Condition, Evaluation, Expression
from pairbus.engine.rules.sql.text import (
    INSTANT_MS_MAX,
    INSTANT_MS_MIN,
    duration_ms_from,
    duration_text,
    instant_ms_from,
    instant_text,
    number_text,
    uuid_octets_from,
)
from pairbus.engine.rules.sql.values import Duration, described


@pytest.mark.parametrize("ms", [0, 1, -1, 999, 1_593_947_533_123, INSTANT_MS_MIN, INSTANT_MS_MAX])
def test_instants_survive_text(ms: int) -> None:
    assert instant_ms_from(instant_text(ms)) == ms


def test_instants_beyond_the_calendar_are_numbers() -> None:
    assert instant_text(INSTANT_MS_MAX + 1) == str(INSTANT_MS_MAX + 1)
    assert instant_text(INSTANT_MS_MIN) == "0001-01-01T00:00:00.000Z"


@pytest.mark.parametrize("ms", [0, 1, 999, 1000, 60_000, 3_600_000, 86_400_000, 90_061_001, -5, 10**15])
def test_durations_survive_text(ms: int) -> None:
    assert duration_ms_from(duration_text(ms)) == ms


def test_durations_are_written_short() -> None:
    assert [duration_text(ms) for ms in (0, 500, 60_000, 86_400_000)] == ["PT0S", "PT0.5S", "PT1M", "P1D"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1"), (1.0, "1"), (-0.5, "-0.5"), (1e15, "1000000000000000.0"), (math.inf, "inf")],
)
def test_numbers_are_written_short(number: float, text: str) -> None:
    assert number_text(number) == text


def test_uuids_survive_text() -> None:
    octets = bytes(range(16))

    assert uuid_octets_from(str(Uuid(octets))) == octets
    assert uuid_octets_from(str(Uuid(octets))[1:]) is None


def test_values_are_described_for_errors() -> None:
    values: list[object] = [None, True, Symbol("s"), b"x", Timestamp(0), Decimal32(b""), Uuid(bytes(16))]

    assert [described(value) for value in values] == [
        "null",
        "boolean True",
        "string 's'",
        "binary",
        "instant 1970-01-01T00:00:00.000Z",
        "a value of type Decimal32",
        "uuid 00000000-0000-0000-0000-000000000000",
    ]
    assert repr(MISSING) == "MISSING"
    assert {Duration(5): 1}[Duration(5)] == 1
    assert {declared("int", "5"): 1}[declared("int", "5")] == 1


def test_nodes_without_a_meaning_say_so() -> None:
    evaluation = Evaluation(MappingView({}))
    with pytest.raises(NotImplementedError):
        Expression().value(evaluation)
    with pytest.raises(NotImplementedError):
        Condition().truth(evaluation)
