"""What is known about the attempts of one send: whether its message has left, and whether an attempt got no answer (P5)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from azure.servicebus.exceptions import ServiceBusError

from pairbus.errors import PairbusError
from pairbus.sdk.failures import IN_DOUBT, classify


class Attempts:
    """The attempts of one send, the SDK's own retries included."""

    is_sent = False
    """Whether the attempt in progress has come so far that the message may have left."""
    is_in_doubt = False
    """Whether an attempt ended without an answer after that."""

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


@dataclass(frozen=True, slots=True)
class Failed:
    """A send that was not accepted: why, what is known about its attempts, and how many seconds it took."""

    error: BaseException
    attempts: Attempts
    seconds: float


current_attempts: ContextVar[Attempts] = ContextVar("pairbus_attempts")
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
