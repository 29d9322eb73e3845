"""What a connection may use before it has shown any right (M6). Beyond it the connection is closed, and no more of it is read."""

from __future__ import annotations

from typing import Final

STRANGER_BYTES_MAX: Final = 32_768
"""Bytes that a connection may send before it has shown any right: the clients need about 4,000."""
STRANGER_SESSIONS_MAX: Final = 8
"""Sessions that a connection may have open before it has shown any right."""
STRANGER_REFUSALS_MAX: Final = 8
"""Tokens and requests to the coordinator that are refused before the connection is closed, if it has shown no right."""
STRANGER_LINKS_MAX: Final = 8
"""Links that a connection may ask for before it has shown any right: the clients need three, each takes memory, refused or not."""

TOO_MANY_BYTES: Final = (
    f"More than {STRANGER_BYTES_MAX} bytes were sent without a valid token: put one first."
)
TOO_MANY_SESSIONS: Final = (
    f"More than {STRANGER_SESSIONS_MAX} sessions were begun without a valid token: put one first."
)
TOO_MANY_LINKS: Final = (
    f"More than {STRANGER_LINKS_MAX} links were asked for without a valid token: put one first."
)
TOO_MANY_REFUSALS: Final = f"{STRANGER_REFUSALS_MAX} requests were refused and no valid token was put: check the key, then connect again."


class StrangerLimits:
    """Counts what one connection has used."""

    __slots__ = ("_bytes", "_links", "_refusals")

    def __init__(self) -> None:
        self._bytes = 0
        self._links = 0
        self._refusals = 0

    def add_bytes(self, count: int) -> int:
        """So many bytes came; how many of them may be read."""
        allowed = STRANGER_BYTES_MAX - self._bytes
        self._bytes += count
        return allowed

    def add_link(self) -> bool:
        """A link is asked for; False: it is one too many."""
        self._links += 1
        return self._links <= STRANGER_LINKS_MAX

    def add_refusal(self) -> bool:
        """A request was refused; False: it was the last one."""
        self._refusals += 1
        return self._refusals < STRANGER_REFUSALS_MAX

    def forget(self) -> None:
        """The connection has shown a right. If that ends, the count begins again."""
        self._bytes = self._links = self._refusals = 0
