"""Errors of the official clients become one line; their texts decide nothing."""

from __future__ import annotations

import errno
import ssl
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from pairbus.cli.entities import messages
from pairbus.cli.entities.messages import SEND_HINT, _refusing
from pairbus.cli.kit.errors import (
    CAUSES_MAX,
    CERTIFICATE,
    EXPIRED,
    KEY,
    Refused,
    causes,
    one_line,
    service_sentence,
    way_out,
)
from pairbus.cli.root import main
from pairbus.errors import UsageError
from pairbus.server.assemble import open_store
from pairbus.server.config.options import Options

HOSTILE = [
    "Unauthorized",
    "entity 'amqp:unauthorized-access' is full",
    "queue orders401 on port 14404: ServiceBusAuthenticationError",
    "Connection refused, said the message",
    "CERTIFICATE_VERIFY_FAILED",
    "x\ty ServiceBusConnectionError: timed out",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, ServiceBusError])
def test_a_text_alone_decides_nothing(kind: type[Exception], text: str) -> None:
    assert way_out(kind(text)) is None


@pytest.mark.parametrize("text", HOSTILE)
def test_another_class_of_error_is_not_mistaken_for_a_key(text: str) -> None:
    assert way_out(MessagingEntityNotFoundError(message=text)) is None


def test_the_class_decides() -> None:
    assert way_out(ServiceBusAuthenticationError(message="")) == KEY
    assert way_out(ClientAuthenticationError("")) == KEY
    assert "could not be reached" in str(way_out(ServiceBusConnectionError(message="")))


def test_the_status_decides() -> None:
    error = HttpResponseError("")
    error.status_code = 401
    assert way_out(error) == KEY
    error.status_code = 404
    assert way_out(error) is None
    error.status_code = 403
    assert way_out(error) == KEY


@pytest.mark.parametrize("is_on_the_line", [True, False])
def test_a_token_that_counts_as_expired_is_a_matter_of_clocks(is_on_the_line: bool) -> None:
    text = "ExpiredToken: The token is expired. Expiration time: '2026-01-01T00:00:00Z'."

    class Answer:
        status_code, reason, headers = 401, "Unauthorized", {"content-type": "application/xml"}

        def text(self) -> str:
            return f"<Error><Code>401</Code><Detail>{text}</Detail></Error>"

        def body(self) -> bytes:
            return self.text().encode()

    error: Exception = ServiceBusAuthenticationError(message=text)
    if not is_on_the_line:
        error = ClientAuthenticationError("no", response=Answer())  # type: ignore[arg-type]
    assert way_out(error) == EXPIRED
    assert "clock" in EXPIRED


def test_a_limit_is_not_mistaken_for_a_key() -> None:
    class Answer:
        status_code, reason, headers = 403, "Forbidden", {"content-type": "application/xml"}

        def text(self) -> str:
            return "<Error><Code>403</Code><Detail>The disk has no room for it. TrackingId:1</Detail></Error>"

        def body(self) -> bytes:
            return self.text().encode()

    error = HttpResponseError("no", response=Answer())  # type: ignore[arg-type]
    assert way_out(error) is None
    assert service_sentence(error) == "The disk has no room for it"


def test_the_error_behind_an_error_names_the_reason() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    assert "(Connection refused)" in str(way_out(ServiceBusConnectionError(message="", error=refused)))
    untrusted = ServiceRequestError("", error=ssl.SSLCertVerificationError("no"))
    assert way_out(untrusted) == CERTIFICATE


def test_spark_passes_the_class_on_in_a_line_of_its_own() -> None:
    trace = "Traceback\n  File x\nazure.servicebus.exceptions.ServiceBusAuthenticationError: CBS token\n"
    assert way_out(RuntimeError(trace)) == KEY
    assert way_out(RuntimeError(trace.replace("\nazure", "\n body: azure"))) is None


def test_a_chain_without_end_is_cut() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]
    deep = ValueError(0)
    for number in range(CAUSES_MAX * 2):
        wrapped = ValueError(number)
        wrapped.__cause__ = deep
        deep = wrapped
    assert len(list(causes(deep))) == CAUSES_MAX


def test_tracking_numbers_are_left_out_of_a_line() -> None:
    text = (
        "The entity is full. To know more visit https://aka.ms/x. TrackingId:1, SystemTracker:a, Timestamp:b"
    )
    assert one_line(RuntimeError(text)) == "The entity is full."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("send orders/$DeadLetterQueue x", "'orders/$DeadLetterQueue' takes no sends"),
        ("send orders/$DeadLetterQueue x", "Send to 'orders'"),
        ("entity create subscription events", "write events/Subscriptions/NAME"),
        ("entity create rule events/Subscriptions/audit", "write events/Subscriptions/audit/Rules/NAME"),
        ("send orders x --count many", "'many' is not a valid integer"),
        ("receive orders --wait soon", "'soon' is not a valid number"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())

    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in told
    assert "range" not in told


@pytest.mark.parametrize(
    ("entity", "text", "is_hinted"),
    [
        ("orders", "It is not possible to receive without a session.", True),
        ("sessions", "'sessions' is a topic: receive from one of its subscriptions.", False),
    ],
)
def test_sessions_are_hinted_at_where_the_refusal_is_about_them(
    entity: str, text: str, is_hinted: bool
) -> None:
    def refused() -> int:
        raise ServiceBusError(text)

    with pytest.raises(Refused) as caught:
        messages._refusing(entity, refused, None)

    assert ("--session" in caught.value.message) == is_hinted


def test_a_store_that_is_not_known_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"mysql:… is not known: give postgresql://user@host/database or memory:"
    ):
        open_store(Options(namespace="contoso", data=tmp_path, store="mysql://secret@x"))


def test_a_quota_that_was_exceeded_says_nothing_of_sessions() -> None:
    def work() -> int:
        raise ServiceBusQuotaExceededError(message="The namespace has no room: --store-max-mb 64.")

    with pytest.raises(Refused) as caught:
        _refusing("orders", work, None, SEND_HINT)
    assert "--store-max-mb 64" in str(caught.value)
    assert "session" not in str(caught.value)
