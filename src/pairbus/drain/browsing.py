"""Browses entities as encoded bytes, and finds out whether messages in doubt are at their destination.

The official SDK decodes what it browses into values without types, and it has no name for some AMQP types: one message
with a ``char`` property ends its ``peek_messages``. So the bytes are taken as they are; the request is the SDK's own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import RemoteProtocolError
from pairbus.pairing import parking
from pairbus.sdk import message_bytes, sections

if TYPE_CHECKING:
    from pairbus.drain.plan import BacklogMessage

PEEK_OPERATION: Final = b"com.microsoft:peek-message"
PAGE: Final = 250
BROWSE_MAX: Final = 20_000
"""How many of a destination's newest messages are looked through for those in doubt."""
STRETCH: Final = 1_000
"""How many are looked through at a time, from the newest back."""
GAP: Final = 2_000
"""The look ends after so many messages without one in doubt, once one was found: a killed syphon's sends lie together."""
NUMBER_MAX: Final = 2**62
_SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
_ENQUEUED: Final = "x-opt-enqueued-time"


def browse(receiver: Any, from_number: int, count: int) -> list[bytes]:
    """The encoded messages of an entity from a sequence number on, at most ``count``, without taking them."""
    request, answer = _browsing(receiver, from_number, count)
    return list(receiver._mgmt_request_response_with_retry(PEEK_OPERATION, request, answer))


async def browse_async(receiver: Any, from_number: int, count: int) -> list[bytes]:
    """As ``browse``, for a receiver of the asynchronous client."""
    request, answer = _browsing(receiver, from_number, count)
    return list(await receiver._mgmt_request_response_with_retry(PEEK_OPERATION, request, answer))


def _browsing(
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
            _Quiet(), "Browsing failed.", condition, description, status_code
        )
        return []

    return request, answer


class _Quiet:
    """A log that keeps nothing: the error itself says it all."""

    def info(self, *_arguments: object) -> None:
        """Nothing."""

    warning = error = debug = info


@dataclass(frozen=True, slots=True)
class Browsed:
    """One message as it was browsed."""

    sequence_number: int
    enqueued_ms: int | None
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
        except (RemoteProtocolError, ValueError, LookupError):
            return Browsed(0, None, payload, [])
        number = sections.long_of(annotations.get(_SEQUENCE_NUMBER, sections.NULL))
        enqueued = sections.timestamp_of(annotations.get(_ENQUEUED, sections.NULL))
        return Browsed(number or 0, enqueued, payload, parts)

    @property
    def message_id(self) -> bytes:
        """The encoded message id; empty when there is none."""
        try:
            properties = sections.list_items(sections.find(self.parts, sections.PROPERTIES))
        except (RemoteProtocolError, ValueError, LookupError):
            return b""
        return properties[0] if properties and properties[0] != sections.NULL else b""

    def text_property(self, name: str) -> str | None:
        """The text of an application property; None when it is missing or no text."""
        try:
            items = sections.map_items(sections.find(self.parts, sections.APPLICATION_PROPERTIES))
        except (RemoteProtocolError, ValueError, LookupError):
            return None
        return next((sections.text_of(value) for key, value in items if sections.text_of(key) == name), None)


async def page_of(receiver: Any, from_number: int, count: int) -> list[Browsed]:
    """Messages of an entity from a sequence number on."""
    return [Browsed.of(payload) for payload in await browse_async(receiver, from_number, count)]


def browses_without_link(receiver: Any) -> Any:
    """Let an asynchronous receiver serve browsing only: it shows its token, but attaches no link.

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


class DestinationIndex:
    """Which of the messages in doubt a destination holds. One look serves every message in doubt by then."""

    def __init__(self) -> None:
        self._found: dict[str, Counter[bytes]] = {}
        self._taken: Counter[tuple[str, bytes]] = Counter()
        self._next_number: int | None = None
        self._looked_ms = -1
        self._ids: frozenset[str] = frozenset()

    def must_look(self, messages: Sequence[BacklogMessage]) -> bool:
        """Whether the last look was before one of these messages came into doubt."""
        return any(
            (message.in_doubt_since_ms or 0) >= self._looked_ms or message.message_id not in self._ids
            for message in messages
        )

    async def look(self, receiver: Any, ids: frozenset[str], now: int) -> None:
        """Browse what came since the last look, the first time the destination's newest messages."""
        if self._next_number is None or not ids <= self._ids:
            self._found = {}
            self._next_number = await self._look_back(receiver, ids)
        else:
            self._next_number = await self._look_through(receiver, ids, self._next_number, NUMBER_MAX)
        self._looked_ms, self._ids = now, ids

    async def _look_back(self, receiver: Any, ids: frozenset[str]) -> int:
        """Look through the newest messages, stretch by stretch from the newest back. Returns the number after them."""
        first, last = await _bounds(receiver)
        end = NUMBER_MAX
        start = last + 1
        after = start
        nearest = last + 1
        while start > max(first, last - BROWSE_MAX):
            start = max(first, start - STRETCH)
            known = sum(counter.total() for counter in self._found.values())
            after = max(after, await self._look_through(receiver, ids, start, end))
            if sum(counter.total() for counter in self._found.values()) > known:
                nearest = start
            if self._found and nearest - start >= GAP:
                break
            end = start
        return after

    async def _look_through(self, receiver: Any, ids: frozenset[str], start: int, end: int) -> int:
        """Note what is wanted among the messages from ``start`` up to ``end``. Returns the number to go on with."""
        while start < end and (page := await page_of(receiver, start, min(PAGE, end - start))):
            for browsed in page:
                if browsed.sequence_number < end:
                    self._note(browsed, ids)
            start = max(start, page[-1].sequence_number) + 1
        return start

    def _note(self, browsed: Browsed, ids: frozenset[str]) -> None:
        message_id = parking.message_id_text(browsed.message_id)
        if message_id in ids:
            self._found.setdefault(message_id, Counter())[_digest(browsed.payload)] += 1

    def take(self, messages: Sequence[BacklogMessage]) -> list[BacklogMessage]:
        """Those of the messages that the destination holds. Each message there stands for one message only.

        Message ids are the application's and may repeat, so the bodies are compared too.
        """
        taken = []
        for message in messages:
            found = self._found.get(message.message_id)
            if found is None:
                continue
            digest = _digest(message.payload)
            if found[digest] > self._taken[message.message_id, digest]:
                self._taken[message.message_id, digest] += 1
                taken.append(message)
        return taken


async def _bounds(receiver: Any) -> tuple[int, int]:
    """The first and the last sequence number of an entity, found by probing in some 60 small requests; (1, 0): none."""
    oldest = await page_of(receiver, 1, 1)
    if not oldest:
        return 1, 0
    last, step = oldest[0].sequence_number, 1
    while step < NUMBER_MAX and (page := await page_of(receiver, last + step, 1)):
        last, step = page[0].sequence_number, step * 2
    while step > 1:
        step //= 2
        page = await page_of(receiver, last + step, 1)
        if page:
            last = page[0].sequence_number
    return oldest[0].sequence_number, last


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(message_bytes.body_of(payload)).digest()
