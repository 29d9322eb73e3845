"""The shell on real sockets: what is said when, who is turned away, what is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import cast

import pytest

from pairbus.errors import StoreFailed, UsageError
from pairbus.server.committer import SMALL_BYTES_MAX
from pairbus.server.config.options import Options
from pairbus.server.server import Server
from pairbus.server.sockets.connection import WRITE_BYTES_HIGH
from pairbus.server.sockets.registry import Limits
from tests.integration.server.kit import (
    WAIT_SECONDS,
    Running,
    connect,
    read_all,
    read_cut,
    read_until,
    serving,
)
from tests.unit.server.fakes import any_record, assemble_with, assembly, disk_error, options
from tests.waiting import until

HEADER = b"AMQP\x03\x01\x00\x00"


async def test_amqp_bytes_reach_the_broker_and_answers_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"OPEN hello")

        assert await read_until(reader, b">") == b"<" + HEADER + b"OPEN hello>"

        gateway = running.broker.gateways[0]
        assert gateway.loopback
        assert not gateway.secure
        writer.close()
        await until(lambda: gateway.is_lost)


async def test_a_tongue_is_found_out_however_the_bytes_are_cut(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        _, writer = await connect(running.amqp)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(HEADER)):
            writer.write(HEADER[at : at + 1])
            await writer.drain()
            received = at + 1
            await until(lambda n=received: running.server.statistics().listener.received_bytes >= n)  # type: ignore[misc]

        await until(lambda: bool(running.broker.gateways) and running.broker.gateways[0].heard == HEADER)

        writer.close()


@pytest.mark.promise("B4")
async def test_nothing_is_written_before_its_commit(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        running.store.gate.clear()
        writer.write(HEADER + b"send")
        await until(lambda: running.server.statistics().driver.uncommitted_bytes == 12)
        waiting = asyncio.ensure_future(reader.read(100))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done

        running.store.gate.set()

        assert await waiting == b"<" + HEADER + b"send>"
        assert HEADER.decode("latin-1") + "send" in running.store.synced
        writer.close()


@pytest.mark.promise("B11")
async def test_a_failed_commit_ends_the_server_and_acknowledges_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"one")
        await read_until(reader, b">")
        running.store.fails = disk_error()
        writer.write(b"two")

        error = await running.server.wait_ended()

        assert isinstance(error, StoreFailed)
        assert await read_cut(reader) == b""
        with pytest.raises(ConnectionRefusedError):
            await connect(running.amqp)
        writer.close()


async def _become_calm(running: Running, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Small requests one after the other, until commits are waited for on the spot."""
    loop_thread = threading.current_thread().name
    for number in range(1_000):
        writer.write(b"%d" % number)
        await read_until(reader, b">")
        if running.store.committers[-1] == loop_thread:
            return
    raise AssertionError("every commit went through the thread")


@pytest.mark.promise("B4")
async def test_small_commits_on_a_quick_disk_are_waited_for_on_the_spot(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"OPEN")  # a peer that is not known is read in small pieces
        await read_until(reader, b">")
        assert running.store.committers[-1] != threading.current_thread().name
        await _become_calm(running, reader, writer)

        writer.write(b"x" * (SMALL_BYTES_MAX + 1))
        assert await read_until(reader, b">")

        assert running.store.committers[-1] != threading.current_thread().name
        assert running.server.statistics().driver.commits == len(running.store.batches)
        writer.close()


@pytest.mark.promise("B11")
async def test_a_commit_that_fails_on_the_spot_ends_the_server_and_acknowledges_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER)
        await read_until(reader, b">")
        await _become_calm(running, reader, writer)
        running.store.fails = disk_error()
        writer.write(b"lost")

        error = await running.server.wait_ended()

        assert isinstance(error, StoreFailed)
        assert await read_cut(reader) == b""
        writer.close()


@pytest.mark.promise("B11")
async def test_a_store_that_fails_at_the_first_commit_never_serves(tmp_path: Path) -> None:
    broker, store = assembly()
    store.stage("the root key")
    store.fails = disk_error()
    server = Server(options(tmp_path), assemble=lambda _o, _n: assemble_with(broker))

    with pytest.raises(StoreFailed):
        await server.start()

    assert store.is_closed


async def test_a_broker_that_breaks_in_a_turn_stops_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.broker.pump_fails = True
        _, writer = await connect(running.amqp)
        writer.write(HEADER)

        assert isinstance(await running.server.wait_ended(), RuntimeError)
        writer.close()


async def test_a_broker_that_cannot_even_hear_of_lost_connections_still_stops_the_server(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as running:
        readers = []
        for _ in range(3):
            reader, writer = await connect(running.amqp)
            writer.write(HEADER)
            await read_until(reader, b">")
            readers.append(reader)
        running.broker.pump_fails = running.broker.lost_fails = True
        writer.write(b"x")

        assert isinstance(await running.server.wait_ended(), RuntimeError)
        for reader in readers:
            assert await read_cut(reader) == b""


@pytest.mark.promise("B59")
async def test_words_that_one_socket_cannot_take_cost_only_that_peer(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        good_reader, good = await connect(running.amqp)
        bad_reader, bad = await connect(running.amqp)
        for reader, writer in ((bad_reader, bad), (good_reader, good)):
            writer.write(HEADER)
            await read_until(reader, b">")
        bad_gateway, good_gateway = running.broker.gateways
        bad_gateway.say(cast("bytes", "not bytes at all"))  # a fault of ours, found out only as it is written
        good_gateway.say(b"in the same breath>")
        good.write(b"go on")

        assert await read_until(good_reader, b"breath>") == b"in the same breath>"
        assert await read_cut(bad_reader) == b""

        assert await read_until(good_reader, b">") == b"<go on>"
        assert bad_gateway.is_lost
        assert not running.server.statistics().driver.is_failed
        good.close()
        bad.close()


@pytest.mark.promise("B59")
async def test_a_fault_brought_out_by_one_peer_costs_only_that_peer(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        good_reader, good = await connect(running.amqp)
        bad_reader, bad = await connect(running.amqp)
        good.write(HEADER)
        await read_until(good_reader, b">")
        bad.write(HEADER + b"BOOM")

        assert await read_cut(bad_reader) == b""

        good.write(b"still here")
        assert await read_until(good_reader, b">") == b"<still here>"
        good.close()
        bad.close()


async def test_unknown_bytes_hear_the_amqp_header_and_are_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(b"SSH-2.0-OpenSSH\r\n")

        assert await read_all(reader) == HEADER
        assert running.server.statistics().listener.refused_by_reason == {"unknown_protocol": 1}
        writer.close()


async def test_the_http_address_refuses_amqp(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.http)
        writer.write(HEADER)

        assert await read_all(reader) == b""
        assert running.broker.gateways == []
        writer.close()


async def test_the_brokers_close_is_heard_whole_and_the_socket_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"BYE")

        assert await read_all(reader) == b"<" + HEADER + b"BYE>"
        writer.close()
        await until(lambda: running.server.statistics().listener.open_by_kind == {})


async def test_rule_19_settlements_are_read_although_the_peer_went_without_reading(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        sock = socket.create_connection(running.amqp)
        hello = HEADER + b"OPEN"
        sock.sendall(hello)
        await until(lambda: len(running.broker.gateways) == 1 and running.broker.gateways[0].heard == hello)
        gateway = running.broker.gateways[0]
        # The server does not read while the client writes its last words and resets the connection.
        running.store.gate.clear()
        registry = running.server._registry
        assert registry is not None
        registry.set_reading(False)
        sock.sendall(b"settled")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        gateway.say(b"an answer nobody reads")
        running.store.gate.set()
        running.server.wake()

        await until(lambda: gateway.is_lost)

        assert gateway.heard == hello + b"settled"


@pytest.mark.promise("M6")
async def test_a_peer_that_never_opens_is_cut_after_the_handshake_time(tmp_path: Path) -> None:
    limits = Limits(handshake_seconds=0.5)
    async with serving(tmp_path, limits=limits) as running:
        silent_reader, silent = await connect(running.amqp)
        slow_reader, slow = await connect(running.amqp)
        open_reader, opened = await connect(running.amqp)
        slow.write(HEADER)
        opened.write(HEADER + b"OPEN")
        await read_until(open_reader, b">")

        assert await read_cut(silent_reader) == b""
        assert await read_cut(slow_reader) == b"<" + HEADER + b">"

        opened.write(b"more")
        assert await read_until(open_reader, b">") == b"<more>"
        for writer in (silent, slow, opened):
            writer.close()


@pytest.mark.promise("M12")
async def test_connections_beyond_the_limit_are_refused_and_room_is_given_back(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(connections_max=2)) as running:
        pairs = [await connect(running.amqp) for _ in range(2)]
        for reader, writer in pairs:
            writer.write(HEADER + b"OPEN")
            await read_until(reader, b">")
        third_reader, third = await connect(running.amqp)
        third.write(HEADER)
        assert await read_cut(third_reader) == b""
        pairs[0][1].close()
        await until(lambda: sum(running.server.statistics().listener.open_by_kind.values()) == 1)

        reader, writer = await connect(running.amqp)
        writer.write(HEADER)

        assert await read_until(reader, b">") == b"<" + HEADER + b">"
        assert running.server.statistics().listener.refused_by_reason == {"connections_max": 1}
        for one in (third, writer, pairs[1][1]):
            one.close()


@pytest.mark.promise("B63")
async def test_a_peer_that_does_not_read_gets_no_more_deliveries_until_it_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"OPEN")
        await read_until(reader, b">")
        gateway = running.broker.gateways[0]

        big = b"x" * (WRITE_BYTES_HIGH * 40)
        gateway.say(big)
        running.server.wake()
        await until(lambda: gateway.is_paused)
        other_reader, other = await connect(running.amqp)
        other.write(HEADER)
        assert await read_until(other_reader, b">") == b"<" + HEADER + b">"
        async with asyncio.timeout(WAIT_SECONDS):
            assert await reader.readexactly(len(big)) == big

        await until(lambda: not gateway.is_paused)
        writer.close()
        other.close()


async def test_reading_stops_while_the_disk_is_behind_and_goes_on_after(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(uncommitted_bytes_max=1024 * 1024)) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"OPEN")
        await read_until(reader, b">")
        running.store.gate.clear()
        sent = 12 * 1024 * 1024
        writing = asyncio.ensure_future(
            asyncio.get_running_loop().run_in_executor(None, _flood, running.amqp, sent)
        )
        await until(lambda: running.server.statistics().driver.reading_pauses == 1)
        held = running.server.statistics().driver.uncommitted_bytes
        assert held <= 2 * 1024 * 1024

        running.store.gate.set()

        async with asyncio.timeout(WAIT_SECONDS):
            await writing
        await until(lambda: len(running.broker.gateways[1].heard) == sent + len(HEADER + b"OPEN"))
        writer.close()


def _flood(address: tuple[str, int], count: int) -> None:
    with socket.create_connection(address) as sock:
        sock.sendall(HEADER + b"OPEN")
        chunk = b"y" * (1024 * 1024)
        for _ in range(count // len(chunk)):
            sock.sendall(chunk)
        # A socket closed with unread input would throw away what it has not sent yet.
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


async def test_the_brokers_timers_fire(tmp_path: Path) -> None:
    now = [1_000_000]
    async with serving(tmp_path, clock=lambda: now[0]) as running:
        running.broker.deadline = 1_005_000
        running.server.wake()
        now[0] = 1_005_000
        running.server.wake()

        await until(lambda: running.broker.ticks == [1_005_000])


@pytest.mark.promise("B65")
async def test_a_step_of_the_clock_is_noticed_without_traffic(tmp_path: Path) -> None:
    now = [1_000_000]
    async with serving(tmp_path, clock=lambda: now[0]) as running:
        running.broker.deadline = 9_000_000
        running.server.wake()
        await until(lambda: running.server.statistics().driver.turns >= 2)

        now[0] = 9_000_001

        await until(lambda: running.broker.ticks == [9_000_001])


async def test_housekeeping_restates_old_records_through_the_namespace(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.store.to_restate = [any_record() for _ in range(450)]

        await until(lambda: len(running.broker.namespace.restated) == 450)
        await until(lambda: running.store.synced.count("SequenceAdvanced") == 450)


async def test_stop_says_good_bye_makes_everything_durable_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER + b"OPEN")
        await read_until(reader, b">")
        writer.write(b"last")
        await until(lambda: running.broker.gateways[0].heard.endswith(b"last"))
        stopping = asyncio.ensure_future(running.server.stop())

        assert await read_all(reader) == b"<last>closed:amqp:connection:forced"
        writer.close()
        await stopping

        assert running.store.is_closed
        assert running.store.synced[-1] == "last"
        assert await running.server.wait_ended() is None


@pytest.mark.promise("B62")
async def test_reading_stops_when_a_little_input_is_stored_many_times_over(tmp_path: Path) -> None:
    """A message to a topic of a thousand subscriptions is a thousand messages for the disk."""
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        running.store.gate.clear()
        running.store.staged_size = 1 << 30
        writer.write(HEADER)
        await until(lambda: running.server.statistics().driver.reading_pauses == 1)

        running.store.gate.set()

        assert await read_until(reader, b">") == b"<" + HEADER + b">"
        writer.write(b"go on")
        assert await read_until(reader, b">") == b"<go on>"
        assert running.server.statistics().driver.uncommitted_bytes == 0
        writer.close()


async def test_kill_forgets_what_is_not_durable(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER)
        await read_until(reader, b">")

        await running.server.kill()

        assert await read_cut(reader) == b""
        assert running.store.is_closed
        writer.close()


@pytest.mark.promise("B67")
async def test_when_all_clients_have_gone_nothing_is_left(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        gc.collect()  # what earlier tests left behind must not go meanwhile
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            pairs = [await connect(running.amqp) for _ in range(10)]
            for _, writer in pairs:
                writer.write(HEADER + b"OPEN")
            for reader, writer in pairs:
                await read_until(reader, b">")
                writer.close()
                await writer.wait_closed()
        await until(lambda: running.server.statistics().listener.open_by_kind == {})

        registry = running.server._registry
        assert registry is not None
        assert not registry._timed
        assert not registry._connections
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
        assert all(gateway.is_lost and gateway.context is None for gateway in running.broker.gateways)


async def test_a_taken_port_is_an_error_that_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker, store = assembly()
        port = taken.getsockname()[1]
        server = Server(
            Options(namespace="n", data=tmp_path, amqp=("127.0.0.1", port), http=None, tls=False),
            assemble=lambda _o, _n: assemble_with(broker),
        )

        with pytest.raises(OSError, match="in use"):
            await server.start()

        assert store.is_closed


@pytest.mark.promise("M14")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_listening_beyond_this_machine_without_tls_is_refused_at_start(
    tmp_path: Path, host: str
) -> None:
    broker, store = assembly()
    server = Server(
        Options(namespace="n", data=tmp_path, amqp=(host, 0), http=None, tls=False),
        assemble=lambda _o, _n: assemble_with(broker),
    )

    with pytest.raises(UsageError, match="TLS"):
        await server.start()

    assert not store.synced


@pytest.mark.promise("M14")
async def test_plain_text_from_elsewhere_is_refused_by_the_peers_own_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.server.sockets.connection.is_loopback", lambda host: False)
    async with serving(tmp_path) as running:
        reader, writer = await connect(running.amqp)
        writer.write(HEADER)
        told = await read_all(reader)
        assert b"amqp:not-allowed" in told
        assert b"use TLS on the same port" in told
        http_reader, http = await connect(running.amqp)
        http.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n")

        answer = await read_all(http_reader)

        assert answer.startswith(b"HTTP/1.1 403 ")
        assert "loopback" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert running.broker.gateways == []
        assert running.broker.requests == []
        writer.close()
        http.close()
