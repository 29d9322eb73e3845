"""Which of the messages just locked may go now when order matters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pairbus.amqp.message.whole import decode_message
from pairbus.amqp.types import Symbol

ACTIVE = 0


def in_order(browsed: Sequence[bytes], mine: Collection[int], numbers: Sequence[int]) -> int:
    """How many of ``numbers``, from the first on, have every older message of their queue before them in our hands.

    Args:
        browsed: The head of the queue, encoded; browsing shows locked messages too.
        mine: Sequence numbers that this pump holds already.
        numbers: The sequence numbers just locked, ascending.
    """
    held = {*mine, *numbers}
    foreign = [number for number in map(active_number, browsed) if number is not None and number not in held]
    barrier = min(foreign, default=None)
    if barrier is None:
        return len(numbers)
    return sum(1 for number in numbers if number < barrier)


def active_number(payload: bytes) -> int | None:
    """A browsed message's sequence number; None when it is deferred or scheduled."""
    annotations = decode_message(payload).message_annotations
    number = annotations.get(Symbol("x-opt-sequence-number"))
    state = annotations.get(Symbol("x-opt-message-state"), ACTIVE)
    return number if isinstance(number, int) and state == ACTIVE else None


def sequence_number(payload: bytes) -> int:
    """A browsed message's sequence number."""
    number = decode_message(payload).message_annotations.get(Symbol("x-opt-sequence-number"))
    assert isinstance(number, int), number
    return number
