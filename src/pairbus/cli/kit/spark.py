"""What the commands that run on Spark share: the option --conf, and one line for an error of Spark."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.kit.errors import CHARACTERS_MAX, one_line, way_out
from pairbus.cli.kit.options import option
from pairbus.errors import PairbusError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_END_SECONDS: Final = 2.0
_OWN: Final = re.compile(r"^[ \t]*pairbus\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
"""The last line of a Python traceback with an error of ours. Spark passes errors of its workers on as such text."""
_USAGE: Final = frozenset({"UsageError", "CheckpointMismatch"})


def conf_option() -> Any:
    """The option ``--conf``: settings for Spark."""
    return option(
        "A Spark setting, for example spark.driver.memory=4g. May repeat.",
        (),
        flag="--conf",
        metavar="KEY=VALUE",
    )


def spark_settings(given: Iterable[str]) -> dict[str, str]:
    """The settings that ``--conf`` gave.

    Raises:
        UsageError: One is not of the form spark.KEY=VALUE.
    """
    settings: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf is {key!r}: expected spark.KEY=VALUE")
        settings[key] = value
    return settings


@contextmanager
def spark_errors(ended: str = "") -> Iterator[None]:
    """Turn errors of Spark and of its Java process into one line.

    Args:
        ended: What happens at the next start of a stream. With it errors that only Spark knows become one line, too.

    Raises:
        PairbusError: Java ended, or a task gave up with an error of ours.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from pairbus.spark.session import java_exit

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        code = java_exit(JAVA_END_SECONDS)
        if code is not None:
            raise PairbusError(java_ended(code)) from None
        own = own_error(str(error)) or _of_spark(error, ended)
        if own is None:
            raise
        raise own from None


def _of_spark(error: BaseException, ended: str) -> PairbusError | None:
    """One line for an error that is Spark's own; None for any other error, and if nobody knows what comes next."""
    if not ended or way_out(error) is not None:
        return None
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by: ")]
    reason = causes[-1].removeprefix("Caused by: ") if causes else one_line(error)
    return PairbusError(f"Spark stopped: {reason[:CHARACTERS_MAX]}; {ended}")


@contextmanager
def closing_spark(spark: SparkSession) -> Iterator[None]:
    try:
        yield
    finally:
        spark.stop()


def java_ended(code: int) -> str:
    """One line for a Java process that ended before its work was done."""
    how = (
        f"was killed by signal {-code} ({_signal_name(-code)})"
        if code < 0
        else f"ended with exit code {code}"
    )
    return (
        f"the Java process that Spark runs in {how}: if the machine ran out of memory, give it less "
        "(--conf spark.driver.memory=1g); then run the command again"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def own_error(text: str) -> PairbusError | None:
    """The error of ours that a worker raised, from Spark's long text about it; None when there is none."""
    found = _OWN.findall(text)
    if not found:
        return None
    name, line = found[-1]
    return (UsageError if name in _USAGE else PairbusError)(line.strip())
