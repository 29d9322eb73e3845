"""Decides whether this node owns its shard, until when it may write, and which call to the database comes next.

The lease is a row in the database: who owns the shard, under which *epoch*, until when by the database's clock. Each node runs this
machine. It reads no clock and performs nothing; its caller, ``keeper`` or a simulation, passes the time in, performs the calls and
reports their outcomes.

    IDLE       somebody else owns the shard, or nobody does: look at it often; once its lease has ended or was given back ─► ACQUIRING
    ACQUIRING  take the shard: the epoch grows by one, and an empty frame fences the former owner                          ─► REPLAYING
    REPLAYING  the shell reads the log and builds the engine; the lease is renewed meanwhile                               ─► SERVING
    SERVING    the node answers and delivers
                 the lease has ended by our own clock                                                                      ─► SILENT
                 asked to stop or to move                                                                                  ─► DRAINING
    SILENT     nothing is written, sealed or delivered. A renewal that still finds our epoch                               ─► SERVING
    DRAINING   clients are told to reconnect and the last commit is made; then the lease is given back                     ─► IDLE
    FENCED     the shard has another epoch, or was moved to another store: this node may never write again under the old one. Its
               process ends.

Rule 1: the lease is counted from *before* the renewal was sent. The database counts it from when it received the renewal, which is
        later, so by the time another node may take the shard ours has ended. No two clocks are compared.
Rule 2: we stop a margin earlier, for the time between asking ``may_write`` and the last byte, and for clocks that run at
        slightly different speeds.
Rule 3: an unknown outcome changes nothing: a renewal without an answer does not prolong the lease, and after an acquisition without
        an answer the node waits like any other until the lease, which may be its own, has ended.
Rule 4: a lease that has ended can still be renewed as long as the epoch is ours, because a node that takes the shard changes the epoch.

All instants are nanoseconds of one monotonic clock of this machine. ``writes_until_ns`` may be read by other threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.storage.table.ports import Acquired, Ownership

NS_PER_MS: Final = 1_000_000
RENEWALS_PER_LEASE: Final = 5
MARGIN_PART: Final = 10
"""The margin is this part of the lease: a tenth."""
LOOK_MS_MAX: Final = 200
"""The longest time between two looks at a shard that somebody else owns: so soon is a lease seen that was given back."""
RETRY_PART: Final = 20
"""After an unknown outcome the call is repeated after this part of the lease: a twentieth."""
RETRY_MS_MIN: Final = 10


class LeaseState(Enum):
    """Where a node stands; the head of the module has the meaning of each."""

    IDLE = "idle"
    ACQUIRING = "acquiring"
    REPLAYING = "replaying"
    SERVING = "serving"
    SILENT = "silent"
    DRAINING = "draining"
    FENCED = "fenced"


class LeaseCall(Enum):
    """A call of ``LeaseTable``, or none."""

    LOOK = "look"
    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    NONE = "none"
    """There is nothing to call any more: the node is fenced."""


@dataclass(frozen=True, slots=True)
class NextCall:
    """What to call next, and not before when."""

    call: LeaseCall
    at_ns: int


class Lease:
    """One node's part in the lease of one shard.

    The caller repeats: ``next_call``; wait until its instant; ``begin``; perform the call; report its outcome with ``looked``,
    ``acquired``, ``sequence_taken``, ``renewed``, ``released`` or ``unknown``. The remaining methods may be called in between.

    Args:
        node: The name of this node, as the database knows it.
        lease_ms: How long the lease lasts from each renewal.
        now_ns: The present instant.
        margin_ms: How much earlier this node stops writing; None: a tenth of the lease.
        takes_part: Whether this node takes the shard when it is free.
    """

    __slots__ = (
        "_acquired",
        "_call",
        "_held_off_epoch",
        "_held_off_until_ns",
        "_is_drained",
        "_lease_ns",
        "_margin_ns",
        "_next_ns",
        "_ownership",
        "_retry_ns",
        "_sent_ns",
        "_state",
        "_takes_part",
        "_until_ns",
        "lease_ms",
        "node",
        "writes_until_ns",
    )

    def __init__(
        self,
        node: str,
        lease_ms: int,
        now_ns: int,
        *,
        margin_ms: int | None = None,
        takes_part: bool = True,
    ) -> None:
        self.node = node
        self.lease_ms = lease_ms
        self._lease_ns = lease_ms * NS_PER_MS
        self._margin_ns = self._lease_ns // MARGIN_PART if margin_ms is None else margin_ms * NS_PER_MS
        self._retry_ns = max(self._lease_ns // RETRY_PART, RETRY_MS_MIN * NS_PER_MS)
        self._state = LeaseState.IDLE
        self._takes_part = takes_part
        self._call = LeaseCall.NONE
        """The call under way."""
        self._sent_ns = 0
        """When it began."""
        self._next_ns = now_ns
        self._until_ns = 0
        """Until when the lease lasts, less the margin."""
        self.writes_until_ns = 0
        """Until when this node may write, seal and deliver; 0: not at all."""
        self._acquired: Acquired | None = None
        self._ownership: Ownership | None = None
        self._is_drained = False
        self._held_off_until_ns = 0
        self._held_off_epoch = -1

    # What the shell asks.

    @property
    def held(self) -> Acquired | None:
        """The epoch and the fence under which this node owns the shard; None: it does not own it."""
        return self._acquired

    @property
    def ownership(self) -> Ownership | None:
        """What the last look found; None: nothing is known, or the database has not answered since."""
        return self._ownership

    def state(self, now_ns: int) -> LeaseState:
        """Where this node stands at this instant: SERVING turns into SILENT by the passing of time alone."""
        if self._state is LeaseState.SERVING and now_ns >= self.writes_until_ns:
            return LeaseState.SILENT
        return self._state

    def may_write(self, now_ns: int) -> bool:
        """Whether output may be written, a batch sealed and messages delivered at this instant."""
        return now_ns < self.writes_until_ns

    def next_call(self) -> NextCall:
        """The call to perform next. It may change until ``begin``, for example when the node is asked to drain."""
        if self._state is LeaseState.FENCED:
            return NextCall(LeaseCall.NONE, self._next_ns)
        if self._state is LeaseState.IDLE:
            return NextCall(LeaseCall.LOOK, self._next_ns)
        if self._state is LeaseState.ACQUIRING:
            return NextCall(LeaseCall.ACQUIRE, self._next_ns)
        if self._state is LeaseState.DRAINING and self._is_drained:
            return NextCall(LeaseCall.RELEASE, self._next_ns)
        return NextCall(LeaseCall.RENEW, self._next_ns)

    # Calls and their outcomes.

    def begin(self, call: LeaseCall, now_ns: int) -> None:
        """The call is about to be sent. Read the clock first, then call this, then send."""
        assert self._call is LeaseCall.NONE, f"{self._call.value} is still under way"
        self._call = call
        self._sent_ns = now_ns

    def looked(self, ownership: Ownership, now_ns: int) -> None:
        """A look has found who owns the shard."""
        self._end_call(LeaseCall.LOOK)
        if self._state is not LeaseState.IDLE:
            return
        self._ownership = ownership
        if ownership.epoch != self._held_off_epoch:
            self._held_off_until_ns = 0
        is_free = not ownership.owner or ownership.remaining_ms <= 0
        if is_free and self._takes_part and now_ns >= self._held_off_until_ns:
            self._state = LeaseState.ACQUIRING
            self._next_ns = now_ns
            return
        pause_ms = LOOK_MS_MAX if is_free else min(LOOK_MS_MAX, ownership.remaining_ms)
        self._next_ns = now_ns + max(pause_ms, 1) * NS_PER_MS

    def acquired(self, acquired: Acquired | None, now_ns: int) -> None:
        """An acquisition has ended; None: somebody else holds the shard."""
        self._end_call(LeaseCall.ACQUIRE)
        if acquired is None:
            self._state = LeaseState.IDLE
            self._next_ns = now_ns
            return
        self._acquired = acquired
        self._ownership = None
        self._is_drained = False
        self._state = LeaseState.REPLAYING
        self._prolong()
        if not self._takes_part:
            # Asked to withdraw meanwhile: nothing was built yet, so there is nothing to wait for.
            self._state = LeaseState.DRAINING
            self.drained(now_ns)

    def sequence_taken(self, now_ns: int) -> None:
        """The former owner committed a frame while we took the shard: try again at once."""
        self._end_call(LeaseCall.ACQUIRE)
        self._next_ns = now_ns

    def renewed(self, is_ours: bool, now_ns: int) -> bool:
        """A renewal was answered; False: the shard has another epoch. Returns whether this node had been silent and may write now."""
        self._end_call(LeaseCall.RENEW)
        if self._state is LeaseState.FENCED:
            return False
        if not is_ours:
            self.fenced()
            return False
        was_silent = now_ns >= self.writes_until_ns
        self._prolong()
        return was_silent and self.may_write(now_ns)

    def released(self, now_ns: int) -> None:
        """The lease was given back."""
        self._end_call(LeaseCall.RELEASE)
        self._leave(now_ns)

    def unknown(self, now_ns: int) -> None:
        """The call under way was not answered, or the database refused it: nothing is assumed."""
        call, self._call = self._call, LeaseCall.NONE
        if self._state is LeaseState.FENCED:
            return
        self._next_ns = now_ns + self._retry_ns
        if call is LeaseCall.ACQUIRE:
            self._state = LeaseState.IDLE
        if call in (LeaseCall.LOOK, LeaseCall.ACQUIRE):
            self._ownership = None
        elif call is LeaseCall.RELEASE:
            # The lease ends by itself; this node says nothing under it any more.
            self._leave(now_ns)

    # What the shell reports.

    def replayed(self) -> None:
        """The engine is built: this node may write while its lease lasts."""
        if self._state is LeaseState.REPLAYING:
            self._state = LeaseState.SERVING
            self.writes_until_ns = self._until_ns

    def renew_now(self, now_ns: int) -> None:
        """Do not wait for the next renewal: there is something new to publish with it."""
        if self._acquired is not None:
            self._next_ns = min(self._next_ns, now_ns)

    def fenced(self) -> None:
        """A frame or a renewal has shown that another node owns the shard now."""
        self._state = LeaseState.FENCED
        self.writes_until_ns = 0
        self._acquired = None

    def withdraw(self, now_ns: int, hold_off_ms: int | None = None) -> None:
        """Give the shard up, if this node has it, and do not take it.

        Args:
            now_ns: The present instant.
            hold_off_ms: Take part again after this time, or as soon as another node has been the owner; None: not until
                ``take_part`` is called.
        """
        if hold_off_ms is None:
            self._takes_part = False
        else:
            self._held_off_until_ns = now_ns + hold_off_ms * NS_PER_MS
            self._held_off_epoch = self._acquired.epoch if self._acquired is not None else -1
        if self._state in (LeaseState.REPLAYING, LeaseState.SERVING):
            self._state = LeaseState.DRAINING
        elif self._state is LeaseState.ACQUIRING and self._call is LeaseCall.NONE:
            self._state = LeaseState.IDLE

    def take_part(self) -> None:
        """Take the shard again when it is free."""
        self._takes_part = True
        self._held_off_until_ns = 0

    def drained(self, now_ns: int) -> None:
        """Everything of the old epoch is said and done: nothing more is said, and the lease can be given back."""
        if self._state is LeaseState.DRAINING:
            self._is_drained = True
            self.writes_until_ns = 0
            self._next_ns = now_ns

    def _prolong(self) -> None:
        self._until_ns = self._sent_ns + self._lease_ns - self._margin_ns
        self._next_ns = self._sent_ns + self._lease_ns // RENEWALS_PER_LEASE
        if self._state is LeaseState.SERVING or (
            self._state is LeaseState.DRAINING and not self._is_drained and self.writes_until_ns
        ):
            self.writes_until_ns = self._until_ns

    def _leave(self, now_ns: int) -> None:
        if self._state is LeaseState.FENCED:
            return
        self._state = LeaseState.IDLE
        self._acquired = None
        self._is_drained = False
        self.writes_until_ns = 0
        self._next_ns = now_ns

    def _end_call(self, call: LeaseCall) -> None:
        assert self._call is call, f"{call.value} ended, but {self._call.value} was under way"
        self._call = LeaseCall.NONE
