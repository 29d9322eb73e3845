"""Sorts the exceptions of the official SDK into kinds of failure."""

from __future__ import annotations

from enum import Enum
from typing import Final

from azure.core.exceptions import (
    ClientAuthenticationError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPException,
    ErrorCondition,
    TokenAuthFailure,
)
from azure.servicebus._transport._pyamqp_transport import _ERROR_CODE_TO_ERROR_MAPPING


class Failure(Enum):
    """The kind of error that ended a send."""

    TIMEOUT = "timeout"
    CONNECTION = "connection refused or lost"
    INTERNAL = "internal or unknown error"
    DISABLED = "entity disabled"
    NOT_FOUND = "entity not found"
    QUOTA = "quota exceeded"
    BUSY = "server busy"
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "message too large"
    INVALID = "invalid argument or state"
    CANCELLED = "cancelled"
    CLIENT = "error inside the client"
    """Not an answer and not the network: it says nothing about the primary."""


IN_DOUBT: Final = (Failure.TIMEOUT, Failure.CONNECTION, Failure.INTERNAL, Failure.CLIENT)
"""After these the message may or may not be stored (P5). The SDK gives a connection that ends under a send as
``amqp:client-error`` and whatever broke inside it as "Handler failed", so that an error of no other kind is no answer."""

OF_THE_MESSAGE: Final = (Failure.TOO_LARGE, Failure.INVALID)
"""The entity refuses this message itself: sending it again cannot help, and it may be dead-lettered. Every other kind may pass."""

# The official SDK gives these as a plain ServiceBusError; the condition tells them apart.
_INVALID_CONDITIONS: Final = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:precondition-failed",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
        "com.microsoft:precondition-failed",
    }
)

_OF_THE_ENTITY: Final = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:precondition-failed",
        "com.microsoft:precondition-failed",
    }
)
"""Those of them that are about the settings of the entity: another queue may take the same message."""

_BY_STATUS: Final = {
    401: Failure.UNAUTHORIZED,
    403: Failure.UNAUTHORIZED,
    404: Failure.NOT_FOUND,
    408: Failure.TIMEOUT,
    500: Failure.INTERNAL,
    503: Failure.BUSY,
    504: Failure.TIMEOUT,
}

_CLIENT: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
)
"""What Python raises for a fault in a program, this one or the SDK: no network and no peer raises it."""

_BY_CLASS: Final[tuple[tuple[type[BaseException], Failure], ...]] = (
    (sdk.MessageSizeExceededError, Failure.TOO_LARGE),
    (sdk.OperationTimeoutError, Failure.TIMEOUT),
    (sdk.MessagingEntityNotFoundError, Failure.NOT_FOUND),
    (sdk.MessagingEntityDisabledError, Failure.DISABLED),
    (sdk.ServiceBusQuotaExceededError, Failure.QUOTA),
    (sdk.ServiceBusServerBusyError, Failure.BUSY),
    (sdk.ServiceBusAuthorizationError, Failure.UNAUTHORIZED),
    (sdk.ServiceBusConnectionError, Failure.CONNECTION),
    (sdk.ServiceBusCommunicationError, Failure.CONNECTION),
    (ClientAuthenticationError, Failure.UNAUTHORIZED),
    (ServiceRequestError, Failure.CONNECTION),
    (ServiceResponseError, Failure.CONNECTION),
    (TimeoutError, Failure.TIMEOUT),
    (OSError, Failure.CONNECTION),
    (ValueError, Failure.INVALID),
    (TypeError, Failure.INVALID),
)


def classify(error: BaseException) -> Failure:
    """What kind of failure an exception of the SDK stands for."""
    if not isinstance(error, Exception):
        return (
            Failure.CANCELLED
        )  # asyncio's cancellation, an interrupt from the keyboard, the end of the process
    inner = getattr(error, "inner_exception", None)
    if isinstance(error, sdk.ServiceBusAuthenticationError) or isinstance(inner, TokenAuthFailure):
        return _refused_token(inner)
    if isinstance(error, AMQPException):
        return _of_amqp(error)
    for kind, failure in _BY_CLASS:
        if isinstance(error, kind):
            return failure
    if isinstance(error, sdk.ServiceBusError):
        return _by_condition(error)
    return Failure.CLIENT if isinstance(error, _CLIENT) else Failure.INTERNAL


def is_of_the_transport(error: BaseException) -> bool:
    """Whether an error came from the peer or the network, not from inside the client."""
    return classify(error) is not Failure.CLIENT


def is_of_the_message(error: BaseException) -> bool:
    """Whether an error is the message's own fault: every other queue would refuse the message, too."""
    failure = classify(error)
    if failure is Failure.TOO_LARGE:
        return True
    return failure is Failure.INVALID and _condition(error) not in _OF_THE_ENTITY


def is_of_the_entity(error: BaseException) -> bool:
    """Whether an error is about the settings of an entity: what it is does not allow what was asked of it."""
    return classify(error) is Failure.INVALID and _condition(error) in _OF_THE_ENTITY


def is_refusal(error: BaseException) -> bool:
    """Whether an error is an answer that the same queue would give again. A fresh token may change one of the others."""
    return classify(error) not in (*IN_DOUBT, Failure.CANCELLED, Failure.UNAUTHORIZED)


def shown(error: BaseException, most: int = 200) -> str:
    """An error as events, reports and logs have it. Of a refused token what the answer said: the SDK's own text does not tell."""
    name, text = type(error).__name__, str(error)
    if not text and isinstance(error, TimeoutError):
        text = "no answer in time"
    refusal = _refusal(error)
    if refusal is not None and isinstance(refusal.status_code, int):
        if classify(error) is Failure.NOT_FOUND:
            name = sdk.MessagingEntityNotFoundError.__name__
        text = f"status {refusal.status_code}: {_description(refusal)}"
    return f"{name}: {text}"[:most]


def as_not_found(error: BaseException | None) -> BaseException | None:
    """The same error by its right name, if it says that an entity does not exist.

    The SDK raises an authentication error when the request for a token of an entity that does not exist is answered with 404.
    """
    refusal = None if error is None else _refusal(error)
    if error is None or refusal is None or classify(error) is not Failure.NOT_FOUND:
        return error
    named = sdk.MessagingEntityNotFoundError(message=_description(refusal), error=refusal)
    # azure-core keeps the exception that is being handled, and with it every frame that it passed through.
    named.exc_type = named.exc_value = named.exc_traceback = None
    named.__cause__ = error
    return named


def _refusal(error: BaseException) -> TokenAuthFailure | None:
    for one in (error, getattr(error, "inner_exception", None)):
        if isinstance(one, TokenAuthFailure):
            return one
    return None


def _description(refusal: TokenAuthFailure) -> str:
    text = refusal.status_description or ""
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _condition(error: BaseException) -> str:
    """The AMQP condition of an error; empty when it has none."""
    condition = getattr(error, "_condition", None) or getattr(error, "condition", None) or ""
    return condition.decode() if isinstance(condition, bytes) else str(condition)


def _by_condition(error: sdk.ServiceBusError) -> Failure:
    condition = str(getattr(error, "_condition", None) or "")
    if condition in _INVALID_CONDITIONS:
        return Failure.INVALID
    if condition == "amqp:not-found":
        return Failure.NOT_FOUND
    # "Handler failed: …" wraps whatever came out of the transport: sockets, TLS, names that do not resolve.
    inner = error.inner_exception
    if inner is not None and inner is not error:
        return classify(inner)
    return Failure.INTERNAL


def _of_amqp(error: AMQPException) -> Failure:
    """An error of the SDK's protocol layer that is not yet one of its own."""
    if isinstance(error, TokenAuthFailure):
        return _refused_token(error)
    condition = error.condition
    if condition == ErrorCondition.UnknownError or isinstance(error, AMQPConnectionError):
        return Failure.CONNECTION
    if condition == ErrorCondition.NotFound:
        return Failure.NOT_FOUND
    kind = _ERROR_CODE_TO_ERROR_MAPPING.get(condition, sdk.ServiceBusError)
    for known, failure in _BY_CLASS:
        if issubclass(kind, known):
            return failure
    return Failure.INVALID if condition.decode() in _INVALID_CONDITIONS else Failure.INTERNAL


def _refused_token(error: BaseException | None) -> Failure:
    """A put-token request that was refused, by the status code of the answer. What its text says decides nothing."""
    if not isinstance(error, TokenAuthFailure):
        # The token has expired, or its link could not be opened: there is no status.
        return Failure.UNAUTHORIZED
    status = error.status_code
    if isinstance(status, int):
        return _BY_STATUS.get(status, Failure.UNAUTHORIZED)
    return Failure.UNAUTHORIZED
