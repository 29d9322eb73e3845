"""One sender of the SDK that any number of threads share.

The SDK's sender is not safe for threads: two that open its link replace each other's connection. So one thread at a time
calls it, and the others wait for their turn in the order in which they came, each no longer than its own timeout. The time of an
attempt begins with its turn: that others wait for the peer, too, says nothing about the peer.

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

from pairbus.pairing.outcome import is_impatient, mark_impatient
from pairbus.pairing.runtime.attempts import (
    Attempts,
    Failed,
    LinkClosed,
    NotWanted,
    current_attempts,
    is_cut_short,
    seconds_after_waiting,
    waited_in_vain,
)
from pairbus.pairing.runtime.turns import Turn
from pairbus.sdk.failures import IN_DOUBT, Failure, classify
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
        self.turn = Turn()
        """The one thread that has it calls the sender."""
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

    async def send(
        self, message: Any, seconds: float, cut_seconds: float, patience: float | None = None
    ) -> None:
        failed = self.try_to_send(message, seconds, cut_seconds, current_attempts.get(None), patience)
        if failed is not None:
            raise failed.error

    def try_to_send(
        self,
        message: Any,
        seconds: float,
        cut_seconds: float,
        attempts: Attempts | None = None,
        patience: float | None = None,
    ) -> Failed | None:
        turn, attempts = self.turn, attempts or Attempts()
        begun = time.monotonic()
        is_short = False
        try:
            if not turn.waiting and turn.lock.acquire(False):
                self._asked_at = begun
                self.until = begun + cut_seconds
            else:
                given = self._wait_for_turn(begun, seconds, patience, attempts, self._is_of_use)
                is_short = is_cut_short(given, seconds)
                self.until = self._asked_at + cut_seconds - seconds + given
                seconds = given
            try:
                if self.is_closed:
                    raise LinkClosed
                self._attempts = attempts
                self._is_sending = attempts.is_sent = True
                if self._limits.watcher is None:
                    self._limits.start()
                self.sender.send_messages(message, timeout=seconds)
                self._silent_since = NEVER
            except Exception as error:
                if is_short:
                    self._excuse(error)
                raise
            except BaseException:
                self._drop()
                raise
            finally:
                self._is_sending = False
                self.until = NEVER
                turn.lock.release()
                if turn.waiting:
                    turn.pass_on()
                if self.is_closed:
                    self._end_if_free()
        except BaseException as error:  # noqa: BLE001 - the caller judges it
            return Failed(error, attempts, time.monotonic() - begun)
        return None

    def _wait_for_turn(
        self,
        begun: float,
        seconds: float,
        patience: float | None,
        attempts: Attempts | None,
        is_of_use: Callable[[], bool],
    ) -> float:
        """Wait for the turn, and take it. Returns how long the attempt may last."""
        if attempts is not None:
            attempts.begin()
        had = seconds if patience is None else patience
        is_taken = self.turn.take(had, is_of_use)
        try:
            if self.is_closed:
                raise LinkClosed
            if not is_of_use():
                raise NotWanted
            self._asked_at = time.monotonic()
            left = had - (self._asked_at - begun)
            given = seconds_after_waiting(seconds, had, left)
            is_hopeless = given < min(OPEN_SECONDS_MIN, seconds / 2) and not handlers.is_open(self.sender)
            if not is_taken or left <= 0 or is_hopeless:
                raise waited_in_vain()
        except BaseException:
            if is_taken:
                self.turn.release()
            raise
        return given

    def _is_of_use(self) -> bool:
        return self._is_wanted() and not self.is_closed

    def _is_not_closed(self) -> bool:
        return not self.is_closed

    def look_after_waiting(self) -> None:
        """Let those who wait for the turn go, when it is of no use any more. The watcher asks for it."""
        if self.turn.waiting and not self._is_of_use():
            self.turn.look_again()

    def _excuse(self, error: BaseException) -> None:
        """A call that had little time, because its caller had waited, ended: that its time was over says nothing about the peer."""
        if classify(error) is Failure.TIMEOUT or time.monotonic() >= self.until:
            mark_impatient(error)

    async def open(self, seconds: float) -> None:
        with self._held(seconds):
            handlers.open_with_retries(self.sender)

    async def call(
        self,
        work: Callable[..., Any],
        seconds: float,
        *given: Any,
        patience: float | None = None,
        **options: Any,
    ) -> Any:
        with self._held(seconds, patience) as left:
            if options.get("timeout") is not None:
                options["timeout"] = min(options["timeout"], left)
            handlers.open_with_retries(self.sender)
            if self._attempts is not None:
                self._attempts.sending()
            return work(*given, **options)

    def rest(self) -> None:
        if self.turn.try_to_take():
            try:
                self._drop()
            finally:
                self.turn.release()

    async def close(self) -> None:
        self.is_closed = True
        self.turn.look_again()
        is_ours = self.turn.take(CLOSE_SECONDS, _always)
        until = time.monotonic() + CUT_SECONDS
        while not is_ours and time.monotonic() < until:
            # Again and again: the call in progress may be about to open a connection that is not there yet.
            handlers.cut_socket(self.sender)
            is_ours = self.turn.take(CUT_EVERY_SECONDS, _always)
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
    def _held(self, seconds: float, patience: float | None = None) -> Iterator[float]:
        """Have the turn. The result: the seconds that are left for the call."""
        begun = time.monotonic()
        attempts = current_attempts.get(None)
        given = seconds
        if not self.turn.try_to_take():
            is_of_use = self._is_not_closed if patience is None else self._is_of_use
            given = self._wait_for_turn(begun, seconds, patience, attempts, is_of_use)
            begun = self._asked_at
        try:
            if self.is_closed:
                raise LinkClosed
            self._attempts = attempts
            self._asked_at = time.monotonic()
            self.until = begun + max(0.001, given)
            if self._limits.watcher is None:
                self._limits.start()
            yield given
            self._silent_since = NEVER
        except ServiceBusError as error:
            if is_cut_short(given, seconds):
                self._excuse(error)
            if self.is_closed or time.monotonic() < self.until or classify(error) not in IN_DOUBT:
                raise
            # No number: the caller's own time may be longer than the part of it that this attempt had.
            late = OperationTimeoutError(message="The request did not end in time.")
            if is_impatient(error):
                mark_impatient(late)
            raise late from error
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
        if self.turn.try_to_take():
            try:
                self._end_sender()
            finally:
                self.turn.release()


def _always() -> bool:
    return True


def _end(handler: Any) -> None:
    with suppress(Exception):
        handlers.end_handler(handler)
