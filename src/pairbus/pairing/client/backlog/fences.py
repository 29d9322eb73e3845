"""Looks into the backlog queues while sessions are fenced, so that they go to the primary again (``rules.order``).

One task per client, which runs only while there is something to look for. Its pauses grow, and begin again when a fence is
lifted. Every page that a look reads is counted: it costs what a receive costs.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.client.state import FENCE_NAMES_MAX
from pairbus.pairing.errors import NoListenRightError
from pairbus.pairing.events import Kind
from pairbus.pairing.order_keys import seen_of
from pairbus.pairing.runtime.pausing import pause
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links import handlers

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.rules.order_values import Key, Look

logger = logging.getLogger("pairbus.pairing")

PAGE_MESSAGES: Final = 100
PAGES_MAX: Final = 100
"""Pages that one look reads at most. A longer queue is not seen to its end before it is shorter."""
LOOK_SECONDS: Final = 10.0
PAUSE_MS_MIN: Final = 200
PAUSE_MS_MAX: Final = 5_000
HELD_PAUSE_MS: Final = 50
"""The pause between looks while sends wait for the last messages of their session."""


class Fences:
    """The looks of one client."""

    def __init__(self, client: PairedClient[Any, Any]) -> None:
        self._client = client
        self._state = client._state
        self._book = client._state.order
        self._runtime = client._runtime
        self._receivers: dict[str, Any] = {}
        self._is_running = False
        self._is_urgent = False
        self._pages_max = PAGES_MAX

    def watch(self) -> None:
        """Look, if there is something to look for and nobody does. Called under the lock of the state."""
        self._is_urgent = True
        if not self._is_running and not self._client._is_ended and self._book.wanted():
            self._is_running = True
            self._runtime.spawn(self._run)

    async def look_at_all(self, seconds: float) -> None:
        """At pairing: look into every queue once. Raises NoListenRightError when the key does not allow that."""
        refused: list[BaseException] = []

        async def look(queue: Any) -> None:
            error = await self._look(queue)
            if error is not None and classify(error) is Failure.UNAUTHORIZED:
                refused.append(error)

        with self._state.lock:
            queues = self._book.wanted()
        await self._runtime.together(look, queues, seconds)
        if refused:
            await self._close_receivers()
            raise NoListenRightError(self._state.secondary, self._state.options.order) from refused[0]
        with self._state.lock:
            if not self._book.wanted():
                # Nothing is fenced: nobody will need the receivers before the next failback.
                left = list(self._receivers.values())
                self._receivers.clear()
            else:
                left = []
                self.watch()
        for receiver in left:
            await self._client._close_quietly(receiver)

    # --- the task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_ms = PAUSE_MS_MIN
        try:
            while True:
                with self._state.lock:
                    self._is_urgent = False
                    queues = [] if self._client._is_ended else self._book.wanted()
                    if not queues:
                        self._is_running = False
                        return
                before = self._book.lifted
                await self._runtime.together(self._look_once, queues, LOOK_SECONDS)
                self.expire()
                has_lifted = self._book.lifted != before
                pause_ms = PAUSE_MS_MIN if has_lifted else min(pause_ms * 2, PAUSE_MS_MAX)
                with self._state.lock:
                    is_holding = self._book.is_holding(self._state.clock())
                pause_ms_now = HELD_PAUSE_MS if is_holding else pause_ms
                await pause(self._runtime, self._state.clock, pause_ms_now, self._is_pause_over)
        finally:
            self._is_running = False
            await self._close_receivers()

    def _is_pause_over(self) -> bool:
        # Urgent: an entity has recovered, and its sends are parked until the queues have been looked through.
        with self._state.lock:
            return self._is_urgent or self._client._is_ended

    async def _close_receivers(self) -> None:
        left, self._receivers = list(self._receivers.values()), {}
        for receiver in left:
            await self._client._close_quietly(receiver)

    # --- one look ---------------------------------------------------------------------------------

    async def _look_once(self, queue: Any) -> None:
        await self._look(queue)

    async def _look(self, queue: Any) -> Exception | None:
        """Look through one queue, and draw the conclusions. Returns the error that ended it."""
        with self._state.lock:
            begun_ms = self._state.clock()
            look = self._book.begin_look(queue)
            parked = self._state.parked_in(queue)
            receiver = self._receivers.pop(queue, None)
        failure: Exception | None = None
        is_whole = False
        try:
            if receiver is None:
                receiver = self._client.secondary.get_queue_receiver(queue)
                handlers.set_retries(receiver, 0)
                handlers.free_sockets(receiver)
            async with self._runtime.limit(receiver, LOOK_SECONDS):
                is_empty = await self._read(receiver, look)
            is_whole = True
            if is_empty:
                with self._state.lock:
                    for health, count in parked.items():
                        health.have_left(queue, count)
        except Exception as error:
            # The queue is not seen, and the next look tries again.
            failure = error
            # A queue that does not exist holds nothing. Whether what it held has arrived is not known.
            look.is_complete = classify(error) is Failure.NOT_FOUND
            if look.is_complete:
                self._client._setup.found_missing(queue, begun_ms)
            self._client._checks.found(queue, error)
            look.met.clear()
            look.foreign.clear()
            logger.debug("the look into %s failed", queue, exc_info=True)
        finally:
            if is_whole and not self._client._is_ended:
                self._receivers[queue] = receiver
            else:
                await self._client._close_quietly(receiver)
        self._conclude(look)
        return failure

    async def _read(self, receiver: Any, look: Look) -> bool:
        """Read a queue. True: it was empty."""
        state, options = self._state, self._state.options
        position = 1
        for _ in range(self._pages_max):
            with state.lock:
                state.counters.fence_peeks += 1
            page = await self._runtime.call(
                receiver.peek_messages, max_message_count=PAGE_MESSAGES, sequence_number=position
            )
            if not page:
                look.is_complete = True
                return position == 1
            for message in page:
                seen = seen_of(message, options.order, self._client._identity)
                if seen is not None:
                    look.saw(seen, state.name)
            with state.lock:
                # The end of a short queue costs one page more, and says how many messages are left.
                if len(page) >= PAGE_MESSAGES and self._book.has_seen_enough(look):
                    return False
            position = int(page[-1].sequence_number or 0) + 1
        return False

    def _conclude(self, look: Look) -> None:
        state = self._state
        with state.lock:
            report = self._book.end_look(look, state.clock())
            state.fences_stand(report.fenced)
            state.fences_ended(report.lifted, report.lost)
            self._tell(
                Kind.FENCE_STANDS, report.fenced, f"parked in {look.queue}: later sends go behind them"
            )
            self._tell(
                Kind.FENCE_LIFTED,
                report.lifted,
                "are no longer in the backlog: sends go to the primary again",
            )
            self._tell(
                Kind.FENCE_LIFTED,
                report.lost,
                "are no longer in the backlog: their queue was deleted, and some of them may never arrive; sends go to the primary again",
            )
            self._tell(
                Kind.ORDER_UNKNOWN,
                report.crossed,
                f"parked in {look.queue} by another client while this one sent to the primary: the order between the two "
                "is not kept",
            )
        if report.lifted or report.lost:
            self._runtime.notify()

    def _tell(self, kind: Kind, keys: list[Key], text: str) -> None:
        for entity, count in Counter(key[0] for key in keys).items():
            names = [key[1] for key in keys if key[0] == entity][:FENCE_NAMES_MAX]
            path = self._state.path_of(entity)
            shown = ", ".join(repr(name) for name in names) + (", …" if count > len(names) else "")
            what = f"messages of session {shown}" if count == 1 else f"messages of {count} sessions ({shown})"
            self._state.emit(kind, path, f"{what} {text}", sessions=count, names=names)

    def expire(self) -> None:
        """Apply ``fence_policy`` to fences that stand longer than ``fence_timeout``."""
        state = self._state
        with state.lock:
            sessions, queues = self._book.expire(state.clock())
            state.counters.fences_timed_out += len(sessions)
            policy = state.options.fence_policy
            kind = Kind.FENCE_OVERTAKEN if policy == "overtake" else Kind.FENCE_TIMED_OUT
            then = {
                "wait": "later sends go on being parked behind them",
                "raise": "sends raise SessionFencedError until they have arrived",
                "overtake": "later sends go to the primary and overtake them",
            }[policy]
            after = f"{state.options.fence_timeout.total_seconds():g} s"
            self._tell(kind, sessions, f"are still in the backlog after {after}: {then}")
            for queue in queues:
                state.emit(
                    kind,
                    queue or state.secondary,
                    f"it could not be looked through in {after}, so it is not known whether sessions have messages there: {then}",
                )
        if sessions or queues:
            self._runtime.notify()
