"""One HTTP request and its answer as plain values; who carries them is not known here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False, repr=False)
class HttpRequest:
    """A whole request: its body has arrived and is within the limit."""

    method: str
    """In capitals."""
    target: str
    """Path and query as they came, still percent-encoded."""
    headers: dict[str, str]
    """Names in lower case; repeated ones joined with a comma."""
    body: bytes
    peer: str
    """The peer's own address, ``host:port``."""
    secure: bool
    """Whether it came through TLS."""
    is_known: bool = False
    """Whether the caller proved to hold a key; set by whoever checks that."""


@dataclass(slots=True, eq=False, repr=False)
class HttpResponse:
    """What to answer. The carrier adds length, date and connection headers."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
