"""One life of the broker in a simulated world, and the sockets that lead to it.

``Process`` does what ``server.loop`` does, on simulated time, with the production commit queue, clock, gateway and engine.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.engine.ports import RecordLog
from pairbus.engine.records import EntityPut, MessageRemoved
from pairbus.errors import StoreFailed
from pairbus.gateway.broker import Broker
from pairbus.gateway.links import ReceiveLink
from pairbus.server.clock import BrokerClock
from pairbus.server.committer import Commit, CommitQueue, PendingOutput
from tests.simulation.broker.checkers import Inspector, Stamp, check_times
from tests.simulation.broker.scene import NANOSECONDS_PER_MS

if TYPE_CHECKING:
    from pairbus.engine.namespace import Namespace
    from pairbus.engine.queues.consumer import Consumer
    from pairbus.engine.queues.queue import Queue
    from pairbus.engine.records import Record
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.http import HttpRequest
    from pairbus.model.message import Message
    from pairbus.server.committer import OutputSink
    from pairbus.storage.ports import Store
    from tests.simulation.broker.clients import Client
    from tests.simulation.broker.scene import Life, Scene
    from tests.simulation.broker.world import World

TIMER_MS_MAX: Final = 1_000
"""The longest the broker sleeps on a deadline, as in ``server.loop``."""
WRITE_BYTES_HIGH: Final = 4_096
"""Unread bytes at which a socket counts as full: small, so that it happens."""


class PowerLoss(Exception):
    """The power goes in the midst of a commit."""


class Socket:
    """One connection between a client and one life of the broker."""

    def __init__(self, world: Scene, client: Client, process: Life) -> None:
        self.world = world
        self.client = client
        self.process = process
        self.gateway: GatewayConnection | None = None
        self.is_open = True
        """As the client sees it."""
        self.is_known = True
        """As the broker sees it; it may notice late that the client has gone."""
        self.reads = True
        self.unread: list[tuple[bytes, Stamp, bool]] = []
        self._unread_bytes = 0
        self._is_paused = False
        self._inbound_at = self._outbound_at = 0

    # -- to the broker

    def send(self, data: bytes) -> None:
        """The client writes."""
        world = self.world
        while data:
            cut = len(data)
            if cut > 1 and world.chance.random() < world.roughness.splits:
                cut = world.chance.randrange(1, len(data))
            self._inbound_at = max(self._inbound_at, world.time + world.delay())
            world.at(self._inbound_at, self._arrive, data[:cut])
            data = data[cut:]

    def _arrive(self, data: bytes) -> None:
        if self.is_known and not self.process.is_dead:
            self.process.receive(self, data)

    # -- to the client

    def write(self, chunks: list[bytes], closes: bool) -> None:
        """See OutputSink: the broker writes."""
        world = self.world
        self.process.writes(self)
        stamp = Stamp(world.next_emission(), world.time, self.process.wall(), self.process.life)
        self._outbound_at = max(self._outbound_at, world.time + world.delay())
        data = b"".join(chunks)
        self._unread_bytes += len(data)
        if self._unread_bytes > WRITE_BYTES_HIGH and not self._is_paused and self.gateway is not None:
            self._is_paused = True
            self.gateway.pause()
        world.at(self._outbound_at, self._deliver, data, stamp, closes)
        if closes:
            self.forget()

    def _deliver(self, data: bytes, stamp: Stamp, closes: bool) -> None:
        if not self.is_open:
            return
        self.unread.append((data, stamp, closes))
        self.read()

    def read(self) -> None:
        """The client reads what has come, if it reads at all."""
        while self.reads and self.is_open and self.unread:
            data, stamp, closes = self.unread.pop(0)
            self._unread_bytes -= len(data)
            if data:
                self.client.receive(data, stamp)
            if closes:
                error = self.client.connection.error
                self.cut(f"closed by the broker: {None if error is None else error.condition}")
        if (
            self._is_paused
            and self._unread_bytes <= WRITE_BYTES_HIGH // 4
            and self.is_known
            and self.gateway is not None
        ):
            self._is_paused = False
            self.process.resume(self.gateway)

    # -- ends

    def cut(self, why: str) -> None:
        """The network breaks: the client notices now, the broker a little later."""
        if self.is_open:
            self.is_open = False
            self.world.say(self.client.name, f"lost its connection: {why}")
            self.client.lost()
            self.world.at(self.world.time + self.world.delay(), self.forget)

    def forget(self) -> None:
        """The broker learns that the socket is gone."""
        if self.is_known:
            self.is_known = False
            self.process.lost(self)


class Process:
    """One life of the broker: what ``server.loop`` does, on simulated time."""

    def __init__(self, world: World, store: Store, life: int) -> None:
        self.world = world
        self.store = store
        self.life = life
        self.clock = BrokerClock(world.wall_ns, world.monotonic_ns)
        self.broker = Broker("world", store, world.chance.randbytes(16))
        self.broker.steady_ms = self.clock.steady_ms
        self.broker.follow_wall_clock(self.clock)
        self.sockets: list[Socket] = []
        self.is_dead = False
        namespace = self.broker.namespace
        for record in store.replay():
            namespace.fold(record)
        namespace.replayed(self.clock())
        store.live(namespace.live_messages())
        self.broker.serve(None)
        self._first_numbers = {
            queue.queue_id: queue.numbers.next_sequence_number for queue in namespace.all_queues()
        }
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
        if world.bugs.reuses_numbers and life:
            for queue in namespace.all_queues():
                queue.numbers.next_sequence_number = 1 + max(queue.messages, default=0)
        if world.bugs.loses_removals:
            namespace.context.log = self.broker.log = Forgetful(store)
        if world.bugs.forgets_changes:
            namespace.context.log = self.broker.log = Absentminded(store, namespace)
        self._answers: list[PendingOutput] = []
        self._queue = CommitQueue(self._collect, self._seal)
        self._turn_asked = False
        self._timer_at = 0

    def wall(self) -> int:
        """See Life."""
        return self.world.wall_ns() // NANOSECONDS_PER_MS

    # -- what comes in

    def connect(self, socket: Socket) -> None:
        """A client's connection is accepted."""
        gateway = self.broker.connect(socket.client.name, secure=True, loopback=True, now=self.clock())
        gateway.context = socket
        socket.gateway = gateway
        self.sockets.append(socket)
        self.ask_turn()

    def receive(self, socket: Socket, data: bytes) -> None:
        """Bytes from a client."""
        assert socket.gateway is not None, socket.client.name
        self._queue.received(len(data))
        now = self.inspector.now = self.clock()
        socket.gateway.receive(data, now)
        self.ask_turn()

    def request(self, request: HttpRequest, caller: OutputSink) -> None:
        """A management request; its answer is spoken after the commit, like every other."""
        now = self.inspector.now = self.clock()
        answer = self.broker.http(request, now)
        self._answers.append(PendingOutput(caller, [str(answer.status).encode()], False))
        self.ask_turn()

    def resume(self, gateway: GatewayConnection) -> None:
        """A socket has room again."""
        gateway.resume(self.clock())
        self.ask_turn()

    def lost(self, socket: Socket) -> None:
        """A socket is gone."""
        if self.is_dead:
            return
        self.sockets.remove(socket)
        if socket.gateway is not None:
            socket.gateway.context = None
            socket.gateway.lost(self.clock())
        self.ask_turn()

    def writes(self, socket: Socket) -> None:
        """See Life: what may be written when is the commit queue's matter, which is the one that ships."""

    # -- bursts

    def ask_turn(self) -> None:
        """Have the end of the burst handled."""
        if not self._turn_asked and not self.is_dead:
            self._turn_asked = True
            self.world.at(self.world.time, self._turn)

    def _turn(self) -> None:
        if self.is_dead:
            return
        self._turn_asked = False
        now = self.inspector.now = self.clock()
        broker = self.broker
        deadline = broker.next_deadline()
        if deadline is not None and deadline <= now:
            broker.tick(now)
        broker.pump(now)
        if self.world.bugs.hands_out_twice:
            self._hand_out_twice()
        self._proceed([])
        if self.world.inspects:
            check_times(broker.namespace, now, self._first_numbers)
        deadline = broker.next_deadline()
        if deadline is not None:
            self._arm(min(max(deadline - now, 0), TIMER_MS_MAX))

    def _hand_out_twice(self) -> None:
        for queue in self.broker.namespace.all_queues():
            for lock in list(queue.locks.values())[:1]:
                if lock.message.is_locked and self.world.chance.random() < 0.1:
                    lock.message.is_locked = False
                    queue.ready.put_back(lock.message)

    def _arm(self, wait_ms: int) -> None:
        at = self.world.time + max(wait_ms, 1)
        if self._timer_at <= self.world.time or at < self._timer_at:
            self._timer_at = at
            self.world.at(at, self._timer, at)

    def _timer(self, at: int) -> None:
        if at == self._timer_at and not self.is_dead:
            self._timer_at = 0
            self.ask_turn()

    def _collect(self) -> list[PendingOutput]:
        answers, self._answers = self._answers, []
        return outputs_of(self.broker) + answers

    def _seal(self) -> object | None:
        return self.store.seal()

    def _proceed(self, words: list[PendingOutput]) -> None:
        world = self.world
        commit, words = self._queue.proceed(words)
        if commit is not None:
            world.at(world.time + world.chance.randrange(world.cruelty.sync_ms + 1), self._finish, commit)
        _speak(words)
        if commit is not None and world.bugs.replies_before_sync:
            _speak(commit.outputs)
            commit.outputs = []

    def _finish(self, commit: Commit) -> None:
        if self.is_dead:
            return
        try:
            assert commit.batch is not None, "only batches are committed"
            self.store.commit(commit.batch)
        except StoreFailed as error:
            commit.error = error
        except PowerLoss:
            self.world.lose_power()
            return
        outputs = self._queue.finish(commit)
        if self._queue.is_failed:
            self.world.end_life("a sync failed", loses_power=False)
            return
        self._proceed(outputs)

    def commit_now(self) -> None:
        """The root rule and declared entities are durable before anybody hears of them."""
        batch = self.store.seal()
        if batch is not None:
            self.store.commit(batch)

    def housekeep(self, limit: int) -> None:
        """One slice of housekeeping."""
        now = self.clock()
        for record in self.store.restate(limit):
            self.broker.namespace.restate(record, now)
            self.world.restated += 1
        self.broker.namespace.record_uses(now)
        self.ask_turn()


class Forgetter(RecordLog):
    """A journal that can forget records."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def has_room(self, size: int) -> bool:
        """See RecordLog."""
        return self._store.has_room(size)

    def read(self, location: int, size: int) -> bytes:
        """See RecordLog."""
        return self._store.read(location, size)


class Absentminded(Forgetter):
    """A journal with a planted bug: it forgets every third change of settings."""

    def __init__(self, store: Store, namespace: Namespace) -> None:
        super().__init__(store)
        self._namespace = namespace
        self._changes = 0

    def append(self, record: Record) -> None:
        """See RecordLog."""
        if isinstance(record, EntityPut):
            entity = self._namespace.find(record.path)
            if entity is not None and entity.settings.to_json() != record.settings:
                self._changes += 1
                if self._changes % 3 == 0:
                    return
        self._store.append(record)


class Forgetful(Forgetter):
    """A journal with a planted bug: it forgets every seventh removal."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._removals = 0

    def append(self, record: Record) -> None:
        """See RecordLog."""
        if isinstance(record, MessageRemoved):
            self._removals += 1
            if self._removals % 7 == 3:
                return
        self._store.append(record)


def _speak(outputs: list[PendingOutput]) -> None:
    for output in outputs:
        output.sink.write(output.chunks, output.closes)


def outputs_of(broker: Broker) -> list[PendingOutput]:
    """What a broker has to say to its clients."""
    outputs = []
    for gateway in broker.take_dirty():
        chunks, socket = gateway.take_output(), gateway.context
        if isinstance(socket, Socket) and (chunks or gateway.is_closed):
            outputs.append(PendingOutput(socket, chunks, gateway.is_closed))
    return outputs


def text_of(store: Store, message: Message) -> str:
    """The text of a stored message, from its id on; empty if it has none."""
    blob = store.read(message.location, message.size)
    return blob[blob.rindex(b"uid-") :].decode(errors="replace") if b"uid-" in blob else ""


def queue_of(consumer: Consumer) -> Queue:
    context = consumer.owner
    assert isinstance(context, ReceiveLink), context
    return context.queue
