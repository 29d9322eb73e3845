"""Which tests run in one process, and which begin first.

Tests that share a broker, a database, a Java or simulated worlds run in one process, so that each is started or run once. Whatever takes
long begins early: what is left at the end are many short tests, which keep every process busy until the last one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
SPARK = "tests/integration/spark/"
_SPARK_SESSION = "from tests.integration.spark.kit import"
SHORT = ("tests/unit/", "tests/property/", "tests/contract/", "tests/typing/")
_SHARED = ('scope="module"', 'scope="session"', "\n@cache\n")


def unit_of(test_id: str) -> str:
    """The name of the group that a test runs in: one for all of Spark, its file if that shares something, otherwise itself."""
    file = test_id.partition("::")[0]
    if _needs_java(file):
        return SPARK
    return file if file.startswith(SHORT) or _shares(file) else test_id


def rank_of(test_id: str) -> int:
    """Tests with a lower rank begin first."""
    file = test_id.partition("::")[0]
    if _needs_java(file):
        return 0
    if file.startswith("tests/integration/"):
        return 1 if _shares(file) else 2
    return 4 if file.startswith(SHORT) else 3


def _needs_java(file: str) -> bool:
    return file.startswith(SPARK) or _SPARK_SESSION in _text(file)


def _shares(file: str) -> bool:
    return any(word in _text(file) for word in _SHARED)


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text()


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no type information
    """Gives each process the next group of tests as soon as it has none."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
