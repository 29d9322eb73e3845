"""What the page says of a pair is true: each source may be silent, and the sentence claims no more than was said."""

from __future__ import annotations

import pytest

from pairbus.web.pair_summary import DRAIN_SECONDS, FRESH_SECONDS, Backlog, SideWatch, Summary, summary

EMPTY = Backlog(0, "still")


def said(
    primary: bool | None = True,
    secondary: bool | None = True,
    states: tuple[str, ...] = (),
    backlog: Backlog | None = EMPTY,
) -> Summary:
    return summary(primary=primary, secondary=secondary, states=states, backlog=backlog)


def test_all_healthy_is_said_only_where_a_paired_client_says_so() -> None:
    assert said(states=("healthy",)).title == "All healthy"
    for other in (said(), said(primary=None, states=("healthy",)), said(states=("healthy",), backlog=None)):
        assert other.title != "All healthy"
    assert said().detail == "The backlog is empty. No paired client reports here."


@pytest.mark.parametrize("states", [(), ("healthy",)])
@pytest.mark.parametrize("backlog", [None, EMPTY, Backlog(132, "still"), Backlog(132, "shrinks")])
def test_a_dead_primary_is_named_whatever_else_is_known(
    states: tuple[str, ...], backlog: Backlog | None
) -> None:
    found = said(primary=False, states=states, backlog=backlog)
    assert found.title == "The primary does not answer"
    assert ("No paired client reports here." in found.detail) is (not states)


def test_the_backlog_is_counted_while_the_primary_is_dead() -> None:
    found = said(primary=False, backlog=Backlog(132, "still"))
    assert found.detail == "No paired client reports here. 132 messages wait in the backlog."


@pytest.mark.parametrize(
    ("drain", "title", "detail"),
    [
        ("shrinks", "Draining the backlog", "132 messages wait in the backlog."),
        ("still", "132 messages wait in the backlog", "Nobody drains it: no message was taken from it for 10 seconds."),
        ("taken", "132 messages wait in the backlog", "A receiver takes messages from it, but it does not become smaller."),
        ("unknown", "132 messages wait in the backlog", "Whether somebody drains it is not known yet."),
    ],
)  # fmt: skip
def test_draining_is_said_only_of_a_backlog_that_shrinks(drain: str, title: str, detail: str) -> None:
    found = said(states=("healthy",), backlog=Backlog(132, drain))  # type: ignore[arg-type]
    assert (found.title, found.detail) == (title, detail)


def test_what_the_clients_see_comes_before_what_the_page_sees() -> None:
    assert said(primary=False, states=("failed over", "suspect")).title == "1 entity failed over"
    assert said(primary=False, states=("suspect", "suspect")).title == "2 entities suspect"
    assert said(states=("refusing", "healthy")).title == "1 entity refuses sends"


def test_a_dead_secondary_is_named_too() -> None:
    assert said(secondary=False, backlog=None, states=("healthy",)).title == "The secondary does not answer"
    assert said(primary=False, secondary=False, backlog=None).title == "Neither namespace answers"
    assert said(None, secondary=False, states=("failed over",)).detail.startswith("The secondary does not")


def test_an_old_answer_is_no_answer() -> None:
    watch = SideWatch()
    assert watch.is_answering(0) is None
    watch.note(0, is_answering=True)
    assert watch.is_answering(FRESH_SECONDS) is True
    assert watch.is_answering(FRESH_SECONDS + 1) is None
    watch.note(20, is_answering=False)
    assert watch.is_answering(20) is False


def watched(*samples: tuple[float, int, int]) -> str | None:
    watch = SideWatch()
    for at, waiting, taken in samples:
        watch.note_backlog(at, waiting, taken)
    found = watch.backlog(samples[-1][0])
    return None if found is None else found.drain


def test_a_backlog_shrinks_if_it_did_so_lately() -> None:
    assert watched((0, 10, 0)) == "unknown"
    assert watched((0, 10, 0), (1, 9, 1)) == "shrinks"
    assert watched((0, 10, 0), (1, 12, 5)) == "taken"
    assert watched((0, 10, 0), (1, 9, 1), *((2 + n, 9, 1) for n in range(int(DRAIN_SECONDS) + 1))) == "still"


def test_a_broker_that_counts_from_0_again_and_a_time_without_answers_begin_anew() -> None:
    still = [(float(n), 10, 3) for n in range(int(DRAIN_SECONDS) + 1)]
    assert watched(*still) == "still"
    assert watched(*still, (12, 10, 0)) == "unknown"
    assert watched(*still, (40, 10, 3)) == "unknown"


def test_a_backlog_that_was_not_seen_lately_is_unknown() -> None:
    watch = SideWatch()
    assert watch.backlog(0) is None
    watch.note_backlog(0, 10, 0)
    assert watch.backlog(FRESH_SECONDS + 1) is None
