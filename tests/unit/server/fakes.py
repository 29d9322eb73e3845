"""A small broker and store with the same doors as the real ones: they answer, record, and can be made to fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from pairbus.engine.ports import WallClock
from pairbus.engine.records import Record, SequenceAdvanced
from pairbus.errors import StoreFailed
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.gateway.telemetry.exposition import Metric, render
from pairbus.model.access import AccessRule
from pairbus.server.assemble import Assembly
from pairbus.server.config.options import Options
from pairbus.server.sockets.registry import Limits
from pairbus.storage.ports import Batch, Store, StoreStatistics

ECHO_BYTES_MAX = 1000


class FakeStore(Store):
    """Records are strings; ``synced`` holds the durable ones. Close ``gate`` to make commits wait."""

    def __init__(self) -> None:
        self.staged: list[str] = []
        self.synced: list[str] = []
        self.batches: list[list[str]] = []
        self.committers: list[str] = []
        """Which thread made each batch durable."""
        self.gate = threading.Event()
        self.gate.set()
        self.fails: Exception | None = None
        self.staged_size = 0
        """How much the store says to hold, whatever the words are."""
        self.to_restate: list[Record] = []
        self.is_closed = False

    def stage(self, word: str) -> None:
        self.staged.append(word)

    def replay(self) -> Iterator[Record]:
        return iter(())

    def append(self, record: Record) -> None:
        self.staged.append(type(record).__name__)

    def has_room(self, size: int) -> bool:
        return True

    def read(self, location: int, size: int) -> bytes:
        return b""

    def forget(self, location: int, size: int) -> None:
        return None

    def staged_bytes(self) -> int:
        return self.staged_size

    def seal(self) -> Batch | None:
        if not self.staged:
            return None
        batch, self.staged = self.staged, []
        self.staged_size = 0
        return cast("Batch", batch)

    def commit(self, batch: Batch) -> None:
        assert self.gate.wait(50), "nobody opened the gate"
        if self.fails is not None:
            raise self.fails
        words = cast("list[str]", batch)
        self.committers.append(threading.current_thread().name)
        self.batches.append(words)
        self.synced.extend(words)

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        return None

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(commits=len(self.batches))

    def restate(self, limit: int) -> list[Record]:
        taken, self.to_restate = self.to_restate[:limit], self.to_restate[limit:]
        return taken

    def close(self) -> None:
        self.is_closed = True


class FakeGateway:
    """Stages what it hears and answers ``<heard>``; ``BYE`` closes, ``BOOM`` is a fault of ours."""

    def __init__(self, broker: FakeBroker, peer: str, secure: bool, loopback: bool) -> None:
        self.context: object | None = None
        self.peer, self.secure, self.loopback = peer, secure, loopback
        self.heard = b""
        self.rest = b""
        self.step_bytes = broker.step_bytes
        self.output: list[bytes] = []
        self.is_open = False
        self.is_closed = False
        self.is_lost = False
        self.is_paused = False
        self.pauses = 0
        self.closed_with = ""
        self._broker = broker

    @property
    def is_stranger(self) -> bool:
        return not self.is_open

    @property
    def is_behind(self) -> bool:
        return bool(self.rest) and not self.is_closed

    def receive(self, data: bytes, now: int, work: int) -> None:
        if self.step_bytes:
            rest = self.rest + data
            data, self.rest = rest[: self.step_bytes], rest[self.step_bytes :]
        self.heard += data
        if b"BOOM" in data:
            raise RuntimeError("a fault of the broker")
        self.is_open = self.is_open or b"OPEN" in self.heard
        self._broker.store.stage(data.decode("latin-1"))
        self.say(b"<" + data[:ECHO_BYTES_MAX] + b">")
        if b"BYE" in data:
            self.is_closed = True

    def say(self, words: bytes) -> None:
        self.output.append(words)
        self._broker.dirty[self] = None

    def take_output(self) -> list[bytes]:
        output, self.output = self.output, []
        return output

    def lost(self, now: int) -> None:
        self.is_lost = True
        if self._broker.lost_fails:
            raise RuntimeError("a fault of the broker")

    def close(self, condition: str, description: str) -> None:
        self.closed_with = condition
        self.say(b"closed:" + condition.encode())
        self.is_closed = True

    def pause(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume(self, now: int) -> None:
        self.is_paused = False


class FakeNamespace:
    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.restated: list[Record] = []
        self.access_rules: tuple[AccessRule, ...] = ()

    def restate(self, record: Record, now: int) -> None:
        self.restated.append(record)
        self._store.append(record)

    def record_uses(self, now: int, *, is_last: bool = False) -> None:
        pass

    def held_objects(self) -> int:
        return 0


class FakeBroker:
    """Knows its connections; HTTP answers say what was asked."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.namespace = FakeNamespace(store)
        self.gateways: list[FakeGateway] = []
        self.dirty: dict[FakeGateway, None] = {}
        self.deadline: int | None = None
        self.ticks: list[int] = []
        self.requests: list[HttpRequest] = []
        self.http_body = b""
        self.server_metrics: Callable[[], list[Metric]] = list
        self.steady_ms: Callable[[], int] = int
        self.pump_fails = False
        self.lost_fails = False
        self.step_bytes = 0
        """How much of its input a connection handles at once; 0: all of it."""

    def follow_wall_clock(self, wall_clock: WallClock) -> None:
        """Has no tokens and no messages."""

    def connect(self, peer: str, secure: bool, loopback: bool, now: int) -> FakeGateway:
        gateway = FakeGateway(self, peer, secure, loopback)
        self.gateways.append(gateway)
        return gateway

    def fetched(self, queue_ids: list[int], now: int) -> None:
        return None

    def pump(self, now: int) -> None:
        if self.pump_fails:
            raise RuntimeError("a fault of the broker")

    def tick(self, now: int) -> None:
        self.ticks.append(now)
        self.deadline = None

    def next_deadline(self) -> int | None:
        return self.deadline

    def take_dirty(self) -> list[FakeGateway]:
        dirty, self.dirty = list(self.dirty), {}
        return dirty

    def http(self, request: HttpRequest, now: int) -> HttpResponse:
        self.requests.append(request)
        if request.target == "/boom":
            raise RuntimeError("a fault of the broker")
        if request.method == "PUT":
            self.store.stage("PUT " + request.target)
        if request.target == "/metrics":
            text = render(self.server_metrics()).encode() + self.http_body
            return HttpResponse(200, [("content-type", "text/plain")], text)
        body = self.http_body or f"{request.method} {request.target} {len(request.body)}".encode()
        return HttpResponse(200, [("content-type", "text/plain")], body)


def assembly() -> tuple[FakeBroker, FakeStore]:
    store = FakeStore()
    return FakeBroker(store), store


def assemble_with(broker: FakeBroker, root_key: str = "cm9vdA==") -> Assembly:
    return Assembly(broker=broker, store=broker.store, root_key=root_key)


def options(data: Path, *, tls: bool = False, limits: Limits | None = None) -> Options:
    """Free ports on loopback, no files but certificates."""
    return Options(
        namespace="contoso",
        data=data,
        amqp=("127.0.0.1", 0),
        http=("127.0.0.1", 0),
        tls=tls,
        limits=limits if limits is not None else Limits(),
    )


def disk_error() -> StoreFailed:
    return StoreFailed("fdatasync failed: Input/output error")


def any_record() -> Record:
    return SequenceAdvanced(4, 1, 0)


class FakeTransport(asyncio.Transport):
    """A socket without a system: what is written to it is for the subclass to say."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.is_ended = False

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def abort(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True
