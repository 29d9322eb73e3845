"""A pause that a change may end early, written once for both runtimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.pairing.runtime.ports import Runtime


async def pause(runtime: Runtime, clock: Callable[[], int], ms: int, is_over: Callable[[], bool]) -> None:
    """Wait for ``ms``, or until ``is_over`` says so. It is asked at once, and after each change.

    Args:
        runtime: Waits.
        clock: A steady clock in milliseconds.
        ms: The longest pause.
        is_over: Whether there is a reason to end the pause. What it looks at changes before ``runtime.notify``,
            or together with it under a lock that it takes.
    """
    until_ms = clock() + ms
    while True:
        token = runtime.change_token()
        left_ms = until_ms - clock()
        if left_ms <= 0 or is_over():
            return
        await runtime.wait_for_change(token, left_ms / 1000)
