"""Keeps messages of one session in order across an outage (``order="session"``): where each may go, and when.

The promise
-----------
When a send of a session has returned before another send of that session begins, both through one client, the message of
the first one arrives at the primary first. Sends of one session that overlap have no order, and a message that arrives
twice counts when it arrives first.

How it is kept
--------------
A session stays with its queue. The backlog queue of a session is chosen by a hash of entity and session, which is the same
in every process, and a queue keeps its order. The drain delivers one message of a session at a time.

A detour that goes on. After failback a session whose messages are still in the backlog goes on being parked, behind them, in
the same queue. It is *fenced*: its callers need not wait. Its sends go to the primary again once a look into the queue, from its
first message to its last, finds none of its messages. A look also shows messages that a drain has locked, and a drain
completes a message only after the primary has accepted it. So a message that cannot be seen has arrived, unless somebody has
taken it out of the queue or deleted the queue. A client that finds a queue deleted says so: the fence ends, and nothing is said
to have arrived (``queue_lost``).

What a client does not know it looks up. Another process may have parked messages of a session, or this one before it was
started again, in the session's own queue or in another one, if that failed. So at pairing and at each failback every queue
is *unseen*: sessions are parked, and follow what those queues hold, until looks into all of them have come to their ends.
With a spool, a client may be paired before its secondary answers: until then, its sessions go to the spool.

The last messages are waited for. A session that is sent to all the time would never be without a parked message. So when a
look shows that only a few are left, its sends are *held* for a moment, and go to the primary when those have arrived.

A queue that fails. The session moves to another queue. Messages there say in their passports what they follow, until one
that says so is accepted: the queue keeps the others behind it.

Rules
-----
Rule 1: what a look did not show counts only if nothing was parked since the look began (``_stamp``).
Rule 2: a session is forgotten only when a look has shown that none of its messages is left in any queue.
Rule 3: a message that was accepted by another queue than the session's own is followed by all later ones.
Rule 4: only a look that came to the end of a queue says which message of a session is the last one there. After any other, the
queue is followed as a whole.

No clock and no I/O here. ``client.backlog.fences`` looks into the queues, ``rules.flow`` asks where a send may go, by way of
``rules.send_order``. The values are in ``rules.order_values``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pairbus.pairing.parking import Follows
from pairbus.pairing.rules.order_values import (
    ALL,
    UNKNOWN,
    Fence,
    Key,
    Look,
    Oldest,
    Report,
    Route,
    Track,
    Unseen,
    earlier,
    queue_order,
)

if TYPE_CHECKING:
    from pairbus.pairing.rules.rotation import Rotation

TRACKS_MAX: Final = 100_000
"""Sessions that are remembered one by one. Beyond that, a queue with more sessions is unseen as a whole."""
DIRECT_MAX: Final = 10_000
"""Sessions sent to the primary that are remembered while fences stand, and likewise those that were parked."""
HOLD_MS: Final = 3_000
"""How long sends of a session wait at most for its last parked messages."""
HOLD_PAUSE_MS: Final = 10_000
"""How long after the beginning of one wait the next one may begin."""
HOLD_MESSAGES_MAX: Final = 100
"""Parked messages of a session that are few enough to wait for."""


class OrderBook:
    """What one client knows about the order of its sessions. Used under the lock of the client's state."""

    def __init__(self, timeout_ms: int, policy: str) -> None:
        self.is_busy = False
        """Whether any send may have to be parked for its order. The only thing that a healthy send looks at."""
        self.lifted = 0
        """How many fences were lifted so far."""
        self.queues: list[str] = []
        self._all: list[str] = []
        self._timeout_ms = timeout_ms
        self._policy = policy
        self._tracks: dict[Key, Track] = {}
        self._unseen: dict[tuple[str, str], Unseen] = {}
        self._away: set[str] = set()
        self._direct_since: dict[str, int] = {}
        """By entity: when this client began to send to the primary, as a time of day. Likewise when sends began to fail."""
        self._failing_since: dict[str, int] = {}
        self._spells: dict[str, tuple[int, int]] = {}
        """By entity: from when to when this client sent to the primary before the last failover."""
        self._direct: dict[Key, None] = {}
        self._own: dict[Key, None] = {}
        """Sessions of which this client has parked messages since it last knew the backlog to be empty."""
        self._reported: set[Key] = set()
        self._stamp = 0

    # --- pairing, failover, failback --------------------------------------------------------------

    def paired(self, queues: Sequence[str], now: int, wall_ms: int, *, unused: Sequence[str] = ()) -> None:
        """Pairing has ended: what is in the queues is not known. ``unused``: those that may hold messages, and get none.

        No queues: the secondary does not answer yet, and may hold messages of any session. It is paired again when it does.
        """
        self.queues = list(queues)
        self._all = [*queues, *unused]
        self._direct_since[ALL] = wall_ms
        self._unseen.pop((ALL, UNKNOWN), None)
        if not queues:
            self._unseen[ALL, UNKNOWN] = Unseen(Fence(now), self._stamp)
        self._make_unseen(ALL, now)

    def is_failing(self, entity: str, wall_ms: int) -> None:
        """Sends to an entity began to fail."""
        self._failing_since[entity] = wall_ms

    def failed_over(self, entity: str, wall_ms: int) -> None:
        """Sends to an entity go to the backlog."""
        if entity in self._away:
            return
        self._away.add(entity)
        since = self._direct_since.get(entity, self._direct_since.get(ALL, wall_ms))
        self._spells[entity] = since, self._failing_since.pop(entity, wall_ms)
        for (owner, _), track in self._tracks.items():
            if owner == entity:
                track.fence.begin(None)
        for (owner, _), unseen in self._unseen.items():
            if owner == entity:
                unseen.fence.begin(None)
        self._settle()

    def recovered(self, entity: str, now: int, wall_ms: int) -> list[Key]:
        """Sends to an entity may go to the primary again. Returns the sessions that this client has parked."""
        self._failing_since.pop(entity, None)
        if entity not in self._away:
            return []
        self._away.discard(entity)
        self._direct_since[entity] = wall_ms
        known = [key for key in self._tracks if key[0] == entity]
        for key in known:
            self._tracks[key].fence.begin(now)
        self._make_unseen(entity, now, follows_others=False)
        return known

    def parked_by_others(self, entity: str, now: int) -> None:
        """Another client may have parked messages that ours follow: what is in the queues is not known."""
        self._make_unseen(entity, None if entity in self._away else now)
        for key, track in self._tracks.items():
            if key[0] == entity:
                track.held |= {queue: Follows(queue) for queue in self._all}
                track.stamps |= dict.fromkeys(self._all, self._stamp)
                track.owed = {queue: one for queue, one in track.held.items() if queue != track.queue}
                track.generation += 1

    def _make_unseen(self, entity: str, now: int | None, *, follows_others: bool = True) -> None:
        self._stamp += 1
        for queue in self._all:
            before = self._unseen.get((entity, queue))
            follows = follows_others or (before is not None and before.follows_others)
            self._unseen[entity, queue] = Unseen(Fence(now), self._stamp, follows)
        self._settle()

    def _settle(self) -> None:
        self.is_busy = bool(self._tracks or self._unseen or self._away)
        if not self.is_busy:
            self._direct.clear()
            self._own.clear()
            self._reported.clear()
            self._spells.clear()

    # --- questions --------------------------------------------------------------------------------

    def route(self, key: Key) -> Route:
        """Where a message may go while its entity takes sends."""
        fence = self._fence_of(key)
        if fence is None or fence.is_overtaken:
            return Route.DIRECT
        return Route.REFUSE if fence.is_timed_out and self._policy == "raise" else Route.PARK

    def _fence_of(self, key: Key) -> Fence | None:
        track = self._tracks.get(key)
        if track is not None:
            return track.fence
        # Any queue may hold messages of it: its own may have failed for a client before.
        fences = [unseen.fence for (owner, _), unseen in self._unseen.items() if owner in (ALL, key[0])]
        return next((fence for fence in fences if not fence.is_overtaken), None)

    def held_ms(self, key: Key, now: int) -> int:
        """How long a send of a fenced session may wait for the last parked messages; 0: it should not."""
        track = self._tracks.get(key)
        return 0 if track is None else max(0, track.held_until_ms - now)

    def is_holding(self, now: int) -> bool:
        """Whether sends wait for parked messages: looks should follow each other quickly."""
        return any(track.held_until_ms > now for track in self._tracks.values())

    def oldest(self, key: Key) -> Oldest | None:
        """The oldest message of a session in the backlog, if a look has shown it or this client has parked it."""
        track = self._tracks.get(key)
        if track is None or not track.oldest:
            return None
        return min(track.oldest.values(), key=lambda one: one.first_send_ms)

    def is_tracked(self, key: Key) -> bool:
        """Whether messages of a session may be in the backlog, and where is known."""
        return key in self._tracks

    def home(self, key: Key) -> str:
        """The queue that a session belongs to; empty when the client has no queues."""
        return next(iter(queue_order(key, self.queues)), "")

    def fenced(self, entity: str) -> int:
        """How many sessions of an entity that takes sends are fenced."""
        return sum(
            1 for key, track in self._tracks.items() if key[0] == entity and track.fence.since_ms is not None
        )

    def fences(self) -> int:
        """How many sessions are fenced."""
        return sum(1 for track in self._tracks.values() if track.fence.since_ms is not None)

    def oldest_of(self, entity: str) -> int | None:
        """When the oldest parked message of an entity was sent, as a time of day; None: none is known."""
        times = [
            one.first_send_ms
            for key, track in self._tracks.items()
            if key[0] == entity
            for one in track.oldest.values()
        ]
        return min(times, default=None)

    # --- parking ----------------------------------------------------------------------------------

    def plan(
        self, key: Key, rotation: Rotation, tried: Container[str]
    ) -> tuple[str | None, tuple[Follows, ...], int]:
        """The queue for the next message of a session, what it follows there, and the generation of that.

        The session moves when its queue is out of the rotation, or has failed for this send. None: no queue is left.
        """
        track = self._tracks.get(key)
        if track is None:
            return self._first_plan(key, rotation, tried)
        is_out = track.queue not in rotation.usable or track.queue in tried
        if is_out or track.queue not in track.held:
            queue = self._next_queue(key, track, rotation, tried)
            if queue is None:
                return None, (), 0
            if queue != track.queue:
                self._move(track, queue)
        follows = tuple(track.owed.values())
        if self._unseen:
            # It was met in one queue, and another client may have parked messages of it in others.
            rest = self.unseen_elsewhere(key, track.queue, is_tracked=True)
            follows += tuple(one for one in rest if one.queue not in track.held)
        return track.queue, follows, track.generation

    def _first_plan(
        self, key: Key, rotation: Rotation, tried: Container[str]
    ) -> tuple[str | None, tuple[Follows, ...], int]:
        ordered = queue_order(key, self.queues)
        if not ordered:
            return None, (), 0
        queue = self._usable(key, rotation, tried, ordered[0])
        if queue is None:
            return None, (), 0
        return queue, self.unseen_elsewhere(key, queue), 0

    def unseen_elsewhere(self, key: Key, queue: str, *, is_tracked: bool = False) -> tuple[Follows, ...]:
        """Nobody has seen whether other queues hold messages of a session: it follows whatever is there.

        ``is_tracked``: where this client has parked it is known, and only what others may have parked counts.
        """
        if not self._unseen:
            return ()
        names = {
            name
            for (owner, name), unseen in self._unseen.items()
            if owner in (ALL, key[0])
            and name not in (queue, UNKNOWN)
            and (unseen.follows_others or not is_tracked)
        }
        return tuple(Follows(name) for name in sorted(names))

    def held_elsewhere(self, key: Key, queue: str) -> tuple[Follows, ...]:
        """The last known messages of a session in all queues but this one."""
        track = self._tracks.get(key)
        return () if track is None else tuple(one for name, one in track.held.items() if name != queue)

    def _next_queue(self, key: Key, track: Track, rotation: Rotation, tried: Container[str]) -> str | None:
        """Where a session goes on. A queue that has messages of it comes first: behind them, they need not be followed.

        While no queue accepts anything, a session is tried in one after the other, and returns when they are back.
        """
        for queue in sorted(track.held, key=lambda name: track.stamps.get(name, 0), reverse=True):
            if queue not in tried and (
                queue in rotation.usable or (queue in rotation.evicted and not rotation.usable)
            ):
                return queue
        return self._usable(key, rotation, tried, track.queue)

    def _usable(self, key: Key, rotation: Rotation, tried: Container[str], own: str) -> str | None:
        for queue in queue_order(key, self.queues):
            if queue in rotation.usable and queue not in tried:
                return queue
        if rotation.usable:
            return None
        return own if own in self.queues and own not in tried else rotation.last_resort(tried)

    def _move(self, track: Track, queue: str) -> None:
        left = track.held.get(track.queue)
        if left is not None:
            track.owed[track.queue] = left
        track.owed.pop(queue, None)
        track.queue = queue
        track.generation += 1

    def accepted(
        self, key: Key, queue: str, last: Follows, generation: int, oldest: Oldest, now: int
    ) -> bool:
        """A queue has accepted a message of a session. True: that made a fence."""
        self._stamp += 1
        if len(self._own) < DIRECT_MAX:
            self._own[key] = None
        track = self._tracks.get(key)
        is_new = track is None
        if track is None:
            fence = Fence(None if key[0] in self._away else now)
            track = Track(queue, fence, generation=generation)
            if len(self._tracks) < TRACKS_MAX:
                self._tracks[key] = track
            else:
                self._unseen[key[0], queue] = Unseen(fence, self._stamp)
        known = track.held.get(queue)
        if known is None or known.factory != last.factory or known.detour < last.detour:
            track.held[queue] = last
        track.stamps[queue] = self._stamp
        if queue not in track.oldest:
            track.oldest[queue] = oldest
        if queue != track.queue:
            track.owed[queue] = track.held[queue]
            track.generation += 1
        elif generation == track.generation and earlier(
            track.owed.values(), last.factory, last.detour
        ) == tuple(track.owed.values()):
            # It said all of it: nothing that it follows has a higher number than its own.
            track.owed.clear()
        self._settle()
        return is_new and track.fence.since_ms is not None

    def went_direct(self, keys: Iterable[Key]) -> None:
        """Messages of these sessions went to the primary while fences stand."""
        for key in keys:
            if len(self._direct) < DIRECT_MAX:
                self._direct[key] = None

    # --- looks ------------------------------------------------------------------------------------

    def wanted(self) -> list[str]:
        """The queues to look into now, in the order of the pairing."""
        wanted = {queue for entity, queue in self._unseen if entity not in self._away and queue != UNKNOWN}
        for (entity, _), track in self._tracks.items():
            if entity not in self._away:
                wanted.update(track.held)
        known = [queue for queue in self._all if queue in wanted]
        return known + sorted(wanted.difference(known))

    def begin_look(self, queue: str) -> Look:
        self._stamp += 1
        return Look(queue, self._stamp)

    def has_seen_enough(self, look: Look) -> bool:
        """Whether the rest of the queue cannot change anything: every session that is waited for has been met."""
        if any(queue == look.queue for entity, queue in self._unseen if entity not in self._away):
            return False
        return all(
            key in look.met
            for key, track in self._tracks.items()
            if look.queue in track.held and key[0] not in self._away
        )

    def end_look(self, look: Look, now: int) -> Report:
        """Draw the conclusions of a look."""
        crossed = self._crossed(look)
        fenced = self._met(look, now)
        lifted: list[Key] = []
        lost: list[Key] = []
        if look.is_complete:
            for key in [key for key, track in self._tracks.items() if look.queue in track.held]:
                if key not in look.met and self._tracks[key].stamps.get(look.queue, 0) < look.stamp:
                    self._emptied(self._tracks[key], look.queue)
                    if not self._tracks[key].held:
                        (lost if self._tracks.pop(key).has_lost else lifted).append(key)
                        self.lifted += 1
            untracked = {key[0] for key in look.met if key not in self._tracks}
            for owner, queue in list(self._unseen):
                is_known = owner not in untracked if owner else not untracked
                if queue == look.queue and is_known and self._unseen[owner, queue].stamp < look.stamp:
                    del self._unseen[owner, queue]
        self._settle()
        return Report(lifted, lost, fenced, crossed)

    def queue_lost(self, queue: str) -> int:
        """Somebody has deleted a queue. Returns how many sessions may have lost messages with it that are not known to have before.

        Looks end their fences, as always: the queue is missing or was created again, and new messages may be in it.
        """
        count = 0
        for track in self._tracks.values():
            if queue in track.held:
                track.oldest.pop(queue, None)
                count += not track.has_lost
                track.has_lost = True
        return count

    def _met(self, look: Look, now: int) -> list[Key]:
        """Note the sessions that were met. Returns those that are fenced for it."""
        queue, fenced = look.queue, []
        for key, (first, last) in look.met.items():
            track = self._tracks.get(key)
            oldest = Oldest(first.message_id, queue, first.first_send_ms)
            # Rule 4: what is beyond the last one that was seen is followed, too.
            follows = Follows(queue, last.factory, last.detour) if look.is_complete else Follows(queue)
            if track is not None:
                if queue not in track.held:
                    track.held[queue] = follows
                    if queue != track.queue:
                        track.owed[queue] = follows
                        track.generation += 1
                track.oldest[queue] = oldest
                self._hold(track, look, look.counts[key], now)
            elif len(self._tracks) < TRACKS_MAX and self._is_unseen(key[0], look):
                track = Track(queue, Fence(None if key[0] in self._away else now))
                track.held[queue] = follows
                track.oldest[queue] = oldest
                self._tracks[key] = track
                fenced.append(key)
        return fenced

    def _hold(self, track: Track, look: Look, count: int, now: int) -> None:
        """Let sends of a session wait for its last messages, if it would not be without any by itself."""
        is_busy = max(track.stamps.values(), default=0) > track.looked > 0
        track.looked = look.stamp
        is_fenced = track.fence.since_ms is not None and not track.fence.is_overtaken
        is_short = look.is_complete and count <= HOLD_MESSAGES_MAX and len(track.held) == 1
        if is_busy and is_fenced and is_short and now >= track.next_hold_ms:
            track.held_until_ms, track.next_hold_ms = now + HOLD_MS, now + HOLD_PAUSE_MS

    def _is_unseen(self, entity: str, look: Look) -> bool:
        return (entity, look.queue) in self._unseen or (ALL, look.queue) in self._unseen

    def _emptied(self, track: Track, queue: str) -> None:
        del track.held[queue]
        track.stamps.pop(queue, None)
        track.oldest.pop(queue, None)
        track.owed.pop(queue, None)
        if queue == track.queue and track.held:
            # Messages that said what they follow have left: the next one must say it again.
            track.owed = dict(track.held)
            track.generation += 1

    def _crossed(self, look: Look) -> list[Key]:
        """Sessions that others have parked while this client sent them to the primary, or may have. Each is reported once.

        Nobody notes what a healthy send sends. So of the time before a failover only sessions count that this client has sent since.
        """
        crossed = []
        for key, sent_ms in look.foreign.items():
            spell = self._spells.get(key[0])
            was_direct = spell is not None and spell[0] <= sent_ms < spell[1] and key[0] not in self._away
            is_concerned = key in self._direct or (was_direct and key in self._own)
            if is_concerned and key not in self._reported:
                self._reported.add(key)
                crossed.append(key)
        return crossed

    # --- the bound --------------------------------------------------------------------------------

    def expire(self, now: int) -> tuple[list[Key], list[str]]:
        """Apply the policy to fences that stand too long. Returns those sessions, and queues that are unseen too long."""
        sessions: list[Key] = []
        for key, track in self._tracks.items():
            if track.fence.is_due(now, self._timeout_ms):
                self._time_out(track.fence)
                sessions.append(key)
        queues: dict[str, None] = {}
        for (_, queue), unseen in self._unseen.items():
            if unseen.fence.is_due(now, self._timeout_ms):
                self._time_out(unseen.fence)
                queues[queue] = None
        return sessions, list(queues)

    def _time_out(self, fence: Fence) -> None:
        fence.is_timed_out = True
        fence.is_overtaken = self._policy == "overtake"
