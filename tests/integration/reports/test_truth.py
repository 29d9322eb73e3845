"""Stories in which a certificate once said what was not true, each by name. ``copies_kit`` has them in every mixture, for both engines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from pairbus.errors import UsageError
from pairbus.reports.certificate.value import HOLDS, LOSS, UNPROVEN, Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.inputs import find_inputs
from pairbus.reports.views.certificate import certificate_document
from tests.integration.reports.ledger_kit import BACKLOG_QUEUE, NOON_MS, parked, row, write

Rows = list[dict[str, object]]
MINUTE_MS = 60_000
NO_MESSAGE: dict[str, Any] = {"entity": "", "sha256": "", "sequence_number": 0}


def at(minutes: int) -> int:
    return NOON_MS + minutes * MINUTE_MS


def certified(tmp_path: Path, primary: Rows, secondary: Rows, **given: Any) -> Certificate:
    """The certificate of both brokers' audit logs, given as the documentation says."""
    listings = {role.replace("_", "-"): given.pop(role) for role in ("dead_letter",) if role in given}
    backlog = given.pop("backlog", secondary)
    inputs = {
        role: find_inputs(None, [write(tmp_path / f"{role}-{number}.parquet", rows) for number, rows in enumerate(parts)], AUDIT)
        for role, parts in {
            "sent": [primary, secondary],
            "received": [primary],
            "backlog": [backlog],
            **{role: [rows] for role, rows in listings.items()},
        }.items()
    }  # fmt: skip
    return arrow.reconcile(inputs, **given).certificate


def fates(found: Certificate) -> dict[str, int]:
    return {fate: number for fate, number in found.fates.items() if number}


def paused(namespace: str, stopped: int, resumed: int | None) -> Rows:
    """What an audit log has of a time without audit."""
    rows = [row("audit-stopped", "", namespace=namespace, time=at(stopped), **NO_MESSAGE)]
    if resumed is not None:
        detail = datetime.fromtimestamp(at(stopped) / 1000, UTC).isoformat(timespec="milliseconds")
        rows.append(row("audit-resumed", "", namespace=namespace, time=at(resumed), detail=detail, **NO_MESSAGE))  # fmt: skip
    return rows


def in_secondary(kind: str, message_id: str, minutes: int, **changes: object) -> dict[str, object]:
    return parked(kind, message_id, time=at(minutes), namespace="secondary", **changes)


# -- times without audit ------------------------------------------------------------------------------


@pytest.mark.parametrize("resumed", [20, None])
def test_what_waited_when_the_audit_stopped_may_be_gone(tmp_path: Path, resumed: int | None) -> None:
    """Its queue may have been purged in that time: it must not be said that it waits."""
    pause = paused("secondary", 10, resumed)
    secondary = [in_secondary("sent", "a", 1), *pause, in_secondary("sent", "b", 30)]
    found = certified(tmp_path, [row("sent", "direct", time=at(2))], secondary)
    assert found.verdict == UNPROVEN
    later = {"in_backlog": 1, "unproven": 1} if resumed else {"unproven": 2}
    assert fates(found) == {"arrived": 1, **later}
    document = certificate_document(found)
    assert "Nothing is proven" in document.sentence
    assert "secondary from 2026-11-15T12:10:00.000Z" in document.detail
    assert ("to 2026-11-15T12:20:00.000Z" in document.detail) == bool(resumed)
    assert ("--since 2026-11-15T12:20:00.000Z" in document.detail) == bool(resumed)

    # A listing of what is there now proves it. Sends of that time are still missing.
    listing = [in_secondary("held", name, 1, sequence_number=at) for at, name in enumerate("ab", 1)]
    listed = certified(tmp_path, [row("sent", "direct", time=at(2))], secondary, backlog=listing)
    assert (fates(listed), listed.verdict) == ({"arrived": 1, "in_backlog": 2}, UNPROVEN)
    assert "there was no audit" in certificate_document(listed).sentence

    if resumed:
        since = datetime.fromtimestamp(at(resumed) / 1000, UTC)
        after = certified(tmp_path, [row("sent", "direct", time=at(2))], secondary, since=since)
        assert (fates(after), after.verdict, after.gaps) == ({"in_backlog": 1}, HOLDS, ())


def test_messages_accepted_without_audit_are_not_proven_by_the_others(tmp_path: Path) -> None:
    primary = [row("sent", "a", time=at(1)), *paused("contoso", 10, 20), row("sent", "b", time=at(30))]
    found = certified(tmp_path, primary, [])
    assert (fates(found), found.verdict) == ({"arrived": 2}, UNPROVEN)
    until = datetime.fromtimestamp(at(10) / 1000, UTC)
    assert certified(tmp_path, primary, [], until=until).verdict == HOLDS


def test_a_loss_after_the_time_without_audit_is_a_loss(tmp_path: Path) -> None:
    gone = [in_secondary("sent", "b", 30), in_secondary("purged", "b", 31)]
    found = certified(tmp_path, paused("contoso", 10, 20), gone)
    assert (fates(found), found.verdict) == ({"lost": 1}, LOSS)


def test_what_arrived_before_an_audit_log_begins_is_not_called_lost(tmp_path: Path) -> None:
    secondary = [in_secondary("sent", "a", 1), in_secondary("completed", "a", 2)]
    secondary += [in_secondary("sent", "b", 6), in_secondary("completed", "b", 7)]
    begun = row("audit-begun", "", time=at(5), **NO_MESSAGE)
    found = certified(tmp_path, [begun, row("sent", "b", time=at(7))], secondary)
    assert (fates(found), found.verdict) == ({"arrived": 1, "unproven": 1}, UNPROVEN)
    assert "contoso before 2026-11-15T12:05:00.000Z, when its audit log begins" in certificate_document(found).detail  # fmt: skip
    # It has nothing to do with what was accepted since.
    found = certified(tmp_path, [begun, row("sent", "b", time=at(7))], secondary[2:])
    assert (found.verdict, found.gaps) == (HOLDS, ())
    assert certified(tmp_path, [begun], secondary[2:]).verdict == LOSS


def test_an_audit_log_without_messages_still_names_its_primary(tmp_path: Path) -> None:
    """A new pair in its outage: the primary's log holds nothing but its beginning."""
    begun = row("audit-begun", "", time=at(0), **NO_MESSAGE)
    own = row("sent", "r1", time=at(1), namespace="secondary", entity="reports")
    done = row("completed", "r1", time=at(2), namespace="secondary", entity="reports")
    found = certified(tmp_path, [begun], [own, done, in_secondary("sent", "p1", 3)])
    assert (fates(found), found.verdict) == ({"in_backlog": 1}, HOLDS)

    # What another primary has parked there is not what this certificate is about.
    of_other = {"entity": BACKLOG_QUEUE.replace("contoso", "fourth", 1)}
    found = certified(tmp_path, [begun], [in_secondary("sent", "g1", 3, **of_other)])
    assert found.verdict == UNPROVEN
    assert "--primary" in certificate_document(found).detail


# -- messages without an id ---------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [0, 9])
@pytest.mark.parametrize("end", ["purged", "received-and-deleted", "completed"])
def test_a_direct_message_without_an_id_does_not_stand_for_a_parked_one(
    tmp_path: Path, end: str, minutes: int
) -> None:
    secondary = [in_secondary("sent", "", 1), in_secondary(end, "", 2)]
    found = certified(tmp_path, [row("sent", "", time=at(minutes))], secondary)
    assert (fates(found), found.verdict) == ({"arrived": 1, "lost": 1}, LOSS)


def test_a_drained_message_without_an_id_is_not_lost(tmp_path: Path) -> None:
    direct = [row("sent", "", time=at(minutes)) for minutes in (0, 0, 9)]
    secondary = [in_secondary("sent", "", 1), in_secondary("completed", "", 3)]
    found = certified(tmp_path, [*direct, row("sent", "", time=at(2))], secondary)
    assert (fates(found), found.verdict) == ({"arrived": 4}, HOLDS)


ASIDE = {"entity": f"{BACKLOG_QUEUE}/$DeadLetterQueue"}


def set_aside(minutes: int, taken: str | None = "completed") -> Rows:
    """A parked message without an id that was dead-lettered, and taken out of the dead-letter queue."""
    rows = [in_secondary("sent", "", minutes), in_secondary("dead-lettered", "", minutes + 1, detail="DestinationNotFound")]  # fmt: skip
    return rows if taken is None else [*rows, in_secondary(taken, "", minutes + 3, **ASIDE)]


@pytest.mark.parametrize("minutes", [3, 9])
def test_a_message_without_an_id_that_was_sent_again_by_hand_is_not_called_lost(
    tmp_path: Path, minutes: int
) -> None:
    """An operator takes it out of the dead-letter queue, and sends it to its destination before or after that."""
    found = certified(tmp_path, [row("sent", "", time=at(minutes))], set_aside(1))
    assert (fates(found), found.verdict) == ({"arrived": 1, "sent_again": 1}, UNPROVEN)
    assert "perhaps sent again" in certificate_document(found).sentence


def test_a_redriven_message_without_an_id_is_not_called_lost(tmp_path: Path) -> None:
    secondary = [*set_aside(1), in_secondary("sent", "", 3), in_secondary("completed", "", 6)]
    found = certified(tmp_path, [row("sent", "", time=at(5))], secondary)
    assert (fates(found), found.verdict) == ({"arrived": 1, "sent_again": 1}, UNPROVEN)


@pytest.mark.parametrize(
    ("secondary", "direct", "expected"),
    [
        # Nothing was sent after it was dead-lettered.
        (set_aside(1), [0], {"arrived": 1, "lost": 1}),
        (set_aside(1), [], {"lost": 1}),
        # It was deleted, not taken.
        (set_aside(1, "purged"), [9], {"arrived": 1, "lost": 1}),
        # One send does not stand for two messages.
        ([*set_aside(1), *set_aside(2)], [9], {"arrived": 1, "sent_again": 1, "lost": 1}),
        # What was parked before and drained later was not sent again.
        (
            [in_secondary("sent", "", 0), *set_aside(1), in_secondary("completed", "", 8)],
            [7],
            {"arrived": 1, "lost": 1},
        ),
        # What was sent again is lost, too.
        ([*set_aside(1), in_secondary("sent", "", 5), in_secondary("purged", "", 6)], [], {"sent_again": 1, "lost": 1}),
    ],
)  # fmt: skip
def test_a_message_without_an_id_that_nobody_can_have_sent_again_is_lost(
    tmp_path: Path, secondary: Rows, direct: list[int], expected: dict[str, int]
) -> None:
    found = certified(tmp_path, [row("sent", "", time=at(minutes)) for minutes in direct], secondary)
    assert (fates(found), found.verdict) == (expected, LOSS)


def test_a_message_with_an_id_that_was_sent_again_is_there(tmp_path: Path) -> None:
    secondary = [{**entry, "message_id": "a"} for entry in set_aside(1)]
    found = certified(tmp_path, [row("sent", "a", time=at(9))], secondary)
    assert (fates(found), found.verdict) == ({"arrived": 1}, HOLDS)


# -- copies of one message ----------------------------------------------------------------------------


def test_a_copy_cancelled_at_the_primary_does_not_stand_for_a_destroyed_one(tmp_path: Path) -> None:
    """Nor does it if another copy expired in the backlog."""
    primary = [row("sent", "a", time=at(0)), row("cancelled", "a", time=at(1))]
    secondary = [
        in_secondary("sent", "a", 2),
        in_secondary("dead-lettered", "a", 3, detail="TTLExpiredException"),
        in_secondary("sent", "a", 4),
        in_secondary("purged", "a", 5),
    ]
    found = certified(tmp_path, primary, secondary)
    assert (fates(found), found.verdict) == ({"arrived": 1, "expired": 1, "lost": 1}, LOSS)


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_what_is_sent_directly_after_a_parked_copy_ended_is_counted_too(tmp_path: Path, end: str) -> None:
    secondary = [in_secondary("sent", "a", 1), in_secondary(end, "a", 2)]
    found = certified(tmp_path, [row("sent", "a", time=at(3))], secondary)
    assert (fates(found), found.accepted) == ({"arrived": 1, end: 1}, 2)


def test_a_listing_that_shows_a_message_twice_counts_it_once(tmp_path: Path) -> None:
    secondary = [in_secondary("sent", "", 1), in_secondary("sent", "", 1)]
    held = in_secondary("held", "", 1, sequence_number=7)
    found = certified(tmp_path, [], secondary, backlog=[held, held])
    assert (fates(found), found.verdict) == ({"in_backlog": 1, "lost": 1}, LOSS)
    aside = {**held, "entity": f"{BACKLOG_QUEUE}/$DeadLetterQueue"}
    found = certified(tmp_path, [], secondary, backlog=[], dead_letter=[aside, aside])
    assert (fates(found), found.verdict) == ({"set_aside": 1, "lost": 1}, LOSS)


# -- listings and logs that are not what they should be -----------------------------------------------


@pytest.mark.parametrize("where", ["backlog", "dead_letter"])
def test_an_old_listing_beside_the_audit_log_does_not_hide_a_loss(tmp_path: Path, where: str) -> None:
    """The audit log says that the message has left; it is there only if the audit log does not know it."""
    aside = f"{BACKLOG_QUEUE}/$DeadLetterQueue"
    secondary = [in_secondary("sent", "a", 1), in_secondary("purged", "a", 3)]
    listed = in_secondary("held", "a", 2, sequence_number=7)
    given: dict[str, Rows] = {"backlog": [*secondary, listed]}
    if where == "dead_letter":
        secondary[1:] = [
            in_secondary("dead-lettered", "a", 2, detail="Refused"),
            in_secondary("purged", "a", 3, entity=aside),
        ]
        given = {"dead_letter": [{**listed, "entity": aside}]}
    found = certified(tmp_path, [], secondary, **given)
    assert (fates(found), found.verdict) == ({"lost": 1}, LOSS)
    if where == "backlog":
        found = certified(tmp_path, [], secondary[:1], backlog=[listed])
        assert (fates(found), found.verdict) == ({"in_backlog": 1}, HOLDS)


def test_without_the_sends_of_the_secondary_nothing_is_proven(tmp_path: Path) -> None:
    secondary = [in_secondary("sent", "a", 1), in_secondary("purged", "a", 2)]
    found = certified(tmp_path, [row("sent", "b")], [], backlog=secondary)
    assert (fates(found), found.verdict, found.unasked) == ({"arrived": 1}, UNPROVEN, ("secondary",))
    document = certificate_document(found)
    assert "those of secondary were not" in document.sentence
    assert "give the audit log of secondary as --sent too" in document.detail
    # What is lost among the sends that were given is lost.
    sends = [in_secondary("sent", "c", 1)]
    assert (
        certified(tmp_path, sends, [], backlog=[{**one, "namespace": "third"} for one in secondary]).verdict
        == LOSS
    )


@pytest.mark.parametrize(
    ("there", "arrived", "dead"),
    [
        ([("completed", "/$DeadLetterQueue")], 1, 1),
        ([("dead-lettered", "")], 1, 1),
        ([("dead-lettered", ""), ("completed", "/$DeadLetterQueue")], 1, 1),
        ([("sent", ""), ("dead-lettered", ""), ("completed", "/$DeadLetterQueue")], 1, 1),
        ([("completed", ""), ("completed", "/$DeadLetterQueue")], 1, 0),
        ([("completed", "/Subscriptions/a/$DeadLetterQueue"), ("completed", "/Subscriptions/b/$DeadLetterQueue")], 1, 1),
        ([("completed", "")], 1, 0),
        ([("purged", "/$DeadLetterQueue")], 0, 0),
    ],
)  # fmt: skip
def test_a_dead_letter_of_its_destination_has_arrived(
    tmp_path: Path, there: list[tuple[str, str]], arrived: int, dead: int
) -> None:
    """A list of receives need not say that the message was stored."""
    sent = write(tmp_path / "sent.parquet", [row("accepted", "m", entity="orders", time=at(1))])
    received = [row(kind, "m", entity=f"orders{path}", time=at(2)) for kind, path in there]
    inputs = {
        "sent": find_inputs(None, [sent], AUDIT),
        "received": find_inputs(None, [write(tmp_path / "received.parquet", received)], AUDIT),
    }
    found = arrow.reconcile(inputs).certificate
    assert fates(found) == ({"arrived": 1} if arrived else {"lost": 1})
    assert found.at_destination["dead_there"] == dead


def test_bytes_that_are_no_text_are_a_damaged_file(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.parquet", [row("accepted", "m", entity="orders", time=at(1))])
    table = parquet.read_table(whole)
    text = pyarrow.array([b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    column = table.column_names.index("message_id")
    hurt = tmp_path / "hurt.parquet"
    parquet.write_table(table.set_column(column, "message_id", text), hurt)
    inputs = {
        "sent": find_inputs(None, [str(hurt)], AUDIT),
        "received": find_inputs(None, [whole], AUDIT),
    }
    with pytest.raises(UsageError, match=r"hurt\.parquet cannot be read: it is damaged"):
        arrow.reconcile(inputs)


# -- when a message was accepted -----------------------------------------------------------------------


@pytest.mark.parametrize("is_spooled", [False, True])
def test_a_message_that_the_primary_stored_before_it_was_parked_was_accepted_then(
    tmp_path: Path, is_spooled: bool
) -> None:
    """An attempt without an answer, or a spooled message that was delivered and not removed: it overtakes nothing, and no clock differs."""
    session = {"session_id": "s"}
    primary = [
        row("sent", name, time=at(minutes), sequence_number=minutes, **session)
        for name, minutes in (("a", 1), ("b", 2), ("a", 9))
    ]
    secondary = [in_secondary("sent", "a", 5, **session), in_secondary("completed", "a", 9, **session)]
    if is_spooled:
        primary, secondary = primary[:2], secondary[:1]  # its copy still waits
    found = certified(tmp_path, primary, secondary)

    assert found.overtaken == 0
    assert not any("clocks" in bar.span for bar in found.delays if bar.direct + bar.detoured)
    assert [outage.first.timestamp() * 1000 for outage in found.outages] == [at(5)]
    assert found.fates["arrived"] == 2
