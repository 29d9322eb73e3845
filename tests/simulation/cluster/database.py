"""A database as bad as PostgreSQL with one synchronous standby may be, on virtual time.

Rule 1: a transaction is written to the primary's log, then waits for the standby, and only then is it visible and answered. Meanwhile it
        holds its locks: who needs the same row waits.
Rule 2: after a restart of the primary everything in its log is visible, also what the standby never got. So is a transaction whose
        backend was ended while it waited.
Rule 3: a failover keeps exactly what the standby has. The former primary may go on for a while, cut off from its standby: it answers
        reads, and no write.
Rule 4: a client that lost its connection knows nothing: its statement never arrived, took effect, or arrives later than the error.
Rule 5: space is given back by whole ranges of numbers.
Rule 6: a server may hang: its connections stay up, and nothing on them is answered. When it goes on it does what came meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pairbus.storage.table.ports import FrameHead, FrameMark, NodeEntry, OutcomeUnknown
from pairbus.storage.table.second_look import Finding, Found, Line
from tests.simulation.virtual_time import Machine, Reply, VirtualTime

Key: TypeAlias = tuple[str, int]
"""What a transaction locks: a frame by its number, or the shard's row."""
SHARD_ROW: Final = ("shard", 0)
RESERVE: Final = ("reserve", 0)
ROW_BYTES: Final = 64
"""What a row takes beside its contents."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One row of the log."""

    sequence: int
    mark: FrameMark
    head: bytes
    body: bytes

    def used_bytes(self) -> int:
        return len(self.head) + len(self.body) + ROW_BYTES

    def as_head(self) -> FrameHead:
        return FrameHead(self.sequence, self.mark, self.head, len(self.body))


@dataclass(frozen=True, slots=True)
class ShardRow:
    """Who may write and who may speak. ``until`` is an instant of the database's clock."""

    epoch: int = 0
    owner: str = ""
    address: str = ""
    until: int = 0
    moved_to: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Ranges below this number were given back."""

    below: int


@dataclass(frozen=True, slots=True)
class Nothing:
    """A commit that changes nothing and is replicated all the same."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """So much space is held for the day the database is full."""

    size: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A node reported itself at an instant of the database's clock."""

    entry: NodeEntry
    at: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Something is asked of a node, or no longer."""

    node: str
    request: str


Change: TypeAlias = Frame | ShardRow | Dropped | Nothing | Reserve | Reported | Asked
Work: TypeAlias = Generator[Key, None, tuple[object, list[Change]]]
"""A transaction: yields each lock that it needs, then returns its answer and its changes, or raises."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How bad the database and the way to it are."""

    delay_ms: int = 0
    replication_ms: int = 0
    lost_before: float = 0.0
    """How often a connection is lost before the statement arrives."""
    lost_after: float = 0.0
    """How often it is lost after the statement took effect."""
    late: float = 0.0
    """How often a statement takes effect after its client was told that the connection is lost."""
    slow: float = 0.0
    """How often a statement is long on its way, and its client waits."""
    late_ms: int = 0
    timeout_ms: int = 2_000
    """How long a client that is cut off waits before it takes the connection for lost."""
    range_frames: int = 4
    """How many numbers a range has."""
    capacity_bytes: int = 1 << 60


class Transaction:
    """One entry of a server's log."""

    __slots__ = ("changes", "keys", "on_visible")

    def __init__(self, changes: list[Change], keys: set[Key], on_visible: Callable[[], None] | None) -> None:
        self.changes = changes
        self.keys = keys
        self.on_visible = on_visible


class State:
    """What a server's log adds up to."""

    def __init__(self) -> None:
        self.frames: dict[int, Frame] = {}
        self.row = ShardRow()
        self.dropped = 0
        self.reserve = 0
        self.nodes: dict[str, Reported] = {}
        self.asked: dict[str, str] = {}
        self.last = 0
        """The highest number that was ever used."""

    def apply(self, change: Change) -> None:
        if isinstance(change, Frame):
            self.frames[change.sequence] = change
            self.last = max(self.last, change.sequence)
        elif isinstance(change, ShardRow):
            self.row = change
        elif isinstance(change, Reserve):
            self.reserve = change.size
        elif isinstance(change, Reported):
            self.nodes[change.entry.node] = change
        elif isinstance(change, Asked):
            self.asked[change.node] = change.request
        elif isinstance(change, Dropped):
            self.dropped = max(self.dropped, change.below)
            for sequence in [one for one in self.frames if one < change.below]:
                del self.frames[sequence]

    def used_bytes(self) -> int:
        return self.reserve + sum(frame.used_bytes() for frame in self.frames.values())


class Server:
    """One PostgreSQL server that takes writes."""

    def __init__(self, log: list[Transaction]) -> None:
        self.log = log
        self.replicated = len(log)
        """How many entries of the log the standby has, too."""
        self.state = State()
        """What is visible."""
        self.durable = State()
        """What a failover now would keep."""
        for entry in log:
            for change in entry.changes:
                self.state.apply(change)
                self.durable.apply(change)
        self.has_standby = True
        self.is_up = True
        self.is_hung = False
        self.held: list[Callable[[], None]] = []
        """What comes to a server that hangs, and what leaves it: it happens when it goes on."""
        self.is_superseded = False
        """The standby was promoted; this one only does not know."""
        self.waiting: list[Transaction] = []
        """In the log and not visible: they wait for the standby."""
        self.backends: list[Backend] = []
        """Statements that wait for a lock."""
        self.connections: list[Connection] = []

    def locked(self) -> set[Key]:
        keys: set[Key] = set()
        for entry in self.waiting:
            keys |= entry.keys
        for backend in self.backends:
            keys |= backend.keys
        return keys

    def show(self, entry: Transaction) -> None:
        """A transaction becomes visible and gives up its locks."""
        self.waiting.remove(entry)
        for change in entry.changes:
            self.state.apply(change)
        if entry.on_visible is not None:
            entry.on_visible()

    def wake(self) -> None:
        """Locks were given up: statements that waited go on."""
        for backend in list(self.backends):
            backend.go_on()


class Backend:
    """One statement at work in a server. It goes on without its client."""

    def __init__(
        self,
        database: Database,
        server: Server,
        work: Work,
        answer: Callable[[object, Exception | None], None],
    ) -> None:
        self._database = database
        self._server = server
        self._work = work
        self._answer = answer
        self._wanted: Key | None = None
        self.keys: set[Key] = set()
        server.backends.append(self)

    def go_on(self) -> None:
        """Work until a lock is missing or the transaction is in the log."""
        server = self._server
        if self not in server.backends:
            return
        try:
            while True:
                if self._wanted is not None:
                    if self._wanted not in self.keys and self._wanted in server.locked():
                        return
                    self.keys.add(self._wanted)
                self._wanted = next(self._work)
        except StopIteration as end:
            result, changes = end.value
        except Exception as error:  # noqa: BLE001 - the client gets it
            server.backends.remove(self)
            self._answer(None, error)
            server.wake()
            return
        server.backends.remove(self)
        if not changes:
            self._answer(result, None)
            server.wake()
            return
        entry = Transaction(changes, self.keys, lambda: self._answer(result, None))
        server.log.append(entry)
        server.waiting.append(entry)
        self._database.replicate(server)

    def end(self) -> None:
        """The server ended it. What is not in the log by now never happened."""
        if self in self._server.backends:
            self._server.backends.remove(self)


class Connection:
    """One client's way to one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_open = True
        self.is_noticed = False
        """The client knows that it is lost: a call after the loss fails, the one after that connects again."""
        self.is_at_work = False
        """The server has a statement of it."""
        self.reply: Reply | None = None
        """The call that waits for an answer."""
        server.connections.append(self)

    def lose(self) -> None:
        """The client learns that the connection is lost."""
        self.is_open = False
        if self in self.server.connections:
            self.server.connections.remove(self)
        if self.reply is not None:
            self.is_noticed = True
            self.reply.give(error=OutcomeUnknown("the connection was lost"))


class Database:
    """A primary, its synchronous standby, and the ways to the primary."""

    def __init__(self, time: VirtualTime, chance: random.Random, faults: Faults | None = None) -> None:
        self.time = time
        self.chance = chance
        self.faults = faults or Faults()
        self.primary = Server([])
        self.counts: dict[str, int] = {}
        self.on_durable: Callable[[Change], None] = _ignore
        """Called with each change that the standby has got."""

    def count(self, event: str) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1

    def now(self) -> int:
        """The database's clock: the only one by which a lease ends for others."""
        return self.time.now

    def calm(self) -> None:
        """From now on nothing goes wrong by itself."""
        self.faults = replace(self.faults, lost_before=0.0, lost_after=0.0, late=0.0, slow=0.0)

    def delay(self) -> int:
        return self.chance.randrange(self.faults.delay_ms + 1)

    # -- what the servers do

    def replicate(self, server: Server) -> None:
        """Let the standby get the log as it is now, after a while."""
        if server.has_standby and not server.is_superseded:
            wait = self.chance.randrange(self.faults.replication_ms + 1)
            self.time.after(wait, self._replicated, server, len(server.log))

    def _replicated(self, server: Server, length: int) -> None:
        if not server.has_standby or server.is_superseded or server.is_hung or not server.is_up:
            return
        for entry in server.log[server.replicated : length]:
            for change in entry.changes:
                server.durable.apply(change)
                self.on_durable(change)
        server.replicated = max(server.replicated, length)
        known = set(map(id, server.log[: server.replicated]))
        for entry in [one for one in server.waiting if id(one) in known]:
            server.show(entry)
        server.wake()

    def lose_standby(self) -> None:
        """The standby goes: commits wait from now on."""
        self.count("the standby went")
        self.primary.has_standby = False

    def regain_standby(self) -> None:
        """A standby is there again and catches up."""
        self.primary.has_standby = True
        self.replicate(self.primary)

    def restart(self, down_ms: int) -> None:
        """The primary restarts: connections are lost, and everything in its log is visible afterwards (rule 2)."""
        server = self.primary
        self.count("the primary restarted")
        if server.waiting:
            self.count("a restart revealed what the standby did not have")
        server.is_up = False
        self._cut_all(server)
        server.is_hung = False
        server.held.clear()
        for entry in list(server.waiting):
            entry.on_visible = None
            server.show(entry)
        self.time.after(down_ms, self._started, server)

    def _started(self, server: Server) -> None:
        if not server.is_superseded:
            server.is_up = True
            self.replicate(server)

    def terminate(self) -> None:
        """The backends of waiting commits are ended: their clients lose the connection, the commits are visible (rule 2)."""
        server = self.primary
        if server.is_hung:
            return  # it does not do that either
        if server.waiting:
            self.count("a waiting commit became visible")
        for entry in list(server.waiting):
            entry.on_visible = None
            server.show(entry)
        self._cut_all(server)
        server.wake()

    def hang(self, ms: int | None) -> None:
        """The primary stops answering, and its connections stay up; None: for ever."""
        server = self.primary
        self.count("the primary hung")
        server.is_hung = True
        if ms is not None:
            self.time.after(ms, self._go_on, server)

    def _go_on(self, server: Server) -> None:
        if not server.is_hung:
            return
        server.is_hung = False
        held, server.held = server.held, []
        if server.is_superseded and held:
            self.count("a former primary went on with what it had been asked")
        for action in held:
            action()
        self.replicate(server)

    def fail_over(
        self, *, is_cut_off: bool = False, lingers_ms: int | None = 0, standby_ms: int = 0, lacks: int = 0
    ) -> None:
        """The standby becomes the primary (rule 3).

        Args:
            lacks: So many of the last commits it does not have although they were acknowledged: it was not a synchronous one.
            is_cut_off: The former primary lives on for ``lingers_ms`` without knowing; None: to the end.
            standby_ms: How long it takes until the new primary has a standby.
        """
        former = self.primary
        self.count("the standby was promoted")
        if former.replicated < len(former.log):
            self.count("a failover lost what was never acknowledged")
        former.is_superseded = True
        if lacks:
            self.count("a failover lost what was acknowledged")
        self.primary = Server(former.log[: max(0, former.replicated - lacks)])
        for entry in self.primary.log:
            entry.on_visible = None
        self.primary.has_standby = False
        self.time.after(standby_ms, self.regain_standby)
        if is_cut_off:
            if lingers_ms is not None:
                self.time.after(lingers_ms, self._end_former, former)
        else:
            self._end_former(former)

    def _end_former(self, server: Server) -> None:
        server.is_up = False
        self._cut_all(server)

    def _cut_all(self, server: Server) -> None:
        for backend in list(server.backends):
            backend.end()
        for connection in list(server.connections):
            connection.lose()

    # -- what clients do

    def call(self, client: Client, work: Callable[[State], Work]) -> object:
        """Run a transaction for a client, over its connection. Blocks."""
        connection = self._connect(client)
        if not connection.is_open:
            connection.is_noticed = True
            raise OutcomeUnknown("the connection was lost before it was used")
        reply = connection.reply = Reply()
        client.waits_since = client.clock()
        faults = self.faults
        kind = self.chance.random()
        arrives_ms = self.delay()
        if client.is_cut_off():
            self.time.after(faults.timeout_ms, connection.lose)
        elif kind < faults.lost_before:
            self.count("a statement was lost before it arrived")
            self.time.after(arrives_ms, connection.lose)
        elif kind < faults.lost_before + faults.late:
            self.count("a statement takes effect after its client gave up")
            late_ms = arrives_ms + 1 + self.chance.randrange(faults.late_ms + 1)
            self.time.after(arrives_ms, connection.lose)
            self.time.after(late_ms, self._execute, connection, work, _unheard)
        else:
            is_lost = kind < faults.lost_before + faults.late + faults.lost_after
            if kind > 1 - faults.slow:
                self.count("a statement was long on its way")
                arrives_ms += self.chance.randrange(faults.late_ms + 1)

            def answer(result: object, error: Exception | None) -> None:
                connection.is_at_work = False
                if is_lost:
                    self.count("an answer was lost")
                    self.time.after(self.delay(), connection.lose)
                elif client.is_cut_off():
                    self.time.after(faults.timeout_ms, connection.lose)
                else:
                    self.time.after(self.delay(), self._answered, connection, reply, result, error)

            self.time.after(arrives_ms, self._execute, connection, work, answer)
        try:
            return client.machine.wait(reply)
        finally:
            client.waits_since = connection.reply = None

    def _answered(
        self, connection: Connection, reply: Reply, result: object, error: Exception | None
    ) -> None:
        if connection.server.is_hung:
            connection.server.held.append(lambda: self._answered(connection, reply, result, error))
        elif connection.is_open:
            reply.give(result, error)

    def _execute(
        self,
        connection: Connection,
        work: Callable[[State], Work],
        answer: Callable[[object, Exception | None], None],
    ) -> None:
        server = connection.server
        if server.is_hung:
            server.held.append(lambda: self._execute(connection, work, answer))
        elif server.is_up:
            connection.is_at_work = answer is not _unheard
            Backend(self, server, work(server.state), answer).go_on()

    def _connect(self, client: Client) -> Connection:
        connection = client.connection
        if connection is not None and connection.is_open:
            return connection
        if connection is not None and not connection.is_noticed:
            connection.is_noticed = True
            raise OutcomeUnknown("the connection was lost since the last call")
        reply = Reply()
        self.time.after(self.delay() + self.delay(), self._connected, client, reply)
        client.machine.wait(reply)
        assert client.connection is not None, "it has just connected"
        return client.connection

    def look(self, clients: Sequence[Client]) -> list[Finding]:
        """A second look at calls of these clients. Blocks."""
        machine = clients[0].machine
        second = Client(machine, clients[0].is_cut_off)
        try:
            server = self._connect(second).server
        except OutcomeUnknown as error:
            return [Finding(Found.NOBODY, str(error))] * len(clients)
        machine.sleep(self.delay() / 1000)
        second.leave("")
        if server.is_hung or not server.is_up or second.is_cut_off():
            return [Finding(Found.NOBODY, "no answer there either")] * len(clients)
        return [self._finding(server, client.connection) for client in clients]

    def _finding(self, server: Server, connection: Connection | None) -> Finding:
        if connection is None or connection not in server.connections:
            self.count("a second look found another server")
            return Finding(Found.ELSEWHERE, "another server takes writes now")
        if connection.is_at_work:
            return Finding(Found.AT_WORK, "the server is at work")
        return Finding(Found.IDLE, "the server waits for a call")

    def _connected(self, client: Client, reply: Reply) -> None:
        if client.is_cut_off() or not self.primary.is_up or self.primary.is_hung:
            error = OutcomeUnknown("no server that takes writes could be reached")
            self.time.after(self.faults.timeout_ms // 4, reply.give, None, error)
            return
        client.connection = Connection(self.primary)
        reply.give()


class Client:
    """One part of the port with its own connection, on one machine. See ``second_look.Line``."""

    def __init__(self, machine: Machine, is_cut_off: Callable[[], bool], purpose: str = "") -> None:
        self.machine = machine
        self.is_cut_off = is_cut_off
        self.purpose = purpose
        self.connection: Connection | None = None
        self.waits_since: float | None = None

    def clock(self) -> float:
        """Seconds of the machine's clock."""
        return self.machine.clock_ms() / 1000

    def leave(self, _why: str) -> None:
        """See Line."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.lose()

    def is_beside(self, other: Line) -> bool:
        """See Line."""
        mine = self.connection
        return (
            isinstance(other, Client)
            and mine is not None
            and other.connection is not None
            and mine.server is other.connection.server
        )


def _ignore(_change: Change) -> None:
    """Nobody looks."""


def _unheard(_result: object, _error: Exception | None) -> None:
    """Nobody waits for the answer of a statement that came too late."""
