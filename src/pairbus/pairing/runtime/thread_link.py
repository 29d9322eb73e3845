"""One sender of the SDK that any number of threads share.

The SDK's sender is not safe for threads: two that open its link replace each other's connection. So one thread at a time
calls it, and the others wait for their turn, each no longer than its own timeout.

The connection belongs to the thread that has the turn. Nobody else takes it off the sender: the watcher would find nothing to
cut, and that thread would wait for a silent peer for ever.

A connection on which a call got no answer in its time may be dead without an error, as after a firewall has forgotten it. The
thread that noticed drops it, and the next attempt, its own or that of a thread that waits, opens another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing.runtime.attempts import Attempts, Failed, LinkClosed, NotWanted, current_attempts
from pairbus.sdk.failures import IN_DOUBT, classify
from pairbus.sdk.links import handlers, opening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairbus.pairing.runtime.thread_runtime import Limits

NEVER: Final = float("inf")
CLOSE_SECONDS: Final = 0.5
"""How long ``close`` waits for the call in progress before it ends the connection under it."""
CUT_SECONDS: Final = 1.5
"""How long ``close`` then cuts connections until the call in progress has ended."""
CUT_EVERY_SECONDS: Final = 0.1
ANSWER_SECONDS_MIN: Final = 0.25
"""A connection that had less time than this to answer is not dead: its callers had no time."""
OPEN_SECONDS_MIN: Final = 1.0
"""Who has waited for the turn opens no connection with less time than this left, or half of what it had: it would not succeed, and
the address would get the blame."""
END_SECONDS: Final = 1.0
"""How long ``close`` waits for the end of a connection before it cuts it, and again before it leaves it behind."""


class ThreadLink:
    """See ``Link``.

    Args:
        sender: The SDK's sender; nobody else may call it.
        limits: Cuts off calls that overrun.
        is_wanted: Whether a message should still go this way, asked before each attempt that does not begin at once.
        is_final: Errors after which the SDK shall not try again.
    """

    def __init__(
        self,
        sender: Any,
        limits: Limits,
        is_wanted: Callable[[], bool],
        is_final: Callable[[BaseException], bool] | None = None,
    ) -> None:
        self.sender = sender
        self.until = NEVER
        """When the call in progress is cut off; only the thread that has the turn sets it. An attribute: what it costs is paid
        by every send."""
        self.cut_again = 0.0
        """The watcher's own note: not before this time it cuts the call in progress once more."""
        self.is_closed = False
        self.is_overdue = False
        """Whether the call in progress has outlasted ``close``. The watcher then cuts it, whatever its time limit."""
        self.turn = threading.Lock()
        """Held by the one thread that calls the sender."""
        self._limits = limits
        self._is_wanted = is_wanted
        self._ending: list[tuple[threading.Thread, Any]] = []
        self._attempts: Attempts | None = None
        """Those of the call in progress, or of the last one."""
        self._is_sending = False
        """Whether there is a call in progress that sends."""
        self._asked_at = 0.0
        """When the call in progress got its turn, or its last attempt ended."""
        self._silent_since = NEVER
        """When the first call was made that had no answer; ``NEVER`` since the last answer."""
        opening.bound_opening(sender)
        handlers.watch_attempts(sender, self._failed, is_final)
        handlers.watch_pauses(sender, self._may_try_again)
        self._sdk_open = handlers.share_opening(sender, self._open)
        handlers.open_quickly(sender)
        handlers.share_closing(sender, self._drop)
        handlers.end_retries(sender, self._is_over)
        limits.add(self)

    async def send(self, message: Any, seconds: float, cut_seconds: float) -> None:
        failed = self.try_to_send(message, seconds, cut_seconds, current_attempts.get(None))
        if failed is not None:
            raise failed.error

    def try_to_send(
        self, message: Any, seconds: float, cut_seconds: float, attempts: Attempts | None = None
    ) -> Failed | None:
        begun = time.monotonic()
        attempts = attempts or Attempts()
        try:
            if self.turn.acquire(False):
                self._asked_at = begun
            else:
                seconds = self._wait_for_turn(begun, seconds)
            try:
                if self.is_closed:
                    raise LinkClosed
                self._attempts = attempts
                self._is_sending = attempts.is_sent = True
                self.until = begun + cut_seconds
                if self._limits.watcher is None:
                    self._limits.start()
                self.sender.send_messages(message, timeout=seconds)
                self._silent_since = NEVER
            except Exception:
                raise
            except BaseException:
                self._drop()
                raise
            finally:
                self._is_sending = False
                self.until = NEVER
                self.turn.release()
                if self.is_closed:
                    self._end_if_free()
        except BaseException as error:  # noqa: BLE001 - the caller judges it
            return Failed(error, attempts, time.monotonic() - begun)
        return None

    def _wait_for_turn(self, begun: float, seconds: float) -> float:
        """Wait for the turn, and take it. Returns how much of ``seconds`` is left."""
        if not self.turn.acquire(timeout=seconds):
            raise OperationTimeoutError(message="Timed out waiting for the link.")
        if not self._is_wanted():
            self.turn.release()
            raise NotWanted
        self._asked_at = time.monotonic()
        left = max(0.001, seconds - (self._asked_at - begun))
        if left < min(OPEN_SECONDS_MIN, seconds / 2) and not handlers.is_open(self.sender):
            self.turn.release()
            raise OperationTimeoutError(message="Timed out waiting for the link.")
        return left

    async def open(self, seconds: float) -> None:
        with self._held(seconds):
            handlers.open_with_retries(self.sender)

    async def call(self, work: Callable[..., Any], seconds: float, *given: Any, **options: Any) -> Any:
        with self._held(seconds):
            handlers.open_with_retries(self.sender)
            if self._attempts is not None:
                self._attempts.sending()
            return work(*given, **options)

    def rest(self) -> None:
        if self.turn.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self.turn.release()

    async def close(self) -> None:
        self.is_closed = True
        is_ours = self.turn.acquire(timeout=CLOSE_SECONDS)
        until = time.monotonic() + CUT_SECONDS
        while not is_ours and time.monotonic() < until:
            # Again and again: the call in progress may be about to open a connection that is not there yet.
            handlers.cut_socket(self.sender)
            is_ours = self.turn.acquire(timeout=CUT_EVERY_SECONDS)
        if is_ours:
            try:
                self._end_sender()
            finally:
                self.turn.release()
        else:
            # The watcher goes on cutting, and the thread that has the turn ends the connection when it gives it back.
            self.is_overdue = True
        for thread, handler in self._ending:
            thread.join(END_SECONDS)
            if thread.is_alive():
                handlers.cut_connection(handler)
                thread.join(END_SECONDS)

    @contextmanager
    def _held(self, seconds: float) -> Iterator[None]:
        begun = time.monotonic()
        if not self.turn.acquire(timeout=seconds):
            raise OperationTimeoutError(message="Timed out waiting for the link.")
        try:
            if self.is_closed:
                raise LinkClosed
            self._attempts = current_attempts.get(None)
            self._asked_at = time.monotonic()
            self.until = begun + max(0.001, seconds)
            if self._limits.watcher is None:
                self._limits.start()
            yield
            self._silent_since = NEVER
        except ServiceBusError as error:
            if self.is_closed or time.monotonic() < self.until or classify(error) not in IN_DOUBT:
                raise
            # No number: the caller's own time may be longer than the part of it that this attempt had.
            raise OperationTimeoutError(message="The request did not end in time.") from error
        finally:
            self.until = NEVER
            self.turn.release()
            if self.is_closed:
                self._end_if_free()

    def _is_over(self) -> bool:
        """Whether the SDK's retries are of no use: the call in progress has no time left, or the link is closed."""
        return self.is_closed or self.until <= time.monotonic()

    def _failed(self, error: BaseException) -> None:
        """An attempt of the call in progress has failed."""
        if self._attempts is not None:
            self._attempts.failed(error)
        if isinstance(error, OperationTimeoutError):
            self._was_silent()
        else:
            self._silent_since = NEVER  # an answer, or the end of the connection

    def _was_silent(self) -> None:
        """An attempt had no answer in its time. The SDK keeps such a connection, and would use a dead one for ever."""
        now = time.monotonic()
        self._silent_since = min(self._silent_since, self._asked_at)
        self._asked_at = now
        if now - self._silent_since >= ANSWER_SECONDS_MIN:
            self._drop()

    def _may_try_again(self) -> None:
        """The SDK has paused after a failed attempt, and is about to make the next one."""
        if self._is_sending and self._attempts is not None:
            self._attempts.is_sent = False
            if self.is_closed:
                raise LinkClosed
            if not self._is_wanted():
                raise NotWanted
            self._attempts.is_sent = True

    def _open(self, timeout: float | None = None) -> None:
        """What the SDK calls before each use of a sender that is not open."""
        if not self._is_sending or self._attempts is None:
            self._sdk_open(timeout)
            return
        self._attempts.is_sent = False  # nothing leaves before the link is open
        self._sdk_open(timeout)
        if not self._is_wanted():
            raise NotWanted
        self._attempts.is_sent = True

    def _drop(self) -> None:
        """Let go of the connection. A thread closes it: that takes a second or more when its peer is gone."""
        self._silent_since = NEVER
        handler = handlers.take_handler(self.sender)
        if handler is not None:
            thread = threading.Thread(target=_end, args=(handler,), name="pairbus-closing", daemon=True)
            self._ending = [*(one for one in self._ending if one[0].is_alive()), (thread, handler)]
            thread.start()

    def _end_sender(self) -> None:
        self._drop()
        self.sender.close()

    def _end_if_free(self) -> None:
        """The link was closed during a call: what that call has left open is closed now."""
        if self.turn.acquire(blocking=False):
            try:
                self._end_sender()
            finally:
                self.turn.release()


def _end(handler: Any) -> None:
    with suppress(Exception):
        handlers.end_handler(handler)
