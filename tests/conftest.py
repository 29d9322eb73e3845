"""What every test gets: a fixed Hypothesis profile. Fixtures for a broker come from ``pairbus.testing.plugin``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pairbus.form import COMPILED, FORM
from tests.collection import check_ids
from tests.scheduling import GroupScheduling, rank_of
from tests.undisturbed import keep_the_collector_out_of_parsing

keep_the_collector_out_of_parsing()

# No deadline: the machine may be shared, and a slow run is not a wrong one. Each test has its own time limit.
# The short form takes the same examples every time: a change is judged, not the luck of the day. The long form explores.
# `make check` takes the quick one.
settings.register_profile(
    "quick", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "short", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin of the test kit, unless its entry point has: that needs the package to be installed."""
    from pairbus.testing import plugin

    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "pairbus")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every process must collect the same tests. Some look where the compiled form shows nothing."""
    check_ids(item.nodeid for item in items)
    items.sort(key=lambda item: rank_of(item.nodeid))
    if FORM.name == COMPILED:
        for item in items:
            if item.get_closest_marker("uncompiled") is not None:
                item.add_marker(pytest.mark.skip(reason="the compiled form runs"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """With ``--dist loadscope``: see ``tests.scheduling``."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def _log_levels_stay() -> Iterator[None]:
    """A command that is run inside a test quiets these loggers for its process, which here is everybody's."""
    loggers = [logging.getLogger(name) for name in ("azure", "pairbus", "py4j")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
