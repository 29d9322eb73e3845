"""Leaves a backlog queue to another drain for a while, when that drain has what this one waits for. No clock, no I/O.

The problem. Two drains that share a backlog queue receive its messages in turns: one has 1 to 100, the other 101 to 200. When
they are of few sessions, the second drain can send nothing before the first is done, and then the first waits for the second.
Each turn costs a look into the queue, and both hold locks on messages that they cannot send.

So a drain *steps back* from a queue when everything that it holds of it waits for older messages that others have: it releases
what it holds, which raises no delivery count, and receives nothing of this queue for a while. The other drain receives the
released messages and goes on alone, as fast as one drain does. Afterwards this drain tries with a single message. The pause
grows while that waits too, and begins again at its shortest once this drain has delivered something.

Rules:

1. The drain that has the oldest message of a queue never steps back: that message waits for no other of its queue.
2. A drain steps back only while the others make progress. When the oldest message that it waits for has been there for
   ``STUCK_MS``, its drain may be dead: then this drain goes on to the messages behind, for sessions that wait for nothing.
3. When a whole window waits, it steps back all the same: full, it could not receive the oldest message once that is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSE_MS_MIN: Final = 100
PAUSE_MS_MAX: Final = 5_000
STUCK_MS: Final = 3_000
FULL_MS: Final = 60_000
"""How long a drain that found nothing to send in a whole window does not lock one again."""
SAY_AFTER_MS: Final = 5_000
"""A drain that waits for another one says so after this time, and again after each ``SAY_MS``."""
SAY_MS: Final = 60_000


@dataclass(slots=True)
class _Queue:
    pause_ms: int = PAUSE_MS_MIN
    until_ms: int = 0
    is_trying: bool = False
    """Whether the next receive is the first after a pause."""
    reached: int = 0
    """The highest number that was the oldest one waited for."""
    reached_ms: int = 0
    oldest: int = 0
    """The oldest message that was waited for last."""
    is_stuck: bool = False
    not_behind_until_ms: int = 0
    """Until when this drain does not go on to the messages behind those that wait: it has, and they wait too."""
    waits_since_ms: int | None = None
    said_ms: int | None = None


class SharedQueues:
    """What one drain has found out about the queues that it shares."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def pause_ends_ms(self, queue: str) -> int:
        """Until when nothing is received from a queue."""
        found = self._queues.get(queue)
        return 0 if found is None else found.until_ms

    def most(self, queue: str, count: int) -> int:
        """How many messages to ask for, at most ``count``: one after a pause."""
        found = self._queues.get(queue)
        return 1 if found is not None and found.is_trying else count

    def steps_back(self, queue: str, oldest: int, now: int, *, is_full: bool = False) -> bool:
        """Whether to release everything: all that is held waits for others, which have ``oldest`` and maybe more.

        ``is_full``: no more may be received.
        """
        found = self._queues.setdefault(queue, _Queue(reached_ms=now))
        if oldest > found.reached:
            found.reached, found.reached_ms = oldest, now
        found.oldest = oldest
        if found.waits_since_ms is None:
            found.waits_since_ms = now
        if is_full:
            found.not_behind_until_ms = now + FULL_MS
        found.is_stuck = now - found.reached_ms >= STUCK_MS and now >= found.not_behind_until_ms
        if found.is_stuck:
            found.is_trying = False
            return False
        found.until_ms = now + found.pause_ms
        found.pause_ms = min(found.pause_ms * 2, PAUSE_MS_MAX)
        found.is_trying = True
        return True

    def is_stuck(self, queue: str) -> bool:
        """Whether what is waited for has not moved for long."""
        found = self._queues.get(queue)
        return found is not None and found.is_stuck

    def received(self, queue: str) -> None:
        """Something is held that can be sent: the queue is received from as usual."""
        found = self._queues.get(queue)
        if found is not None:
            found.is_trying = False

    def delivered(self, queue: str) -> None:
        """This drain has delivered messages of a queue."""
        found = self._queues.get(queue)
        if found is not None:
            found.pause_ms = PAUSE_MS_MIN
            found.waits_since_ms = found.said_ms = None

    def forget(self, queue: str) -> None:
        """Know nothing about a queue: it may have been made again."""
        self._queues.pop(queue, None)

    def sentence(self, queue: str, now: int) -> str | None:
        """What a queue waits for, when it is time to say it."""
        found = self._queues.get(queue)
        if found is None or found.waits_since_ms is None or now - found.waits_since_ms < SAY_AFTER_MS:
            return None
        if found.said_ms is not None and now - found.said_ms < SAY_MS:
            return None
        found.said_ms = now
        seconds = (now - found.waits_since_ms) // 1000
        if found.is_stuck:
            return (
                f"{queue}: for {seconds} s messages have waited for older ones of their sessions, the first is message "
                f"{found.oldest}. Another drain has them locked, or one that ended has; a lock that nobody renews ends within a minute"
            )
        return (
            f"{queue}: another drain delivers the sessions of this queue, now at message {found.oldest}; this one has waited {seconds} s "
            "and goes on when the other stops or ends"
        )
