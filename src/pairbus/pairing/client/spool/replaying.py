"""Replays what the spool of a paired client has of one entity, oldest first.

It sends as every sender does: to the primary while that is healthy, else to a backlog queue. A message leaves the spool only after a
namespace has accepted it, so an attempt without an answer is repeated, with the same message id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import SpoolError
from pairbus.pairing import parking
from pairbus.pairing.client.sending.limits import BACKLOG_LIMIT_BYTES, ENVELOPE_BYTES
from pairbus.pairing.client.sending.send import Send
from pairbus.pairing.client.sending.sender import SenderCore
from pairbus.pairing.errors import (
    ClientClosedError,
    MessageTooLargeForBacklogError,
)
from pairbus.pairing.events import Kind
from pairbus.pairing.parking import Passport
from pairbus.pairing.rules.health import EntityHealth
from pairbus.pairing.spool_rows import message_id_of
from pairbus.pairing.statistics import Tally
from pairbus.sdk.failures import Failure, classify, is_of_the_message, shown
from pairbus.sdk.messages import message_bytes
from pairbus.spool.file import Spooled
from pairbus.spool.store import Spool

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.client.spool.spooling import Spooling

BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 200_000
"""Bounds of what is replayed with one send."""
ATTEMPT_SECONDS: Final = 10.0
PAUSE_SECONDS_MIN: Final = 0.25
PAUSE_SECONDS_MAX: Final = 5.0
"""Bounds of the pause after an attempt that failed. A change of an entity's health ends it early."""
REASON_CHARACTERS_MAX: Final = 500
EXPIRED: Final = "its time to live ended in the spool"


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
            self._spooling.replay_all()
        try:
            found = await self._runtime.blocking(
                self._spooling.spools().first,
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
            left = self._spooling.spools().waits(self._key) - len(free)
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
                left = self._spooling.spools().waits(self._key)
                text = f"the entity does not exist, and {messages_text(left)} in the spool wait until it is created"
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


def messages_text(count: int) -> str:
    """A count of messages, for people."""
    return "1 message" if count == 1 else f"{count} messages"


def _left(send: Send, count: int) -> Sequence[int]:
    """Places of the messages of a send that failed that are not in the backlog."""
    return range(count) if send.left is None else send.left
