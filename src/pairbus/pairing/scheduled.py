"""Handles of scheduled messages that were parked: numbers like the broker's, but never one of them."""

from __future__ import annotations

from collections.abc import Sequence


class ParkedSchedule(int):
    """The handle of a scheduled message in the backlog. Negative, so that no sequence number equals it."""

    queue: str
    message_id: str

    @classmethod
    def make(cls, queue: str, message_id: str) -> ParkedSchedule:
        """The handle of one message in one backlog queue."""
        digest = int.from_bytes(message_id.encode()[-7:].rjust(7, b"\0"), "big")
        handle = cls(-1 - digest)
        handle.queue = queue
        handle.message_id = message_id
        return handle


def split_handles(handles: int | Sequence[int]) -> tuple[list[int], list[ParkedSchedule]]:
    """Sequence numbers of the primary, and handles of parked messages."""
    several = [handles] if isinstance(handles, int) else list(handles)
    parked = [handle for handle in several if isinstance(handle, ParkedSchedule)]
    return [handle for handle in several if not isinstance(handle, ParkedSchedule)], parked
