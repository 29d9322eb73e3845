"""What is known about the attempts of one send: whether its message has left, and whether an attempt got no answer (P5)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.errors import PairbusError
from pairbus.pairing.outcome import mark_impatient
from pairbus.sdk.failures import IN_DOUBT, classify

SEND_SECONDS: Final = 60.0
"""Time of a send that came without a timeout: a silent primary must not hold it for ever."""
FULL_SHARE: Final = 0.9
"""An attempt that got this part of its time had all of it: everybody who shares a link waits a moment."""
SILENCE_SECONDS: Final = 10.0
"""An attempt that got this long has had time for an answer, though it was to get more."""


class Attempts:
    """The attempts of one send, the SDK's own retries included."""

    is_sent = False
    """Whether the attempt in progress has come so far that the message may have left."""
    is_in_doubt = False
    """Whether an attempt ended without an answer after that."""
    call: Any = None
    """The call in progress that makes an attempt on asyncio."""

    def begin(self) -> None:
        """An attempt begins: it waits for a link, nothing has left."""
        self.is_sent = False

    def sending(self) -> None:
        """The link is open and the message is written from here on."""
        self.is_sent = True

    def failed(self, error: BaseException) -> bool:
        """An attempt failed. Whether this one, or one before, may have stored the message."""
        if self.is_sent and (not isinstance(error, Exception) or classify(error) in IN_DOUBT):
            self.is_in_doubt = True
        return self.is_in_doubt


def seconds_after_waiting(seconds: float, had: float, left: float) -> float:
    """How long an attempt may last whose caller had to wait for its turn.

    What the attempt was to leave of the caller's time it still leaves, but for half of what is left.

    Args:
        seconds: How long it was to last.
        had: What the caller had in all when the wait began.
        left: What of that is left.
    """
    to_leave = max(0.0, had - seconds)  # who waits a second time may have less than the attempt was to last
    return max(0.001, min(seconds, max(left - to_leave, left / 2)))


def is_cut_short(given: float, seconds: float) -> bool:
    """Whether an attempt that was to last ``seconds`` got too little of that for its time-out to blame the peer."""
    return given < min(seconds * FULL_SHARE, SILENCE_SECONDS)


def waited_in_vain() -> OperationTimeoutError:
    """The error of a caller whose time ended while it waited for its turn."""
    error = OperationTimeoutError(message="Timed out waiting for the link.")
    mark_impatient(error)
    return error


@dataclass(frozen=True, slots=True)
class Failed:
    """A send that was not accepted: why, what is known about its attempts, and how many seconds it took."""

    error: BaseException
    attempts: Attempts
    seconds: float


current_attempts: ContextVar[Attempts | None] = ContextVar("pairbus_attempts")
"""Those of the send in progress. Coroutines and threads that share a sender must not see each other's."""


class NotWanted(PairbusError, ServiceBusError):
    """The entity failed over while a message waited for the link to its primary: it goes another way."""

    def __init__(self) -> None:
        ServiceBusError.__init__(self, "The entity has failed over.", retryable=False, shutdown_handler=False)
        # azure-core keeps the exception that is being handled, and with it every frame that it passed through.
        self.exc_type = self.exc_value = self.exc_traceback = None


class LinkClosed(PairbusError, ValueError, ServiceBusError):
    """The sender was closed while a message waited on its link. One of the SDK's own, so that its retries end silently."""

    def __init__(self) -> None:
        ServiceBusError.__init__(
            self, "The sender was closed while it was sending.", retryable=False, shutdown_handler=False
        )
        self.exc_type = self.exc_value = self.exc_traceback = None


def notice(error: BaseException) -> None:
    """An attempt of the send in progress failed."""
    attempts = current_attempts.get(None)
    if attempts is not None:
        attempts.failed(error)
