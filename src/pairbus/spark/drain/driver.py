"""The driver of the Spark drain: plans slices, lets tasks drain them, and writes the ledger.

The loop: count what is in the backlog, share it out over tasks, let them drain for a slice, write the ledger, report
progress. There is no checkpoint, so a kill can lose none: a message that is not completed is in its backlog queue.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from azure.servicebus.exceptions import ServiceBusError

from pairbus.drain.lookups.older import FOLLOW_MS
from pairbus.drain.lookups.search import IDLE_MS, NOTHING
from pairbus.drain.lookups.waits import POLL_SECONDS
from pairbus.drain.rules.order import OrderPolicy
from pairbus.drain.rules.plan import NotFoundPolicy
from pairbus.drain.rules.restoring import TimeToLivePolicy
from pairbus.errors import PairbusError, UsageError
from pairbus.pairing.naming import backlog_index, check_different, missing_queues
from pairbus.sdk.connection_string import namespace_name, normal_host, parse_connection_string
from pairbus.sdk.failures import Failure, classify
from pairbus.spark.drain.census import Census
from pairbus.spark.drain.ledger import LedgerWriter
from pairbus.spark.drain.report import Count, Progress, Report
from pairbus.spark.drain.rows import MOVED
from pairbus.spark.drain.shares import share_out
from pairbus.spark.drain.task import WINDOW, TaskSettings
from pairbus.spark.drain.watch import Watch
from pairbus.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKLOG_QUEUES: Final = 10
SLICE_SECONDS: Final = 10.0
SLICE_SECONDS_MAX: Final = 600.0
PATIENCE_SECONDS: Final = 60.0
"""How long ``--once`` goes on while nothing can be delivered."""
PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 15.0
TASKS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    """The options of ``pairbus syphon --engine spark``.

    Args:
        primary: Connection string of the namespace that messages are delivered to; needs the right to send.
        secondary: Connection string of the namespace that holds the backlog; needs the right to listen.
        primary_namespace: The primary's own name when its connection string does not tell.
        primary_aliases: Further addresses of the primary; messages parked for one of them are its own.
        queues: How many backlog queues the pairing uses.
        drains_extra: Drain queues beyond that count too.
        master: A Spark master; every core of this machine unless given.
        once: End when what was there at the start is delivered or dead-lettered.
        order: ``session`` or ``partition`` keeps the order of every session (and partition key), with one task per backlog
            queue. ``relaxed`` keeps that of clients that keep one; several tasks may share a queue, and then wait for
            each other where they meet the same session.
        follow_seconds: How long a message waits for the one of another backlog queue that it follows.
        tasks: How many tasks; the cluster's cores unless given.
        slice_seconds: How long a task drains before the driver plans again.
        patience_seconds: How long ``once`` goes on while nothing moves.
        ledger: A directory of this machine for the ledger, or a URL that executors reach; a temporary one unless given.
        not_found: What happens to messages whose destination does not exist.
        time_to_live: Whether time in the backlog counts.
        settings: More Spark settings.
        authorities: Certificate authorities to trust besides the public ones, as text in PEM form; executors get it
            with the job and need no file.
    """

    primary: str = field(repr=False)
    secondary: str = field(repr=False)
    primary_namespace: str | None = None
    primary_aliases: tuple[str, ...] = ()
    queues: int = BACKLOG_QUEUES
    drains_extra: bool = False
    master: str | None = None
    once: bool = False
    order: OrderPolicy = "relaxed"
    follow_seconds: float = FOLLOW_MS / 1000
    tasks: int | None = None
    slice_seconds: float = SLICE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    window: int = WINDOW
    ledger: str | None = None
    not_found: NotFoundPolicy = "dead-letter"
    time_to_live: TimeToLivePolicy = "freeze"
    settings: dict[str, str] = field(default_factory=dict)
    authorities: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check("queues", self.queues, 1, 10_000)
        _check("tasks", self.tasks if self.tasks is not None else 1, 1, TASKS_MAX)
        _check("slice_seconds", self.slice_seconds, 1, SLICE_SECONDS_MAX)
        _check("window", self.window, 1, 10_000)
        for name, value, allowed in (
            ("order", self.order, ("relaxed", "session", "partition")),
            ("not_found", self.not_found, ("dead-letter", "wait")),
            ("time_to_live", self.time_to_live, ("freeze", "deduct")),
        ):
            if value not in allowed:
                raise UsageError(f"{name} is {value!r}: expected one of {', '.join(allowed)}")


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}: expected {low} to {high}")


def run_syphon(
    options: SyphonOptions,
    *,
    stop: threading.Event | None = None,
    report_progress: Callable[[Progress], None] = lambda progress: None,  # noqa: ARG005 - not shown by default
    say: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005 - not shown by default
    spark: SparkSession | None = None,
) -> Report:
    """Drain the backlog into the primary.

    Guarantees: a message leaves the backlog only after the primary accepted it (P34). Killing a worker, an executor
    or this driver at any point loses nothing, and repeats at most window × tasks messages (twice that while a
    destination does not answer), under their old ids, so that a destination with duplicate detection keeps one (P35, P36). Memory does not grow with the backlog (D10).

    Args:
        options: What to drain, and how.
        stop: Set it to end after the running slice.
        report_progress: Called after each slice.
        say: Called once with a sentence when there are no backlog queues.
        spark: A session to use; a quiet one of our own unless given.
    """
    return _Run(options, stop or threading.Event(), report_progress, say, spark).run()


class _Run:
    def __init__(
        self,
        options: SyphonOptions,
        stop: threading.Event,
        report_progress: Callable[[Progress], None],
        say: Callable[[str], None],
        spark: SparkSession | None,
    ) -> None:
        first = parse_connection_string(options.primary, "primary")
        second = parse_connection_string(options.secondary, "secondary")
        check_different(
            *(
                [normal_host(host, is_emulator=side.is_emulator) for host in side.hosts]
                for side in (first, second)
            )
        )
        self._name = namespace_name(first.host, first.namespace, options.primary_namespace)
        self._options = options
        self._stop = stop
        self._report_progress = report_progress
        self._say = say
        path = options.ledger or tempfile.mkdtemp(prefix="pairbus-ledger-")
        self._ledger = LedgerWriter(path, uuid.uuid4().hex[:12])
        self._report = Report(ledger=path)
        self._settings = TaskSettings(
            primary=options.primary,
            secondary=options.secondary,
            seconds=options.slice_seconds,
            window=options.window,
            not_found=options.not_found,
            time_to_live=options.time_to_live,
            primary_aliases=options.primary_aliases,
            order=options.order,
            follow_seconds=options.follow_seconds,
            authorities=options.authorities,
        )
        self._spark = spark
        self._watch: Watch | None = None
        self._targets: dict[str, int] = {}
        """The last message that was in each backlog queue at the start, of those that may still hold such messages."""

    def run(self) -> Report:
        started = time.monotonic()
        census = Census(self._options.secondary, self._name, self._options.queues, self._options.authorities)
        try:
            if self._options.once:
                self._drain_once(census)
            else:
                self._drain_continuously(census)
            self._report.left = self._left(census) if self._options.once else {}
        finally:
            if self._watch is not None:
                self._watch.close()
                if self._watch.rows:
                    self._write_watched(self._session(), self._watch)
            census.close()
            self._report.seconds = time.monotonic() - started
        return self._report

    # --- once, or until stopped -----------------------------------------------------------------------------

    def _drain_once(self, census: Census) -> None:
        backlog = self._backlog(census)
        if not backlog and not self._report.extra:
            text, is_of_others = census.nothing_found()
            if is_of_others:
                raise UsageError(text)
            self._say(text + NOTHING)
        for queue, count in backlog.items():
            if count != 0:
                self._set_target(census, queue)
        stuck_since: float | None = None
        while not self._stop.is_set():
            left = self._left(census)
            if not left:
                return
            moved = self._slice(left)
            if moved:
                stuck_since = None
                continue
            now = time.monotonic()
            stuck_since = now if stuck_since is None else stuck_since
            if now - stuck_since >= self._options.patience_seconds:
                return
            self._stop.wait(PAUSE_SECONDS_MIN)

    def _drain_continuously(self, census: Census) -> None:
        self._watch = Watch(self._settings)
        pause = PAUSE_SECONDS_MIN
        has_said = False
        while not self._stop.is_set():
            try:
                backlog = self._backlog(census)
                waiting = {queue: count for queue, count in backlog.items() if count != 0}
            except (ServiceBusError, OSError, PairbusError):
                # The secondary does not answer: try again later.
                self._stop.wait(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
                continue
            if not backlog and not self._report.extra:
                if not has_said:
                    self._say(f"{census.nothing_found()[0]}; this drain waits for that")
                has_said = True
                self._stop.wait(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
            elif waiting:
                self._watch.cover(queue for queue in backlog if queue not in waiting)
                if self._slice(waiting, watched=self._watch):
                    pause = PAUSE_SECONDS_MIN
                else:
                    # Another receiver holds what is there, or its destinations are unavailable: no reason to hurry.
                    self._stop.wait(pause)
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
            else:
                pause = PAUSE_SECONDS_MIN
                self._watch.cover(backlog)
                self._wait_for_messages(self._watch, IDLE_MS / 1000 if census.may_list else POLL_SECONDS)

    def _wait_for_messages(self, watch: Watch, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < end:
            if watch.wait(1.0):
                return

    # --- what is in the backlog ----------------------------------------------------------------------------

    def _backlog(self, census: Census) -> dict[str, int | None]:
        found = census.backlog()
        extra = {
            queue: count
            for queue, count in found.items()
            if (backlog_index(self._name, queue) or 0) >= self._options.queues
        }
        missing = missing_queues(self._name, found, self._options.queues)
        self._report.deleted = [queue for queue in missing if queue not in self._report.vanished]
        if self._options.drains_extra:
            return found
        self._report.extra = extra
        return {queue: count for queue, count in found.items() if queue not in extra}

    def _set_target(self, census: Census, queue: str) -> None:
        try:
            highest = census.highest(queue)
        except ServiceBusError as error:
            self._vanished(queue, error)
            return
        if highest is not None:
            self._targets[queue] = highest

    def _left(self, census: Census) -> dict[str, int | None]:
        """Queues that still hold messages of those that were there at the start."""
        counts = self._backlog(census)
        left: dict[str, int | None] = {}
        for queue, target in list(self._targets.items()):
            if queue not in counts:
                self._vanished(queue)
                continue
            try:
                first = census.first(queue) if counts[queue] != 0 else None
            except ServiceBusError as error:
                self._vanished(queue, error)
                continue
            if first is not None and first <= target:
                left[queue] = counts[queue]
            else:
                del self._targets[queue]  # all delivered: when it is deleted now, none of them is lost
        self._report.deleted = [name for name in self._report.deleted if name not in self._report.vanished]
        return left

    def _vanished(self, queue: str, error: ServiceBusError | None = None) -> None:
        """A backlog queue does not exist any more. Raises an error that says something else."""
        if error is not None and classify(error) is not Failure.NOT_FOUND:
            raise error
        self._targets.pop(queue, None)
        self._report.vanished.append(queue)

    # --- a slice ----------------------------------------------------------------------------------

    def _slice(self, backlog: dict[str, int | None], watched: Watch | None = None) -> int:
        """Run one slice. Returns how many messages were delivered."""
        spark = self._session()
        tasks = self._options.tasks or spark.sparkContext.defaultParallelism
        shares = share_out(backlog, tasks, is_ordered=self._settings.order != "relaxed")
        before, began = self._report.moved, time.monotonic()
        aside = sum(self._report.set_aside.values())
        self._report.slices += 1
        try:
            counts = self._run_tasks(spark, shares)
        except Exception as error:
            if not _is_spark_failure(error):
                raise
            # Workers died more often than Spark tries again. The locks of what they held lapse.
            self._report.failed_slices += 1
            counts = []
        self._report.add(counts)
        if watched is not None and watched.rows:
            self._write_watched(spark, watched)
        moved = self._report.moved - before
        seconds = max(0.001, time.monotonic() - began)
        gone = moved + sum(self._report.set_aside.values()) - aside
        self._report_progress(self._progress(backlog, moved, gone, seconds))
        return moved

    def _session(self) -> SparkSession:
        from pairbus.spark.drain.source import DrainDataSource

        if self._spark is None:
            self._spark = spark_session(
                "pairbus syphon", master=self._options.master, settings=self._options.settings
            )
        self._spark.dataSource.register(DrainDataSource)
        return self._spark

    def _run_tasks(self, spark: SparkSession, shares: list[tuple[str, ...]]) -> list[Count]:
        from pairbus.spark.drain.source import FORMAT

        settings = replace(
            self._settings, messages_max=self._ledger.messages_max(self._settings.messages_max, len(shares))
        )
        is_speculated = spark.sparkContext.getConf().get("spark.speculation", "false") == "true"
        rows = (
            spark.read.format(FORMAT)
            .option("settings", settings.as_json())
            .option("plan", json.dumps({"shares": shares, "is_speculated": is_speculated}))
            .option("primaryConnectionString", settings.primary)
            .option("secondaryConnectionString", settings.secondary)
            .load()
        )
        return self._ledger.write_slice(spark, rows, self._report.slices)

    def _write_watched(self, spark: SparkSession, watched: Watch) -> None:
        """Write what the watch drained into the ledger."""
        rows, watched.rows = watched.rows, []
        self._ledger.write_rows(spark, rows, self._report.slices)
        self._report.moved += sum(1 for row in rows if row.outcome == MOVED)

    def _progress(self, backlog: dict[str, int | None], moved: int, gone: int, seconds: float) -> Progress:
        """How far the drain is. ``gone``: no longer in the backlog, delivered or dead-lettered."""
        counts = list(backlog.values())
        known = [count for count in counts if count is not None]
        left = max(0, sum(known) - gone) if len(known) == len(counts) else None
        return Progress(
            moved=self._report.moved,
            left=left,
            rate_per_s=moved / seconds,
            set_aside=sum(self._report.set_aside.values()),
            waiting=dict(self._report.waiting),
        )


def _is_spark_failure(error: BaseException) -> bool:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JJavaError)
