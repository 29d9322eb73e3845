"""Options of the commands that run on Spark."""

from __future__ import annotations

from typing import Any

from pairbus.cli.kit.options import option


def conf_option() -> Any:
    """The option ``--conf``: settings for Spark."""
    return option(
        "A Spark setting, for example spark.driver.memory=4g. May repeat.",
        (),
        flag="--conf",
        metavar="KEY=VALUE",
    )
