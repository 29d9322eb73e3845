"""What the tests of the Spark connector share: one session, and a namespace for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.contract import Bus, running_bus
from tests.integration.spark.kit import small_session


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return small_session()


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with running_bus() as running:
        yield running
