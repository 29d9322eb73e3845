"""A relayed connection ends soon after one of its sides has ended, on virtual time and with false sockets."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Callable
from typing import cast

import pytest

from pairbus.server.cluster.relaying import pipes as module
from pairbus.server.cluster.relaying.pipes import (
    END_SECONDS,
    ENDING_SECONDS_MAX,
    READ_BYTES,
    SWEEP_SECONDS,
    Pipe,
    Pipes,
)
from pairbus.server.cluster.relaying.quiet import QUIET_BYTES, QUIET_SECONDS, Quiet


class FalseSocket:
    """A socket whose peer does what the test says."""

    _numbers = itertools.count(1000)

    def __init__(self) -> None:
        self._number = next(self._numbers)
        self.incoming: list[bytes] = []
        """What the peer has sent; empty bytes: its end."""
        self.room = 1 << 30
        """Bytes that the peer takes."""
        self.taken = b""
        self.was_told_the_end = self.is_closed = self.has_gone = False

    def fileno(self) -> int:
        return -1 if self.is_closed else self._number

    def setblocking(self, flag: bool) -> None: ...

    def setsockopt(self, *_: int) -> None: ...

    def recv_into(self, buffer: bytearray) -> int:
        if not self.incoming:
            raise BlockingIOError
        piece = self.incoming.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)

    def send(self, data: bytes) -> int:
        count = min(self.room, len(data))
        if not count:
            raise BlockingIOError
        self.room -= count
        self.taken += bytes(data[:count])
        return count

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_WR
        self.was_told_the_end = True

    def close(self) -> None:
        self.is_closed = True


class FalsePoller:
    """Knows who is polled for what."""

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}

    def register(self, fd: int, mask: int) -> None:
        assert fd not in self.masks
        self.masks[fd] = mask

    def modify(self, fd: int, mask: int) -> None:
        assert fd in self.masks
        self.masks[fd] = mask

    def unregister(self, fd: int) -> None:
        del self.masks[fd]


class World:
    """Pipes without their thread; the test says what happens and how late it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pipes = Pipes(clock=lambda: self.now)
        self.pipes._poller = cast("select.poll", FalsePoller())
        self.pipes._buffer = bytearray(READ_BYTES)
        self.pipes._view = memoryview(self.pipes._buffer)
        self.ended: list[Pipe] = []
        monkeypatch.setattr(module, "_has_ended", lambda sock: sock.has_gone)

    def connection(self) -> tuple[FalseSocket, FalseSocket, Pipe]:
        near, far = FalseSocket(), FalseSocket()
        pipe = Pipe(cast("socket.socket", near), cast("socket.socket", far), self.ended.append)
        self.pipes._begin(pipe)
        return near, far, pipe

    def reads(self, sock: FalseSocket) -> None:
        """The thread reads from a socket until nothing more is there or it is not polled for reading."""
        side = self.pipes._sides[sock.fileno()]
        while sock.incoming and not side.pipe.is_closed and side.mask & module._READ:
            self.pipes._pass_on(side)

    def watched(self) -> dict[Pipe, None]:
        """Connections that the thread looks at without an event."""
        return self.pipes._ending | self.pipes._stalled

    def passes(self, seconds: float) -> None:
        """Time passes, with the looks that the thread takes meanwhile."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + SWEEP_SECONDS)
            if self.watched():
                self.pipes._sweep()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def of_the_owner(near: FalseSocket, far: FalseSocket) -> tuple[FalseSocket, FalseSocket]:
    return far, near


def of_the_client(near: FalseSocket, far: FalseSocket) -> tuple[FalseSocket, FalseSocket]:
    return near, far


Choice = Callable[[FalseSocket, FalseSocket], tuple[FalseSocket, FalseSocket]]


@pytest.mark.parametrize("choose", [of_the_owner, of_the_client])
def test_a_peer_that_does_not_close_after_the_other_has_loses_its_connection(
    world: World, choose: Choice
) -> None:
    near, far, pipe = world.connection()
    ending, staying = choose(near, far)
    ending.incoming = [b"last words", b""]
    world.reads(ending)
    assert staying.taken == b"last words"
    assert staying.was_told_the_end
    world.passes(END_SECONDS - 1)
    assert world.ended == [], "it has this time to end by itself"
    world.passes(1 + SWEEP_SECONDS)
    assert near.is_closed
    assert far.is_closed
    assert world.ended == [pipe]
    assert not world.watched()
    assert not world.pipes._sides


def test_bytes_of_a_peer_do_not_give_it_more_time(world: World) -> None:
    near, far, pipe = world.connection()
    far.incoming = [b""]
    world.reads(far)
    for _ in range(int(END_SECONDS / SWEEP_SECONDS) + 1):
        if not pipe.is_closed:
            near.incoming = [b"x"]
            world.reads(near)
            world.passes(SWEEP_SECONDS)
    assert pipe.is_closed


def still_answers(world: World, far: FalseSocket, seconds: float) -> None:
    """The owner sends a piece at each look."""
    until = world.now + seconds
    while world.now < until and not far.is_closed:
        far.incoming = [b"x"]
        world.reads(far)
        world.passes(SWEEP_SECONDS)


def test_an_answer_to_a_client_that_has_ended_goes_on_while_bytes_reach_it(world: World) -> None:
    near, far, pipe = world.connection()
    near.incoming = [b"request", b""]
    world.reads(near)
    still_answers(world, far, 4 * END_SECONDS)
    assert not pipe.is_closed
    assert near.taken == b"x" * int(4 * END_SECONDS / SWEEP_SECONDS)
    world.passes(END_SECONDS + SWEEP_SECONDS)
    assert world.ended == [pipe], "nothing moved for this time"
    assert not world.watched()


def test_a_connection_that_ends_does_not_end_for_ever(world: World) -> None:
    near, far, pipe = world.connection()
    near.incoming = [b""]
    world.reads(near)
    still_answers(world, far, ENDING_SECONDS_MAX - SWEEP_SECONDS)
    assert not pipe.is_closed
    still_answers(world, far, 2 * SWEEP_SECONDS)
    assert pipe.is_closed


def test_a_slow_client_has_time_for_what_the_owner_sent_while_it_takes_some(world: World) -> None:
    near, far, pipe = world.connection()
    near.room = 0
    far.incoming = [b"0123456789", b""]
    world.reads(far)
    far.has_gone = True
    world.passes(SWEEP_SECONDS)
    for _ in range(10):
        near.room = 1
        world.pipes._flush(pipe.near)
        world.passes(END_SECONDS - 1)
    assert near.taken == b"0123456789"


def test_a_side_that_ends_in_time_is_closed_at_once(world: World) -> None:
    near, far, pipe = world.connection()
    far.incoming = [b""]
    world.reads(far)
    near.incoming = [b""]
    world.reads(near)
    assert pipe.is_closed
    assert world.ended == [pipe]
    world.passes(2 * END_SECONDS)
    assert world.ended == [pipe]


def test_a_client_that_takes_nothing_is_closed_after_the_owner_has_ended(world: World) -> None:
    near, far, pipe = world.connection()
    near.room = 3
    far.incoming = [b"0123456789", b"more", b""]
    world.reads(far)
    assert near.taken == b"012"
    assert far.incoming, "the owner is not read, so that its end is not seen"
    world.passes(100 * END_SECONDS)
    assert world.ended == [], "a slow client keeps its connection as long as the owner does"
    far.has_gone = True
    world.passes(END_SECONDS + 2 * SWEEP_SECONDS)
    assert world.ended == [pipe]
    assert not world.watched()
    assert not world.pipes._sides


def test_a_slow_client_gets_what_the_owner_sent_before_it_ended(world: World) -> None:
    near, far, pipe = world.connection()
    near.room = 3
    far.incoming = [b"0123456789", b"more", b""]
    world.reads(far)
    far.has_gone = True
    world.passes(2 * SWEEP_SECONDS)
    near.room = 100
    world.pipes._flush(pipe.near)
    world.reads(far)
    assert near.taken == b"0123456789more"
    assert near.was_told_the_end


def test_connections_that_nobody_ends_stay_without_a_look(world: World) -> None:
    _, _, pipe = world.connection()
    assert not world.watched()
    world.passes(1000 * END_SECONDS)
    assert not pipe.is_closed


def test_an_end_behind_unread_bytes_is_seen_at_a_real_socket() -> None:
    one, other = socket.socketpair()
    with one:
        other.sendall(b"unread")
        assert not module._has_ended(one)
        other.close()
        assert module._has_ended(one)


class FalsePipe(Pipe):
    """A connection whose client has sent as much as the test says."""

    def __init__(self, count: int | None, ends_at: float | None = None) -> None:
        self.count = count
        self.ends_at = ends_at

    def client_bytes(self) -> int | None:
        return self.count


def quiet_of(*pipes: FalsePipe) -> Quiet:
    """They came one second after the other, from 0 on."""
    made = Quiet()
    for at, pipe in enumerate(pipes):
        made.joined(pipe, float(at))
    return made


def test_the_oldest_connection_that_has_hardly_sent_anything_goes_first() -> None:
    speaking, first, second = FalsePipe(QUIET_BYTES), FalsePipe(8), FalsePipe(0)
    quiet = quiet_of(speaking, first, second)
    assert quiet.oldest(3.0) == (1.0, first)
    quiet.left(first)
    assert quiet.oldest(3.0) == (2.0, second)
    quiet.left(second)
    assert quiet.oldest(3.0) is None


def test_a_connection_that_the_owner_let_stay_is_not_quiet() -> None:
    assert quiet_of(FalsePipe(8)).oldest(QUIET_SECONDS - 1) is not None
    assert quiet_of(FalsePipe(8)).oldest(QUIET_SECONDS) is None
    assert quiet_of(FalsePipe(None)).oldest(1.0) is None, "the system does not tell what was sent"


def test_a_connection_that_ends_anyway_makes_room_whatever_it_sent() -> None:
    ending = FalsePipe(1 << 20, ends_at=5.0)
    assert quiet_of(ending).oldest(3.0) == (0.0, ending)
