"""Which connection a full relay cuts for a new one.

A relay sees bytes and not who has proved a right: most of what passes is TLS. The owner ends strangers, yet it may allow more of them
than this node has places. So a full relay cuts the oldest *quiet* connection. A connection is quiet while it is younger than the time
that the owner gives a stranger, and its client has sent no more than the beginnings of a connection. Nothing is counted for it: the
system is asked how much a client has sent, and only when a place is needed.
"""

from __future__ import annotations

from typing import Final

from pairbus.gateway.connection import FIRST_TOKEN_MS
from pairbus.server.cluster.relaying.pipes import END_SECONDS, Pipe

QUIET_BYTES: Final = 768
"""More than headers or the first message of TLS, and less than the Python client has sent after its first message."""
QUIET_SECONDS: Final = FIRST_TOKEN_MS / 1000 + END_SECONDS
"""After it the owner has ended a stranger, and this node has closed its connection."""


class Quiet:
    """The relayed connections that may be quiet, the oldest first. Each is looked at once after it has spoken or aged."""

    def __init__(self) -> None:
        self._since: dict[Pipe, float] = {}

    def joined(self, pipe: Pipe, now: float) -> None:
        self._since[pipe] = now

    def left(self, pipe: Pipe) -> None:
        """It has gone. Idempotent."""
        self._since.pop(pipe, None)

    def oldest(self, now: float) -> tuple[float, Pipe] | None:
        """Since when the oldest quiet connection is there, and the connection; None: there is none."""
        while self._since:
            pipe, since = next(iter(self._since.items()))
            if pipe.ends_at is not None or _is_quiet(pipe, now - since):
                return since, pipe
            del self._since[pipe]
        return None


def _is_quiet(pipe: Pipe, age: float) -> bool:
    count = pipe.client_bytes()
    return age < QUIET_SECONDS and count is not None and count < QUIET_BYTES
