"""Which primary each row is about, and the rows of the one that was chosen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from pairbus.reports.engines.audit_log import BACKLOG_PATTERN, DEAD_LETTER_PATH, TRANSFER_DEAD_PATH
from pairbus.reports.engines.primaries import DIRECT_ROLES, PARKED_ROLES, Choice, Seen, namespace_key

_BACKLOG_PATH: Final = re.compile(BACKLOG_PATTERN)


def seen_in(rows: pa.Table, role: str) -> set[Seen]:
    """The primaries and namespaces that rows of a ledger name. Notes of an audit log have no entity, and name their namespace."""
    pairs = rows.select(["entity", "namespace"]).group_by(["entity", "namespace"]).aggregate([])
    return {
        Seen(role, _primary(row["entity"]), namespace_key(row["namespace"]))
        for row in pairs.to_pylist()
        if row["entity"] or namespace_key(row["namespace"])
    }


def of_one_primary(
    parts: Mapping[str, Sequence[pa.Table]], choice: Choice
) -> tuple[list[pa.Table], Counter[str]]:
    """All rows but those about other primaries, without their namespace, as one table for each input; and how many of each were left out."""
    found = []
    left_out: Counter[str] = Counter()
    for role, tables in parts.items():
        of_role = []
        for table in tables:
            kept = table.filter(_is_kept(table, role, choice)) if choice.leaves_out else table
            left_out[role] += table.num_rows - kept.num_rows
            of_role.append(kept.drop_columns(["namespace"]))
        if of_role:
            found.append(pa.concat_tables(of_role))
    return found, left_out


def queue_path(entity: str | None) -> str | None:
    """The backlog queue that a path is of, also that of its dead-letter queue; None for other paths."""
    path = (entity or "").lower()
    if not _BACKLOG_PATH.match(path):
        return None
    return path.removesuffix(DEAD_LETTER_PATH).removesuffix(TRANSFER_DEAD_PATH)


def _is_kept(rows: pa.Table, role: str, choice: Choice) -> Any:
    """Whether each row, of ``place`` and ``namespace``, is about a primary that counts."""
    # Few pairs of namespace and place: each is judged once.
    place, namespace = (
        rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        for name in ("place", "namespace")
    )
    places, namespaces = place.dictionary.to_pylist(), namespace.dictionary.to_pylist()
    kept = pa.array([_counts(role, path, name, choice) for name in namespaces for path in places], pa.bool_())
    code = pc.add(
        pc.multiply(namespace.indices.cast(pa.int64()), len(places)), place.indices.cast(pa.int64())
    )
    return kept.take(code)


def _counts(role: str, path: str | None, namespace: str | None, choice: Choice) -> bool:
    if primary := _primary(path):
        return role not in PARKED_ROLES or primary not in choice.parked_others
    return role not in DIRECT_ROLES or namespace_key(namespace) not in choice.direct_others


def _primary(entity: str | None) -> str:
    return (queue_path(entity) or "").partition("/")[0]
