"""A document as one self-contained page: tables and plots without a script. All foreign text is shown as text (M8).

No script, no address of another file: the page's own policy forbids both. Text reaches the page through ``text`` alone. Plots are
drawn in shares of the room there is, and their labels are text of the page: they stay legible on a telephone.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from decimal import Decimal
from importlib.resources import files
from typing import Final

from pairbus.reports.views.document import (
    BAD,
    GOOD,
    UNSURE,
    Bars,
    Columns,
    Document,
    Notes,
    Part,
    Piece,
    Section,
    ShareBar,
    Table,
    shown_text,
)

SERIES: Final = 9
"""Colours that page.css has."""
SIGNS: Final = {GOOD: "✓", BAD: "✗", UNSURE: "?"}
TICKS: Final = 4
COLUMN_PERCENT_MAX: Final = Decimal(7)


def text(value: object) -> str:
    """Foreign text for a page."""
    return html.escape(shown_text(value), quote=True)


def page(document: Document) -> str:
    style = (files("pairbus.reports.views") / "page.css").read_text(encoding="utf-8")
    title, subtitle = text(document.title), text(document.subtitle)
    parts = [_verdict(document), _tiles(document), *map(_section, document.sections)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{title}</title><style>{style}</style></head><body>\n"
        f'<header><p class="brand">PairBus</p><h1>{title}</h1><p class="sub">{subtitle}</p></header>\n<main>\n'
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def part(value: Part) -> str:
    match value:
        case Table():
            return _table(value)
        case Bars():
            return _bars(value)
        case ShareBar():
            return _share_bar(value)
        case Columns():
            return _columns(value)
        case Notes():
            return "".join(map(_note, value.texts))


def _section(section: Section) -> str:
    note = _note(section.note) if section.note else ""
    return f"<section><h2>{text(section.title)}</h2>{note}{''.join(map(part, section.parts))}</section>"


def _verdict(document: Document) -> str:
    detail = f"<p>{text(document.detail)}</p>" if document.detail else ""
    return (
        f'<div class="verdict {document.kind}"><span class="sign" aria-hidden="true">{SIGNS[document.kind]}</span>'
        f"<div><strong>{text(document.sentence)}</strong>{detail}</div></div>"
    )


def _tiles(document: Document) -> str:
    inner = "".join(
        f'<div class="{"alarm" if name == document.alarm else "tile"}"><dt>{text(name)}</dt>'
        f"<dd>{text(value)}<small>{text(meaning)}</small></dd></div>"
        for name, value, meaning in document.tiles
    )
    return f'<dl class="tiles">{inner}</dl>'


def _note(value: str) -> str:
    return f'<p class="note">{text(value)}</p>'


def _table(table: Table) -> str:
    """Wider than the page it scrolls by itself."""
    kinds = {
        **dict.fromkeys(table.unbroken, "k"),
        **dict.fromkeys(table.codes, "c"),
        **dict.fromkeys(table.numeric, "n"),
    }

    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(
            f'<{tag} class="{kinds[at]}">{text(cell)}</{tag}>'
            if at in kinds
            else f"<{tag}>{text(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        is_alarm = table.alarm and cells[0] == table.alarm
        return f'<tr class="alarm">{inner}</tr>' if is_alarm else f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    bottom = f"<tfoot>{line(table.foot, 'td')}</tfoot>" if table.foot else ""
    top = f"<thead>{line(table.head, 'th')}</thead>" if any(table.head) else ""
    made = f'<div class="wide"><table>{top}<tbody>{body}</tbody>{bottom}</table></div>'
    return f"<details><summary>{text(table.summary)}</summary>{made}</details>" if table.summary else made


def _bars(bars: Bars) -> str:
    if not bars.rows:
        return _note("Nothing to plot.")
    largest = max(_sum(pieces) for _, pieces, _ in bars.rows) or Decimal(1)
    lines = "".join(
        f'<div class="bar"><span class="name">{text(name)}</span><span class="track">{_pieces(pieces, largest)}</span>'
        f'<span class="value">{text(value)}</span></div>'
        for name, pieces, value in bars.rows
    )
    legend = _legend(bars.legend) if bars.legend else ""
    return f'<figure class="bars" role="group" aria-label="{text(bars.label)}">{lines}</figure>{legend}'


def _share_bar(bar: ShareBar) -> str:
    whole = _sum(bar.pieces)
    if not whole:
        return ""
    track = f'<span class="track whole">{_pieces(bar.pieces, whole)}</span>'
    legend = _legend([(piece.colour, piece.title) for piece in bar.pieces])
    return f'<figure role="group" aria-label="{text(bar.label)}">{track}{legend}</figure>'


def _legend(entries: Sequence[tuple[int, str]]) -> str:
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


def _columns(plot: Columns) -> str:
    if not plot.names:
        return _note("Nothing to plot.")
    sums = [
        sum((Decimal(values[at]) for _, _, values in plot.series), Decimal(0))
        for at in range(len(plot.names))
    ]
    top = _round_up(max(sums) or Decimal(1))
    step = Decimal(100) / len(plot.names)
    width = min(step * Decimal("0.82"), COLUMN_PERCENT_MAX)
    marks = []
    for at, name in enumerate(plot.names):
        base = Decimal(0)
        for title, colour, values in plot.series:
            value = Decimal(values[at])
            if value > 0:
                tall = value * 100 / top
                marks.append(
                    f'<rect class="s{colour % SERIES}" x="{step * at + (step - width) / 2:.3f}" y="{100 - base - tall:.3f}" '
                    f'width="{width:.3f}" height="{tall:.3f}"><title>{text(name)}, {text(title)}: '
                    f"{text(_short(value))} {text(plot.unit)}</title></rect>"
                )
                base += tall
    ticks = "".join(
        f'<span style="bottom:{100 * at // TICKS}%"><b>{text(_short(top * at / TICKS))}</b></span>'
        for at in range(TICKS + 1)
    )
    shown = (
        sorted({0, len(plot.names) // 2, len(plot.names) - 1})
        if len(plot.names) > 2
        else range(len(plot.names))
    )
    across = "".join(f"<span>{text(plot.names[at])}</span>" for at in shown)
    return (
        f'<figure role="group" aria-label="{text(plot.label)}"><figcaption>{text(plot.unit)}</figcaption><div class="plot">'
        f'<div class="ticks">{ticks}</div><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(plot.label)}">{"".join(marks)}</svg></div><div class="across n{len(shown)}">{across}</div>'
        f"{_legend([(colour, title) for title, colour, _ in plot.series])}</figure>"
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
