"""The messages that a drain holds for one destination. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from pairbus.drain.message import BacklogMessage


@dataclass(slots=True, eq=False)
class DestinationQueue:
    """The messages for one destination, oldest first."""

    path: str
    waiting: list[BacklogMessage] = field(default_factory=list)
    in_flight: list[BacklogMessage] = field(default_factory=list)
    in_flight_since_ms: int = 0
    is_unavailable: bool = False
    """Whether the last send failed for a temporary reason."""
    retry_ms: int = 0
    attempts: int = 0
    was_skipped: bool = False
    """Whether messages for it were skipped since it last accepted one."""

    def __iter__(self) -> Iterator[BacklogMessage]:
        return chain(self.waiting, self.in_flight)

    def blocked(self, waits: Callable[[BacklogMessage], bool]) -> Iterator[BacklogMessage]:
        """The messages that cannot be sent for their order: those that wait, and the younger ones of their sessions."""
        stopped: set[tuple[str, str | None]] = set()
        for message in self.waiting:
            if message.is_ordered and ((stopped and message.session in stopped) or waits(message)):
                stopped.add(message.session)
                yield message
