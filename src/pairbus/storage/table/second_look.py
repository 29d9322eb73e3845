"""Finds calls that the database will never answer, although their connections stay up.

A machine that is frozen, or a network that swallows everything, ends no connection. A call of the broker has no timeout, because PostgreSQL answers a
cancelled wait for the standby with success. So a call without an answer is looked at from a second connection, which is made as any other
and so finds the server that takes writes now:

| the second look finds | then |
|---|---|
| another server, or one that does not know the connection | the call is ended from outside: its outcome is unknown, as of any connection that was lost |
| the server at work on the call: a standby that does not answer, a lock | the call goes on. The look tells what it waits for |
| the server waiting for a call on that connection | the call or its answer is lost, or on its way: ended if a second look finds the same |
| no server that takes writes | the call goes on: there is nowhere to go |

Nothing is ever assumed about the call, so all this costs at most a repetition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 3.0
"""A call without an answer for so long is looked at. A lease is usually as long."""
POLL_PART: Final = 6
"""Calls are looked over so many times in that time."""
PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 10.0
"""Between two looks, while a call waits: each costs a connection."""


class Found(Enum):
    """What a second look finds; the head of the module has what follows."""

    ELSEWHERE = "elsewhere"
    AT_WORK = "at work"
    IDLE = "idle"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Finding:
    """About one call."""

    found: Found
    text: str
    """For people: what it waits for, or where to go."""


class Line(Protocol):
    """One connection of this process."""

    @property
    def purpose(self) -> str: ...

    @property
    def waits_since(self) -> float | None:
        """Since when the call under way has had no answer; None: there is none."""

    def leave(self, why: str) -> None:
        """End the call under way, if there is one; the next call connects again. From any thread."""

    def is_beside(self, other: Line) -> bool:
        """Whether both lead to the same server."""


LineType = TypeVar("LineType", bound=Line)


class SecondLooks(Generic[LineType]):
    """Looks over the connections of one process to one database, step by step; the caller waits in between.

    Args:
        lines: All connections that are open.
        look: Takes a second look at the calls of these, one finding for each. Bounded.
        report: Called with the purpose of a connection whose call goes on waiting, and why; with an empty text once it was answered.
        clock: Seconds, as of ``waits_since``.
        silent_seconds: See ``SILENT_SECONDS``.
    """

    def __init__(
        self,
        lines: Callable[[], Iterable[LineType]],
        look: Callable[[Sequence[LineType]], Sequence[Finding]],
        report: Callable[[str, str], None],
        clock: Callable[[], float],
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._lines = lines
        self._look = look
        self._report = report
        self._clock = clock
        self._silent_seconds = silent_seconds
        self._pause = PAUSE_SECONDS_MIN
        self._not_before = 0.0
        self._before: list[tuple[LineType, float, Finding]] = []
        """The calls that the last look left waiting, by when they began."""
        self.step_seconds = silent_seconds / POLL_PART
        """Between two steps."""

    def step(self) -> None:
        """Take a second look, if one is due."""
        now = self._clock()
        self._tell_of_answers()
        silent = [
            (line, since)
            for line in self._lines()
            if (since := line.waits_since) is not None and now - since >= self._silent_seconds
        ]
        if not silent:
            self._pause, self._not_before = PAUSE_SECONDS_MIN, now
            return
        if now < self._not_before:
            return
        findings = self._look([line for line, _ in silent])
        self._not_before = self._clock() + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        before, self._before = self._before, []
        for (line, since), finding in zip(silent, findings, strict=True):
            # It may have been answered while the look was taken.
            if line.waits_since == since:
                self._follow(line, since, finding, before)

    def _follow(
        self, line: LineType, since: float, finding: Finding, before: list[tuple[LineType, float, Finding]]
    ) -> None:
        former = next((one for that, when, one in before if that is line and when == since), None)
        is_lost = finding.found is Found.IDLE and former is not None and former.found is Found.IDLE
        if finding.found is Found.ELSEWHERE or is_lost:
            why = f"no answer for {self._clock() - since:.1f} s: {finding.text}"
            logger.warning(
                "the database does not answer, and another connection finds that it never will",
                extra={"event": "cluster.database_left", "connection": line.purpose, "error": why},
            )
            for one in list(self._lines()):
                # Of its neighbours those without a call too: their next one would be lost as well, or answered by a server that was replaced.
                is_neighbour = one.is_beside(line) and (
                    finding.found is Found.ELSEWHERE or one.waits_since is None
                )
                if one is line or is_neighbour:
                    one.leave(why)
            return
        self._before.append((line, since, finding))
        if former is None or former.text != finding.text:
            logger.warning(
                "the database did not answer",
                extra={
                    "event": "cluster.database_failed",
                    "connection": line.purpose,
                    "call": "unanswered",
                    "error": f"no answer for {self._clock() - since:.1f} s: {finding.text}",
                },
            )
        self._report(line.purpose, finding.text)

    def _tell_of_answers(self) -> None:
        for entry in [one for one in self._before if one[0].waits_since != one[1]]:
            self._before.remove(entry)
            logger.info(
                "the database answers again",
                extra={"event": "cluster.database_back", "connection": entry[0].purpose},
            )
            self._report(entry[0].purpose, "")
