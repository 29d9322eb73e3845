"""Receivers of the asynchronous SDK that keep the bytes of their messages, and whose poll can be ended early; synchronous ones
that are read in one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from azure.servicebus._common.constants import MGMT_RESPONSE_MESSAGE_EXPIRATION
from azure.servicebus._common.utils import utc_from_timestamp

from pairbus.errors import RemoteProtocolError
from pairbus.sdk.messages import sections

SETTLE_IN_SECONDS: Final = 0.05
"""How long a poll runs at least, so that messages that are there arrive."""


def read_in_one_thread(receiver: Any) -> Any:
    """Let only the caller's thread read from the connection of a synchronous receiver. Returns it. Call before it opens.

    The SDK reads in a second thread too, every five seconds, to keep the connection alive. Its lock covers the reading of a
    frame, but not what comes after: two threads may apply two frames of one message in the wrong order, and the body that
    the program gets is not the one that was sent. A receiver that is asked for messages all the time needs no second reader.
    """
    create: Callable[..., None] = receiver._create_handler

    def create_handler(*arguments: Any) -> None:
        create(*arguments)
        receiver._handler._keep_alive_interval = 0

    receiver._create_handler = create_handler
    return receiver


def keep_payloads(receiver: Any) -> None:
    """Let messages of an open asynchronous receiver keep the bytes they came in. Call after every open.

    The SDK's own decoder sees only what it needs to settle a message: it has no name for some AMQP types, and one
    message of another client would end the link at every attempt to receive it.
    """
    link = receiver._handler._link
    take, build = link._incoming_transfer, receiver._build_received_message
    parts: list[bytes] = []
    first: list[Any] = []
    kept: dict[bytes, bytes] = {}

    async def incoming(frame: Any) -> None:
        if frame[1] is not None:
            first[:] = frame
            parts.clear()
        parts.append(bytes(frame[11]))
        if frame[5]:
            return
        whole = b"".join(parts)
        parts.clear()
        kept[first[2]] = whole
        await take([*first[:5], False, *first[6:11], memoryview(settling_part(whole))])

    def built(received: Any) -> Any:
        message = build(received)
        message._pairbus_payload = kept.pop(received[0][2], None)
        return message

    link._incoming_transfer = incoming
    receiver._build_received_message = built


def settling_part(payload: bytes) -> bytes:
    """The sections that say which message this is and how long it is locked."""
    wanted = (sections.HEADER, sections.DELIVERY_ANNOTATIONS, sections.MESSAGE_ANNOTATIONS)
    try:
        parts = [part for part in sections.split(payload) if part.code in wanted]
    except RemoteProtocolError:
        return b""
    return sections.join(parts)


def is_open(receiver: Any) -> bool:
    """Whether the link of a receiver is open, as far as the SDK knows."""
    return bool(receiver._running)


def take_payload(message: Any) -> bytes | None:
    """The bytes of a received message; None when they were not kept. The message keeps them no longer."""
    payload = vars(message).pop("_pairbus_payload", None)
    return payload if isinstance(payload, bytes) else None


def interruptible(receiver: Any) -> Any:
    """Make the poll of an open asynchronous receiver end early. Returns the function that does it.

    The SDK's loop asks its connection for work until there is none; cancelling it could cut a frame in two.
    """
    handler = receiver._handler
    original = handler.do_work_async
    state = {"is_wanted": False, "begun": 0.0}

    async def work(**options: Any) -> Any:
        # Messages that are on their way would be released when the poll ends: let them come in first.
        is_quiet = (
            time.monotonic() - state["begun"] > SETTLE_IN_SECONDS and handler._received_messages.empty()
        )
        if state["is_wanted"] and is_quiet:
            state["is_wanted"] = False
            return False
        return await original(**options)

    def interrupt(*, is_wanted: bool = True) -> None:
        state["is_wanted"] = is_wanted
        if not is_wanted:
            state["begun"] = time.monotonic()

    handler.do_work_async = work
    return interrupt


async def renew_locks(receiver: Any, messages: Sequence[Any], seconds: float) -> list[datetime]:
    """Renew the locks of messages with one request: all of them or none. Returns until when each holds.

    The SDK renews one lock per call; the request it sends has room for many.
    """
    answer = await receiver._renew_locks(*(message.lock_token for message in messages), timeout=seconds)
    ends = [utc_from_timestamp(one / 1000) for one in answer[MGMT_RESPONSE_MESSAGE_EXPIRATION]]
    if len(ends) != len(messages):
        raise RemoteProtocolError(
            "amqp:decode-error", f"expected {len(messages)} lock ends, found {len(ends)}"
        )
    for message, end in zip(messages, ends, strict=True):
        message._expiry = end
    return ends
