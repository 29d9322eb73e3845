"""JSON that remembers where each value stood, so that an error can name the key path and the line. Pure.

Comments may stand wherever spaces may: ``// to the end of the line`` and ``/* to the mark */``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from pairbus.errors import UsageError

DEPTH_MAX: Final = 32
_SPACE: Final = re.compile(r"(?:[ \t\n\r]+|//[^\n\r]*|/\*[\s\S]*?\*/)*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_DECODER: Final = json.JSONDecoder()
_WORDS: Final = (("true", True), ("false", False), ("null", None))


@dataclass(slots=True)
class Located:
    """One value with its place."""

    value: object
    """A str, int, float, bool, None, ``list[Located]`` or ``dict[str, Located]``."""
    path: str
    line: int

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        return f"{self.path or 'the file'} (line {self.line})"

    def fail(self, problem: str) -> UsageError:
        """An error with the place of the value."""
        return UsageError(f"{self.place}: {problem}")


def parse(text: str) -> Located:
    """The whole document. Raises UsageError with line and column."""
    parser = _Parser(text.removeprefix("\ufeff"))
    value = parser.value("", 0)
    parser.skip()
    if parser.at != len(parser.text):
        raise parser.fail("something follows the end of the document")
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._line = 1
        self._line_at = 0

    def fail(self, problem: str) -> UsageError:
        column = self.at - self.text.rfind("\n", 0, self.at)
        return UsageError(f"line {self._line_of(self.at)}, column {column}: {problem}")

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None, "the pattern matches the empty string"
        self.at = match.end()
        if self.text.startswith("/*", self.at):
            raise self.fail("a comment begins here and does not end: '*/' is missing")

    def value(self, path: str, depth: int) -> Located:
        self.skip()
        if depth > DEPTH_MAX:
            raise self.fail(f"nested deeper than {DEPTH_MAX}")
        line = self._line_of(self.at)
        first = self.text[self.at : self.at + 1]
        if first == "{":
            return Located(self._object(path, depth), path, line)
        if first == "[":
            return Located(self._array(path, depth), path, line)
        if first == '"':
            return Located(self._string(), path, line)
        return Located(self._scalar(), path, line)

    def _object(self, path: str, depth: int) -> dict[str, Located]:
        items: dict[str, Located] = {}
        self.at += 1
        while not self._closes("}", is_first=not items):
            self.skip()
            if self.text[self.at : self.at + 1] != '"':
                raise self.fail("expected a key in double quotes")
            start = self.at
            key = self._string()
            if key in items:
                self.at = start
                raise self.fail(f"the key {key!r} stands here twice")
            self.skip()
            if self.text[self.at : self.at + 1] != ":":
                raise self.fail(f"expected ':' after the key {key!r}")
            self.at += 1
            items[key] = self.value(f"{path}.{key}" if path else key, depth + 1)
        return items

    def _array(self, path: str, depth: int) -> list[Located]:
        items: list[Located] = []
        self.at += 1
        while not self._closes("]", is_first=not items):
            items.append(self.value(f"{path}[{len(items)}]", depth + 1))
        return items

    def _closes(self, closer: str, *, is_first: bool) -> bool:
        self.skip()
        found = self.text[self.at : self.at + 1]
        if found == closer:
            self.at += 1
            return True
        if not is_first:
            if found != ",":
                raise self.fail(f"expected ',' or '{closer}'")
            self.at += 1
            self.skip()
            if self.text[self.at : self.at + 1] == closer:
                raise self.fail(f"a ',' stands before '{closer}'")
        return False

    def _string(self) -> str:
        try:
            text, self.at = _DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            raise self.fail(error.msg) from error
        return str(text)

    def _scalar(self) -> object:
        for word, meaning in _WORDS:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return meaning
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise self.fail("expected a value")
        self.at = match.end()
        digits = match.group()
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def _line_of(self, position: int) -> int:
        # Positions mostly grow: count on from where the last count ended.
        if position < self._line_at:
            self._line, self._line_at = 1, 0
        self._line += self.text.count("\n", self._line_at, position)
        self._line_at = position
        return self._line
