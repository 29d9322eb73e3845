"""What deleted entities held is freed a part at a time: a queue of a million messages takes a sixth of a second (B63)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.engine.queues.state import QueueState

DISCARD_BURST_MAX: Final = 5_000
"""Messages freed in one tick: one or two milliseconds."""


class Discard:
    """Places of deleted entities that are not empty yet."""

    __slots__ = ("_burst_max", "_places")

    def __init__(self, burst_max: int = DISCARD_BURST_MAX) -> None:
        self._burst_max = burst_max
        self._places: list[QueueState] = []

    @property
    def is_empty(self) -> bool:
        return not self._places

    def add(self, place: QueueState) -> None:
        """Free what a deleted place holds: at once if it is little."""
        if place.drop(self._burst_max):
            self._places.append(place)

    def tick(self) -> None:
        """Free the next part."""
        if self._places and not self._places[-1].drop(self._burst_max):
            self._places.pop()

    def finish(self) -> None:
        """Free everything: nobody waits yet."""
        while self._places:
            self.tick()
