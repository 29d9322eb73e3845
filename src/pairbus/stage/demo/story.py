"""The acts, one after the other, and what came of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pairbus.drain.backlog import Backlog
from pairbus.drain.client import PairedServiceBusClient
from pairbus.errors import PairbusError
from pairbus.local.management import ManagementClient
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.rules.health import Health
from pairbus.pairing.statistics import Counters
from pairbus.reports.bill.money import shown
from pairbus.stage.demo.actors import Consumer, Sender, wait_until
from pairbus.stage.demo.book import Book, Verdict
from pairbus.stage.demo.scene import Scene
from pairbus.testing import Namespace, Queue

PRIMARY: Final = "contoso"
SECONDARY: Final = "contoso-backup"
QUEUES: Final = ("orders", "payments")
SESSION_QUEUE: Final = "invoices"
TOPIC: Final = "events"
SUBSCRIPTIONS: Final = ("billing", "audit")
ENTITIES: Final = (*QUEUES, SESSION_QUEUE, TOPIC)
DESTINATIONS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (name,) for name in (*QUEUES, SESSION_QUEUE)},
    TOPIC: tuple(f"{TOPIC}/Subscriptions/{name}" for name in SUBSCRIPTIONS),
}
BACKLOG_QUEUES: Final = 4
FAILOVER: Final = timedelta(seconds=2)
PING: Final = timedelta(seconds=1)
KILL_AT: Final = 0.3
RETURN_AT: Final = 0.7
"""Of all messages accepted, when the primary is killed and when it comes back."""
ACT_SECONDS: Final = 8.0
"""About how long the sends before the kill take, and those during the outage."""
PATIENCE_SECONDS: Final = 60.0
SPARK_SECONDS_MAX: Final = 180.0
DRAINS_MAX: Final = 3
LEAVE_SECONDS: Final = 3.0
WORK_PREFIX: Final = "pairbus-demo-"


class StoryBroken(PairbusError):
    """The demo could not go on; the text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    messages: int = 1_200
    seed: int = 7
    engine: str = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ``--json`` prints."""

    holds: bool
    engine: str
    seed: int
    sent: int
    accepted: int
    unknown: int
    parked: int
    home: int
    lost: int
    duplicated: int
    redelivered: int
    failover_seconds: float
    failback_seconds: float
    drain_seconds: float
    set_up_seconds: float
    seconds: float
    """From the first send to the proof."""
    pings: int
    operations: int
    cost: str
    pairing_operations: int
    """Those that a single namespace would not have seen."""
    pairing_cost: str
    bill: list[dict[str, object]]
    currency: str
    price_source: str
    certificate: dict[str, object]
    spark_certificate: dict[str, object] | None


def tell(options: DemoOptions, scene_ready: Callable[[Scene], None]) -> Result:
    """Tell the whole story. ``scene_ready`` gets the scene to draw before anything happens."""
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX))
    book = Book(DESTINATIONS)
    scene = Scene(book, PRIMARY, SECONDARY)
    scene_ready(scene)
    try:
        with ExitStack() as stack:
            stack.callback(scene.stop)
            return _Story(options, work, book, scene, stack).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Story:
    def __init__(self, options: DemoOptions, work: Path, book: Book, scene: Scene, stack: ExitStack) -> None:
        self._options = options
        self._work = work
        self._book = book
        self._scene = scene
        self._stack = stack
        self._pace = max(10.0, options.messages * KILL_AT / ACT_SECONDS / len(ENTITIES))
        self._session: Future[Any] = Future()
        self._began_at = 0.0
        self._backlog_data = work
        self._senders: list[Sender] = []
        self._consumers: list[Consumer] = []

    def run(self) -> Result:
        scene = self._scene
        primary, secondary = self._set_up()
        client = self._pair(primary, secondary)
        self._began_at = time.monotonic()
        scene.act = "All is well: sends go to the primary"
        self._go_on_stage(client, primary.connection_string)
        self._need(lambda: self._accepted >= self._options.messages * KILL_AT, "the first sends")
        scene.look()
        failover_seconds = self._outage(primary, client)
        failback_seconds = self._return(primary, client)
        drain_seconds = self._way_home(primary, secondary)
        self._finish()
        scene.look()
        return self._judge(client, failover_seconds, failback_seconds, drain_seconds)

    @property
    def _accepted(self) -> int:
        return self._book.counts[1]

    def _need(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition, PATIENCE_SECONDS):
            raise StoryBroken(f"{what} did not happen within {PATIENCE_SECONDS:g} s")

    # -- acts ----------------------------------------------------------------------------------

    def _set_up(self) -> tuple[Namespace, Namespace]:
        if self._options.engine == "spark":
            threading.Thread(target=self._warm_up, name="spark", daemon=True).start()
        queues = [Queue(name, requires_duplicate_detection=True) for name in QUEUES]
        queues.append(Queue(SESSION_QUEUE, requires_session=True, requires_duplicate_detection=True))
        topic = {
            "Name": TOPIC,
            "Properties": {"RequiresDuplicateDetection": True},
            "Subscriptions": [{"Name": name} for name in SUBSCRIPTIONS],
        }
        first = Namespace(PRIMARY, process=True, queues=queues, config={"Topics": [topic]}, faults=False)
        # Spark's certificate tells from the audit what went through the backlog: senders do not know.
        second = Namespace(SECONDARY, process=True, faults=False, audit=self._options.engine == "spark")
        for namespace in (first, second):
            self._stack.callback(namespace.close)
        starts = [threading.Thread(target=namespace.start) for namespace in (first, second)]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        if not first.is_running or not second.is_running:
            raise StoryBroken("a namespace did not start; `pairbus serve` says why")
        self._backlog_data = second.data
        self._scene.watch(
            *(ManagementClient(one.http_address, one.connection_string) for one in (first, second))
        )
        self._scene.say(f"{PRIMARY} and {SECONDARY} serve, each in a process of its own", "good")
        if self._options.engine == "spark":
            self._spark()
        return first, second

    def _spark(self) -> Any:
        try:
            return self._session.result(SPARK_SECONDS_MAX)
        except TimeoutError:
            raise StoryBroken(
                f"Spark did not start within {SPARK_SECONDS_MAX:g} s on this machine; `--engine local` needs none"
            ) from None

    def _warm_up(self) -> None:
        try:
            from pairbus.spark.session import spark_session

            session = spark_session("pairbus demo", log=self._work / "spark.log")
            session.range(1).count()
            self._session.set_result(session)
            self._scene.say("Spark is ready to drain", "good")
        except BaseException as error:  # noqa: BLE001 - whoever waits for the session gets the reason
            self._session.set_exception(error)

    def _pair(self, primary: Namespace, secondary: Namespace) -> PairedServiceBusClient:
        options = SendAvailabilityOptions(
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=FAILOVER,
            ping_primary_interval=PING,
            while_suspect="wait",
        )
        details: dict[str, Any] = {"retry_total": 0}
        client = PairedServiceBusClient.from_connection_strings(
            primary.connection_string,
            secondary.connection_string,
            options=options,
            on_event=self._scene.event,
            seed=self._options.seed,
            **details,
        )
        self._stack.callback(client.close)
        client.pair()
        self._scene.client = client
        return client

    def _go_on_stage(self, client: PairedServiceBusClient, connection_string: str) -> None:
        share, rest = divmod(self._options.messages, len(ENTITIES))
        for index, entity in enumerate(ENTITIES):
            self._senders.append(
                Sender(
                    client,
                    entity,
                    is_topic=entity == TOPIC,
                    has_sessions=entity == SESSION_QUEUE,
                    amount=share + (index < rest),
                    pace=lambda: self._pace,
                    book=self._book,
                    seed=f"{self._options.seed}/{entity}",
                )
            )
        for entity, places in DESTINATIONS.items():
            for place in places:
                has_sessions = entity == SESSION_QUEUE
                self._consumers.append(
                    Consumer(connection_string, place, has_sessions=has_sessions, book=self._book)
                )
        for actor in (*self._consumers, *self._senders):
            actor.start()
        self._stack.callback(self._leave_stage)

    def _leave_stage(self) -> None:
        actors = (*self._consumers, *self._senders)
        for actor in actors:
            actor.ask_to_leave()
        for actor in actors:
            actor.join(LEAVE_SECONDS)

    def _outage(self, primary: Namespace, client: PairedServiceBusClient) -> float:
        scene = self._scene
        scene.act = "The primary is gone"
        killed_at = time.monotonic()
        primary.kill()
        scene.say(f"{PRIMARY} was killed (SIGKILL), in the middle of everything", "bad")
        self._need(lambda: _all_in(client, Health.FAILED_OVER), "failover of every entity")
        seconds = time.monotonic() - killed_at
        scene.act = "Failed over: sends go on, into the backlog"
        scene.say(f"every sender goes on, {seconds:.1f} s after the kill", "accent")
        wanted = self._options.messages * RETURN_AT
        self._need(
            lambda: self._accepted >= wanted or not any(one.is_on_stage for one in self._senders),
            "sends into the backlog",
        )
        return seconds

    def _return(self, primary: Namespace, client: PairedServiceBusClient) -> float:
        scene = self._scene
        scene.act = "The primary returns"
        scene.say(f"{PRIMARY} is started again, with its own data", "good")
        primary.restart()
        served_at = time.monotonic()
        self._need(lambda: _all_in(client, Health.HEALTHY), "recovery of every entity")
        seconds = time.monotonic() - served_at
        scene.say(f"every sender is back at the primary, {seconds:.1f} s after it served again", "good")
        return seconds

    def _way_home(self, primary: Namespace, secondary: Namespace) -> float:
        scene = self._scene
        scene.look()
        scene.act = (
            f"The way home: {'Spark drains' if self._options.engine == 'spark' else 'the backlog drains'}"
        )
        scene.say(f"{scene.secondary.backlog:,} messages wait in the backlog", "accent")
        begun_at = time.monotonic()
        for _ in range(DRAINS_MAX):
            self._drain(primary.connection_string, secondary.connection_string)
            scene.look()
            if not scene.secondary.backlog:
                break
        seconds = time.monotonic() - begun_at
        scene.say(f"{scene.home:,} messages are home, in {seconds:.1f} s", "good")
        return seconds

    def _drain(self, primary: str, secondary: str) -> None:
        if self._options.engine == "spark":
            from pairbus.spark.drain.driver import SyphonOptions, run_syphon

            options = SyphonOptions(
                primary=primary,
                secondary=secondary,
                queues=BACKLOG_QUEUES,
                once=True,
                ledger=str(self._work / "ledger"),
            )
            before = self._scene.home
            report = run_syphon(
                options,
                tell=lambda progress: self._moved(before + progress.moved),
                spark=self._spark(),
            )
            self._scene.home = before + report.moved
            return
        counters = Counters()
        before = self._scene.home
        done = threading.Event()

        def follow() -> None:
            while not done.wait(0.1):
                self._moved(before + counters.restored)

        threading.Thread(target=follow, name="follow", daemon=True).start()
        try:
            asyncio.run(_drain_here(primary, secondary, counters, self._work / "ledger"))
        finally:
            done.set()
        self._scene.home = before + counters.restored

    def _moved(self, count: int) -> None:
        self._scene.home = max(self._scene.home, count)

    def _finish(self) -> None:
        scene = self._scene
        scene.act = "The last messages arrive"
        self._need(lambda: not any(sender.is_on_stage for sender in self._senders), "the last sends")
        # What is missing after all this patience is what the certificate calls lost.
        wait_until(lambda: self._book.counts[2] == 0, PATIENCE_SECONDS)
        scene.act = "The proof"

    # -- bill and proof ------------------------------------------------------------------------

    def _judge(
        self, client: PairedServiceBusClient, failover: float, failback: float, drain: float
    ) -> Result:
        verdict = self._book.verdict()
        spark = self._spark_certificate() if self._options.engine == "spark" else None
        statistics = client.statistics()
        bill = self._scene.bill()
        pairing_operations, pairing_cost = bill.for_pairing()
        holds = verdict.holds and (spark is None or spark.get("verdict") == "holds")
        return Result(
            holds=holds,
            engine=self._options.engine,
            seed=self._options.seed,
            sent=verdict.sent,
            accepted=verdict.accepted,
            unknown=verdict.unknown,
            parked=statistics.to_backlog,
            home=self._scene.home,
            lost=verdict.lost,
            duplicated=verdict.duplicated,
            redelivered=verdict.redelivered,
            failover_seconds=round(failover, 3),
            failback_seconds=round(failback, 3),
            drain_seconds=round(drain, 3),
            set_up_seconds=round(self._began_at - self._scene.started_at, 3),
            seconds=round(time.monotonic() - self._began_at, 3),
            pings=statistics.pings,
            operations=bill.operations,
            cost=shown(bill.amount),
            pairing_operations=pairing_operations,
            pairing_cost=shown(pairing_cost),
            bill=bill.as_json(),
            currency=bill.currency,
            price_source=bill.price_source,
            certificate=_certificate(verdict),
            spark_certificate=spark,
        )

    def _spark_certificate(self) -> dict[str, object]:
        from pairbus.reports.engines.spark.certificate import reconcile
        from pairbus.reports.engines.spark.ledgers import BACKLOG, RECEIVED, SENT, read_ledgers

        self._scene.act = "The proof: Spark joins what was promised with what arrived"
        sent, received = self._book.write(self._work)
        ledgers = read_ledgers(
            self._spark(),
            {SENT: [str(sent)], RECEIVED: [str(received)], BACKLOG: [str(self._backlog_data)]},
            with_body=True,
        )
        found: dict[str, object] = reconcile(ledgers, None, with_order=False).certificate.as_json()
        return found


async def _drain_here(primary: str, secondary: str, counters: Counters, ledger: Path) -> None:
    backlog = Backlog(primary, secondary, None, BACKLOG_QUEUES)
    queues = [row.name for row in await backlog.queues()]
    await backlog.syphon(queues, once=True, counters=counters, ledger=ledger)


def _all_in(client: PairedServiceBusClient, state: Health) -> bool:
    reports = client.health()
    return all(entity in reports and reports[entity].state is state for entity in ENTITIES)


def _certificate(verdict: Verdict) -> dict[str, object]:
    return asdict(verdict)
