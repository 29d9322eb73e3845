"""The picture of docs/explanation/scale.md: how many cells each design needs, and for what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.cells.fleet import Plan

WIDTH, LEFT, ROW, BAR = 900, 400, 46, 26
SCALE_MAX = 1000.0
INK, PAPER, FIRST, SECOND = "#263238", "#ffffff", "#3f51b5", "#b0bec5"


def bars(plans: list[Plan]) -> str:
    """An SVG: for each design the cells that its scarcest resource needs, and a paler bar for the second scarcest."""
    height = ROW * len(plans) + 70
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14" fill="{INK}" role="img" '
            'aria-label="Cells that each design needs">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        '<text x="16" y="26" font-weight="bold">Cells needed, logarithmic: the scarcest resource, and (pale) the second</text>',
    ]
    for number, plan in enumerate(plans):
        top = 44 + number * ROW
        parts.append(f'<text x="16" y="{top + 18}">{plan.design.name}</text>')
        for need, colour, offset, size in ((plan.needs[1], SECOND, 16, 10), (plan.needs[0], FIRST, 0, 16)):
            parts.append(
                f'<rect x="{LEFT}" y="{top + offset}" width="{_length(need.cells):.0f}" height="{size}" fill="{colour}"/>'
            )
        label = f"{plan.cells:,}: {plan.first.resource}"
        parts.append(f'<text x="{LEFT + _length(plan.first.cells) + 8:.0f}" y="{top + 15}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _length(cells: float) -> float:
    return max(2.0, math.log10(max(1.0, cells)) / math.log10(SCALE_MAX) * (WIDTH - LEFT - 190))
