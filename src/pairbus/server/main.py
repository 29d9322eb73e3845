"""The process that is a broker: signals, limits, exit codes, one clear line for what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import Refusal, StorageError, StoreFenced, StoreUnavailable, UsageError
from pairbus.server.config.options import MEMORY
from pairbus.server.heap import system_heap
from pairbus.server.memory import CollectorPolicy
from pairbus.server.ready import READY_FILE, ReadyInfo, write_ready_file
from pairbus.server.room import file_size_way_out
from pairbus.server.server import Assemble, Page, Server, check_exposure

if TYPE_CHECKING:
    from pairbus.server.cluster.node import Node
    from pairbus.server.cluster.relaying.selector import GatedSelector
    from pairbus.server.config.options import ClusterOptions, Options

logger = logging.getLogger(__name__)

EXIT_DONE: Final = 0
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 3
EXIT_FENCED: Final = 4
"""Another node of the cluster has taken the namespace: start this one again, and it takes part as before."""
FILES_BESIDE_CONNECTIONS: Final = 512
"""File descriptors that the store, listeners and logs may need."""
MORE_DESCRIPTORS: Final = (
    "the broker needs more file descriptors; raise the limit (`ulimit -n`, or LimitNOFILE= of its service)"
)
SWITCH_SECONDS: Final = 0.0005
"""A thread that waits for the interpreter asks for it after this long; the usual 5 ms would be added to every commit
that ends while the broker computes."""
STOP_SECONDS_MAX: Final = 12.0
"""How long the process of a node takes to end at most. A service manager that kills it later kills nothing."""
COLLECTOR_TICK_SECONDS: Final = 1.0
COLLECTOR_TICKS_PER_HEAP_TICK: Final = 5


def run(
    options: Options,
    assemble: Assemble,
    *,
    page: Page | None = None,
    announce: Callable[[ReadyInfo], None] | None = None,
) -> int:
    """Serve until a signal comes. Returns the exit code; what went wrong is one line on standard error.

    ``announce`` is called once it serves: a person at a terminal wants to know where and with which key.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    options = within_file_limit(
        options, raise_file_limit(options.limits.connections_max + FILES_BESIDE_CONNECTIONS)
    )
    try:
        return asyncio.run(_serve(options, assemble, page, announce))
    except (UsageError, Refusal) as error:
        return _complain(str(error), EXIT_USAGE)
    except StorageError as error:
        # A compiled room notes only the context of an error that it raises from another.
        return _complain(f"{error}{_way_out(error.__cause__ or error.__context__)}", EXIT_REFUSED)
    except OSError as error:
        return _complain(_explain(error), EXIT_REFUSED)


def run_node(
    options: Options,
    cluster: ClusterOptions,
    wrap: Callable[[Assemble], Assemble] | None = None,
    *,
    page: Page | None = None,
    joined: Callable[[Node], None] | None = None,
    announce: Callable[[ReadyInfo], None] | None = None,
) -> int:
    """Serve as one node of a cluster until a signal comes. Returns the exit code, as ``run`` does.

    ``wrap`` is given the assembler of each server that this node builds: see ``web.page.Page.assembling``. ``joined`` is given the node.
    """
    from pairbus.server.cluster.relaying.selector import GatedSelector

    sys.setswitchinterval(SWITCH_SECONDS)
    # A relayed connection has two sockets.
    limit = raise_file_limit(2 * options.limits.connections_max + FILES_BESIDE_CONNECTIONS)
    options = within_file_limit(options, limit, each=2)
    selector = GatedSelector()
    ending = _Ending()
    try:
        check_exposure(options)
        with (
            _node_directory(options),
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
        ):
            return runner.run(_serve_node(options, cluster, wrap, page, joined, announce, selector, ending))
    except (UsageError, Refusal) as error:
        return _complain(str(error), EXIT_USAGE)
    except StorageError as error:
        return _complain(str(error), EXIT_REFUSED)
    except OSError as error:
        return _complain(_explain(error), EXIT_REFUSED)
    finally:
        ending.cancel()


@contextlib.contextmanager
def _node_directory(options: Options) -> Iterator[None]:
    """Own the data directory of a node. Raises StoreUnavailable if another node has it, or if it holds a namespace of its own (B69)."""
    from pairbus.server.assemble import STORE_DIRECTORY
    from pairbus.storage.files import RealFileSystem
    from pairbus.storage.identity import LOCK_FILE
    from pairbus.storage.tools.inspect import holds_data

    data = options.data
    if holds_data(data / STORE_DIRECTORY):
        raise StoreUnavailable(
            f"{data} holds a namespace that was not moved into the database, so this node would not serve it: move it first with `pairbus "
            f"store move --data {data} --to URL`, or give this node another --data"
        )
    files = RealFileSystem(data)
    files.lock(LOCK_FILE)
    try:
        yield
    finally:
        files.unlock()


class _Ending:
    """Ends the process of a node that stops, if that takes too long: a thread may be connecting to a database that does not answer."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, code: int, line: str) -> None:
        """The node stops. ``code`` and ``line``: how its process ends, and what it says then."""
        self._timer = threading.Timer(STOP_SECONDS_MAX, self._end, (code, line))
        self._timer.daemon = True
        self._timer.start()

    def _end(self, code: int, line: str) -> None:
        logger.error(
            "the process is ended: stopping took too long",
            extra={"event": "server.stop_slow", "seconds": STOP_SECONDS_MAX},
        )
        logging.shutdown()
        if line:
            _complain(line, code)
        os._exit(code)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _serve_node(
    options: Options,
    cluster: ClusterOptions,
    wrap: Callable[[Assemble], Assemble] | None,
    page: Page | None,
    joined: Callable[[Node], None] | None,
    announce: Callable[[ReadyInfo], None] | None,
    selector: GatedSelector,
    ending: _Ending,
) -> int:
    from pairbus.server.assemble import assemble_shard
    from pairbus.server.cluster.arrival import Arrival
    from pairbus.server.cluster.node import Node
    from pairbus.storage.postgres.opening import named_database
    from pairbus.storage.table.ports import ShardMoved

    store = options.store
    assert store is not None, "a cluster has a database"
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    arrival = Arrival(lambda: named_database(store, options.namespace))
    finding = asyncio.ensure_future(arrival.find())
    while await _unless_stopped(stop, finding):
        database = finding.result()
        node = Node(options, cluster, database, assemble_shard(database, wrap), page=page)
        selector.may_flush = node.may_flush
        if joined is not None:
            joined(node)
        error = await _serve_one(node, options, announce, stop, ending)
        if not (isinstance(error, ShardMoved) and error.is_of_waiting_node) or stop.is_set():
            code, line = _outcome(error)
            if line:
                return _complain(line, code)
            logger.info("stopped", extra={"event": "server.stopped", "namespace": options.namespace})
            return code
        ending.cancel()
        finding = asyncio.ensure_future(arrival.find_again(error))
    ending.begin(EXIT_DONE, "")
    arrival.database.cut()
    return EXIT_DONE


async def _serve_one(
    node: Node,
    options: Options,
    announce: Callable[[ReadyInfo], None] | None,
    stop: asyncio.Event,
    ending: _Ending,
) -> Exception | None:
    """Serve as this node until ``stop``, or until it must end; returns why, None: it was stopped."""
    policy = CollectorPolicy(held_objects=node.held_objects)
    error: Exception | None = None
    try:
        await _unless_stopped(stop, asyncio.ensure_future(node.start()))
        async with asyncio.TaskGroup() as tasks:
            collector = tasks.create_task(_collect_garbage(policy))
            readiness = tasks.create_task(_be_ready(node, options, announce))
            ended = tasks.create_task(node.wait_ended())
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            error = ended.result() if ended.done() else None
            for task in (collector, readiness, ended, stopped):
                task.cancel()
    finally:
        ending.begin(*_outcome(error))
        await node.stop()
    return error


async def _unless_stopped(stop: asyncio.Event, work: asyncio.Future[Any]) -> bool:
    """Wait for ``work``, and let it go if the process is to stop first; False: so it was. Raises what ``work`` raises."""
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not work.done():
        work.cancel()
        return False
    work.result()
    return True


def _outcome(error: Exception | None) -> tuple[int, str]:
    """The exit code of a node, and what is said of it."""
    from pairbus.storage.table.ports import ShardMoved

    if error is None:
        return EXIT_DONE, ""
    if isinstance(error, StoreFenced):
        return EXIT_FENCED, f"fenced: {error}"
    if isinstance(error, ShardMoved):
        return EXIT_REFUSED, str(error)  # as at the start
    if isinstance(error, (UsageError, Refusal)):
        return EXIT_USAGE, str(error)
    return EXIT_REFUSED, f"stopped, nothing is acknowledged any more: {error}"


async def _be_ready(node: Node, options: Options, announce: Callable[[ReadyInfo], None] | None) -> None:
    ready = await node.readiness.wait()
    _write_ready_files(options, ready)
    node.readiness.changed = lambda ready: _rewrite_ready_files(options, ready)
    if announce is not None:
        announce(ready)


async def _serve(
    options: Options, assemble: Assemble, page: Page | None, announce: Callable[[ReadyInfo], None] | None
) -> int:
    server = Server(options, assemble=assemble, page=page)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    policy = CollectorPolicy(held_objects=server.held_objects)
    policy.recovering()
    try:
        ready = await server.start()
    except BaseException:
        policy.gave_up()
        raise
    try:
        _write_ready_files(options, ready)
        server.root_key_replaced = lambda ready, _: _rewrite_ready_files(options, ready)
        if announce is not None:
            announce(ready)
        async with asyncio.TaskGroup() as tasks:
            collector = tasks.create_task(_collect_garbage(policy))
            ended = tasks.create_task(server.wait_ended())
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            error = ended.result() if ended.done() else None
            for task in (collector, ended, stopped):
                task.cancel()
    finally:
        await server.stop()
    if error is not None:
        return _complain(
            f"stopped, nothing is acknowledged any more: {error}{_file_size_hint(error)}", EXIT_REFUSED
        )
    logger.info("stopped", extra={"event": "server.stopped", "namespace": options.namespace})
    return EXIT_DONE


async def _collect_garbage(policy: CollectorPolicy) -> None:
    policy.recovered()
    heap = system_heap(policy.collect)
    while True:
        for _ in range(COLLECTOR_TICKS_PER_HEAP_TICK):
            await asyncio.sleep(COLLECTOR_TICK_SECONDS)
            policy.tick()
        heap.tick()


def _write_ready_files(options: Options, ready: ReadyInfo) -> None:
    """On a full disk the broker serves without them: what is there must be receivable (B12)."""
    for file in ready_files(options):
        try:
            write_ready_file(file, ready)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            logger.error(
                "the ready file is not written: the disk has no room. The broker serves without it",
                extra={"event": "server.ready_file", "file": str(file), "error": error.strerror},
            )


def _rewrite_ready_files(options: Options, ready: ReadyInfo) -> None:
    """The root key was replaced while the broker serves: nothing that goes wrong here may stop it."""
    try:
        _write_ready_files(options, ready)
    except OSError as error:
        logger.error(
            "the ready file still has the root key that was replaced: `pairbus access connection-string` prints the new one",
            extra={"event": "server.ready_file", "file": str(error.filename), "error": error.strerror},
        )


def ready_files(options: Options) -> list[Path]:
    """The ready files to write: one in the data directory, and the one that the options name."""
    own = [] if options.store == MEMORY else [options.data / READY_FILE]
    return own if options.ready_file is None else [*own, options.ready_file]


def within_file_limit(options: Options, limit: int | None, each: int = 1) -> Options:
    """Options whose connections, with ``each`` so many descriptors, leave enough of them to the store; None: there is no limit."""
    wanted = options.limits.connections_max
    if limit is None or each * wanted + FILES_BESIDE_CONNECTIONS <= limit:
        return options
    connections_max = max(1, (limit - FILES_BESIDE_CONNECTIONS) // each, limit // (2 * each))
    if connections_max >= wanted:
        return options
    logger.warning(
        "fewer connections than asked for: the system allows too few file descriptors (raise `ulimit -n`)",
        extra={
            "event": "server.few_descriptors",
            "connections_max": connections_max,
            "asked_for": wanted,
            "descriptors": limit,
        },
    )
    return replace(options, limits=replace(options.limits, connections_max=connections_max))


def raise_file_limit(wanted: int) -> int | None:
    """Ask for as many file descriptors as connections may need; the system's own limit stays. How many there are now; None: any number."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    return None if soft == resource.RLIM_INFINITY else soft


def _explain(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}: {MORE_DESCRIPTORS}"
    if error.errno == errno.EFBIG:
        return f"{error.strerror}: {file_size_way_out()}"
    if error.errno == errno.EADDRINUSE:
        return f"{error.strerror}: another program listens there; choose another --amqp or --http address, or port 0"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{error.strerror}: that address is not one of this machine's"
    if error.errno == errno.EACCES and error.filename is None:
        return f"{error.strerror}: ports below 1024 need privileges; choose a higher one"
    return str(error)


def _way_out(cause: BaseException | None) -> str:
    """The way out to add to an error of the operating system; the store's own errors contain theirs."""
    if not isinstance(cause, OSError) or isinstance(cause, BlockingIOError):  # the last: it is in use
        return ""
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; free some space there, or name another directory with --data"
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        return f"; {MORE_DESCRIPTORS}"
    if cause.errno == errno.EFBIG:
        return f"; {file_size_way_out()}"
    return "; name a directory that can be written with --data"


def _file_size_hint(error: BaseException | None) -> str:
    """What to add to an error that the file size limit of the process led to; empty: it did not."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return f"; {file_size_way_out()}"
        error = error.__cause__ or error.__context__
    return ""


def _complain(line: str, code: int) -> int:
    print(f"pairbus: {line}", file=sys.stderr, flush=True)
    return code
