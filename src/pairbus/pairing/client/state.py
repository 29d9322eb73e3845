"""What all senders of one paired client share: health of entities, rotation, counters, events.

Nothing here waits. Every method is short and runs under one lock, so that all threads see one order of events (P20).
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from pairbus.errors import RemoteProtocolError, UsageError
from pairbus.pairing import parking
from pairbus.pairing.client import explaining
from pairbus.pairing.client.sending.send import Stamp
from pairbus.pairing.errors import InvalidMessageError
from pairbus.pairing.events import Event, EventLog, Kind, Listener
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import SendAvailabilityOptions, Trigger, milliseconds
from pairbus.pairing.parking import Follows, Passport
from pairbus.pairing.rules.flow import Choice, SendFlow
from pairbus.pairing.rules.health import Change, EntityHealth, EntityReport, Health
from pairbus.pairing.rules.order import OrderBook
from pairbus.pairing.rules.order_values import Key
from pairbus.pairing.rules.rotation import Chooser, Eviction, Rotation
from pairbus.pairing.rules.send_order import SendOrder
from pairbus.pairing.rules.trigger import counts
from pairbus.pairing.statistics import Counters, Statistics, Tally, snapshot
from pairbus.spool.directory import Spools
from pairbus.spool.file import Content
from pairbus.spool.left_behind import LeftBehind

NAMES_MAX: Final = 20
"""How many known entities an error about an unknown one lists."""
FENCE_NAMES_MAX: Final = 5
"""How many sessions an event names."""
DECISIONS_MAX: Final = 200
"""How many lines of history ``explain`` keeps per entity."""

logger = logging.getLogger("pairbus.pairing")

_KINDS: Final = {
    Health.SUSPECT: Kind.SUSPECT,
    Health.FAILED_OVER: Kind.FAILED_OVER,
    Health.REFUSING: Kind.REFUSED,
    Health.HEALTHY: Kind.RECOVERED,
}


class PairingState:
    """The shared state of one paired client.

    Args:
        name: A unique name of this client, for passports.
        primary: The primary namespace's own name.
        identity: Address of the primary, for passports.
        secondary: The secondary's name, for people.
        options: How to behave.
        chooser: Randomness.
        clock: A steady clock in milliseconds.
        wall_clock: The time of day in milliseconds.
        on_change: Called after each change of an entity's state, so that the client can start its watch.
        listener: The application's event callback.
    """

    def __init__(
        self,
        *,
        name: str,
        primary: str,
        identity: str = "",
        secondary: str,
        options: SendAvailabilityOptions,
        chooser: Chooser,
        clock: Callable[[], int],
        wall_clock: Callable[[], int],
        on_change: Callable[[EntityHealth], None],
        listener: Listener | None = None,
    ) -> None:
        self.name = name
        self.primary = primary
        self.identity = identity
        self.secondary = secondary
        self.options = options
        self.clock = clock
        self.wall_clock = wall_clock
        self.counters = Counters()
        self._retired_total = Tally()
        self._tallies: list[Tally] = []
        self._retired: deque[Tally] = deque()
        self.retire: Final[Callable[[Tally], None]] = self._retired.append
        """Takes the tally of a sender that nobody has any more. The garbage collector calls it, so it takes no lock; and it is
        no method, for what waits for that call must not keep the state, whose listener may lead back to the sender."""
        self.events = EventLog(listener)
        self.lock = threading.RLock()
        self.failover_interval_ms = milliseconds(options.failover_interval)
        self.ping_interval_ms = milliseconds(options.ping_primary_interval)
        self.is_paired = False
        self.is_pairing = False
        """A caller pairs the client. Sends wait for the end of it: what lies in a spool or in the backlog goes before them."""
        self._has_warned_not_paired = False
        self.drained_only: list[str] = []
        """Backlog queues that must not be used but may hold messages of an earlier pairing."""
        self.extra_queues: list[str] = []
        """Backlog queues beyond the count that held messages at pairing. Neither used nor drained; their sessions are followed."""
        self.journal: Callable[[Event, int], None] | None = None
        self._on_change = on_change
        self._rotation = Rotation((), self.ping_interval_ms, chooser)
        self._chooser = chooser
        self._healths: dict[str, EntityHealth] = {}
        self._decisions: dict[str, deque[str]] = {}
        self.order = OrderBook(milliseconds(options.fence_timeout), options.fence_policy)
        """Knows nothing and is never busy while the options ask for no order."""
        self.keeps_order = options.order != "relaxed"
        self._fences: set[Key] = set()
        """The sessions that are counted as fenced, until their fences are lifted."""
        self._detours = 0
        self._process = os.getpid()
        self.spools: Spools | None = None
        self.left_behind = LeftBehind(())
        self._trigger: Trigger = self._own_rule if callable(options.trigger) else options.trigger

    # --- pairing ----------------------------------------------------------------------------------

    def paired_with(self, queues: Sequence[str]) -> None:
        """Pairing has ended well: sends may be detoured to these queues from here on (P30)."""
        with self.lock:
            self._rotation = Rotation(queues, self.ping_interval_ms, self._chooser)
            if self.keeps_order:
                unused = [*self.drained_only, *self.extra_queues]
                self.order.paired(queues, self.clock(), self.wall_clock(), unused=unused)
            self.is_paired = True
        self.emit(
            Kind.PAIRED,
            self.primary,
            f"paired with {self.secondary}: {len(queues)} backlog queues",
            queues=len(queues),
        )

    def warn_not_paired(self, path: str) -> None:
        """Warn once that a failed send cannot be detoured: the program may have forgotten to pair."""
        if not self._has_warned_not_paired:
            self._has_warned_not_paired = True
            logger.warning(
                "%s: a send failed, and the client is not paired, so nothing is detoured: use `with client`, or call "
                "pair()",
                path,
                extra={"event": "pairing.not_paired"},
            )

    @property
    def usable_queues(self) -> list[str]:
        """The backlog queues in rotation."""
        with self.lock:
            return list(self._rotation.usable)

    @property
    def queues(self) -> list[str]:
        """Every backlog queue of the pairing, evicted ones included."""
        with self.lock:
            return [*self._rotation.usable, *self._rotation.evicted]

    @property
    def drained_queues(self) -> list[str]:
        """Every backlog queue that a drain reads."""
        return [*self.queues, *self.drained_only]

    def change_ping_interval(self, interval_ms: int) -> None:
        """The next ping of every entity uses it."""
        with self.lock:
            self.ping_interval_ms = interval_ms
            self._rotation.retry_ms = interval_ms
            for health in self._healths.values():
                health.pings.change_interval(interval_ms)

    # --- entities ---------------------------------------------------------------------------------

    def health_of(self, path: str) -> EntityHealth:
        """The one health of an entity, however its path is written."""
        key = entity_key(path)
        with self.lock:
            found = self._healths.get(key)
            if found is None:
                found = EntityHealth(
                    path.strip("/"),
                    self.failover_interval_ms,
                    self.ping_interval_ms,
                    self.options.healthy_pings,
                    self.clock(),
                )
                self._healths[key] = found
            return found

    def healths(self) -> list[EntityHealth]:
        """Those of all entities that are known. Called under the lock."""
        return list(self._healths.values())

    def out_of_rotation(self) -> list[Eviction]:
        """The backlog queues that are not used now. Called under the lock."""
        return list(self._rotation.evicted.values())

    def decisions(self, path: str) -> list[str]:
        """What was noted about an entity. Called under the lock."""
        return list(self._decisions.get(entity_key(path), ()))

    def known(self, path: str) -> EntityHealth:
        """The health of an entity that has a sender or was failed over; UsageError when there is none."""
        with self.lock:
            found = self._healths.get(entity_key(path))
            if found is None:
                names = ", ".join(sorted(health.path for health in self._healths.values())[:NAMES_MAX])
                raise UsageError(
                    f"entity {path!r} is not known to this client; known are: {names or 'none yet'}"
                )
            return found

    def is_failed_over(self, path: str) -> bool:
        """Whether sends to an entity go to the backlog. Asking about an unknown one makes no health of it."""
        found = self._healths.get(entity_key(path))
        return found is not None and found.state is Health.FAILED_OVER

    def reports(self) -> dict[str, EntityReport]:
        """What is known of each entity, by its path."""
        return explaining.reports(self)

    def fail_over(self, path: str) -> None:
        """Switch one entity to the backlog by hand."""
        health = self.health_of(path)
        with self.lock:
            self.apply(health, health.fail_over(self.clock()))

    def mark_healthy(self, path: str) -> None:
        """Switch one entity to the primary by hand."""
        health = self.known(path)
        with self.lock:
            self.apply(health, health.mark_healthy(self.clock()))

    def apply(self, health: EntityHealth, changes: Sequence[Change]) -> None:
        """Tell of changes, exactly once and in order (P45)."""
        for change in changes:
            if change.after is Health.FAILED_OVER:
                self.counters.failovers += 1
            elif change.after is Health.HEALTHY and change.before is not Health.SUSPECT:
                self.counters.recoveries += 1
            if self.keeps_order:
                self._order_changed(change)
            self.note(health, f"{change.before.value} → {change.after.value}: {change.why}")
            self.emit(
                _KINDS[change.after],
                change.path,
                change.why,
                before=change.before.value,
                after=change.after.value,
            )
            self._on_change(health)

    def _order_changed(self, change: Change) -> None:
        entity = entity_key(change.path)
        if change.after is Health.SUSPECT:
            self.order.is_failing(entity, self.wall_clock())
        elif change.after is Health.FAILED_OVER:
            self.order.failed_over(entity, self.wall_clock())
        elif change.after is Health.HEALTHY:
            known = self.order.recovered(entity, change.at_ms, self.wall_clock())
            if known:
                self.fences_stand(known)
                names = [name for _, name in known[:FENCE_NAMES_MAX]]
                text = (
                    f"session {names[0]!r} goes on being parked until its parked messages have arrived"
                    if len(known) == 1
                    else f"{len(known)} sessions go on being parked until their parked messages have arrived"
                )
                self.emit(Kind.FENCE_STANDS, change.path, text, sessions=len(known), names=names)

    def fences_stand(self, keys: Iterable[Key]) -> None:
        """Count fences. One that stands since an earlier failback is not counted again. Called under the lock."""
        new = set(keys).difference(self._fences)
        self._fences |= new
        self.counters.fences += len(new)

    def fences_ended(self, lifted: Iterable[Key], lost: Iterable[Key]) -> None:
        """Count fences that were counted before and are gone. Called under the lock.

        Args:
            lifted: Sessions whose messages have arrived.
            lost: Sessions of which a queue with messages was deleted.
        """
        self.counters.fences_lifted += len(self._fences.intersection(lifted))
        self.counters.fences_lost += len(self._fences.intersection(lost))
        self._fences.difference_update(lifted, lost)
        if not self.order.is_busy:
            self._fences.clear()

    def path_of(self, entity: str) -> str:
        """An entity's path as it was first written; the key itself for one that this client does not know."""
        found = self._healths.get(entity)
        return entity if found is None else found.path

    def note(self, health: EntityHealth, text: str) -> None:
        """Remember a decision for ``explain``."""
        lines = self._decisions.setdefault(entity_key(health.path), deque(maxlen=DECISIONS_MAX))
        lines.append(f"{self.time_of_day(self.clock())}  {text}")

    def time_of(self, at_ms: int) -> datetime:
        """The time of day of an instant of the steady clock."""
        wall_ms = self.wall_clock() - (self.clock() - at_ms)
        return datetime.fromtimestamp(wall_ms / 1000, UTC)

    def time_of_day(self, at_ms: int) -> str:
        """An instant of the steady clock as people read it."""
        return self.time_of(at_ms).isoformat(timespec="milliseconds")

    def explain(self, path: str) -> list[str]:
        """Why an entity is in its state: its errors, timers, pings and decisions, oldest first."""
        return explaining.explain(self, path)

    # --- sends ------------------------------------------------------------------------------------

    def order_of(self, health: EntityHealth, keys: Sequence[str | None]) -> SendOrder:
        """The order of one send whose messages have these keys."""
        offset_ms = self.wall_clock() - self.clock()
        return SendOrder(self.order, health.path, entity_key(health.path), keys, offset_ms)

    def flow(
        self,
        health: EntityHealth,
        choice: Choice,
        deadline_ms: int,
        *,
        has_spool: bool = False,
        order: SendOrder | None = None,
    ) -> SendFlow:
        """The decisions of one send."""
        return SendFlow(
            health,
            self._rotation,
            choice,
            self._trigger,
            deadline_ms,
            holds_while_suspect=self.options.while_suspect == "wait",
            has_spool=has_spool,
            order=order,
        )

    def counts(self, error: BaseException, health: EntityHealth) -> bool:
        """Whether an error counts as an outage of an entity."""
        return counts(error, self._trigger, has_accepted=health.has_accepted)

    def _own_rule(self, error: BaseException) -> bool:
        """The application's own trigger. An error for which it raises does not count, and is logged."""
        assert callable(self.options.trigger)
        try:
            with self.events.calling_back():
                return bool(self.options.trigger(error))
        except Exception:
            logger.exception("the trigger failed", extra={"event": "pairing.trigger_failed"})
            return False

    def park(self, payloads: Sequence[bytes], path: str, reason: str) -> list[bytes]:
        """The parked forms of messages for one entity. Each has a number of its own, so that no two are alike."""
        stamp = self.stamp(len(payloads), reason)
        return [self.parked_form(payload, path, stamp, place) for place, payload in enumerate(payloads)]

    def stamp(self, count: int, reason: str) -> Stamp:
        """Numbers for the passports of messages that are about to be parked."""
        with self.lock:
            if self._process != os.getpid():
                # Parent and child would give the same numbers to different messages.
                self._process, self.name = os.getpid(), uuid.uuid4().hex[:12]
            first = self._detours + 1
            self._detours += count
            return Stamp(self.name, first, self.wall_clock(), reason)

    def parked_form(
        self, payload: bytes, path: str, stamp: Stamp, place: int, follows: tuple[Follows, ...] = ()
    ) -> bytes:
        """The parked form of one message of a send. ``place``: which one of the send it is."""
        passport = Passport(
            stamp.client,
            stamp.at_ms,
            stamp.first + place,
            stamp.reason,
            primary=self.identity,
            follows=follows,
            order=self.options.order,
        )
        try:
            return parking.park(payload, path, passport, is_checked=True)
        except RemoteProtocolError as error:
            raise InvalidMessageError(f"the message cannot be encoded: {error}") from error

    def evicted(self, queue: str, why: str) -> None:
        """Tell that a queue left the rotation."""
        self.counters.evictions += 1
        self.emit(Kind.QUEUE_EVICTED, queue, f"left the rotation: {why}")

    def refused(self, queue: str, why: str) -> None:
        """A queue turned out, without a send, to be one that must not be used."""
        with self.lock:
            if self._rotation.refused(queue, self.clock(), why):
                self.evicted(queue, why)

    def readmitted(self, queue: str, accepting: str) -> None:
        """Tell that a queue is back in the rotation. ``accepting``: the one that has accepted a message, itself or another."""
        self.counters.readmissions += 1
        text = (
            "accepts again" if queue == accepting else f"is tried again: the secondary is back ({accepting})"
        )
        self.emit(Kind.QUEUE_READMITTED, queue, text)

    def parked_in(self, queue: str) -> dict[EntityHealth, int]:
        """How many messages of each entity may be in a queue. Called under the lock."""
        return {one: count for one in self._healths.values() if (count := one.parked_in.get(queue, 0))}

    def queue_lost(self, queue: str) -> None:
        """The secondary says that a backlog queue does not exist. Tell once what that means, if this client has used it."""
        with self.lock:
            parked = sum(one.queue_lost(queue) for one in self._healths.values())
            sessions = self.order.queue_lost(queue)
            if not parked and not sessions:
                return
            self.counters.backlog_queues_lost += 1
            self.counters.parked_lost += parked
            whose = (
                f"up to {parked} of the messages that this client has parked; a drain may have delivered some of them before"
                if parked
                else "messages that other clients had parked"
            )
            self.emit(
                Kind.BACKLOG_LOST,
                queue,
                f"somebody deleted it, and whatever was still in it is gone: {whose}. `pairbus reconcile` names those that never "
                "arrived",
                is_loud=True,
                messages=parked,
                sessions=sessions,
            )

    # --- seeing -----------------------------------------------------------------------------------

    def emit(self, kind: Kind, subject: str, text: str, *, is_loud: bool = False, **data: object) -> None:
        now = self.clock()
        event = Event(kind, subject, text, now, dict(data), is_loud, self.time_of(now))
        self.events.add(event)
        if self.journal is not None:
            try:
                self.journal(event, self.wall_clock())
            except OSError:
                # A full disk must neither fail a send nor end the watch over an entity.
                logger.warning(
                    "an event is not in the journal", exc_info=True, extra={"event": "pairing.journal_failed"}
                )

    def new_tally(self) -> Tally:
        """The counts of a new sender."""
        tally = Tally()
        with self.lock:
            self._add_retired()
            self._tallies.append(tally)
        return tally

    def _add(self, tally: Tally) -> None:
        """Keep the counts of a sender without its tally: nobody has the sender any more, so no send of it is under way."""
        with self.lock:
            if tally in self._tallies:
                self._tallies.remove(tally)
                self._retired_total.add(tally)

    def _add_retired(self) -> None:
        while self._retired:
            self._add(self._retired.popleft())

    def _total(self) -> Tally:
        self._add_retired()
        total = Tally()
        for tally in (self._retired_total, *self._tallies):
            total.add(tally)
        return total

    def statistics(self, oldest_age_ms: int | None = None, drain_rate_per_s: float = 0.0) -> Statistics:
        left = self.left_behind.look()
        with self.lock:
            return snapshot(
                self.counters,
                self._total(),
                usable=len(self._rotation.usable),
                evicted=len(self._rotation.evicted),
                failed_over=sum(1 for r in self._healths.values() if r.state is Health.FAILED_OVER),
                sessions_fenced=self.order.fences(),
                oldest_parked_age_ms=max(
                    (
                        age
                        for one in self._healths.values()
                        if (age := explaining.oldest_age_ms(self, one)) is not None
                    ),
                    default=None,
                ),
                oldest_age_ms=oldest_age_ms,
                drain_rate_per_s=drain_rate_per_s,
                spool=self.spools.total() if self.spools is not None else Content(""),
                left_behind=sum(content.count for one in left for content in one.contents.values()),
                now_ms=self.wall_clock(),
            )
