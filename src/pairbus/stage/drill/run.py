"""The drill itself: calm, outage, recovery, drain, report card. Whatever happens, the outage ends and the drill removes what it made."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient

from pairbus.errors import PairingError, UsageError
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.clock import steady_ms
from pairbus.pairing.events import Event, Kind
from pairbus.pairing.options import SendAvailabilityOptions, milliseconds
from pairbus.pairing.rules.health import Health
from pairbus.pairing.rules.queues import name_of
from pairbus.pairing.rules.trigger import BUSY_PAUSE_MS
from pairbus.reports.bill.marginal import operations_cost, standard_table
from pairbus.reports.bill.money import shown as money
from pairbus.sdk.connection_string import namespace_name, parse_connection_string
from pairbus.stage.actors import Consumer, stop_all, wait_until
from pairbus.stage.book import Book
from pairbus.stage.drill.backlog import foreign_backlog, left_in_backlog
from pairbus.stage.drill.card import Card, Course, Facts, judge
from pairbus.stage.drill.places import Place, Places, administration
from pairbus.stage.drill.plan import AUTO, MANUAL, OUTAGES, PREFIX, DrillOptions, Outage, shown
from pairbus.stage.drill.probes import Doubts, Prober
from pairbus.stage.drill.switch import Switchboard
from pairbus.stage.drill.view import Scene

POLL_SECONDS: Final = 0.1
RECOVERY_SECONDS_MIN: Final = 30.0
"""How long failback is waited for at the least; the card judges when it came."""
STOP_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 6.0
BACKLOG_LOOK_SECONDS: Final = 1.0


def choose(options: DrillOptions) -> tuple[Outage, Switchboard]:
    """Which outage it will be; asks the primary whether it has a switchboard. Raises PairingError or UsageError."""
    switchboard = Switchboard(options.primary, options.ca_file)
    if options.fault == MANUAL:
        outage = OUTAGES[MANUAL]
    elif switchboard.is_offered():
        outage = OUTAGES["refuse" if options.fault == AUTO else options.fault]
    elif options.fault == AUTO:
        outage = OUTAGES[MANUAL]
    else:
        raise PairingError(
            f"the primary does not offer its fault switchboard, which --fault {options.fault} needs: start it with "
            "`pairbus serve --faults` and use a key that may manage it, or drill with --fault manual"
        )
    options.check(outage)
    return outage, switchboard


def look(options: DrillOptions) -> Outage:
    """See beforehand that a drill could be held now: both sides answer, the outage can be made. Changes nothing."""
    outage, _ = choose(options)
    for connection_string in (options.primary, options.secondary):
        client = ServiceBusClient.from_connection_string(connection_string)
        with administration(client, options.ca_file) as admin:
            try:
                admin.get_namespace_properties()
            except ClientAuthenticationError:
                continue  # a key without Manage may do for what the drill needs there; pairing says if not
    return outage


def play(options: DrillOptions, scene: Scene, stop: threading.Event, work: Path) -> Card:
    """Hold the drill. ``stop`` ends it before its time; ``work`` is a directory of its own for the pumps' ledger."""
    outage, switchboard = choose(options)
    with ExitStack() as stack:
        drill = _Drill(options, outage, switchboard, scene, stop, stack)
        drill.prepare(work)
        drill.calm()
        drill.outage()
        drill.recovery()
        drill.drain()
        facts = drill.facts()
    # Judged when all is tidied up: what is left behind is on the card.
    scene.act = "The report card"
    return judge(
        replace(facts, left_behind=tuple(drill.left_behind), queues_created=drill.queues_created()),
        options,
        outage,
    )


class _Drill:
    def __init__(
        self,
        options: DrillOptions,
        outage: Outage,
        switchboard: Switchboard,
        scene: Scene,
        stop: threading.Event,
        stack: ExitStack,
    ) -> None:
        self._options = options
        self._outage = outage
        self._switchboard = switchboard
        self._scene = scene
        self._stop = stop
        self._stack = stack
        self._id = uuid.uuid4().hex[:8]
        parsed = parse_connection_string(options.primary, "primary")
        name = namespace_name(parsed.host, parsed.namespace, options.namespace)
        self._queues = [name_of(name, index) for index in range(options.queues)]
        self._book = scene.book = Book()
        self._doubts = Doubts(self._book)
        self._places: list[Place] = []
        self._probers: list[Prober] = []
        self._consumers: list[Consumer] = []
        self._courses: dict[str, Course] = {}
        self._client: PairedServiceBusClient
        self._lock = threading.Lock()
        self._begun_ms = self._ended_ms = 0
        self._is_on = False
        self._is_early = False
        self.left_behind: list[str] = []
        self._created: set[str] = set()

    # --- before ---------------------------------------------------------------------------------------

    def prepare(self, work: Path) -> None:
        """Pair, make the place, and see that nobody else's messages are in the way."""
        self._scene.act = "Getting ready"
        self._client = client = self._paired(work)
        self._scene.client = client
        self._stack.callback(client.close, CLOSE_SECONDS)
        admin = administration(client.primary, self._options.ca_file)
        self._stack.callback(admin.close)
        places = Places(admin, self._options, self._id)
        self._places = places.prepare()
        self._stack.callback(self._remove, places)
        if self._outage.fault:
            self._switchboard.check_free([place.entity for place in self._places])
        self._check_backlog()
        client.pair()
        self._book.destinations.update(
            {place.entity: (place.path,) for place in self._places if place.is_read}
        )
        self._courses = {place.entity: Course(place.entity, is_read=place.is_read) for place in self._places}
        names = ", ".join(place.entity for place in self._places)
        self._scene.say(f"drill {self._id}: {self._outage.name} for {shown(self._options.lasts)} on {names}")
        if self._options.fault == AUTO and self._outage.name == MANUAL:
            self._scene.say("the primary has no fault switchboard: the client's own switch is used", "warn")
        self._stack.callback(self._stop_actors)

    def _paired(self, work: Path) -> PairedServiceBusClient:
        options = self._options
        trust: dict[str, Any] = {} if options.ca_file is None else {"connection_verify": options.ca_file}
        client = PairedServiceBusClient.from_connection_strings(
            options.primary,
            options.secondary,
            options=SendAvailabilityOptions(
                backlog_queue_count=options.queues,
                failover_interval=options.failover_interval,
                ping_primary_interval=options.ping_interval_of(self._outage),
                enable_syphon=options.brings_home,
                # "Server busy" is held back by the table alone, and leaves nothing in doubt.
                trigger=self._doubts if self._outage.fails_over else "documented",
                while_suspect=options.while_suspect,
            ),
            primary_namespace=options.namespace,
            on_event=self._event,
            management=dict(trust),
            retry_total=0,
            **trust,
        )
        client.ledger = work
        return client

    def _remove(self, places: Places) -> None:
        """Take the places away, but for those that probes in the backlog still have to come home to."""
        awaited = {
            probe.entity for probe in self._book.messages() if probe.waits_in and not probe.is_dead_lettered
        }
        self.left_behind += places.remove([place for place in self._places if place.entity not in awaited])
        self.left_behind += [
            f"{entity} stays for the probes that are in the backlog still; what the drill made of it goes by itself"
            for entity in sorted(awaited)
        ]

    def _check_backlog(self) -> None:
        """Refuse when the backlog holds messages of others: the drill would drain them too."""
        if not self._options.brings_home or self._options.may_touch:
            return
        with administration(self._client.secondary, self._options.ca_file) as admin:
            found = foreign_backlog(admin, self._client.secondary, self._queues)
        if found:
            raise UsageError(
                f"{found} holds messages of others, which the drill's pumps would deliver too: run `pairbus syphon "
                "--once` first, let the syphon that runs do it (--syphon running), or add --yes"
            )

    def calm(self) -> None:
        """All must be well before anything is broken."""
        options, scene = self._options, self._scene
        scene.act = "All is well: probes go to the primary"
        for index, place in enumerate(self._places):
            if place.is_read:
                self._consumers.append(Consumer(self._connect, place.path, self._book))
            self._probers.append(
                Prober(
                    self._client,
                    place,
                    stem=self._stem(index),
                    drill=self._id,
                    rate=options.rate,
                    timeout=options.send_timeout.total_seconds(),
                    book=self._book,
                    doubts=self._doubts,
                )
            )
        for actor in (*self._consumers, *self._probers):
            actor.start()
        self._stop.wait(options.calm.total_seconds())
        enough = max(options.calm, timedelta(seconds=2 / options.rate)) + options.send_timeout
        wait_until(lambda: self._is_calm() or self._stop.is_set(), enough.total_seconds(), POLL_SECONDS)
        refusals = self._book.refusals()
        parked = sum(probe.is_parked for probe in self._book.messages())
        if (refusals or parked or not self._is_calm()) and not self._stop.is_set():
            why = refusals[-1].text if refusals else "the primary accepted no probe in time"
            left = f"; {parked} probes wait in the backlog for the syphon" if parked else ""
            raise PairingError(f"the pair is not well, so nothing was broken: {why}{left}")

    def _is_calm(self) -> bool:
        accepting = {probe.entity for probe in self._book.messages() if probe.accepted_ms is not None}
        return len(accepting) == len(self._places)

    def _connect(self) -> ServiceBusClient:
        trust: dict[str, Any] = {}
        if self._options.ca_file is not None:
            trust["connection_verify"] = self._options.ca_file
        return ServiceBusClient.from_connection_string(self._options.primary, retry_total=0, **trust)

    def _stem(self, index: int) -> str:
        return f"{PREFIX}{self._id}-{index}-"

    # --- the outage -----------------------------------------------------------------------------------

    def outage(self) -> None:
        """Switch it on, for a time that the primary keeps by itself."""
        if self._stop.is_set():
            self._is_early = True
            self._begun_ms = self._ended_ms = steady_ms()
            return
        scene, lasts = self._scene, self._options.lasts
        entities = [place.entity for place in self._places]
        self._begun_ms = steady_ms()
        self._ended_ms = self._begun_ms + milliseconds(lasts)
        scene.act = f"The outage: {self._outage.name}"
        scene.outage_span = self._begun_ms, self._ended_ms
        self._is_on = True
        self._stack.callback(self._switch_off)
        if self._outage.fault:
            self._switchboard.begin(self._outage.fault, entities, milliseconds(lasts))
        else:
            for entity in entities:
                self._client.fail_over(entity)
        scene.say(f"{self._outage.name} is on; it ends by itself in {shown(lasts)}", "bad")
        self._stop.wait(max(0.0, (self._ended_ms - steady_ms()) / 1000))
        if self._stop.is_set():
            self._is_early = True
            self._switch_off()
        else:
            self._is_on = False
            scene.say("the outage is over", "good")

    def _switch_off(self) -> None:
        """Before its time, or because the drill itself broke. Nothing happens when it has run its course."""
        if not self._is_on:
            return
        self._is_on = False
        rest_ms = 0
        try:
            if self._outage.fault:
                rest_ms = self._switchboard.end()
            else:
                for place in self._places:
                    self._client.mark_healthy(place.entity)
        except PairingError as error:
            rest_ms = max(0, self._ended_ms - steady_ms())
            self._scene.say(f"the fault could not be switched off: {error}", "warn")
        self._ended_ms = steady_ms() + rest_ms
        if rest_ms:
            self._scene.say(
                f"faults of others are on too: this one ends by itself in {rest_ms / 1000:.0f} s", "warn"
            )
        self._scene.say("ended before its time: what is parked is delivered", "warn")

    # --- after ----------------------------------------------------------------------------------------

    def recovery(self) -> None:
        """Wait until pings have found the primary again."""
        self._scene.act = "Recovery: pings ask whether the primary is back"
        if self._is_early:
            self._ask_probers_to_stop()
        interval = self._options.ping_interval_of(self._outage)
        if self._outage.name == MANUAL:
            interval = timedelta(0)
        bound = max(RECOVERY_SECONDS_MIN, (3 * interval + self._options.slack).total_seconds())
        bound += max(0, self._ended_ms - steady_ms()) / 1000
        if not self._outage.fails_over:
            bound += BUSY_PAUSE_MS / 1000
        wait_until(self._all_healthy, bound, POLL_SECONDS)
        if not self._is_early:
            self._stop.wait(
                self._options.calm.total_seconds()
            )  # sends go to the primary again: seen, not believed
        self._ask_probers_to_stop()
        patience = self._options.send_timeout.total_seconds() + STOP_SECONDS
        until = time.monotonic() + patience
        for prober in self._probers:
            prober.join(max(0.0, until - time.monotonic()))

    def _all_healthy(self) -> bool:
        reports = self._client.health()
        return all(
            place.entity not in reports or reports[place.entity].state is Health.HEALTHY
            for place in self._places
        )

    def drain(self) -> None:
        """Wait until everything that was accepted has arrived."""
        self._scene.act = "The backlog drains"
        read = frozenset(place.entity for place in self._places if place.is_read)
        bound = self._options.drain_within.total_seconds()
        wait_until(lambda: not self._book.missing_count, bound, POLL_SECONDS)
        unread = any(probe.is_parked and probe.entity not in read for probe in self._book.messages())
        if unread:
            wait_until(lambda: not self._left(), bound, BACKLOG_LOOK_SECONDS)
        if unread or self._book.missing_count:
            for message_id, queue in self._left().items():
                self._book.found(message_id, queue, is_dead_lettered=False)
            for message_id, queue in self._left(is_dead_lettered=True).items():
                self._book.found(message_id, queue, is_dead_lettered=True)

    def _left(self, *, is_dead_lettered: bool = False) -> dict[str, str]:
        stem = f"{PREFIX}{self._id}-"
        return left_in_backlog(self._client.secondary, self._queues, stem, is_dead_lettered=is_dead_lettered)

    def _ask_probers_to_stop(self) -> None:
        for prober in self._probers:
            prober.ask_to_stop()

    def _stop_actors(self) -> None:
        self._ask_probers_to_stop()
        stop_all(self._consumers, STOP_SECONDS)

    def facts(self) -> Facts:
        statistics = self._client.statistics()
        probes = self._book.messages()
        # Every message that was parked costs the same four operations, also when another syphon drained it.
        foreign = 0 if self._options.brings_home else 2 * sum(probe.is_parked for probe in probes)
        operations = (
            statistics.operations_primary
            + statistics.operations_backlog
            + self._book.receive_operations
            + foreign
        )
        table = standard_table()
        return Facts(
            drill=self._id,
            begun_ms=self._begun_ms,
            ended_ms=self._ended_ms,
            is_early=self._is_early,
            courses=tuple(self._courses[place.entity] for place in self._places),
            probes=tuple(probes),
            refusals=tuple(self._book.refusals()),
            repeats_allowed=statistics.in_doubt + statistics.possible_duplicates,
            operations=operations,
            cost=money(operations_cost(operations, table)),
            currency=table.currency,
        )

    def queues_created(self) -> tuple[str, ...]:
        """Backlog queues that pairing created, in the order of their numbers."""
        with self._lock:
            return tuple(name for name in self._queues if name in self._created)

    # --- watching -------------------------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        """The client's listener: when each entity changed."""
        with self._lock:
            if event.kind is Kind.QUEUE_CREATED:
                self._created.add(event.subject)
            course = self._courses.get(event.subject)
            if course is not None:
                self._courses[event.subject] = _followed(course, event)
        self._scene.event(event)


def _followed(course: Course, event: Event) -> Course:
    """The course of an entity after one more event. The first failure and failover count, and the last recovery."""
    at = event.at_ms
    if event.kind is Kind.SUSPECT and course.suspect_ms is None:
        return replace(course, suspect_ms=at)
    if event.kind is Kind.FAILED_OVER:
        first = course.failed_over_ms if course.failed_over_ms is not None else at
        return replace(course, failed_over_ms=first, recovered_ms=None, failovers=course.failovers + 1)
    if event.kind is Kind.RECOVERED:
        return replace(course, recovered_ms=at)
    if event.kind is Kind.PING_SENT:
        return replace(course, pings=course.pings + 1)
    return course
