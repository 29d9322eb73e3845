"""Sessions in the backlog while an operator looks at its messages: some of those that he receives he defers, others he gives back.

The drains are those of ``OrderWorld``, mostly several of them on each queue.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pairbus.drain.lookups.deferred import LOOK_MS
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from tests.simulation.drain_world import BAD_SECONDS, MESSAGES
from tests.simulation.order_world import OrderWorld
from tests.simulation.pair.model import LOCK_MS, original

HELD_SECONDS: Final = 20
"""The longest time for which the operator keeps messages before he decides: less than their locks last."""


class DeferredWorld(OrderWorld):
    """One seed: what the operator takes, and what he does with it."""

    calm_seconds = 2 * LOOK_MS // 1000

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.drains = self.dice.choice([1, 2, 2, 3])
        self.pause_seconds = self.dice.choice([0.5, 5.0, 30.0])
        self.deferred = 0
        self._has_parked_more = False

    async def _main(self) -> None:
        operators = [asyncio.ensure_future(self._operate(queue)) for queue in self.queues]
        await super()._main()
        await asyncio.gather(*operators)

    def parks_more(self) -> bool:
        """No drain knows of the last messages of a queue that were deferred before any drain received one of them."""
        left = [
            (queue, stored)
            for queue in self.queues
            for stored in self.secondary.queue(queue).messages.values()
        ]
        is_unknown = all(
            stored.is_deferred and stored.number > self.received_to[queue] for queue, stored in left
        )
        if self._has_parked_more or not is_unknown:
            return False
        self._has_parked_more = True
        for number, queue in enumerate(self.queues, MESSAGES):
            sent = original(number, None, has_alias_name=False, has_life=False)
            parked = parking.park(sent, "orders", Passport("f", 1, number + 1, "r"))
            self.secondary.queue(queue).send([parked], self.now())
        return True

    async def _operate(self, queue: str) -> None:
        model = self.secondary.queue(queue)
        while self.now() < BAD_SECONDS * 1000 - LOCK_MS:
            await asyncio.sleep(self.dice.uniform(0, self.pause_seconds))
            taken = model.receive(self.dice.choice([1, 3, 10]), self.now())
            await asyncio.sleep(self.dice.choice([0.0, 0.5, HELD_SECONDS]) * self.dice.random())
            for stored, lock in self.dice.sample(taken, len(taken)):
                await asyncio.sleep(self.dice.choice([0.0, 0.3]) * self.dice.random())
                is_deferred = self.dice.random() < 0.5
                self.deferred += is_deferred
                model.unlock(stored.number, lock, deferred=is_deferred)
