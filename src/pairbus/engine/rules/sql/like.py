"""LIKE without backtracking: ``%`` any run, ``_`` one character.

A pattern is cut at its ``%`` into segments of fixed length. The first and the last are anchored, those
between are found from left to right, each at its first place: taking an earlier place can never spoil a
later segment, so nothing is ever tried twice. A segment is found by the text search of the interpreter or, where it
has ``_`` between its letters, by a regular expression of fixed length, which has nothing to go back to.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

from pairbus.errors import FilterFailed

if TYPE_CHECKING:
    from pairbus.engine.rules.sql.nodes import Evaluation

PATTERN_CHARACTERS_MAX: Final = 1024
CHARACTERS_PER_STEP: Final = 64
"""How many characters a search may compare for one step of the budget."""
PLACES_AT_A_TIME: Final = 4096
"""Places of a text that are searched before the budget is asked again."""
STEPS_PER_COMPILED_CHARACTER: Final = 2
"""A regular expression is made of a segment when it is first searched; a pattern that the message itself brings pays for that."""


@final
class Segment:
    """A piece of a pattern without ``%``: its length and the literal texts in it by offset."""

    __slots__ = ("_expression", "length", "literals", "offsets")

    def __init__(self) -> None:
        self.length = 0
        self.offsets: list[int] = []
        self.literals: list[str] = []
        self._expression: re.Pattern[str] | None = None

    def add_literal(self, character: str) -> None:
        """One character that must be met exactly."""
        if self.offsets and self.offsets[-1] + len(self.literals[-1]) == self.length:
            self.literals[-1] += character
        else:
            self.offsets.append(self.length)
            self.literals.append(character)
        self.length += 1

    def add_any(self) -> None:
        """One character, whichever it is."""
        self.length += 1

    @property
    def weight(self) -> int:
        """How many characters a search compares at one place at most. That for a plain text passes over each but once."""
        return 1 if len(self.literals) <= 1 else self.length

    def fits(self, text: str, at: int, evaluation: Evaluation) -> bool:
        """Whether the text has this segment at this place. The caller knows that it is long enough."""
        evaluation.charge(1 + self.length // CHARACTERS_PER_STEP)
        for i in range(len(self.offsets)):  # noqa: SIM110 - a generator per place tried costs more than the place
            if not text.startswith(self.literals[i], at + self.offsets[i]):
                return False
        return True

    def find(self, text: str, start: int, end: int, evaluation: Evaluation) -> int:
        """The first place in ``text[start:end]`` where the segment fits, or -1."""
        last, weight = end - self.length, self.weight
        if not self.literals:
            return start if start <= last else -1
        at = start
        while at <= last:
            stop = min(at + PLACES_AT_A_TIME, last + 1)
            evaluation.charge(1 + (stop - at) * weight // CHARACTERS_PER_STEP)
            found = self._find(text, at, stop - 1 + self.length, evaluation)
            if found >= 0:
                return found
            at = stop
        return -1

    def _find(self, text: str, start: int, end: int, evaluation: Evaluation) -> int:
        if len(self.literals) == 1:
            offset = self.offsets[0]
            after = self.length - offset - len(self.literals[0])
            found = text.find(self.literals[0], start + offset, end - after)
            return found - offset if found >= 0 else -1
        if self._expression is None:
            evaluation.charge(self.length * STEPS_PER_COMPILED_CHARACTER)
            self._expression = re.compile(self._written(), re.DOTALL)
        match = self._expression.search(text, start, end)
        return -1 if match is None else match.start()

    def _written(self) -> str:
        parts: list[str] = []
        at = 0
        for i in range(len(self.offsets)):
            if self.offsets[i] > at:
                parts.append(f".{{{self.offsets[i] - at}}}")
            parts.append(re.escape(self.literals[i]))
            at = self.offsets[i] + len(self.literals[i])
        if self.length > at:
            parts.append(f".{{{self.length - at}}}")
        return "".join(parts)


@final
class LikePattern:
    """A pattern ready to be compared with texts."""

    __slots__ = ("_length", "_segments", "weight")

    def __init__(self, pattern: str, escape: str | None) -> None:
        """``escape`` is one character or None. Raises FilterFailed for a pattern that means nothing."""
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise FilterFailed(
                f"the LIKE pattern has {len(pattern)} characters; at most {PATTERN_CHARACTERS_MAX} are allowed"
            )
        if escape is not None and len(escape) != 1:
            raise FilterFailed(f"ESCAPE takes one character, not {escape[:40]!r}")
        self._segments = _segments_of(pattern, escape)
        self._length = sum(segment.length for segment in self._segments)
        self.weight = max(segment.weight for segment in self._segments)
        """Characters that are compared at one place of a text at most."""

    @property
    def fixed_steps(self) -> int:
        """The steps that a comparison takes at most, however short the text is."""
        searched = 2 * len(self._segments) + self._length // CHARACTERS_PER_STEP
        return searched + STEPS_PER_COMPILED_CHARACTER * self._length

    def matches(self, text: str, evaluation: Evaluation) -> bool:
        """Whether the whole text has the shape of the pattern."""
        segments = self._segments
        if len(segments) == 1:
            return len(text) == self._length and segments[0].fits(text, 0, evaluation)
        if len(text) < self._length or not segments[0].fits(text, 0, evaluation):
            return False
        end = len(text) - segments[-1].length
        if not segments[-1].fits(text, end, evaluation):
            return False
        at = segments[0].length
        for i in range(1, len(segments) - 1):
            found = segments[i].find(text, at, end, evaluation)
            if found < 0:
                return False
            at = found + segments[i].length
        return True


def _segments_of(pattern: str, escape: str | None) -> list[Segment]:
    segments = [Segment()]
    is_escaped = False
    for character in pattern:
        if is_escaped:
            segments[-1].add_literal(character)
            is_escaped = False
        elif character == escape:
            is_escaped = True
        elif character == "%":
            segments.append(Segment())
        elif character == "_":
            segments[-1].add_any()
        else:
            segments[-1].add_literal(character)
    if is_escaped:
        raise FilterFailed(f"the LIKE pattern {pattern[:40]!r} ends with its escape character")
    return segments
