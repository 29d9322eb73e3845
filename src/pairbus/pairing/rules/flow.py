"""Decides what a send does next: try the primary, wait, send the parked form to a backlog queue, or fail.

What a send goes through
------------------------
A send to a healthy entity goes to the primary, with the official SDK, as if there were no pairing. Nearly all sends end
there. The rest of this page is about a send that fails.

1. The error is sorted (``sdk.failures``), and the trigger decides whether it counts as an outage of the entity. One that
   does not count is the caller's: a message that is too large, a wrong key, a name that never existed. It is raised as
   it is. "Server busy" is an answer, not an outage: the same send tries the primary again after a pause.
2. The first error that counts makes the entity *suspect* and starts the failover timer (``rules.health``). While it runs
   nobody knows yet whether this is an outage or a short interruption. With ``while_suspect="wait"`` the send is held: it
   tries the primary again, with growing pauses, until a try succeeds, the entity fails over, or its time is over. With
   ``"raise"`` the caller gets the error at once.
3. When the timer ends without a success the entity is *failed over*. From here on no send goes to the primary, only pings
   do (``client.watch``). The message is parked (``pairing.parking``): properties that must not act in the backlog are
   hidden, a passport is added. The parked form goes to one backlog queue of the secondary.
4. A sender picks its queue once and keeps it (``rules.rotation``). A queue that refuses leaves the rotation for all
   senders, and the send goes on to another one, until it has tried every queue once or has no time left. Then it fails, or
   goes to the spool when the client has one.
   With ``order="session"`` each session has its own queue instead (``rules.order``).
5. A good ping makes the entity healthy again, and the next send goes to the primary. The drain delivers the backlog.
   With an order, a session goes on being parked until its parked messages have arrived.
   A ping that finds the entity deleted makes it *refusing*: nothing is parked for an entity that may never come back.

Why time is shared out
----------------------
A silent primary is the hard case: it neither accepts nor refuses, and could use up all of the caller's time. So an attempt
at the primary gets at most half of the time that is left whenever the send could still go to the backlog, and never more
than ``SILENCE_MS``. The same holds for each backlog queue while another one is untried. A queue that had too little time
to answer is not blamed for it.

Senders that are shared let their callers wait for each other. That time is the callers' and says nothing about a namespace: an
attempt begins when its turn comes, and one for which waiting left too little time is not held against the primary or the queue
(``outcome.is_impatient``). Nor is one that had no answer and began before the entity was found healthy.

Why a send can be in doubt
--------------------------
An attempt that ends without an answer may have stored the message. The flow goes on anyway, because losing a message is
worse than sending it twice, and both copies have the same message id. It remembers the doubt: when the send fails in
the end, the caller learns that the outcome is ``unknown`` and not ``fail``.

Rules
-----
Rule 1: no queue is tried twice for one send (P32).
Rule 2: success is reported only after the primary or a backlog queue accepted the message, or the spool has it (P4).
Rule 3: the primary gets at most half of the time that is left when a detour is possible (P18).

No clock and no I/O here. ``client.sending.sender`` asks ``next_step``, does what it says, and reports the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.errors import EntityGoneError
from pairbus.pairing.outcome import is_impatient, without_frames
from pairbus.pairing.rules.health import Change, EntityHealth, Health
from pairbus.pairing.rules.trigger import BUSY_PAUSE_MS, counts
from pairbus.sdk.failures import IN_DOUBT, Failure, as_not_found, classify, is_of_the_message, shown

if TYPE_CHECKING:
    from collections.abc import Container

    from pairbus.pairing.options import Trigger
    from pairbus.pairing.rules.order_values import Planned
    from pairbus.pairing.rules.rotation import Rotation
    from pairbus.pairing.rules.send_order import SendOrder

HELD_PAUSE_MS_MIN: Final = 100
HELD_PAUSE_MS_MAX: Final = 2_000
"""Bounds of the pause between attempts of a send that is held while its entity is suspect."""
BACKLOG_ATTEMPT_MS_MIN: Final = 2_000
"""Opening a link takes a moment: a queue is not given up in less than this while the caller has the time."""
TRIAL_MS_MAX: Final = 2_000
"""How long a send waits at most for a queue that is out of the rotation, while another one is in it."""
SILENCE_MS: Final = 10_000
"""How long an attempt waits for a silent primary at most, while the send can go to the backlog instead. A longer failover
interval allows attempts of its own length."""
SPOOL_AFTER_MS: Final = 10_000
"""How long a send looks for a backlog queue that answers, when it can go to the spool instead."""
ERROR_TEXT_MAX: Final = 300
"""Characters of an error that a report has at most."""
ANSWER_MS_MIN: Final = 250
"""A queue that had less time than this to answer has not failed (P32): its caller had no time."""


@dataclass(frozen=True, slots=True)
class TryPrimary:
    """Send the original to the primary within ``timeout_ms``."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class TryBacklog:
    """Send the parked form to ``queue`` within ``timeout_ms``."""

    queue: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the entity's state changes, at most ``timeout_ms``, then ask again."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise ``error`` from ``cause``. ``SendFlow.is_in_doubt`` says whether an attempt may have stored the message (P5)."""

    error: BaseException
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class UseSpool:
    """Primary and backlog refuse: keep the messages in the spool. What ``Fail`` would raise, if it refuses, too."""

    error: BaseException
    cause: BaseException | None


Step = TryPrimary | TryBacklog | Wait | Fail | UseSpool


@dataclass(slots=True)
class Choice:
    """The backlog queue a sender has picked; it stays with it."""

    queue: str | None = None


def first_attempt_ms(timeout_ms: int, failover_interval_ms: int, *, holds_while_suspect: bool) -> int:
    """How long the first attempt of a send to a healthy entity may last.

    All of the caller's time when the entity cannot fail over within it. Otherwise a silent primary must leave time for
    the backlog (P18): half, and no more than SILENCE_MS, when this very send may be detoured later; a moment when only
    others' failures could bring that about.
    """
    if failover_interval_ms >= timeout_ms:
        return timeout_ms
    if failover_interval_ms == 0 or holds_while_suspect:
        return _primary_share(timeout_ms, failover_interval_ms)
    return max(1, timeout_ms - min(timeout_ms // 2, BACKLOG_ATTEMPT_MS_MIN))


def _primary_share(left_ms: int, failover_interval_ms: int) -> int:
    """How much of the time that is left a silent primary may take from a send that can be detoured (P18)."""
    return max(1, min(left_ms // 2, max(SILENCE_MS, failover_interval_ms)))


def _queue_share(left_ms: int) -> int:
    """How much of the time that is left a backlog queue may take while others can be tried after it."""
    return max(left_ms // 2, min(left_ms, BACKLOG_ATTEMPT_MS_MIN))


class SendFlow:
    """The decisions of one send."""

    def __init__(
        self,
        health: EntityHealth,
        rotation: Rotation,
        choice: Choice,
        trigger: Trigger,
        deadline_ms: int,
        *,
        holds_while_suspect: bool,
        has_spool: bool = False,
        order: SendOrder | None = None,
    ) -> None:
        self.order = order
        """None when nothing about the send has an order."""
        self._health = health
        self._rotation = rotation
        self._choice = choice
        self._trigger = trigger
        self._deadline_ms = deadline_ms
        self._holds = holds_while_suspect
        self._has_spool = has_spool
        self._spool_at_ms: int | None = None
        self._tried: dict[str, None] = {}
        self._attempt_ms = 0
        self._has_made_trial = False
        self.primary_error: BaseException | None = None
        self._backlog_error: BaseException | None = None
        self._no_time: BaseException | None = None
        self._final: Fail | None = None
        self._not_before_ms: int | None = None
        self._pause_ms = HELD_PAUSE_MS_MIN
        self.is_in_doubt = False

    # --- the next step ----------------------------------------------------------------------------

    def next_step(self, now: int) -> Step:
        if self._final is not None:
            return self._final
        if self._health.state is Health.REFUSING:
            cause = as_not_found(self.primary_error or self._health.gone_error)
            return Fail(EntityGoneError(self._health.path), cause)
        if self._health.state is Health.FAILED_OVER:
            return self._backlog_step(now)
        if self.order is not None and self.order.must_park():
            # A detour that goes on: messages of the session before this one are still in the backlog.
            refusal = self.order.refusal(now)
            if refusal is not None:
                return Fail(refusal, None)
            held_ms = self.order.held_ms(now)
            return Wait(held_ms) if 0 < held_ms < (self._deadline_ms - now) // 2 else self._backlog_step(now)
        left = self._deadline_ms - now
        if self.primary_error is not None:
            if left <= 0:
                return Fail(self.primary_error, None)
            if self._not_before_ms is not None and now < self._not_before_ms:
                return self._wait_step(now, left)
        return TryPrimary(self._primary_timeout(left))

    def _wait_step(self, now: int, left: int) -> Step:
        assert self._not_before_ms is not None
        assert self.primary_error is not None
        pause = self._not_before_ms - now
        due = self._health.failover_due_ms
        if pause < left:
            return Wait(pause)
        if due is not None and due - now < left:
            # When it is due this very moment the watch is about to notice: asking again at once would only spin.
            return Wait(max(1, due - now))
        return Fail(self.primary_error, None)

    def _primary_timeout(self, left: int) -> int:
        health = self._health
        if health.state is Health.HEALTHY:
            return first_attempt_ms(
                max(1, left), health.failover_interval_ms, holds_while_suspect=self._holds
            )
        if not health.may_detour_before(self._deadline_ms):
            return max(1, left)
        # A silent primary must leave time for the backlog.
        return _primary_share(left, health.failover_interval_ms) if self._holds else max(1, left // 2)

    def _backlog_step(self, now: int) -> Step:
        left = self._deadline_ms - now
        if self._has_spool:
            if self._spool_at_ms is None:
                self._spool_at_ms = now + SPOOL_AFTER_MS
            left = min(left, self._spool_at_ms - now)
        if left <= 0:
            # An attempt without time could only fail, and would put the blame on a queue that was never asked.
            return self._backlog_failure()
        trial = self._trial(now, left)
        if trial is not None:
            return trial
        queue = self._next_queue()
        if queue is None:
            return self._backlog_failure()
        untried = len(self._rotation.usable) + len(self._rotation.evicted) - len(self._tried) - 1
        share = _queue_share(left) if untried > 0 else left
        if queue in self._rotation.unproven:
            share = min(share, TRIAL_MS_MAX)
        self._attempt_ms = max(1, share)
        return TryBacklog(queue, self._attempt_ms)

    def _trial(self, now: int, left: int) -> TryBacklog | None:
        """One queue that is out of the rotation, if it is time to try it: one send makes one trial at most."""
        if self._has_made_trial:
            return None
        attempt_ms = max(1, min(_queue_share(left), TRIAL_MS_MAX))
        excluded: Container[str] = self._tried
        if self.order is not None:
            home = self.order.trial_queue()
            excluded = [queue for queue in self._rotation.evicted if queue != home or queue in self._tried]
        queue = self._rotation.take_trial(now, attempt_ms, excluded)
        if queue is None:
            return None
        self._has_made_trial = True
        self._attempt_ms = attempt_ms
        return TryBacklog(queue, attempt_ms)

    def _next_queue(self) -> str | None:
        if self.order is not None:
            return self.order.next_queue(self._rotation, self._tried)
        own = self._choice.queue
        if own is not None and own in self._rotation.usable and own not in self._tried:
            return own
        queue = self._rotation.pick(self._tried)
        if queue is not None:
            self._choice.queue = queue
            return queue
        return self._rotation.last_resort(self._tried)

    def planned(self, queue: str) -> list[Planned]:
        """The messages of an ordered send that go to ``queue`` now."""
        assert self.order is not None
        return self.order.planned(queue, self._rotation, self._tried)

    def _backlog_failure(self) -> Fail | UseSpool:
        failure = self._refused_by_all()
        return UseSpool(failure.error, failure.cause) if self._has_spool else failure

    def _refused_by_all(self) -> Fail:
        if self._backlog_error is not None:
            cause = self.primary_error or self._health.last_error
            return Fail(self._backlog_error, cause)
        if self.primary_error is not None:
            return Fail(self.primary_error, None)
        if self._rotation.usable or self._rotation.evicted:
            why = f"no time was left to park a message for {self._health.path!r}: give a longer timeout"
        else:
            why = (
                f"a message for {self._health.path!r} must be parked behind others of its session, and the secondary has not "
                "answered since this client was started"
            )
        self._no_time = OperationTimeoutError(message=why)
        return Fail(self._no_time, None)

    # --- results ----------------------------------------------------------------------------------

    def primary_failed(
        self, now: int, error: BaseException, *, begun_ms: int | None = None, is_in_doubt: bool | None = None
    ) -> list[Change]:
        """The primary refused, or did not answer.

        Args:
            now: When that was known.
            error: What the attempt ended in.
            begun_ms: When it began; now if not given.
            is_in_doubt: Whether it may have stored the message; from the error if not given.
        """
        self.primary_error = error
        failure = classify(error)
        self._note_doubt(failure, is_in_doubt)
        is_outdated = failure in IN_DOUBT and self._health.was_proven_after(
            now if begun_ms is None else begun_ms
        )
        if is_outdated or is_impatient(error):
            self._says_nothing(now, error)
            return []
        if not counts(error, self._trigger, has_accepted=self._health.has_accepted):
            if failure is Failure.BUSY:
                self._not_before_ms = now + BUSY_PAUSE_MS
            else:
                self._final = Fail(error, None)
            return []
        changes = self._health.send_failed(now, shown(error, ERROR_TEXT_MAX))
        self._health.last_error = without_frames(error)
        if self._health.state is Health.SUSPECT:
            self._hold_or_fail(now, error)
        return changes

    def _note_doubt(self, failure: Failure, is_in_doubt: bool | None) -> None:
        """An attempt failed. ``is_in_doubt``: whether it may have stored the message; None: the kind of failure says that."""
        self.is_in_doubt = self.is_in_doubt or (failure in IN_DOUBT if is_in_doubt is None else is_in_doubt)

    def _says_nothing(self, now: int, error: BaseException) -> None:
        """The error says nothing about the primary as it is now.

        Other callers' sends took the time of this one, or there was no answer to an attempt that is older than the proof that the
        entity is well: what it waited for may have been dead since before.
        """
        if self._health.failover_interval_ms:
            self._hold_or_fail(now, error)
        else:
            self._pause(now)

    def _hold_or_fail(self, now: int, error: BaseException) -> None:
        if self._holds:
            self._pause(now)
        else:
            self._final = Fail(error, None)

    def _pause(self, now: int) -> None:
        self._not_before_ms = now + self._pause_ms
        self._pause_ms = min(self._pause_ms * 2, HELD_PAUSE_MS_MAX)

    def knows(self, error: BaseException) -> bool:
        """Whether an error is one of the answers that this send has had."""
        return error is self.primary_error or error is self._backlog_error or error is self._no_time

    def backlog_accepted(self, queue: str, messages: int, now: int) -> list[str]:
        """A backlog queue accepted messages. Returns the queues that this brought back into the rotation."""
        if self._health.parked_since_ms is None and self._health.state is Health.FAILED_OVER:
            self._health.parked_since_ms = now
        self._health.has_parked(queue, messages)
        return self._rotation.accepted(queue)

    def backlog_failed(
        self, queue: str, now: int, error: BaseException, *, is_in_doubt: bool | None = None
    ) -> bool:
        """A backlog queue refused, or did not answer. True when that took it out of the rotation."""
        self._tried[queue] = None
        self._backlog_error = error
        failure = classify(error)
        if failure is Failure.CANCELLED or is_of_the_message(error):
            # The caller's wish or the message's fault, not the queue's. Whatever else it is, another queue may do.
            self._final = Fail(error, self.primary_error or self._health.last_error)
            return False
        self._note_doubt(failure, is_in_doubt)
        had_no_time = failure is Failure.TIMEOUT and self._attempt_ms < ANSWER_MS_MIN
        if (had_no_time or is_impatient(error)) and queue in self._rotation.usable:
            # The caller's impatience is not the queue's refusal: the other senders keep it.
            return False
        return self._rotation.refused(
            queue, now, shown(error, ERROR_TEXT_MAX), has_answered=failure not in IN_DOUBT
        )
