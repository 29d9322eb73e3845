"""Turns errors of the official clients and of Spark into one line that says what to do next.

The decision rests on the class of an error, on its status code and on the errors it was raised from. It never rests on
the words of an error's text: an entity may be named "Unauthorized", and a port may be 14404.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

import click

from pairbus.model.text import safe_text
from pairbus.sdk.place import place_of

if TYPE_CHECKING:
    from azure.core.exceptions import HttpResponseError

CHARACTERS_MAX: Final = 1_000
"""Longest line that is shown. A longer one is cut off."""
CAUSES_MAX: Final = 32
"""Most errors looked at in one chain of causes."""
CERTIFICATE: Final = (
    "the namespace's certificate is not trusted: name the broker's ready file (--ready-file) or its authority "
    "(--ca-file), see docs/how-to/use-tls.md"
)
KEY: Final = "the key was refused: check the key and its rights in the connection string"
EXPIRED: Final = "the token counts as expired there: compare this machine's clock with the namespace's; if you gave a token of your own, take a new one"
PROXY: Final = "a proxy did not let the request pass: check HTTPS_PROXY and HTTP_PROXY, or name the namespace's host in NO_PROXY"
UNREADABLE: Final = (
    "the answer cannot be read, so it is none of Service Bus's management API: does the connection string name the address of a "
    "namespace, and not of another program?"
)
UNAUTHORIZED: Final = 401
PROXY_AUTHENTICATION: Final = 407
FORBIDDEN: Final = 403
"""Answers about a key, and about limits: the service says in a sentence which."""
_EXPIRED: Final = "ExpiredToken"
"""How a namespace begins to say that a token's time is over. Commands make theirs for the call."""
_CERTIFICATE_CLASSES: Final = frozenset({"SSLCertVerificationError"})
_PROXY_CLASSES: Final = frozenset({"ProxyError", "ClientHttpProxyError", "ClientProxyConnectionError"})
"""Of requests, urllib3 and aiohttp: the proxy could not be reached, or refused."""
_KEY_CLASSES: Final = frozenset(
    {"ClientAuthenticationError", "ServiceBusAuthenticationError", "ServiceBusAuthorizationError"}
)
_REACH_CLASSES: Final = frozenset(
    {
        "OperationTimeoutError",
        "ServiceBusCommunicationError",
        "ServiceBusConnectionError",
        "ServiceRequestError",
        "ServiceResponseError",
    }
)
_UNREADABLE_CLASSES: Final = frozenset({"DecodeError", "DeserializationError"})
_READER: Final = "azure.servicebus.management."
"""The modules that read the answers of the management API. What they expect and do not find there ends in one of these errors."""
_READER_ERRORS: Final = (AttributeError, KeyError, TypeError)
_TRACE_LINE: Final = re.compile(
    r"^[ \t]*(?:Caused by: )?(?:azure\.servicebus\.exceptions|azure\.core\.exceptions|ssl)\.(\w+)\b(?=:|$)",
    re.MULTILINE,
)
"""A line of a Python traceback that names the class of the error. Spark passes errors of its workers on as such text."""
_TAIL: Final = re.compile(r"\s*(?:To know more visit \S+\s*)?(?:TrackingId|Reference):.*\Z", re.DOTALL)
"""What the service appends to each of its sentences: an address and tracking numbers."""
_DETAIL: Final = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)


class Refused(click.ClickException):
    """The namespace could not be reached, or it refused."""

    exit_code = 3

    def show(self, file: IO[str] | None = None) -> None:
        """Print one line for a person."""
        click.echo(f"pairbus: {safe_text(self.message)}", file=file, err=file is None)


class Missing(Refused):
    exit_code = 1


class Present(Refused):
    exit_code = 1


def one_line(error: BaseException) -> str:
    """The first line of an error's text, without the service's tracking numbers."""
    lines = [line.strip() for line in _TAIL.sub("", str(error)).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:CHARACTERS_MAX]


def service_sentence(error: HttpResponseError) -> str:
    """What the management API says was wrong, as one sentence without its tracking numbers."""
    text = error.response.text() if error.response is not None else ""
    found = _DETAIL.search(text)
    return _TAIL.sub("", html.unescape(found.group(1))).rstrip(".") if found else one_line(error)


def way_out(error: BaseException) -> str | None:
    """One line for an error of reaching a namespace or of its key, with the way out. None for any other error.

    It begins with the namespace where that is known, as it is for one of a pair.
    """
    line, place = _way_out(error), place_of(error)
    return f"{place}: {line}" if line and place else line


def _way_out(error: BaseException) -> str | None:
    chain = list(causes(error))
    names = {cls.__name__ for cause in chain for cls in type(cause).__mro__}
    names.update(match.group(1) for match in _TRACE_LINE.finditer(str(error)))
    if names & _CERTIFICATE_CLASSES:
        return CERTIFICATE
    if names & _PROXY_CLASSES or any(
        getattr(cause, "status_code", None) == PROXY_AUTHENTICATION for cause in chain
    ):
        return PROXY
    if names & _KEY_CLASSES or any(_is_about_the_key(cause) for cause in chain):
        return EXPIRED if any(_EXPIRED in _words(cause) for cause in chain) else KEY
    if names & _REACH_CLASSES or any(isinstance(cause, ConnectionError) for cause in chain):
        reasons = [cause.strerror for cause in chain if isinstance(cause, OSError) and cause.strerror]
        why = f" ({reasons[-1]})" if reasons else ""
        return f"the namespace could not be reached{why}: is it running, and does the connection string name its address?"
    if names & _UNREADABLE_CLASSES or any(_is_of_a_reader(cause) for cause in chain):
        return UNREADABLE
    return None


def _is_of_a_reader(error: BaseException) -> bool:
    """Whether the official client broke while it read an answer: it does not check what it takes apart."""
    trace = error.__traceback__
    if trace is None or not isinstance(error, _READER_ERRORS):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_READER)


def _is_about_the_key(error: BaseException) -> bool:
    status = getattr(error, "status_code", None)
    return status == UNAUTHORIZED or (status == FORBIDDEN and not _has_sentence(error))


def _words(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return f"{error} {'' if response is None else response.text()}"


def _has_sentence(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    return response is not None and _DETAIL.search(response.text()) is not None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors it was raised from, in breadth, each once and at most CAUSES_MAX."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(seen) < CAUSES_MAX:
        cause = waiting.pop(0)
        if not isinstance(cause, BaseException) or any(cause is other for other in seen):
            continue
        seen.append(cause)
        yield cause
        waiting += [cause.__cause__, cause.__context__, getattr(cause, "inner_exception", None)]
        waiting += [getattr(cause, "reason", None), *cause.args]
