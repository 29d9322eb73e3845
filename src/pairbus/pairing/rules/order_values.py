"""The values that ``rules.order`` works with: what is known about a session in the backlog, and the order of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final

from pairbus.pairing.parking import Follows

ALL: Final = ""
"""In place of an entity: every entity."""
UNKNOWN: Final = ""
"""In place of a queue: those of a secondary that has not answered yet."""

Key = tuple[str, str]
"""An entity (``naming.entity_key``) and a session or partition key."""


class Route(Enum):
    """Where a send may go while its entity takes sends."""

    DIRECT = "direct"
    PARK = "park"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest message of a session in the backlog, as far as it was seen."""

    message_id: str
    queue: str
    first_send_ms: int
    """When its send began, as a time of day."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One parked message that a look has shown."""

    key: Key
    message_id: str
    factory: str
    detour: int
    first_send_ms: int


@dataclass(slots=True)
class Fence:
    """What a session, or a queue that is unseen, has in common: since when it stands, and what became of it."""

    since_ms: int | None
    """Since when sends go to the backlog although the entity takes sends; None while it is failed over."""
    is_timed_out: bool = False
    is_overtaken: bool = False

    def begin(self, now: int | None) -> None:
        self.since_ms = now
        self.is_timed_out = self.is_overtaken = False

    def is_due(self, now: int, timeout_ms: int) -> bool:
        return not self.is_timed_out and self.since_ms is not None and now - self.since_ms >= timeout_ms


@dataclass(slots=True)
class Track:
    """A session with messages in the backlog."""

    queue: str
    """Where its next message goes."""
    fence: Fence
    held: dict[str, Follows] = field(default_factory=dict)
    """Every queue that may hold messages of it, and the last one that is known there."""
    stamps: dict[str, int] = field(default_factory=dict)
    """When a message of it was last accepted by each of them."""
    owed: dict[str, Follows] = field(default_factory=dict)
    """What messages in ``queue`` must follow; empty once one that says so is accepted."""
    generation: int = 0
    """Changes with ``owed``: a message that was parked before says less than it should."""
    oldest: dict[str, Oldest] = field(default_factory=dict)
    looked: int = 0
    """The stamp of the last look that has shown a message of it."""
    held_until_ms: int = 0
    """Until when its sends wait for its last parked messages."""
    next_hold_ms: int = 0
    has_lost: bool = False
    """Whether a queue that may have held messages of it was deleted: not all of them arrive."""


@dataclass(slots=True)
class Unseen:
    """A queue of which it is not known whether it holds messages of an entity's sessions."""

    fence: Fence
    stamp: int
    follows_others: bool = True
    """Whether messages that others have parked there go before ours: those of a client before this one, or of one that took its spool."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One message of a send on its way into a queue."""

    index: int
    key: str | None
    follows: tuple[Follows, ...] = ()
    generation: int = 0
    held: tuple[Follows, ...] = ()
    """What its session has in other queues, whether it needs to say so or not."""


@dataclass(slots=True)
class Look:
    """A look into one queue, from its first message on."""

    queue: str
    stamp: int
    met: dict[Key, tuple[Seen, Seen]] = field(default_factory=dict)
    """The first and the last message of each session."""
    counts: dict[Key, int] = field(default_factory=dict)
    """How many messages of each."""
    foreign: dict[Key, int] = field(default_factory=dict)
    """Sessions with messages that other clients have parked, and when the newest of those was sent."""
    is_complete: bool = False

    def saw(self, seen: Seen, own: str) -> None:
        """A message was shown. ``own``: the name of this client."""
        first = self.met.get(seen.key)
        self.met[seen.key] = (seen if first is None else first[0], seen)
        self.counts[seen.key] = self.counts.get(seen.key, 0) + 1
        if seen.factory != own:
            self.foreign[seen.key] = max(self.foreign.get(seen.key, 0), seen.first_send_ms)


@dataclass(frozen=True, slots=True)
class Report:
    """What a look, or the time, has changed. Sessions by entity and name."""

    lifted: list[Key]
    """Sessions of which no message is left in the backlog: all have arrived, unless somebody took some out."""
    lost: list[Key]
    """Likewise, but a queue with messages of theirs was deleted: some may never arrive."""
    fenced: list[Key]
    crossed: list[Key]
    """Sessions that another client has parked while this one sent them to the primary: their order is not known."""


def earlier(
    follows: Iterable[Follows], factory: str, detour: int, held: Iterable[Follows] = ()
) -> tuple[Follows, ...]:
    """What a message with this number follows: of its own client only messages with lower numbers.

    A send that returned before has lower numbers. Two messages whose sends overlap could wait for each other otherwise.
    A message that does not follow a later one of its own client cannot rely on what that one is behind, in its queue or by what
    it follows itself. So it follows what others have there, and what the session has in all other queues (``held``).
    """
    given = tuple(follows)
    if not any(_is_later(one, factory, detour) for one in given):
        return given
    return tuple(
        said
        for one in dict.fromkeys((*given, *held))
        for said in (
            (Follows(one.queue, factory, detour - 1), Follows(one.queue))
            if _is_later(one, factory, detour)
            else (one,)
        )
    )


def _is_later(one: Follows, factory: str, detour: int) -> bool:
    return one.factory == factory and one.detour >= detour


def queue_order(key: Key, queues: Sequence[str]) -> list[str]:
    """The backlog queues in the order in which a session uses them: the same in every process.

    The first is the session's own. When a queue is missing, only its own sessions go elsewhere.
    """
    seed = f"{key[0]}\n{key[1]}\n".encode()
    return sorted(
        queues, key=lambda queue: (blake2b(seed + queue.lower().encode(), digest_size=8).digest(), queue)
    )
