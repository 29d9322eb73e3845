"""A backlog queue that delivers each message only after every older one: for drains that keep the order of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from pairbus.drain.azure_ports import AzureInbox
from pairbus.drain.plan import BacklogMessage
from pairbus.drain.ports import Delivery, LockLost
from pairbus.sdk.browsing import Browsed, page_of

RETRY_SECONDS: Final = 0.5


class OrderedInbox(AzureInbox):
    """One backlog queue, in order: releases what came before its turn, because another receiver has an older message.

    That receiver may be a task that died; its locks lapse.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held: set[int] = set()

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        # While messages are there and none is at its turn, this waits beyond ``seconds``: the queue is not empty.
        while deliveries := await super().receive(count, seconds):
            numbers = [delivery.sequence_number for delivery in deliveries]
            browsed = await page_of(await self._open(), 1, len(self._held) + len(numbers) + 1)
            turn = in_order(browsed, self._held, numbers)
            if turn < len(numbers):
                await super().release([delivery.token for delivery in deliveries[turn:]])
            if turn:
                self._held.update(numbers[:turn])
                return deliveries[:turn]
            await asyncio.sleep(RETRY_SECONDS)
            if self._is_interrupted:
                break
        return []

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        self._held.difference_update(message.sequence_number for message in messages)
        return await super().complete(messages)

    async def dead_letter(self, token: Any, reason: str, description: str) -> None:
        self._held.discard(int(token.sequence_number))
        await super().dead_letter(token, reason, description)

    async def release(self, tokens: Sequence[Any]) -> None:
        self._held.difference_update(int(token.sequence_number) for token in tokens)
        await super().release(tokens)

    async def renew(self, message: BacklogMessage) -> int:
        try:
            return await super().renew(message)
        except LockLost:
            self._held.discard(message.sequence_number)
            raise

    async def close(self) -> None:
        # The locks go with the link: until they lapse, another receiver may as well hold these messages.
        self._held.clear()
        await super().close()


def in_order(browsed: Sequence[Browsed], mine: Collection[int], numbers: Sequence[int]) -> int:
    """How many of ``numbers``, from the first on, have every older message of their queue held by this drain.

    Args:
        browsed: The head of the queue; browsing shows locked messages too.
        mine: Sequence numbers that this drain holds already.
        numbers: The sequence numbers just locked, ascending.
    """
    held = {*mine, *numbers}
    foreign = [one.sequence_number for one in browsed if one.is_active and one.sequence_number not in held]
    barrier = min(foreign, default=None)
    return len(numbers) if barrier is None else sum(1 for number in numbers if number < barrier)
