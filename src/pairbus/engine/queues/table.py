"""The messages of one place by their number, and in its order.

Numbers come in ascending order and nearly without gaps, so a dictionary would spend most of its memory on what is known already. Here
messages lie in ascending order in short lists, *chunks*: a number is found by halving, mostly by the first look, and a message takes
8 bytes. What leaves is taken out at once, which moves at most one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

    from pairbus.model.message import Message

CHUNK_MESSAGES_MAX: Final = 256


class MessageTable:
    """Like a dictionary of numbers and messages, in ascending order. Not to be changed while it is walked."""

    __slots__ = ("_chunks", "_count", "_last_found")

    def __init__(self) -> None:
        self._chunks: list[list[Message]] = []
        """None of them is empty."""
        self._count: i64 = 0
        self._last_found: i64 = 0
        """The chunk of the last look: the next one is mostly there too. It may be gone."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def __getitem__(self, number: int) -> Message:
        message = self.get(number)
        if message is None:
            raise KeyError(number)
        return message

    def get(self, number: int) -> Message | None:
        """The message of this number."""
        at = self._chunk_with(number)
        if at < 0:
            return None
        chunk = self._chunks[at]
        index = _index(chunk, number)
        message = chunk[index]
        return message if message.sequence_number == number else None

    def add(self, message: Message) -> None:
        """Put in a message whose number is not here."""
        self._count += 1
        chunks = self._chunks
        number = message.sequence_number
        at: i64 = len(chunks) - 1
        if at < 0:
            chunks.append([message])
            return
        chunk = chunks[at]
        size: i64 = len(chunk)
        if chunk[size - 1].sequence_number > number:
            at = max(self._chunk_with(number), 0)
            chunk = chunks[at]
            size = len(chunk)
        if chunk[size - 1].sequence_number < number:
            if size < CHUNK_MESSAGES_MAX:
                chunk.append(message)
            else:
                chunks.insert(at + 1, [message])
            return
        index = _index(chunk, number)
        if size < CHUNK_MESSAGES_MAX:
            chunk.insert(index, message)
            return
        # Cut here and not in the middle: what follows this number in order then fills its chunks.
        chunks.insert(at + 1, chunk[index:])
        del chunk[index:]
        chunk.append(message)

    def pop(self, number: int) -> Message | None:
        """Take out the message of this number."""
        at = self._chunk_with(number)
        if at < 0:
            return None
        chunks = self._chunks
        chunk = chunks[at]
        message = chunk[0]
        if message.sequence_number == number:  # most messages leave in their order
            index: int = 0
        else:
            index = _index(chunk, number)
            message = chunk[index]
            if message.sequence_number != number:
                return None
        chunk.pop(index)
        self._count -= 1
        if not chunk:
            chunks.pop(at)
        return message

    def pop_all(self, messages: list[Message]) -> None:
        """Take out these messages, all of which are here. Those that stand one after the other here and there go together."""
        chunks = self._chunks
        count: i64 = len(messages)
        self._count -= count
        done: i64 = 0
        while done < count:
            number = messages[done].sequence_number
            at = self._chunk_with(number)
            chunk = chunks[at]
            first = end = _index(chunk, number)
            while end < len(chunk) and done < count and chunk[end] is messages[done]:
                end += 1
                done += 1
            assert end > first, number
            del chunk[first:end]
            if not chunk:
                chunks.pop(at)

    def __iter__(self) -> Iterator[int]:
        for message in self.values():
            yield message.sequence_number

    def values(self) -> Iterator[Message]:
        """All messages."""
        for chunk in self._chunks:
            yield from chunk

    def items(self) -> Iterator[tuple[int, Message]]:
        for message in self.values():
            yield message.sequence_number, message

    def values_from(self, number: int) -> Iterator[Message]:
        """The messages from this number on."""
        at = max(self._chunk_with(number), 0)
        for index in range(at, len(self._chunks)):
            for message in self._chunks[index]:
                if message.sequence_number >= number:
                    yield message

    def newest(self) -> Message | None:
        """The message with the highest number."""
        return self._chunks[-1][-1] if self._chunks else None

    def pop_newest(self) -> Message:
        """Take out the message with the highest number; there is one."""
        chunk = self._chunks[-1]
        message = chunk.pop()
        if not chunk:
            self._chunks.pop()
        self._count -= 1
        return message

    def _chunk_with(self, number: int) -> i64:
        """The last chunk that begins with this number or a lower one; -1: there is none."""
        chunks = self._chunks
        at = self._last_found
        count: i64 = len(chunks)
        if at < count:
            chunk = chunks[at]
            if chunk[0].sequence_number <= number <= chunk[len(chunk) - 1].sequence_number:
                return at
        low: i64 = 0
        high: i64 = count
        while low < high:
            middle = (low + high) // 2
            if chunks[middle][0].sequence_number <= number:
                low = middle + 1
            else:
                high = middle
        if low > 0:
            self._last_found = low - 1
        return low - 1


def _index(chunk: list[Message], number: int) -> i64:
    """Where this number stands in a chunk, or would stand; the last place if it is higher than all."""
    # Not native integers: a client may ask for a number of any size.
    last: int = len(chunk) - 1
    behind: int = number - chunk[0].sequence_number
    low: i64 = 0
    # No place lies farther behind the first than its number does, so without gaps the first look finds it.
    high: i64 = last if behind > last else max(behind, 0)
    if chunk[high].sequence_number <= number:
        return high
    while low < high:
        middle = (low + high) // 2
        if chunk[middle].sequence_number < number:
            low = middle + 1
        else:
            high = middle
    return low
