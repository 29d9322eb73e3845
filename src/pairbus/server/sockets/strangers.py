"""Connections that have not proved a right yet: how many there may be, and how much of the loop's time they get.

The event loop handles input as it arrives, in turn. So the peer that sends most would get most of its time, and one peer without
a key could make every client wait. Therefore the input of strangers is not handled as it comes. It waits here and is
handled a little at a time, each stranger in turn:

    data ─► connection's unread bytes ─► waiting ─► one step each, SLICE_NS long ─► rest, while known clients are busy

Known clients never wait longer than one slice and one step, and while they are busy strangers get one third of the
time. When no known client is there, strangers do not rest, so that many clients can connect at once after a restart.

When there are too many strangers, one is cut. A client with a key is a stranger for about half a second, so those who have
come further stay: first goes who has sent nothing, then who has sent something, then who has opened an AMQP connection;
within a stage, who came to it first. Yet no stage with less than a third of all strangers is touched. Otherwise peers that
have opened and then wait would keep every newcomer out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from pairbus.server.clock import elapsed_ns

STEP_BYTES: Final = 1024
"""Input of one stranger that is handled in one step: at most about a millisecond of work."""
SLICE_NS: Final = 500_000
"""Once strangers have had this much time in one round of the loop, the others have theirs."""
REST_FACTOR: Final = 2
"""While known clients are busy, strangers wait this many times as long as their slice took."""
READ_BYTES: Final = STEP_BYTES
"""Bytes read from a stranger's socket at once; it is read again when they have been handled. What one step handles: more would
wait in the memory of this process, and the rest after each step would be copied."""
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that all strangers together have sent; beyond it some are cut. 8,000 clients that connect need as much."""
SILENT: Final = 0
"""The stage of a stranger that has sent nothing."""
SPEAKING: Final = 1
"""It has sent something: TLS, SASL or an HTTP request."""
OPEN: Final = 2
"""It has opened an AMQP connection. A token comes next, and with a valid one it is no stranger; a refused one shows nothing."""


class Stranger(Protocol):
    """A connection that has not proved a right."""

    sent_as_stranger: int

    def take_step(self) -> bool:
        """Handle up to STEP_BYTES of what has come; whether there is more."""

    def has_sent(self) -> bool:
        """Whether bytes have come that are not read yet."""

    def evict(self, reason: str) -> None: ...


class Strangers:
    """All strangers of one server.

    Args:
        known_bytes: How much known clients have sent since the start; it grows while they are busy.
        clock: Nanoseconds of a clock that never goes back.
    """

    def __init__(self, known_bytes: Callable[[], int], clock: Callable[[], int] = elapsed_ns) -> None:
        self._known_bytes = known_bytes
        self._clock = clock
        # Dicts, not sets: they keep the order.
        self._stages: tuple[dict[Stranger, None], ...] = ({}, {}, {})
        self._present: dict[Stranger, int] = {}
        """The stage of each."""
        self._waiting: dict[Stranger, None] = {}
        self._held_bytes = 0
        self._is_running = False
        self._timer: asyncio.Handle | None = None
        self._rest_until = 0
        self._seen_known_bytes = 0

    def __len__(self) -> int:
        return len(self._present)

    @property
    def held_bytes(self) -> int:
        """What those who are here have sent."""
        return self._held_bytes

    def arrived(self, stranger: Stranger) -> None:
        """A connection was accepted, or has lost its right."""
        self._present[stranger] = SILENT
        self._stages[SILENT][stranger] = None

    def opened(self, stranger: Stranger) -> None:
        """The peer has opened an AMQP connection. Nothing happens if it is no stranger any more."""
        self._advance(stranger, OPEN)

    def left(self, stranger: Stranger) -> None:
        """A connection has proved a right, or has gone. Idempotent."""
        stage = self._present.pop(stranger, None)
        if stage is not None:
            del self._stages[stage][stranger]
            self._held_bytes -= stranger.sent_as_stranger
            stranger.sent_as_stranger = 0
        self._waiting.pop(stranger, None)

    def evict_one(self, reason: str) -> None:
        """Cut the stranger that has come least far; of several, the one that has been at that stage longest."""
        victim = self._least(self._stages)
        while victim is not None and self._present[victim] == SILENT and victim.has_sent():
            self._advance(
                victim, SPEAKING
            )  # its first bytes are in the socket; only we have not come to read them
            victim = self._least(self._stages)
        self._evict(victim, reason)

    def _evict(self, victim: Stranger | None, reason: str) -> None:
        if victim is not None:
            self.left(victim)
            victim.evict(reason)

    def _least(self, stages: tuple[dict[Stranger, None], ...]) -> Stranger | None:
        """The first stranger of the lowest stage that has its share of all."""
        total = sum(map(len, stages))
        for stage in stages:
            if stage and len(stage) * len(stages) >= total:
                return next(iter(stage))
        return None

    def _advance(self, stranger: Stranger, to: int) -> None:
        stage = self._present.get(stranger, to)
        if stage < to:
            del self._stages[stage][stranger]
            self._stages[to][stranger] = None
            self._present[stranger] = to

    def holds(self, stranger: Stranger, count: int) -> None:
        """A stranger sent so much more."""
        if stranger not in self._present:
            return
        self._advance(stranger, SPEAKING)
        stranger.sent_as_stranger += count
        self._held_bytes += count
        while self._held_bytes > HELD_BYTES_MAX:
            self._evict(self._least(self._stages[SPEAKING:]), "strangers_bytes_max")

    def has_work(self, stranger: Stranger) -> None:
        """A stranger has something to handle: now, if the others can spare the time."""
        self._advance(stranger, SPEAKING)
        self._waiting[stranger] = None
        if self._timer is None and not self._is_running:
            if self._clock() >= self._rest_until:
                self._run()
            else:
                self._arm()

    def close(self) -> None:
        """Stop; connections must be gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        self._is_running = True
        started = now = self._clock()
        try:
            while self._waiting and now - started < SLICE_NS:
                stranger = next(iter(self._waiting))
                del self._waiting[stranger]
                if stranger.take_step():
                    self._waiting[stranger] = None
                now = self._clock()
        finally:
            self._is_running = False
        known_bytes = self._known_bytes()
        is_busy = known_bytes != self._seen_known_bytes
        self._seen_known_bytes = known_bytes
        self._rest_until = now + (now - started) * REST_FACTOR if is_busy else 0
        if self._waiting:
            self._arm()

    def _arm(self) -> None:
        rest_ns = self._rest_until - self._clock()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(rest_ns / 1e9, self._run) if rest_ns > 0 else loop.call_soon(self._run)
