"""What became of every accepted send, from the one row of each message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.engines.arrow.older import adjusted, of_accepted, own_arrivals, own_dead
from pairbus.reports.engines.arrow.rows import LONG
from pairbus.reports.engines.audit_log import DELIVERED_TOPIC, KEY, PLACES
from pairbus.reports.engines.gaps import Hidden

ZERO: Final = pa.scalar(0, LONG)
ONE: Final = pa.scalar(1, LONG)


def fates_of(
    grouped: pa.Table, until_ms: int | None, hidden: Hidden, logged: Collection[str] | None = None
) -> pa.Table:
    """What became of every accepted send. A message in the backlog was confirmed to its sender there: what the primary then accepted of it
    was the drain's send, or the send whose answer never came. ``logged``: if only copies count that were accepted from some time on, the destinations
    of which a ledger says what they stored.
    """
    column = {name: grouped[name] for name in grouped.column_names}
    if logged is not None:
        adjusted(column, logged)
    column["sent_backlog"], column["entered"] = _first_sends(column)
    is_backlog_send = pc.greater(column["sent_backlog"], 0)
    handed_out = pc.add(column["delivered"], column[DELIVERED_TOPIC])
    # Only a message that has arrived can be a dead letter of its destination. Each subscription of a topic may have one, so they prove one arrival.
    is_handed_out = pc.greater(handed_out, 0)
    taken = pc.if_else(is_handed_out, ZERO, column["dead_taken"])
    dead_there = pc.max_element_wise(column["dead_there"], taken)
    arrivals = pc.if_else(is_handed_out, handed_out, pc.min_element_wise(dead_there, ONE))
    foreign = _forwarded_in(column)
    arrivals = pc.add(_more_than(arrivals, column["forwarded_in"]), column["by_way"])
    found = pc.if_else(pc.greater(column["stored"], 0), column["stored"], arrivals)
    # Parked after its destination cancelled it: what was cancelled was another copy, accepted before.
    is_again = pc.fill_null(pc.greater(column["last_backlog_ms"], column["cancelled_ms"]), False)
    cancelled_before = pc.if_else(is_again, column["cancelled_there"], ZERO)
    # An arrival of an older copy tells that its id and body are there, and stands for no other one.
    with_older = found
    if logged is not None:
        found = own_arrivals(column, found, logged)
    parked = pc.add(column["sent_backlog"], _beside_parked(column, found, cancelled_before))
    accepted = pc.if_else(is_backlog_send, parked, column["sent_direct"])
    # What is in a spool was confirmed to its sender by the spool, whether a ledger of sends has it or not.
    accepted = pc.max_element_wise(accepted, column["spool"])
    if logged is not None:
        found = of_accepted(column, found, accepted)
    arrived = pc.min_element_wise(accepted, found)
    missing = pc.subtract(accepted, arrived)
    confirmed_ms = pc.coalesce(column["backlog_ms"], column["direct_ms"], column["spool_ms"])
    # The primary may have stored a message whose sender got no answer, and parked it therefore. The drain's send is later than the parking.
    stored_ms = pc.min_element_wise(column["backlog_ms"], column["direct_ms"])
    accepted_ms = pc.coalesce(stored_ms, column["spool_ms"])
    # Each place takes what the places before it left.
    fates: dict[str, Any] = {}
    elsewhere = ZERO
    is_waiting_hidden = pc.fill_null(pc.less(confirmed_ms, hidden.waiting_before_ms), False)
    places, kept = _places(column, foreign, _more_than(with_older, cancelled_before), is_waiting_hidden)
    if logged is not None:
        places, _ = _places(own_dead(column, logged), foreign, found, is_waiting_hidden)
    for fate in PLACES:
        left = pc.subtract(missing, pc.min_element_wise(missing, elsewhere))
        fates[fate] = pc.min_element_wise(left, places[fate])
        elsewhere = pc.add(places[fate], elsewhere)
    rest = pc.subtract(missing, pc.min_element_wise(missing, elsewhere))
    # The same id and body accepted again and there once is one message, recorded twice.
    is_absorbed = pc.and_(pc.not_equal(column["message_id"], ""), pc.greater(kept, ZERO))
    is_late = pc.is_null(accepted)  # none
    if until_ms is not None:
        is_late = pc.fill_null(pc.greater_equal(accepted_ms, until_ms), False)
    is_hidden = pc.fill_null(pc.less(confirmed_ms, hidden.nowhere_before_ms), False)
    # So is a copy that its destination dropped: it had accepted one with this id before, perhaps before the rows.
    dropped = pc.if_else(pc.equal(column["message_id"], ""), ZERO, column["dropped"])
    absorbed = pc.if_else(is_absorbed, rest, pc.min_element_wise(rest, dropped))
    nowhere = pc.subtract(rest, absorbed)
    lost = pc.if_else(is_late, ZERO, nowhere)
    unproven = pc.if_else(is_hidden, lost, ZERO)
    lost = pc.subtract(lost, unproven)
    sent_again = pc.min_element_wise(lost, _sent_again(column))
    is_known = pc.greater(accepted, 0)
    return pa.table(
        {
            **{name: column[name] for name in KEY},
            "accepted": accepted,
            "found": found,
            "arrived": arrived,
            **fates,
            "in_flight": pc.if_else(is_late, nowhere, ZERO),
            "unproven": unproven,
            "sent_again": sent_again,
            "lost": pc.subtract(lost, sent_again),
            "absorbed": absorbed,
            "repeated": pc.if_else(is_known, pc.subtract(found, arrived), ZERO),
            "unexpected": pc.if_else(is_known, ZERO, found),
            "completed_there": pc.min_element_wise(arrived, handed_out),
            "dead_there": pc.min_element_wise(arrived, dead_there),
            "expired_there": pc.min_element_wise(arrived, column["expired_there"]),
            "accepted_ms": accepted_ms,
            "confirmed_ms": confirmed_ms,
            "arrived_ms": pc.if_else(
                pc.greater(found, 0), pc.coalesce(column["stored_ms"], column["delivered_ms"]), None
            ),
            "stored_sequence": column["stored_sequence"],
            "session": column["session"],
            "is_detoured": pc.or_(is_backlog_send, pc.greater(column["parked"], 0)),
        }
    )


def _forwarded_in(column: Mapping[str, Any]) -> Any:
    """How many copies auto-forwarding brought from other entities. Nothing was sent here for them: they arrived at the entity that they were sent to.

    A sender may say that it sent directly what its namespace did not store here: a send by way of another entity, in a transaction, has a row
    there, and a row that it was forwarded. That is its arrival.
    """
    return pc.subtract(column["forwarded_in"], column["by_way"])


def _first_sends(column: Mapping[str, Any]) -> tuple[Any, Any]:
    """How many sends the backlog confirmed to senders, and how many of them its audit log has. A dead letter that was put back is no further one. If
    nothing tells of a first one, it was sent before the rows, or in a time without audit: then the message must not be left out.
    """
    redriven, is_nameless = column["redriven"], pc.equal(column["message_id"], "")
    sends = pc.if_else(is_nameless, redriven, pc.min_element_wise(redriven, ONE))
    is_known = pc.or_(pc.greater(column["sent_backlog"], 0), pc.equal(redriven, 0))
    return (
        pc.if_else(is_known, column["sent_backlog"], sends),
        pc.if_else(is_known, column["entered"], column["entered_again"]),
    )


def _sent_again(column: Mapping[str, Any]) -> Any:
    """How many messages without an id may have been taken out of a dead-letter queue of the backlog and sent again: the second send is then the same message,
    and nothing tells it from another one.
    """
    inside = _more_than(pc.subtract(column["sent_direct"], column["direct_outside"]), column["drained"])
    inside = pc.max_element_wise(inside, pc.subtract(column["direct_apart"], column["direct_outside"]))
    sends = pc.add(pc.add(column["parked_again"], column["direct_again"]), inside)
    is_nameless = pc.equal(column["message_id"], "")
    # Those that are known to have been put back explain themselves.
    taken = _more_than(column["taken"], pc.max_element_wise(column["redriven"], column["entered_again"]))
    return pc.if_else(is_nameless, pc.min_element_wise(taken, sends), ZERO)


def _more_than(one: Any, other: Any) -> Any:
    return pc.max_element_wise(pc.subtract(one, other), ZERO)


def _beside_parked(column: Mapping[str, Any], found: Any, cancelled_before: Any) -> Any:
    """How many copies of a parked message its destination accepted itself, at least: neither from the drain nor in a send whose answer never came."""

    def where(condition: Any, value: Any) -> Any:
        return pc.if_else(pc.fill_null(condition, False), value, ZERO)

    parked, direct, cancelled = column["sent_backlog"], column["sent_direct"], column["cancelled_there"]
    # What left the backlog for the destination. Of copies that its audit log does not know, each may have.
    drained = pc.add(column["drained"], _more_than(parked, column["entered"]))
    was_cancelled = [
        _more_than(pc.add(cancelled_before, 1), parked),
        pc.min_element_wise(cancelled_before, _more_than(found, drained)),
        where(pc.less(column["cancelled_ms"], column["backlog_ms"]), cancelled),
        where(pc.less(column["first_cancelled_ms"], column["backlog_ms"]), ONE),
    ]
    of_cancelled = pc.if_else(pc.greater(cancelled, 0), pc.max_element_wise(*was_cancelled), ZERO)
    # Copies that ended in the backlog were not drained: further sends were made by senders.
    gone = pc.add(column["cancelled"], pc.max_element_wise(column["expired"], column["expired_listed"]))
    is_apart = pc.or_(
        pc.fill_null(pc.less(column["last_direct_ms"], column["backlog_ms"]), False),
        pc.fill_null(pc.greater(column["direct_ms"], column["drained_ms"]), False),
    )
    of_gone = where(pc.greater(gone, 0), pc.if_else(is_apart, direct, _more_than(direct, drained)))
    # Without an id, what was sent directly is another message.
    outside = column["direct_outside"]
    inside = _more_than(pc.subtract(direct, outside), drained)
    nameless = pc.max_element_wise(
        pc.add(outside, inside), column["stored_outside"], column["direct_apart"], column["stored_apart"]
    )
    of_nameless = where(pc.equal(column["message_id"], ""), nameless)
    return pc.max_element_wise(of_cancelled, of_gone, of_nameless)


def _places(
    column: Mapping[str, Any], foreign: Any, arrived: Any, is_waiting_hidden: Any
) -> tuple[dict[str, Any], Any]:
    """How many copies each fate can explain; and how many copies are still there, so that what was accepted beside them may be the same message.

    A copy that expired in the backlog or was cancelled is gone: what was accepted beside it must be somewhere itself. If a copy may have left the
    backlog while there was no audit, only a listing tells that it is there. Else the audit log tells it, and a listing may be older: it counts only
    for copies that the audit log does not know.
    """
    unknown = pc.max_element_wise(pc.subtract(column["sent_backlog"], column["entered"]), ZERO)
    entered = pc.add(column["entered"], column["entered_again"])
    is_audited = pc.and_(pc.greater(entered, 0), pc.invert(is_waiting_hidden))

    def there(audited: Any, listed: Any) -> Any:
        listed = pc.max_element_wise(listed, ZERO)
        audited = pc.max_element_wise(pc.if_else(is_waiting_hidden, ZERO, audited), ZERO)
        limit = pc.if_else(is_audited, pc.add(audited, unknown), listed)
        return pc.max_element_wise(audited, pc.min_element_wise(listed, limit))

    # A copy may be in the audit log of the backlog and in a listing, and in that of the dead-letter queue without its reason.
    expired = pc.max_element_wise(column["expired"], column["expired_listed"])
    listed = pc.subtract(column["aside_listed"], pc.subtract(expired, column["expired_listed"]))
    aside = there(column["aside"], listed)
    # Of the dead letters of a destination, those that it stored are among the arrived, and some may have been sent elsewhere and forwarded.
    known = pc.add(column["stored"], foreign)
    dead = _more_than(column["dead"], known)
    others = _more_than(known, column["dead"])
    dead_expired = pc.max_element_wise(pc.subtract(column["dead_expired"], others), ZERO)
    backlog = there(column["backlog"], column["backlog_listed"])
    places = {
        "set_aside": aside,
        "dead_lettered": dead,
        "expired": pc.add(expired, dead_expired),
        "cancelled": column["cancelled"],
        "in_backlog": backlog,
        "in_spool": column["spool"],
    }
    kept = arrived
    for place in (aside, dead, dead_expired, backlog, column["spool"]):
        kept = pc.add(kept, place)
    return places, kept
