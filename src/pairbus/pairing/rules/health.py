"""Is this primary entity fit to send to? Four states and no clock.

    HEALTHY --trigger failure--> SUSPECT --failover interval, no success--> FAILED_OVER --good ping(s)--> HEALTHY
       ^                            |                                        |      ^
       +--------any success---------+                     ping: entity gone  v      | good ping
                                                                          REFUSING--+

A replay of the spool that finds the entity gone leads to REFUSING from HEALTHY and SUSPECT, too.

Rule 1: time arrives as ``now``, in milliseconds of a clock that never steps.
Rule 2: every change of state goes through ``_enter`` and is returned to the caller exactly once (P45).
Rule 3: a timer is a question: ``next_deadline`` says when to call ``tick``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from pairbus.pairing.rules.ping import PingSchedule


class Health(Enum):
    """What a client believes about one entity of the primary, and so where its sends go.

    ``HEALTHY``: to the primary. ``SUSPECT``: a send failed, and the failover interval is not over: they wait, or raise. ``FAILED_OVER``: to the
    backlog, and pings to the primary. ``REFUSING``: the entity does not exist any more, so they raise ``EntityGoneError``.
    """

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    REFUSING = "refusing"


HEALTHY: Final = Health.HEALTHY
"""For what each healthy send asks: an enumeration looks its members up slowly."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of state, in the order in which they happen."""

    path: str
    before: Health
    after: Health
    at_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class EntityReport:
    """What ``client.health()`` returns for one entity: its state, the reasons, and what waits where.

    Args:
        path: The entity's path.
        state: What the client believes of it.
        since_ms: Since when, in milliseconds of a steady clock; only differences mean anything.
        why: The error or event that led to the state.
        next_ping_ms: When it will be asked again; None while it is not asked.
        failover_due_ms: When a suspect entity will fail over unless a send succeeds before.
        parked: How many messages for it this client has sent to the backlog so far, those that have arrived since included.
        backlog_queue: The backlog queue that took the last one.
        pings_sent: How often it was asked.
        parked_lost: Of ``parked``, how many were in backlog queues when somebody deleted those, at most: a drain may have delivered
            some of them before. The others are gone.
        fenced_sessions: With an order: sessions that go on being parked although the entity takes sends.
        oldest_parked_age_ms: How long ago the oldest message for it that is known to be in the backlog was sent. None: none is
            known. Of messages without an order a client knows only what it has parked since the entity failed over, and from the
            return to the primary on nothing, also while they are still in the backlog.
        since: Since when, as a time of day in UTC.
        next_ping: When it will be asked again, in UTC; None while it is not asked.
        failover_due: When a suspect entity will fail over, in UTC; None in other states.
        spooled: How many messages for it wait in the spool.
        spool_undeliverable: How many messages for it stay there because no namespace takes them.
        oldest_spooled_age_ms: For how long the oldest one has waited there; None: there is none.
        left_behind: How many messages for it wait in spools of the directory that nobody has open and that this client does not
            replay, because they name another address of a primary with the same name.
        oldest_left_behind_age_ms: For how long the oldest of these has waited; None: there is none.
        left_behind_why: Which spools these are, and the way out; empty when there is none.
    """

    path: str
    state: Health
    since_ms: int
    why: str
    next_ping_ms: int | None
    failover_due_ms: int | None
    parked: int
    backlog_queue: str | None
    pings_sent: int
    # Calculated from the steady clock at each report, so that they may differ by a millisecond.
    since: datetime = field(compare=False)
    next_ping: datetime | None = field(compare=False)
    failover_due: datetime | None = field(compare=False)
    parked_lost: int = 0
    fenced_sessions: int = 0
    oldest_parked_age_ms: int | None = field(default=None, compare=False)
    spooled: int = 0
    spool_undeliverable: int = 0
    oldest_spooled_age_ms: int | None = field(default=None, compare=False)
    left_behind: int = 0
    oldest_left_behind_age_ms: int | None = field(default=None, compare=False)
    left_behind_why: str = field(default="", compare=False)


class EntityHealth:
    """The health of one entity, shared by every sender of a client.

    Args:
        path: The entity's path as it was first written.
        failover_interval_ms: How long sends must fail before the entity fails over.
        ping_interval_ms: How often a failed-over entity is asked.
        healthy_pings: Good pings in a row that heal it.
        now: When it is made.
    """

    def __init__(
        self,
        path: str,
        failover_interval_ms: int,
        ping_interval_ms: int,
        healthy_pings: int = 1,
        now: int = 0,
    ) -> None:
        self.path = path
        self.failover_interval_ms = failover_interval_ms
        self.healthy_pings = healthy_pings
        self.state = Health.HEALTHY
        self.since_ms = now
        self.why = ""
        self.has_accepted = False
        """Whether a send of this client has ever been accepted: only then can "not found" mean an outage."""
        self.parked = 0
        self.parked_in: dict[str, int] = {}
        """By backlog queue: how many of these may still be there."""
        self.parked_lost = 0
        self.parked_since_ms: int | None = None
        """When the first message was parked since the entity failed over."""
        self.backlog_queue: str | None = None
        self.suspect_since_ms: int | None = None
        self.is_by_hand = False
        """Failed over by the application; the first good ping or ``mark_healthy`` ends it, no send does."""
        self.good_pings = 0
        self.last_error: BaseException | None = None
        """The last failure of the primary that counted: the cause of a send that the backlog refuses, too."""
        self.gone_error: BaseException | None = None
        """The answer to the ping that found the entity gone: the cause of every refusal until it is back."""
        self.is_key_refused = False
        """Whether the last ping found that the primary refuses the key."""
        self.is_spooling = False
        """Whether the spool holds messages of the entity: new ones join it, behind them."""
        self.is_spool_ending = False
        """Whether the last messages of the spool are on their way: new ones wait for that moment instead."""
        self.is_replay_failing = False
        """Whether no namespace took the last messages of the spool that were replayed."""
        self.pings = PingSchedule(ping_interval_ms)

    @property
    def is_healthy(self) -> bool:
        """Whether sends go to the primary as if there were no pairing."""
        return self.state is Health.HEALTHY

    def may_send(self) -> bool:
        """Whether sends still go to the primary, or a last one does."""
        return self.state is Health.HEALTHY or self.state is Health.SUSPECT

    # --- what happened ----------------------------------------------------------------------------

    def send_succeeded(self, now: int) -> list[Change]:
        """The primary accepted a send, even one begun before the entity failed over: proof of health.

        It does not end a failover by hand: the person who asked for it knew that the primary still answered.
        """
        self.has_accepted = True
        if self.state is Health.HEALTHY or self.is_by_hand:
            return []
        return [self._enter(Health.HEALTHY, now, "the primary accepted a send")]

    def send_failed(self, now: int, why: str) -> list[Change]:
        """A send met a failure that counts."""
        changes = []
        if self.state is Health.HEALTHY:
            self.suspect_since_ms = now
            changes.append(self._enter(Health.SUSPECT, now, why))
        return changes + self.tick(now)

    def tick(self, now: int) -> list[Change]:
        due = self.failover_due_ms
        if due is None or now < due:
            return []
        waited = now - (self.suspect_since_ms or 0)
        why = self.why if not waited else f"no send succeeded for {_seconds(waited)} s; first: {self.why}"
        return [self._enter(Health.FAILED_OVER, now, why)]

    @property
    def is_pinged(self) -> bool:
        """Whether the watch sends pings: sends do not go to the primary, so nothing else shows that it is well again."""
        return self.state in (Health.FAILED_OVER, Health.REFUSING)

    def ping_succeeded(self, now: int) -> list[Change]:
        self.pings.answered(now)
        if not self.is_pinged:
            return []
        self.good_pings += 1
        if self.good_pings < self.healthy_pings:
            return []
        return [self._enter(Health.HEALTHY, now, _pings_answered(self.good_pings))]

    def ping_failed(
        self,
        now: int,
        why: str,
        *,
        entity_is_gone: bool,
        error: BaseException | None = None,
        is_silent: bool = False,
    ) -> list[Change]:
        """A ping was refused or not answered (``is_silent``)."""
        self.pings.answered(now, is_silent=is_silent)
        self.good_pings = 0
        if entity_is_gone and self.state is Health.FAILED_OVER:
            # Without its frames: they would keep alive the objects of the ping.
            self.gone_error = None if error is None else error.with_traceback(None)
            return [self._enter(Health.REFUSING, now, why)]
        if self.is_pinged:
            self.why = why
        return []

    def found_gone(self, now: int, why: str, error: Exception) -> list[Change]:
        """The primary answered that the entity does not exist, and somebody waits for it: pings look for it from here on."""
        if self.state not in (Health.HEALTHY, Health.SUSPECT):
            return []
        change = self._enter(Health.REFUSING, now, why)
        self.gone_error = error.with_traceback(None)
        return [change]

    # --- messages in the backlog ------------------------------------------------------------------

    def has_parked(self, queue: str, messages: int) -> None:
        """A backlog queue accepted messages."""
        self.parked += messages
        self.parked_in[queue] = self.parked_in.get(queue, 0) + messages
        self.backlog_queue = queue

    def have_left(self, queue: str, messages: int) -> None:
        """So many of the messages in a backlog queue are there no longer: a look found it empty."""
        self.parked_in[queue] = max(0, self.parked_in.get(queue, 0) - messages)

    def queue_lost(self, queue: str) -> int:
        """Somebody has deleted a backlog queue. Returns how many messages were in it at most."""
        lost = self.parked_in.pop(queue, 0)
        self.parked_lost += lost
        if not any(self.parked_in.values()):
            self.parked_since_ms = None
        return lost

    # --- by hand ----------------------------------------------------------------------------------

    def fail_over(self, now: int) -> list[Change]:
        """The application knows better: sends go to the backlog from here on."""
        if self.state is Health.FAILED_OVER:
            return []
        change = self._enter(Health.FAILED_OVER, now, "by hand")
        self.is_by_hand = True
        self.pings.start(now, by_hand=True)
        return [change]

    def mark_healthy(self, now: int) -> list[Change]:
        """The application knows better: sends go to the primary from here on."""
        if self.state is Health.HEALTHY:
            return []
        return [self._enter(Health.HEALTHY, now, "by hand")]

    # --- questions --------------------------------------------------------------------------------

    @property
    def failover_due_ms(self) -> int | None:
        """When a suspect entity fails over unless a send succeeds before."""
        if self.state is not Health.SUSPECT or self.suspect_since_ms is None:
            return None
        return self.suspect_since_ms + self.failover_interval_ms

    def ping_is_due(self, now: int) -> bool:
        """Whether the watch should send a ping now."""
        return self.is_pinged and self.pings.is_due(now)

    def next_deadline(self) -> int | None:
        """When the watch should look again, or None when nothing will happen by itself."""
        if self.state is Health.SUSPECT:
            return self.failover_due_ms
        if self.is_pinged:
            return self.pings.next_ms
        return None

    def was_proven_after(self, begun_ms: int) -> bool:
        """Whether the entity is healthy since later than ``begun_ms``: what began then and had no answer says nothing about it."""
        return self.state is Health.HEALTHY and begun_ms < self.since_ms

    def may_detour_before(self, deadline_ms: int) -> bool:
        """Whether a suspect entity fails over before ``deadline_ms``, so that a send that fails till then is detoured."""
        due = self.failover_due_ms
        return due is None or due <= deadline_ms

    def report(self, time_of: Callable[[int], datetime]) -> EntityReport:
        """A frozen picture. ``time_of`` gives the time of day of an instant of the steady clock."""
        next_ping_ms = self.pings.next_ms if self.is_pinged else None
        failover_due_ms = self.failover_due_ms
        return EntityReport(
            self.path,
            self.state,
            self.since_ms,
            self.why,
            next_ping_ms,
            failover_due_ms,
            self.parked,
            self.backlog_queue,
            self.pings.sent,
            time_of(self.since_ms),
            None if next_ping_ms is None else time_of(next_ping_ms),
            None if failover_due_ms is None else time_of(failover_due_ms),
            parked_lost=self.parked_lost,
        )

    def _enter(self, state: Health, now: int, why: str) -> Change:
        change = Change(self.path, self.state, state, now, why)
        was_pinged = self.is_pinged
        self.state, self.since_ms, self.why = state, now, why
        self.is_by_hand = False
        self.good_pings = 0
        if state is not Health.SUSPECT:
            self.suspect_since_ms = None
        if self.is_pinged and not was_pinged:
            self.pings.start(now)
        elif state is Health.HEALTHY:
            self.pings.stop()
        if state is not Health.REFUSING:
            self.gone_error = None
        if state is Health.HEALTHY:
            self.parked_since_ms = None
            self.last_error = None
            self.is_key_refused = False
        return change


def _pings_answered(count: int) -> str:
    return "a ping was answered" if count == 1 else f"{count} pings in a row were answered"


def _seconds(milliseconds: int) -> str:
    """In tenths of a second, when it is more than one: what a person wants to read."""
    return f"{round(milliseconds, -2) / 1_000:g}" if milliseconds >= 1_000 else f"{milliseconds / 1_000:g}"
