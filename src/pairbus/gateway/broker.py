"""One namespace as the outside meets it: its connections, its engine, its switchboard. No I/O.

The server feeds bytes and time in and, once the log has committed, takes bytes out:

    receive* -> pump -> (commit) -> take_dirty -> take_output
"""

from __future__ import annotations

import hashlib
import json
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from pairbus.amqp.transport.connection import ConnectionSettings
from pairbus.engine.context import Timers
from pairbus.engine.namespace import Namespace
from pairbus.errors import ArgumentError, EntityNotFound, Refusal, Unauthorized
from pairbus.gateway.atom.api import ManagementApi
from pairbus.gateway.atom.routes import route_of
from pairbus.gateway.connection import NOT_ARMED, GatewayConnection
from pairbus.gateway.faults import Faults
from pairbus.gateway.http import (
    STRANGER_BURST,
    STRANGER_REQUESTS_PER_SECOND,
    HttpRequest,
    HttpResponse,
    RateLimit,
)
from pairbus.gateway.links import ReceiveLink, SendLink
from pairbus.gateway.outgoing import Deliveries, review_windows
from pairbus.gateway.own_addresses import METRICS, own_address
from pairbus.gateway.rights.access import Access
from pairbus.gateway.rights.access_rules import AccessRulesApi, names_access_rules
from pairbus.gateway.strikes import Strikes
from pairbus.gateway.telemetry.counters import Counters
from pairbus.gateway.telemetry.exposition import CONTENT_TYPE, Metric, render
from pairbus.gateway.telemetry.meter import MANAGEMENT, PRIMARY, Meter, stage_of
from pairbus.gateway.telemetry.metrics import broker_metrics
from pairbus.gateway.telemetry.tracking import Tracker
from pairbus.model.access import MANAGE
from pairbus.model.entity import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.amqp.transport.session import Session
    from pairbus.engine.ports import RecordLog, WallClock
    from pairbus.gateway.telemetry.audit_rows import AuditRows

REQUEST_BYTES_MAX: Final = 16_777_216
"""The largest request on a management node: a batch of scheduled messages."""
FAULTS_PATH: Final = "/$faults"
_BUSY: Final = "Too many management requests. Wait a second and try again."
DELETE_IDLE: Final = "delete idle"
"""Begins the action that is recorded when an entity's AutoDeleteOnIdle has passed without use."""


class Broker:
    def __init__(
        self,
        name: str,
        log: RecordLog,
        random_bytes: bytes,
        audit: Callable[[str, str, str, str, str], None] | None = None,
        audit_refusal: Callable[[str, str, str, str, str], None] | None = None,
    ) -> None:
        """``random_bytes``: sixteen or more fresh, secret ones, for lock tokens and tracking ids of this life.

        ``audit_refusal`` gets what callers without the right tried, which anybody can repeat without end; without it
        ``audit`` gets that too.
        """
        self.log = log
        self.faults = Faults()
        self.strikes = Strikes(self)
        self.offers_faults = False
        self.server_metrics: Callable[[], list[Metric]] = list
        """What a server that carries this broker counts itself; shown before the broker's own."""
        self._rate = RateLimit()
        self._stranger_rate = RateLimit(STRANGER_REQUESTS_PER_SECOND, STRANGER_BURST)
        self.meter = Meter()
        self.deliveries = Deliveries(self, _derived(random_bytes, b"token prefix"))
        self.namespace = Namespace(name, log, self.deliveries, _derived(random_bytes, b"token seed", 32))
        self.counters = Counters(log)
        self.audit_rows: AuditRows | None = None
        """Rows for the message audit; None: it is off."""
        self.access = Access(self.namespace)
        self.tracker = Tracker(name, _derived(random_bytes, b"tracking"))
        self.management = ManagementApi(
            self.namespace, self.access, self.tracker, self.audit, self.audit_refusal
        )
        self._access_rules = AccessRulesApi(
            self.namespace,
            self.access,
            self.audit,
            self.audit_refusal,
            _derived(random_bytes, b"access keys", 32),
        )
        self.connection_settings = ConnectionSettings(f"pairbus-{name}")
        self.request_bytes_max = REQUEST_BYTES_MAX
        self.draining: list[ReceiveLink] = []
        self.window_limited: dict[GatewayConnection, None] = {}
        """Connections where enough waits for the windows of sessions."""
        self.windows_seen = -1
        """What waited for windows when ``window_limited`` was last looked at; -1: there are new ones."""
        self.connections: dict[GatewayConnection, None] = {}
        self._on_audit = audit
        self._on_refusal = audit_refusal
        self._dirty: dict[GatewayConnection, None] = {}
        self._last_touched: GatewayConnection | None = None
        """It is in ``_dirty``: what comes next mostly concerns the same connection."""
        self._later: list[tuple[int, int, GatewayConnection, Session, int]] = []
        self._later_count = 0
        self._transactions = 0
        self._transaction_key = _derived(random_bytes, b"transactions", 32)
        self._seen_version = 0
        self._timers = Timers()
        """When each connection must be ticked, by its number: a timer out of date holds a number and no connection."""
        self._by_number: dict[int, GatewayConnection] = {}
        self._connection_count = 0
        self.postponed: dict[int, list[Callable[[], None]]] = {}
        """Queue id to requests that wait for blobs of its messages."""
        self.now = 0
        """The last instant that was let in."""
        self.steady_ms: Callable[[], int] = self._last_instant
        """Real time: connections' own limits are measured by it, and a step of the clock that gives the instants ends none."""

    def follow_wall_clock(self, wall_clock: WallClock) -> None:
        """Judge tokens and schedules by this clock, and give clients dates of it: the instants that are given here may be ahead."""
        self.access.lead_ms = wall_clock.lead_ms
        self.namespace.context.wall_clock = wall_clock

    def date_of(self, instant: int) -> int:
        """What the wall clock shows, or will show, when the broker's clock is at an instant near now: the date of it for clients."""
        return instant - self.namespace.context.wall_clock.lead_ms()

    def _last_instant(self) -> int:
        return self.now

    # -- connections ---------------------------------------------------------------------------

    def connect(self, peer: str, secure: bool, loopback: bool, now: int) -> GatewayConnection:  # noqa: ARG002
        """A socket was accepted."""
        self.let_in(now)
        self._connection_count += 1
        connection = GatewayConnection(self, self._connection_count, peer, now)
        self.connections[connection] = None
        self._by_number[connection.number] = connection
        self.arm(connection)
        return connection

    def forget(self, connection: GatewayConnection) -> None:
        """A connection is over."""
        self.connections.pop(connection, None)
        self._by_number.pop(connection.number, None)
        self._timers.disarm(connection.number)
        self.window_limited.pop(connection, None)
        self._dirty.pop(connection, None)
        self._last_touched = None

    def touch(self, connection: GatewayConnection) -> None:
        """A connection has something to say, or has ended."""
        if connection is not self._last_touched:
            self._dirty[connection] = None
            self._last_touched = connection

    def take_dirty(self) -> list[GatewayConnection]:
        """Connections that may have output since last asked."""
        dirty = list(self._dirty)
        self._dirty.clear()
        self._last_touched = None
        return dirty

    def accept_later(
        self, connection: GatewayConnection, session: Session, delivery_id: int, at: int
    ) -> None:
        """Answer a send at an instant (the switchboard's delay)."""
        self._later_count += 1
        heappush(self._later, (at, self._later_count, connection, session, delivery_id))

    def next_transaction_id(self) -> bytes:
        """An id that tells nothing of how many there were: peers without a token get one too (M6)."""
        self._transactions += 1
        count = self._transactions.to_bytes(8, "big")
        return hashlib.blake2b(count, digest_size=8, key=self._transaction_key).digest()

    # -- turns and time ------------------------------------------------------------------------

    def serve(self, audit_rows: AuditRows | None, log: RecordLog | None = None) -> None:
        """Begin to count, and to gather ``audit_rows`` if they are wanted: the log has been replayed.

        ``log``: what records go through from now on, if it is another one.
        """
        if log is not None:
            self.log = self.namespace.context.log = log
        self.audit_rows = self.counters.audit_rows = audit_rows
        self.counters.on_idle_deleted = self._idle_deleted
        self.namespace.context.watcher = self.counters

    def let_in(self, now: int) -> None:
        """An instant comes, before anything happens in it."""
        self.now = now
        if now >= self.meter.minute_ends:
            self.meter.roll(now)
            self._forget_tallies()

    def _forget_tallies(self) -> None:
        """Entities that are gone are counted no more; their links have ended with them."""
        gone = self.counters.take_deleted()
        if gone:
            self.meter.forget({path for path in gone if self.namespace.find(path) is None})

    def pump(self, now: int) -> None:
        """End of a turn: deliver what is ready, answer drains, follow changed configuration."""
        self.let_in(now)
        if self.namespace.version != self._seen_version:
            self._seen_version = self.namespace.version
            self._follow_configuration()
        if self.faults.is_on or self.strikes.silent:
            self.strikes.strike(now)
        if self.window_limited and self.windows_seen != self.connection_settings.waiting.size:
            self.windows_seen = self.connection_settings.waiting.size
            for connection in list(self.window_limited):
                review_windows(connection)
        self.deliveries.lead_ms = self.namespace.context.wall_clock.lead_ms()
        self.namespace.pump(now)
        if self.draining:
            draining, self.draining = self.draining, []
            for context in draining:
                if context.is_silent or (context.queue.is_fetching and context.consumer.credit > 0):
                    self.draining.append(context)  # what is ready for it is on its way, or in a black hole
                elif context.link.is_attached and context.link.drain:
                    context.consumer.credit = 0
                    context.link.drained()
                    context.end_receive()
                    self.touch(context.connection)

    def fetched(self, queue_ids: list[int], now: int) -> None:
        """Blobs that these queues, or requests about them, waited for are here."""
        self.let_in(now)
        for queue_id in queue_ids:
            for again in self.postponed.pop(queue_id, ()):
                again()
        self.namespace.fetched(queue_ids, now)

    def _follow_configuration(self) -> None:
        """Rules or entities changed: end the links that are no longer allowed, or whose entity is gone."""
        for connection in list(self.connections):
            connection.recheck()
            for link, context in list(connection.links.items()):
                if not isinstance(context, (SendLink, ReceiveLink)):
                    continue
                entity = context.entity
                if entity.is_deleted:
                    connection.end_link(link, EntityNotFound(entity.path), entity.path)
                elif isinstance(context, ReceiveLink):
                    try:
                        context.queue.check_receive()  # disabled, or it passes everything on from now
                    except Refusal as refusal:
                        connection.end_link(link, refusal, entity.path)

    def next_deadline(self) -> int | None:
        """When ``tick`` should be called next; 0: at once, there is more to deliver."""
        if self.namespace.context.dirty:
            return 0
        first = self.namespace.next_deadline()
        for deadline in (
            self._timers.next_deadline(),
            self.strikes.next_deadline(),
            self._later[0][0] if self._later else None,
        ):
            if deadline is not None and (first is None or deadline < first):
                first = deadline
        return first

    def tick(self, now: int) -> None:
        """Let time pass."""
        self.let_in(now)
        self.namespace.tick(now)
        while self._later and self._later[0][0] <= now:
            _, _, connection, session, delivery_id = heappop(self._later)
            if connection in self.connections and not session.is_ended:
                session.accept_incoming(delivery_id)
                self.touch(connection)
        for number in self._timers.due(now):
            due = self._by_number.get(number)
            if due is not None:
                due.tick(now)
                self.arm(due)

    def arm(self, connection: GatewayConnection) -> None:
        """Have the connection ticked when it next needs it."""
        steady = connection.next_steady()
        connection.armed_steady = NOT_ARMED if steady is None else steady
        deadline = connection.next_expiry()
        if steady is not None:
            # If the clock is set meanwhile, the tick comes too early, finds nothing to do, and this is called again.
            own = self.now + steady - self.steady_ms()
            deadline = own if deadline is None or own < deadline else deadline
        if deadline is None:
            connection.armed_at = NOT_ARMED
            self._timers.disarm(connection.number)
        elif connection.number in self._by_number:
            connection.armed_at = deadline
            self._timers.arm(deadline, connection.number)

    # -- HTTP ----------------------------------------------------------------------------------

    def http(self, request: HttpRequest, now: int) -> HttpResponse:
        """Answer a request on the namespace's port: the switchboard and the management API."""
        self.let_in(now)
        path = request.target.partition("?")[0]
        # Before anything else, and from a bucket of their own: strangers must not use up what callers with a key get.
        request.is_known = self.access.knows(request.headers.get("authorization"), now)
        if not request.is_known and not self._stranger_rate.takes(now):
            return self._busy(now)
        if path == FAULTS_PATH and self.offers_faults:
            return self._http_faults(request, now)
        if own_address(request.method, request.target) == METRICS:
            return self._http_metrics(request, now)
        if request.is_known and not self._rate.takes(now):
            return self._busy(now)
        if names_access_rules(path):
            response = self._access_rules.handle(request, now)
            self.counters.answered(response.status)
            if response.status < 400:
                self.meter.tally("", MANAGEMENT).add(0)
            return response
        route = route_of(request.target)
        before = self.namespace.find(route.entity_path)
        response = self.management.handle(request, route, now)
        self.counters.answered(response.status)
        if response.status < 400:
            entity = self.namespace.find(route.entity_path) or before
            self.meter.tally("" if entity is None else entity.path, MANAGEMENT).add(0)
            self.meter.own_stage = self._own_stage()
        return response

    def _own_stage(self) -> str:
        """What requests about the whole namespace belong to."""
        stage = PRIMARY
        for path in self.namespace.paths():
            stage = stage_of(path)
            if stage == PRIMARY:
                break
        return stage

    def _busy(self, now: int) -> HttpResponse:
        text = f"<Error><Code>503</Code><Detail>{self.tracker.describe(_BUSY, '', now)}</Detail></Error>"
        return HttpResponse(503, [("Content-Type", "application/xml"), ("Retry-After", "1")], text.encode())

    def _http_metrics(self, request: HttpRequest, now: int) -> HttpResponse:
        """Metrics, for a caller with a right on the whole namespace (M6)."""
        try:
            self.access.check_scrape(request.headers.get("authorization"), now)
        except Unauthorized as refusal:
            self.audit_refusal("metrics", "", "", str(refusal.status), request.peer)
            refused = _json(refusal.status, {"error": refusal.description})
            refused.headers.append(("WWW-Authenticate", 'Basic realm="metrics"'))
            return refused
        return HttpResponse(
            200,
            [("Content-Type", CONTENT_TYPE)],
            render([*self.server_metrics(), *broker_metrics(self)]).encode(),
        )

    def _http_faults(self, request: HttpRequest, now: int) -> HttpResponse:
        try:
            self.access.check_http(request.headers.get("authorization"), "", MANAGE, now)
            if request.method == "POST":
                body = json.loads(request.body)
                if not isinstance(body, dict):
                    raise ArgumentError("A fault is a JSON object.")
                self.faults.add(body, now, self.namespace)
            elif request.method == "DELETE":
                self.faults.clear()
            elif request.method != "GET":
                return _json(405, {"error": f"{request.method} is not known here: GET, POST and DELETE are."})
        except Refusal as refusal:
            return _json(refusal.status, {"error": refusal.description})
        except ValueError as error:
            return _json(400, {"error": f"The body is not JSON: {error}"})
        return _json(200, {"faults": self.faults.snapshot(now)})

    # -- audit ---------------------------------------------------------------------------------

    def refused_login(self, peer: str, user: str, now: int) -> None:  # noqa: ARG002
        self.audit_refusal("login", "", user, "refused", peer)

    def refused_token(self, peer: str, path: str, rule_name: str, description: str) -> None:
        """A token was refused; it claims to be signed with a key of this rule."""
        reason = description.partition(":")[0]
        result = f"refused: {reason}" if reason.isalnum() else "refused"
        self.audit_refusal("put-token", path, rule_name, result, peer)

    def _idle_deleted(self, kind: int, path: str) -> None:
        self.audit(f"{DELETE_IDLE} {KIND_NAMES[kind]}", path, "", "deleted", "")

    def audit(self, action: str, path: str, who: str, result: str, peer: str) -> None:
        """Record an action (M13): what, on what, by which rule, with which result, from where."""
        if self._on_audit is not None:
            self._on_audit(action, path, who, result, peer)

    def audit_refusal(self, action: str, path: str, who: str, result: str, peer: str) -> None:
        """Record what a caller tried without the right to it (M13)."""
        if self._on_refusal is not None:
            self._on_refusal(action, path, who, result, peer)
        else:
            self.audit(action, path, who, result, peer)


def _derived(secret: bytes, purpose: bytes, size: int = 8) -> bytes:
    """Bytes for one purpose that tell nothing of those for another: prefixes are seen by everybody, the seed by nobody."""
    return hashlib.blake2b(secret, digest_size=size, person=purpose).digest()


def _json(status: int, body: dict[str, object]) -> HttpResponse:
    return HttpResponse(status, [("Content-Type", "application/json")], json.dumps(body).encode())
