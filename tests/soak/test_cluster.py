"""The short form of ``make soak-cluster``, and its own checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.cluster import Soak, judge_hands
from tests.soak.kill_history import Event, Operation
from tests.soak.kill_load import LOCK_SECONDS, ORDERS, Actor, Receiver, Sender, Yard


@pytest.mark.promise("S3", "S5", "S6", "S7")
@pytest.mark.long
def test_owner_and_database_lost_in_the_same_second_lose_nothing(tmp_path: Path) -> None:
    soak = Soak(1, tmp_path)
    verdict = soak.run([(soak.kill_owner, soak.kill_primary)], _few)
    assert verdict.is_clean, verdict.summary()
    assert verdict.counts["sends acknowledged"]


def _few(yard: Yard) -> list[Actor]:
    return [
        Sender(yard, "sender", ORDERS, []),
        *(Receiver(yard, f"receiver{number}", ORDERS) for number in range(2)),
    ]


def _delivery(index: int, actor: str, at_ms: int = 0) -> Event:
    return Event(
        index=index, began=index, actor=actor, operation=Operation.DELIVERY, entity="q", uid="m", at_ms=at_ms
    )


def _of(operation: Operation, index: int, actor: str) -> Event:
    return Event(index=index, began=index, actor=actor, operation=operation, entity="q", uid="m")


def test_a_message_in_two_hands_is_caught() -> None:
    assert [one.promise for one in judge_hands([_delivery(1, "a"), _delivery(5, "b")])] == ["B25"]


@pytest.mark.parametrize(
    "between",
    [_of(Operation.ABANDON, 3, "a"), _of(Operation.KILL, 3, "strike")],
)
def test_a_message_that_was_given_up_may_come_to_another(between: Event) -> None:
    assert judge_hands([_delivery(1, "a"), between, _delivery(5, "b")]) == []


def test_a_lock_that_has_ended_holds_nothing() -> None:
    assert judge_hands([_delivery(1, "a"), _delivery(5, "b", at_ms=LOCK_SECONDS * 1000)]) == []
