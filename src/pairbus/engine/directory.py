"""Finds the entities of a namespace by path, and lists them by kind in the order of their names.

A namespace may have ten thousand entities. Creating one, finding one and listing a page of them must not look at all the others:
the paths of each kind are kept in order. New paths wait in a list of their own until somebody asks for the order, so that
a restart, which adds all of them, sorts once.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairbus.engine.entity import Entity


class _Paths:
    """The canonical paths of one kind of entity."""

    __slots__ = ("_new", "_ordered")

    def __init__(self) -> None:
        self._ordered: list[str] = []
        self._new: list[str] = []

    def __len__(self) -> int:
        return len(self._ordered) + len(self._new)

    def add(self, path: str) -> None:
        self._new.append(path)

    def remove(self, path: str) -> None:
        ordered = self.ordered()
        del ordered[bisect_left(ordered, path)]

    def ordered(self) -> list[str]:
        """All of them, in order; not to be changed."""
        if self._new:
            # Two runs in order, which the sort merges; a few new paths cost little more than a copy.
            self._new.sort()
            self._ordered += self._new
            self._ordered.sort()
            self._new = []
        return self._ordered


class Directory:
    """All entities of a namespace, subscriptions among them."""

    __slots__ = ("_by_path", "_paths")

    def __init__(self) -> None:
        self._by_path: dict[str, Entity] = {}
        """By canonical path."""
        self._paths: dict[int, _Paths] = {QUEUE: _Paths(), TOPIC: _Paths(), SUBSCRIPTION: _Paths()}

    def find(self, path: str) -> Entity | None:
        """The entity of this path in any spelling."""
        return self._by_path.get(canonical(path))

    def add(self, entity: Entity) -> None:
        path = canonical(entity.path)
        before = self._by_path.get(path)
        if before is not None:
            self._paths[before.kind].remove(path)
        self._by_path[path] = entity
        self._paths[entity.kind].add(path)

    def remove(self, entity: Entity) -> None:
        path = canonical(entity.path)
        if self._by_path.get(path) is entity:
            del self._by_path[path]
            self._paths[entity.kind].remove(path)

    def count(self, kind: int) -> int:
        return len(self._paths[kind])

    def entities(self, kind: int, first: int, last: int) -> list[Entity]:
        """Those of a kind from the place ``first`` to before ``last``, by name."""
        by_path = self._by_path
        return [by_path[path] for path in self._paths[kind].ordered()[first:last]]

    def all(self) -> Iterator[Entity]:
        """Every entity, in no order."""
        yield from self._by_path.values()
