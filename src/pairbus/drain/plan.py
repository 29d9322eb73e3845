"""What a syphon does with the messages it holds: which to send, when to try again, which to set aside. No clock, no I/O.

A *message* is a locked backlog message with its restored form. Messages wait in the line of their destination; each
line has at most one batch in flight, so that its order is kept (P14), and knows by itself whether its destination is
away. The shells report what happened and ask what is next; the simulation does the same.

Rule 1: a message is only ever completed after the primary acknowledged it (P34): ``sent`` says so, or ``found_delivered``
        when an earlier run's copy was found at the destination.
Rule 2: nothing is set aside because something is temporarily wrong (P38).
Rule 3: at most ``window`` messages are held per backlog queue, half of them for destinations that stand still;
        nothing here grows without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pairbus.drain.restoring import EXPIRED
from pairbus.drain.skip_list import SkipList
from pairbus.pairing.naming import TRANSFER_SEGMENT, entity_key
from pairbus.pairing.parking import PATH_CHARACTERS_MAX
from pairbus.sdk.failures import Failure

POLL_SECONDS: Final = 900
"""The long poll of an idle backlog queue: four an hour."""
WINDOW: Final = 1_000
"""How many messages one backlog queue may have locked at a time."""
READY_MAX: Final = 300
"""How many of them may wait for destinations that are not away: enough to keep sends going while more is received."""
BATCH_MESSAGES: Final = 100
BATCH_BYTES: Final = 200_000
"""Well below the standard tier's 256 KB, so that envelopes and estimates never matter."""
BACKOFF_MS_MIN: Final = 250
BACKOFF_MS_MAX: Final = 5_000
"""A destination that is back is noticed within this."""
THROTTLED_MS: Final = 10_000
RENEW_BEFORE_MS: Final = 30_000
"""Locks are renewed when this much of them is left; short ones at their half."""
LOCK_MS_DEFAULT: Final = 60_000
SLOW_MS: Final = 5_000
"""A destination that has not answered for this long stands still like one that is away."""
OTHERS_MS: Final = 60_000
"""How long a destination that took something, or was seen behind, counts as one that messages are held up for."""
LOOK_MS: Final = 30_000
"""How often a queue that is full of messages that stand still is browsed for others behind them."""
SEEN_MAX: Final = 1_000

DESTINATION_NOT_FOUND: Final = "DestinationNotFound"
TOO_LARGE: Final = "TooLargeForDestination"
REFUSED: Final = "RefusedByDestination"
FORBIDDEN_PATH: Final = "ForbiddenPath"

_NEVER_IN_NAMES: Final = "%@?#*\\"
"""No entity has these characters in its name. An address with them means another entity, or none, depending on who
decodes it: ``a%2fb`` would be refused for ever."""

NotFoundPolicy = Literal["dead-letter", "wait"]

_TEMPORARY: Final = frozenset(
    {
        Failure.TIMEOUT,
        Failure.CONNECTION,
        Failure.INTERNAL,
        Failure.DISABLED,
        Failure.QUOTA,
        Failure.BUSY,
        Failure.UNAUTHORIZED,
        Failure.CANCELLED,
        Failure.CLIENT,
    }
)


@dataclass(slots=True, eq=False)
class BacklogMessage:
    """One locked backlog message on its way home."""

    queue: str
    sequence_number: int
    path: str
    payload: bytes
    message_id: str
    session_id: str | None
    partition_key: str | None
    locked_until_ms: int
    is_alone: bool = False
    """To be sent by itself, because a batch with it was refused."""
    is_in_flight: bool = False
    token: object = None
    """What the shell needs to settle it."""
    lock_ms: int = LOCK_MS_DEFAULT
    """How long its queue's locks last."""
    enqueued_ms: int | None = None
    """When it came into the backlog."""
    detour: tuple[str, int, int] | None = None
    """Factory, number and time of its parking: what no other message has. None: written by the retired SDK."""
    parked: bytes | None = None
    """As it was received, when its life is limited and must be reckoned anew at the moment of sending."""
    restored_ms: int = 0
    """When its payload was restored, on the steady clock."""
    in_doubt_since_ms: int | None = None
    """The ledger has an earlier send of it without an answer, made at this time on the steady clock (0: by an earlier
    run): the destination is asked before it is sent again. None: it was never sent."""

    @property
    def identity(self) -> tuple[str, int, int, str]:
        """Equal for two deliveries or copies of one parked message, and different for two messages.

        A message with a passport may have copies in several backlog queues. A message of the retired SDK has no
        passport: its place in its backlog queue identifies it, with the time it came there, because a queue that was
        deleted and made again counts its sequence numbers from the start.
        """
        if self.detour is not None:
            return (*self.detour, self.message_id)
        return (f"{self.queue}\n", self.sequence_number, self.enqueued_ms or 0, self.message_id)

    @property
    def renew_at_ms(self) -> int:
        """When its lock should be renewed."""
        return self.locked_until_ms - min(RENEW_BEFORE_MS, self.lock_ms // 2)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Move a message to its queue's dead-letter queue."""

    message: BacklogMessage
    reason: str
    description: str


class Line:
    """The messages for one destination, oldest first."""

    __slots__ = (
        "attempts",
        "away_since_ms",
        "flying",
        "flying_since_ms",
        "messages",
        "path",
        "retry_ms",
        "was_skipped",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self.messages: list[BacklogMessage] = []
        self.flying: list[BacklogMessage] = []
        self.flying_since_ms = 0
        self.away_since_ms: int | None = None
        self.retry_ms = 0
        self.attempts = 0
        self.was_skipped = False

    @property
    def is_away(self) -> bool:
        """Whether the last send failed for a reason that may pass."""
        return self.away_since_ms is not None


class DrainPlan:
    """The messages of one syphon.

    Args:
        not_found: What to do when a destination does not exist.
        is_blocked: Whether the factory of this process holds an entity for failed over: then only its pings go
            there (P21).
        window: How many messages a backlog queue may have locked.
    """

    def __init__(
        self,
        *,
        not_found: NotFoundPolicy = "dead-letter",
        is_blocked: Callable[[str], bool] = lambda path: False,  # noqa: ARG005 - nobody blocks unless told
        window: int = WINDOW,
        ready_max: int = READY_MAX,
    ) -> None:
        self._not_found = not_found
        self._is_blocked = is_blocked
        self._window = window
        self._ready_max = min(ready_max, window)
        self._half = max(1, window // 2)
        self._lines: dict[str, Line] = {}
        self._held: dict[str, int] = {}
        self._identities: dict[tuple[str, int, int, str], int] = {}
        self._skip_list = SkipList()
        self._seen: dict[str, set[str]] = {}
        """Destinations that a backlog queue has had messages for."""
        self._look_ms: dict[str, int] = {}
        self._reached_ms: dict[str, int] = {}
        """When each destination last took something."""

    # --- coming in --------------------------------------------------------------------------------

    def room(self, queue: str, now: int | None = None) -> int:
        """How many more messages a backlog queue's pump may receive now."""
        if now is not None and self._skip_list.is_resting(queue, now):
            return 0
        held = self._held.get(queue, 0)
        standing = self._standing(queue, now)
        ready = self._ready_max - (held - standing)
        is_skip_list = now is not None and standing >= self._half and self._has_others(queue, "", now)
        return max(0, ready if is_skip_list else min(self._window - held, ready))

    def look_after(self, queue: str, now: int) -> int | None:
        """After which number to look for messages that are held up, when it is time for that."""
        if self._standing(queue, now) < self._half or now < self._look_ms.get(queue, 0):
            return None
        self._look_ms[queue] = now + LOOK_MS
        return max(
            message.sequence_number
            for line in self._lines.values()
            for message in (*line.messages, *line.flying)
            if message.queue == queue
        )

    def saw(self, queue: str, paths: Iterable[str], now: int) -> None:
        """Messages for these paths are behind those that are held."""
        for path in paths:
            self._note(queue, entity_key(path))
            self._reached(entity_key(path), now)

    def should_skip(self, message: BacklogMessage, now: int) -> bool:
        """Whether to leave a message where it is, its lock to lapse, because its destination stands still.

        Half of the window stays for the others; every destination has at least one message to be asked with. Only where
        there are others: a message that is passed over comes back when its lock has lapsed, which after an outage of
        everything would be a minute late for nothing.
        """
        key = entity_key(message.path)
        line = self._lines.get(key)
        number = message.sequence_number
        is_full = (
            line is not None
            and self._stands_still(line, now)
            and self._standing(message.queue, now) >= self._half
            and self._has_others(message.queue, key, now)
        )
        if line is not None and is_full:
            line.was_skipped = True
        if is_full or self._skip_list.must_wait(message.queue, key, number, now):
            self._skip_list.skip(message.queue, key, number, message.locked_until_ms, now)
            return True
        self._skip_list.taken(message.queue, number)
        return False

    def _has_others(self, queue: str, key: str, now: int) -> bool:
        """Whether this queue has, or had of late, messages for another destination that takes them."""
        for other in self._seen.get(queue, ()):
            line = self._lines.get(other)
            stands = self._is_blocked(other) if line is None else self._stands_still(line, now)
            if other != key and not stands and now - self._reached_ms.get(other, -OTHERS_MS) < OTHERS_MS:
                return True
        return False

    def holds_copy(self, message: BacklogMessage) -> bool:
        """Whether another copy of the same parked message waits here; this one is left to come again when it is home."""
        return message.identity in self._identities

    def passed(self, queue: str) -> int:
        """How many messages of a queue were left where they are."""
        return self._skip_list.passed(queue)

    def _note(self, queue: str, key: str) -> None:
        seen = self._seen.setdefault(queue, set())
        if len(seen) < SEEN_MAX:
            seen.add(key)

    def _reached(self, key: str, now: int) -> None:
        self._reached_ms.pop(key, None)
        self._reached_ms[key] = now
        while len(self._reached_ms) > SEEN_MAX:
            del self._reached_ms[next(iter(self._reached_ms))]

    def _stands_still(self, line: Line, now: int | None) -> bool:
        is_slow = bool(line.flying) and now is not None and now - line.flying_since_ms >= SLOW_MS
        return is_slow or line.is_away or self._is_blocked(line.path)

    def _standing(self, queue: str, now: int | None) -> int:
        """How many messages of a queue are held for destinations that stand still."""
        return sum(
            1
            for line in self._lines.values()
            if self._stands_still(line, now)
            for message in (*line.messages, *line.flying)
            if message.queue == queue
        )

    def received(self, message: BacklogMessage) -> DeadLetter | None:
        """A message has come. It takes its place, unless its path is one that no application sends to."""
        reason = forbidden(message.path)
        if reason is not None:
            return DeadLetter(message, FORBIDDEN_PATH, reason)
        key = entity_key(message.path)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(message.path.strip("/"))
        line.messages.append(message)
        self._note(message.queue, key)
        self._identities[message.identity] = self._identities.get(message.identity, 0) + 1
        self._held[message.queue] = self._held.get(message.queue, 0) + 1
        return None

    # --- going out --------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """The destinations that messages are waiting for."""
        return [key for key, line in self._lines.items() if line.messages or line.flying]

    def next_batch(self, key: str, now: int) -> list[BacklogMessage]:
        """The messages to send to a destination now; none while a batch is in flight or the destination is away.

        A destination that was away is asked with one message first.
        """
        line = self._lines.get(key)
        if line is None or line.flying or not line.messages or self._is_blocked(line.path):
            return []
        if line.is_away and now < line.retry_ms:
            return []
        batch: list[BacklogMessage] = []
        size = 0
        for message in line.messages:
            is_too_much = len(batch) >= BATCH_MESSAGES or size + len(message.payload) > BATCH_BYTES
            if batch and (is_too_much or message.is_alone or batch[0].is_alone or line.is_away):
                break
            batch.append(message)
            size += len(message.payload)
        del line.messages[: len(batch)]
        line.flying, line.flying_since_ms = batch, now
        for message in batch:
            message.is_in_flight = True
        return list(batch)

    def sent(self, key: str) -> list[BacklogMessage]:
        """The primary acknowledged the batch in flight: these messages may be completed now (P34)."""
        line = self._lines[key]
        done, line.flying = line.flying, []
        line.away_since_ms, line.attempts = None, 0
        self._reached(key, line.flying_since_ms)
        self._moved(line)
        for message in done:
            self._release(message)
        self._forget_if_empty(key)
        return done

    def found_delivered(self, key: str, messages: Sequence[BacklogMessage]) -> None:
        """Messages of the batch in flight are at the destination already: they may be completed without a send (P34)."""
        line = self._lines[key]
        line.flying = [message for message in line.flying if message not in messages]
        for message in messages:
            self._release(message)
        self._forget_if_empty(key)

    def send_failed(self, key: str, failure: Failure, why: str, now: int) -> list[DeadLetter]:
        """The batch in flight was refused, or nobody knows. What is to be set aside because of it."""
        line = self._lines[key]
        back, line.flying = line.flying, []
        for message in back:
            message.is_in_flight = False
        is_waiting = failure is Failure.NOT_FOUND and self._not_found == "wait"
        if failure in _TEMPORARY or is_waiting:
            line.messages[:0] = back
            self._back_off(line, failure, now)
            return []
        if failure is Failure.NOT_FOUND:
            line.away_since_ms = None
            return self._dead_letter(
                key,
                back,
                DESTINATION_NOT_FOUND,
                f"expected entity {line.path!r} in the primary, found none: {why}",
            )
        if len(back) > 1:
            # One of them is poison; one by one they tell which, and the rest flows (P39).
            for message in back:
                message.is_alone = True
            line.messages[:0] = back
            return []
        reason = TOO_LARGE if failure is Failure.TOO_LARGE else REFUSED
        text = f"expected {line.path!r} to accept it, found {failure.value}: {why}"
        return self._dead_letter(key, back, reason, text)

    def expired(self, key: str, messages: Sequence[BacklogMessage]) -> list[DeadLetter]:
        """Messages of the batch that should go now have outlived themselves while they waited here."""
        line = self._lines[key]
        line.flying = [message for message in line.flying if message not in messages]
        return self._dead_letter(
            key, messages, EXPIRED, "expected time left to live, found none after the time in the backlog"
        )

    def interrupted(self, key: str) -> None:
        """The shell gave the batch in flight up without an answer; it goes back to the head of its line."""
        line = self._lines.get(key)
        if line is not None:
            for message in line.flying:
                message.is_in_flight = False
            line.messages[:0] = line.flying
            line.flying = []

    def _back_off(self, line: Line, failure: Failure, now: int) -> None:
        if line.away_since_ms is None:
            line.away_since_ms = now
        pause = min(BACKOFF_MS_MIN * 2 ** min(line.attempts, 10), BACKOFF_MS_MAX)
        line.attempts += 1
        line.retry_ms = now + (THROTTLED_MS if failure is Failure.BUSY else pause)

    def _dead_letter(
        self, key: str, messages: Sequence[BacklogMessage], reason: str, text: str
    ) -> list[DeadLetter]:
        for message in messages:
            self._release(message)
        self._forget_if_empty(key)
        return [DeadLetter(message, reason, text) for message in messages]

    # --- locks ------------------------------------------------------------------------------------

    def renewals(self, queue: str, now: int) -> list[BacklogMessage]:
        """The messages of a queue whose locks should be renewed now."""
        return [message for message in self._of(queue) if message.renew_at_ms <= now]

    def next_renewal(self, queue: str) -> int | None:
        """When the first lock of a queue should be renewed."""
        return min((message.renew_at_ms for message in self._of(queue)), default=None)

    def lock_lost(self, message: BacklogMessage) -> bool:
        """A message's lock is gone: somebody else will get it. True when it was not in flight and is forgotten."""
        key = entity_key(message.path)
        line = self._lines.get(key)
        if line is None or message not in line.messages:
            return False
        line.messages.remove(message)
        self._release(message)
        self._forget_if_empty(key)
        return True

    def withdraw(self, queue: str, message_id: str, detour: tuple[str, int]) -> BacklogMessage | None:
        """Take a message that is not in flight out of its line, because its sender cancelled it.

        Message ids may repeat; ``detour``, the factory and its number for the message, does not.
        """
        for key, line in self._lines.items():
            for message in line.messages:
                is_meant = message.detour is not None and message.detour[:2] == detour
                if is_meant and message.queue == queue and message.message_id == message_id:
                    line.messages.remove(message)
                    self._release(message)
                    self._forget_if_empty(key)
                    return message
        return None

    def drop_queue(self, queue: str) -> list[BacklogMessage]:
        """A queue's receiver is gone, and with it every lock it held. Messages in flight stay till their answer comes."""
        dropped = []
        for key in list(self._lines):
            line = self._lines[key]
            gone = [message for message in line.messages if message.queue == queue]
            line.messages = [message for message in line.messages if message.queue != queue]
            for message in gone:
                self._release(message)
            dropped += gone
            self._forget_if_empty(key)
        return dropped

    def _of(self, queue: str) -> list[BacklogMessage]:
        return [
            message
            for line in self._lines.values()
            for message in (*line.messages, *line.flying)
            if message.queue == queue
        ]

    def is_in_flight(self, queue: str) -> bool:
        """Whether messages of a queue are on their way to the primary."""
        return any(message.queue == queue for line in self._lines.values() for message in line.flying)

    def oldest_ms(self, queue: str) -> int | None:
        """When the oldest message that is held came into the backlog."""
        times = [message.enqueued_ms for message in self._of(queue) if message.enqueued_ms is not None]
        return min(times, default=None)

    # --- questions --------------------------------------------------------------------------------

    def held(self, queue: str) -> int:
        """How many messages of a queue are locked."""
        return self._held.get(queue, 0)

    def next_deadline(self, key: str) -> int | None:
        """When a destination that is away may be asked again."""
        line = self._lines.get(key)
        return line.retry_ms if line is not None and line.is_away and line.messages else None

    def away(self) -> dict[str, int]:
        """Destinations that are away, and since when."""
        return {
            line.path: line.away_since_ms for line in self._lines.values() if line.away_since_ms is not None
        }

    def _release(self, message: BacklogMessage) -> None:
        self._held[message.queue] -= 1
        if not self._held[message.queue]:
            del self._held[message.queue]
        identity = message.identity
        self._identities[identity] -= 1
        if not self._identities[identity]:
            del self._identities[identity]

    def _forget_if_empty(self, key: str) -> None:
        line = self._lines[key]
        if not line.messages and not line.flying:
            self._moved(line)
            del self._lines[key]

    def _moved(self, line: Line) -> None:
        if line.was_skipped:
            line.was_skipped = False
            self._skip_list.moved()


def forbidden(path: str) -> str | None:
    """Why no message may go to a path, or None when it may."""
    segments = path.strip("/").split("/")
    if len(path) > PATH_CHARACTERS_MAX:
        return f"expected at most {PATH_CHARACTERS_MAX} characters, found {len(path)}"
    if any(segment.startswith("$") for segment in segments):
        return f"expected an entity, found the system path {path!r}"
    if any(segment.lower() == TRANSFER_SEGMENT for segment in segments):
        return f"expected an entity, found the backlog queue {path!r}: the message would go round for ever"
    strange = next((one for one in path if one in _NEVER_IN_NAMES or not one.isprintable()), None)
    if strange is not None:
        return f"expected the name of an entity, found {path!r}: no name contains {strange!r}"
    if any(segment in ("", ".", "..") for segment in segments):
        return f"expected an entity, found {path!r}"
    return None
