"""The garbage collector's policy for a process that holds a million long-lived objects.

A full collection with a million queued messages stops everything for 270 to 340 ms. Messages form no cycles, so looking
at them again and again finds nothing: they are frozen, and automatic full collections never happen. What does form cycles
(a closed connection, say) is either young enough for a young collection or found in the quiet, while there is little to walk.

For a process that is a broker only: the collector is global, so a broker inside somebody's test leaves it alone.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS_MAX: Final = 50_000
"""A young collection per this many net new containers: the few ms it takes are paid rarely."""
YOUNG_COLLECTIONS_MAX: Final = 20
NEVER_COLLECTIONS: Final = 1_000_000
FREEZE_AFTER_COLLECTIONS: Final = 4
"""Young collections between two freezes: 4 x 50,000 = 200,000 objects that have grown old."""
FULL_OBJECTS_MAX: Final = 100_000
"""With no more than this many frozen objects a full collection takes about 10 ms and is allowed."""
FULL_EVERY_TICKS: Final = 600


class CollectorPolicy:
    """Call ``recovering`` before recovery and ``recovered`` once after it, then ``tick`` about once a second."""

    def __init__(self) -> None:
        self._frozen_at = 0
        self._ticks = 0

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

    def tick(self) -> None:
        """Freeze what has grown old; look through everything when everything is little."""
        self._ticks += 1
        if _young_collections() - self._frozen_at >= FREEZE_AFTER_COLLECTIONS:
            gc.collect(1)
            gc.freeze()
            self._frozen_at = _young_collections()
        elif self._ticks % FULL_EVERY_TICKS == 0 and gc.get_freeze_count() <= FULL_OBJECTS_MAX:
            gc.unfreeze()
            gc.collect()
            gc.freeze()


def _young_collections() -> int:
    return int(gc.get_stats()[0]["collections"])
