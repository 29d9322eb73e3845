"""A moment without file descriptors, and what the log says about it and about refused clients: little, and no secret."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import socket
from pathlib import Path

import pytest

from pairbus.server.assemble import _tell_refusals
from pairbus.server.config.options import Options
from pairbus.server.logs.format import KINDS_MAX, REPEAT_SECONDS, REPEATS_MAX, RepeatLimit, configure_logging
from pairbus.server.main import FILES_BESIDE_CONNECTIONS, within_file_limit
from pairbus.server.sockets.accepting import Acceptor


class ScarceSocket(socket.socket):
    """A listening socket in a process that has no descriptor left for a while."""

    failures = 0
    tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


async def test_a_listener_without_descriptors_pauses_and_then_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening = ScarceSocket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    listening.setblocking(False)
    listening.failures = 3
    with caplog.at_level(logging.WARNING):
        acceptor = Acceptor(listening, Greeter, pause_seconds=0.001)
        address = listening.getsockname()
        clients = [await asyncio.open_connection(*address) for _ in range(5)]
        for reader, writer in clients:
            async with asyncio.timeout(45):
                assert await reader.read() == b"hello"
            writer.close()
    acceptor.close()
    acceptor.close()
    assert acceptor.pauses == 3
    assert len(caplog.records) == 3  # one line a pause, not one for each place in the backlog
    assert "Too many open files" in vars(caplog.records[0])["reason"]
    with pytest.raises(OSError, match="failed"):
        await asyncio.open_connection(*address)


def line(message: str, at: float, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "pairbus.x", "msg": message, "created": at, **more})


def test_repeated_lines_are_counted_instead_of_written() -> None:
    limit = RepeatLimit()
    written = [
        number for number in range(10_000) if limit.filter(line(f"{number}", 100.0, event="listener.paused"))
    ]
    assert written == list(range(REPEATS_MAX))
    assert limit.filter(line("other", 100.0, event="other"))
    later = line("again", 100.0 + REPEAT_SECONDS, event="listener.paused")
    assert limit.filter(later)
    assert vars(later)["lines_left_out"] == 10_000 - REPEATS_MAX
    assert limit.filter(line("clock set back", 5.0, event="listener.paused"))


def test_the_kinds_of_lines_that_are_told_apart_are_bounded() -> None:
    limit = RepeatLimit()
    for number in range(5 * KINDS_MAX):
        limit.filter(line(f"message {number}", 100.0))
    assert len(limit._kinds) <= KINDS_MAX


def test_the_event_loops_lines_go_the_same_way() -> None:
    stream = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("pairbus", "asyncio")]
    before = [(log.handlers[:], log.level, log.propagate) for log in loggers]
    try:
        configure_logging("text", "info", stream)
        for _ in range(1000):
            logging.getLogger("asyncio").error("socket.accept() out of system resource")
        logging.getLogger("asyncio").info("selector")
    finally:
        for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
            log.handlers[:], log.propagate = handlers, propagate
            log.setLevel(level)
    assert len(stream.getvalue().splitlines()) == REPEATS_MAX


def test_a_refused_key_is_logged_with_its_name_and_its_peer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _tell_refusals(None)(
            "put-token", "orders", "root" * 200, "refused: InvalidSignature", "10.0.0.2:5000"
        )
        _tell_refusals(None)("metrics", "", "", "401", "10.0.0.2:5000")
    (record,) = caplog.records
    told = vars(record)
    assert told["event"] == "access.refused"
    assert told["key_name"].startswith("root")
    assert len(told["key_name"]) == 256
    assert told["peer"] == "10.0.0.2:5000"
    assert told["result"] == "refused: InvalidSignature"


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [(None, 10_000), (20_000, 10_000), (4096, 4096 - 512), (1024, 512), (100, 50)],
)
def test_connections_leave_descriptors_to_the_store(
    descriptors: int | None, expected: int, tmp_path: Path
) -> None:
    assert FILES_BESIDE_CONNECTIONS == 512
    options = within_file_limit(Options(data=tmp_path), descriptors)
    assert options.limits.connections_max == expected


@pytest.mark.parametrize(("descriptors", "expected"), [(20_512, 10_000), (4096, 1792), (120, 30)])
def test_connections_of_a_node_have_two_descriptors_each(
    descriptors: int, expected: int, tmp_path: Path
) -> None:
    options = within_file_limit(Options(data=tmp_path), descriptors, each=2)
    assert options.limits.connections_max == expected
