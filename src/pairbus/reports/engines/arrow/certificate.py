"""The certificate in this process: the rows of all ledgers grouped by (destination, message id, body hash).

What a row says about its message follows from its kind, its paths and its detail. There are few of those combinations, so each is judged
once, in plain Python; everything that differs from row to row is done by column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.certificate.value import (
    FATE_COLUMNS,
    FATES,
    MINUTE_MS,
    NAMED_FATES,
    NAMED_MAX,
    REASONS_MAX,
    THERE,
    Certificate,
    Named,
    Outage,
    ParkedMinute,
    RowCounts,
    histogram_of,
    outages_of,
)
from pairbus.reports.engines import audit_log as log
from pairbus.reports.engines.arrow.fates import fates_of
from pairbus.reports.engines.arrow.grouping import grouped, listed_once, nothing
from pairbus.reports.engines.arrow.order import bucket, reordered, session_order
from pairbus.reports.engines.arrow.primaries import of_one_primary, queue_path, seen_in
from pairbus.reports.engines.arrow.rows import (
    LONG,
    TEXT,
    TIME,
    first_reason,
    raw_rows,
    read_lines,
    read_parquet,
    source_uri,
    write_table,
)
from pairbus.reports.engines.audit_log import (
    BACKLOG,
    CANCELLED,
    COLUMNS,
    DEAD_LETTER,
    DEAD_LETTERED,
    DELETABLE,
    DELIVERED_TOPIC,
    DELIVERIES,
    DRAINED,
    EXPIRED,
    HELD,
    KEY,
    MEASURES,
    MEASURES_OF,
    NOTES,
    RECEIVED,
    ROLES,
    SENDS,
    SENT,
    SPOOL,
)
from pairbus.reports.engines.gaps import Note, hidden_by
from pairbus.reports.engines.primaries import Seen, choose, namespace_key
from pairbus.reports.inputs import Inputs
from pairbus.server.clock import utc

_TYPES: Final = {
    **dict.fromkeys(COLUMNS, TEXT),
    "sequence_number": LONG,
    "time": TIME,
}
_QUARANTINE: Final = pa.schema([("role", TEXT), ("source", TEXT), ("reason", TEXT), ("raw", TEXT)])
_BACKLOG_PATH: Final = re.compile(log.BACKLOG_PATTERN)
_HASH: Final = "^[0-9a-fA-F]{64}$"


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The certificate and the rows it rests on."""

    certificate: Certificate
    messages: pa.Table
    """One row for each message: KEY, ``accepted``, ``found``, FATE_COLUMNS, ``accepted_ms``, ``arrived_ms``, ``is_detoured``."""
    quarantined: pa.Table

    def write(self, directory: str) -> None:
        """Write ``DIR/messages`` (every message that is not simply where it should be) and ``DIR/quarantine``."""
        time = pa.timestamp("us", tz="UTC")
        found = []
        for fate in NAMED_FATES:
            rows = self.messages.filter(pc.greater(self.messages[fate], 0))
            columns = {
                "fate": pa.array([fate] * rows.num_rows, TEXT),
                "destination": rows["destination"],
                "message_id": rows["message_id"],
                "sha256": rows["body"],
                "copies": rows[fate],
                "accepted_time": rows["accepted_ms"].cast(pa.timestamp("ms", tz="UTC")).cast(time),
                "arrived_time": rows["arrived_ms"].cast(pa.timestamp("ms", tz="UTC")).cast(time),
                "through_backlog": rows["is_detoured"],
            }
            found.append(pa.table(columns))
        write_table(directory, "messages", pa.concat_tables(found))
        if self.quarantined.num_rows:
            write_table(directory, "quarantine", self.quarantined)


@dataclass(frozen=True, slots=True)
class _Saying:
    """What rows of one kind, path and detail say."""

    reason: str | None
    destination: str
    place: str | None
    measures: Mapping[str, int]


def _saying(
    role: str, kind: str | None, entity: str | None, destination: str | None, is_ttl: bool
) -> _Saying:
    kind = kind.lower() if kind else log.KIND_DEFAULTS[role]
    place = None if entity is None else entity.lower()
    path = place or ""
    is_backlog = bool(_BACKLOG_PATH.match(path))
    is_dead, is_topic = path.endswith(log.DEAD_LETTER_PATH), log.SUBSCRIPTIONS_PATH in path
    if destination:
        path = destination.lower()
    elif is_topic:
        path = path.partition(log.SUBSCRIPTIONS_PATH)[0]
    elif is_dead:
        path = path.removesuffix(log.DEAD_LETTER_PATH)
    path = path.lstrip("/")
    has_lapsed = kind == EXPIRED or (is_ttl and (kind == DEAD_LETTERED or role == DEAD_LETTER))
    if kind not in log.KINDS:
        return _Saying(log.BAD_KIND, path, place, {})
    measures = _measures(role, kind, is_backlog, is_dead, is_topic, has_lapsed)
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
            return {}
        if kind == CANCELLED:
            return {"cancelled_there": 1}
        if kind in DELIVERIES:
            return {DELIVERED_TOPIC if is_topic else "delivered": 1}
        return {"stored": 1} if kind == "sent" else {}
    if kind == log.ENTITY_DELETED or kind in NOTES:
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
        return {"aside": left, "cancelled": 1} if kind == CANCELLED else {"aside": left}
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


class _Reader:
    """Reads the rows of ledgers, and counts those that say nothing."""

    def __init__(self, measures: Sequence[str], with_body: bool, since_ms: int | None) -> None:
        self.measures = measures
        self.counts: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.quarantined: list[pa.Table] = []
        self._deletions: dict[tuple[str | None, str], int] = {}
        """When each backlog queue was last deleted, by namespace and path."""
        self._with_body = with_body
        self._since_ms = since_ms
        self.seen: set[Seen] = set()
        self.notes: set[Note] = set()

    def read(self, role: str, inputs: Inputs) -> list[pa.Table]:
        found = [self._said(read_parquet(path, _TYPES), role, path) for path in inputs.parquet]
        found += [self._said(read_lines(path, _TYPES), role, path) for path in inputs.lines]
        if role == BACKLOG and self._deletions:
            found = [self._without_deleted(part) for part in found]
        return found

    def _note_gaps(self, rows: pa.Table, role: str) -> None:
        for row in rows.to_pylist():
            kind, namespace = row["kind"].lower(), namespace_key(row["namespace"])
            self.notes.add(Note(role, kind, namespace, row["time"], row["detail"] or ""))

    def _note_deletions(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            path = queue_path(row["entity"])
            if path is not None:
                key = row["namespace"], path
                self._deletions[key] = max(row["time"], self._deletions.get(key, row["time"]))

    def _without_deleted(self, part: pa.Table) -> pa.Table:
        """The rows of a backlog queue up to its last deletion no longer tell what is in it."""
        # Few pairs of namespace and place: each is looked up once.
        place, namespace = (
            part[name].combine_chunks().dictionary_encode(null_encoding="encode")
            for name in ("place", "namespace")
        )
        places, namespaces = place.dictionary.to_pylist(), namespace.dictionary.to_pylist()
        times = pa.array(
            [self._deletions.get((one, queue_path(path) or "")) for one in namespaces for path in places],
            LONG,
        )
        code = pc.add(pc.multiply(namespace.indices.cast(LONG), len(places)), place.indices.cast(LONG))
        is_gone = pc.fill_null(pc.less_equal(part["ms"], times.take(code)), False)
        for name in DELETABLE:
            at = part.column_names.index(name)
            kept = pc.if_else(is_gone, pa.scalar(0, pa.int8()), part[name])
            part = part.set_column(at, name, kept)
        return part

    def _said(self, rows: pa.Table, role: str, path: str) -> pa.Table:
        """The rows that say something: ``namespace``, KEY, ``ms``, ``sequence_number``, ``session``, ``place`` and the measures."""
        self.seen |= seen_in(rows, role)
        codes, sayings = _sayings(rows, role)
        by_code = {
            "reason": pa.array([saying.reason for saying in sayings], TEXT),
            "destination": pa.array([saying.destination for saying in sayings], TEXT),
            "place": pa.array([saying.place for saying in sayings], TEXT),
        }
        kind = pc.utf8_lower(rows["kind"])
        is_note = pc.fill_null(pc.is_in(kind, pa.array(NOTES, TEXT)), False)
        given = pc.coalesce(rows["sha256"], rows["body_sha256"])
        body = pc.if_else(
            pc.fill_null(pc.match_substring_regex(given, _HASH), False), pc.utf8_lower(given), None
        )
        destination = by_code["destination"].take(codes)
        conditions = [
            (pc.is_valid(rows["broken"]), log.NOT_JSON),
            (pc.is_valid(by_code["reason"].take(codes)), log.BAD_KIND),
            (pc.is_null(rows["time"]), log.NO_TIME),
            (pc.is_null(rows["message_id"]), log.NO_ID),
            (pc.and_(pc.equal(destination, ""), pc.invert(is_note)), log.NO_DESTINATION),
        ]
        if self._with_body:
            is_bodiless = pc.or_(is_note, pc.fill_null(pc.equal(kind, log.ENTITY_DELETED), False))
            conditions.append((pc.and_(pc.invert(is_bodiless), pc.is_null(body)), log.NO_HASH))
        reason = first_reason(conditions)
        self._quarantine(rows, reason, role, path)
        says = pa.array(
            [any(saying.measures.get(name) for name in self.measures) for saying in sayings], pa.bool_()
        )
        is_true = pc.is_null(reason)
        is_used = pc.and_(is_true, says.take(codes))
        if self._since_ms is not None:
            is_used = pc.and_(is_used, pc.fill_null(pc.greater_equal(rows["time"], self._since_ms), False))
        columns = ["kind", "namespace", "time", "detail"]
        self._note_gaps(rows.select(columns).filter(pc.and_(is_true, is_note)), role)
        if role == BACKLOG:
            is_deleted = pc.and_(is_true, pc.fill_null(pc.equal(kind, log.ENTITY_DELETED), False))
            self._note_deletions(rows.select(["namespace", "entity", "time"]).filter(is_deleted))
        used = {
            "namespace": rows["namespace"],
            "destination": destination,
            "message_id": rows["message_id"],
            "body": body if self._with_body else pa.nulls(rows.num_rows, TEXT),
            "place": by_code["place"].take(codes),
            "ms": rows["time"],
            "sequence_number": rows["sequence_number"],
            "session": rows["session_id"],
        }
        for name in self.measures:
            column = pa.array([saying.measures.get(name, 0) for saying in sayings], pa.int8())
            used[name] = column.take(codes)
        table = pa.table(used).filter(is_used)
        self.counts[role, "used"] += table.num_rows
        self.counts[role, "other"] += (pc.sum(is_true).as_py() or 0) - table.num_rows
        return table

    def _quarantine(self, rows: pa.Table, reason: Any, role: str, path: str) -> None:
        if reason.null_count == len(reason):
            return
        wrong, why = rows.filter(pc.is_valid(reason)), reason.drop_null().to_pylist()
        self.counts[role, "quarantined"] += len(why)
        self.reasons.update((role, text) for text in why)
        columns = [[role] * len(why), [source_uri(path)] * len(why), why, raw_rows(wrong, COLUMNS, _TYPES)]
        self.quarantined.append(pa.table(columns, schema=_QUARANTINE))


def _sayings(rows: pa.Table, role: str) -> tuple[pa.Array, list[_Saying]]:
    """For each row the number of its saying; and the sayings."""
    is_ttl = pc.fill_null(pc.equal(rows["detail"], log.REASON_EXPIRED), False)
    columns = [rows["kind"], rows["entity"], rows["destination"], is_ttl]
    code = pa.array([0] * rows.num_rows, LONG)
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
        late, destination, entity, kind = parts
        found.append(_saying(role, kind, entity, destination, late))
    return distinct.indices, found


def reconcile(
    inputs: Mapping[str, Inputs],
    until: datetime | None = None,
    *,
    with_body: bool = True,
    with_order: bool = True,
    primaries: Sequence[str] = (),
    since: datetime | None = None,
) -> Reconciled:
    """Judge every message. Sends at or after ``until`` that are nowhere yet are in flight, not lost. Rows before ``since`` do not count.

    Raises:
        UsageError: A file is damaged.
    """
    measures = [name for name in MEASURES if any(name in MEASURES_OF[role] for role in inputs)]
    since_ms, until_ms = (
        None if moment is None else int(moment.timestamp() * 1000) for moment in (since, until)
    )
    reader = _Reader(measures, with_body, since_ms)
    read = {role: reader.read(role, found) for role, found in inputs.items()}
    choice = choose(reader.seen, primaries)
    parts, left_out = of_one_primary(read, choice)
    for role, count in left_out.items():
        reader.counts[role, "used"] -= count
        reader.counts[role, "other"] += count
    hidden = hidden_by(reader.notes, since_ms, until_ms, choice.unheard)
    rows = [listed_once(part, measures) for part in parts] or [nothing(measures)]
    known = fates_of(grouped(pa.concat_tables(rows), measures), until, hidden)
    totals = {name: _sum(known[name]) for name in ("accepted", "found", *FATE_COLUMNS, *THERE)}
    is_accepted = pc.greater(known["accepted"], 0)
    parked = pc.and_(known["is_detoured"], is_accepted)
    delay = pc.if_else(
        pc.greater(known["arrived"], 0), pc.subtract(known["arrived_ms"], known["accepted_ms"]), None
    )
    known = known.append_column("parked", parked).append_column("delay", delay)
    detoured = _sum(parked)
    order = reordered(known) if with_order else None
    certificate = Certificate(
        accepted=totals["accepted"],
        received=totals["found"],
        messages=_sum(is_accepted),
        detoured=detoured,
        fates={fate: totals[fate] for fate in FATE_COLUMNS},
        altered=_altered(known) if totals["lost"] and totals["unexpected"] else 0,
        at_destination={name: totals[name] for name in THERE},
        named={fate: _named(known, fate) for fate in NAMED_FATES if totals[fate]},
        rows={
            role: RowCounts(*[reader.counts[role, status] for status in ("used", "other", "quarantined")])
            for role in ROLES
        },
        reasons={
            f"{role}: {why}": count for (role, why), count in sorted(reader.reasons.items())[:REASONS_MAX]
        },
        delays=_delays(known),
        reordered=order,
        session_order=session_order(known, order) if order is not None else None,
        outages=_outages(known.filter(parked)) if detoured else (),
        journals=tuple(sorted({path for found in inputs.values() for path in found.journals})),
        repeated_parts=sum(len(found.repeated) for found in inputs.values()),
        left_out=left_out.total(),
        doubt=choice.doubt,
        unasked=choice.unasked,
        gaps=hidden.relevant(totals["unproven"]),
    )
    certificate.check()
    return Reconciled(certificate, known, pa.concat_tables([_QUARANTINE.empty_table(), *reader.quarantined]))


def _sum(column: Any) -> int:
    return int(pc.sum(column).as_py() or 0)


def _delays(known: pa.Table) -> Any:
    timed = (
        known.filter(pc.is_valid(known["delay"])).group_by(["delay", "parked"]).aggregate([([], "count_all")])
    )
    return histogram_of((bucket(row["delay"]), row["parked"], row["count_all"]) for row in timed.to_pylist())


def _named(known: pa.Table, fate: str) -> tuple[Named, ...]:
    """The first few messages of a fate, in the order of their names."""
    rows = known.filter(pc.greater(known[fate], 0)).sort_by([(name, "ascending") for name in KEY])
    return tuple(
        Named(
            row["destination"],
            row["message_id"],
            row["body"] or "",
            row[fate],
            None if row["accepted_ms"] is None else utc(row["accepted_ms"]),
        )
        for row in rows.slice(0, NAMED_MAX).to_pylist()
    )


def _altered(known: pa.Table) -> int:
    """Lost messages whose id came to their destination with another body."""

    def names(fate: str) -> set[tuple[str, str]]:
        rows = known.filter(pc.greater(known[fate], 0))
        return set(zip(rows["destination"].to_pylist(), rows["message_id"].to_pylist(), strict=True))

    return sum(message_id != "" for _, message_id in names("lost") & names("unexpected"))


def _outages(parked: pa.Table) -> tuple[Outage, ...]:
    counted = ("accepted", "arrived", *FATES)
    table = parked.append_column("minute", pc.divide(parked["accepted_ms"], MINUTE_MS))
    aggregates = [
        ("accepted_ms", "min"),
        ("accepted_ms", "max"),
        ("delay", "max"),
        *((name, "sum") for name in counted),
    ]
    return outages_of(
        ParkedMinute(
            row["minute"],
            row["accepted_ms_min"],
            row["accepted_ms_max"],
            row["accepted_sum"],
            {fate: row[f"{fate}_sum"] for fate in counted[1:]},
            row["delay_max"],
        )
        for row in table.group_by("minute").aggregate(aggregates).to_pylist()
    )
