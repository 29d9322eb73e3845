"""Counts every billable operation where it happens: by entity and kind, with bytes and 64 KB units (D6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.amqp.sections import Scanned
    from pairbus.model.message import Message

UNIT_BYTES: Final = 65_536
"""An operation is billed for every 64 KB begun."""


class Tally:
    """One entity's count of one kind of operation."""

    __slots__ = ("count", "size", "units")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.units = 0

    def add(self, size: int) -> None:
        """One operation of this many bytes."""
        self.count += 1
        self.size += size
        self.units += 1 if size <= UNIT_BYTES else -(-size // UNIT_BYTES)


class Meter:
    """All tallies since they were last taken."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], Tally] = {}

    def _tally(self, path: str, operation: str) -> Tally:
        tally = self._tallies.get((path, operation))
        if tally is None:
            tally = self._tallies[(path, operation)] = Tally()
        return tally

    def sent(self, path: str, message: Scanned) -> None:
        """A message was accepted; a ping is billed like any message."""
        self._tally(path, "ping" if message.is_ping else "send").add(len(message.blob))

    def received(self, path: str, message: Message) -> None:
        """A message was delivered."""
        self._tally(path, "receive").add(message.size)

    def emptied(self, path: str) -> None:
        """A receive ended with nothing."""
        self._tally(path, "empty_receive").add(0)

    def settled(self, path: str, code: int) -> None:  # noqa: ARG002 - every outcome is one operation
        """A receiver settled a delivery."""
        self._tally(path, "settle").add(0)

    def peeked(self, path: str, messages: list[Message]) -> None:
        """One peek, however many messages it showed."""
        self._tally(path, "peek").add(sum(message.size for message in messages))

    def renewed(self, path: str, count: int) -> None:
        """Locks were renewed."""
        for _ in range(count):
            self._tally(path, "renew").add(0)

    def managed(self, path: str, operation: str) -> None:
        """A management request that is not counted under a name of its own."""
        if operation not in ("renew-lock", "renew-session-lock", "peek-message", "receive-by-sequence-number"):
            self._tally(path, "management").add(0)

    def take(self) -> dict[tuple[str, str], Tally]:
        """What was counted since the last time, and begin anew."""
        taken, self._tallies = self._tallies, {}
        return taken
