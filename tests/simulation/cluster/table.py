"""The log table of a shard in a simulated database: see ``storage.table.ports``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from pairbus.storage.table.ports import (
    Acquired,
    DatabaseCopies,
    FrameHead,
    FrameMark,
    HeldUp,
    LastFrame,
    LogShortened,
    NodeEntry,
    Ownership,
    SequenceTaken,
    ShardMoved,
    TableFull,
)
from pairbus.storage.table.second_look import SecondLooks
from tests.simulation.cluster.database import (
    RESERVE,
    SHARD_ROW,
    Asked,
    Change,
    Client,
    Database,
    Dropped,
    Faults,
    Frame,
    Key,
    Nothing,
    Reported,
    Reserve,
    ShardRow,
    State,
    Work,
)
from tests.simulation.virtual_time import Machine, VirtualTime

RESERVE_STEPS: Final = 4
PAGE_FRAMES: Final = 50
"""How many heads one read brings."""


class SimulatedTable:
    """A shard's table as one machine sees it. Each part has a connection of its own.

    Args:
        is_cut_off: Whether the machine cannot reach the database now.
    """

    def __init__(
        self, database: Database, machine: Machine, is_cut_off: Callable[[], bool] | None = None
    ) -> None:
        self._database = database
        self._machine = machine
        self._is_cut_off = is_cut_off or _never
        self._clients: list[Client] = []

    def _client(self, purpose: str) -> Client:
        client = Client(self._machine, self._is_cut_off, purpose)
        self._clients.append(client)
        return client

    def watch(self, told: Callable[[str, str], None]) -> None:
        """Begin to take second looks at calls without an answer, on a thread of the machine."""
        looks = SecondLooks(
            lambda: [client for client in self._clients if client.connection is not None],
            self._database.look,
            told,
            lambda: self._machine.clock_ms() / 1000,
        )

        def run() -> None:
            while True:
                self._machine.sleep(looks.step_seconds)
                looks.step()

        self._machine.start(run, "look")

    def writer(self) -> SimulatedWriter:
        return SimulatedWriter(self._database, self._client("commit"))

    def reader(self) -> SimulatedReader:
        return SimulatedReader(self._database, self._client("read"))

    def lease(self) -> SimulatedLease:
        return SimulatedLease(self._database, self._client("lease"))

    def nodes(self) -> SimulatedNodes:
        return SimulatedNodes(self._database, self._client("nodes"))


class _Part:
    def __init__(self, database: Database, client: Client) -> None:
        self.database = database
        self.client = client

    def _call(self, work: Callable[[State], Work]) -> object:
        return self.database.call(self.client, work)

    def close(self) -> None:
        connection, self.client.connection = self.client.connection, None
        if connection is not None:
            connection.lose()


class SimulatedWriter(_Part):
    """See ``ports.FrameWriter``."""

    checks_the_frame_before = True
    """False plants a bug: a frame is added behind a hole."""

    def insert(
        self, sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes], after: int | None = None
    ) -> None:
        frame = Frame(sequence, mark, bytes(head), b"".join(body))
        capacity = self.database.faults.capacity_bytes

        def work(state: State) -> Work:
            yield frame_key(sequence)
            if sequence in state.frames or sequence < state.dropped:
                raise SequenceTaken(f"frame {sequence} is there already")
            self._check_before(state, sequence, mark.epoch, after)
            if state.used_bytes() + frame.used_bytes() > capacity:
                raise TableFull("the database has no space left")
            return None, [frame]

        self._call(work)

    def _check_before(self, state: State, sequence: int, epoch: int, after: int | None) -> None:
        if sequence == 1 or not self.checks_the_frame_before:
            return
        before = state.frames.get(sequence - 1)
        if before is None and state.last < sequence:
            raise LogShortened(max(state.frames, default=0))
        if before is None or before.mark.epoch != epoch or after not in (None, before.mark.checksum):
            raise SequenceTaken(f"frame {sequence - 1} was written by another")

    def fill(self, first: int, end: int, epoch: int, after: int | None = None) -> None:
        capacity = self.database.faults.capacity_bytes
        frames = [Frame(sequence, FrameMark(epoch, 0), b"", b"") for sequence in range(first, end)]

        def work(state: State) -> Work:
            for frame in frames:
                yield frame_key(frame.sequence)
                if frame.sequence in state.frames or frame.sequence < state.dropped:
                    raise SequenceTaken(f"frame {frame.sequence} is there already")
            self._check_before(state, first, epoch, after)
            if state.used_bytes() + sum(frame.used_bytes() for frame in frames) > capacity:
                raise TableFull("the database has no space left")
            return None, list(frames)

        self._call(work)

    def range_end(self, sequence: int) -> int:
        size = self.database.faults.range_frames
        return (sequence // size + 1) * size

    def mark_of(self, sequence: int) -> FrameMark | None:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            frame = state.frames.get(sequence)
            return None if frame is None else frame.mark, _nothing()

        return cast("FrameMark | None", self._call(work))

    def barrier(self) -> None:
        def work(_state: State) -> Work:
            yield from ()  # it needs no lock
            return None, [Nothing()]

        self._call(work)

    def hold_reserve(self, size: int) -> int:
        """In steps, as a real one."""

        def work(state: State) -> Work:
            yield RESERVE
            step = -(-size // RESERVE_STEPS)
            held = min(size, state.reserve + step)
            if held > state.reserve and state.used_bytes() - state.reserve + held > capacity:
                raise TableFull("the database has no space left")
            return held, [Reserve(held)]

        capacity = self.database.faults.capacity_bytes
        return cast("int", self._call(work))

    def drop_below(self, sequence: int) -> bool:
        size = self.database.faults.range_frames

        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            below = sequence // size * size
            return True, [Dropped(below)] if below > state.dropped else _nothing()

        return cast("bool", self._call(work))


class SimulatedReader(_Part):
    """See ``ports.FrameReader``."""

    def oldest(self) -> int:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            return min(state.frames, default=state.last + 1) if state.last else 1, _nothing()

        return cast("int", self._call(work))

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        while first < end:
            page = self._page(first, end)
            yield from page
            if len(page) < PAGE_FRAMES:
                return
            first = page[-1].sequence + 1

    def _page(self, first: int, end: int) -> list[FrameHead]:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            numbers = sorted(one for one in state.frames if first <= one < end)[:PAGE_FRAMES]
            return [state.frames[one].as_head() for one in numbers], _nothing()

        return cast("list[FrameHead]", self._call(work))

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            return {one: state.frames[one].body for one in sequences if one in state.frames}, _nothing()

        return cast("dict[int, bytes]", self._call(work))

    def reconnect(self) -> None:
        self.close()


class SimulatedLease(_Part):
    """See ``ports.LeaseTable``."""

    has_fence = True
    """False plants a bug: a new owner adds no fence frame."""
    _owner = ""

    def acquire(self, owner: str, address: str, lease_ms: int) -> Acquired | None:
        database = self.database
        has_fence = self.has_fence

        def work(state: State) -> Work:
            yield SHARD_ROW
            row = state.row
            if row.moved_to or (row.owner and row.until > database.now()):
                return None, []
            changed = ShardRow(row.epoch + 1, owner, address, database.now() + lease_ms)
            last = state.last
            if not has_fence:
                return Acquired(changed.epoch, last + 1), [changed]
            yield frame_key(last + 1)
            if last + 1 in state.frames:
                raise SequenceTaken(f"frame {last + 1} is there already")
            fence = Frame(last + 1, FrameMark(changed.epoch, 0), b"", b"")
            return Acquired(changed.epoch, last + 1), [changed, fence]

        acquired = cast("Acquired | None", self._call(work))
        if acquired is not None:
            self._owner = owner
        return acquired

    def renew(self, epoch: int, address: str, lease_ms: int, newest: int = 0) -> bool:
        database = self.database

        def work(state: State) -> Work:
            yield SHARD_ROW
            row = state.row
            if row.epoch != epoch or not row.owner or self._owner not in ("", row.owner):
                return False, []
            if newest > max(state.frames, default=0):
                raise LogShortened(max(state.frames, default=0))
            return True, [ShardRow(epoch, row.owner, address, database.now() + lease_ms)]

        return cast("bool", self._call(work))

    def last_kept(self, last: LastFrame) -> int | None:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            frames = state.frames
            if last.sequence < state.dropped or (
                last.sequence in frames and frames[last.sequence].mark == last.mark
            ):
                return None, _nothing()
            epoch = last.mark.epoch
            is_anew = last.sequence in frames and frames[last.sequence].mark.epoch == epoch
            known = [
                one.sequence
                for one in frames.values()
                if one.sequence <= last.sequence
                and (one.mark.epoch < epoch or (one.mark.epoch == epoch and not is_anew))
            ]
            return max(known, default=max(state.dropped, 1) - 1), _nothing()

        return cast("int | None", self._call(work))

    def release(self, epoch: int) -> None:
        def work(state: State) -> Work:
            yield SHARD_ROW
            row = state.row
            if row.epoch != epoch:
                return None, []
            return None, [ShardRow(epoch, "", "", 0)]

        self._call(work)

    def move_away(self, epoch: int, target: str) -> bool:
        def work(state: State) -> Work:
            yield SHARD_ROW
            row = state.row
            if row.epoch != epoch or not row.owner:
                return False, []
            return True, [ShardRow(epoch + 1, "(moved)", "", row.until, target)]

        return cast("bool", self._call(work))

    def look(self) -> Ownership:
        database = self.database

        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            row = state.row
            if row.moved_to:
                raise ShardMoved(f"it was moved to {row.moved_to}")
            return Ownership(row.epoch, row.owner, row.address, row.until - database.now()), _nothing()

        return cast("Ownership", self._call(work))


class SimulatedNodes(_Part):
    """See ``ports.NodeTable``."""

    def report(self, entry: NodeEntry) -> str:
        now = self.database.now

        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            return state.asked.get(entry.node, ""), [Reported(entry, now())]

        return cast("str", self._call(work))

    def nodes(self) -> list[NodeEntry]:
        now = self.database.now

        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            found = [
                replace(one.entry, asked=state.asked.get(name, ""), age_ms=now() - one.at)
                for name, one in sorted(state.nodes.items())
            ]
            return found, _nothing()

        return cast("list[NodeEntry]", self._call(work))

    def ask(self, node: str, request: str) -> bool:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            is_known = node in state.nodes
            return is_known, [Asked(node, request)] if is_known else _nothing()

        return cast("bool", self._call(work))

    def answered(self, node: str, request: str) -> None:
        def work(state: State) -> Work:
            yield from ()  # it needs no lock
            return None, [Asked(node, "")] if state.asked.get(node) == request else _nothing()

        self._call(work)

    def copies(self) -> DatabaseCopies:
        return DatabaseCopies("", ())

    def held_up(self) -> tuple[HeldUp, ...]:
        return ()

    def forget(self, node: str, age_ms: int) -> bool:
        raise NotImplementedError(f"nobody forgets {node} here")


def frame_key(sequence: int) -> Key:
    return ("frame", sequence)


def quiet_table(range_frames: int, capacity_bytes: int = 1 << 60) -> SimulatedTable:
    """A table in a world of its own in which nothing goes wrong: its calls let time pass and return."""
    time = VirtualTime()
    faults = Faults(delay_ms=2, replication_ms=2, range_frames=range_frames, capacity_bytes=capacity_bytes)
    return SimulatedTable(Database(time, random.Random(0), faults), Machine(time))


def _nothing() -> list[Change]:
    return []


def _never() -> bool:
    return False
