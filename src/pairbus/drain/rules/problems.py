"""What keeps a drain from moving, in sentences, and when a drain that should end has waited long enough. No clock.

A *problem* is a destination or a backlog queue whose last attempt failed for a temporary reason. A continuous drain
reports each once and goes on. A drain that should end (``--once``) gives up when nothing has moved for a while and
problems are all that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pairbus.drain.ports import Observer
from pairbus.sdk.failures import Failure, classify, is_of_the_entity

PATIENCE_MS: Final = 30_000
"""How long a drain that should end goes on while nothing moves."""
PATIENCE_KEY_MS: Final = 10_000
"""The same when the key was refused everywhere: waiting seldom helps there."""
ERROR_PAUSE_S_MIN: Final = 0.25
ERROR_PAUSE_S_MAX: Final = 5.0
"""Longest pause between two attempts to read a backlog queue."""
GONE_PAUSE_S_MAX: Final = 60.0
"""The same for a queue that does not exist: somebody has to create it."""
SUBJECTS_SHOWN_MAX: Final = 3
TEXT_CHARACTERS_MAX: Final = 300

_WAY_OUT: Final = {
    Failure.UNAUTHORIZED: "check the key and its rights in the connection string",
    Failure.CONNECTION: "is the namespace running, and does the connection string name its address?",
    Failure.TIMEOUT: "is the namespace running, and does the connection string name its address?",
    Failure.DISABLED: "enable the entity",
    Failure.QUOTA: "the entity is full: receive from it, or give it more room",
    Failure.NOT_FOUND: "create the entity, or use --not-found dead-letter",
}

_QUEUE_GONE: Final = (
    "a paired client creates its backlog queues when it pairs; or drain only those that exist"
)

_QUEUE_UNFIT: Final = "a topic has its name, it forwards, or it requires sessions: delete the topic, remove the forwarding, or make it a plain queue again"

_QUEUE_DELETED: Final = (
    "somebody deleted it while it was drained: what was still in it is gone, and `pairbus reconcile` names the messages that never "
    "arrived"
)

Side = Literal["primary", "secondary"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One destination or backlog queue that does not work at present."""

    side: Side
    subject: str
    failure: Failure
    text: str
    is_plain: bool = False
    """Whether the text says all there is to say: it is a sentence of the drain, and no error of a namespace."""

    is_deleted: bool = False
    """Whether it is a backlog queue that this drain has read before, and that does not exist any more."""

    is_refused: bool = False
    """Whether it does not allow to receive from it, until somebody changes its settings or the rights of the key."""

    @property
    def reason(self) -> str:
        """The kind of failure and its text."""
        return self.text if self.is_plain else f"{self.failure.value}: {self.text}"

    def sentence(self) -> str:
        """What is wrong, and the way out."""
        if self.is_plain:
            return f"{self.subject}: {self.text}"
        if self.is_deleted:
            return f"{self.subject}: {_QUEUE_DELETED}"
        way_out = _WAY_OUT.get(self.failure)
        if self.side == "secondary" and self.failure is Failure.NOT_FOUND:
            way_out = _QUEUE_GONE
        elif self.side == "secondary" and self.failure is Failure.INVALID and self.is_refused:
            way_out = _QUEUE_UNFIT
        what = f"the {self.side} does not take {self.subject!r}" if self.side == "primary" else self.subject
        return f"{what}: {self.failure.value} ({self.text})" + (f"; {way_out}" if way_out else "")


def pause_seconds(failure: Failure, failures: int) -> float:
    """How long to wait before a backlog queue is tried again, after so many failures before this one."""
    longest = GONE_PAUSE_S_MAX if failure is Failure.NOT_FOUND else ERROR_PAUSE_S_MAX
    return min(ERROR_PAUSE_S_MIN * (1 << failures), longest)


def refuses_receivers(error: BaseException) -> bool:
    """Whether nothing can be received from a backlog queue until somebody changes its settings or the rights of the key."""
    return classify(error) in (Failure.UNAUTHORIZED, Failure.DISABLED) or is_of_the_entity(error)


class Problems:
    """The open problems of one drain; the observer is called when one begins, changes its kind, or ends."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._open: dict[tuple[Side, str], Problem] = {}
        self._moved_ms = 0
        self._read: set[str] = set()
        """The backlog queues that have worked so far."""

    def failed(
        self,
        side: Side,
        subject: str,
        failure: Failure,
        text: str,
        *,
        is_plain: bool = False,
        is_refused: bool = False,
    ) -> None:
        """An attempt failed, and is made again later. ``is_refused``: and fails until somebody changes the queue or the key."""
        known = self._open.get((side, subject))
        is_deleted = side == "secondary" and failure is Failure.NOT_FOUND and subject in self._read
        problem = Problem(
            side, subject, failure, text[:TEXT_CHARACTERS_MAX], is_plain, is_deleted, is_refused
        )
        self._open[side, subject] = problem
        if known is None or known.failure is not failure:
            sentence = f"{problem.sentence()}; trying again"
            self._observer.unavailable(subject, sentence)
            if is_refused:
                self._observer.refused(subject, failure, sentence)
            if is_deleted:
                self._observer.deleted(subject)

    def works(self, side: Side, subject: str) -> None:
        """An attempt worked."""
        if side == "secondary":
            self._read.add(subject)
        if self._open.pop((side, subject), None) is not None:
            self._observer.available(subject)

    def of(self, side: Side) -> list[Problem]:
        """The open problems with one namespace."""
        return [problem for problem in self._open.values() if problem.side == side]

    def moved(self, now: int) -> None:
        """A message was delivered or dead-lettered, or the drain begins."""
        self._moved_ms = now

    def reason_to_give_up(self, now: int) -> str | None:
        """Why a drain that should end gives up now; None while it goes on."""
        if not self._open:
            return None
        is_key = all(problem.failure is Failure.UNAUTHORIZED for problem in self._open.values())
        waited = now - self._moved_ms
        if waited < (PATIENCE_KEY_MS if is_key else PATIENCE_MS):
            return None
        shown = list(self._open.values())[:SUBJECTS_SHOWN_MAX]
        text = "; ".join(problem.sentence() for problem in shown)
        more = len(self._open) - len(shown)
        is_missing = any(
            one.side == "secondary" and one.failure is Failure.NOT_FOUND for one in self._open.values()
        )
        rest = (
            "What other backlog queues hold is still there"
            if is_missing
            else "Nothing is lost: the messages are still in the backlog"
        )
        return (
            f"nothing could be drained for {waited // 1000} s: {text}"
            + (f"; and {more} more" if more else "")
            + f". {rest}; run the command again"
        )
