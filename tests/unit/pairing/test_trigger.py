# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPLinkError,
    ErrorCondition,
    TokenAuthFailure,
)

from pairbus.pairing.outcome import mark, outcome_of
from pairbus.pairing.rules.trigger import counts
from pairbus.sdk.failures import IN_DOUBT, Failure, as_not_found, classify, shown

ERRORS = {
    Failure.TIMEOUT: sdk.OperationTimeoutError(),
    Failure.CONNECTION: sdk.ServiceBusConnectionError(),
    Failure.INTERNAL: sdk.ServiceBusError("boom", condition="amqp:internal-error"),
    Failure.DISABLED: sdk.MessagingEntityDisabledError(),
    Failure.NOT_FOUND: sdk.MessagingEntityNotFoundError(),
    Failure.QUOTA: sdk.ServiceBusQuotaExceededError(),
    Failure.BUSY: sdk.ServiceBusServerBusyError(),
    Failure.UNAUTHORIZED: sdk.ServiceBusAuthorizationError(),
    Failure.TOO_LARGE: sdk.MessageSizeExceededError(),
    Failure.INVALID: sdk.ServiceBusError("no", condition="com.microsoft:argument-error"),
    Failure.CANCELLED: asyncio.CancelledError(),
    Failure.CLIENT: sdk.ServiceBusError(
        "Handler failed", error=AttributeError("'NoneType' object has no attribute")
    ),
}
# Whether an error counts with trigger="documented", "outage" and "shipped".
TABLE = {
    Failure.TIMEOUT: (True, True, True),
    Failure.CONNECTION: (True, True, True),
    Failure.INTERNAL: (True, True, True),
    Failure.DISABLED: (True, False, False),
    Failure.NOT_FOUND: (True, False, False),
    Failure.QUOTA: (True, False, False),
    Failure.BUSY: (False, False, True),
    Failure.UNAUTHORIZED: (False, False, False),
    Failure.TOO_LARGE: (False, False, False),
    Failure.INVALID: (False, False, False),
    Failure.CANCELLED: (False, False, False),
    Failure.CLIENT: (False, False, False),
}


@pytest.mark.promise("P16")
@pytest.mark.parametrize("failure", list(Failure))
def test_the_table_says_which_errors_count(failure: Failure) -> None:
    error = ERRORS[failure]

    assert classify(error) is failure
    assert (
        counts(error, "documented", has_accepted=True),
        counts(error, "outage", has_accepted=True),
        counts(error, "shipped", has_accepted=True),
    ) == TABLE[failure]


@pytest.mark.promise("P16")
def test_not_found_counts_only_after_an_accepted_send() -> None:
    assert not counts(sdk.MessagingEntityNotFoundError(), "documented", has_accepted=False)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ConnectionRefusedError(), Failure.CONNECTION),
        (TimeoutError(), Failure.TIMEOUT),
        (ssl.SSLError("handshake cut"), Failure.CONNECTION),
        (sdk.ServiceBusCommunicationError(), Failure.CONNECTION),
        (sdk.ServiceBusError("Handler failed", error=ConnectionResetError()), Failure.CONNECTION),
        (sdk.ServiceBusError("?", condition="amqp:unknown-error"), Failure.INTERNAL),
        (sdk.ServiceBusError("not here", condition="amqp:not-found"), Failure.NOT_FOUND),
        (sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(404, b"gone")), Failure.NOT_FOUND),
        (sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(401, b"no")), Failure.UNAUTHORIZED),
        (sdk.ServiceBusConnectionError(error=TokenAuthFailure(401, b"no")), Failure.UNAUTHORIZED),
        (AMQPLinkError(ErrorCondition.NotFound), Failure.NOT_FOUND),
        (AMQPConnectionError(ErrorCondition.SocketError), Failure.CONNECTION),
        (AMQPLinkError(b"com.microsoft:entity-disabled"), Failure.DISABLED),
        (AMQPLinkError(b"com.microsoft:argument-error"), Failure.INVALID),
        (AMQPLinkError(ErrorCondition.InternalError), Failure.INTERNAL),
        (ValueError("bad"), Failure.INVALID),
        (RuntimeError("odd"), Failure.CLIENT),
        (struct.error("odd"), Failure.INTERNAL),
    ],
)
def test_errors_of_the_sdk_and_below_are_sorted(error: BaseException, failure: Failure) -> None:
    assert classify(error) is failure


def test_a_callable_replaces_the_table() -> None:
    assert counts(sdk.ServiceBusAuthorizationError(), lambda error: True, has_accepted=False)
    assert not counts(sdk.OperationTimeoutError(), lambda error: False, has_accepted=True)


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    "error",
    [
        sdk.ServiceBusError("Send failed - connection not running.", condition="amqp:client-error"),
        sdk.ServiceBusError("Handler failed", error=AttributeError("'NoneType' object has no attribute")),
        sdk.ServiceBusError("detached", condition="amqp:link:detach-forced"),
        RuntimeError("odd"),
    ],
)
def test_an_error_that_is_no_answer_leaves_the_message_in_doubt(error: Exception) -> None:
    assert classify(error) in IN_DOUBT


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
def test_whatever_ends_the_caller_is_no_failure_of_the_primary(error: BaseException) -> None:
    assert classify(error) is Failure.CANCELLED


# Texts that name every status a token can be refused with: a port, an entity, a tracking id, a sentence of a proxy.
HOSTILE = [
    f"{number} {sentence}"
    for number in ("404", "401", "403", "408", "503", "amqp:not-found", "timed out")
    for sentence in (
        "sb://localhost:14404/orders404",
        "could not be found. TrackingId:4042e0c1-4010-4030-8408-5030c0ffee00_G5",
        "Unauthorized. server busy, entity disabled, timed out, timeout, quota exceeded",
    )
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (401, Failure.UNAUTHORIZED),
        (403, Failure.UNAUTHORIZED),
        (404, Failure.NOT_FOUND),
        (408, Failure.TIMEOUT),
        (503, Failure.BUSY),
        (500, Failure.INTERNAL),
        (400, Failure.UNAUTHORIZED),
        (None, Failure.UNAUTHORIZED),
        (b"404", Failure.UNAUTHORIZED),
    ],
)
def test_a_refused_token_is_sorted_by_its_status_code_whatever_its_text_says(
    status: Any, failure: Failure, text: str
) -> None:
    refusal = TokenAuthFailure(status, text.encode())

    assert classify(refusal) is failure
    assert classify(sdk.ServiceBusAuthenticationError(message=text, error=refusal)) is failure


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("failure", [failure for failure in Failure if failure is not Failure.CANCELLED])
def test_no_text_changes_what_an_error_is(failure: Failure, text: str) -> None:
    known: Any = ERRORS[failure]
    error = type(known)(message=text, condition=known._condition, error=known.inner_exception)

    assert classify(error) is failure
    assert outcome_of(mark(error, is_in_doubt=False)) == "fail"
    assert counts(error, "documented", has_accepted=True) is TABLE[failure][0]


def test_an_entity_that_does_not_exist_is_named_as_that_although_the_sdk_speaks_of_authentication() -> None:
    refusal = TokenAuthFailure(404, b"The messaging entity 'sb://p/orders' could not be found.")
    error = sdk.ServiceBusAuthenticationError(error=refusal, condition=refusal.condition)
    wrong_key = sdk.ServiceBusAuthenticationError(error=TokenAuthFailure(401, b"InvalidSignature"))

    assert shown(error) == (
        "MessagingEntityNotFoundError: status 404: The messaging entity 'sb://p/orders' could not be found."
    )
    named = as_not_found(error)
    assert isinstance(named, sdk.MessagingEntityNotFoundError)
    assert "could not be found" in str(named)
    assert named.__cause__ is error
    assert shown(wrong_key) == "ServiceBusAuthenticationError: status 401: InvalidSignature"
    assert as_not_found(wrong_key) is wrong_key
    assert as_not_found(None) is None
    assert shown(ValueError("no")) == "ValueError: no"
    assert shown(TimeoutError()) == "TimeoutError: no answer in time"
