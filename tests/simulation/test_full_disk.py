"""A disk that stays full: garbage among the messages that live comes back as room, and the power may go at any time (B12)."""

from __future__ import annotations

import random
from typing import Final

import pytest

from pairbus.engine.records import MessageRemoved
from pairbus.storage.log.store import LogStore
from tests.contract.owner_kit import QUEUE, Owner
from tests.simulation.disk import SimulatedDisk
from tests.simulation.seeds import seeds

CYCLES: Final = 6
SLICES_MAX: Final = 2_000
"""Steps of housekeeping after which it must have ended: it may not move the same messages for ever."""


class FullDisk:
    """One seed's history of a small disk."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.segment_bytes = self.chance.choice((4_096, 8_192))
        self.reserve_bytes = self.segment_bytes // 2
        self.size_max = self.segment_bytes // self.chance.choice((4, 10, 40))
        self.disk = SimulatedDisk(capacity_bytes=self.segment_bytes * self.chance.randrange(14, 40))
        self.owner = self._opened()
        self.recovered = 0

    def _opened(self) -> Owner:
        store = LogStore.open(
            "simulated",
            segment_bytes=self.segment_bytes,
            reserve_bytes=self.reserve_bytes,
            file_system=self.disk,
            make_marker=lambda: self.chance.randbytes(8),
            is_background=False,
        )
        return Owner(store, store.replay())

    def run(self) -> None:
        for _ in range(CYCLES):
            self._fill()
            self._settle(self.chance.uniform(0.3, 0.7))
            if self.chance.random() < 0.4:
                self._lose_power()
            self._keep_house()
            self._check_room()
        self._lose_power()

    def _fill(self) -> None:
        refused = 0
        while refused < 4:
            refused += not self.owner.send_until_refused(self.chance.randint(40, self.size_max), 3)

    def _settle(self, share: float) -> None:
        """Here and there, so that no segment dies of itself."""
        owner = self.owner
        for number in [number for number in owner.messages if self.chance.random() < share]:
            message = owner.messages.pop(number)
            owner.store.append(MessageRemoved(QUEUE, number, message.location, message.size))
            if self.chance.random() < 0.3:
                owner.keep_house(1)
        owner.commit()

    def _keep_house(self) -> None:
        power_goes_at = self.chance.randrange(60)
        for step in range(SLICES_MAX):
            records = self.owner.store.restate(self.chance.choice((5, 50)))
            for record in records:
                self.owner.restate(record)
            if step == power_goes_at:
                self._lose_power()
            elif not self.owner.commit() and not records:
                return
        raise AssertionError(f"housekeeping does not end: {self.owner.store.statistics()}")

    def _check_room(self) -> None:
        store = self.owner.store
        found = store.statistics()
        assert store.has_room(self.size_max), f"sends are still refused: {found}"
        self.recovered += 1

    def _lose_power(self) -> None:
        known = {number: message.size for number, message in self.owner.messages.items()}
        self.disk = self.disk.crashed(self.chance)
        self.owner = self._opened()
        assert {number: one.size for number, one in self.owner.messages.items()} == known
        for message in self.owner.messages.values():
            assert self.owner.store.read(message.location, message.size) == b"x" * message.size


@pytest.mark.promise("B1", "B12")
@pytest.mark.parametrize("seed", seeds(40))
def test_garbage_on_a_full_disk_comes_back_as_room(seed: int) -> None:
    world = FullDisk(seed)
    world.run()
    assert world.recovered == CYCLES
