"""One node of a cluster: it listens always, serves the shard while it is the owner, and otherwise relays to the owner.

Everything here runs on the event loop. ``keeper`` has the thread that calls the database; whenever it learns something, ``_review`` runs
here and compares what is with what should be:

    the lease was acquired          read the log in a thread, build the server, publish the address: SERVING
    another node became the owner   cut what was relayed to the former one
    nothing may be said for long    cut the clients, who find another node or come back: without its database a shard refuses (S8)
    asked to move, drain or stop    tell clients to connect again, last commit, cut the rest, give the lease back
    fenced                          cut everything; ``wait_ended`` returns StoreFenced, and the process ends with a code of its own
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pairbus import __version__
from pairbus.errors import StoreFenced
from pairbus.gateway.telemetry.exposition import CONTENT_TYPE, render
from pairbus.server.clock import BrokerClock, Clock, utc
from pairbus.server.cluster.advertised import OwnAddress
from pairbus.server.cluster.health import health_answer, report_warning, role_and_reason
from pairbus.server.cluster.metrics import cluster_metrics
from pairbus.server.cluster.names import NodeNames
from pairbus.server.cluster.ownership.building import Building, TakeoverGivenUp
from pairbus.server.cluster.ownership.keeper import LeaseKeeper, LeaseView, lease_clock_ns
from pairbus.server.cluster.ownership.lease import RENEWALS_PER_LEASE, Lease, LeaseState
from pairbus.server.cluster.ownership.reporter import REPORT_SECONDS
from pairbus.server.cluster.ownership.takeover import SeenOwners, Takeovers
from pairbus.server.cluster.readiness import Readiness
from pairbus.server.cluster.relaying.relay import Relay, Route, RouteKind
from pairbus.server.cluster.settings import SharedSettings
from pairbus.server.cluster.status import describe
from pairbus.server.config.addresses import parse_address
from pairbus.server.ready import is_local
from pairbus.server.server import Server
from pairbus.server.sockets.accepting import Acceptor
from pairbus.server.sockets.registry import bind_all
from pairbus.storage.table.patience import StoreUnreachable
from pairbus.storage.table.ports import REQUEST_DRAIN, REQUEST_MOVE, NodeEntry, OutcomeUnknown, Ownership

if TYPE_CHECKING:
    from pairbus.gateway.telemetry.exposition import Metric
    from pairbus.server.cluster.ownership.building import AssembleShard
    from pairbus.server.cluster.ports import ShardDatabase
    from pairbus.server.config.certificates import CertificateFiles
    from pairbus.server.config.options import ClusterOptions, Options
    from pairbus.server.ready import ReadyInfo
    from pairbus.server.server import Page

logger = logging.getLogger(__name__)

LEAVE_SECONDS_MAX: Final = 0.25
"""How long clients may take to leave in a planned move, before they are cut: part of its silence."""
COMMIT_SECONDS_MAX: Final = 4.0
"""How long the last commit may take."""
ANSWERS_SECONDS_MAX: Final = 6.0
"""How long a stop waits for answers of the database. Then it cuts every connection to it, and what waited ends."""
RELEASE_SECONDS_MAX: Final = 5.0
TASKS_SECONDS_MAX: Final = 5.0
"""How long a stop waits for work under way, such as a replay."""
FENCED_SECONDS_MAX: Final = 5.0
"""How long the end of a node that was fenced waits for its lease thread, which may wait for the database."""
HOLD_OFF_LEASES: Final = 3
"""After a planned move this node leaves the shard to others for so many leases."""
WAIT_BEYOND_LEASE_SECONDS: Final = 2.0
"""A client that comes while there is no owner waits for one: for the rest of the lease, and so much longer."""
REVIEW_SECONDS: Final = 0.2


class SeenOwner(NamedTuple):
    """Who owns the shard, as this node last saw it."""

    epoch: int
    node: str
    """Empty: nobody."""
    address: str
    """Where the other nodes reach it; empty: it has not read the log yet."""


class Node:
    """Serves one namespace together with other nodes, on the running loop.

    Args:
        options: How to serve.
        cluster: This node's part.
        database: The shard.
        assemble: Builds broker and store once the shard was acquired; called in a thread.
        page: Serves pages beside the broker's own answers.
        clock: The broker's clock.
    """

    def __init__(
        self,
        options: Options,
        cluster: ClusterOptions,
        database: ShardDatabase,
        assemble: AssembleShard,
        *,
        page: Page | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._database = database
        self._assemble = assemble
        self._page = page
        self._clock: Clock = clock if clock is not None else BrokerClock()
        self._loop = asyncio.get_running_loop()
        self._settings = SharedSettings(database.settings())
        self._relay = Relay(
            self,
            connections_max=options.limits.connections_max,
            first_bytes_seconds=options.limits.handshake_seconds,
            wait_seconds=cluster.lease_ms / 1000 + WAIT_BEYOND_LEASE_SECONDS,
        )
        self._acceptors: list[Acceptor] = []
        self.readiness = Readiness(options, cluster.node, self._settings)
        self._names, self._own_address = NodeNames(options), OwnAddress()
        self._keeper: LeaseKeeper | None = None
        self._server: Server | None = None
        self._ended: asyncio.Future[Exception | None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reviewer: asyncio.TimerHandle | None = None
        self._building: Building | None = None
        self._is_leaving = False
        self._is_stopping = False
        self._owner: SeenOwner | None = None
        """None: unknown."""
        self._owner_until = 0.0
        """When the lease that was last seen ends, by the loop's clock."""
        self._state = LeaseState.IDLE
        self._silent_since: float | None = None
        self._fenced_since = 0.0
        self._was_cut = False
        self._is_drained = False
        self._silences = 0
        self._owners, self._takeovers = SeenOwners(), Takeovers()

    # Life.

    async def start(self) -> None:
        """Listen and take part. Raises OSError, UsageError or StorageError."""
        options = self._options
        main = await self._listen(*options.amqp, http_only=False)
        http = await self._listen(*options.http, http_only=True) if options.http is not None else main
        self.readiness.addresses = (main, http)
        self._names.advertised = self.readiness.advertised = self._cluster.address(main)
        if options.tls and options.tls_cert is None:
            await self._settings.call(self._names.share_authority, self._settings.table, utc(self._clock()))
        entry = NodeEntry(
            node=self._cluster.node,
            address=self._names.advertised,
            names=self._names.own(),
            state=LeaseState.IDLE.value,
            version=__version__,
        )
        lease = Lease(self._cluster.node, self._cluster.lease_ms, lease_clock_ns())
        self._keeper = LeaseKeeper(
            lease, self._database.lease(), self._database.nodes(), entry, self._keeper_changed
        )
        self._database.report_silence(self._keeper.unanswered)
        self._keeper.start()
        if not is_local(parse_address(self._names.advertised, "--advertise")[0]):
            # The owner reads with its reports who is there, and reports after its renewals.
            seen_seconds = 2 * REPORT_SECONDS + self._cluster.lease_ms / 1000 / RENEWALS_PER_LEASE
            self.readiness.not_before = self._loop.time() + seen_seconds
        self._own_address.watch(self._names.advertised, options.namespace, self._cluster.node)
        self._review_later()
        logger.info(
            "node started",
            extra={
                "event": "cluster.started",
                "namespace": options.namespace,
                "node": self._cluster.node,
                "address": self._names.advertised,
                "lease_ms": self._cluster.lease_ms,
            },
        )

    async def wait_ended(self) -> Exception | None:
        """Wait until the node has stopped (None) or must end (why)."""
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Leave in an orderly way: clients are told to connect again, and the lease is given back. Idempotent."""
        self._is_stopping = True
        if self._reviewer is not None:
            self._reviewer.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        self._own_address.close()
        keeper = self._keeper
        cut = self._loop.call_later(ANSWERS_SECONDS_MAX, self._cut_database)
        if keeper is not None:
            keeper.withdraw()
            await self._leave()
            if self._tasks:
                # Each ends soon by itself: commits and replay are not repeated any more. A silent database must not hold up the end.
                await asyncio.wait(self._tasks, timeout=TASKS_SECONDS_MAX)
            await self._run(keeper.wait_released, RELEASE_SECONDS_MAX)
            await self._run(keeper.stop)
            self._keeper = None
        self._relay.close()
        await self._run(self._settings.table.close)
        cut.cancel()
        self._database.cut()  # whatever still waits there ends
        self.readiness.close()
        if not self._ended.done():
            self._ended.set_result(None)

    def _cut_database(self) -> None:
        logger.warning(
            "the database does not answer: this node ends without giving its lease back",
            extra={"event": "cluster.stop_unanswered", "seconds": ANSWERS_SECONDS_MAX},
        )
        self._database.cut()

    async def _listen(self, host: str, port: int, *, http_only: bool) -> tuple[str, int]:
        sockets = await self._run(bind_all, host, port)
        taken = sockets[0].getsockname()
        for sock in sockets:
            self._acceptors.append(Acceptor(sock, lambda: self._relay.entrance(http_only=http_only)))
        return host or taken[0], taken[1]

    async def _run(self, call: Callable[..., object], *arguments: object) -> Any:
        return await self._loop.run_in_executor(None, call, *arguments)

    # Asked by the relay.

    def route(self) -> Route:
        """See ``relay.Host``."""
        if self._keeper is None or self._is_stopping:
            return Route(RouteKind.CLOSE)
        if self._server is not None and not self._is_leaving:
            return Route(RouteKind.LOCAL if self._keeper.may_write() else RouteKind.CLOSE)
        view = self._keeper.view()
        if view.state in (
            LeaseState.ACQUIRING,
            LeaseState.REPLAYING,
            LeaseState.SERVING,
            LeaseState.DRAINING,
        ):
            return Route(RouteKind.WAIT)
        # If the database does not answer this node, the last known owner is tried: it knows itself whether it may write.
        owner = self._owner_of(view) or self._owner
        if owner is None:
            return Route(RouteKind.CLOSE)
        if not owner.node or owner.node == self._cluster.node or not owner.address:
            # Nobody, or one who has not read the log yet: somebody will be the owner in a moment.
            return Route(RouteKind.WAIT)
        return Route(RouteKind.RELAY, owner.address)

    def adopt(
        self, transport: asyncio.Transport, first: bytes, *, http_only: bool, relayed_for: str | None
    ) -> None:
        """See ``relay.Host``."""
        if self._server is None:
            transport.abort()
        else:
            self._server.adopt(transport, first, http_only=http_only, relayed_for=relayed_for)

    def health(self, target: str) -> tuple[int, str, bytes]:
        """See ``relay.Host``."""
        if target.endswith("/metrics"):
            metrics = self.metrics()  # none while the node starts or stops
            return 200 if metrics else 503, CONTENT_TYPE, render(metrics).encode()
        role, reason = self._role_and_reason()
        reports = report_warning(self._keeper.view()) if self._keeper is not None else ""
        warning = self._own_address.trouble or reports
        return health_answer(target, role, self._options.namespace, self._standing(role), reason, warning)

    def role(self) -> str:
        """``owner``, ``relay``, or ``silent``: no client is served through this node now."""
        return self._role_and_reason()[0]

    def _role_and_reason(self) -> tuple[str, str]:
        return role_and_reason(
            self.route(),
            self._relay.reach,
            self._keeper.view() if self._keeper is not None else None,
            is_lease_over=self._loop.time() >= self._owner_until,
            commit_waits_ms=self._server.commit_waits_ms() if self._server is not None else 0,
            lease_ms=self._cluster.lease_ms,
            failed_takeover=self._takeovers.reason,
        )

    def _standing(self, role: str) -> dict[str, str]:
        owner = self._owner
        return {
            "role": role,
            "node": self._cluster.node,
            "owner": owner.node if owner is not None else "",
            "epoch": str(owner.epoch) if owner is not None else "",
        }

    # What keeps changing.

    def _keeper_changed(self, has_woken: bool) -> None:
        """Called by the keeper's thread."""
        try:
            self._loop.call_soon_threadsafe(self._review_and_wake if has_woken else self._review)
        except RuntimeError:
            logger.debug("the event loop has ended before the lease", extra={"event": "cluster.orphaned"})

    def _review_and_wake(self) -> None:
        if self._server is not None:
            self._server.wake()
        self._review()

    def _review_later(self) -> None:
        self._reviewer = self._loop.call_later(REVIEW_SECONDS, self._review_again)

    def _review_again(self) -> None:
        self._review()
        if not self._is_stopping:
            self._review_later()

    def _review(self) -> None:
        """Compare what is with what should be."""
        keeper = self._keeper
        if keeper is None or self._is_stopping:
            return
        view = keeper.view()
        self._see_state(view)
        self._see_owner(view)
        if view.state is LeaseState.FENCED:
            self._end_fenced(view)
            return
        is_free = self._building is None and not self._is_leaving
        if view.state is LeaseState.REPLAYING and is_free and view.held is not None:
            self._building = Building(view.held, self._may_retry)
            self._spawn(self._build(self._building))
        self._see_request(view)
        if self._server is not None and not self._names.are_certified(view.nodes):
            self._server.renew_certificate()

    def _see_state(self, view: LeaseView) -> None:
        before, self._state = self._state, view.state
        if view.state is not LeaseState.SILENT:
            self._silent_since, self._was_cut = None, False
        elif self._silent_since is None:
            self._silent_since = self._loop.time()
            self._silences += 1
        elif (
            not self._was_cut
            and self._server is not None
            and self._loop.time() - self._silent_since >= self._cluster.lease_ms / 1000
        ):
            self._was_cut = True
            self._server.cut_connections()
            logger.error(
                "clients are cut: the lease could not be renewed",
                extra={"event": "cluster.cut", "lag_ms": view.lag_ms},
            )
        if before is not view.state:
            level = logging.WARNING if view.state is LeaseState.SILENT else logging.INFO
            logger.log(
                level,
                "the lease changed",
                extra={
                    "event": "cluster.lease",
                    "node": self._cluster.node,
                    "state": view.state.value,
                    "before": before.value,
                    "epoch": view.held.epoch if view.held is not None else 0,
                    **({"reason": self._role_and_reason()[1]} if view.state is LeaseState.SILENT else {}),
                },
            )

    def _see_owner(self, view: LeaseView) -> None:
        owner = self._owner_of(view)
        if view.ownership is not None:
            self._owner_until = self._loop.time() + (view.ownership.remaining_ms - view.lag_ms) / 1000
        if owner is not None and owner.address and self._server is None:
            if self.readiness.is_look_due(self._loop.time(), is_new=owner != self._owner):
                self._spawn(self.readiness.look())
        if owner is None or owner == self._owner:
            return
        before, self._owner = self._owner, owner
        is_other = owner.node != self._cluster.node
        self._relay.owner_changed(owner.address if is_other else "", (self._options.namespace, owner.node))
        if owner.address:
            self._takeovers.served()
        self._owners.saw(owner.epoch, owner.node)
        if before is None or (before.epoch, before.node) != (owner.epoch, owner.node):
            logger.info(
                "the namespace has a new owner" if owner.node else "the namespace has no owner",
                extra={
                    "event": "cluster.owner",
                    "namespace": self._options.namespace,
                    "node": self._cluster.node,
                    "owner": owner.node,
                    "epoch": owner.epoch,
                    "address": owner.address,
                },
            )

    def _owner_of(self, view: LeaseView) -> SeenOwner | None:
        if view.held is not None:
            address = self._names.advertised if self._server is not None else ""
            return SeenOwner(view.held.epoch, self._cluster.node, address)
        found: Ownership | None = view.ownership
        if found is None:
            return None
        if found.remaining_ms <= 0:
            return SeenOwner(found.epoch, "", "")
        return SeenOwner(found.epoch, found.owner, found.address)

    def _see_request(self, view: LeaseView) -> None:
        keeper = self._keeper
        assert keeper is not None, "asked while the node runs"
        if view.asked == REQUEST_MOVE:
            if self._server is None and view.held is not None:
                return  # it is done once this node serves
            keeper.has_done(REQUEST_MOVE)
            if self._server is not None and not self._is_leaving:
                logger.info("moving to another node", extra={"event": "cluster.moving"})
                keeper.withdraw(HOLD_OFF_LEASES * self._cluster.lease_ms)
                self._spawn(self._leave())
        elif (view.asked == REQUEST_DRAIN) != self._is_drained:
            self._is_drained = view.asked == REQUEST_DRAIN
            logger.info(
                "this node takes no part" if self._is_drained else "this node takes part again",
                extra={"event": "cluster.drain", "node": self._cluster.node},
            )
            if self._is_drained:
                keeper.withdraw()
                self._spawn(self._leave())
            else:
                keeper.take_part()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Owning.

    async def _build(self, building: Building) -> None:
        """Read the log and serve."""
        keeper, acquired = self._keeper, building.acquired
        assert keeper is not None, "a node builds while it runs"
        started = self._loop.time()
        server: Server | None = None
        try:
            assembly = await building.assemble(self._assemble, self._options, self._clock())
            keeper.replayed(assembly.last_frame)
            server = Server(
                self._options, assemble=lambda *_: assembly, clock=self._clock, page=self._page, seat=self
            )
            await building.start(server)
            server.root_key_replaced = self._take_root_key
            await self.readiness.share(assembly.root_key)
            building.check()
            if keeper.view().held != acquired:
                raise TakeoverGivenUp
        except Exception as error:  # noqa: BLE001 - whatever it was, this node cannot serve the shard now
            if server is not None:
                await server.kill()
            self._building = None
            self._not_built(keeper, error, is_given_up=building.is_given_up)
            return
        self._building = None
        self._server = server
        self._takeovers.succeeded()
        keeper.publish(self._names.advertised)
        logger.info(
            "this node serves the namespace",
            extra={
                "event": "cluster.serving",
                "namespace": self._options.namespace,
                "node": self._cluster.node,
                "epoch": acquired.epoch,
                "records": assembly.records_replayed,
                "seconds": round(self._loop.time() - started, 3),
            },
        )
        self.readiness.announce(assembly.root_key)
        self._spawn(self._watch(server))
        self._review()

    def _not_built(self, keeper: LeaseKeeper, error: Exception, *, is_given_up: bool) -> None:
        """The lease is given back at once: nobody serves before."""
        if is_given_up or isinstance(error, TakeoverGivenUp):
            keeper.drained()
            return
        is_passing = isinstance(error, (StoreUnreachable, OutcomeUnknown))
        keeper.withdraw(self._takeovers.failed(error) if is_passing else None)
        keeper.drained()
        if not is_passing:
            self._end(error)

    def _take_root_key(self, _: ReadyInfo, key: str) -> None:
        """The root key was replaced."""
        self.readiness.announce(key)
        self._spawn(self.readiness.share(key))

    async def _watch(self, server: Server) -> None:
        error = await server.wait_ended()
        if error is not None and self._keeper is not None:
            if isinstance(error, StoreFenced):
                self._keeper.fenced(error)
                self._review()
            else:
                self._end(error)

    async def _leave(self) -> None:
        """Give the shard up, if this node has it: clients first, then the lease."""
        keeper, server = self._keeper, self._server
        if self._is_leaving or keeper is None:
            return
        if server is None:
            if self._building is not None:
                self._building.give_up()  # it gives the lease back
            else:
                keeper.drained()
            return
        self._is_leaving = True
        try:
            await server.drain(LEAVE_SECONDS_MAX, COMMIT_SECONDS_MAX)
            server.cut_connections()
            keeper.drained()
            self._server = None
            await server.stop()
        finally:
            self._is_leaving = False
        self._review()

    def _may_retry(self) -> bool:
        """A commit without an answer is repeated until it is known, also in silence: the key of its row makes that safe (S5)."""
        return not self._is_stopping and self._state is not LeaseState.FENCED

    def _end_fenced(self, view: LeaseView) -> None:
        """Nothing is said any more. The end waits until it is known whether the database lost what was acknowledged."""
        error = view.ending or StoreFenced(
            f"another node has taken the namespace {self._options.namespace}; start this one again, and it takes part as before"
        )
        self._fenced_since = self._fenced_since or self._loop.time()
        self._relay.cut_relayed()
        if self._building is not None:
            self._building.give_up()
        if self._server is not None:
            self._server.fail(error)
            self._server.cut_connections()
        if view.is_over or self._loop.time() - self._fenced_since >= FENCED_SECONDS_MAX:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._relay.cut_relayed()
        if not self._ended.done():
            self._ended.set_result(error)

    # Asked by the server: see ``server.ClusterSeat``.

    def may_write(self) -> bool:
        return self._keeper is not None and self._keeper.may_write()

    def may_flush(self) -> bool:
        """Whether sockets may take what waits in their buffers."""
        return self._keeper is None or self._keeper.may_flush()

    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return self.readiness.addresses

    def held_objects(self) -> int:
        """About how many objects what is stored takes in memory; 0 while another node is the owner."""
        return self._server.held_objects() if self._server is not None else 0

    def certificates(self) -> CertificateFiles:
        assert self._keeper is not None, "asked while the node runs"
        return self._names.certificates(self._keeper.view().nodes, utc(self._clock()))

    def standing(self) -> dict[str, str]:
        return self._standing(self.role())

    def picture(self) -> dict[str, Any] | None:
        """The cluster as this node knows it while it is the owner; None: it is not."""
        view = self._keeper.view() if self._keeper is not None else None
        if view is None or view.held is None:
            return None
        name = self._cluster.node
        owner = Ownership(view.held.epoch, name, self._names.advertised, view.writes_ms_left)
        return {
            **describe(self._options.namespace, owner, view.nodes, view.copies),
            "lease_seconds": self._cluster.lease_ms / 1000,
            "owner_changes": self._owners.changes,
        }

    def metrics(self) -> list[Metric]:
        keeper = self._keeper
        if keeper is None:
            return []
        view = keeper.view()
        return cluster_metrics(
            node=self._cluster.node,
            role=self.role(),
            epoch=self._owner.epoch if self._owner is not None else 0,
            owner_changes=self._owners.changes,
            failed_takeovers=self._takeovers.failures,
            silences=self._silences,
            renewals=keeper.renewals,
            failures=keeper.failures,
            lag_ms=view.lag_ms,
            copies=view.copies,
            relay=self._relay.statistics(),
        )
