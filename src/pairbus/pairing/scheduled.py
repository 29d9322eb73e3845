"""Handles of scheduled messages that were parked: numbers like the broker's, but never one of them.

The number alone does not say where the message is: the object does, and must be kept to cancel it. It is a hash of the place, so
that no two handles are equal, of whichever client or process: a program may use them as the keys of a dict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from pairbus.errors import UsageError, WrongTypeError

SPOOL_PREFIX: Final = "spool:"
"""Begins the ``queue`` of a handle whose message is in the spool. No name of a queue contains a colon."""

SHOWN_HANDLES_MAX: Final = 10


class ParkedSchedule(int):
    """The handle of a scheduled message in the backlog or in the spool. Negative, so that no sequence number equals it.

    Keep the object, or pickle it: the number alone cannot be cancelled. It has the attributes ``queue`` (the backlog queue), ``message_id``,
    ``factory`` (the client that parked it), ``detour`` (its number there) and ``has_other_copy`` (an attempt to store it elsewhere had no answer).
    """

    queue: str
    message_id: str
    factory: str
    detour: int
    has_other_copy: bool
    """Whether there may be another copy: an attempt to store it somewhere else had no answer."""

    @property
    def is_spooled(self) -> bool:
        """Whether the message was put into the spool, and not into a backlog queue."""
        return self.queue.startswith(SPOOL_PREFIX)

    @classmethod
    def make(
        cls, queue: str, message_id: str, factory: str, detour: int, *, has_other_copy: bool = False
    ) -> ParkedSchedule:
        """Return the handle of one message in one backlog queue. ``schedule_messages`` calls it; programs need not.

        Args:
            queue: The backlog queue.
            message_id: The message, whose id may repeat.
            factory: The client that parked it.
            detour: Its number at that client, which does not repeat.
            has_other_copy: Whether an attempt to store it elsewhere had no answer.
        """
        place = f"{queue}\n{factory}\n{detour}".encode()
        # Negative, and within the 64 bits of a sequence number.
        handle = cls(-1 - (int.from_bytes(hashlib.sha256(place).digest()[:8]) >> 1))
        handle.queue = queue
        handle.message_id = message_id
        handle.factory = factory
        handle.detour = detour
        handle.has_other_copy = has_other_copy
        return handle


def split_handles(handles: int | Sequence[int]) -> tuple[list[int], list[ParkedSchedule]]:
    """Sequence numbers of the primary, and handles of parked messages."""
    if isinstance(handles, str | bytes) or not isinstance(handles, int | Iterable):
        raise _wrong_type(handles)
    several = [handles] if isinstance(handles, int) else list(handles)
    for handle in several:
        if not isinstance(handle, int):
            raise _wrong_type(handle)
    parked = [handle for handle in several if isinstance(handle, ParkedSchedule)]
    plain = [handle for handle in several if not isinstance(handle, ParkedSchedule)]
    for number in plain:
        if number < 0:
            raise UsageError(
                f"{number} is the number of a parked message's handle and does not say where it is: keep the object "
                "that schedule_messages returned"
            )
    return plain, parked


def tell_cancelled(error: Exception, cancelled: Sequence[int], not_tried: Sequence[int]) -> None:
    """Say in the text of an error which messages of the same call were cancelled before it, and which were not tried.

    Its attributes ``cancelled`` and ``not_tried`` have their handles, also when there are none.
    """
    parts = [
        f"{what}: {_shown(handles)}"
        for what, handles in (("cancelled before", cancelled), ("not tried", not_tried))
        if handles
    ]
    fields: dict[str, object] = {"cancelled": list(cancelled), "not_tried": list(not_tried)}
    if parts:
        text = f"{str(error).rstrip('.')}. Of the others of this call, {'; '.join(parts)}"
        error.args = (text, *error.args[1:])
        if hasattr(error, "message"):
            fields["message"] = text  # the SDK's errors have it here, too
    error.__dict__.update(fields)


def _shown(handles: Sequence[int]) -> str:
    """Handles as a person knows them: a parked message by its message id."""
    names = [
        repr(one.message_id) if isinstance(one, ParkedSchedule) else str(one)
        for one in handles[:SHOWN_HANDLES_MAX]
    ]
    more = len(handles) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _wrong_type(given: object) -> WrongTypeError:
    return WrongTypeError(
        f"{given!r} is no handle of a scheduled message: give the numbers that schedule_messages returned, one or a list"
    )
