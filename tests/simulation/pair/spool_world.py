"""A paired client with a spool while both namespaces come and go, and the client itself is closed or killed.

The client, its spool and the drain are the ones that ship. The spool is a real file, on a disk that takes its time: a killed client
has written what was committed, and nothing else. One seed makes one world.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from pairbus.pairing.client.spool.replaying import ReplaySender
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.sdk.messages import sections
from pairbus.spool.ahead import Ahead
from pairbus.spool.file import Spooled
from pairbus.spool.store import Append, Spool
from tests.payloads import message_id_of
from tests.simulation.pair.clients import SimClient
from tests.simulation.pair.model import NamespaceModel, number_of
from tests.simulation.pair.world import World
from tests.unit.drain.virtual_loop import VirtualLoop

PLANTED: Final = {
    "acknowledged_before_durable": "P50",
    "replayed_before_durable": "P50",
    "removed_before_accepted": "P50",
    "replayed_out_of_order": "P51",
    "sends_do_not_join": "P51",
    "damage_is_sent": "P8",
}
"""Bugs to plant, and the promise by which each must be found."""


CLOSE_SHARE: Final = 0.5
"""The part of the lives that end with ``close``."""
NO_CLIENT: Final = -1
process: ContextVar[int] = ContextVar("process", default=NO_CLIENT)
"""Which life of the client is at work. Tasks that it starts inherit it."""


class DiskLoop(VirtualLoop):
    """Work for the disk takes a moment. A process that is killed meanwhile never does it."""

    world: SpoolWorld

    def __init__(self) -> None:
        super().__init__()
        self.processes: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()
        """Of each task: the life of the client that it belongs to."""

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **named)
        self.processes[task] = process.get()
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        done: asyncio.Future[Any] = self.create_future()
        life = process.get()
        if life == NO_CLIENT:
            life = self.world.life

        def work() -> None:
            if life in self.world.dead or done.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(self.world.random.choice((1, 3, 20)) / 1000, work)
        return done


@contextmanager
def directories(otherwise: Path) -> Iterator[Callable[[], Path]]:
    """Gives empty directories: in memory if possible, because only the order of writes counts here."""
    shared = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="pairbus-spool-", dir=shared if shared.is_dir() else otherwise))
    numbers = itertools.count()
    try:
        yield lambda: root / str(next(numbers))
    finally:
        shutil.rmtree(root, ignore_errors=True)


class SpoolChecks:
    """What was sent, what became of it, and in which order namespaces accepted it."""

    def __init__(self, world: SpoolWorld) -> None:
        self._world = world
        self.sent: dict[int, tuple[str, bytes]] = {}
        self.outcome: dict[int, str] = {}
        self.broken: list[str] = []
        self.doubts: Counter[int] = Counter()
        self.accepted: dict[int, int] = {}
        """When a namespace first stored a message."""
        self.spooled: set[int] = set()
        self.before: dict[int, list[int]] = {}
        """The messages of the same sender that had returned when a send began."""

    def __getattr__(self, name: str) -> Any:
        # The health of entities and the drain are judged in the world of pairs.
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_given, **_named: None

    def require(self, claim: object, text: str) -> None:
        if not claim:
            self.broken.append(f"seed {self._world.seed}: {text} (at {self._world.now} ms)")

    def begun(self, number: int, path: str, payload: bytes) -> None:
        self.sent[number] = (path, payload)
        self.before[number] = [
            n for n, (where, _) in self.sent.items() if where == path and n in self.outcome
        ]

    def returned(self, number: int, outcome: str) -> None:
        self.outcome[number] = outcome

    def pending(self) -> int:
        return len(self.sent) - len(self.outcome)

    def stored(self, payloads: Sequence[bytes]) -> None:
        """A namespace stores messages."""
        for payload in payloads:
            self.accepted.setdefault(number_of(payload), len(self.accepted))

    def at_the_end(self) -> None:
        """After the calm."""
        most = 50 + 3 * self._world.now // 1000 + 2 * len(self.sent)
        self.require(
            self._world.looks <= most,
            f"P38: the replay spins: it looked {self._world.looks} times, not {most}",
        )
        homes: dict[int, list[bytes]] = {}
        for queue in self._world.primary.queues.values():
            for payload in queue.history:
                homes.setdefault(number_of(payload), []).append(payload)
        for number, (path, payload) in self.sent.items():
            copies = homes.get(number, [])
            outcome = self.outcome.get(number, "unknown")
            if outcome == "ok":
                self.require(copies, f"P50: m{number} was accepted and is nowhere")
            if outcome == "fail":
                self.require(not copies, f"P5: m{number} was refused and is there")
            for found in copies:
                self.require(
                    sections.join(sections.split(found)) == payload, f"P8: m{number} is not as it was sent"
                )
            if self._world.primary.queues[path].detects_duplicates:
                self.require(len(copies) <= 1, f"P2: m{number} is stored {len(copies)} times")
            most = 1 + self.doubts[number] + self._world.kills + self._world.crashes
            self.require(len(copies) <= most, f"P36: m{number} has {len(copies)} copies, at most {most}")
            for earlier in self.before[number]:
                if earlier in self.spooled and self.outcome[earlier] == "ok" and number in self.accepted:
                    self.require(
                        self.accepted.get(earlier, 1 << 30) < self.accepted[number],
                        f"P51: m{number} of {path} overtook m{earlier}, which was in the spool",
                    )

    def digest(self) -> tuple[object, ...]:
        return self._world.now, tuple(sorted(self.outcome.items())), tuple(self.accepted.items())


class SpoolWorld(World):
    """One program that sends, is killed and started again, over one directory."""

    loop: DiskLoop
    promises_quiet = "P50"

    def __init__(self, seed: int, directory: Path, bug: str = "") -> None:
        self.life = 0
        self.dead: set[int] = set()
        """The lives that have ended."""
        super().__init__(seed)
        self.planted = bug
        self.checks: Any = SpoolChecks(self)
        self.directory = directory
        self.crashes = 0
        self.drain_count = 1
        self.kills = 0
        self.taken_over = 0
        """Spools that a client took after their owner, another client, was killed."""
        self.looks = 0
        """How often the replay looked for messages."""
        self.entities = ["orders", "events"]
        self.kill_times = sorted(
            self.random.randrange(2_000, self.horizon_ms) for _ in range(self.random.randrange(4))
        )
        self.is_small = not bug and self.random.random() < 0.15
        disk = Random(seed)
        self._closing = Random(f"closing-{seed}")
        self.closes = 0
        self.full_at_ms = disk.randrange(5_000, self.horizon_ms) if not bug and disk.random() < 0.3 else None
        """When the disk becomes full, and stays so to the end; None: never."""

    def _make_loop(self) -> DiskLoop:
        loop = DiskLoop()
        loop.world = self
        return loop

    def check_disk(self) -> None:
        """Raise what SQLite raises when the disk is full."""
        if self.full_at_ms is not None and self.now >= self.full_at_ms:
            raise sqlite3.OperationalError("database or disk is full")

    def _options(self) -> SendAvailabilityOptions:
        return SendAvailabilityOptions(
            failover_interval=timedelta(milliseconds=self.random.choice([0, 500, 3_000])),
            ping_primary_interval=timedelta(milliseconds=self.random.choice([1_000, 2_500])),
            while_suspect=self.random.choice(["raise", "wait"]),
            spool=self.directory,
            spool_max_bytes=1_000 if self.is_small else 1 << 30,
        )

    def put(self, namespace: NamespaceModel, path: str, payloads: list[bytes]) -> None:
        super().put(namespace, path, payloads)
        self.checks.stored(payloads)

    async def ask(self, namespace: NamespaceModel, action: Callable[[], Any], timeout_ms: float) -> Any:
        try:
            return await super().ask(namespace, action, timeout_ms)
        except BaseException:
            self._doubt(action)
            raise

    def _doubt(self, action: Callable[[], Any]) -> None:
        """What of a request without an answer may be done again."""
        if isinstance(action, partial) and action.args:
            given = action.args[-1]
            for one in given if isinstance(given, list) else []:
                identity = message_id_of(one) if isinstance(one, bytes) else getattr(one, "message_id", "")
                if identity.startswith("m"):
                    self.checks.doubts[int(identity[1:])] += 1

    # --- life -------------------------------------------------------------------------------------

    async def _live(self, messages: int) -> None:
        self.drains = [self._drain()]
        self._start_life(messages)
        self._schedule_faults()
        self._both_away()
        for at in self.kill_times:
            await self._wait_until(at)
            if not self.planted and self._closing.random() < CLOSE_SHARE:
                await self._close()
            self._kill()
            await self._wait_until(self.now + self.random.choice([1, 500, 3_000]))
            self._start_life(messages)
        await self._finish()

    async def _run(self, messages: int) -> None:
        try:
            await super()._run(messages)
        finally:
            for one in self.clients:
                one.client._spooling.close()  # type: ignore[union-attr]
        self.left = sorted(entry.name for entry in self.directory.iterdir())

    def _both_away(self) -> None:
        """What the spool is for, and would be rare by chance."""
        for _ in range(self.random.randrange(1, 4)):
            start = self.random.randrange(1_000, 18_000)
            length = self.random.choice([5_000, 10_000, 20_000])
            for kind in (self.random.choice([0, 1]), self.random.choice([5, 7])):
                self._at(start + self.random.randrange(500), self._fault(kind, length))

    def _start_life(self, messages: int) -> None:
        process.set(self.life)
        client = self._client()
        self.clients = [client]
        self._open_spool(client)
        self._start_sending(messages)
        process.set(NO_CLIENT)

    def _open_spool(self, client: SimClient) -> None:
        spooling = client.client._spooling
        assert spooling is not None
        spooling.open()
        self._watch_disk(client)
        spooling.start()

    def _client(self) -> SimClient:
        return SimClient(self, self.life, self._options())

    def _start_sending(self, messages: int) -> None:
        for path in self.entities:
            numbers = [self.next_number() for _ in range(messages // 2)]
            session = self.random.choice([None, "session"])
            self.loop.create_task(self.clients[0].send_all(path, numbers, session))

    async def _close(self) -> None:
        """The process closes its client. Callers give up, and others close it to its end."""
        self.closes += 1
        one, client = self.clients[0], self.clients[0].client
        process.set(self.life)
        for _ in range(self._closing.choice([0, 1, 2])):
            caller = self.loop.create_task(client.close())
            await asyncio.sleep(self._closing.choice([0, 1, 20, 100, 500]) / 1000)
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
        await asyncio.gather(client.close(), client.close())
        process.set(NO_CLIENT)
        runtime: Any = client._runtime
        sides: Any = (client.primary, client.secondary)
        assert one.state.spools is not None
        for claim, text in (
            (not one.state.spools._locks, "the spool is locked"),
            (not runtime._running, f"tasks go on: {runtime._running}"),
            (all(side.is_closed for side in sides), "a side is not closed"),
        ):
            self.checks.require(claim, f"P44: the client is closed, and {text}")

    def _kill(self) -> None:
        """The process is gone: its tasks end where they are, its locks are free, its file is as it was."""
        self._end_process(self.clients[0], self.life)
        self.life += 1
        for number in self.checks.sent:
            if number not in self.checks.outcome:
                self.checks.returned(number, "unknown")

    def _end_process(self, client: SimClient, life: int) -> None:
        self.kills += 1
        self.dead.add(life)
        client.client._is_ended = True
        for task in asyncio.all_tasks():
            if self.loop.processes[task] == life:
                task.cancel()
        spools = client.state.spools
        assert spools is not None
        for lock in spools._locks.values():
            os.close(lock)
        spools._locks.clear()

    # --- the disk ---------------------------------------------------------------------------------

    def _watch_disk(self, client: SimClient) -> None:
        spools = client.state.spools
        assert spools is not None
        for spool in spools.all:
            self._watch_spool(spool)
        first, take_over = spools.first, spools._take_over

        def taken_over(ahead: Ahead) -> Spool | None:
            spool = take_over(ahead)
            if spool is not None:
                self.taken_over += 1
                self._watch_spool(spool)
            return spool

        spools._take_over = taken_over  # type: ignore[method-assign]

        def checked(key: str, count: int, size: int) -> tuple[Spool, list[Spooled]] | None:
            found = first(key, count, size)
            self.looks += 1
            if found is not None:
                self._are_durable(*found)
            return found

        spools.first = checked  # type: ignore[method-assign]
        spooling = client.client._spooling
        assert spooling is not None
        begin, in_flight = spooling.begin, spooling._in_flight

        def begun(spool: Spool, messages: Sequence[Spooled]) -> list[Spooled]:
            twice = [message.number for message in messages if (spool, message.number) in in_flight]
            self.checks.require(not twice, f"P36: two tasks replay {twice} at the same time")
            return begin(spool, messages)

        spooling.begin = begun  # type: ignore[method-assign]
        if self.planted == "sends_do_not_join":
            client.client._sender_class = _Overtaking  # type: ignore[misc, assignment]

    def _watch_spool(self, spool: Spool) -> None:
        write, remove, read, change = spool._write, spool.delivered, spool.first, spool._change

        def changed(*given: Any) -> int:
            self.check_disk()
            return change(*given)

        spool._change = changed  # type: ignore[method-assign, assignment]

        def written(batch: Sequence[Append]) -> None:
            spool._is_committing = False
            self.check_disk()
            write(batch)
            for append in batch:
                self.checks.spooled.update(number_of(payload) for payload in append.payloads)

        def removed(key: str, messages: Sequence[Spooled]) -> None:
            for message in messages:
                number = number_of(message.payload)
                self.checks.require(
                    number in self.checks.accepted, f"P50: m{number} left the spool, and no namespace has it"
                )
            remove(key, messages)

        spool._write = written  # type: ignore[method-assign, assignment]
        spool.delivered = removed  # type: ignore[method-assign]
        if self.planted == "acknowledged_before_durable":
            spool.commit = lambda append: setattr(append, "is_done", True)  # type: ignore[method-assign]
        if self.planted == "replayed_before_durable":

            def unwritten(key: str, count: int, size: int) -> list[Spooled]:
                waiting = [append for append in spool._waiting if append.key == key]
                return [
                    Spooled(1 << 40, append.path, append.at_ms, payload)
                    for append in waiting
                    for payload in append.payloads
                ] or read(key, count, size)

            spool.first = unwritten  # type: ignore[method-assign]
        if self.planted == "removed_before_accepted":

            def taken(key: str, count: int, size: int) -> list[Spooled]:
                found = read(key, count, size)
                if found:
                    removed(key, found)
                return found

            spool.first = taken  # type: ignore[method-assign]
        if self.planted == "replayed_out_of_order":
            spool.first = lambda key, count, size: read(key, count, size)[::-1]  # type: ignore[method-assign]
        if self.planted == "damage_is_sent":

            def damaged(key: str, count: int, size: int) -> list[Spooled]:
                return [
                    Spooled(one.number, one.path, one.at_ms, one.payload[:-1] + b"\x00")
                    for one in read(key, count, size)
                ]

            spool.first = damaged  # type: ignore[method-assign]

    def _are_durable(self, spool: Spool, messages: Sequence[Spooled]) -> None:
        """What is about to be replayed is in the file, as another process would read it."""
        reader = sqlite3.connect(spool.file)
        try:
            kept = {bytes(row[0]) for row in reader.execute("SELECT payload FROM message")}
        finally:
            reader.close()
        for message in messages:
            number = number_of(message.payload)
            if self.planted not in ("removed_before_accepted", "damage_is_sent"):
                self.checks.require(
                    message.payload in kept, f"P50: m{number} is replayed before it is durable"
                )

    def _unrest(self) -> list[str]:
        left = [
            f"{one.name}: {key}: {spools.waits(key)} in the spool"
            for one in self.clients
            if (spools := one.state.spools) is not None
            for key in list(spools.keys())
        ]
        # An owner that was killed leaves its messages to those that stay behind them, which look from time to time.
        left += [
            f"{one.name}: {key}: behind the spool of another client"
            for one in self.clients
            if (spools := one.state.spools) is not None
            for key in spools.paths_ahead()
        ]
        return super()._unrest() + left


class _Overtaking(ReplaySender):
    """Planted: a sender of the application's that does not look whether the spool holds messages."""

    _may_spool = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)

    async def _joins_spool(self, send: Any) -> bool:
        return False

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        await self._do_send(message, timeout)
