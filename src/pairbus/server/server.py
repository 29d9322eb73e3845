"""One served namespace: start, stop, kill. No signals and no global state, so it runs in any thread with a loop."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from pairbus import __version__
from pairbus.errors import UsageError
from pairbus.form import FORM
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.gateway.own_addresses import HEALTH, own_address
from pairbus.gateway.telemetry.exposition import Metric
from pairbus.model.access import ROOT_RULE
from pairbus.server.clock import BrokerClock, Clock, elapsed_ms, utc
from pairbus.server.committer import PendingOutput
from pairbus.server.config.addresses import format_address, parse_address
from pairbus.server.layers.http import problem
from pairbus.server.layers.tls import server_context
from pairbus.server.logs.usage import FLUSH_SECONDS, UsageLog
from pairbus.server.loop import Driver, DriverStatistics
from pairbus.server.metrics import server_metrics
from pairbus.server.ready import ReadyInfo, connection_string
from pairbus.server.sockets.registry import ConnectionRegistry, ListenerStatistics, is_loopback_only
from pairbus.storage.ports import StoreStatistics
from pairbus.storage.table.store import RESERVE_BYTES

if TYPE_CHECKING:
    from pairbus.model.access import AccessRule
    from pairbus.server.assemble import Assembly
    from pairbus.server.config.certificates import CertificateFiles
    from pairbus.server.config.options import Options

logger = logging.getLogger(__name__)

COMMIT_SECONDS_MAX: Final = 10.0
"""How long an orderly stop waits for the disk."""
DECLARE_SECONDS: Final = 10.0
"""How often declared entities are tried again that the disk had no room for."""
CLOSE_SECONDS_MAX: Final = 0.5
"""How long an orderly stop waits for clients to take their leave."""
CERTIFICATE_CHECK_SECONDS: Final = 86_400.0
FORCED: Final = "amqp:connection:forced"

Assemble = Callable[["Options", int], "Assembly"]
Page = Callable[[HttpRequest, int], HttpResponse | None]
"""Answers requests for pages; None leaves the request to the broker."""


class ClusterSeat(Protocol):
    """What a server needs of the node whose shard it serves; without one it is alone with its data directory."""

    def may_write(self) -> bool:
        """Whether output may be written at this instant."""

    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Where the node listens: for everything, and for HTTP and WebSocket alone. The node accepts, the server adopts."""

    def certificates(self) -> CertificateFiles:
        """The certificate that all nodes share."""

    def standing(self) -> dict[str, str]:
        """What ``/health`` adds: the role of this node, its name, the owner and the epoch."""

    def metrics(self) -> list[Metric]:
        """What the node counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Everything the server counts, in one snapshot."""

    listener: ListenerStatistics
    driver: DriverStatistics
    store: StoreStatistics


class Server:
    """Serves one namespace on the running loop.

    Args:
        options: How to serve.
        assemble: Builds broker and store; ``server.assemble`` has the real one.
        clock: Gives the instant; a test's own may stay at one instant (call ``wake`` after moving it).
        page: Serves pages beside the broker's own answers.
        seat: The node of a cluster that this server is part of; None: it serves alone.
    """

    def __init__(
        self,
        options: Options,
        *,
        assemble: Assemble,
        clock: Clock | None = None,
        page: Page | None = None,
        seat: ClusterSeat | None = None,
    ) -> None:
        self._options = options
        self._seat = seat
        self._clock: Clock = clock if clock is not None else BrokerClock()
        self._assemble = assemble
        self._page = page
        self._assembly: Assembly | None = None
        self._registry: ConnectionRegistry | None = None
        self._driver: Driver | None = None
        self._ready: ReadyInfo | None = None
        self._context: ssl.SSLContext | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._usage: UsageLog | None = None
        self._usage_timer: asyncio.TimerHandle | None = None
        self._declaration_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[Exception | None] | None = None
        self._is_stopping = False
        self._has_unfinished_logs = False
        """Everything is durable, and usage and audit are not written to their end."""
        self._root_key = ""
        self._rules_seen: tuple[AccessRule, ...] = ()
        self.root_key_replaced: Callable[[ReadyInfo, str], None] | None = None
        """Called once a new root key is durable, with ``ready`` as it is from now on and the key."""

    @property
    def ready(self) -> ReadyInfo:
        """Where it serves; after ``start``."""
        if self._ready is None:
            raise UsageError("the server has not started: await start() first")
        return self._ready

    async def start(self) -> ReadyInfo:
        """Recover, listen, serve. On any error nothing is left behind.

        Raises UsageError, StorageError or OSError (an address is taken).
        """
        self._ended = asyncio.get_running_loop().create_future()
        check_exposure(self._options)
        try:
            await self._begin()
        except BaseException:
            await self.kill()
            raise
        return self.ready

    async def stop(self) -> None:
        """Say good-bye to everybody, make everything durable, release everything. Idempotent."""
        await self.drain(CLOSE_SECONDS_MAX)
        if (
            self._has_unfinished_logs
        ):  # a node of a cluster drains first, and stops once the lease is given back
            self._has_unfinished_logs = False
            await self._finish_logs()
        await self.kill()

    async def drain(self, close_seconds_max: float, commit_seconds_max: float = COMMIT_SECONDS_MAX) -> bool:
        """Tell every client to connect again, wait for the last commit, and give clients so long to leave. False: it has ended before."""
        registry, driver = self._registry, self._driver
        if registry is None or driver is None or self._is_stopping or driver.is_failed:
            return False
        self._is_stopping = True
        logger.info("stopping", extra={"event": "server.stopping", "namespace": self._options.namespace})
        registry.stop_listening()
        registry.close_all(FORCED, "The broker is stopping; connect again in a moment.")
        driver.record_uses()
        driver.ask_turn()
        if not await driver.wait_durable(commit_seconds_max):
            logger.warning("the last commit did not end in time", extra={"event": "server.stop_slow"})
        await registry.wait_empty(close_seconds_max)
        self._has_unfinished_logs = True
        return True

    def adopt(
        self, transport: asyncio.Transport, first: bytes, *, http_only: bool, relayed_for: str | None
    ) -> None:
        """Serve a connection that somebody else has accepted.

        Args:
            transport: The connection.
            first: What was read of it.
            http_only: It came through the address for HTTP.
            relayed_for: The peer, if another node relays it.
        """
        if self._registry is None or self._driver is None or self._is_stopping:
            transport.abort()
            return
        self._registry.adopt(self._driver, transport, first, http_only=http_only, relayed_for=relayed_for)

    def cut_connections(self) -> None:
        """End every connection at once; new ones are welcome."""
        if self._registry is not None:
            self._registry.cut_all()

    def fail(self, error: Exception) -> None:
        """Acknowledge nothing any more; ``wait_ended`` returns the reason."""
        if self._driver is not None:
            self._driver.fail(error)

    async def _finish_logs(self) -> None:
        """Have the rest of usage and audit written; in a thread, for files take their time."""
        if self._usage is not None:
            self._usage.finish()
            await asyncio.get_running_loop().run_in_executor(None, self._usage.stop)
        if self._assembly is not None and self._assembly.message_audit is not None:
            audit = self._assembly.message_audit
            await asyncio.get_running_loop().run_in_executor(None, audit.finish)
            await asyncio.get_running_loop().run_in_executor(None, audit.stop)

    async def kill(self) -> None:
        """End at once: what is not durable is forgotten, as if the process had been killed. Idempotent."""
        self._is_stopping = True
        for timer in (self._renewal, self._usage_timer, self._declaration_timer):
            if timer is not None:
                timer.cancel()
        if self._registry is not None:
            self._registry.stop_listening()
            self._registry.cut_all()
        is_thread_gone = True
        if self._driver is not None:
            # A sync may take its time; other servers on this loop go on meanwhile.
            is_thread_gone = await asyncio.get_running_loop().run_in_executor(None, self._driver.stop)
        if self._registry is not None:
            await self._registry.wait_empty(CLOSE_SECONDS_MAX)
            self._registry.close()
        if self._usage is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._usage.stop)
        if self._assembly is not None and is_thread_gone:
            self._assembly.close()
        self._registry = self._driver = self._assembly = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def wait_ended(self) -> Exception | None:
        """Wait until the server has stopped (None) or can serve no more (why)."""
        if self._ended is None:
            raise UsageError("the server has not started: await start() first")
        return await asyncio.shield(self._ended)

    def wake(self) -> None:
        """Look at the clock again; from any thread."""
        if self._driver is not None:
            self._driver.wake()

    def statistics(self) -> ServerStatistics:
        """A snapshot for metrics, pages and tests."""
        if self._registry is None or self._driver is None or self._assembly is None:
            raise UsageError("the server is not running")
        return ServerStatistics(
            listener=self._registry.statistics(),
            driver=self._driver.statistics(),
            store=self._assembly.store.statistics(),
        )

    def commit_waits_ms(self) -> int:
        """For how long the commit under way has waited: no answer that depends on it was written in that time."""
        return self._driver.commit_waits_ms() if self._driver is not None else 0

    def held_objects(self) -> int:
        """About how many objects what is stored takes in memory; 0 while it does not run."""
        return self._assembly.broker.namespace.held_objects() if self._assembly is not None else 0

    # Start.

    async def _begin(self) -> None:
        options = self._options
        # The store first: it locks the data directory, and who does not hold the lock writes nothing there (B69).
        self._assembly = assembly = self._assemble(options, self._clock())
        assembly.broker.server_metrics = self._metrics
        if isinstance(self._clock, BrokerClock):
            assembly.broker.follow_wall_clock(self._clock)
            assembly.broker.steady_ms = self._clock.steady_ms
        else:
            # The messages' time may be a test's own; a peer's silence is real.
            assembly.broker.steady_ms = elapsed_ms
        files = self._certificates() if options.tls else None
        self._context = context = _context(files) if files is not None else None
        self._registry = registry = ConnectionRegistry(assembly.broker, options.limits, self._answer, context)
        self._driver = driver = self._make_driver(assembly, registry)
        self._start_logs(assembly)
        if assembly.declare_rest is not None:
            self._arm_declaration(assembly.declare_rest)
        driver.start()
        # The root key and declared entities are durable before anybody can connect.
        if not await driver.wait_durable(COMMIT_SECONDS_MAX) or driver.is_failed:
            raise await self._why_failed()
        (host, port), http = await self._open_addresses(registry, driver)
        ca_file = files.ca_file if files is not None else None
        if context is not None and ca_file is not None:
            self._arm_renewal(context)
        self._root_key = assembly.root_key
        self._ready = ReadyInfo(
            namespace=options.namespace,
            pid=os.getpid(),
            amqp=format_address(host, port),
            http=format_address(*http),
            connection_string=connection_string(host, port, options.namespace, assembly.root_key),
            ca_file=ca_file,
        )
        logger.info(
            "serving",
            extra={
                "event": "server.ready",
                "namespace": options.namespace,
                "amqp": self._ready.amqp,
                "http": self._ready.http,
                "records": assembly.records_replayed,
                "data": str(options.data),
                "form": str(FORM),
            },
        )

    def _make_driver(self, assembly: Assembly, registry: ConnectionRegistry) -> Driver:
        options, seat = self._options, self._seat
        return Driver(
            assembly.broker,
            assembly.store,
            self._clock,
            outputs=self._outputs,
            set_reading=registry.set_reading,
            failed=self._fail,
            # When a database turns out to be full, what is under way must fit into half of the reserve.
            uncommitted_bytes_max=min(options.limits.uncommitted_bytes_max, RESERVE_BYTES // 2)
            if seat is not None
            else options.limits.uncommitted_bytes_max,
            name=options.namespace,
            may_write=seat.may_write if seat is not None else None,
            commits_inline=seat is None,
            # A commit in a database takes long beside what the loop does meanwhile: it should not wait for the end of a slice.
            hurry=registry.turns.interrupt if seat is not None else None,
        )

    def _start_logs(self, assembly: Assembly) -> None:
        if assembly.meter is not None and assembly.usage_writer is not None:
            self._usage = UsageLog(assembly.meter.take, self._clock, assembly.usage_writer)
            self._usage.start()
            self._arm_usage()
        if assembly.message_audit is not None:
            assembly.message_audit.start()

    async def _open_addresses(
        self, registry: ConnectionRegistry, driver: Driver
    ) -> tuple[tuple[str, int], tuple[str, int]]:
        """Listen, unless the node does that. Returns the addresses of AMQP and of HTTP."""
        options = self._options
        if self._seat is not None:
            return self._seat.addresses()
        amqp = await registry.listen(driver, *options.amqp, http_only=False)
        if options.http is None:
            return amqp, amqp
        return amqp, await registry.listen(driver, *options.http, http_only=True)

    async def _why_failed(self) -> Exception:
        if self._ended is not None and self._ended.done():
            error = await self._ended
            if error is not None:
                return error
        return UsageError(f"the store did not take the first commit within {COMMIT_SECONDS_MAX:g} s")

    def _certificates(self) -> CertificateFiles:
        # Heavy, and not needed to print a help text.
        from pairbus.server.config.certificates import CertificateFiles, ensure_certificates

        options = self._options
        if options.tls_cert is not None and options.tls_key is not None:
            return CertificateFiles(certificate_file=options.tls_cert, key_file=options.tls_key, ca_file=None)
        if self._seat is not None:
            return self._seat.certificates()
        host_name = socket.gethostname()
        names = [name for name in (host_name, *options.tls_names) if name]
        try:
            return ensure_certificates(options.data / "tls", names, utc(self._clock()))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise UsageError(
                f"{options.data} cannot hold the broker's files: {error.strerror}; choose another --data directory"
            ) from error

    def _arm_renewal(self, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        self._renewal = loop.call_later(CERTIFICATE_CHECK_SECONDS, self._renew, context)

    def _renew(self, context: ssl.SSLContext) -> None:
        """Once a day: a certificate about to end is replaced, and new connections are served with the new one."""
        self._load_certificate(context)
        self._arm_renewal(context)

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            files = self._certificates()
            context.load_cert_chain(files.certificate_file, files.key_file)
        except (UsageError, OSError) as error:
            logger.error(
                "certificate not renewed", extra={"event": "tls.renewal_failed", "error": str(error)}
            )

    # While it serves.

    def _outputs(self) -> list[PendingOutput]:
        assert self._registry is not None, "there is output while the server runs"
        outputs = self._new_root_key() + self._registry.gateway_output() + self._registry.http_output()
        return outputs if self._usage is None else outputs + self._usage.take_output()

    def _new_root_key(self) -> list[PendingOutput]:
        """What is to be done once a new root key is durable, before anybody hears of it: the ready file must hold the key that works."""
        if self._assembly is None or self._ready is None:
            return []
        rules = self._assembly.broker.namespace.access_rules
        if rules is self._rules_seen:
            return []
        self._rules_seen = rules
        key = next((rule.primary_key for rule in rules if rule.name == ROOT_RULE), self._root_key)
        if key == self._root_key:
            return []
        self._root_key = key
        host, port = parse_address(self._ready.amqp, "")
        text = connection_string(host, port, self._options.namespace, key)
        self._ready = replace(self._ready, connection_string=text)
        return [PendingOutput(_RootKeyNotice(self, key), [], False)]

    def _arm_usage(self) -> None:
        self._usage_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._ask_usage)

    def _ask_usage(self) -> None:
        if self._usage is not None and self._driver is not None:
            self._usage.ask()
            self._driver.ask_turn()
        if self._assembly is not None and self._assembly.audit is not None:
            self._assembly.audit.flush()
        self._arm_usage()

    def _arm_declaration(self, declare: Callable[[int], bool]) -> None:
        self._declaration_timer = asyncio.get_running_loop().call_later(
            DECLARE_SECONDS, self._declare, declare
        )

    def _declare(self, declare: Callable[[int], bool]) -> None:
        """Make what was declared, now that there may be room on the disk."""
        if self._driver is None or self._driver.is_failed or self._is_stopping:
            return
        try:
            is_declared = declare(self._clock())
        except UsageError as error:
            logger.error(
                "declared entities were not made; mend the configuration and restart",
                extra={"event": "server.undeclared", "error": str(error)},
            )
            is_declared = True
        else:
            if is_declared:
                logger.info(
                    "the declared entities that the disk had no room for are made",
                    extra={"event": "server.declared"},
                )
        self._driver.ask_turn()
        if not is_declared:
            self._arm_declaration(declare)

    def _fail(self, error: Exception) -> None:
        """Nothing is acknowledged any more (B11): everybody is cut off, and ``wait_ended`` returns the reason."""
        logger.error(
            "nothing is acknowledged any more",
            extra={"event": "server.failed", "namespace": self._options.namespace, "error": str(error)},
        )
        if self._registry is not None:
            self._registry.stop_listening()
            self._registry.cut_all()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(error)

    def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            return self._answer_or_raise(request)
        except Exception:
            logger.exception("request broke", extra={"event": "http.broke", "method": request.method})
            return problem(
                HTTPStatus.INTERNAL_SERVER_ERROR, "the broker met a fault of its own; its log has more"
            )

    def _answer_or_raise(self, request: HttpRequest) -> HttpResponse:
        assert self._assembly is not None, "requests come while the server runs"
        if own_address(request.method, request.target) == HEALTH:
            return self._health()
        now = self._clock()
        if self._page is not None and (page := self._page(request, now)) is not None:
            return page
        return self._assembly.broker.http(request, now)

    def _health(self) -> HttpResponse:
        is_healthy = self._driver is not None and not self._driver.is_failed and not self._is_stopping
        body = {
            "status": "healthy" if is_healthy else "unhealthy",
            "namespace": self._options.namespace,
            "version": __version__,
            "form": FORM.name,
            "compiled": list(FORM.parts),
            **(self._seat.standing() if self._seat is not None else {}),
        }
        status = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
        headers = [("content-type", "application/json"), ("cache-control", "no-store")]
        return HttpResponse(status, headers, json.dumps(body).encode() + b"\n")

    def _metrics(self) -> list[Metric]:
        counts = self.statistics()
        own = server_metrics(
            self._options.namespace, __version__, counts.listener, counts.driver, counts.store
        )
        return own if self._seat is None else own + self._seat.metrics()

    def renew_certificate(self) -> None:
        """Serve new connections with the certificate as it is now: another node may have joined with a new name."""
        if self._context is not None:
            self._load_certificate(self._context)


class _RootKeyNotice:
    """Tells that a new root key is durable."""

    def __init__(self, server: Server, key: str) -> None:
        self._server = server
        self._key = key

    def write(self, chunks: list[bytes], closes: bool) -> None:  # noqa: ARG002
        """See ``OutputSink``."""
        if self._server.root_key_replaced is not None:
            self._server.root_key_replaced(self._server.ready, self._key)


def check_exposure(options: Options) -> None:
    """Refuse to listen beyond this machine without TLS (M14); the broker's own authority counts as TLS."""
    if options.tls_cert is not None and options.tls_key is not None:
        for option, file in (("--tls-cert", options.tls_cert), ("--tls-key", options.tls_key)):
            if not os.access(file, os.R_OK):
                raise UsageError(f"{option} {file} cannot be read")
    if options.tls:
        return
    for host, port in (options.amqp, options.http or options.amqp):
        if not is_loopback_only(host):
            raise UsageError(
                f"{format_address(host, port)} can be reached from other machines, which needs TLS: leave out --no-tls "
                "or listen on 127.0.0.1"
            )


def _context(files: CertificateFiles) -> ssl.SSLContext:
    try:
        return server_context(files.certificate_file, files.key_file)
    except ssl.SSLError as error:
        raise UsageError(
            f"{files.certificate_file} and {files.key_file} do not make a certificate and its key: "
            f"{error.reason or 'they are not in PEM format'}"
        ) from error
