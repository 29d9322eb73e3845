"""One sender of the SDK that any number of threads share.

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

from pairbus.pairing.runtime.attempts import NotWanted, current_attempts
from pairbus.sdk import handlers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairbus.pairing.runtime.thread_runtime import Limits

NEVER: Final = float("inf")
CLOSE_SECONDS: Final = 0.5
"""How long ``close`` waits for the call in progress before it ends the connection under it."""
END_SECONDS: Final = 2.0
"""How long ``close`` waits for the end of a connection before it leaves it behind."""


class ThreadLink:
    """See ``Link``.

    Args:
        sender: The SDK's sender; nobody else may call it.
        limits: Cuts off calls that overrun.
        is_wanted: Whether a message should still go this way, asked before each attempt.
    """

    def __init__(self, sender: Any, limits: Limits, is_wanted: Callable[[], bool]) -> None:
        self.sender = sender
        self.until = NEVER
        """When the plain send in progress is cut off. An attribute: what it costs is paid by every send."""
        self.turn = threading.Lock()
        """Held by the one thread that calls the sender."""
        self._limits = limits
        self._is_wanted = is_wanted
        self._ending: list[threading.Thread] = []
        self._sdk_send = handlers.share(sender, self._send)
        handlers.free_sockets(sender)
        limits.add(self)

    async def send(self, message: Any, seconds: float, cut_seconds: float) -> None:
        if not self.turn.acquire(blocking=False):
            begun = time.monotonic()
            if not self.turn.acquire(timeout=seconds):
                raise OperationTimeoutError(message="Timed out waiting for the link.")
            waited = time.monotonic() - begun
            seconds, cut_seconds = max(0.001, seconds - waited), max(0.001, cut_seconds - waited)
        try:
            self.until = time.monotonic() + cut_seconds
            if self._limits.watcher is None:
                self._limits.start()
            self.sender.send_messages(message, timeout=seconds)
        except Exception:
            raise
        except BaseException:
            self._drop()
            raise
        finally:
            self.until = NEVER
            self.turn.release()

    async def open(self, seconds: float) -> None:
        with self._held(seconds):
            handlers.open_with_retries(self.sender)

    async def call(self, work: Callable[..., Any], seconds: float, *given: Any, **options: Any) -> Any:
        with self._held(seconds):
            handlers.open_with_retries(self.sender)
            attempts = current_attempts.get(None)
            if attempts is not None:
                attempts.sending()
            return work(*given, **options)

    def rest(self) -> None:
        if self.turn.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self.turn.release()

    async def close(self) -> None:
        is_ours = self.turn.acquire(timeout=CLOSE_SECONDS)
        try:
            self._drop()
            self.sender.close()
        finally:
            if is_ours:
                self.turn.release()
        for thread in self._ending:
            thread.join(END_SECONDS)

    @contextmanager
    def _held(self, seconds: float) -> Iterator[None]:
        begun = time.monotonic()
        if not self.turn.acquire(timeout=seconds):
            raise OperationTimeoutError(message="Timed out waiting for the link.")
        try:
            self.until = begun + max(0.001, seconds)
            if self._limits.watcher is None:
                self._limits.start()
            yield
        finally:
            self.until = NEVER
            self.turn.release()

    def _send(
        self, message: Any, timeout: float | None = None, last_exception: Exception | None = None
    ) -> None:
        """One attempt of the SDK to send a message."""
        attempts = current_attempts.get(None)
        # Attributes, not ``begin`` and ``sending``: what this costs is paid by every send.
        if attempts is not None:
            attempts.is_sent = False
        if not self._is_wanted():
            raise NotWanted
        handlers.ensure_open(self.sender, timeout)
        if attempts is not None:
            attempts.is_sent = True
        self._sdk_send(message, timeout=timeout, last_exception=last_exception)

    def _drop(self) -> None:
        """Let go of the connection. A thread closes it: that takes a second or more when its peer is gone."""
        handler = handlers.take_handler(self.sender)
        if handler is not None:
            thread = threading.Thread(target=_end, args=(handler,), name="pairbus-closing", daemon=True)
            self._ending = [*(one for one in self._ending if one.is_alive()), thread]
            thread.start()


def _end(handler: Any) -> None:
    with suppress(Exception):
        handlers.end_handler(handler)
