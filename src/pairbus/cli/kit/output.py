"""How commands answer: JSON for programs, text for people; progress only where a person watches; orderly ends on signals."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import click

from pairbus.model.text import safe_text

EXIT_SIGNAL: Final = 128
"""Plus the number of the signal, as shells count."""


def show(value: object, as_json: bool, lines: str | Iterable[str]) -> None:
    """Print a value as one line of JSON, or else the lines for people."""
    if as_json:
        click.echo(json.dumps(value, default=str))
        return
    for line in [lines] if isinstance(lines, str) else lines:
        click.echo(line)


def cell(value: object) -> str:
    """A value in a table; a dash where there is none."""
    return "-" if value is None else safe_text(value)


def terminal_columns() -> int | None:
    """How wide the terminal is; None where the answer goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(
    rows: Sequence[Mapping[str, object]], columns: Iterable[str], width: int | None = None
) -> list[str]:
    """A table with a header of those columns that some row has. Where it is wider than ``width``: a paragraph for each row."""
    shown = [name for name in columns if any(name in row for row in rows)]
    if not shown:
        return []
    cells = [[name.replace("_", " ").upper() for name in shown]]
    cells += [[cell(row.get(name)) for name in shown] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(shown))]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return _paragraphs(rows, shown)
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _paragraphs(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> list[str]:
    """The first value of each row, and below it a line for each other value that it has."""
    lines: list[str] = []
    room = max(map(len, columns[1:]), default=0) + 1
    for row in rows:
        lines.append(cell(row.get(columns[0])))
        lines += [
            f"  {name.replace('_', ' ') + ':':<{room}} {cell(row[name])}"
            for name in columns[1:]
            if row.get(name) not in (None, "")
        ]
    return lines


def silence_logs(*names: str) -> None:
    """Hide log lines: the official client logs every failed attempt, and the command reports the outcome itself."""
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show a line to a person who waits, and remove it at the end."""
    is_watched = sys.stderr.isatty()
    if is_watched:
        click.echo(text, err=True, nl=False)
    try:
        yield
    finally:
        if is_watched:
            click.echo("\r\x1b[2K", err=True, nl=False)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while a person watches. Call it with what is done and the total."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def stop_on_signals(
    again: Callable[[], None] | None = None, apart_seconds: float = 0.0, stop: threading.Event | None = None
) -> threading.Event:
    """An event, ``stop`` or a new one, that the first SIGINT or SIGTERM sets; ``again`` is called for one that comes this much later."""
    stop = threading.Event() if stop is None else stop
    heard_at = 0.0

    def hear(_number: int, _frame: object) -> None:
        nonlocal heard_at
        if not stop.is_set():
            heard_at = time.monotonic()
            stop.set()
        elif again is not None and time.monotonic() > heard_at + apart_seconds:
            again()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    return stop


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what was begun is given back and removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(EXIT_SIGNAL + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
