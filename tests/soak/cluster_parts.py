"""The parts of the cluster soak: ways that can be cut, a front that records, a database with a standby, nodes that are started again."""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from azure.servicebus import ServiceBusClient

from tests.integration.cluster.kit import Cluster, NodeProcess
from tests.postgres_kit import ADMINISTRATOR, STANDBY, PostgresServer, new_server
from tests.soak.kill_history import Operation
from tests.soak.kill_load import Yard
from tests.soak.ways import CHUNK_BYTES, CONNECT_SECONDS_MAX, NamespaceWays, NodeWays
from tests.waiting import wait_until

DATABASE: Final = "pairbus"
RESTART_SECONDS: Final = 0.2
"""How long a node that has ended stays down."""
EXIT_KILLED: Final = -9
EXIT_STORE: Final = 3
EXIT_FENCED: Final = 4
DETECTION_SECONDS: Final = 0.5
"""How long it takes until a dead primary is noticed and its standby is promoted."""


class Relayed:
    """One connection of a client through the front."""

    __slots__ = ("last_at", "node", "opened_at")

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.opened_at = time.monotonic()
        self.last_at = 0.0
        """When the node last sent something."""


class Front:
    """The one address of the cluster: a connection goes to any node that accepts it. Records when nodes send (S4)."""

    def __init__(self, nodes: list[NodeProcess], seed: int) -> None:
        self._nodes = nodes
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self.connections: list[Relayed] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def sent_after(self, node: NodeProcess, opened_before: float, after: float) -> int:
        """On how many connections that a node had at an instant it has sent something after another."""
        with self._lock:
            return sum(
                one.node is node and one.opened_at < opened_before and one.last_at > after
                for one in self.connections
            )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        nodes = list(self._nodes)
        self._chance.shuffle(nodes)
        for node in nodes:
            try:
                server = socket.create_connection(("127.0.0.1", node.port), CONNECT_SECONDS_MAX)
            except OSError:
                continue
            self._forward(client, server, node)
            return
        client.close()

    def _forward(self, client: socket.socket, server: socket.socket, node: NodeProcess) -> None:
        record = Relayed(node)
        with self._lock:
            self.connections.append(record)
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            for one in (client, server):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(one, selectors.EVENT_READ)
            is_open = True
            while is_open:
                for key, _ in selector.select():
                    is_answer = key.fileobj is server
                    data = (server if is_answer else client).recv(CHUNK_BYTES)
                    if not data:
                        is_open = False
                        break
                    if is_answer:
                        record.last_at = time.monotonic()
                    (client if is_answer else server).sendall(data)
        client.close()
        server.close()


class DatabasePair:
    """A primary and its synchronous standby. Whoever is killed comes back as a standby."""

    def __init__(self, nodes: int, *, uses_namespaces: bool = False) -> None:
        primary = new_server(tcp=True)
        primary.new_database(DATABASE)
        self.primary: PostgresServer = primary
        self.standby: PostgresServer | None = primary.add_standby()
        self.ways = [NamespaceWays(one) if uses_namespaces else NodeWays() for one in range(nodes)]
        """Of each node to the two places at which a server may be."""
        self._places: list[PostgresServer | None] = [self.primary, self.standby]
        self._lead()

    def url(self, node: int) -> str:
        """What a node is given: both places, over its own ways."""
        return f"postgresql://{ADMINISTRATOR}@{self.ways[node].hosts()}/{DATABASE}?connect_timeout=2"

    def _lead(self) -> None:
        for ways in self.ways:
            ways.lead(*(0 if server is None else server.port for server in self._places))

    def owner(self) -> tuple[int, str]:
        """Epoch and name of the owner."""
        row = self.primary.run("select epoch, owner from pairbus_shard", DATABASE)[0]
        return int(row[0]), str(row[1])

    def fail_over(self, former: PostgresServer) -> None:
        """Promote the standby in place of a primary that is dead or cut off, and give it a standby of its own."""
        time.sleep(DETECTION_SECONDS)
        promoted = self.standby
        assert promoted is not None, "there is a standby to promote"
        promoted.promote()
        self.primary, self.standby = promoted, None
        place = self._places.index(former)
        self._places[place] = None
        self._lead()

    def add_standby(self) -> None:
        """Make a new copy and let commits wait for it."""
        if self.standby is not None:
            return
        self.standby = self.primary.add_standby()
        self._places[self._places.index(None)] = self.standby
        self._lead()

    def restart_primary(self) -> None:
        self.primary.kill()
        self.primary.start()

    def wait_streaming(self) -> None:
        """Wait until the standby has everything: only then may the primary be lost."""
        wait_until(
            lambda: self.primary._followers(STANDBY) == 1,
            "the standby follows",
        )

    def dispose(self) -> None:
        for ways in self.ways:
            ways.close()
        for server in self._places:
            if server is not None:
                server.dispose()


class Addressed(Protocol):
    """A database that each node reaches in its own way."""

    def url(self, node: int) -> str: ...


class Nodes:
    """The nodes, started again whenever one has ended."""

    def __init__(self, directory: Path, database: Addressed, count: int, entities: dict[str, Any]) -> None:
        self.all: list[NodeProcess] = []
        self.exits: list[tuple[str, str]] = []
        """Ends that nothing explains: which node, its exit code and its last line."""
        self.unreached = 0
        """Starts that found no database."""
        self.fenced = 0
        self._is_over = threading.Event()
        for number in range(count):
            cluster = Cluster(
                directory / f"node-{number}", database.url(number), f"node-{number}", namespace="contoso"
            )
            cluster.config.write_text(json.dumps(entities))
            self.all.append(cluster.nodes[0])
        for node in self.all:
            node.begin()
        for node in self.all:
            node.await_ready()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def named(self, name: str) -> NodeProcess:
        return next(node for node in self.all if node.name == name)

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            for node in self.all:
                if not node.is_running:
                    self._ended(node)

    def _ended(self, node: NodeProcess) -> None:
        code = node.wait()
        if code == EXIT_FENCED:
            self.fenced += 1
        elif code != EXIT_KILLED:
            last = (node.log().splitlines() or [""])[-1]
            if code == EXIT_STORE and ("cannot be reached" in last or "was lost" in last):
                self.unreached += 1
            else:
                self.exits.append((node.name, f"code {code}: {last[:400]}"))
        self._is_over.wait(RESTART_SECONDS)
        if not self._is_over.is_set():
            node.begin()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        for node in self.all:
            node.kill()


class ClusterYard(Yard):
    """As ``Yard``; the end of each client is written down too, for its locks may end with it."""

    @contextlib.contextmanager
    def client(self) -> Iterator[ServiceBusClient]:  # type: ignore[override]
        try:
            with ServiceBusClient.from_connection_string(self.connection_string, retry_total=0) as client:
                yield client
        finally:
            self.history.add(Operation.KILL, self.history.now(), actor="client")
