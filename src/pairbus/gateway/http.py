"""One HTTP request and its answer as plain values; who carries them is not known here."""

from __future__ import annotations


class HttpRequest:
    """A whole request: its body has arrived and is within the limit."""

    __slots__ = ("body", "headers", "is_known", "method", "peer", "secure", "target")

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        peer: str,
        secure: bool,
    ) -> None:
        self.method = method
        """In capitals."""
        self.target = target
        """Path and query as they came, still percent-encoded."""
        self.headers = headers
        """Names in lower case; repeated ones joined with a comma."""
        self.body = body
        self.peer = peer
        """The peer's own address, ``host:port``."""
        self.secure = secure
        """Whether it came through TLS."""
        self.is_known = False
        """Whether the caller proved to hold a key; set by whoever checks that."""


class HttpResponse:
    """What to answer. The carrier adds length, date and connection headers."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
