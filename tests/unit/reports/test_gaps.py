"""What is hidden by times without an audit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pairbus.reports.certificate.value import Gap
from pairbus.reports.columns import CALENDAR_MS
from pairbus.reports.engines.audit_log import (
    AUDIT_BEGUN,
    AUDIT_RESUMED,
    AUDIT_STOPPED,
    BACKLOG,
    RECEIVED,
    SENT,
)
from pairbus.reports.engines.gaps import FOREVER_MS, Hidden, Note, hidden_by

NEVER = CALENDAR_MS[0]
STOPPED_MS, RESUMED_MS = 1_000, 2_000
STOPPED = Note(SENT, AUDIT_STOPPED, "contoso", STOPPED_MS, "")
RESUMED = Note(SENT, AUDIT_RESUMED, "contoso", RESUMED_MS, "1970-01-01T00:00:01.000+00:00")


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def of(role: str, note: Note) -> Note:
    return Note(role, note.kind, note.namespace, note.ms, note.detail)


def test_a_pause_ends_when_the_audit_resumes() -> None:
    assert hidden_by([STOPPED]).gaps == (Gap("contoso", at(STOPPED_MS), None, True),)
    closed = (Gap("contoso", at(STOPPED_MS), at(RESUMED_MS), True),)
    assert hidden_by([STOPPED, RESUMED]).gaps == hidden_by([RESUMED]).gaps == closed
    # In a journal that is still open no namespace is named.
    assert hidden_by([Note(SENT, AUDIT_STOPPED, "", STOPPED_MS, ""), RESUMED]).gaps == closed
    again = Note(SENT, AUDIT_STOPPED, "contoso", 3_000, "")
    assert hidden_by([STOPPED, RESUMED, again]).gaps == (*closed, Gap("contoso", at(3_000), None, True))
    elsewhere = Note(SENT, AUDIT_STOPPED, "other", STOPPED_MS, "")
    assert len(hidden_by([elsewhere, RESUMED]).gaps) == 2


@pytest.mark.parametrize("text", ["", "long ago", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_a_pause_that_began_nobody_knows_when_is_one_nevertheless(text: str) -> None:
    (gap,) = hidden_by([Note(SENT, AUDIT_RESUMED, "contoso", RESUMED_MS, text)]).gaps
    assert (gap.first, gap.last, gap.hides_sends) == (at(RESUMED_MS), at(RESUMED_MS), True)


def test_what_is_hidden_depends_on_whose_audit_paused() -> None:
    ms = RESUMED_MS
    for role, nowhere, waiting in ((SENT, NEVER, NEVER), (RECEIVED, ms, NEVER), (BACKLOG, ms, ms)):
        found = hidden_by([of(role, RESUMED)])
        assert (found.nowhere_before_ms, found.waiting_before_ms) == (nowhere, waiting)
        assert [gap.hides_sends for gap in found.gaps] == [role == SENT]
        assert hidden_by([of(role, STOPPED)]).nowhere_before_ms == (NEVER if nowhere == NEVER else FOREVER_MS)


def test_pauses_outside_of_the_question_hide_nothing() -> None:
    notes = [of(role, RESUMED) for role in (SENT, RECEIVED, BACKLOG)]
    assert hidden_by(notes, since_ms=RESUMED_MS) == Hidden()
    assert hidden_by(notes, others=["contoso"]) == Hidden()
    before = hidden_by(notes, until_ms=STOPPED_MS)
    assert not any(gap.hides_sends for gap in before.gaps)
    assert before.nowhere_before_ms == RESUMED_MS  # what was accepted before may have ended in the pause


def test_before_an_audit_log_begins_nothing_is_known_of_arrivals() -> None:
    begun = [
        Note(role, AUDIT_BEGUN, "contoso", ms, "")
        for role in (SENT, RECEIVED)
        for ms in (RESUMED_MS, STOPPED_MS)
    ]
    found = hidden_by(begun)
    assert (found.nowhere_before_ms, found.waiting_before_ms) == (STOPPED_MS, NEVER)
    assert found.relevant(0) == ()
    assert found.relevant(1) == (Gap("contoso", None, at(STOPPED_MS), False),)
