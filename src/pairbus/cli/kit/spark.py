"""Options of the commands that run on Spark."""

from __future__ import annotations

from typing import Any

from pairbus.cli.kit.options import option


def conf_option() -> Any:
    """The option ``--conf``: settings for Spark."""
    return option(
        "A Spark setting, as spark.driver.memory=4g; as often as needed.",
        (),
        flag="--conf",
        metavar="KEY=VALUE",
    )
