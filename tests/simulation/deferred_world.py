"""Sessions in the backlog while an operator looks at its messages: some of those that he receives he defers, others he gives back.

The drains are those of ``OrderWorld``, mostly several of them on each queue.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pairbus.drain.lookups.deferred import LOOK_MS
from tests.simulation.drain_world import BAD_SECONDS
from tests.simulation.order_world import OrderWorld
from tests.simulation.pair.model import LOCK_MS

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

    async def _main(self) -> None:
        operators = [asyncio.ensure_future(self._operate(queue)) for queue in self.queues]
        await super()._main()
        await asyncio.gather(*operators)

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
