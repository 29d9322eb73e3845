"""Cuts the text of a filter or action into tokens.

Names, text and numbers as in the rule language of Service Bus: ``[a]]b]`` and ``"a""b"`` quote a name,
``'it''s'`` is text, keywords have no case, a plain name starts with a letter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from pairbus.errors import InvalidRule

EXPRESSION_CHARACTERS_MAX: Final = 1024

END: Final = 0
NAME: Final = 1
QUOTED_NAME: Final = 2
KEYWORD: Final = 3
INTEGER: Final = 4
DOUBLE: Final = 5
STRING: Final = 6
SYMBOL: Final = 7

INTEGER_MAX: Final = 2**63 - 1

KEYWORDS: Final = frozenset(
    ["AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "REMOVE", "SET", "TRUE"]
)
SYMBOLS_OF_TWO: Final = frozenset(["<>", "!=", ">=", "<="])
SYMBOLS_OF_ONE: Final = frozenset("=<>+-*/%(),.;@")
DIGITS: Final = frozenset("0123456789")


@final
@dataclass(slots=True, eq=False)
class Token:
    """One word of an expression and where it stands (counted from 1)."""

    kind: int
    text: str
    """Keywords in upper case; names and text without their quotes."""
    position: int
    number: int | float = 0


def refuse(position: int, expected: str, found: str) -> InvalidRule:
    """The error for an expression that goes wrong at ``position``."""
    return InvalidRule(f"at character {position}: expected {expected}, found {found}")


def tokens_of(expression: str) -> list[Token]:
    """The tokens of an expression, ending with one END token. Raises InvalidRule."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise InvalidRule(
            f"the expression has {len(expression)} characters; at most {EXPRESSION_CHARACTERS_MAX} are allowed"
        )
    tokens: list[Token] = []
    at = 0
    while at < len(expression):
        if expression[at].isspace():
            at += 1
            continue
        token, at = _next(expression, at)
        tokens.append(token)
    tokens.append(Token(END, "", len(expression) + 1))
    return tokens


def _next(text: str, at: int) -> tuple[Token, int]:
    first = text[at]
    if first.isalpha():
        return _word(text, at)
    if first in DIGITS or (first == "." and text[at + 1 : at + 2] in DIGITS):
        return _number(text, at)
    if first == "'":
        return _quoted(text, at, "'", STRING)
    if first == "[":
        return _quoted(text, at, "]", QUOTED_NAME)
    if first == '"':
        return _quoted(text, at, '"', QUOTED_NAME)
    if text[at : at + 2] in SYMBOLS_OF_TWO:
        return Token(SYMBOL, text[at : at + 2], at + 1), at + 2
    if first in SYMBOLS_OF_ONE:
        return Token(SYMBOL, first, at + 1), at + 1
    raise refuse(at + 1, "a name, a constant or an operator", repr(first))


def _is_name_character(character: str) -> bool:
    return character.isalpha() or character.isdecimal() or character == "_"


def _word(text: str, at: int) -> tuple[Token, int]:
    end = at + 1
    while end < len(text) and _is_name_character(text[end]):
        end += 1
    word = text[at:end]
    if word.upper() in KEYWORDS:
        return Token(KEYWORD, word.upper(), at + 1), end
    return Token(NAME, word, at + 1), end


def _quoted(text: str, at: int, closing: str, kind: int) -> tuple[Token, int]:
    parts: list[str] = []
    begin = at + 1
    while True:
        end = text.find(closing, begin)
        if end < 0:
            raise refuse(at + 1, f"a closing {closing}", "the end")
        parts.append(text[begin:end])
        if text[end + 1 : end + 2] != closing:
            break
        parts.append(closing)
        begin = end + 2
    content = "".join(parts)
    if kind == QUOTED_NAME and not content:
        raise refuse(at + 1, "a name", "an empty one")
    return Token(kind, content, at + 1), end + 1


def _digits_end(text: str, at: int) -> int:
    while at < len(text) and text[at] in DIGITS:
        at += 1
    return at


def _number(text: str, at: int) -> tuple[Token, int]:
    end = _digits_end(text, at)
    is_integer = True
    if text[end : end + 1] == "." and text[end + 1 : end + 2] in DIGITS:
        end = _digits_end(text, end + 1)
        is_integer = False
    if text[end : end + 1] in ("e", "E"):
        exponent = end + 2 if text[end + 1 : end + 2] in ("+", "-") else end + 1
        if _digits_end(text, exponent) == exponent:
            raise refuse(exponent + 1, "the digits of an exponent", repr(text[exponent : exponent + 1]))
        end = _digits_end(text, exponent)
        is_integer = False
    if end < len(text) and (_is_name_character(text[end]) or text[end] == "."):
        raise refuse(end + 1, "the end of a number", repr(text[end]))
    written = text[at:end]
    if is_integer:
        return Token(INTEGER, written, at + 1, int(written)), end
    number = float(written)
    if math.isinf(number):
        raise refuse(at + 1, "a number that a double can hold", written)
    return Token(DOUBLE, written, at + 1, number), end
