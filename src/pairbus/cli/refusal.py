"""What the official clients and Spark complain of, as one line that says what to do next."""

from __future__ import annotations

import re
from typing import Final

CHARACTERS_MAX: Final = 1_000
"""A line longer than this is not read."""
_REASON: Final = re.compile(r"\[Errno -?\d+\] (?P<why>[^\[\]()']+?)(?: Error condition|[(\]\[']|$)")
_REACH: Final = (
    "Connection refused",
    "Connect call failed",
    "Name or service not known",
    "Temporary failure in name resolution",
    "No route to host",
    "Network is unreachable",
    "timed out",
    "Failed to establish a new connection",
    "Cannot connect to host",
    "Failed to initiate the connection",
    "ServiceBusConnectionError",
)
_KEY: Final = (
    "Unauthorized",
    "InvalidSignature",
    "amqp:unauthorized-access",
    "ServiceBusAuthenticationError",
)


def one_line(error: BaseException) -> str:
    """The first line of what an error says, no longer than a line may be."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:CHARACTERS_MAX]


def way_out(error: BaseException) -> str | None:
    """One line for an error of reaching or being let in, with the way out; None for any other.

    Spark wraps what happened in its workers into long texts, so the whole text is looked through.
    """
    text = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "the namespace's certificate is not trusted: name the broker's ready file (--ready-file) or its authority "
            "(--ca-file), see docs/how-to/use-tls.md"
        )
    if any(sign in text for sign in _KEY):
        return "the key was refused: check the key and its rights in the connection string"
    if any(sign in text for sign in _REACH):
        found = _REASON.search(text)
        why = f" ({found['why'].strip().rstrip('.')})" if found else ""
        return f"the namespace could not be reached{why}: is it running, and does the connection string name its address?"
    return None
