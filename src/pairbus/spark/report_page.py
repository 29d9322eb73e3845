"""One self-contained page: tables and plots as inline SVG. Every foreign text is shown as text (M8).

No script, no address of another file: the page's own policy forbids both. Text reaches the page through ``text`` alone.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

TEXT_SHOWN_MAX: Final = 300
"""Characters of a foreign text; the files hold it whole."""
COLOURS: Final = (
    "#2563eb",
    "#d97706",
    "#059669",
    "#dc2626",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#65a30d",
    "#6b7280",
)
_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:66rem;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;white-space:nowrap}
tfoot td{font-weight:600;border-top:2px solid var(--line)}
.verdict{font-size:1.2rem;padding:.7rem 1rem;border-left:.4rem solid;background:var(--soft);margin:1rem 0}
.good{border-color:#059669}.bad{border-color:#dc2626}.unsure{border-color:#d97706}
.note{opacity:.75}svg{max-width:100%;height:auto}svg text{fill:currentColor;font:12px system-ui,sans-serif}
"""


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


def page(title: str, parts: Sequence[str]) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{text(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def heading(value: str) -> str:
    """Over a part of the page."""
    return f"<h2>{text(value)}</h2>"


def paragraph(value: str, kind: str = "") -> str:
    """A paragraph; ``kind`` is one of our own classes."""
    return f'<p class="{kind}">{text(value)}</p>' if kind else f"<p>{text(value)}</p>"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    numeric: Sequence[int] = (),
    foot: Sequence[object] = (),
) -> str:
    """A table; the columns ``numeric`` stand to the right."""

    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(
            f'<{tag} class="n">{text(cell)}</{tag}>' if at in numeric else f"<{tag}>{text(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows)
    bottom = f"<tfoot>{line(foot, 'td')}</tfoot>" if foot else ""
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody>{bottom}</table>"


def bars(rows: Sequence[tuple[str, Decimal | int, str]], label: str) -> str:
    """Horizontal bars: name, value, and the value as it is written beside the bar."""
    if not rows:
        return paragraph("nothing to plot", "note")
    height, left, width = 24, 230, 470
    largest = max((Decimal(value) for _, value, _ in rows), default=Decimal(0)) or Decimal(1)
    marks = []
    for at, (name, value, told) in enumerate(rows):
        length = int(max(Decimal(0), Decimal(value)) * width / largest)
        top = at * height
        shown = name if len(name) <= 34 else name[:33] + "…"
        marks.append(
            f'<text x="{left - 8}" y="{top + 16}" text-anchor="end">{text(shown)}</text>'
            f'<rect x="{left}" y="{top + 4}" width="{max(1, length)}" height="{height - 8}" rx="2" '
            f'fill="{COLOURS[at % len(COLOURS)]}"><title>{text(name)}: {text(told)}</title></rect>'
            f'<text x="{left + max(1, length) + 6}" y="{top + 16}">{text(told)}</text>'
        )
    total = len(rows) * height
    return f'<svg viewBox="0 0 900 {total}" role="img" aria-label="{text(label)}">{"".join(marks)}</svg>'


def columns(
    names: Sequence[str], series: Sequence[tuple[str, Sequence[Decimal | int]]], label: str, unit: str = ""
) -> str:
    """Stacked columns over time, one colour for each series."""
    if not names:
        return paragraph("nothing to plot", "note")
    left, top, width, height = 70, 10, 800, 220
    sums = [sum((Decimal(values[at]) for _, values in series), Decimal(0)) for at in range(len(names))]
    largest = max(sums) or Decimal(1)
    step = Decimal(width) / len(names)
    marks = [
        f'<line x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}" stroke="currentColor"/>',
        f'<text x="{left - 6}" y="{top + 12}" text-anchor="end">{text(_short(largest))}</text>',
        f'<text x="{left - 6}" y="{top + height}" text-anchor="end">0</text>',
        f'<text x="{left}" y="{top + height + 18}">{text(names[0])}</text>',
        f'<text x="{left + width}" y="{top + height + 18}" text-anchor="end">{text(names[-1])}</text>',
    ]
    for at, name in enumerate(names):
        base = Decimal(0)
        for number, (title, values) in enumerate(series):
            value = Decimal(values[at])
            if value > 0:
                tall = value * height / largest
                marks.append(
                    f'<rect x="{left + step * at:.2f}" y="{top + height - base - tall:.2f}" '
                    f'width="{max(Decimal(1), step * Decimal("0.85")):.2f}" height="{tall:.2f}" '
                    f'fill="{COLOURS[number % len(COLOURS)]}"><title>{text(name)}, {text(title)}: {text(_short(value))} {text(unit)}</title></rect>'
                )
                base += tall
    for number, (title, _) in enumerate(series):
        across, down = left + (number % 3) * 270, top + height + 40 + (number // 3) * 20
        marks.append(
            f'<rect x="{across}" y="{down - 10}" width="12" height="12" fill="{COLOURS[number % len(COLOURS)]}"/>'
            f'<text x="{across + 18}" y="{down}">{text(title)}</text>'
        )
    total = top + height + 50 + (len(series) - 1) // 3 * 20
    return f'<svg viewBox="0 0 900 {total}" role="img" aria-label="{text(label)}">{"".join(marks)}</svg>'


def _short(value: Decimal) -> str:
    shown = f"{value:,.6f}" if value < 1 else f"{value:,.2f}"
    return shown.rstrip("0").rstrip(".")
