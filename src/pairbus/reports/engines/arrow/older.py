"""What rows from ``--since`` on say of copies that were accepted before it: such a copy must not stand for one that was accepted later.

Three things tell whose row it is. A backlog queue gives numbers in the order in which it stores messages, so a row with a smaller number than the
first that it stored since then is about an older copy. A destination whose ledger says what it stored has received that and no more. Where neither is
known, so many arrivals are of older copies as were accepted before and have not arrived before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.engines.arrow.rows import LONG
from pairbus.reports.engines.audit_log import BACKLOG, DELIVERED_TOPIC, RECEIVED, SENT

Entered = Mapping[tuple[str | None, str], int]
"""The least sequence number that each backlog queue gave since, by namespace and path."""
_NUMBER: Final = pa.int8()
_ZERO: Final = pa.scalar(0, _NUMBER)
_NONE: Final = pa.scalar(0, LONG)
_BEFORE: Final = {
    SENT: {"sent_direct": "sent_older", "sent_backlog": "sent_older"},
    RECEIVED: {
        "delivered": "ended_older",
        DELIVERED_TOPIC: "ended_older_topic",
        "forwarded_in": "sent_older",
    },
}
"""What a row before the time says, in place of what it would say after it."""
_LATER: Final = {"drained": "drained_older", "taken": "taken_older"}
"""What a row after the time says if it is about an older copy."""


def before(role: str, measures: Mapping[str, int]) -> dict[str, int]:
    """What a row before the time says."""
    names = _BEFORE.get(role, {})
    return {names[name]: number for name, number in measures.items() if name in names}


def without_older(said: pa.Table, role: str, entered: Entered, codes: Any, queues: list[tuple[str | None, str | None]]) -> pa.Table:  # fmt: skip
    """The rows about backlog queues, but for what they say of older copies. ``queues``: by ``codes``, the namespace and queue that a row is about, if
    it is a backlog queue.
    """
    least: dict[str, int] = {}
    for (_, queue), number in entered.items():
        least[queue] = min(number, least.get(queue, number))
    listed = [least.get(queue or "") for _, queue in queues]
    logged = [entered.get((namespace, queue or ""), 2**63 - 1) if queue else None for namespace, queue in queues]  # fmt: skip
    is_listed: Any = pa.scalar(role != BACKLOG)
    for name in ("backlog_listed", "aside_listed"):
        if name in said.column_names:
            is_listed = pc.or_(is_listed, pc.greater(said[name], 0))
    first = pc.if_else(is_listed, pa.array(listed, LONG).take(codes), pa.array(logged, LONG).take(codes))
    number = said["sequence_number"]
    is_older = pc.and_(pc.greater(number, 0), pc.less(number, first))
    is_older = pc.fill_null(is_older, False)
    if not pc.any(is_older).as_py():
        return said
    columns = {name: said[name] for name in said.column_names}
    for name in said.column_names:
        if pa.types.is_int8(said[name].type):
            columns[name] = pc.if_else(is_older, _ZERO, said[name])
    for name, later in _LATER.items():
        if name in columns:
            columns[later] = pc.if_else(is_older, said[name], _ZERO)
    return pa.table(columns)


def is_logged(destinations: Any, logged: Collection[str]) -> Any:
    """Whether the ledger of each destination says what it stored."""
    return pc.is_in(destinations, pa.array(sorted(logged), pa.string()))


def adjusted(column: dict[str, Any], logged: Collection[str]) -> None:
    """Leave out what the drain brought of older copies, and what their destinations then did with them."""
    logs = is_logged(column["destination"], logged)
    # Where the senders' own ledgers are given, no send tells of an older copy that was put back. The drain brought it all the same.
    unsent = _less(pc.min_element_wise(column["entered_again"], column["taken_older"]), column["redriven"])
    drained = pc.min_element_wise(unsent, column["drained"])
    column["drained_older"] = pc.add(column["drained_older"], drained)
    drains = pc.min_element_wise(column["drained_older"], column["sent_logged"])
    for name, of in (
        ("sent_direct", drains),
        ("direct_outside", drains),
        ("direct_apart", drains),
        ("stored_outside", column["drained_older"]),
        ("stored_apart", column["drained_older"]),
    ):
        column[name] = _less(column[name], of)
    # An older copy that was put back is one more of those that were parked.
    is_beside = pc.and_(pc.equal(column["message_id"], ""), pc.greater(column["sent_backlog"], 0))
    for name, of in (("sent_backlog", "redriven"), ("entered", "entered_again")):
        again = pc.min_element_wise(column[of], column["taken_older"])
        column[name] = pc.add(column[name], pc.if_else(is_beside, again, _NONE))
    stored = _less(column["stored"], column["drained_older"])
    cancelled = pc.min_element_wise(column["cancelled_there"], stored)
    column["cancelled_there"] = pc.if_else(logs, cancelled, column["cancelled_there"])


def own_arrivals(column: Mapping[str, Any], found: Any, logged: Collection[str]) -> Any:
    """Of the arrivals of each message, those that are not of older copies."""
    drained = column["drained_older"]
    by_way = pc.if_else(pc.greater(column["stored"], 0), found, pc.min_element_wise(found, column["by_way"]))
    ended = pc.add(column["ended_older"], column["ended_older_topic"])
    older = pc.max_element_wise(_less(column["sent_older"], ended), drained)
    return pc.if_else(is_logged(column["destination"], logged), _less(by_way, drained), _less(found, older))


def of_accepted(column: Mapping[str, Any], found: Any, accepted: Any) -> Any:
    """Those that count: if nothing was accepted since, what arrives was accepted before, as far as its name or the number of such messages tells."""
    is_named = pc.and_(pc.not_equal(column["message_id"], ""), pc.greater(column["sent_older"], 0))
    rest = pc.if_else(is_named, _NONE, _less(found, column["sent_older"]))
    return pc.if_else(pc.greater(accepted, 0), found, rest)


def own_dead(column: Mapping[str, Any], logged: Collection[str]) -> dict[str, Any]:
    """The columns, without the dead letters of destinations that say what they stored: those that they did not store since are older copies."""
    logs = is_logged(column["destination"], logged)
    return {**column, **{name: pc.if_else(logs, _NONE, column[name]) for name in ("dead", "dead_expired")}}


def _less(one: Any, other: Any) -> Any:
    return pc.max_element_wise(pc.subtract(one, other), _NONE)
