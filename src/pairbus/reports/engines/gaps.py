"""Times that an audit log says nothing about, and what they hide. Both engines collect the rows in which an audit log speaks of itself, and take the
answer from here (decision 0119).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.reports.certificate.value import EPOCH, Gap
from pairbus.reports.columns import CALENDAR_MS
from pairbus.reports.engines.audit_log import (
    AUDIT_BEGUN,
    AUDIT_RESUMED,
    AUDIT_STOPPED,
    BACKLOG,
    RECEIVED,
    SENT,
)

FOREVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True)
class Note:
    """A row in which an audit log speaks of itself."""

    role: str
    kind: str
    namespace: str
    """As ``namespace_key`` gives it; empty if the row names none."""
    ms: int
    detail: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """What is not known because of gaps."""

    gaps: tuple[Gap, ...] = ()
    nowhere_before_ms: int = CALENDAR_MS[0]
    """A message that was accepted before this and is nowhere may have arrived, or ended, where no row tells of it."""
    waiting_before_ms: int = CALENDAR_MS[0]
    """A message that was accepted before this, and waits in the backlog as far as the audit log tells, may have left since."""

    def relevant(self, unproven: int) -> tuple[Gap, ...]:
        """The gaps that a certificate names. That an audit log begins at some time matters only if messages are unproven."""
        return tuple(gap for gap in self.gaps if unproven or gap.first is not None)


@dataclass(frozen=True, slots=True)
class _Span:
    role: str
    namespace: str
    begin: int | None
    end: int


def hidden_by(
    notes: Iterable[Note],
    since_ms: int | None = None,
    until_ms: int | None = None,
    others: Iterable[str] = (),
) -> Hidden:
    """The gaps that matter to messages accepted from ``since_ms`` on and before ``until_ms``. Those of the namespaces ``others`` do not."""
    left_out = set(others)
    kept = {note for note in notes if note.namespace not in left_out}
    spans = [
        span
        for span in (*_begins(kept), *_pauses(kept))
        if span.end > (since_ms if since_ms is not None else -1)
    ]
    fates = [span for span in spans if span.role in (RECEIVED, BACKLOG)]
    waiting = [span for span in fates if span.role == BACKLOG and span.begin is not None]
    found: dict[tuple[str, int, int], bool] = {}
    for span in spans:
        if span.begin is None and span.role == SENT:
            continue  # what was accepted before is not asked about
        key = span.namespace, -1 if span.begin is None else span.begin, span.end
        hides_sends = span.role == SENT and span.begin is not None
        found[key] = found.get(key, False) or (hides_sends and (until_ms is None or key[1] < until_ms))
    return Hidden(
        tuple(
            Gap(
                namespace,
                None if begin < 0 else _time(begin),
                None if end == FOREVER_MS else _time(end),
                hides_sends,
            )
            for (namespace, begin, end), hides_sends in sorted(found.items())
        ),
        max((span.end for span in fates), default=CALENDAR_MS[0]),
        max((span.end for span in waiting), default=CALENDAR_MS[0]),
    )


def _begins(notes: Iterable[Note]) -> list[_Span]:
    """What happened before an audit log began."""
    first: dict[tuple[str, str], int] = {}
    for note in notes:
        if note.kind == AUDIT_BEGUN:
            key = note.role, note.namespace
            first[key] = min(note.ms, first.get(key, note.ms))
    return [_Span(role, namespace, None, ms) for (role, namespace), ms in first.items()]


def _pauses(notes: Iterable[Note]) -> list[_Span]:
    """What happened while a broker ran without an audit, up to now if it has not resumed."""
    closed = {
        _Span(note.role, note.namespace, _ms(note.detail, note.ms), note.ms)
        for note in notes
        if note.kind == AUDIT_RESUMED
    }
    open_ones = {
        _Span(note.role, note.namespace, note.ms, FOREVER_MS)
        for note in notes
        if note.kind == AUDIT_STOPPED and not any(_resumes(span, note) for span in closed)
    }
    return [*closed, *open_ones]


def _resumes(span: _Span, note: Note) -> bool:
    is_same = span.namespace == note.namespace or "" in (span.namespace, note.namespace)
    return is_same and (span.role, span.begin) == (note.role, note.ms)


def _ms(text: str, default: int) -> int:
    """When an audit stopped, as the row of its resumption says it; ``default`` if it says no time."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return default
    ms = (at.replace(tzinfo=at.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)
    return ms if CALENDAR_MS[0] <= ms <= CALENDAR_MS[1] else default


def _time(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)
