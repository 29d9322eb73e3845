"""Says for which backlog queue messages wait that this drain does not drain. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pairbus.drain.rules.sharing import SAY_AFTER_MS, SAY_MS

_Pair = tuple[str, str]


@dataclass(slots=True)
class _Wait:
    since_ms: int
    said_ms: int | None = None


class UnservedQueues:
    """The waits of messages of one drain for queues that it does not have."""

    def __init__(self) -> None:
        self._waits: dict[_Pair, _Wait] = {}

    def sentences(self, queue: str, waits: Mapping[str, tuple[int, int]], now: int) -> list[str]:
        """What to say of a backlog queue now.

        Args:
            queue: The queue whose messages wait.
            waits: For each queue that this drain does not have: the first message that waits, and the one that it waits for;
                0 when that is not known.
            now: The time.
        """
        for pair in [one for one in self._waits if one[0] == queue and one[1] not in waits]:
            del self._waits[pair]
        said = []
        for other, (message, older) in waits.items():
            wait = self._waits.setdefault((queue, other), _Wait(now))
            is_due = now - wait.since_ms >= SAY_AFTER_MS
            if is_due and (wait.said_ms is None or now - wait.said_ms >= SAY_MS):
                wait.said_ms = now
                what = f"message {older} of its session" if older else "older messages of its session"
                said.append(
                    f"{queue}: message {message} has waited {(now - wait.since_ms) // 1000} s for {what} in {other}, and this drain does "
                    f"not drain {other}. `pairbus backlog drain {other}` does"
                )
        return said
