"""What a report shows, without saying where: `html` and `terminal` both render a ``Document``.

`bill` and `certificate` make the documents of the two reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from pairbus.model.text import safe_text

GOOD: Final = "good"
BAD: Final = "bad"
UNSURE: Final = "unsure"
TEXT_SHOWN_MAX: Final = 300
"""Characters of a foreign text that are shown; the files hold all of it."""


def shown_text(value: object) -> str:
    """Foreign text as a report shows it: on one line, harmless, and not too long."""
    return safe_text(value, length_max=TEXT_SHOWN_MAX)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: how long, in which colour, and what it stands for."""

    value: Decimal | int
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars: name, the pieces of the bar, and its value as text."""

    rows: Sequence[tuple[str, Sequence[Piece], str]]
    label: str
    legend: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class ShareBar:
    """One bar that is the whole, with what its pieces stand for."""

    pieces: Sequence[Piece]
    label: str


@dataclass(frozen=True, slots=True)
class Columns:
    """Stacked columns over time; each series has a title, a colour and a value for each name."""

    names: Sequence[str]
    series: Sequence[tuple[str, int, Sequence[Decimal | int]]]
    label: str
    unit: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. A row that begins with ``alarm`` stands out."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[int] = ()
    """Columns that are aligned to the right."""
    foot: Sequence[object] = ()
    codes: Sequence[int] = ()
    """Columns with foreign names of any length."""
    unbroken: Sequence[int] = ()
    """Columns that stay on one line."""
    alarm: str = ""
    summary: str = ""
    """Where it is set, a page shows this line and unfolds the table on demand."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Remarks in small print, a paragraph each."""

    texts: Sequence[str]


Part: TypeAlias = Bars | ShareBar | Columns | Table | Notes


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what belongs to it."""

    title: str
    parts: Sequence[Part]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    subtitle: str
    kind: str
    """GOOD, BAD or UNSURE."""
    sentence: str
    """The answer in one sentence, shown first."""
    detail: str
    tiles: Sequence[tuple[str, str, str]]
    """The numbers that matter: name, value, and what it means."""
    alarm: str = ""
    """The tile that stands out."""
    sections: Sequence[Section]
