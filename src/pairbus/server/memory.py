"""The garbage collector's policy for a process that holds a million long-lived objects.

A full collection with a million queued messages stops everything for 270 to 340 ms. Messages form no cycles, so looking
at them again and again finds nothing: they are frozen, and automatic full collections never happen. Connections that end
form none either: they undo their references back, and reference counting gives their memory back at once. So the collector
is there for what is left, such as exceptions with their tracebacks. It has three rules:

- Young objects are collected as usual, only less often.
- Before objects are frozen, everything that is not frozen is collected, whatever its age. Nothing is frozen as garbage.
- Frozen objects can become garbage later. They are thawed and collected in full every ten minutes while there are few, which
  is quick. With a million messages among them they are collected only if there are many more of them than the messages explain:
  that may be garbage. So messages cause no pause, and a client that makes the process keep garbage does not switch the collector off.

For a process that is a broker only: the collector is global, so a broker inside a test leaves it alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from pairbus.server.clock import elapsed_ns

YOUNG_OBJECTS_MAX: Final = 50_000
"""A young collection per this many net new containers: the few ms it takes are paid rarely."""
YOUNG_COLLECTIONS_MAX: Final = 20
NEVER_COLLECTIONS: Final = 1_000_000
FREEZE_AFTER_COLLECTIONS: Final = 2
"""Young collections between two freezes: 2 x 50,000 = 100,000 objects that have grown old, 15 ms to look at once more."""
FULL_EVERY_TICKS: Final = 600
"""Ticks between two full collections, at least."""
QUICK_OBJECTS_MAX: Final = 100_000
"""Frozen objects up to which a full collection is quick: about 30 ms."""
GARBAGE_OBJECTS_MAX: Final = 100_000
"""With more frozen objects than that: as many more than are explained since the last full collection lead to the next one."""
FULL_SHARE: Final = 1_000
"""A full collection that took one tick is repeated after this many."""
TICK_NS: Final = 1_000_000_000


def _none() -> int:
    return 0


class CollectorPolicy:
    """Call ``recovering`` before recovery and ``recovered`` once after it, then ``tick`` about once a second.

    Args:
        held_objects: About how many objects are known to be in use, such as those of stored messages.
    """

    def __init__(
        self, clock: Callable[[], int] = elapsed_ns, held_objects: Callable[[], int] = _none
    ) -> None:
        self._clock = clock
        self._held_objects = held_objects
        self._explained = 0
        """Frozen objects beyond those held after the last full collection, or fewer if there were fewer since."""
        self._frozen_at = 0
        self._ticks = 0
        self._full_at = FULL_EVERY_TICKS

    def recovering(self) -> None:
        """What comes now is a million objects and no garbage: not to be looked at again and again."""
        gc.collect()
        gc.disable()

    def gave_up(self) -> None:
        """There was no recovery."""
        gc.enable()

    def recovered(self) -> None:
        """Everything alive now will live long."""
        gc.freeze()
        gc.enable()
        gc.set_threshold(YOUNG_OBJECTS_MAX, YOUNG_COLLECTIONS_MAX, NEVER_COLLECTIONS)
        self._frozen_at = _young_collections()
        self._explained = gc.get_freeze_count() - self._held_objects()

    def tick(self) -> None:
        """Freeze what has grown old; now and then look through everything."""
        self._ticks += 1
        if self._ticks >= self._full_at:
            ticks = self._collect_in_full() if self._is_worth_it() else 0
            self._full_at = self._ticks + max(FULL_EVERY_TICKS, ticks)
        elif _young_collections() - self._frozen_at >= FREEZE_AFTER_COLLECTIONS:
            self.collect()

    def _is_worth_it(self) -> bool:
        """Whether a full collection is quick, or may find much."""
        frozen = gc.get_freeze_count()
        unexplained = frozen - self._held_objects()
        if frozen <= QUICK_OBJECTS_MAX or unexplained >= self._explained + GARBAGE_OBJECTS_MAX:
            return True
        self._explained = min(self._explained, unexplained)
        return False

    def _collect_in_full(self) -> int:
        """Thaw and collect everything; how many ticks have to pass before the next time."""
        started = self._clock()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._frozen_at = _young_collections()
        ticks = (self._clock() - started) * FULL_SHARE // TICK_NS
        self._explained = gc.get_freeze_count() - self._held_objects()
        return ticks

    def collect(self) -> None:
        """Collect everything that is not frozen, and freeze the rest."""
        gc.collect()
        gc.freeze()
        self._frozen_at = _young_collections()


def _young_collections() -> int:
    return int(gc.get_stats()[0]["collections"])
