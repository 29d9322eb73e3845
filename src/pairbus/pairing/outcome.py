"""What a failed send means: ``fail``, nothing was stored; ``unknown``, it may have been (P5)."""

from __future__ import annotations

from typing import Literal

_ATTRIBUTE = "pairbus_outcome"


def mark(error: BaseException, *, is_in_doubt: bool) -> BaseException:
    """Note on an error whether the message may have been stored."""
    setattr(error, _ATTRIBUTE, "unknown" if is_in_doubt else "fail")
    return error


def outcome_of(error: BaseException) -> Literal["fail", "unknown"]:
    """Whether a send that raised ``error`` may have stored the message. Errors from elsewhere are ``unknown``."""
    return "fail" if getattr(error, _ATTRIBUTE, "unknown") == "fail" else "unknown"
