"""The page that explains pairing shows the states, and the changes between them, that ``EntityHealth`` has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.pairing.rules.health import Change, EntityHealth, Health

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "explanation" / "pairing.md").read_text()
INTERVAL_MS = 5_000

HAPPENINGS: list[Callable[[EntityHealth], list[Change]]] = [
    lambda entity: entity.send_succeeded(1),
    lambda entity: entity.send_failed(1, "timeout"),
    lambda entity: entity.tick(1 + INTERVAL_MS),
    lambda entity: entity.ping_succeeded(1),
    lambda entity: entity.ping_failed(1, "gone", entity_is_gone=True),
    lambda entity: entity.ping_failed(1, "refused", entity_is_gone=False),
    lambda entity: entity.found_gone(1, "gone", ValueError()),
    lambda entity: entity.fail_over(1),
    lambda entity: entity.mark_healthy(1),
]
"""Everything that can change the health of an entity, at a time when it has its effect."""


def entity_in(state: Health) -> EntityHealth:
    entity = EntityHealth("orders", INTERVAL_MS, 1_000)
    if state is not Health.HEALTHY:
        entity.send_failed(0, "timeout")
    if state in (Health.FAILED_OVER, Health.REFUSING):
        entity.tick(INTERVAL_MS)
    if state is Health.REFUSING:
        entity.ping_failed(INTERVAL_MS, "gone", entity_is_gone=True)
    assert entity.state is state
    return entity


def changes_of_the_code() -> set[tuple[str, str]]:
    found = set()
    for state in Health:
        for happens in HAPPENINGS:
            changes = happens(entity_in(state))
            found |= {(change.before.value, change.after.value) for change in changes}
    return found


def changes_of_the_page() -> set[tuple[str, str]]:
    section = PAGE.partition("## The states of an entity")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", section, re.MULTILINE)[1:]
    plain = [[re.sub(r"\[(.+?)\]\(.+?\)", r"\1", cell) for cell in row] for row in rows]
    return {(before, after) for befores, after in plain for before in befores.split(", ")}


def test_the_table_has_the_changes_of_state_that_can_happen_and_no_others() -> None:
    assert changes_of_the_page() == changes_of_the_code()


@pytest.mark.parametrize("state", Health)
def test_the_figure_shows_every_state(state: Health) -> None:
    figure = (DOCS / "images" / "pairing-states.svg").read_text()

    assert f">{state.value}</text>" in figure
