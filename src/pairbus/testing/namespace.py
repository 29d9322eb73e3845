"""One namespace for a test: started on entry, gone on exit."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pairbus.errors import BrokerNotReady, UsageError
from pairbus.local.hosts import Host, ProcessHost, Setup
from pairbus.local.management import ManagementClient
from pairbus.testing.checks import check_flag, check_optional, check_path, check_text
from pairbus.testing.clock import VirtualClock
from pairbus.testing.entities import Queue, Topic, configuration
from pairbus.testing.faults import FaultSwitchboard

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from azure.servicebus import ServiceBusClient
    from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
    from azure.servicebus.management import ServiceBusAdministrationClient

    from pairbus.server.ready import ReadyInfo

API_VERSION: Final = "api-version=2021-05"


class Namespace:
    """A real broker with one namespace, for a test: ``with Namespace("contoso", queues=["orders"]) as namespace:``.

    By default it runs in a thread of this process, which is quick to start. As a process of its own
    (``process=True``) it can be paused, and a kill is a real one. It listens on a free port of the loopback, and needs no network.

    Args:
        name: The namespace's name.
        process: Run ``pairbus serve`` as a child process.
        queues: Queues that exist from the start, by name or as ``Queue``.
        topics: Topics that exist from the start, by name or as ``Topic`` with its subscriptions and rules.
        config: More of the namespace in the form of the emulator's configuration, or a whole ``Config.json``.
        data: The data directory; a temporary one, deleted on exit, unless given.
        faults: Whether the fault switchboard is on.
        clock: A virtual clock to run on; only in a thread.
        amqp: Where to listen; a free port of the loopback unless given. A restart keeps the port.
        audit: Whether it writes the audit log of messages, for ``pairbus reconcile``.

    Raises:
        UsageError: An argument can never work; the text names it.
    """

    def __init__(
        self,
        name: str = "local",
        *,
        process: bool = False,
        queues: Sequence[str | Queue] = (),
        topics: Sequence[str | Topic] = (),
        config: Mapping[str, object] | None = None,
        data: str | os.PathLike[str] | None = None,
        faults: bool = True,
        clock: VirtualClock | None = None,
        amqp: str = "127.0.0.1:0",
        audit: bool = False,
    ) -> None:
        check_text("name", name, "give the namespace's name")
        check_flag("process", process)
        check_flag("faults", faults)
        check_flag("audit", audit)
        check_optional("clock", clock, VirtualClock, "give a VirtualClock, or None for the real time")
        check_text("amqp", amqp, "give the address to listen at, such as '127.0.0.1:0'")
        check_path("data", data)
        if process and clock is not None:
            raise UsageError(
                "a virtual clock cannot reach into another process: leave out process=True or clock"
            )
        self.name = name
        self._host: Host = ProcessHost() if process else _thread_host(clock)
        self._configuration = configuration(name, queues, topics, config)
        self._data = None if data is None else Path(data)
        self._faults_are_on = faults
        self._amqp = amqp
        self._audit_is_on = audit
        self._http = "127.0.0.1:0"
        self._work: Path | None = None
        self._ready: ReadyInfo | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker and wait until it serves. ``with`` calls it.

        Raises:
            UsageError: It runs already.
            BrokerNotReady: The broker ended, or does not serve in time. The text has the end of its log.
        """
        if self._ready is not None:
            raise UsageError(f"namespace {self.name} runs already: stop() or restart() it")
        if self._work is None:
            self._work = Path(tempfile.mkdtemp(prefix="pairbus-"))
        config = self._work / "config.json"
        config.write_text(json.dumps(self._configuration))
        setup = Setup(
            namespace=self.name,
            data=self.data,
            work=self._work,
            config=config,
            amqp=self._amqp,
            http=self._http,
            faults=self._faults_are_on,
            audit=self._audit_is_on,
        )
        self._ready = self._host.start(setup)
        # A restarted broker must be found where its clients left it.
        self._amqp, self._http = self._ready.amqp, self._ready.http
        return self

    def stop(self) -> None:
        """End the broker in order (SIGTERM for a process). The data stays, and ``start`` serves it again."""
        self._ready = None
        self._host.stop()

    def kill(self) -> None:
        """End the broker with no chance to clean up (SIGKILL for a process). What was durable stays.

        In a thread, what was not durable is forgotten all the same.
        """
        self._ready = None
        self._host.kill()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP): connections stay open and nobody answers.

        Raises:
            UsageError: The broker runs in a thread; make it with ``process=True``.
        """
        self._process_host("pause").pause()

    def resume(self) -> None:
        """Let a paused broker go on (SIGCONT). Its clients continue where they were.

        Raises:
            UsageError: The broker runs in a thread.
        """
        self._process_host("resume").resume()

    def restart(self) -> Self:
        """Start again with the same data on the same port, after an orderly stop if it still runs.

        Raises:
            BrokerNotReady: The broker ended, or does not serve in time.
        """
        if self._ready is not None:
            self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the broker and delete its temporary files. The end of ``with`` calls it."""
        try:
            self.stop()
        finally:
            if self._work is not None:
                shutil.rmtree(self._work, ignore_errors=True)
                self._work = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- addresses --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        where = f"serving {self._ready.amqp}" if self._ready is not None else "not running"
        return f"<Namespace {self.name}: {where}>"

    @property
    def is_running(self) -> bool:
        """Whether the broker was started and not ended since, by this object."""
        return self._ready is not None

    @property
    def connection_string(self) -> str:
        """The connection string to give to a program. Its key may do everything.

        Raises:
            BrokerNotReady: The broker is not running; the same for the other addresses.
        """
        return self._running().connection_string

    @property
    def amqp_address(self) -> str:
        """``host:port`` of the address that takes AMQP, TLS, WebSockets and HTTP."""
        return self._running().amqp

    @property
    def http_address(self) -> str:
        """``host:port`` of the address that serves HTTP and WebSocket only."""
        return self._running().http

    @property
    def ca_file(self) -> str:
        """The file of the certificate authority to trust when a client uses TLS."""
        ca_file = self._running().ca_file
        assert ca_file is not None, "the kit's brokers make their own certificates"
        return ca_file

    @property
    def pid(self) -> int:
        """The process id of the broker; in a thread, that of this process."""
        return self._running().pid

    @property
    def data(self) -> Path:
        """The data directory of the broker.

        Raises:
            BrokerNotReady: There is none: the broker was not started, or is closed.
        """
        if self._data is not None:
            return self._data
        if self._work is None:
            raise BrokerNotReady(
                f"namespace {self.name} has no data: it was not started, or is closed; start() it first"
            )
        return self._work / "data"

    @property
    def log(self) -> str:
        """What a broker in a process of its own has printed so far.

        Raises:
            UsageError: The broker runs in a thread.
        """
        self._process_host("log")
        assert self._work is not None
        return (self._work / "broker.log").read_text(errors="replace")

    # --- work -------------------------------------------------------------------------------------

    @property
    def faults(self) -> FaultSwitchboard:
        """The switchboard that makes this broker refuse, delay or cut: ``namespace.faults.throttle("orders")``."""
        return FaultSwitchboard(self._management())

    def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue through the management API.

        Args:
            name: Its name.
            settings: As for ``Queue``: ``requires_session=True`` and so on.

        Raises:
            ManagementFailed: The broker refused, for instance because the queue exists.
        """
        queue = Queue(name, **settings)
        path = f"/{quote(name, safe='')}?{API_VERSION}"
        self._management().request(
            "PUT", path, queue.entry(), "application/atom+xml;type=entry;charset=utf-8"
        )
        return queue

    def client(self, **options: Any) -> ServiceBusClient:
        """Return an official client for this broker, with the root key.

        Args:
            options: Passed to ``ServiceBusClient.from_connection_string``. ``retry_total=0`` makes errors quick.
        """
        from azure.servicebus import ServiceBusClient

        return ServiceBusClient.from_connection_string(self.connection_string, **options)

    def aio_client(self, **options: Any) -> AsyncServiceBusClient:
        """Return an official asynchronous client for this broker, with the root key.

        Args:
            options: Passed to ``azure.servicebus.aio.ServiceBusClient.from_connection_string``.
        """
        from azure.servicebus.aio import ServiceBusClient

        return ServiceBusClient.from_connection_string(self.connection_string, **options)

    def administration_client(self, **options: Any) -> ServiceBusAdministrationClient:
        """Return an official administration client for this broker. It always uses HTTPS, and trusts this broker's own authority.

        Args:
            options: Passed to ``ServiceBusAdministrationClient.from_connection_string``.
        """
        from azure.servicebus.management import ServiceBusAdministrationClient

        options.setdefault("connection_verify", self.ca_file)
        options.setdefault("use_env_settings", False)  # a proxy does not lead to this machine
        return ServiceBusAdministrationClient.from_connection_string(self.connection_string, **options)

    def _management(self) -> ManagementClient:
        ready = self._running()
        return ManagementClient(ready.http, ready.connection_string)

    def _running(self) -> ReadyInfo:
        if self._ready is None:
            raise BrokerNotReady(f"namespace {self.name} is down: start() or restart() it first")
        return self._ready

    def _process_host(self, wanted: str) -> ProcessHost:
        if not isinstance(self._host, ProcessHost):
            raise UsageError(
                f"{wanted} needs a broker in a process of its own: Namespace({self.name!r}, process=True)"
            )
        return self._host


def _thread_host(clock: VirtualClock | None) -> Host:
    from pairbus.testing.thread import ThreadHost

    return ThreadHost(clock)
