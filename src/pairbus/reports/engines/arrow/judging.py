"""What the rows of ledgers say, each about one message. Both engines judge by these rules: here whole files, on Spark the batches of a task.

What a row says about its message follows from its kind, its paths and its detail. There are few of those combinations, so each is judged
once, in plain Python; everything that differs from row to row is done by column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.columns import CALENDAR_MS
from pairbus.reports.engines import audit_log as log
from pairbus.reports.engines.arrow.older import before, without_older
from pairbus.reports.engines.arrow.rows import LONG, TEXT, TIME, first_reason, raw_rows, zeros
from pairbus.reports.engines.audit_log import (
    AGAIN,
    APART,
    BACKLOG,
    BY_WAY,
    CANCELLED,
    COLUMNS,
    DEAD_LETTER,
    DEAD_LETTERED,
    DELETABLE,
    DELIVERED_TOPIC,
    DELIVERIES,
    DRAINED,
    ENTITY_DELETED,
    EXPIRED,
    HELD,
    MEASURES,
    MEASURES_OF,
    NOTES,
    OLDER,
    OUTSIDE,
    RECEIVED,
    SENDS,
    SENT,
    SPOOL,
)
from pairbus.reports.engines.gaps import Note
from pairbus.reports.engines.primaries import DIRECT_ROLES, PARKED_ROLES, Choice, Seen, namespace_key

TYPES: Final = {**dict.fromkeys(COLUMNS, TEXT), "sequence_number": LONG, "time": TIME}
QUARANTINE: Final = pa.schema([("role", TEXT), ("source", TEXT), ("reason", TEXT), ("raw", TEXT)])
MARKS: Final = (ENTITY_DELETED, *NOTES)
"""Kinds of rows that are not about one message. There are few such rows."""
_BACKLOG_PATH: Final = re.compile(log.BACKLOG_PATTERN)
_HASH: Final = "^[0-9a-fA-F]{64}$"
_NUMBER: Final = pa.int8()
_AGAIN: Final = {"sent_backlog": "redriven", "entered": "entered_again"}
"""What a send into the backlog says if it only put a dead letter back. Elsewhere it says nothing: the message had arrived before."""
_ONCE: Final = ("sent_direct", "stored")


# -- one row ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Saying:
    """What rows of one kind, path and detail say."""

    reason: str | None
    destination: str
    place: str | None
    measures: Mapping[str, int]
    target: str | None = None
    """Where a forwarding took the message."""

    @property
    def names(self) -> set[str]:
        return {*self.measures, *(("forwarded_in",) if self.target else ())}


def _saying(
    role: str,
    kind: str | None,
    entity: str | None,
    destination: str | None,
    is_ttl: bool,
    target: str | None = None,
    *,
    is_redriven: bool = False,
) -> _Saying:
    """What rows say. ``target``: where a forwarding took the message. ``is_redriven``: a dead letter was put back."""
    kind = kind.lower() if kind else log.KIND_DEFAULTS[role]
    place = None if entity is None else entity.lower().strip("/")
    path = place or ""
    is_backlog = bool(_BACKLOG_PATH.match(path))
    is_dead, is_topic = path.endswith(log.DEAD_LETTER_PATH), log.SUBSCRIPTIONS_PATH in path
    if destination:
        path = destination.lower().strip("/")
    elif is_topic:
        path = path.partition(log.SUBSCRIPTIONS_PATH)[0]
    elif is_dead:
        path = path.removesuffix(log.DEAD_LETTER_PATH)
    has_lapsed = kind == EXPIRED or (is_ttl and (kind == DEAD_LETTERED or role == DEAD_LETTER))
    if kind not in log.KINDS:
        return _Saying(log.BAD_KIND, path, place, {})
    if role == RECEIVED and kind == log.FORWARDED and target and not is_backlog:
        # It arrived here, as one that was delivered. At the target it is one that was not sent there.
        measures = _measures(role, DELIVERIES[0], is_backlog, is_dead, is_topic, has_lapsed=False)
        return _Saying(None, path, place, measures, target.lower().strip("/"))
    measures = _measures(role, kind, is_backlog, is_dead, is_topic, has_lapsed)
    if is_redriven and kind in SENDS:
        measures = {_AGAIN.get(name, name): number for name, number in measures.items() if name not in _ONCE}
    return _Saying(None, path, place, measures)


def _measures(
    role: str, kind: str, is_backlog: bool, is_dead: bool, is_topic: bool, has_lapsed: bool
) -> dict[str, int]:
    """What a row says about its message, and what it takes back: places in the backlog are counted up and down, so that a whole audit
    shows what is left there.
    """
    if role == SENT:
        return {"sent_backlog" if is_backlog else "sent_direct": 1} if kind in SENDS else {}
    if role == RECEIVED:
        if is_backlog:
            return {}
        if has_lapsed:
            return {"expired_there": 1}
        if kind == DEAD_LETTERED:
            return {"dead_there": 1}
        if is_dead:
            return {"dead_taken": 1} if kind in DELIVERIES else {}
        if kind == CANCELLED:
            return {"cancelled_there": 1}
        if kind == log.DUPLICATE:
            return {"dropped": 1}
        if kind in DELIVERIES:
            return {DELIVERED_TOPIC if is_topic else "delivered": 1}
        return {"stored": 1} if kind == "sent" else {}
    if kind in MARKS:
        return {}
    if role == SPOOL:
        return {"spool": 1}
    if role == DEAD_LETTER:
        if is_backlog:
            return {"parked": 1, "expired_listed" if has_lapsed else "aside_listed": 1}
        return {"dead_expired" if has_lapsed else "dead": 1}
    return _backlog_measures(kind, is_dead, has_lapsed) if is_backlog else {}


def _backlog_measures(kind: str, is_dead: bool, has_lapsed: bool) -> dict[str, int]:
    """Of a row about a backlog queue, or its dead-letter queue, in an audit log or a listing."""
    left = -1 if kind in (*DELIVERIES, *log.REMOVED, EXPIRED, DEAD_LETTERED) else 0
    if is_dead:
        if kind in HELD:
            return {"parked": 1, "aside_listed": 1}
        if kind == CANCELLED:
            return {"aside": left, "cancelled": 1}
        return {"aside": left, "taken": 1} if kind in DELIVERIES else {"aside": left}
    if kind in HELD:
        return {"parked": 1, "backlog_listed": 1}
    if kind == "sent":
        return {"parked": 1, "backlog": 1, "entered": 1}
    gone = {"backlog": left}
    if kind == DRAINED:
        return {**gone, "drained": 1}
    if kind == CANCELLED:
        return {**gone, "cancelled": 1}
    if has_lapsed:
        return {**gone, "expired": 1}
    return {**gone, "aside": 1} if kind == DEAD_LETTERED else gone


def _sayings(rows: pa.Table, role: str) -> tuple[pa.Array, list[_Saying]]:
    """For each row the number of its saying; and the sayings."""
    is_ttl = pc.fill_null(pc.equal(rows["detail"], log.REASON_EXPIRED), False)
    is_forwarding = pc.fill_null(pc.equal(pc.utf8_lower(rows["kind"]), log.FORWARDED), False)
    target = pc.if_else(is_forwarding, rows["detail"], pa.scalar(None, TEXT))
    is_redriven = pc.fill_null(pc.equal(rows["detail"], log.REDRIVEN), False)
    columns = [rows["kind"], rows["entity"], rows["destination"], is_ttl, target, is_redriven]
    code = zeros(rows.num_rows)
    values: list[list[Any]] = []
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        values.append(encoded.dictionary.to_pylist())
        code = pc.add(pc.multiply(code, max(1, len(values[-1]))), encoded.indices.cast(LONG))
    distinct = code.dictionary_encode()
    found = []
    for number in distinct.dictionary.to_pylist():
        parts = []
        for options in reversed(values):
            number, at = divmod(number, max(1, len(options)))
            parts.append(options[at])
        again, target_of, late, destination, entity, kind = parts
        found.append(_saying(role, kind, entity, destination, late, target_of, is_redriven=again))
    return distinct.indices, found


# -- all rows of an input -----------------------------------------------------------------------------


def measures_of(roles: Iterable[str], *, with_older: bool = True) -> tuple[str, ...]:
    """What the rows of these inputs can say, but for what is found only when the rows of a message are seen together (OUTSIDE, APART, AGAIN, BY_WAY).
    ``with_older``: also what is said only where a time is given from which on messages count (OLDER).
    """
    given = list(roles)
    seen_together = {*OUTSIDE, *APART, *AGAIN, BY_WAY, *(() if with_older else OLDER)}
    return tuple(
        name
        for name in MEASURES
        if name not in seen_together and any(name in MEASURES_OF[role] for role in given)
    )


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of rows."""

    measures: tuple[str, ...]
    with_body: bool = True
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rows of one input say."""

    said: pa.Table
    """The rows that say something: ``namespace``, KEY, ``place``, ``ms``, ``sequence_number``, ``session`` and the measures."""
    reason: Any
    """Of each row, why it cannot be true; null if it can."""
    other: int
    """Rows that can be true and say nothing of a message."""
    marks: pa.Table
    """Those of them whose kind is one of MARKS."""


def judged(rows: pa.Table, role: str, question: Question) -> Judged:
    """Judge the rows of an input, with the columns TYPES and ``broken``."""
    codes, sayings = _sayings(rows, role)
    by_code = {
        "reason": pa.array([saying.reason for saying in sayings], TEXT),
        "destination": pa.array([saying.destination for saying in sayings], TEXT),
        "place": pa.array([saying.place for saying in sayings], TEXT),
    }
    kind = pc.utf8_lower(rows["kind"])
    is_note = pc.fill_null(pc.is_in(kind, pa.array(NOTES, TEXT)), False)
    is_mark = pc.or_(is_note, pc.fill_null(pc.equal(kind, ENTITY_DELETED), False))
    given = pc.coalesce(rows["sha256"], rows["body_sha256"])
    is_hash = pc.fill_null(pc.match_substring_regex(given, _HASH), False)
    destination = by_code["destination"].take(codes)
    first_ms, last_ms = CALENDAR_MS
    is_time = pc.and_(pc.greater_equal(rows["time"], first_ms), pc.less_equal(rows["time"], last_ms))
    conditions = [
        (pc.is_valid(rows["broken"]), log.NOT_JSON),
        (pc.is_valid(by_code["reason"].take(codes)), log.BAD_KIND),
        (pc.invert(pc.fill_null(is_time, False)), log.NO_TIME),
        (pc.is_null(rows["message_id"]), log.NO_ID),
        (pc.and_(pc.equal(destination, ""), pc.invert(is_note)), log.NO_DESTINATION),
    ]
    if question.with_body:
        conditions.append((pc.invert(pc.or_(is_mark, is_hash)), log.NO_HASH))
    reason = first_reason(conditions)
    is_true = pc.is_null(reason)
    says = pa.array([not saying.names.isdisjoint(question.measures) for saying in sayings], pa.bool_())
    is_used = pc.and_(is_true, says.take(codes))
    body = pc.if_else(is_hash, pc.utf8_lower(given), None) if question.with_body else _nulls(rows, TEXT)
    said = {
        "namespace": rows["namespace"],
        "destination": destination,
        "message_id": rows["message_id"],
        "body": body,
        "place": by_code["place"].take(codes),
        "ms": rows["time"],
        "sequence_number": rows["sequence_number"],
        "session": rows["session_id"],
    }
    marks = rows.select(["kind", "namespace", "entity", "time", "detail"]).filter(pc.and_(is_true, is_mark))
    found = _speaking(said, is_used, [saying.measures for saying in sayings], codes, role, question)
    if any(saying.target for saying in sayings):
        # What was forwarded also speaks of the entity that it was forwarded to.
        target = pa.array([saying.target for saying in sayings], TEXT).take(codes)
        came = {**said, "destination": target, "place": destination}
        is_target = pc.and_(is_used, pc.is_valid(target))
        measures = [{"forwarded_in": 1} if saying.target else {} for saying in sayings]
        found = pa.concat_tables([found, _speaking(came, is_target, measures, codes, role, question)])
    true_rows = pc.sum(is_true).as_py() or 0
    return Judged(found, reason, true_rows - used_rows(found, question.since_ms), marks)


def _speaking(
    said: Mapping[str, Any],
    is_used: Any,
    measures: Sequence[Mapping[str, int]],
    codes: Any,
    role: str,
    question: Question,
) -> pa.Table:
    """The rows that are used, with what they say. Those before the time that is asked about say what became of older copies."""
    since_ms = question.since_ms
    earlier = [before(role, one) for one in measures]
    is_late = None if since_ms is None else pc.fill_null(pc.greater_equal(said["ms"], since_ms), False)
    columns = dict(said)
    for name in question.measures:
        columns[name] = pa.array([one.get(name, 0) for one in measures], _NUMBER).take(codes)
        if is_late is not None:
            early = pa.array([one.get(name, 0) for one in earlier], _NUMBER).take(codes)
            columns[name] = pc.if_else(is_late, columns[name], early)
    if is_late is not None:
        if "sent_logged" in question.measures and "sent_direct" in question.measures:
            # No sender knows the number.
            is_logged = pc.and_(pc.fill_null(pc.greater(said["sequence_number"], 0), False), pc.is_valid(said["namespace"]))  # fmt: skip
            columns["sent_logged"] = pc.if_else(is_logged, columns["sent_direct"], pa.scalar(0, _NUMBER))
        says_before = pa.array(
            [any(name in question.measures for name in one) for one in earlier], pa.bool_()
        )
        is_used = pc.and_(is_used, pc.or_(is_late, says_before.take(codes)))
    return pa.table(columns).filter(is_used)


def used_rows(said: pa.Table, since_ms: int | None) -> int:
    """How many rows count: those before the time that is asked about do not, and each counts once."""
    if "forwarded_in" in said.column_names:
        said = said.filter(pc.less_equal(said["forwarded_in"], 0))
    if since_ms is not None:
        said = said.filter(pc.greater_equal(said["ms"], since_ms))
    return int(said.num_rows)


def _nulls(rows: pa.Table, kind: pa.DataType) -> pa.Array:
    return pa.nulls(rows.num_rows, kind)


def quarantined(rows: pa.Table, reason: Any, role: str, sources: Sequence[str]) -> pa.Table:
    """The rows that cannot be true. ``sources``: the file of each of them."""
    wrong = rows.filter(pc.is_valid(reason))
    columns = [[role] * wrong.num_rows, sources, reason.drop_null(), raw_rows(wrong, COLUMNS, TYPES)]
    return pa.table(columns, schema=QUARANTINE)


# -- what must be known of all rows before one of them counts -----------------------------------------


@dataclass(slots=True)
class Facts:
    """What the rows of all inputs say of themselves: of which primaries and namespaces they are, when backlog queues were deleted, and when
    there was no audit.
    """

    seen: set[Seen] = field(default_factory=set)
    notes: set[Note] = field(default_factory=set)
    deletions: dict[tuple[str | None, str], int] = field(default_factory=dict)
    """When each backlog queue was last deleted, by namespace and path."""
    entered: dict[tuple[str | None, str], int] = field(default_factory=dict)
    """The least sequence number that each backlog queue gave from the time on that is asked about, by namespace and path."""
    logged: set[tuple[str, str]] = field(default_factory=set)
    """The namespaces and destinations of which a ledger says what they stored."""

    def see(self, rows: pa.Table, role: str) -> None:
        """Take in the primaries and namespaces that rows name. Notes of an audit log have no entity, and name their namespace."""
        pairs = rows.select(["entity", "namespace"]).group_by(["entity", "namespace"]).aggregate([])
        self.seen |= {
            Seen(role, _primary(row["entity"]), namespace_key(row["namespace"]))
            for row in pairs.to_pylist()
            if row["entity"] or namespace_key(row["namespace"])
        }
        if role == RECEIVED:
            is_sent = pc.fill_null(pc.equal(pc.utf8_lower(rows["kind"]), "sent"), False)
            stored = rows.filter(is_sent).select(["entity", "namespace"])
            for row in stored.group_by(["entity", "namespace"]).aggregate([]).to_pylist():
                path = _saying(role, "sent", row["entity"], None, is_ttl=False).destination
                self.logged.add((namespace_key(row["namespace"]), path))

    def mark(self, marks: pa.Table, role: str) -> None:
        """Take in rows that are not about one message."""
        for row in marks.to_pylist():
            kind, queue = row["kind"].lower(), queue_path(row["entity"])
            if kind in NOTES:
                namespace = namespace_key(row["namespace"])
                self.notes.add(Note(role, kind, namespace, row["time"], row["detail"] or ""))
            elif role == BACKLOG and queue is not None:
                self.delete(row["namespace"], queue, row["time"])

    def number(self, rows: pa.Table, since_ms: int) -> None:
        """Take in the sequence numbers that backlog queues gave."""
        is_sent = pc.equal(pc.utf8_lower(rows["kind"]), "sent")
        is_late = pc.and_(pc.greater_equal(rows["time"], since_ms), pc.greater(rows["sequence_number"], 0))
        stored = rows.filter(pc.fill_null(pc.and_(is_sent, is_late), False))
        key = ["namespace", "entity"]
        for row in stored.group_by(key).aggregate([("sequence_number", "min")]).to_pylist():
            self.enter(row["namespace"], row["entity"], row["sequence_number_min"])

    def enter(self, namespace: str | None, entity: str | None, number: int) -> None:
        """Take in a sequence number that a backlog queue gave."""
        if (queue := queue_path(entity)) is not None:
            key = namespace, queue
            self.entered[key] = min(number, self.entered.get(key, number))

    def logged_by(self, choice: Choice) -> tuple[str, ...]:
        """Destinations of which a ledger that counts says what they stored."""
        return tuple(sorted({path for name, path in self.logged if name not in choice.direct_others}))

    def delete(self, namespace: str | None, queue: str, ms: int) -> None:
        """Take in that a backlog queue was deleted."""
        self.deletions[namespace, queue] = max(ms, self.deletions.get((namespace, queue), ms))


_DETAILS: Final = ((False, None, False), (True, None, False), (False, "target", False), (False, None, True))
"""What the detail of a row may tell."""


def sayable(rows: pa.Table, role: str) -> set[str]:
    """The measures that rows of these kinds and entities may say, whatever their detail is."""
    pairs = rows.select(["kind", "entity"]).group_by(["kind", "entity"]).aggregate([])
    return {
        name
        for row in pairs.to_pylist()
        for is_ttl, target, again in _DETAILS
        for name in _saying(role, row["kind"], row["entity"], None, is_ttl, target, is_redriven=again).names
    }


def queue_path(entity: str | None) -> str | None:
    """The backlog queue that a path is of, also that of its dead-letter queue; None for other paths."""
    path = (entity or "").lower().strip("/")
    if not _BACKLOG_PATH.match(path):
        return None
    return path.removesuffix(log.DEAD_LETTER_PATH).removesuffix(log.TRANSFER_DEAD_PATH)


def _primary(entity: str | None) -> str:
    return (queue_path(entity) or "").partition("/")[0]


def counting(
    said: pa.Table,
    role: str,
    choice: Choice,
    deletions: Mapping[tuple[str | None, str], int],
    entered: Mapping[tuple[str | None, str], int] | None = None,
) -> pa.Table:
    """The rows about the chosen primary, without what a later deletion of their backlog queue took back, and without what is said of older copies
    (``entered``: see Facts; None if no time is asked about).
    """
    if role == BACKLOG and deletions:
        said = _without_deleted(said, deletions)
    if entered is not None and role in (BACKLOG, DEAD_LETTER):
        codes, pairs = _places(said)
        said = without_older(said, role, entered, codes, [(name, queue_path(place)) for name, place in pairs])
    if not choice.leaves_out:
        return said
    codes, pairs = _places(said)
    kept = [_counts(role, place, namespace, choice) for namespace, place in pairs]
    return said.filter(pa.array(kept, pa.bool_()).take(codes))


def _counts(role: str, path: str | None, namespace: str | None, choice: Choice) -> bool:
    if primary := _primary(path):
        return role not in PARKED_ROLES or primary not in choice.parked_others
    return role not in DIRECT_ROLES or namespace_key(namespace) not in choice.direct_others


def _without_deleted(said: pa.Table, deletions: Mapping[tuple[str | None, str], int]) -> pa.Table:
    """The rows of a backlog queue up to its last deletion no longer tell what is in it."""
    codes, pairs = _places(said)
    times = [deletions.get((namespace, queue_path(place) or "")) for namespace, place in pairs]
    is_gone = pc.fill_null(pc.less_equal(said["ms"], pa.array(times, LONG).take(codes)), False)
    for name in DELETABLE:
        if name in said.column_names:
            kept = pc.if_else(is_gone, pa.scalar(0, _NUMBER), said[name])
            said = said.set_column(said.column_names.index(name), name, kept)
    return said


def _places(rows: pa.Table) -> tuple[pa.Array, list[tuple[str | None, str | None]]]:
    """For each row the number of its pair of namespace and place; and the pairs. There are few: each is judged once."""
    place, namespace = (
        rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        for name in ("place", "namespace")
    )
    places, namespaces = place.dictionary.to_pylist(), namespace.dictionary.to_pylist()
    codes = pc.add(pc.multiply(namespace.indices.cast(LONG), len(places)), place.indices.cast(LONG))
    return codes, [(one, other) for one in namespaces for other in places]
