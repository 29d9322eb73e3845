"""The spool of a paired client: takes sends that no namespace takes, and replays them when one does.

One task per entity replays, oldest first. It sends as every sender does: to the primary while that is healthy, else to a backlog
queue. A message leaves the spool only after a namespace has accepted it, so an attempt without an answer is repeated, with the
same message id.

While the spool holds messages of an entity, new ones join it behind them. A program that never pauses could add messages for
ever, each a moment before the last one has left. So once replaying works and all that is left is on its way, new sends wait for
that one attempt instead, and then go direct (``is_spool_ending``).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import PairbusError, SpoolError
from pairbus.pairing import parking
from pairbus.pairing.client.following import Following
from pairbus.pairing.client.sending.limits import BACKLOG_LIMIT_BYTES, ENVELOPE_BYTES
from pairbus.pairing.client.sending.send import Send
from pairbus.pairing.client.sending.sender import SenderCore
from pairbus.pairing.errors import (
    ClientClosedError,
    MessageTooLargeForBacklogError,
    ScheduledMessageGoneError,
    SendAvailabilityError,
)
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import milliseconds
from pairbus.pairing.order_keys import key_of
from pairbus.pairing.parking import Passport
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.runtime.pausing import pause
from pairbus.pairing.scheduled import SPOOL_PREFIX, ParkedSchedule
from pairbus.pairing.spool_rows import left_behind_text, message_id_of
from pairbus.pairing.statistics import Tally
from pairbus.sdk.failures import Failure, classify, is_of_the_message, shown
from pairbus.sdk.messages import message_bytes
from pairbus.spool.directory import Spools
from pairbus.spool.file import About, Spooled
from pairbus.spool.left_behind import LeftBehind
from pairbus.spool.store import Append, Spool

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient

logger = logging.getLogger("pairbus.pairing")

BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 200_000
"""Bounds of what is replayed with one send."""
ATTEMPT_SECONDS: Final = 10.0
PAUSE_SECONDS_MIN: Final = 0.25
PAUSE_SECONDS_MAX: Final = 5.0
"""Bounds of the pause after an attempt that failed. A change of an entity's health ends it early."""
REASON_CHARACTERS_MAX: Final = 500
EXPIRED: Final = "its time to live ended in the spool"


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

    # --- opening and closing ----------------------------------------------------------------------

    def open(self) -> None:
        """Open the directory. Raises SpoolError."""
        options, state = self._client.options, self._state
        assert options.spool is not None
        spools = Spools(
            Path(options.spool),
            About(state.primary, state.identity, options.backlog_queue_count, options.order),
            bytes_max=options.spool_max_bytes,
            age_ms_max=milliseconds(options.spool_max_age),
            accepts=self._client._identity.accepts,
            key_of=self._key_of if state.keeps_order else None,
        )
        for problem in spools.problems:
            state.emit(Kind.SPOOL_UNUSABLE, str(spools.root), problem, is_loud=True)
        for problem in spools.not_seen:
            text = f"{problem}. The order between messages of sessions in it and those of this client is not kept"
            state.emit(Kind.ORDER_UNKNOWN, str(spools.root), text)
        state.spools = spools
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
        spools = self._spools()
        for key, path in spools.paths_ahead().items():
            health = self._state.health_of(path)
            with self._state.lock:
                self.following.begin(key)
                self._spooled(health, key, "another client has messages for it in a spool of the directory")
        self._replay_all()

    def _replay_all(self) -> None:
        spools = self._spools()
        for key, path in spools.keys().items():
            health = self._state.health_of(path)
            with self._state.lock:
                self._spooled(health, key, "an earlier client has left messages in the spool")

    def close(self) -> None:
        """Close the files. What is in them stays."""
        if self._state.spools is not None:
            self._state.spools.close()

    def _spools(self) -> Spools:
        spools = self._state.spools
        assert spools is not None
        return spools

    # --- taking -----------------------------------------------------------------------------------

    async def take(
        self, health: EntityHealth, payloads: Sequence[bytes], why: str, *, needs_handles: bool = False
    ) -> list[ParkedSchedule]:
        """Keep messages of an entity. Durable when it returns; handles for those who cancel. Raises SpoolError."""
        key = entity_key(health.path)
        spools = self._spools()
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
                untidy = [spool for spool in self._spools().all if not spool.is_tidy]
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
            if self._spools().waits(key) or self.following.is_behind(key):
                return False
            health.is_spooling = health.is_spool_ending = False
            self._replaying.pop(key, None)
            health.is_replay_failing = False
            self._state.note(health, f"the spool is empty: {_messages(replayed)} replayed")
            if replayed:
                self._state.emit(
                    Kind.SPOOL_REPLAYED, health.path, f"{_messages(replayed)} replayed", messages=replayed
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
        spool = next((one for one in self._spools().all if str(one.directory) == place), None)
        if spool is None:
            raise not_in_this_spool(handle)
        mark = (spool, handle.detour)
        while spool is not None:
            with self._state.lock:
                token = self._runtime.change_token()
                if mark not in self._in_flight:
                    self._withheld.add((spool, handle.detour))
                    break
            left = until - time.monotonic()
            if left <= 0:
                spool = None
                break
            await self._runtime.wait_for_change(token, left)
        try:
            key = entity_key(path)
            found = None
            if spool is not None:
                found = await self._runtime.blocking(spool.find, key, handle.detour)
            if spool is None or found is None:
                raise _gone(handle)
            await self._runtime.blocking(spool.remove, key, [found])
        finally:
            if spool is not None:
                with self._state.lock:
                    self._withheld.discard((spool, handle.detour))
                self._runtime.notify()


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


class ReplaySender(SenderCore):
    """Sends messages of the spool. It is no sender of the application's, and never adds to the spool."""

    _may_spool = False

    def __init__(
        self, client: PairedClient[Any, Any], path: str, options: dict[str, Any], *, is_topic: bool
    ) -> None:
        super().__init__(client, path, options, is_topic=is_topic)
        self._tally = Tally()  # its messages were counted when they were spooled (P45)


class Replay:
    """The replay of one entity, an attempt at a time."""

    def __init__(self, spooling: Spooling, health: EntityHealth, key: str, sender: ReplaySender) -> None:
        self._spooling = spooling
        self._state = spooling._state
        self._runtime = spooling._runtime
        self._health = health
        self._key = key
        self._sender = sender
        self._works = False
        """Whether the last attempt was accepted."""
        self._alone = 0
        """How many messages are sent one by one, because a batch with them was refused."""
        self._replayed = 0
        self.pause_seconds = 0.0

    async def turn(self) -> bool:
        """Send the oldest messages. True: nothing is left. ``pause_seconds`` says how long to wait before the next turn."""
        following = self._spooling.following
        if following.is_behind(self._key) and await following.look():
            self._spooling._replay_all()
        try:
            found = await self._runtime.blocking(
                self._spooling._spools().first,
                self._key,
                1 if self._alone else BATCH_MESSAGES,
                BATCH_BYTES,
            )
            if found is None:
                self.pause_seconds = following.pause_seconds(self._key)
                return self._spooling.ended(self._health, self._key, self._replayed)
            spool, messages = found
            with self._state.lock:
                messages = following.free(self._key, spool, messages)
            if not messages:
                self.pause_seconds = following.pause_seconds(self._key)
                return False
            damaged = next((one for one in messages if one.is_damaged), None)
            if damaged is not None:
                await self._keep(spool, damaged, "its bytes are damaged: the checksum is another one")
                return False
            await self._attempt(spool, messages)
            # At once: until then new sends join the spool, whose disk may be full.
            return self._spooling.ended(self._health, self._key, self._replayed)
        except SpoolError as error:
            self._state.emit(Kind.SPOOL_UNUSABLE, self._health.path, str(error), is_loud=True)
            self._failed()
        return False

    async def _attempt(self, spool: Spool, messages: list[Spooled]) -> None:
        # It takes milliseconds for a full batch, and this may be the application's own event loop.
        originals, kept = await self._runtime.blocking(self._originals, messages)
        if kept:
            for message, reason in kept:
                await self._keep(spool, message, reason)
            return
        free = self._spooling.begin(spool, messages)
        if not free:
            self.pause_seconds = PAUSE_SECONDS_MIN
            return
        with self._state.lock:
            left = self._spooling._spools().waits(self._key) - len(free)
            self._health.is_spool_ending = self._works and left == 0
        try:
            await self._send(spool, free, originals[: len(free)])
        finally:
            self._health.is_spool_ending = False
            self._spooling.end(spool, free)

    def _originals(self, messages: Sequence[Spooled]) -> tuple[list[bytes], list[tuple[Spooled, str]]]:
        """The messages as they are sent now; and those that cannot be sent, with the reason."""
        originals: list[bytes] = []
        kept: list[tuple[Spooled, str]] = []
        now = self._state.wall_clock()
        for message in messages:
            try:
                original = self._original(message, now)
            except MemoryError:
                raise  # not the fault of the message
            except Exception as error:  # noqa: BLE001 - whatever it is, it comes again with this message, and no other may wait for it
                kept.append((message, f"it cannot be read: {shown(error, REASON_CHARACTERS_MAX)}"))
                continue
            if original is None:
                kept.append((message, EXPIRED))
            else:
                originals.append(original)
        return originals, kept

    def _original(self, message: Spooled, now: int) -> bytes | None:
        """A message as it is sent now; None when its time to live has ended."""
        # Parked and restored, so that a limited life begins again or goes on, as it does in the backlog.
        passport = Passport(self._state.name, message.at_ms, 0, "spooled", primary=self._state.identity)
        parked = parking.park(message.payload, self._health.path, passport)
        elapsed_ms = max(0, now - message.at_ms) if self._state.options.time_to_live == "deduct" else 0
        restored = parking.restore(parked, now, elapsed_ms=elapsed_ms)
        return None if restored.time_to_live_ms == 0 and elapsed_ms else restored.payload

    async def _send(self, spool: Spool, messages: list[Spooled], originals: list[bytes]) -> None:
        sender = self._sender
        link = sender._primary_link()
        size = message_bytes.batch_size(originals) + ENVELOPE_BYTES
        limit = max(size, message_bytes.batch_limit(link.sender) or BACKLOG_LIMIT_BYTES)
        batch = message_bytes.batch_of(message_bytes.new_batch(limit, link.sender), originals)
        send = Send(batch, len(originals), self._state.clock(), ATTEMPT_SECONDS)
        before = Tally()
        before.add(sender._tally)
        error: Exception | None = None
        try:
            await sender._deliver(send)
        except ClientClosedError:
            return
        except Exception as caught:  # noqa: BLE001 - every error is an answer to judge
            error = caught
        with self._state.lock:
            counters, tally = self._state.counters, sender._tally
            counters.replayed_to_primary += tally.to_primary - before.to_primary
            counters.replayed_to_backlog += tally.to_backlog - before.to_backlog
        places = set(() if error is None else _left(send, len(messages)))
        accepted = [message for place, message in enumerate(messages) if place not in places]
        if accepted:
            await self._remove(spool, accepted)
        if error is None:
            self._works = True
            self._health.is_replay_failing = False
            self.pause_seconds = 0.0
            self._alone = max(0, self._alone - len(messages))
        else:
            is_of_primary = send.flow is not None and send.flow.primary_error is error
            await self._judge(
                spool, [messages[place] for place in sorted(places)], error, is_of_primary=is_of_primary
            )

    async def _judge(
        self, spool: Spool, messages: list[Spooled], error: Exception, *, is_of_primary: bool
    ) -> None:
        """A namespace did not accept messages. ``is_of_primary``: the error is the answer of the entity itself."""
        failure = classify(error)
        # What a backlog queue refuses because of its settings the primary may still take. What the entity refuses, it refuses again.
        is_refused = is_of_the_message(error) or (is_of_primary and failure is Failure.INVALID)
        if is_of_primary and failure is Failure.NOT_FOUND:
            self._is_gone(error)
        if is_refused and len(messages) > 1:
            self._alone = len(messages)
            self.pause_seconds = 0.0
        elif is_refused and messages and not isinstance(error, MessageTooLargeForBacklogError):
            await self._keep(spool, messages[0], shown(error, REASON_CHARACTERS_MAX))
        else:
            self._failed()

    def _is_gone(self, error: Exception) -> None:
        """The entity does not exist: new sends raise until a ping finds it, and what is in the spool waits for that."""
        with self._state.lock:
            why = shown(error)
            changes = self._health.found_gone(self._state.clock(), why, error)
            if changes:
                left = self._spooling._spools().waits(self._key)
                text = (
                    f"the entity does not exist, and {_messages(left)} in the spool wait until it is created"
                )
                self._state.note(self._health, text)
            self._state.apply(self._health, changes)

    def _failed(self) -> None:
        self._works = False
        self._health.is_replay_failing = True
        self._runtime.notify()
        self.pause_seconds = min(
            max(PAUSE_SECONDS_MIN, self.pause_seconds * 2),
            PAUSE_SECONDS_MAX,
        )

    async def _remove(self, spool: Spool, messages: list[Spooled]) -> None:
        self._replayed += len(messages)
        try:
            await self._runtime.blocking(spool.delivered, self._key, messages)
        except SpoolError as error:
            self._spooling.is_untidy(self._health, error)

    async def _keep(self, spool: Spool, message: Spooled, reason: str) -> None:
        try:
            await self._runtime.blocking(spool.mark_undeliverable, self._key, message, reason)
        except SpoolError as error:
            self._spooling.is_untidy(self._health, error)
        self._alone = max(0, self._alone - 1)
        self.pause_seconds = 0.0
        self._state.emit(
            Kind.SPOOL_UNDELIVERABLE,
            self._health.path,
            f"message {message.number} ({message_id_of(message)!r}) stays in the spool {spool.directory}: {reason}",
            is_loud=True,
        )


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _left(send: Send, count: int) -> Sequence[int]:
    """Places of the messages of a send that failed that are not in the backlog."""
    return range(count) if send.left is None else send.left
