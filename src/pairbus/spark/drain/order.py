"""Which of the messages just locked may go now when order matters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pairbus.sdk.browsing import Browsed


def in_order(browsed: Sequence[bytes], mine: Collection[int], numbers: Sequence[int]) -> int:
    """How many of ``numbers``, from the first on, have every older message of their queue before them in our hands.

    Args:
        browsed: The head of the queue, encoded; browsing shows locked messages too.
        mine: Sequence numbers that this pump holds already.
        numbers: The sequence numbers just locked, ascending.
    """
    held = {*mine, *numbers}
    shown = (Browsed.of(payload) for payload in browsed)
    foreign = [one.sequence_number for one in shown if one.is_active and one.sequence_number not in held]
    barrier = min(foreign, default=None)
    if barrier is None:
        return len(numbers)
    return sum(1 for number in numbers if number < barrier)
