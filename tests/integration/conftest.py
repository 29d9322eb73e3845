"""Tests with real processes and sockets: they get more time, and those that share a broker, a database or a Java run in one process.

A machine may be busy with others, and a slow run is not a wrong one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TEST_SECONDS_MAX = 300
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))
        group = group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def group_of(item: pytest.Item) -> str | None:
    """What must run in one process, so that it is started once: what a file's tests share, and Java."""
    if item.path.parent == HERE / "spark":
        return "spark"
    fixtures = getattr(item, "_fixtureinfo", None)
    shared = () if fixtures is None else fixtures.name2fixturedefs.values()
    is_shared = any(definition.scope == "module" for found in shared for definition in found)
    return str(item.path.relative_to(HERE)) if is_shared else None
