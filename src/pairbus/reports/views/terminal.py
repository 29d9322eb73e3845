"""Reports on a terminal. Of a document the verdict comes first, then the sections as tables; plots are left out, except bars."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pairbus.reports.bill.estimate import Estimate
from pairbus.reports.bill.money import shown
from pairbus.reports.bill.what_if import Replay
from pairbus.reports.text import many
from pairbus.reports.views.document import (
    Bars,
    Columns,
    Document,
    Notes,
    Part,
    Section,
    ShareBar,
    Table,
    shown_text,
)

TEXT_WIDTH_MIN = 12
"""Columns that a text needs at least; it is folded where it is longer."""
WIDTH_WITHOUT_TERMINAL = 160
"""Columns for a pipe or file: names stay on one line, so that they can be searched for."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The library would end the process with 1, which says that something is lost.
        raise BrokenPipeError


def print_document(document: Document) -> None:
    console = _Console()
    if not console.is_terminal:
        console = _Console(width=WIDTH_WITHOUT_TERMINAL)
    for line in (document.sentence, document.detail):
        _line(console, line)
    for section in document.sections:
        _print(console, section)


def _print(console: Console, section: Section) -> None:
    shown = [
        part for part in section.parts if not isinstance(part, ShareBar | Columns) and not _is_empty(part)
    ]
    if not shown:
        return
    console.print()
    console.print(Text(shown_text(section.title), "bold"))
    if section.note:
        _line(console, section.note)
    for part in shown:
        match part:
            case Table():
                _print_table(console, part)
            case Bars():
                _print_table(console, Table(("", ""), [(name, value) for name, _, value in part.rows], (1,)))
            case Notes():
                for text in part.texts:
                    _line(console, text)


def _is_empty(part: Part) -> bool:
    return (isinstance(part, Notes) and not part.texts) or (isinstance(part, Table | Bars) and not part.rows)


def _line(console: Console, text: str) -> None:
    if text:
        console.print(Text(shown_text(text)), soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    """As columns where they fit, else row by row: a number is never cut, for a part of it would be another number."""
    foot = table.foot or [""] * len(table.head)
    whole = [at in table.numeric or at in table.unbroken for at in range(len(table.head))]
    widths = [
        max((len(shown_text(row[at])) for row in (*table.rows, foot)), default=0)
        if is_whole
        else TEXT_WIDTH_MIN
        for at, is_whole in enumerate(whole)
    ]
    if sum(widths) + 3 * len(widths) + 1 > console.width:
        _print_rows(console, table, [*table.rows, *([foot] if table.foot else [])])
        return
    made = RichTable(show_header=any(table.head), show_footer=bool(table.foot))
    for at, (name, below) in enumerate(zip(table.head, foot, strict=True)):
        made.add_column(
            name,
            Text(shown_text(below)),
            justify="right" if at in table.numeric else "left",
            overflow="fold",
            min_width=widths[at] if whole[at] else None,
        )
    for row in table.rows:
        style = "bold red" if table.alarm and row[0] == table.alarm else ""
        made.add_row(*[Text(shown_text(cell)) for cell in row], style=style)
    console.print(made)


def _print_rows(console: Console, table: Table, rows: Sequence[Sequence[object]]) -> None:
    for row in rows:
        for name, cell in zip(table.head, row, strict=True):
            if shown_text(cell):
                console.print(
                    Text(f"  {name}: {shown_text(cell)}" if name else f"  {shown_text(cell)}"), soft_wrap=True
                )
        console.print()


def estimate_lines(found: Estimate) -> list[str]:
    """An estimate: every figure with how it was calculated."""
    lines = [f"{figure.value:>16,}  {figure.name:<34} = {figure.why}" for figure in found.figures]
    bill = found.bill
    if bill is None:
        return lines
    lines.append(f"\nThe bill of {bill.month}")
    lines += [f"{shown(line.amount):>16}  {line.meter:<34} = {line.text}" for line in bill.lines]
    lines.append(f"{shown(bill.known, bill.currency):>20}  in all")
    lines += [f"         unknown  {name}" for name in bill.unknown]
    lines.append(f"{shown(found.pairing_amount, bill.currency):>20}  of it by the pairing")
    return lines


def replay_lines(found: Replay, paid: Decimal | None, would: Decimal | None) -> list[str]:
    """A what-if: what was recorded, what each change does, what it comes to."""
    recorded = found.recorded
    counts = f"{many(len(recorded.detours), 'outage')}, {many(recorded.queues, 'backlog queue')}"
    return [
        f"recorded: {many(recorded.operations, 'operation')} ({shown(paid)}), {counts}",
        *[
            f"{difference.name}: {difference.operations:+,} operations, {difference.messages:+,} through the backlog, "
            f"{difference.refused:+,} refused\n    {difference.why}"
            for difference in found.differences
        ],
        f"supposed: {many(found.operations, 'operation')} ({shown(would)})",
    ]
