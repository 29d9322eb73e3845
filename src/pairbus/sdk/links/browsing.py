"""Browses entities as encoded bytes, without locking anything.

The SDK decodes what it browses into values without types, and it has no name for some AMQP types: one message with a
``char`` property ends its ``peek_messages``. So the bytes are taken as they are; the request is the SDK's own.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus._common.utils import create_authentication
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.errors import RemoteProtocolError
from pairbus.sdk.failures import IN_DOUBT, classify
from pairbus.sdk.links.handlers import cut_client, end_handler, free_connection, take_handler
from pairbus.sdk.links.opening import replace_open
from pairbus.sdk.messages import sections

PEEK_OPERATION: Final = b"com.microsoft:peek-message"
PAGE: Final = 250
DEFERRED: Final = 1
"""The state of a deferred message; 0 is active, 2 scheduled."""
NUMBER_MAX: Final = 2**62
"""Above every sequence number, those of partitioned entities included."""
ANSWER_SECONDS: Final = 20.0
"""How long one request may take. Then its connection counts as dead: it is left, and the request is made again over another one."""
BROWSE_SECONDS: Final = 60.0
"""How long a request may take with all its repeats, however many the client is set to make."""
OPEN_SECONDS_MAX: Final = 30.0
OPEN_PAUSE_SECONDS: Final = 0.01
_UNREADABLE: Final = (RemoteProtocolError, ValueError, LookupError)


def browse(receiver: Any, from_number: int, count: int) -> list[bytes]:
    """The encoded messages of an entity from a sequence number on, at most ``count``, locked ones included.

    Raises:
        OperationTimeoutError: There was no answer in ``ANSWER_SECONDS``, and none over another connection either.
    """
    request, answer = _request(receiver, from_number, count)
    silence: OperationTimeoutError | None = None

    def ask(timeout: float, **given: Any) -> Any:
        nonlocal silence
        try:
            return receiver._mgmt_request_response(timeout=min(timeout, ANSWER_SECONDS), **given)
        except Exception as error:
            if isinstance(error, OperationTimeoutError) and receiver._running:
                client = take_handler(receiver)
                free_connection(client._connection)
                with suppress(Exception):
                    end_handler(client)
                silence = _unanswered(client)
            if silence is None or classify(error) not in IN_DOUBT:
                raise
            raise silence from error  # it says more than how another connection could not be opened

    return list(receiver._do_retryable_operation(ask, **_asking(request, answer)))


async def browse_async(receiver: Any, from_number: int, count: int) -> list[bytes]:
    """As ``browse``, for a receiver of the asynchronous client."""
    request, answer = _request(receiver, from_number, count)
    silence: OperationTimeoutError | None = None

    async def ask(timeout: float, **given: Any) -> Any:  # noqa: ASYNC109 - the SDK's shape
        nonlocal silence
        try:
            return await receiver._mgmt_request_response(timeout=min(timeout, ANSWER_SECONDS), **given)
        except Exception as error:
            if isinstance(error, OperationTimeoutError) and receiver._running:
                client = take_handler(receiver)
                cut_client(client)
                silence = _unanswered(client)
            if silence is None or classify(error) not in IN_DOUBT:
                raise
            raise silence from error

    return list(await receiver._do_retryable_operation(ask, **_asking(request, answer)))


def _asking(request: dict[str, object], answer: Callable[..., list[bytes]]) -> dict[str, Any]:
    return {
        "mgmt_operation": PEEK_OPERATION,
        "message": request,
        "callback": answer,
        "timeout": BROWSE_SECONDS,
        "operation_requires_timeout": True,
    }


def _unanswered(client: Any) -> OperationTimeoutError:
    """The connection may be dead without an error. It is left, so that the next request does not wait for it too."""
    text = f"no answer for {ANSWER_SECONDS:.0f} s, and the connection is left"
    silence = TimeoutError(errno.ETIMEDOUT, text)
    return OperationTimeoutError(message=f"{client._hostname}: {text}", error=silence)


def _request(
    receiver: Any, from_number: int, count: int
) -> tuple[dict[str, object], Callable[..., list[bytes]]]:
    transport = receiver._amqp_transport
    request: dict[str, object] = {
        "from-sequence-number": transport.AMQP_LONG_VALUE(from_number),
        "message-count": count,
    }
    receiver._populate_message_properties(request)

    def answer(
        status_code: int, message: Any, description: Any, amqp_transport: Any = transport
    ) -> list[bytes]:
        if status_code == 200:
            return [
                bytes(entry[b"message"]) for entry in amqp_transport.get_message_value(message)[b"messages"]
            ]
        if status_code in (202, 204):
            return []
        condition = (message.application_properties or {}).get(b"errorCondition")
        amqp_transport.handle_amqp_mgmt_error(
            NoLog(), "Browsing failed.", condition, description, status_code
        )
        return []

    return request, answer


class NoLog:
    """A logger that keeps nothing: the error itself is raised."""

    def info(self, *_arguments: object) -> None: ...

    warning = error = debug = info


@dataclass(frozen=True, slots=True)
class Browsed:
    """One message as it was browsed."""

    sequence_number: int
    enqueued_ms: int | None
    is_active: bool
    """Whether it is neither deferred nor scheduled."""
    is_deferred: bool
    payload: bytes
    parts: list[sections.Section]
    """Empty when the bytes are no message."""

    @staticmethod
    def of(payload: bytes) -> Browsed:
        """A browsed message from its bytes."""
        try:
            parts = sections.split(payload)
            annotations = {
                sections.text_of(key): value
                for key, value in sections.map_items(sections.find(parts, sections.MESSAGE_ANNOTATIONS))
            }
        except _UNREADABLE:
            return Browsed(0, None, False, False, payload, [])
        number = sections.long_of(annotations.get("x-opt-sequence-number", sections.NULL))
        enqueued = sections.timestamp_of(annotations.get("x-opt-enqueued-time", sections.NULL))
        state = annotations.get("x-opt-message-state", sections.NULL)
        number_of_state = int.from_bytes(state[1:])  # an int of any width, or null
        is_deferred = number_of_state == DEFERRED
        return Browsed(number or 0, enqueued, not number_of_state, is_deferred, payload, parts)

    @property
    def message_id(self) -> bytes:
        """The encoded message id; empty when there is none."""
        try:
            properties = sections.list_items(sections.find(self.parts, sections.PROPERTIES))
        except _UNREADABLE:
            return b""
        return properties[0] if properties and properties[0] != sections.NULL else b""

    def text_property(self, name: str) -> str | None:
        """The text of an application property; None when it is missing or no text."""
        try:
            items = sections.map_items(sections.find(self.parts, sections.APPLICATION_PROPERTIES))
        except _UNREADABLE:
            return None
        return next((sections.text_of(value) for key, value in items if sections.text_of(key) == name), None)


async def page_of(receiver: Any, from_number: int, count: int) -> list[Browsed]:
    """Messages of an entity from a sequence number on."""
    return [Browsed.of(payload) for payload in await browse_async(receiver, from_number, count)]


def _highest(low: int) -> Generator[int, int | None, int]:
    """Find the highest sequence number by doubling and halving: some 60 requests whatever the entity's length.

    Yields a number; expects the first one at or after it, or None.
    """
    step = 1
    while low + step < NUMBER_MAX and (found := (yield low + step)) is not None:
        low, step = found, step * 2
    beyond = low + step
    while low + 1 < beyond:
        middle = (low + beyond) // 2
        found = yield middle
        if found is None:
            beyond = middle
        else:
            low = found
    return low


async def bounds(receiver: Any) -> tuple[int, int]:
    """The first and the last sequence number of an entity; (1, 0): it is empty."""

    async def first_from(number: int) -> int | None:
        page = await page_of(receiver, number, 1)
        return page[0].sequence_number if page else None

    return await bounds_by(first_from)


async def bounds_by(first_from: Callable[[int], Awaitable[int | None]]) -> tuple[int, int]:
    """The same, given what finds the first sequence number at or after a number."""
    first = await first_from(1)
    if first is None:
        return 1, 0
    search = _highest(first)
    try:
        number = next(search)
        while True:
            number = search.send(await first_from(number))
    except StopIteration as end:
        return first, end.value


def open_without_link_async(receiver: Any) -> Any:
    """Let an asynchronous receiver serve browsing only: it shows its token, but attaches no link. Returns it.

    So an entity that requires sessions can be browsed too, and no message is ever delivered to it.
    """
    create: Callable[..., None] = receiver._create_handler

    def create_handler(*arguments: Any) -> None:
        create(*arguments)
        # It would look after the link that is not there.
        receiver._handler._keep_alive_interval = 0
        receiver._handler.client_ready_async = receiver._handler.auth_complete_async

    receiver._create_handler = create_handler
    return receiver


def open_without_link(receiver: Any) -> Any:
    """As ``open_without_link_async``, for a synchronous receiver."""

    def open_connection(timeout: float | None = None) -> None:
        if receiver._running:
            return
        if receiver._handler and not receiver._handler._shutdown:
            receiver._handler.close()
        receiver._create_handler(create_authentication(receiver))
        # It would look after the link that is not there, and end at the first look; closing would wait for that.
        receiver._handler._keep_alive_interval = 0
        give_up = time.monotonic() + (timeout or OPEN_SECONDS_MAX)
        receiver._handler.open(connection=receiver._connection)
        while not receiver._handler.auth_complete():
            if time.monotonic() > give_up:
                raise OperationTimeoutError(message="the namespace did not answer")
            time.sleep(OPEN_PAUSE_SECONDS)
        receiver._running = True

    replace_open(receiver, open_connection)
    return receiver


class Browser:
    """Looks at one entity through a synchronous receiver."""

    HEAD_PAGE: Final = 50

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    def page(self, from_number: int, count: int) -> list[Browsed]:
        """Messages from a sequence number on."""
        return [Browsed.of(payload) for payload in browse(self._receiver, from_number, count)]

    def first(self, from_number: int = 1) -> int | None:
        """The lowest sequence number of an active message."""
        count = 1
        while page := self.page(from_number, count):
            active = next((browsed for browsed in page if browsed.is_active), None)
            if active is not None:
                return active.sequence_number
            from_number, count = page[-1].sequence_number + 1, self.HEAD_PAGE
        return None

    def highest(self, known: int = 0) -> int | None:
        """The highest sequence number there is now, at or after ``known``; None: there is none."""
        first = self._first_from(max(1, known))
        if first is None:
            return None
        search = _highest(first)
        try:
            number = next(search)
            while True:
                number = search.send(self._first_from(number))
        except StopIteration as end:
            return int(end.value)

    def _first_from(self, number: int) -> int | None:
        page = self.page(number, 1)
        return page[0].sequence_number if page else None

    def close(self) -> None:
        with suppress(Exception):
            self._receiver.close()
