"""Creating, finding and listing entities does not look at all the others, and the lists are in the order of names (B63)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.engine.directory import Directory
from pairbus.engine.entity import Entity
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC, Settings
from tests.unit.engine.engine_kit import Bench

ENTITIES = 500


class Counted(dict[Any, Entity]):
    """Entities that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, key: object) -> Entity:
        self.looks += 1
        return super().__getitem__(key)

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()

    def __iter__(self) -> Iterator[Any]:
        self.looks += len(self)
        return super().__iter__()


def _full(bench: Bench) -> None:
    for number in range(ENTITIES):
        bench.namespace.create(QUEUE, f"q{number * 37 % ENTITIES:04d}", Settings(), bench.now)


@pytest.mark.promise("B63")
def test_creating_an_entity_looks_at_no_other(bench: Bench) -> None:
    _full(bench)
    counted = bench.namespace._by_id = Counted(bench.namespace._by_id)

    bench.namespace.create(QUEUE, "one-more", Settings(), bench.now)

    assert counted.looks <= 2, "the new one itself"


@pytest.mark.promise("B63")
def test_a_page_of_a_list_looks_at_the_entities_of_the_page(bench: Bench) -> None:
    _full(bench)
    directory = bench.namespace._directory
    counted = directory._by_path = Counted(directory._by_path)

    page = bench.namespace.entity_page(QUEUE, 100, 110)

    assert [entity.path for entity in page] == [f"q{number:04d}" for number in range(100, 110)]
    assert counted.looks == 10


def test_lists_are_in_the_order_of_names_however_entities_come_and_go(bench: Bench) -> None:
    directory = Directory()
    chosen = random.Random(7)
    kinds = (QUEUE, TOPIC, SUBSCRIPTION)
    there: dict[str, Entity] = {}
    for number in range(400):
        path = f"{chosen.choice('aB')}{chosen.randrange(60)}"
        if path.lower() in there:
            directory.remove(there.pop(path.lower()))
        else:
            entity = Entity(bench.namespace.context, number, chosen.choice(kinds), path, Settings(), None)
            there[path.lower()] = entity
            directory.add(entity)
        if number % 5 == 0:
            for kind in kinds:
                wanted = [there[one] for one in sorted(there) if there[one].kind == kind]
                assert directory.entities(kind, 0, len(wanted)) == wanted
                assert directory.count(kind) == len(wanted)
                assert directory.entities(kind, 2, 5) == wanted[2:5]
    assert {id(entity) for entity in directory.all()} == {id(entity) for entity in there.values()}


def test_an_entity_that_was_replaced_under_its_path_is_not_removed_with_its_successor(bench: Bench) -> None:
    directory = Directory()
    old = Entity(bench.namespace.context, 1, QUEUE, "Orders", Settings(), None)
    new = Entity(bench.namespace.context, 2, TOPIC, "orders", Settings(), None)
    directory.add(old)
    directory.add(new)

    directory.remove(old)

    assert directory.find("ORDERS") is new
    assert directory.count(QUEUE) == 0
    assert directory.entities(TOPIC, 0, 9) == [new]
