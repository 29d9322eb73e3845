"""Wait for something that gives no notice: ask again and again, with a bound.

The bound only ends a test that has failed. It is generous, because a busy machine is slow and not wrong.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final, TypeVar

SECONDS_MAX: Final = 90.0
PAUSE_SECONDS: Final = 0.01

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str = "", seconds: float = SECONDS_MAX, *, pause: float = PAUSE_SECONDS
) -> T:
    """What the condition returned once that was true. ``pause``: seconds between two questions, more where a question is costly."""
    give_up_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"not within {seconds:g} s: {what or _source(condition)}"
        time.sleep(pause)
    return found


async def until(
    condition: Callable[[], T], what: str = "", seconds: float = SECONDS_MAX, *, pause: float = PAUSE_SECONDS
) -> T:
    """The same while the event loop goes on."""
    give_up_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"not within {seconds:g} s: {what or _source(condition)}"
        await asyncio.sleep(pause)
    return found


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
