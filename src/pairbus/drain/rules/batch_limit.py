"""How many messages go into one batch while a destination refuses some of them. No clock, no I/O.

A destination stores a batch as a whole or refuses it as a whole, and does not say which message is at fault. So a batch
that was refused is sent again in smaller ones, until a message that was refused alone is known to be at fault:

- A refusal halves the limit. An accepted batch doubles it again.
- The rest of a refused batch is known to contain a message at fault once its first part was accepted. It is not sent
  as a whole again: its half is next.

One message at fault among 100 costs about 15 sends. If all are at fault, each costs one send, because the limit stays
at one. In between, messages cost at most two sends each.
"""

from __future__ import annotations

from typing import Final

BATCH_MESSAGES: Final = 100


class BatchLimit:
    """The limit of one destination."""

    __slots__ = ("_suspects", "messages")

    def __init__(self) -> None:
        self.messages = BATCH_MESSAGES
        """How many messages the next batch may contain."""
        self._suspects = 0
        """Among so many messages at the front of the queue is one at fault."""

    @property
    def is_reduced(self) -> bool:
        """Whether batches are smaller than usual, because some were refused."""
        return self.messages < BATCH_MESSAGES

    def refused(self, count: int) -> None:
        """A batch of so many messages was refused because of its content."""
        self._suspects = count if count > 1 else 0
        self.messages = max(1, count // 2)

    def accepted(self, count: int) -> None:
        """A batch of so many messages was accepted."""
        if self._suspects > count:
            self._suspects -= count
            self.messages = max(1, self._suspects // 2)
        else:
            self._suspects = 0
            self.messages = min(BATCH_MESSAGES, self.messages * 2)
