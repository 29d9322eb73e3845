"""Relayed bytes: all of them, in order, both ways, whatever pieces the sockets take."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from pairbus.server.cluster.relaying.pipes import READ_BYTES, Pipe, Pipes

SECONDS_MAX = 30


def connection(buffer_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over TCP; ``buffer_bytes``: the little that the system holds of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        near = socket.socket()
        if buffer_bytes:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        if buffer_bytes:
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    near.settimeout(SECONDS_MAX)
    far.settimeout(SECONDS_MAX)
    return near, far


class Ends:
    """Remembers that a connection has ended."""

    def __init__(self) -> None:
        self.count = 0
        self.happened = threading.Event()

    def __call__(self, pipe: Pipe) -> None:
        self.count += 1
        self.happened.set()


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


def joined(
    pipes: Pipes, *, first: bytes = b"", has_ended: bool = False, buffer_bytes: int = 0
) -> tuple[socket.socket, socket.socket, Ends, Pipe]:
    """The client's socket, the owner's, and what tells the end."""
    client, near = connection(buffer_bytes)
    owner, far = connection(buffer_bytes)
    ends = Ends()
    pipe = pipes.join(near, far, first=first, has_ended=has_ended, ended=ends)
    return client, owner, ends, pipe


def read_all(sock: socket.socket) -> bytes:
    found = bytearray()
    while piece := sock.recv(1 << 16):
        found += piece
    return bytes(found)


def write_all(sock: socket.socket, data: bytes, seed: int) -> None:
    choose = random.Random(seed)
    at = 0
    while at < len(data):
        size = choose.choice((1, 17, 1000, 65_537, 200_000, 3 * READ_BYTES))
        sock.sendall(data[at : at + size])
        at += size
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("seed", range(6))
def test_both_directions_bring_every_byte_in_order_and_then_their_end(pipes: Pipes, seed: int) -> None:
    choose = random.Random(seed)
    there, back = choose.randbytes(choose.randrange(2_000_000)), choose.randbytes(choose.randrange(2_000_000))
    client, owner, ends, _ = joined(pipes, first=b"mark\r\n", buffer_bytes=choose.choice((0, 4096, 30_000)))
    writers = [
        threading.Thread(target=write_all, args=(client, there, seed)),
        threading.Thread(target=write_all, args=(owner, back, seed + 100)),
    ]
    found: dict[str, bytes] = {}
    readers = [
        threading.Thread(target=lambda: found.update(owner=read_all(owner))),
        threading.Thread(target=lambda: found.update(client=read_all(client))),
    ]
    for thread in writers + readers:
        thread.start()
    for thread in writers + readers:
        thread.join(SECONDS_MAX)
    assert found == {"owner": b"mark\r\n" + there, "client": back}
    assert ends.happened.wait(SECONDS_MAX)
    assert ends.count == 1
    assert not pipes._sides
    client.close()
    owner.close()


def test_a_client_that_ended_before_it_was_passed_on_still_gets_its_answer(pipes: Pipes) -> None:
    client, owner, ends, _ = joined(pipes, first=b"GET / HTTP/1.0\r\n\r\n", has_ended=True)
    assert read_all(owner) == b"GET / HTTP/1.0\r\n\r\n"
    owner.sendall(b"answer")
    owner.close()
    assert read_all(client) == b"answer"
    assert ends.happened.wait(SECONDS_MAX)
    client.close()


def test_a_side_that_breaks_ends_the_other(pipes: Pipes) -> None:
    client, owner, ends, _ = joined(pipes, first=b"x")
    assert owner.recv(1) == b"x"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of an end
    client.close()
    assert owner.recv(1) == b""
    assert ends.happened.wait(SECONDS_MAX)
    owner.close()


def test_a_side_that_breaks_while_it_takes_nothing_ends_the_other(pipes: Pipes) -> None:
    client, owner, ends, pipe = joined(pipes, first=b"x", buffer_bytes=4096)
    owner.settimeout(0.2)
    with pytest.raises(TimeoutError):
        owner.sendall(b"y" * (64 << 20))
    assert pipe.near.unwritten
    assert not pipe.far.mask, "the owner is not polled while its client takes nothing"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert ends.happened.wait(SECONDS_MAX)
    owner.close()


def test_a_cut_ends_both_sides_at_once_and_drops_what_waits(pipes: Pipes) -> None:
    client, owner, ends, pipe = joined(pipes, first=b"x")
    other_client, other_owner, other_ends, _ = joined(pipes, first=b"y")
    pipes.cut(pipe)
    pipes.cut(pipe)
    assert ends.happened.wait(SECONDS_MAX)
    assert ends.count == 1
    assert client.recv(1) == b""
    assert other_owner.recv(1) == b"y"
    other_client.sendall(b"z")
    assert other_owner.recv(1) == b"z"
    assert not other_ends.count
    for one in (client, owner, other_client, other_owner):
        one.close()


def test_closing_ends_every_connection_and_the_thread(pipes: Pipes) -> None:
    client, owner, ends, _ = joined(pipes)
    pipes.close()
    assert ends.count == 1
    assert client.recv(1) == b""
    assert owner.recv(1) == b""
    assert pipes._thread is not None
    assert not pipes._thread.is_alive()
    late = joined(pipes)  # what is handed over to a closed relay does not stay open
    assert late[0].recv(1) == b""
    for one in (client, owner, late[0], late[1]):
        one.close()


def test_a_wake_without_a_request_does_not_keep_the_thread_busy(pipes: Pipes) -> None:
    """A request may be answered together with the one before it: what woke the thread for it is read all the same."""
    client, owner, ends, pipe = joined(pipes, first=b"x")
    assert owner.recv(1) == b"x"
    for _ in range(10):
        pipes._wake()
    pipes.cut(pipe)
    assert ends.happened.wait(SECONDS_MAX)
    pipes._wake()
    assert pipes._wake_reader is not None
    with pytest.raises(BlockingIOError):
        for _ in range(SECONDS_MAX * 100):
            pipes._wake_reader.recv(1, socket.MSG_PEEK)
            time.sleep(0.01)
    client.close()
    owner.close()
