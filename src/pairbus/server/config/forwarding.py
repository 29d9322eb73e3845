"""Finds declared entities whose messages come back to them: allowed, as by the service, but seldom meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.model.entity import SUBSCRIPTION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pairbus.server.config.declarations import EntityDeclaration


def forwarding_loops(entities: Iterable[EntityDeclaration]) -> list[tuple[str, ...]]:
    """Loops, as the paths that a message takes; the last one is the first again. Every message in one of them is dead-lettered."""
    declared = {entity.path.lower(): entity for entity in entities}
    nexts: dict[str, list[str]] = {key: [] for key in declared}
    for key, entity in declared.items():
        if entity.kind == SUBSCRIPTION:
            nexts.setdefault(key.rpartition("/subscriptions/")[0], []).append(key)
        target = entity.settings.forward_to
        if target:
            nexts[key].append(target.strip("/").lower())
    loops: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for start in declared:
        # Depth first without recursion: a chain may be as long as the file.
        way: list[str] = []
        waiting = [(start, 0)]
        while waiting:
            key, depth = waiting.pop()
            del way[depth:]
            if key in way:
                loops.append(tuple(declared[step].path for step in (*way[way.index(key) :], key)))
            elif key in declared and key not in seen:
                seen.add(key)
                way.append(key)
                waiting += [(one, depth + 1) for one in reversed(nexts[key])]
    return loops
