"""One node of a simulated cluster: its lives as a process, and what it serves while it owns the shard.

Lease, store, commit queue, driver, gateway and engine are the ones that ship; threads, sockets, clocks and the database are simulated.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import StorageError, StoreCorrupt, StoreFailed, StoreFenced
from pairbus.gateway.broker import Broker
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.server.assemble import recover
from pairbus.server.clock import BrokerClock
from pairbus.server.cluster.ownership.keeper import LeaseKeeper
from pairbus.server.cluster.ownership.lease import Lease, LeaseState
from pairbus.server.committer import PendingOutput
from pairbus.server.loop import Driver
from pairbus.storage.table.ports import NodeEntry
from pairbus.storage.table.store import TableStore
from tests.simulation.broker.checkers import Inspector, PromiseBroken, check_counts
from tests.simulation.broker.places import ENTITIES
from tests.simulation.broker.process import Socket, outputs_of, queue_of, text_of
from tests.simulation.broker.scene import NANOSECONDS_PER_MS, ROOT_KEY
from tests.simulation.cluster.bugs import FaultyReader, WatchedWriter
from tests.simulation.cluster.machine_loop import MachineLoop
from tests.simulation.cluster.table import SimulatedLease, SimulatedTable
from tests.simulation.virtual_time import Machine

if TYPE_CHECKING:
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.http import HttpRequest
    from pairbus.server.committer import OutputSink
    from pairbus.storage.ports import Batch
    from pairbus.storage.table.ports import Acquired, Ownership
    from tests.simulation.cluster.world import ClusterWorld

MOVE_HOLD_OFF_MS: Final = 3_000
RESTART_MS: Final = 2_000
LENGTHS_TOO_FAST: Final = 1.04
"""Plants a bug: a lock of 5 seconds ends 140 ms before the date that its holder was told."""


class Node:
    """A process that is started again when it has ended."""

    def __init__(self, world: ClusterWorld, name: str, rate: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.cut_off_until = 0
        """Until when it cannot reach the database."""
        self.wall_offset_ms = world.chance.choice((-3_000, 0, 0, 700, 5_000))
        self.machine = Machine(world.virtual)
        self.machine.is_dead = True
        self.serving: Serving | None = None
        self._owner: Ownership | None = None
        self.via: list[RelayedSocket] = []
        """Connections that it relays."""

    # -- lives

    def begin(self) -> None:
        """The process starts."""
        if not self.machine.is_dead:
            return
        world = self.world
        self.machine = Machine(world.virtual, rate=self.rate, offset_ms=world.chance.randrange(10_000_000))
        self.table = SimulatedTable(world.database, self.machine, self._is_cut_off)
        world.say(self.name, "starts")
        self.machine.post(self._start)

    def _start(self) -> None:
        world = self.world
        self.lease = Lease(self.name, world.cruelty.lease_ms, self.now_ns())
        leases = self.table.lease()
        leases.has_fence = not world.planted.no_fence_frame
        entry = NodeEntry(node=self.name, address=self.name, state="", version="")
        self.keeper = Keeper(self, leases, entry)
        self._built_epoch = self._view = -1
        self._is_moving = False
        self.keeper.start()
        if not world.planted.never_looks_twice:
            self.table.watch(self.keeper.unanswered)

    def end(self, why: str) -> None:
        """The process ends, and starts again after a while."""
        if self.machine.is_dead:
            return
        world = self.world
        world.say(self.name, f"ends: {why}")
        serving, self.serving = self.serving, None
        self.machine.kill()
        if serving is not None:
            serving.end("the broker died")
        self._cut_relayed("the node in between died")
        world.at(world.time + world.chance.randrange(RESTART_MS), self.begin)

    def pause(self, ms: int) -> None:
        """Everything in the process stands still for a while; its clock does not."""
        if not self.machine.is_dead and not self.machine.is_paused:
            self.world.say(self.name, f"is paused for {ms} ms")
            self.machine.pause()
            self.world.at(self.world.time + ms, self._go_on, self.machine)

    def _go_on(self, machine: Machine) -> None:
        if machine.is_paused and not machine.is_dead:
            self.world.say(self.name, "goes on")
            machine.go_on()

    # -- clocks and network

    def now_ns(self) -> int:
        """The monotonic clock of its machine."""
        return int(self.machine.clock_ms() * NANOSECONDS_PER_MS)

    def wall_ns(self) -> int:
        """The wall clock of its machine. It runs as fast as the monotonic one: a system counts both by one counter (B26)."""
        return self.world.wall_ns() + int((self.wall_offset_ms + self._drift_ms()) * NANOSECONDS_PER_MS)

    def wall_lead_ms(self) -> int:
        """How far that clock has been ahead of the world's at most."""
        return self.wall_offset_ms + math.ceil(max(self._drift_ms(), 0))

    def _drift_ms(self) -> float:
        return self.world.time * (self.rate - 1)

    def _is_cut_off(self) -> bool:
        return self.world.time < self.cut_off_until

    def reach(self) -> Serving | None:
        """Who gets a connection that a client opens here: this node or the owner that it knows; None: nobody."""
        if self.machine.is_dead or self.machine.is_paused:
            return None
        if self.serving is not None:
            return self.serving
        known = self._owner
        return None if known is None else self.world.serving_at(known.address)

    # -- the lease

    def may_write(self) -> bool:
        """Whether the lease lasts."""
        return self.world.planted.speaks_after_the_lease or self.keeper.may_write()

    def may_retry(self) -> bool:
        """Whether a commit without an answer is repeated, as in ``cluster.node``: until another node has taken the shard."""
        return self.keeper.view().state is not LeaseState.FENCED

    def changed(self, has_woken: bool) -> None:
        """The keeper knows something new: do what follows from it, on the main thread."""
        self.machine.post(self._act, has_woken)

    def _act(self, has_woken: bool) -> None:
        if has_woken and self.serving is not None:
            self.world.say(self.name, "may write again")
            self.serving.driver.wake()
        view = self.keeper.view()
        self._owner = view.ownership
        if view.state is LeaseState.FENCED:
            self.world.at(self.world.time, self.end, "fenced")
            return
        if view.ownership is not None and view.ownership.epoch != self._view:
            self._view = view.ownership.epoch
            self._cut_relayed("the owner changed")
        held = view.held
        if held is not None and held.epoch != self._built_epoch and view.state is LeaseState.REPLAYING:
            self._built_epoch = held.epoch
            self.world.say(self.name, f"acquires epoch {held.epoch}, fence {held.fence}")
            self.world.log_checker.acquired(held.epoch, held.fence)
            self.machine.start(lambda: self._build(held), f"{self.name} build")
        if view.asked and self.serving is not None and not self._is_moving:
            self._is_moving = True
            self.world.say(self.name, "is asked to move")
            self.keeper.withdraw(MOVE_HOLD_OFF_MS)
            self.serving.drain()

    def _cut_relayed(self, why: str) -> None:
        via, self.via = self.via, []
        for socket in via:
            socket.cut(why)

    def _build(self, acquired: Acquired) -> None:
        try:
            serving = Serving(self, acquired)
        except StorageError as error:
            if isinstance(error, StoreCorrupt):
                raise PromiseBroken(f"S1, S3: the log cannot be replayed: {error}") from error
            self.world.at(self.world.time, self.end, f"no replay: {error}")
            return
        self.machine.post(self._serve, serving)

    def _serve(self, serving: Serving) -> None:
        held = self.keeper.view().held
        if held is not None and held.epoch == serving.life:
            self.serving = serving
            self.keeper.replayed(lambda: serving.store.last)
            serving.start()
            self.keeper.publish(self.name)

    def failed(self, error: Exception) -> None:
        """A commit failed, or the broker broke: the process ends."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, PromiseBroken):
                raise cause
            cause = cause.__cause__
        if isinstance(error, StoreFenced):
            self.keeper.fenced(error)
        elif isinstance(error, StoreCorrupt):
            raise PromiseBroken(f"S3: {error}") from error
        elif not isinstance(error, StoreFailed):
            raise error
        self.world.at(self.world.time, self.end, f"{type(error).__name__}: {error}")

    def drained(self) -> None:
        """The last commit was made: the lease can be given back."""
        serving, self.serving = self.serving, None
        if serving is not None:
            serving.end("the shard moves")
            serving.driver.stop()
        self._is_moving = False
        self.keeper.drained()
        self.keeper.has_done("move")


class Keeper(LeaseKeeper):
    """The keeper that ships, with the planted fault of a renewal that is counted from its answer."""

    def __init__(self, node: Node, table: SimulatedLease, entry: NodeEntry) -> None:
        leases = CountedFromTheAnswer(node, table) if node.world.planted.counts_from_the_answer else table
        super().__init__(node.lease, leases, node.table.nodes(), entry, node.changed, node.now_ns)


class CountedFromTheAnswer:
    """A lease whose owner believes that each renewal was sent when its answer came."""

    def __init__(self, node: Node, table: SimulatedLease) -> None:
        self._node = node
        self._table = table

    def renew(self, epoch: int, address: str, lease_ms: int, newest: int = 0) -> bool:
        is_ours = self._table.renew(epoch, address, lease_ms, newest)
        self._node.lease._sent_ns = self._node.now_ns()
        return is_ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class RelayedSocket(Socket):
    """A connection that another node relays to the owner."""

    def __init__(self, world: ClusterWorld, client: object, serving: Serving, via: Node) -> None:
        super().__init__(world, client, serving)  # type: ignore[arg-type]
        self.via = via
        if serving.node is not via:
            via.via.append(self)

    def cut(self, why: str) -> None:
        """See Socket."""
        super().cut(why)
        if self in self.via.via:
            self.via.via.remove(self)


class Serving:
    """The broker on one node under one epoch. See ``scene.Life``."""

    def __init__(self, node: Node, acquired: Acquired) -> None:
        self.node = node
        self.world = world = node.world
        self.machine = node.machine
        self.life = acquired.epoch
        self.is_dead = False
        self.sockets: list[Socket] = []
        pace = LENGTHS_TOO_FAST if world.planted.ends_locks_early else 1
        self.clock = BrokerClock(node.wall_ns, lambda: int(node.now_ns() * pace))
        table = node.table.writer()
        # These two would be caught by that check, and are to be caught without it.
        planted = world.planted
        table.checks_the_frame_before = not (planted.no_fence_frame or planted.retries_with_a_new_number)
        self.writer = WatchedWriter(table, planted, world.database.faults.range_frames)
        reader = FaultyReader(node.table.reader(), acquired, world.planted, world.chance)
        self.store = CheckedStore(
            self.writer,
            reader,
            epoch=acquired.epoch,
            fence=acquired.fence,
            may_retry=node.may_retry,
            pause=node.machine.sleep,
            clock=lambda: node.machine.clock_ms() / 1000,
            cache_bytes=world.cruelty.cache_bytes,
            reserve_bytes=0,
            unit_bits=world.cruelty.unit_bits,
            garbage_bytes_min=world.cruelty.garbage_bytes_min,
            name=node.name,
        )
        self.store.serving = self
        self.broker = Broker("world", self.store, world.chance.randbytes(16))
        self.broker.steady_ms = self.clock.steady_ms
        self.broker.follow_wall_clock(self.clock)
        namespace = self.broker.namespace
        recover(namespace, self.store, now=self.clock())
        self.broker.serve(None)
        namespace.context.read_ahead = self.store.read_ahead
        self.inspector = Inspector(
            self.broker.deliveries,
            world.ledger,
            partial(text_of, self.store),
            queue_of,
            world.decisions,
            world.latest_wall,
        )
        self.inspector.is_blind = not world.inspects
        namespace.context.outbox = self.inspector
        check_counts(namespace)
        is_current = world.database.primary.durable.row.epoch == acquired.epoch
        if world.administrator is not None and is_current and namespace.find("orders") is not None:
            world.administrator.check(namespace)
        self._declare()
        self._answers: list[PendingOutput] = []
        loop = MachineLoop(self.machine)
        with loop.as_running():
            self.driver = Driver(
                self.broker,
                self.store,
                self._now,
                outputs=self._outputs,
                set_reading=_ignore_reading,
                failed=node.failed,
                may_write=node.may_write,
                commits_inline=False,
            )

    def _declare(self) -> None:
        namespace, now = self.broker.namespace, self.clock()
        if not namespace.access_rules:
            root = AccessRule(name=ROOT_RULE, rights=RIGHTS, primary_key=ROOT_KEY, secondary_key="-")
            namespace.set_access_rules((root,), now)
        for kind, path, settings in ENTITIES:
            if namespace.find(path) is None:
                namespace.create(kind, path, settings, now)

    def start(self) -> None:
        """From now on clients are served."""
        self.world.say(self.node.name, f"serves epoch {self.life}")
        self.driver.start()

    def drain(self) -> None:
        """Clients are told to come back later; once everything is durable the lease is given back."""
        for socket in list(self.sockets):
            if socket.gateway is not None:
                socket.gateway.close("amqp:connection:forced", "the shard moves to another node")
        self.driver.ask_turn()
        self._drained()

    def _drained(self) -> None:
        if self.driver._idle.is_set():
            self.node.drained()
        else:
            self.machine.after(5, self.machine.post, self._drained)

    def end(self, why: str) -> None:
        """It is over: nothing is said any more."""
        self.is_dead = True
        for socket in list(self.sockets):
            socket.is_known = False
            socket.cut(why)

    def _now(self) -> int:
        now = self.inspector.now = self.clock()
        return now

    def wall(self) -> int:
        """See Life."""
        return self.node.wall_ns() // NANOSECONDS_PER_MS

    # -- what comes in: see Life

    def connect(self, socket: Socket) -> None:
        """See Life."""
        self.sockets.append(socket)
        self.machine.post(self._connect, socket)

    def _connect(self, socket: Socket) -> None:
        gateway = self.broker.connect(socket.client.name, secure=True, loopback=True, now=self._now())
        gateway.context = socket
        socket.gateway = gateway
        self.driver.ask_turn()

    def receive(self, socket: Socket, data: bytes) -> None:
        """See Life."""
        self.machine.post(self._receive, socket, data)

    def _receive(self, socket: Socket, data: bytes) -> None:
        if self.is_dead or socket.gateway is None or not socket.is_known:
            return
        try:
            socket.gateway.receive(data, self._now())
        except StoreFenced as error:
            # As in ``sockets.connection``: what it asks for cannot be read any more, and that costs this peer (B59).
            socket.cut(str(error))
        self.driver.received(len(data))

    def request(self, request: HttpRequest, caller: OutputSink) -> None:
        """See Life."""
        self.machine.post(self._request, request, caller)

    def _request(self, request: HttpRequest, caller: OutputSink) -> None:
        if not self.is_dead:
            answer = self.broker.http(request, self._now())
            sink = CheckedSink(self, caller)
            self._answers.append(PendingOutput(sink, [str(answer.status).encode()], False))
            self.driver.ask_turn()

    def resume(self, gateway: GatewayConnection) -> None:
        """See Life."""
        self.machine.post(self._resume, gateway)

    def _resume(self, gateway: GatewayConnection) -> None:
        gateway.resume(self._now())
        self.driver.ask_turn()

    def lost(self, socket: Socket) -> None:
        """See Life."""
        self.machine.post(self._lost, socket)

    def _lost(self, socket: Socket) -> None:
        if self.is_dead or socket not in self.sockets:
            return
        self.sockets.remove(socket)
        if socket.gateway is not None:
            socket.gateway.context = None
            socket.gateway.lost(self._now())
        self.driver.ask_turn()

    def writes(self, socket: Socket | None) -> None:
        """See Life: nothing is said outside the lease (S4)."""
        self.world.log_checker.writes(self.life)

    # -- what goes out

    def _outputs(self) -> list[PendingOutput]:
        answers, self._answers = self._answers, []
        return outputs_of(self.broker) + answers


class CheckedStore(TableStore):
    """The store that ships; what it takes for durable must be (S3, S5, S7)."""

    serving: Serving

    def commit(self, batch: Batch) -> None:
        """See Store."""
        super().commit(batch)
        serving = self.serving
        assert serving.writer.last is not None, "a batch was committed"
        serving.world.log_checker.committed(serving.life, *serving.writer.last)


class CheckedSink:
    """Checks that an answer to a management request may leave."""

    def __init__(self, serving: Serving, caller: OutputSink) -> None:
        self._serving = serving
        self._caller = caller

    def write(self, chunks: list[bytes], closes: bool) -> None:
        """See OutputSink."""
        self._serving.writes(None)
        self._caller.write(chunks, closes)


def _ignore_reading(_on: bool) -> None:
    """Clients of the simulated world send little."""
