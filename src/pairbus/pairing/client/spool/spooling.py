"""The spool of a paired client: takes sends that no namespace takes, and has them replayed when one does (``spool.replaying``).

While the spool holds messages of an entity, new ones join it behind them. A program that never pauses could add messages for
ever, each a moment before the last one has left. So once replaying works and all that is left is on its way, new sends wait for
that one attempt instead, and then go direct (``is_spool_ending``).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import PairbusError, SpoolError
from pairbus.pairing.client.spool.following import Following
from pairbus.pairing.client.spool.replaying import PAUSE_SECONDS_MAX, Replay, ReplaySender, messages_text
from pairbus.pairing.errors import (
    ScheduledMessageGoneError,
    SendAvailabilityError,
)
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import milliseconds
from pairbus.pairing.order_keys import key_of
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.runtime.pausing import pause
from pairbus.pairing.scheduled import SPOOL_PREFIX, ParkedSchedule
from pairbus.pairing.spool_rows import left_behind_text
from pairbus.spool.directory import Spools
from pairbus.spool.file import About, Spooled
from pairbus.spool.left_behind import LeftBehind
from pairbus.spool.store import Append, Spool

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient

logger = logging.getLogger("pairbus.pairing")


class Spooling:
    """What one paired client does with its spools."""

    def __init__(self, client: PairedClient[Any, Any]) -> None:
        self._client = client
        self._state = client._state
        self._runtime = client._runtime
        self._replaying: dict[str, tuple[int, object]] = {}
        """The entities that are replayed, each with the process (a forked one has no threads) and the task that does it."""
        self._tidying = 0
        """The process whose task removes what could not be removed; 0: there is none."""
        self._in_flight: set[tuple[Spool, int]] = set()
        self._withheld: set[tuple[Spool, int]] = set()
        """Messages that are being cancelled."""
        self.following = Following(client)
        self._opening: object | None = None
        """The call that has asked last that they be opened; None: they are to be closed."""
        self._opening_lock = threading.RLock()

    # --- opening and closing ----------------------------------------------------------------------

    def open(self) -> None:
        """Open the directory. Raises SpoolError."""
        options, state = self._client.options, self._state
        assert options.spool is not None
        opening = self._opening = object()
        spools = Spools(
            Path(options.spool),
            About(state.primary, state.identity, options.backlog_queue_count, options.order),
            bytes_max=options.spool_max_bytes,
            age_ms_max=milliseconds(options.spool_max_age),
            accepts=self._client._identity.accepts,
            key_of=self._key_of if state.keeps_order else None,
            is_over=self._runtime.is_over,
        )
        with self._opening_lock:
            if self._opening is not opening:
                spools.close()  # a thread opened them for a caller who has given up meanwhile
                raise SpoolError(f"the spool {spools.root} was closed while it was opened")
            state.spools = spools
        for problem in spools.problems:
            state.emit(Kind.SPOOL_UNUSABLE, str(spools.root), problem, is_loud=True)
        for problem in spools.not_seen:
            text = f"{problem}. The order between messages of sessions in it and those of this client is not kept"
            state.emit(Kind.ORDER_UNKNOWN, str(spools.root), text)
        state.left_behind = LeftBehind(spools.others)
        for one in state.left_behind.look():
            content = one.total()
            text = left_behind_text(one, content, state.primary, state.identity, state.wall_clock())
            age_ms = content.age_ms(state.wall_clock())
            state.emit(
                Kind.SPOOL_LEFT_BEHIND,
                str(one.directory),
                text,
                messages=content.count,
                oldest_age_ms=age_ms,
                address=one.about.address,
            )

    def _key_of(self, payload: bytes) -> str | None:
        try:
            return key_of(payload, self._state.options.order)
        except (PairbusError, ValueError, IndexError):
            return None  # damaged: its replay will say so

    def start(self) -> None:
        """Replay what clients before have left behind, and stay behind what others replay."""
        spools = self.spools()
        for key, path in spools.paths_ahead().items():
            health = self._state.health_of(path)
            with self._state.lock:
                self.following.begin(key)
                self._spooled(health, key, "another client has messages for it in a spool of the directory")
        self.replay_all()

    def replay_all(self) -> None:
        """Replay every entity that the spools have messages of."""
        spools = self.spools()
        for key, path in spools.keys().items():
            health = self._state.health_of(path)
            with self._state.lock:
                self._spooled(health, key, "an earlier client has left messages in the spool")

    def close(self) -> None:
        """Close the files. What is in them stays."""
        with self._opening_lock:
            self._opening = None
            spools = self._state.spools
        if spools is not None:
            spools.close()

    def spools(self) -> Spools:
        """The spools, which are open."""
        spools = self._state.spools
        assert spools is not None
        return spools

    # --- taking -----------------------------------------------------------------------------------

    async def take(
        self, health: EntityHealth, payloads: Sequence[bytes], why: str, *, needs_handles: bool = False
    ) -> list[ParkedSchedule]:
        """Keep messages of an entity. Durable when it returns; handles for those who cancel. Raises SpoolError."""
        key = entity_key(health.path)
        spools = self.spools()
        at_ms = max(self._state.wall_clock(), spools.not_before_ms)
        append = Append(key, health.path, payloads, at_ms)
        with self._state.lock:
            spool = spools.enter(append)
            if not health.is_spooling:
                health.is_replay_failing = True  # no namespace has taken these
            self._spooled(health, key, why)
        await self._runtime.commit(spool, append)
        if not needs_handles:
            return []
        return [
            ParkedSchedule.make(f"{SPOOL_PREFIX}{spool.directory}", "", self._state.name, number)
            for number in append.numbers
        ]

    def _spooled(self, health: EntityHealth, key: str, why: str) -> None:
        """The spool holds messages of an entity: called under the lock of the state."""
        if not health.is_spooling:
            health.is_spooling = True
            self._state.note(health, f"the spool is used: {why}")
            self._state.emit(Kind.SPOOL_USED, health.path, why)
        process, _ = self._replaying.get(key, (0, None))
        if process != os.getpid() and not self._client._is_ended:
            task = object()
            self._replaying[key] = os.getpid(), task
            self._runtime.spawn(self._replay, health, task)

    # --- replaying --------------------------------------------------------------------------------

    async def _replay(self, health: EntityHealth, task: object) -> None:
        """Replay one entity until nothing of it is left, or the client is closed."""
        key = entity_key(health.path)
        sender = ReplaySender(self._client, health.path, {}, is_topic=False)
        with self._state.lock:
            self._client._senders.add(sender)
        replay = Replay(self, health, key, sender)
        try:
            while not self._client._is_ended:
                try:
                    if await replay.turn():
                        return
                except Exception:
                    if self._client.is_closed:
                        return
                    # An entity that nobody replays would keep its messages, and every new one, for ever.
                    logger.exception(
                        "the replay of %s failed; it goes on",
                        health.path,
                        extra={"event": "pairing.replay_failed"},
                    )
                    replay.pause_seconds = PAUSE_SECONDS_MAX
                # A change of its health is the only reason to try again before that.
                is_over = partial(self._has_changed, health, health.state)
                await self._pause(replay.pause_seconds, is_over)
        finally:
            with self._state.lock:
                if self._replaying.get(key, (0, None))[1] is task:
                    # Not that of the next task: it may have begun when this one found nothing left.
                    health.is_spool_ending = False
                    del self._replaying[key]
            self._runtime.notify()
            if not self._client._is_ended:
                await sender._do_close()

    async def _pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        await pause(self._runtime, self._state.clock, round(seconds * 1000), is_over)

    def _has_changed(self, health: EntityHealth, before: Health) -> bool:
        return health.state is not before or self._client._is_ended

    def is_untidy(self, health: EntityHealth, error: SpoolError) -> None:
        """What has left a spool cannot be removed from its file: sends do not wait for that. It is tried again until it works."""
        with self._state.lock:
            if self._tidying == os.getpid() or self._client._is_ended:
                return
            self._tidying = os.getpid()
            text = (
                f"{error}. Messages that a namespace has cannot be removed, and it is tried again; if the program is killed before, "
                "the next one repeats them, with the same message ids"
            )
            self._state.emit(Kind.SPOOL_UNUSABLE, health.path, text, is_loud=True)
            self._runtime.spawn(self._tidy)

    async def _tidy(self) -> None:
        """Remove what could not be removed, until that is done or the client is closed, which tries once more."""
        while not self._client._is_ended:
            await self._pause(PAUSE_SECONDS_MAX, lambda: self._client._is_ended)
            with self._state.lock:
                untidy = [spool for spool in self.spools().all if not spool.is_tidy]
                if not untidy:
                    self._tidying = 0
                    return
            for spool in untidy:
                try:
                    await self._runtime.blocking(spool.tidy)
                except SpoolError as error:
                    logger.warning("%s", error, extra={"event": "pairing.spool_unusable"})

    def ended(self, health: EntityHealth, key: str, replayed: int) -> bool:
        """Whether the spool has nothing of an entity any more. Then its sends go to a namespace again."""
        with self._state.lock:
            if self.spools().waits(key) or self.following.is_behind(key):
                return False
            health.is_spooling = health.is_spool_ending = False
            self._replaying.pop(key, None)
            health.is_replay_failing = False
            self._state.note(health, f"the spool is empty: {messages_text(replayed)} replayed")
            if replayed:
                self._state.emit(
                    Kind.SPOOL_REPLAYED, health.path, f"{messages_text(replayed)} replayed", messages=replayed
                )
        self._runtime.notify()
        return True

    def begin(self, spool: Spool, messages: Sequence[Spooled]) -> list[Spooled]:
        """Those of the messages that may be sent now: all before one that is being cancelled."""
        with self._state.lock:
            free = []
            for message in messages:
                if (spool, message.number) in self._withheld:
                    break
                free.append(message)
            self._in_flight.update((spool, message.number) for message in free)
            return free

    def end(self, spool: Spool, messages: Sequence[Spooled]) -> None:
        """The attempt with these messages has ended."""
        with self._state.lock:
            self._in_flight.difference_update((spool, message.number) for message in messages)
        self._runtime.notify()

    # --- cancelling -------------------------------------------------------------------------------

    async def cancel(self, handle: ParkedSchedule, path: str, until: float) -> None:
        """Remove a scheduled message that is still in the spool. ``until``: an instant of ``time.monotonic``."""
        place = handle.queue.removeprefix(SPOOL_PREFIX)
        spool = next((one for one in self.spools().all if str(one.directory) == place), None)
        if spool is None:
            raise not_in_this_spool(handle)
        mark = (spool, handle.detour)
        if not await self._withhold(mark, until):
            raise _gone(handle)
        try:
            key = entity_key(path)
            found = await self._runtime.blocking(spool.find, key, handle.detour)
            if found is None:
                raise _gone(handle)
            await self._runtime.blocking(spool.remove, key, [found])
        finally:
            with self._state.lock:
                self._withheld.discard(mark)
            self._runtime.notify()

    async def _withhold(self, mark: tuple[Spool, int], until: float) -> bool:
        """Keep a message from being sent. False: an attempt with it is under way, and has not ended in time."""
        while True:
            with self._state.lock:
                token = self._runtime.change_token()
                if mark not in self._in_flight:
                    self._withheld.add(mark)
                    return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            await self._runtime.wait_for_change(token, left)


def not_in_this_spool(handle: ParkedSchedule) -> SendAvailabilityError:
    """Why a client cannot cancel a message that was put into a spool that it does not have open."""
    place = handle.queue.removeprefix(SPOOL_PREFIX)
    if not Path(place).is_dir():
        return _gone(handle)
    return SendAvailabilityError(
        f"the scheduled message {handle.message_id!r} was put into the spool {place} of another client: cancel it with a sender of that "
        "client, or, when that client is closed, with one of a client that has opened the directory since"
    )


def _gone(handle: ParkedSchedule) -> ScheduledMessageGoneError:
    return ScheduledMessageGoneError(
        f"the scheduled message {handle.message_id!r} is not in the spool any more: it was cancelled before, or is on its way to a "
        "namespace. There it can be cancelled by the sequence number that it has there"
    )
