"""Compaction writes what is true now once, and nothing that was replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.engine.records import DuplicateSeen, EntityPut, NamespacePut, Record
from pairbus.model.access import RIGHTS, AccessRule
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import SECOND, Bench


def _restated(bench: Bench, records: list[Record]) -> list[Record]:
    """The records that compaction writes again."""
    before = len(bench.journal.records)
    for record in records:
        bench.namespace.restate(record, bench.now)
    return bench.journal.records[before:]


@pytest.mark.promise("B62")
def test_old_settings_of_an_entity_are_not_written_again(bench: Bench) -> None:
    entity = bench.entity("q")
    for number in range(50):
        bench.now += 1
        bench.namespace.update(entity, replace(entity.settings, user_metadata=str(number)), bench.now)
    told = [record for record in bench.journal.records if isinstance(record, EntityPut)]
    assert len(told) == 51

    kept = _restated(bench, list(told))

    assert len(kept) == 1
    assert isinstance(kept[0], EntityPut)
    assert '"49"' in kept[0].settings


@pytest.mark.promise("B62")
def test_old_access_rules_of_the_namespace_are_not_written_again(bench: Bench) -> None:
    for number in range(20):
        key = f"key-{number}"
        rules = (AccessRule(name="root", rights=RIGHTS, primary_key=key, secondary_key=key),)
        bench.namespace.set_access_rules(rules, bench.now)
    told = [record for record in bench.journal.records if isinstance(record, NamespacePut)]

    kept = _restated(bench, list(told))

    assert len(kept) == 1
    assert isinstance(kept[0], NamespacePut)
    assert "key-19" in kept[0].settings


@pytest.mark.promise("B62")
def test_an_id_that_comes_again_and_again_is_restated_once() -> None:
    window = 20 * SECOND
    bench = Bench()
    settings = Settings(requires_duplicate_detection=True, duplicate_window_ms=window)
    queue = bench.queue(settings=settings)
    for _ in range(30):
        bench.send(queue, "x", message_id="again")
        bench.now += window + 1
    bench.now -= window
    told = [record for record in bench.journal.records if getattr(record, "duplicate_key", b"")]
    assert len(told) == 30

    kept = [record for record in _restated(bench, list(told)) if isinstance(record, DuplicateSeen)]

    assert len(kept) == 1
    assert bench.send(queue, "x", message_id="again") == 0
