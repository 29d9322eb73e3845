"""One self-contained page: tables and plots without a script. Every foreign text is shown as text (M8).

No script, no address of another file: the page's own policy forbids both. Text reaches the page through ``text`` alone. Plots are drawn in
shares of what there is room for, and their words are text of the page: they stay legible on a telephone.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from pairbus.reports.views.style import STYLE

TEXT_SHOWN_MAX: Final = 300
"""Characters of a foreign text; the files hold it whole."""
SERIES: Final = 9
"""Colours there are; ``report_style`` tells them."""
GOOD: Final = "good"
BAD: Final = "bad"
UNSURE: Final = "unsure"
SIGNS: Final = {GOOD: "✓", BAD: "✗", UNSURE: "?"}
TICKS: Final = 4
COLUMN_PERCENT_MAX: Final = Decimal(7)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: how long, in which colour, and what it stands for."""

    value: Decimal | int
    colour: int
    title: str


def inert(value: object) -> str:
    """Foreign text on one line that can neither forge a line nor turn the direction of others (M8)."""
    characters = [
        character if not unicodedata.category(character).startswith("C") else "\ufffd"
        for character in str(value)
    ]
    shown = "".join(characters)
    return shown if len(shown) <= TEXT_SHOWN_MAX else shown[: TEXT_SHOWN_MAX - 1] + "…"


def text(value: object) -> str:
    """Foreign text for a page."""
    return html.escape(inert(value), quote=True)


def cell_for_csv(value: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>\n"
        f'<header><p class="brand">PairBus</p><h1>{text(title)}</h1><p class="sub">{text(subtitle)}</p></header>\n<main>\n'
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def section(title: str, parts: Sequence[str], note: str = "") -> str:
    """A card with a heading."""
    told = f'<p class="note">{text(note)}</p>' if note else ""
    return f"<section><h2>{text(title)}</h2>{told}{''.join(parts)}</section>"


def verdict(kind: str, sentence: str, detail: str = "") -> str:
    """The answer in one sentence, seen first; ``kind`` is GOOD, BAD or UNSURE."""
    more = f"<p>{text(detail)}</p>" if detail else ""
    return (
        f'<div class="verdict {kind}"><span class="sign" aria-hidden="true">{SIGNS[kind]}</span>'
        f"<div><strong>{text(sentence)}</strong>{more}</div></div>"
    )


def tiles(entries: Sequence[tuple[str, str, str]], alarm: str = "") -> str:
    """The numbers that matter: name, value, and what it means; the one named ``alarm`` stands out."""
    inner = "".join(
        f'<div class="{"alarm" if name == alarm else "tile"}"><dt>{text(name)}</dt>'
        f"<dd>{text(value)}<small>{text(hint)}</small></dd></div>"
        for name, value, hint in entries
    )
    return f'<dl class="tiles">{inner}</dl>'


def paragraph(value: str, kind: str = "") -> str:
    """A paragraph; ``kind`` is one of our own classes."""
    return f'<p class="{kind}">{text(value)}</p>' if kind else f"<p>{text(value)}</p>"


def notes(values: Sequence[str]) -> str:
    return "".join(paragraph(value, "note") for value in values)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    numeric: Sequence[int] = (),
    foot: Sequence[object] = (),
    *,
    codes: Sequence[int] = (),
    unbroken: Sequence[int] = (),
    alarm: str = "",
) -> str:
    """A table; the columns ``numeric`` stand to the right, ``codes`` are names of any length, ``unbroken`` stay on one line, and a row that begins
    with ``alarm`` stands out. Wider than the page it scrolls by itself.
    """
    kinds = {**dict.fromkeys(unbroken, "k"), **dict.fromkeys(codes, "c"), **dict.fromkeys(numeric, "n")}

    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(
            f'<{tag} class="{kinds[at]}">{text(cell)}</{tag}>'
            if at in kinds
            else f"<{tag}>{text(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f'<tr class="alarm">{inner}</tr>' if alarm and cells[0] == alarm else f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows)
    bottom = f"<tfoot>{line(foot, 'td')}</tfoot>" if foot else ""
    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody>{bottom}</table></div>'


def folded(title: str, part: str) -> str:
    """Something that is unfolded by who wants to see it."""
    return f"<details><summary>{text(title)}</summary>{part}</details>"


def bars(rows: Sequence[tuple[str, Sequence[Piece], str]], label: str) -> str:
    """Horizontal bars: name, the pieces of the bar, and its value as it is written beside it."""
    if not rows:
        return paragraph("Nothing to plot.", "note")
    largest = max(_sum(pieces) for _, pieces, _ in rows) or Decimal(1)
    lines = "".join(
        f'<div class="bar"><span class="name">{text(name)}</span><span class="track">{_pieces(pieces, largest)}</span>'
        f'<span class="value">{text(told)}</span></div>'
        for name, pieces, told in rows
    )
    return f'<figure class="bars" role="group" aria-label="{text(label)}">{lines}</figure>'


def share_bar(pieces: Sequence[Piece], label: str) -> str:
    """One bar that is the whole, with what its pieces stand for below it."""
    whole = _sum(pieces)
    if not whole:
        return ""
    track = f'<span class="track whole">{_pieces(pieces, whole)}</span>'
    return f'<figure role="group" aria-label="{text(label)}">{track}{legend([(piece.colour, piece.title) for piece in pieces])}</figure>'


def legend(entries: Sequence[tuple[int, str]]) -> str:
    inner = "".join(f'<li><i class="s{colour % SERIES}"></i>{text(title)}</li>' for colour, title in entries)
    return f'<ul class="legend">{inner}</ul>'


def _sum(pieces: Sequence[Piece]) -> Decimal:
    return sum((max(Decimal(0), Decimal(piece.value)) for piece in pieces), Decimal(0))


def _pieces(pieces: Sequence[Piece], largest: Decimal) -> str:
    return "".join(
        f'<i class="s{piece.colour % SERIES}" style="width:{Decimal(piece.value) * 100 / largest:.3f}%" '
        f'title="{text(piece.title)}"></i>'
        for piece in pieces
        if piece.value > 0
    )


def columns(
    names: Sequence[str], series: Sequence[tuple[str, int, Sequence[Decimal | int]]], label: str, unit: str
) -> str:
    """Stacked columns over time; each series has a title, a colour and a value for each name."""
    if not names:
        return paragraph("Nothing to plot.", "note")
    sums = [sum((Decimal(values[at]) for _, _, values in series), Decimal(0)) for at in range(len(names))]
    top = _round_up(max(sums) or Decimal(1))
    step = Decimal(100) / len(names)
    width = min(step * Decimal("0.82"), COLUMN_PERCENT_MAX)
    marks = []
    for at, name in enumerate(names):
        base = Decimal(0)
        for title, colour, values in series:
            value = Decimal(values[at])
            if value > 0:
                tall = value * 100 / top
                marks.append(
                    f'<rect class="s{colour % SERIES}" x="{step * at + (step - width) / 2:.3f}" y="{100 - base - tall:.3f}" '
                    f'width="{width:.3f}" height="{tall:.3f}"><title>{text(name)}, {text(title)}: '
                    f"{text(_short(value))} {text(unit)}</title></rect>"
                )
                base += tall
    ticks = "".join(
        f'<span style="bottom:{100 * at // TICKS}%"><b>{text(_short(top * at / TICKS))}</b></span>'
        for at in range(TICKS + 1)
    )
    shown = sorted({0, len(names) // 2, len(names) - 1}) if len(names) > 2 else range(len(names))
    across = "".join(f"<span>{text(names[at])}</span>" for at in shown)
    return (
        f'<figure role="group" aria-label="{text(label)}"><figcaption>{text(unit)}</figcaption><div class="plot">'
        f'<div class="ticks">{ticks}</div><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}">{"".join(marks)}</svg></div><div class="across n{len(shown)}">{across}</div>'
        f"{legend([(colour, title) for title, colour, _ in series])}</figure>"
    )


def _round_up(value: Decimal) -> Decimal:
    """The next number that divides well into ticks."""
    power = Decimal(10) ** value.adjusted()
    return next(
        step * power
        for step in map(Decimal, ("1", "1.2", "1.6", "2", "2.4", "3.2", "4", "5", "6", "8", "10"))
        if step * power >= value
    )


def _short(value: Decimal) -> str:
    shown = f"{value:,.6f}" if 0 < value < 1 else f"{value:,.2f}"
    return shown.rstrip("0").rstrip(".")
