"""When to ask a failed-over entity whether it is back, and what to ask it with.

The first ping goes out at failover, then one per interval; never two in flight; none after recovery; after a
suspended process wakes, one and not a burst (P22).
"""

from __future__ import annotations

from typing import Final

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
PING_LIFE_SECONDS: Final = 1
PING_TIMEOUT_MS: Final = 5_000
PING_TIMEOUT_MS_LONG: Final = 20_000
"""How long the answer to a ping is waited for, however short the interval is: each ping opens a link, which takes a second
and more over TLS, and an entity that is never given that time would stay failed over for ever. On a busy machine or a slow
network it takes longer still: after two pings without an answer the third one gets the longer time."""
PATIENT_PING: Final = 3


class PingSchedule:
    """The rhythm of one entity's pings."""

    __slots__ = ("_last_sent_ms", "_unanswered", "in_flight", "interval_ms", "next_ms", "sent")

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.next_ms: int | None = None
        self.in_flight = False
        self.sent = 0
        self._last_sent_ms: int | None = None
        self._unanswered = 0

    def start(self, now: int, *, by_hand: bool = False) -> None:
        """The entity has failed over. A flapping entity is not asked more often than the interval (P27).

        Switched by hand, it is left alone for one interval: a ping at once would undo what was just asked for.
        """
        earliest = now + self.interval_ms if by_hand else now
        if self._last_sent_ms is not None:
            earliest = max(earliest, self._last_sent_ms + self.interval_ms)
        self.next_ms = max(now, earliest)

    def stop(self) -> None:
        """The entity is healthy, or the client is closed: no more pings."""
        self.next_ms = None

    def is_due(self, now: int) -> bool:
        """Whether to send one now."""
        return self.next_ms is not None and not self.in_flight and now >= self.next_ms

    def sending(self, now: int) -> None:
        """A ping leaves. Its successor is counted from here, so that a long sleep costs one ping only."""
        self.in_flight = True
        self.sent += 1
        self._last_sent_ms = now
        self.next_ms = now + self.interval_ms

    def answered(self, now: int, *, is_silent: bool = False) -> None:
        """The ping in flight was answered, or given up. ``is_silent``: its time was over."""
        self.in_flight = False
        self._unanswered = self._unanswered + 1 if is_silent else 0
        if self.next_ms is not None:
            self.next_ms = max(self.next_ms, now)

    def change_interval(self, interval_ms: int) -> None:
        """The next ping uses the new interval."""
        self.interval_ms = interval_ms
        if self.next_ms is not None and self._last_sent_ms is not None:
            self.next_ms = self._last_sent_ms + interval_ms

    @property
    def timeout_ms(self) -> int:
        """How long to wait for an answer."""
        is_patient = self._unanswered % PATIENT_PING == PATIENT_PING - 1
        return PING_TIMEOUT_MS_LONG if is_patient else PING_TIMEOUT_MS
