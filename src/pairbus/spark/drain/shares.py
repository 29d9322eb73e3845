"""How a slice of the drain is shared out: which task drains which backlog queues. Pure.

A long queue is drained by several tasks at once; small queues share a task. Balance is by message counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNKNOWN_COUNT: Final = 1
"""What a queue counts for when its number of messages is not known."""
CHUNK_MIN: Final = 500
"""A queue with fewer messages than this is not worth a second task."""


def share_out(
    backlog: Mapping[str, int | None], tasks: int, *, is_ordered: bool = False
) -> list[tuple[str, ...]]:
    """The backlog queues of each of at most ``tasks`` tasks, the load as even as chunks allow.

    Args:
        backlog: Message counts by queue; None where it is not known.
        tasks: How many tasks may run.
        is_ordered: One task per queue only: two would overtake each other.
    """
    counts = {queue: UNKNOWN_COUNT if count is None else max(1, count) for queue, count in backlog.items()}
    if not counts or tasks < 1:
        return []
    fair = max(CHUNK_MIN, -(-sum(counts.values()) // tasks))
    chunks: list[tuple[int, str]] = []
    for queue in sorted(counts):
        count = counts[queue]
        pieces = 1 if is_ordered else min(tasks, -(-count // fair))
        chunks += [(-(-count // pieces), queue)] * pieces
    loads: list[int] = [0] * tasks
    bins: list[list[str]] = [[] for _ in range(tasks)]
    for size, queue in sorted(chunks, key=lambda chunk: (-chunk[0], chunk[1])):
        # The emptiest task that does not drain this queue yet: twice in one task gains nothing.
        free = [index for index in range(tasks) if queue not in bins[index]]
        target = min(free, key=lambda index: (loads[index], index))
        bins[target].append(queue)
        loads[target] += size
    return [tuple(queues) for queues in bins if queues]
