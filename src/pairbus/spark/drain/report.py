"""What a Spark drain did, is doing and could not do. Pure values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from pairbus.spark.drain.rows import LOCK_LOST, MOVED, SET_ASIDE, WAITING

EXIT_DELETED: Final = 3
REASONS_MAX: Final = 100
"""Different reasons kept for people; everything is in the ledger."""


@dataclass(frozen=True, slots=True)
class Count:
    """Messages of one slice with the same outcome."""

    queue: str
    destination: str
    outcome: str
    messages: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One line for a person who watches, or for a program."""

    moved: int
    left: int | None
    rate_per_s: float
    set_aside: int
    waiting: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate."""
        return None if self.left is None or self.rate_per_s <= 0 else self.left / self.rate_per_s

    def line(self) -> str:
        left = "some" if self.left is None else f"{self.left:,}"
        eta = self.seconds_left
        parts = [f"{self.moved:,} delivered", f"{self.rate_per_s:,.0f}/s", f"{left} left"]
        if eta is not None and self.left:
            parts.append(f"about {eta:,.0f} s to go")
        if self.set_aside:
            parts.append(f"{self.set_aside:,} dead-lettered")
        parts += [
            f"{destination} is unavailable ({reason})"
            for destination, reason in sorted(self.waiting.items())[:3]
        ]
        return ", ".join(parts)


@dataclass(slots=True)
class Report:
    """What a run delivered and what it could not."""

    moved: int = 0
    possible_repeats: int = 0
    """Moved, but their locks had ended before they were completed, so they may be delivered a second time."""
    set_aside: dict[str, int] = field(default_factory=dict)
    """How many, by reason: they are in the dead-letter queues of their backlog queues."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Destinations that were unavailable at the end, and why."""
    left: dict[str, int | None] = field(default_factory=dict)
    """Backlog queues that still hold messages; None where the number is not known."""
    extra: dict[str, int | None] = field(default_factory=dict)
    """Backlog queues beyond the count: not drained unless asked for."""
    deleted: list[str] = field(default_factory=list)
    """Backlog queues that somebody had deleted before, so that nobody knows whether their messages were delivered."""
    vanished: list[str] = field(default_factory=list)
    """Backlog queues that somebody deleted while they were drained."""
    slices: int = 0
    failed_slices: int = 0
    seconds: float = 0.0
    ledger: str = ""

    def add(self, counts: Iterable[Count]) -> None:
        self.waiting = {}
        for count in counts:
            if count.outcome in (MOVED, LOCK_LOST):
                self.moved += count.messages
            if count.outcome == LOCK_LOST:
                self.possible_repeats += count.messages
            elif count.outcome == SET_ASIDE:
                reason = count.reason.split(":", 1)[0]
                if reason in self.set_aside or len(self.set_aside) < REASONS_MAX:
                    self.set_aside[reason] = self.set_aside.get(reason, 0) + count.messages
            elif count.outcome == WAITING and len(self.waiting) < REASONS_MAX:
                if count.reason != TIME_IS_UP:
                    self.waiting[count.destination or count.queue] = count.reason

    @property
    def exit_code(self) -> int:
        """0: everything is delivered. 1: something could not be delivered. 3: a backlog queue was deleted."""
        if self.deleted or self.vanished:
            return EXIT_DELETED
        return 1 if self.set_aside or self.left else 0

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "seconds": round(self.seconds, 3), "exit_code": self.exit_code}


TIME_IS_UP: Final = "time is up"
"""Why a message that nothing was wrong with was released."""
