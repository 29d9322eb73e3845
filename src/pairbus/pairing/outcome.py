"""What a failed send means: ``fail``, nothing was stored; ``unknown``, it may have been (P5)."""

from __future__ import annotations

from typing import Literal

from pairbus.errors import UsageError

_ATTRIBUTE = "pairbus_outcome"
_IMPATIENT = "pairbus_is_impatient"


def mark(error: BaseException, *, is_in_doubt: bool) -> BaseException:
    """Note on an error whether the message may have been stored."""
    setattr(error, _ATTRIBUTE, "unknown" if is_in_doubt else "fail")
    return error


def without_frames(error: BaseException) -> BaseException:
    """A copy of an error to keep: without its traceback, which keeps alive every object of the failed call."""
    kept = type(error).__new__(type(error))
    kept.args = error.args
    kept.__dict__.update(error.__dict__)
    for name in ("exc_traceback", "exc_value", "inner_exception"):
        if name in kept.__dict__:
            kept.__dict__[name] = None
    return kept


def outcome_of(error: BaseException) -> Literal["fail", "unknown"]:
    """Return whether a send that raised ``error`` may have stored the message: ``"fail"`` is no, ``"unknown"`` is maybe.

    After ``"fail"`` the message can be sent again without a second copy. After ``"unknown"`` send it again with the same message id, so that
    duplicate detection can drop a copy. Wrong usage is ``"fail"``: it is refused before anything is sent. Errors that no paired sender raised are ``"unknown"``.

    Args:
        error: What ``send_messages`` or ``schedule_messages`` raised.
    """
    usual = "fail" if isinstance(error, UsageError | TypeError) else "unknown"
    return "fail" if getattr(error, _ATTRIBUTE, usual) == "fail" else "unknown"


def mark_impatient(error: BaseException) -> None:
    """Note on an error that waiting for other callers took the time: it says nothing about the namespace."""
    setattr(error, _IMPATIENT, True)


def is_impatient(error: BaseException) -> bool:
    """Whether the caller of a send had no time for an answer, because it had waited for other callers."""
    # The SDK raises an error of its own from the last one about time.
    return any(getattr(one, _IMPATIENT, False) for one in (error, error.__cause__))


def copy_of(error: BaseException) -> BaseException:
    """The same error for one more caller: each raises its own, with its own frames and notes."""
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied
