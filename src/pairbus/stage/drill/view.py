"""How a drill looks on a terminal: the live picture and the report card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pairbus.model.text import safe_text
from pairbus.pairing.clock import steady_ms
from pairbus.stage.screen import bar, health_table, timeline_panel, title
from pairbus.stage.timeline import Timeline

if TYPE_CHECKING:
    from pairbus.stage.drill.card import Card

BAR_COLUMNS: Final = 20
VERDICTS: Final = {
    "pass": ("✓ pass", "green"),
    "fail": ("✗ FAIL", "bold red"),
    "not tested": ("– not tested", "yellow"),
    "told": ("· noted", "dim"),
}


class Scene(Timeline):
    """The timeline of a drill and the span of its outage."""

    def __init__(self) -> None:
        super().__init__()
        self.outage_span: tuple[int, int] | None = None
        """When the outage began and when it ends."""


def draw(scene: Scene) -> RenderableType:
    book = scene.book
    counts = (
        f"{book.sent_count:,} probes, {book.accepted_count:,} accepted, {book.refusal_count:,} sends refused"
    )
    return Group(
        title("PairBus drill", scene),
        _remaining(scene),
        health_table(scene),
        Text(counts, "dim"),
        timeline_panel(scene),
    )


def _remaining(scene: Scene) -> RenderableType:
    if scene.outage_span is None:
        return Text("")
    begun, ends = scene.outage_span
    now = steady_ms()
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        Text("outage"),
        bar(min(ends, now) - begun, ends - begun, BAR_COLUMNS),
        Text(f"ends by itself in {(ends - now) / 1000:.0f} s" if now < ends else "is over", "dim"),
    )
    return grid


def show_card(console: Console, card: Card) -> None:
    result = ("passed" if card.passed else "FAILED") + (", ended early" if card.is_early else "")
    console.print(
        Text(f"Report card of drill {card.drill} ({card.outage}): {result}", "bold"), soft_wrap=True
    )
    width = max(len(line.promise) for line in card.lines)
    for line in card.lines:
        words, style = VERDICTS[line.verdict]
        figure = (safe_text(line.figure), "dim")
        text = Text.assemble((f"  {words:<13}", style), f" {line.promise:<{width}}  ", figure)
        console.print(text, soft_wrap=True)
    for name in card.lost:
        console.print(Text(f"  lost: {safe_text(name)}", "bold red"), soft_wrap=True)
