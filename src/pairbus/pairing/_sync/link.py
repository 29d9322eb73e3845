"""One official sender that any number of threads share. ``_async/link.py`` is its partner.

The SDK's sender is not safe for threads: two that open its link replace each other's connection. So one thread at a time
calls it, and the others wait for their turn, each no longer than its own timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.attempts import NotWanted, current_attempts
from pairbus.sdk import handlers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairbus.pairing._sync.runtime import Limits

GRACE_SECONDS: Final = 1.0
"""How much a plain send may overrun its timeout before it is cut off."""
CLOSE_SECONDS: Final = 0.5
"""How long ``close`` waits for the call in hand before it ends the connection under it."""
END_SECONDS: Final = 2.0
"""How long the end of a connection is waited for before its socket is cut."""


def _always() -> bool:
    return True


class Link:
    """One official sender, and whose turn it is to call it.

    Args:
        sender: The SDK's sender; nobody else may call it.
        limits: Cuts off calls that overrun.
        is_wanted: Whether a message should still go this way, asked before each attempt.
    """

    def __init__(self, sender: Any, limits: Limits, is_wanted: Callable[[], bool] = _always) -> None:
        self.sender = sender
        self.is_closed = False
        self._limits = limits
        self._is_wanted = is_wanted
        self._slot = limits.slot()
        self._ending: list[threading.Thread] = []
        self._sdk_send = handlers.share(sender, self._send)

    def send(self, message: Any, seconds: float, cut_seconds: float, options: dict[str, Any]) -> None:
        """Send within ``seconds``; the SDK does not keep every one of its timeouts, so ``cut_seconds`` ends it."""
        if not self._slot.turn.acquire(blocking=False):
            begun = time.monotonic()
            if not self._slot.turn.acquire(timeout=seconds):
                raise OperationTimeoutError(message="Timed out waiting for the link.")
            waited = time.monotonic() - begun
            seconds, cut_seconds = max(0.001, seconds - waited), max(0.001, cut_seconds - waited)
        try:
            self._slot.send(self.sender, message, seconds, cut_seconds, options)
        except Exception:
            raise
        except BaseException:
            self._drop()
            raise
        finally:
            self._slot.turn.release()

    def open(self, seconds: float) -> None:
        """Open the link if it is not open; the SDK tries again as often as it is told to."""
        with self._held(seconds) as left, self._limits.limit(self.sender, left):
            handlers.open_with_retries(self.sender)

    def call(self, work: Callable[..., Any], seconds: float, *given: Any, **options: Any) -> Any:
        """Call another method of the sender while nobody else uses the link."""
        with self._held(seconds) as left, self._limits.limit(self.sender, left):
            handlers.open_with_retries(self.sender)
            attempts = current_attempts.get(None)
            if attempts is not None:
                attempts.sending()
            return work(*given, **options)

    def rest(self) -> None:
        """Let go of the connection if nobody uses it: after an outage a fresh one is wanted."""
        if self._slot.turn.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._slot.turn.release()

    def close(self) -> None:
        """Close the connection; a call in hand is waited for a moment, then it fails."""
        self.is_closed = True
        is_ours = self._slot.turn.acquire(timeout=CLOSE_SECONDS)
        try:
            self._drop()
            self.sender.close()
        finally:
            if is_ours:
                self._slot.turn.release()
        for thread in self._ending:
            thread.join(END_SECONDS)

    @contextmanager
    def _held(self, seconds: float) -> Iterator[float]:
        begun = time.monotonic()
        if not self._slot.turn.acquire(timeout=seconds):
            raise OperationTimeoutError(message="Timed out waiting for the link.")
        try:
            yield max(0.001, seconds - (time.monotonic() - begun))
        finally:
            self._slot.turn.release()

    def _send(
        self, message: Any, timeout: float | None = None, last_exception: Exception | None = None
    ) -> None:
        """One attempt of the SDK to send a message."""
        attempts = current_attempts.get(None)
        if attempts is not None:
            attempts.begin()
        if not self._is_wanted():
            raise NotWanted
        if not self.sender._running:
            self.sender._open(timeout)
        if attempts is not None:
            attempts.sending()
        self._sdk_send(message, timeout=timeout, last_exception=last_exception)

    def _drop(self) -> None:
        """Let go of the connection; it is closed meanwhile, which takes a second or more when its peer is gone."""
        handler = handlers.take_handler(self.sender)
        if handler is not None:
            thread = threading.Thread(target=_end, args=(handler,), name="pairbus-closing", daemon=True)
            self._ending = [*(one for one in self._ending if one.is_alive()), thread]
            thread.start()


def _end(handler: Any) -> None:
    with suppress(Exception):
        handler.close()
