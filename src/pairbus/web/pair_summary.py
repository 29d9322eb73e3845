"""What the page says of a pair in one sentence, and what that sentence rests on.

Three sources count, and each may be silent: the two namespaces, which the page asks every second, and the paired programs, which write to the journal.
The sentence must not claim more than they said. No clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from pairbus.pairing.rules.health import Health

FRESH_SECONDS: Final = 10.0
"""How long the outcome of a question counts: a hidden page asks every five seconds, and an answer may take three."""
DRAIN_SECONDS: Final = 10.0
"""How long the backlog is watched before the page says that no message leaves it."""
SAMPLES_MAX: Final = 100
"""Remembered depths of the backlog. Pages that together ask more often than ten times a second shorten the time that is watched."""

NOT_ANSWERING: Final = "not answering"
FAILED_OVER: Final = "failed over"
SUSPECT: Final = "suspect"
DRAINING: Final = "draining"
WAITING: Final = "waiting"
UNKNOWN: Final = "unknown"
HEALTHY: Final = "healthy"
"""What a summary is about; the page has an icon and a colour for each."""


@dataclass(frozen=True, slots=True)
class Summary:
    about: str
    title: str
    detail: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages that wait in the backlog."""

    waiting: int
    drain: Literal["shrinks", "taken", "still", "unknown"]
    """Of the last DRAIN_SECONDS: it became smaller; messages were taken from it, but it did not become smaller; nothing was taken; or it
    was not watched for so long."""


class SideWatch:
    """What a namespace answered lately. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.tag: str | None = None
        """The entity tag of the answer whose counts are the newest sample."""
        self._asked_at: float | None = None
        self._is_answering = False
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=SAMPLES_MAX)
        """Of the backlog: time, messages waiting, messages taken from it since the broker started."""

    def note(self, now: float, *, is_answering: bool) -> None:
        self._asked_at, self._is_answering = now, is_answering

    def note_unchanged(self, now: float) -> None:
        """The namespace answered that nothing changed since the newest sample."""
        if self._samples:
            _, waiting, taken = self._samples[-1]
            self.note_backlog(now, waiting, taken)

    def note_backlog(self, now: float, waiting: int, taken: int) -> None:
        if self._samples and (taken < self._samples[-1][2] or now - self._samples[-1][0] > FRESH_SECONDS):
            self._samples.clear()  # the broker was started again and counts from 0, or nobody looked for a while
        self._samples.append((now, waiting, taken))
        while len(self._samples) > 2 and self._samples[1][0] <= now - DRAIN_SECONDS:
            self._samples.popleft()

    def is_answering(self, now: float) -> bool | None:
        """None when it was not asked lately."""
        if self._asked_at is None or now - self._asked_at > FRESH_SECONDS:
            return None
        return self._is_answering

    def backlog(self, now: float) -> Backlog | None:
        """None when it was not seen lately."""
        if not self._samples or now - self._samples[-1][0] > FRESH_SECONDS:
            return None
        (since, _, taken_then), (until, waiting, taken) = self._samples[0], self._samples[-1]
        if any(later[1] < earlier[1] for earlier, later in pairwise(self._samples)):
            return Backlog(waiting, "shrinks")
        if taken > taken_then:
            return Backlog(waiting, "taken")
        return Backlog(waiting, "still" if until - since >= DRAIN_SECONDS else "unknown")


def summary(
    *,
    primary: bool | None,
    secondary: bool | None,
    states: Sequence[str],
    backlog: Backlog | None,
) -> Summary:
    """The state of a pair in one sentence, the most urgent fact first.

    Args:
        primary: Whether the primary answers the page; None if that is not known.
        secondary: The same of the secondary.
        states: The health of each entity that an open paired client reports.
        backlog: What waits in the backlog; None if that is not known.
    """
    reported = "" if states else "No paired client reports here."
    depth = _depth(backlog)
    if primary is False and secondary is False:
        return Summary(NOT_ANSWERING, "Neither namespace answers", reported or "Sends wait or fail.")
    over, suspect, refusing = (
        states.count(state.value) for state in (Health.FAILED_OVER, Health.SUSPECT, Health.REFUSING)
    )
    if over:
        lost = "The secondary does not answer: the backlog cannot be used." if secondary is False else ""
        return Summary(FAILED_OVER, f"{_entities(over)} failed over", lost or "Sends go to the backlog.")
    if suspect:
        return Summary(SUSPECT, f"{_entities(suspect)} suspect", "No answer; failover is near.")
    if primary is False:
        return Summary(
            NOT_ANSWERING,
            "The primary does not answer",
            _join(reported or "No paired client has failed over.", depth),
        )
    if refusing:
        detail = "Entities are gone or closed in the primary: the column Why has more."
        return Summary(SUSPECT, f"{_entities(refusing)} {'refuses' if refusing == 1 else 'refuse'} sends", detail)  # fmt: skip
    if secondary is False:
        detail = _join(reported, "An outage of the primary would find no backlog.")
        return Summary(NOT_ANSWERING, "The secondary does not answer", detail)
    if primary is None or secondary is None or backlog is None:
        return Summary(UNKNOWN, "Not known yet", _join("Not every namespace has answered.", reported))
    if backlog.waiting and backlog.drain == "shrinks":
        return Summary(DRAINING, "Draining the backlog", depth)
    if backlog.waiting:
        return Summary(WAITING, _waits(backlog.waiting), _join(_drained(backlog), reported))
    if not states:
        return Summary(UNKNOWN, "Both namespaces answer", _join("The backlog is empty.", reported))
    return Summary(HEALTHY, "All healthy", "Sends go to the primary.")


def _depth(backlog: Backlog | None) -> str:
    if backlog is None:
        return "The backlog cannot be seen."
    if not backlog.waiting:
        return "The backlog is empty."
    return f"{_waits(backlog.waiting)}."


def _drained(backlog: Backlog) -> str:
    if backlog.drain == "taken":
        return "A receiver takes messages from it, but it does not become smaller."
    if backlog.drain == "still":
        return f"Nobody drains it: no message was taken from it for {DRAIN_SECONDS:.0f} seconds."
    return "Whether somebody drains it is not known yet."


def _waits(count: int) -> str:
    return "1 message waits in the backlog" if count == 1 else f"{count:,} messages wait in the backlog"


def _entities(count: int) -> str:
    return "1 entity" if count == 1 else f"{count:,} entities"


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
