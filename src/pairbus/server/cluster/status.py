"""A cluster as people read it: who owns the shard, what every node does, and how far the database's standbys are. No I/O.

``pairbus cluster status`` shows it from the tables; the live page shows what the owner knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pairbus.storage.table.ports import MOVER

if TYPE_CHECKING:
    from pairbus.storage.table.ports import DatabaseCopies, HeldUp, NodeEntry, Ownership

LATE_MS: Final = 5_000
"""A node that has not reported for so long is shown as late: what it last said of itself may be over."""
STALE_MS: Final = 10_000
"""A node that has not reported for so long is shown as gone."""
STOPPED: Final = "stopped"
"""The state that a node reports at last, when it is stopped in an orderly way."""
COMMIT_WAITS: Final = "waiting"
"""The state that an owner reports while it keeps its lease and a commit waits in the database: no client is answered."""


def describe(
    namespace: str, owner: Ownership, nodes: Sequence[NodeEntry], copies: DatabaseCopies | None
) -> dict[str, Any]:
    """Owner, epoch, lease, nodes and standbys, for JSON. ``is_moved``: a move holds the lease, which is no node."""
    is_held = bool(owner.owner) and owner.remaining_ms > 0
    is_owned = is_held and owner.owner != MOVER
    name = owner.owner if is_owned else ""
    return {
        "namespace": namespace,
        "owner": name or None,
        "epoch": owner.epoch,
        "address": owner.address if is_owned else None,
        "lease_seconds_left": round(max(owner.remaining_ms, 0) / 1000, 1) if is_held else 0,
        "is_moved": is_held and not is_owned,
        "nodes": [
            {
                "node": one.node,
                "state": _state(one, name),
                "role": _role(one, name),
                "address": one.address,
                "seen_seconds_ago": round(one.age_ms / 1000, 1),
                "asked": one.asked or None,
                "version": one.version,
            }
            for one in nodes
        ],
        "database": _copies(copies) if copies is not None else None,
    }


def waits_in_words(held_up: Sequence[HeldUp]) -> str:
    """For what calls wait in the database; empty: for nothing that is known."""
    return " and ".join(map(_wait_in_words, held_up))


def _wait_in_words(one: HeldUp) -> str:
    if not one.table:
        return "for the synchronous standby"
    processes = ", ".join(map(str, one.processes)) or "unknown"
    return f"for a lock on {one.table} (held by process {processes})"


def is_reporting(node: NodeEntry) -> bool:
    """Whether a node runs, as far as the database knows."""
    return node.age_ms < STALE_MS and node.state != STOPPED


def _state(node: NodeEntry, owner: str) -> str:
    if node.state == STOPPED:
        return STOPPED
    if node.age_ms >= STALE_MS and node.node != owner:
        return "gone"
    # An owner renews its lease beside its reports: while that lasts, only the reports may wait.
    return "late" if node.age_ms >= LATE_MS else node.state


def _role(node: NodeEntry, owner: str) -> str | None:
    if node.state == STOPPED or not owner:
        return None  # who relays relays to an owner
    if node.node == owner:
        return "owner"
    return "relay" if node.age_ms < LATE_MS else None


def _copies(copies: DatabaseCopies) -> dict[str, Any]:
    return {
        "synchronous_standby_names": copies.synchronous_names,
        "standbys": [
            {
                "standby": one.name or None,
                "state": one.state or None,
                "behind_bytes": one.behind_bytes,
                "behind_seconds": None if one.behind_ms is None else round(one.behind_ms / 1000, 3),
            }
            for one in copies.standbys
        ],
    }
