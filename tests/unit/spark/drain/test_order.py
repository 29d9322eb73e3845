from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Int, Long
from pairbus.drain.azure_ports import AzureInbox
from pairbus.drain.ports import Delivery
from pairbus.sdk.browsing import Browsed
from pairbus.spark.drain.order import OrderedInbox, in_order


def shown(number: int, state: int = 0) -> Browsed:
    annotations: dict[str, object] = {
        "x-opt-sequence-number": Long(number),
        "x-opt-message-state": Int(state),
    }
    return Browsed.of(encode_message(message_annotations=annotations, body=b"", body_kind="data"))


def test_everything_older_in_hand_lets_all_go() -> None:
    assert in_order([shown(n) for n in (1, 2, 3, 4)], {1, 2}, [3, 4]) == 2


def test_an_older_message_in_other_hands_holds_back_what_is_younger() -> None:
    assert in_order([shown(n) for n in (1, 2, 3, 4)], set(), [1, 3, 4]) == 1
    assert in_order([shown(n) for n in (1, 2)], set(), [2]) == 0


def test_deferred_and_scheduled_messages_hold_nobody_back() -> None:
    assert in_order([shown(1, state=1), shown(2, state=2), shown(3)], set(), [3]) == 1


class Queue:
    """A backlog queue whose messages are shown whether or not they are locked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> None:
        self.numbers = numbers
        self.free = list(numbers)
        self.released: list[object] = []

        async def receive(_inbox: AzureInbox, count: int, _seconds: float) -> list[Delivery]:
            taken, self.free = self.free[:count], self.free[count:]
            return [
                Delivery(number, b"", 0, None, SimpleNamespace(sequence_number=number)) for number in taken
            ]

        async def release(_inbox: AzureInbox, tokens: list[object]) -> None:
            self.released += tokens

        async def nothing(_inbox: AzureInbox) -> None:
            return

        async def browse(_receiver: object, _start: int, count: int) -> list[Browsed]:
            return [shown(number) for number in self.numbers[:count]]

        monkeypatch.setattr(AzureInbox, "receive", receive)
        monkeypatch.setattr(AzureInbox, "release", release)
        monkeypatch.setattr(AzureInbox, "close", nothing)
        monkeypatch.setattr(AzureInbox, "_open", nothing)
        monkeypatch.setattr("pairbus.spark.drain.order.page_of", browse)
        client: Any = None
        self.inbox = OrderedInbox(client, "q", lambda: 0, lambda: 0)

    async def receive(self, count: int) -> list[int]:
        return [delivery.sequence_number for delivery in await self.inbox.receive(count, 1)]


@pytest.mark.promise("P14")
async def test_what_came_before_its_turn_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, [1, 2, 3, 4])
    queue.free = [1, 3, 4]

    assert await queue.receive(3) == [1]
    assert [token.sequence_number for token in queue.released] == [3, 4]  # type: ignore[attr-defined]


@pytest.mark.promise("P14")
async def test_messages_of_a_link_that_broke_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, [1, 2, 3])

    assert await queue.receive(1) == [1]
    assert await queue.receive(1) == [2], "1 is in our hands"
    await queue.inbox.close()
    assert await queue.receive(1) == [], "1 and 2 are still locked by the link that is gone"
