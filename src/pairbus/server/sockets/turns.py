"""Clients with a key take turns: how much of one client's input is handled before others have theirs.

A client may send much more than the broker handles in a moment. If all of it were handled as it comes, everybody else would
wait. So one round of the event loop handles a step of it, and the rest waits here, behind the rest of others:

    data ─► a step ─► rest? ─► waiting, each in turn ─► a step each, SLICE_NS in all ─► sockets are polled, answers go out

A client that sends little is done with the first step and never waits here. While a client waits its socket is not read; so what
waits is one read of each, and a read is as large as what the client usually gets done without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from pairbus.server.clock import elapsed_ns

STEP_WORK: Final = 64
"""Work of one step: 64 transfers or settlements, or 8 links attached or detached. About a millisecond."""
SLICE_NS: Final = 5_000_000
"""Once those who wait have had this much time in one round of the loop, the sockets are polled again."""
READ_BYTES_MIN: Final = 8 * 1024
READ_BYTES_FIRST: Final = 64 * 1024
READ_BYTES_MAX: Final = 256 * 1024
"""Bytes read at once from the socket of a client: the least, the first time, and the most."""


class Member(Protocol):
    """A connection with input that waits."""

    def take_turn(self) -> bool:
        """Do one step; whether there is more to do."""


class Turns:
    """All clients of one server whose input waits.

    Args:
        clock: Nanoseconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], int] = elapsed_ns) -> None:
        self._clock = clock
        self._waiting: dict[Member, None] = {}  # not a set: it keeps the order
        self._handle: asyncio.Handle | None = None
        self._is_running = False
        self._is_interrupted = False

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, member: Member) -> None:
        """A client has more to do. It goes on at once if no other client waits."""
        self._waiting[member] = None
        if self._handle is None and not self._is_running:
            self._run()

    def left(self, member: Member) -> None:
        """A client has gone, or is done. Idempotent."""
        self._waiting.pop(member, None)

    def interrupt(self) -> None:
        """Let the slice under way, or else the next one, end with its step: something waits for the loop. May be called by any thread."""
        self._is_interrupted = True

    def close(self) -> None:
        """Stop; connections must be gone."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._is_running = True
        started = self._clock()
        try:
            while self._waiting and not self._is_interrupted and self._clock() - started < SLICE_NS:
                member = next(iter(self._waiting))
                del self._waiting[member]
                if member.take_turn():
                    self._waiting[member] = None
        finally:
            self._is_running = self._is_interrupted = False
            if self._waiting:
                self._handle = asyncio.get_running_loop().call_soon(self._run)


def next_read_bytes(before: int, received: int, is_behind: bool) -> int:
    """How much to read at once, after a read of so much that was, or was not, handled without a wait."""
    if is_behind:
        return max(before // 2, READ_BYTES_MIN)
    return min(before * 2, READ_BYTES_MAX) if received >= before else before
