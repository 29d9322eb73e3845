"""Spark for the commands that report: a session that fits the machine, a progress line, and one clear line when it fails."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import unquote

import click

from pairbus.cli.kit.errors import one_line
from pairbus.cli.kit.output import EXIT_SIGNAL
from pairbus.cli.kit.spark import spark_errors
from pairbus.errors import PairbusError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_MB_MIN: Final = 1_024
MEMORY_MB_MAX: Final = 6_144
MEMORY_SHARE: Final = 4
"""A report takes a quarter of the machine's memory, within these bounds."""
SETTINGS: Final = {
    # Tasks add up what they have of a message before it is passed on: pieces small enough to do that in memory.
    "spark.sql.files.maxPartitionBytes": "16m",
    # Joined again where they turn out small.
    "spark.sql.shuffle.partitions": "32",
}
LOOK_SECONDS: Final = 0.5
CONNECT_SECONDS: Final = 10.0
REPEAT_SECONDS: Final = 1.0
"""After this time a signal whose interruption has not come through is sent again."""
INTERRUPTED: Final = (
    "stopped by {how} before the report was done, and Spark with it: to get the report, run the command again"
)
STANDALONE: Final = "spark://"
_MASTER: Final = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://[^:,]+.*:\d+|yarn|k8s://.+")
_FILE: Final = re.compile(r"(?:reading file|Error reading|read file)[^\n]{0,40}?((?:file:)?/[^\s,\"'\[\]]+)")
_RAISED: Final = re.compile(r"^([A-Za-z_.]+(?:Error|Exception): .{1,300})$", re.MULTILINE)
_NO_SPACE: Final = "No space left on device"
_NO_MEMORY: Final = ("OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY")


def driver_memory() -> str:
    """A quarter of the machine's memory, as Java writes it."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return f"{min(MEMORY_MB_MAX, max(MEMORY_MB_MIN, whole // MEMORY_SHARE))}m"


@contextmanager
def reporting(
    name: str, master: str | None, what: str, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session to report with, with these ``settings``; ``what`` is shown meanwhile.

    Raises:
        UsageError: A file turned out to be damaged.
        PairbusError: Spark did not start, or gave up.
        Interrupted: Ctrl-C was pressed, or SIGTERM came; Java has ended.
    """
    from pairbus.spark.session import spark_session

    wanted = master or os.environ.get("PAIRBUS_SPARK_MASTER", "local")
    check_master(wanted)
    is_local = wanted.startswith("local")
    with interruptible() as hear_again:
        with watched("starting Spark", None):
            spark = spark_session(
                name,
                master=master,
                memory=driver_memory(),
                settings={**(SETTINGS if is_local else {}), **(settings or {})},
            )
        hear_again()
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            with spark_errors(), watched(what, spark):
                yield spark
        except (PySparkException, Py4JError) as error:
            raise plain(error) from None


class Interrupted(click.ClickException):
    """A signal ended a report."""

    @staticmethod
    def by(number: int) -> Interrupted:
        """The error for a signal, with the exit code that says which."""
        made = Interrupted(
            INTERRUPTED.format(how="Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
        )
        made.exit_code = EXIT_SIGNAL + number  # type: ignore[misc]  # click reads it from the error
        return made

    def show(self, file: IO[str] | None = None) -> None:
        """Print one line for a person."""
        click.echo(f"pairbus: {self.message}", file=file, err=file is None)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C and SIGTERM end the work and Java in one sentence. Call what it yields once Spark has put a handler of its own in place of ours.

    Spark's handler asks Java to cancel, over the connection that the interrupted call still holds: that fails, at length.

    Raises:
        Interrupted: Ctrl-C was pressed, or SIGTERM came.
    """
    from pairbus.spark.session import end_java

    stopped_by = 0
    is_ending = threading.Event()
    """The interruption has come through: another one must not disturb the end of Java."""

    def repeat(number: int) -> None:
        # Raised in a finalizer or in a callback of the interpreter, the interruption is lost, and the report would go on.
        while not is_ending.wait(REPEAT_SECONDS):
            os.kill(os.getpid(), number)

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal stopped_by
        if is_ending.is_set():
            return
        if not stopped_by:
            stopped_by = number
            threading.Thread(target=repeat, args=(number,), name="pairbus-interrupt", daemon=True).start()
        raise KeyboardInterrupt

    def is_wanted(_record: logging.LogRecord) -> bool:
        return not stopped_by

    def listen() -> None:
        if threading.current_thread() is threading.main_thread():
            for number in before:
                signal.signal(number, hear)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What py4j logs of the call that was interrupted tells a person nothing.
    logging.getLogger().addFilter(is_wanted)
    listen()
    try:
        yield listen
    except BaseException:
        is_ending.set()
        if not stopped_by:
            raise
        end_java()
        raise Interrupted.by(stopped_by) from None
    finally:
        is_ending.set()
        logging.getLogger().removeFilter(is_wanted)
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def check_master(master: str) -> None:
    """Java takes long to say that a master is none.

    Raises:
        UsageError: It is not the address of one.
        PairbusError: Nobody listens there.
    """
    if not _MASTER.fullmatch(master):
        raise UsageError(
            f"--master {master!r} is no Spark master: write local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT, or leave it out"
        )
    if not master.startswith(STANDALONE):
        return
    reasons = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            reasons.append(str(error))
        else:
            return
    raise PairbusError(
        f"no Spark master answers at {master} ({reasons[0]}): start one, or leave --master out to work on this machine"
    )


def plain(error: Exception) -> PairbusError:
    """What went wrong, from the long texts of Java."""
    text = str(error)
    file = _FILE.search(text)
    if _NO_SPACE in text:
        return PairbusError(
            "Spark ran out of disk space for its work: free some, or name another place in SPARK_LOCAL_DIRS"
        )
    if any(sign in text for sign in _NO_MEMORY):
        return PairbusError(
            "Spark ran out of memory: run it by spark-submit with a larger --driver-memory, or on a cluster"
        )
    if file is not None:
        path = re.sub(r"^/+", "/", unquote(file.group(1).removeprefix("file:").rstrip(".")))
        return UsageError(
            f"{path} cannot be read: it is damaged; restore it, or take it away if it does not belong here"
        )
    # What a Python worker raised stands at the end of its traceback.
    raised = _RAISED.findall(text)
    return PairbusError(f"Spark gave up: {one_line(error)}{' ' + raised[-1] if raised else ''}")


@contextmanager
def watched(text: str, spark: SparkSession | None) -> Iterator[None]:
    """Show to a person what is being done and how far it is; to nobody else."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(text, spark, done), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        click.echo("\r\x1b[2K", err=True, nl=False)


def _show(text: str, spark: SparkSession | None, done: threading.Event) -> None:
    begun_at = time.monotonic()
    while True:
        tasks = "" if spark is None else _tasks(spark)
        click.echo(f"\r\x1b[2K{text} … {time.monotonic() - begun_at:,.0f} s{tasks}", err=True, nl=False)
        if done.wait(LOOK_SECONDS):
            return


def _tasks(spark: SparkSession) -> str:
    """How far the stages under way are; nothing between them."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    total = sum(stage.numTasks for stage in stages if stage is not None)
    completed = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return f", {completed:,} of {total:,} tasks of this step" if total else ""
