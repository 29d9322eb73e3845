"""Settling at the end of a batch: what is completed of the messages that were locked for it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.sdk.links import settling as sdk_settling
from pairbus.spark.connector import entity
from pairbus.spark.connector.offsets import mark_of

LAST_MS = 5_000


class FakeReceiver:
    """Gives one page, then nothing; remembers what was completed and what was given back."""

    def __init__(self, page: list[Any]) -> None:
        self._pages = [page]
        self.completed: list[int] = []
        self.released: list[int] = []

    async def receive_messages(self, **_options: object) -> list[Any]:
        return self._pages.pop() if self._pages else []

    async def settle_all(self, messages: Sequence[Any], *, released: bool = False) -> list[bool]:
        (self.released if released else self.completed).extend(one.sequence_number for one in messages)
        return [True] * len(messages)


def locked(number: int, enqueued_ms: int) -> Any:
    raw = SimpleNamespace(
        annotations={b"x-opt-enqueued-time": enqueued_ms},
        properties=SimpleNamespace(message_id=f"m{number}".encode()),
    )
    return SimpleNamespace(sequence_number=number, raw_amqp_message=raw)


async def settled(monkeypatch: pytest.MonkeyPatch, page: list[Any]) -> tuple[FakeReceiver, Any]:
    """Settle a batch that had seen the messages 1 to 3, each enqueued at its number in seconds."""
    receiver = FakeReceiver(page)
    monkeypatch.setattr(sdk_settling, "settle_all", FakeReceiver.settle_all)
    due = {number: mark_of(number * 1_000, f"m{number}".encode()) for number in (1, 2, 3)}
    settling = entity._Settling(due, LAST_MS)
    await entity._complete(receiver, settling, len(due))
    return receiver, settling


async def test_the_messages_of_the_batch_are_completed_and_others_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = [locked(1, 1_000), locked(9, 4_000), locked(2, 2_000), locked(3, 3_000)]
    receiver, settling = await settled(monkeypatch, page)

    assert (receiver.completed, receiver.released) == ([1, 2, 3], [9])
    assert (settling.left, settling.foreign) == (set(), [])


@pytest.mark.parametrize("foreign", [locked(2, LAST_MS + 1), locked(2, 2_001)])
async def test_one_foreign_message_among_those_of_the_batch_keeps_all_of_them(
    monkeypatch: pytest.MonkeyPatch, foreign: Any
) -> None:
    receiver, settling = await settled(monkeypatch, [locked(1, 1_000), foreign, locked(3, 3_000)])

    assert receiver.completed == []
    assert sorted(receiver.released) == [1, 2, 3]
    assert (settling.left, settling.foreign) == ({1, 2, 3}, [2])
