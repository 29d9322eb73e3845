"""The demo's acts, one after the other, and the result."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusClient

from pairbus.drain.backlog import Backlog
from pairbus.errors import PairbusError
from pairbus.local.management import ManagementClient
from pairbus.local.pair import PRIMARY, SECONDARY, Member
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.clock import steady_ms, wall_ms
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.rules.health import Health
from pairbus.pairing.statistics import Counters
from pairbus.reports.bill.money import shown
from pairbus.server.ready import ReadyInfo
from pairbus.stage.actors import Actor, Consumer, stop_all, wait_until
from pairbus.stage.book import Book
from pairbus.stage.demo.scene import Scene
from pairbus.stage.demo.sender import Sender
from pairbus.stage.demo.verdict import judge, write_ledgers

NAMES: Final = {PRIMARY: "contoso", SECONDARY: "contoso-backup"}
QUEUES: Final = ("orders", "payments")
SESSION_QUEUE: Final = "invoices"
TOPIC: Final = "events"
SUBSCRIPTIONS: Final = ("billing", "audit")
ENTITIES: Final = (*QUEUES, SESSION_QUEUE, TOPIC)
DESTINATIONS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (name,) for name in (*QUEUES, SESSION_QUEUE)},
    TOPIC: tuple(f"{TOPIC}/Subscriptions/{name}" for name in SUBSCRIPTIONS),
}
_UNIQUE: Final = {"RequiresDuplicateDetection": True}
CONFIG: Final = {
    "Queues": [
        *({"Name": name, "Properties": _UNIQUE} for name in QUEUES),
        {"Name": SESSION_QUEUE, "Properties": {**_UNIQUE, "RequiresSession": True}},
    ],
    "Topics": [
        {"Name": TOPIC, "Properties": _UNIQUE, "Subscriptions": [{"Name": name} for name in SUBSCRIPTIONS]}
    ],
}
"""The primary's entities, in the form of ``pairbus serve --config``."""
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
STOP_SECONDS: Final = 3.0


class DemoFailed(PairbusError):
    """The demo could not go on; the text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How the demo is run. ``engine`` drains the backlog: ``spark`` or ``local``."""

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
    """Operations that a single namespace would not have seen."""
    pairing_cost: str
    bill: list[dict[str, object]]
    currency: str
    price_source: str
    certificate: dict[str, object]
    spark_certificate: dict[str, object] | None


def new_scene() -> Scene:
    """The scene to show while the demo runs."""
    return Scene(Book(DESTINATIONS), NAMES[PRIMARY], NAMES[SECONDARY])


def run_demo(options: DemoOptions, scene: Scene) -> Result:
    """Run the demo and return its result. The scene shows every moment of it."""
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-demo-", ignore_cleanup_errors=True) as work,
        ExitStack() as stack,
    ):
        stack.callback(scene.stop)
        return _Story(options, Path(work), scene, stack).run()


class _Story:
    def __init__(self, options: DemoOptions, work: Path, scene: Scene, stack: ExitStack) -> None:
        self._options = options
        self._work = work
        self._book = scene.book
        self._scene = scene
        self._stack = stack
        self._on_spark = options.engine == "spark"
        self._session: Future[Any] = Future()
        # Spark's certificate reads from the backlog's audit log which messages took the detour: senders do not know.
        self._members = {
            role: Member(
                role,
                name,
                address="127.0.0.1:0",
                work=work / role,
                config=_config(name) if role == PRIMARY else "{}",
                audit=self._on_spark and role == SECONDARY,
            )
            for role, name in NAMES.items()
        }
        self._senders: list[Sender] = []

    def run(self) -> Result:
        scene = self._scene
        first, second = self._set_up()
        client = self._pair(first, second)
        began_at = time.monotonic()
        set_up_seconds = scene.elapsed_ms / 1000
        scene.act = "All is well: sends go to the primary"
        self._start_actors(client, first.connection_string)
        self._need(lambda: self._book.accepted_count >= self._options.messages * KILL_AT, "the first sends")
        scene.look()
        failover_seconds = self._outage(client)
        failback_seconds = self._return(client)
        drain_seconds = self._drain(first.connection_string, second.connection_string)
        self._finish()
        verdict = judge(self._book)
        spark = self._spark_certificate() if self._on_spark else None
        statistics = client.statistics()
        bill = scene.bill()
        pairing_operations, pairing_cost = bill.for_pairing()
        return Result(
            holds=verdict.holds and (spark is None or spark.get("verdict") == "holds"),
            engine=self._options.engine,
            seed=self._options.seed,
            sent=verdict.sent,
            accepted=verdict.accepted,
            unknown=verdict.unknown,
            parked=statistics.to_backlog,
            home=scene.home,
            lost=verdict.lost,
            duplicated=verdict.duplicated,
            redelivered=verdict.redelivered,
            failover_seconds=round(failover_seconds, 3),
            failback_seconds=round(failback_seconds, 3),
            drain_seconds=round(drain_seconds, 3),
            set_up_seconds=round(set_up_seconds, 3),
            seconds=round(time.monotonic() - began_at, 3),
            pings=statistics.pings,
            operations=bill.operations,
            cost=shown(bill.amount),
            pairing_operations=pairing_operations,
            pairing_cost=shown(pairing_cost),
            bill=bill.as_json(),
            currency=bill.currency,
            price_source=bill.price_source,
            certificate=asdict(verdict),
            spark_certificate=spark,
        )

    def _need(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition, PATIENCE_SECONDS):
            raise DemoFailed(f"{what} did not happen within {PATIENCE_SECONDS:g} s")

    # -- acts ----------------------------------------------------------------------------------

    def _set_up(self) -> tuple[ReadyInfo, ReadyInfo]:
        if self._on_spark:
            threading.Thread(target=self._start_spark, name="spark", daemon=True).start()
        members = self._members.values()
        for member in members:
            self._stack.callback(member.host.stop)
        with ThreadPoolExecutor(len(members)) as pool:
            first, second = pool.map(Member.start, members)
        self._scene.watch(*(ManagementClient(one.http, one.connection_string) for one in (first, second)))
        self._scene.say(f"{' and '.join(NAMES.values())} serve, each in a process of its own", "good")
        if self._on_spark:
            self._spark()
        return first, second

    def _spark(self) -> Any:
        try:
            return self._session.result(SPARK_SECONDS_MAX)
        except TimeoutError:
            raise DemoFailed(
                f"Spark did not start within {SPARK_SECONDS_MAX:g} s on this machine; `--engine local` needs none"
            ) from None

    def _start_spark(self) -> None:
        try:
            from pairbus.spark.session import spark_session

            session = spark_session("pairbus demo", log=self._work / "spark.log")
            session.range(1).count()
            self._session.set_result(session)
            self._scene.say("Spark is ready to drain", "good")
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the session gets the error
            self._session.set_exception(error)

    def _pair(self, first: ReadyInfo, second: ReadyInfo) -> PairedServiceBusClient:
        options = SendAvailabilityOptions(
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=FAILOVER,
            ping_primary_interval=PING,
            while_suspect="wait",
        )
        details: dict[str, Any] = {"retry_total": 0}
        client = PairedServiceBusClient.from_connection_strings(
            first.connection_string,
            second.connection_string,
            options=options,
            on_event=self._scene.event,
            seed=self._options.seed,
            **details,
        )
        self._stack.callback(client.close)
        client.pair()
        self._scene.client = client
        return client

    def _start_actors(self, client: PairedServiceBusClient, connection_string: str) -> None:
        def connect() -> ServiceBusClient:
            return ServiceBusClient.from_connection_string(connection_string, retry_total=0)

        share, rest = divmod(self._options.messages, len(ENTITIES))
        self._senders = [
            Sender(
                client,
                entity,
                is_topic=entity == TOPIC,
                has_sessions=entity == SESSION_QUEUE,
                amount=share + (index < rest),
                per_second=max(10.0, self._options.messages * KILL_AT / ACT_SECONDS / len(ENTITIES)),
                book=self._book,
                seed=f"{self._options.seed}/{entity}",
            )
            for index, entity in enumerate(ENTITIES)
        ]
        consumers = [
            Consumer(connect, place, self._book, has_sessions=entity == SESSION_QUEUE)
            for entity, places in DESTINATIONS.items()
            for place in places
        ]
        actors: list[Actor] = [*consumers, *self._senders]
        for actor in actors:
            actor.start()
        self._stack.callback(stop_all, actors, STOP_SECONDS)

    def _outage(self, client: PairedServiceBusClient) -> float:
        scene = self._scene
        scene.act = "The primary is gone"
        killed_at = time.monotonic()
        self._members[PRIMARY].host.kill()
        scene.say(f"{NAMES[PRIMARY]} was killed (SIGKILL), in the middle of everything", "bad")
        self._need(lambda: _all_in(client, Health.FAILED_OVER), "failover of every entity")
        seconds = time.monotonic() - killed_at
        scene.act = "Failed over: sends go on, into the backlog"
        scene.say(f"every sender continues, {seconds:.1f} s after the kill", "accent")
        wanted = self._options.messages * RETURN_AT
        self._need(
            lambda: self._book.accepted_count >= wanted or not any(one.is_alive() for one in self._senders),
            "sends into the backlog",
        )
        return seconds

    def _return(self, client: PairedServiceBusClient) -> float:
        scene = self._scene
        scene.act = "The primary returns"
        scene.say(f"{NAMES[PRIMARY]} is started again, with its own data", "good")
        self._members[PRIMARY].start()
        served_at = time.monotonic()
        self._need(lambda: _all_in(client, Health.HEALTHY), "recovery of every entity")
        seconds = time.monotonic() - served_at
        scene.say(f"every sender is back at the primary, {seconds:.1f} s after it served again", "good")
        return seconds

    def _drain(self, primary: str, secondary: str) -> float:
        scene = self._scene
        scene.look()
        scene.act = f"{'Spark' if self._on_spark else 'The syphon'} drains the backlog"
        scene.say(f"{scene.secondary.backlog:,} messages wait in the backlog", "accent")
        begun_at = time.monotonic()
        for _ in range(DRAINS_MAX):
            before = scene.home
            drain = self._drain_on_spark if self._on_spark else self._drain_here
            scene.home = before + drain(primary, secondary, before)
            scene.look()
            if not scene.secondary.backlog:
                break
        seconds = time.monotonic() - begun_at
        scene.say(f"{scene.home:,} messages are home, in {seconds:.1f} s", "good")
        return seconds

    def _drain_on_spark(self, primary: str, secondary: str, before: int) -> int:
        from pairbus.spark.drain.driver import SyphonOptions, run_syphon

        options = SyphonOptions(
            primary=primary,
            secondary=secondary,
            queues=BACKLOG_QUEUES,
            once=True,
            ledger=str(self._work / "ledger"),
        )

        def progressed(progress: Any) -> None:
            self._scene.home = max(self._scene.home, before + progress.moved)

        moved: int = run_syphon(options, report_progress=progressed, spark=self._spark()).moved
        return moved

    def _drain_here(self, primary: str, secondary: str, before: int) -> int:
        counters = Counters()
        done = threading.Event()

        def follow() -> None:
            while not done.wait(0.1):
                self._scene.home = max(self._scene.home, before + counters.restored)

        async def drain() -> None:
            backlog = Backlog(primary, secondary, None, BACKLOG_QUEUES)
            queues = [row.name for row in await backlog.queues()]
            await backlog.drain(queues, once=True, counters=counters, ledger=self._work / "ledger")

        follower = threading.Thread(target=follow, name="follow", daemon=True)
        follower.start()
        try:
            asyncio.run(drain())
        finally:
            done.set()
            follower.join()
        return counters.restored

    def _finish(self) -> None:
        self._scene.act = "The last messages arrive"
        self._need(lambda: not any(sender.is_alive() for sender in self._senders), "the last sends")
        # A message that is still missing after this wait counts as lost.
        wait_until(lambda: self._book.missing_count == 0, PATIENCE_SECONDS)
        self._scene.act = "The proof"
        self._scene.look()

    def _spark_certificate(self) -> dict[str, object]:
        from pairbus.reports.engines.audit_log import AUDIT, BACKLOG, RECEIVED, SENT
        from pairbus.reports.engines.spark import SparkEngine
        from pairbus.reports.inputs import find_all
        from pairbus.reports.views.json import certificate_json

        self._scene.act = "The proof: Spark joins what was promised with what arrived"
        sent, received = write_ledgers(self._book, self._work, wall_ms() - steady_ms())
        backlog = self._members[SECONDARY].data
        places = {SENT: [str(sent)], RECEIVED: [str(received)], BACKLOG: [str(backlog)]}
        inputs = find_all(None, places, AUDIT)
        done = SparkEngine(self._spark()).reconcile(inputs, None, with_body=True, with_order=False)
        return certificate_json(done.certificate)


def _config(name: str) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": name, **CONFIG}]}})


def _all_in(client: PairedServiceBusClient, state: Health) -> bool:
    reports = client.health()
    return all(entity in reports and reports[entity].state is state for entity in ENTITIES)
