"""What the primary has acknowledged: a second copy of such a message is recognised, and not sent again. No clock, no I/O."""

from __future__ import annotations

from typing import Final

DELIVERED_MAX: Final = 50_000
"""How many delivered messages are remembered."""

Identity = tuple[str, int, int, str]


class Delivered:
    """The last ``DELIVERED_MAX`` messages that the primary has acknowledged."""

    def __init__(self) -> None:
        self._is_completed: dict[Identity, bool] = {}

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._is_completed

    def add(self, identity: Identity) -> None:
        """The primary has acknowledged a message."""
        self._is_completed[identity] = False
        while len(self._is_completed) > DELIVERED_MAX:
            del self._is_completed[next(iter(self._is_completed))]

    def is_repeat(self, identity: Identity) -> bool:
        """A message was completed in the backlog. Returns whether a copy of it was completed before."""
        is_repeat = self._is_completed.get(identity, False)
        if identity in self._is_completed:
            self._is_completed[identity] = True
        return is_repeat
