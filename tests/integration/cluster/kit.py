"""Clusters for tests: real processes of ``pairbus serve`` over a real PostgreSQL, and clients that keep records."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.waiting import wait_until

LEASE_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 90.0
LOCK_SECONDS: Final = 5.0
QUEUE: Final = "orders"
QUEUES: Final = (QUEUE, "later")


class NodeProcess:
    """One node."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._directory = cluster.directory / name
        self._directory.mkdir(exist_ok=True)
        self._log = self._directory / "log"
        self._port = 0
        self._options: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    def listen(self, port: int, *options: str) -> None:
        """Before it is started: where it listens, and options of its own."""
        self._port, self._options = port, options

    def begin(self) -> None:
        """Start the process; ``await_ready`` comes later, so that several start together."""
        file = self._directory / "ready"
        file.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "pairbus", "serve", "--store", self._cluster.url, "--namespace", self._cluster.namespace,
            "--node", self.name, "--amqp", f"127.0.0.1:{self._port}", "--http", "off", "--lease", str(LEASE_SECONDS),
            "--data", str(self._directory / "data"), "--ready-file", str(file), "--log-format", "json",
            "--config", str(self._cluster.config), *self._cluster.options, *self._options,
        ]  # fmt: skip
        if self._cluster.descriptors:
            command = ["sh", "-c", f'ulimit -n {self._cluster.descriptors} && exec "$@"', "sh", *command]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)

    def await_ready(self) -> None:
        file = self._directory / "ready"
        wait_until(lambda: file.exists() or not self.is_running, f"{self.name} ready")
        assert self.is_running, self.log()
        self.ready = json.loads(file.read_text())
        # The same port after a restart: clients know no other.
        self._port = int(self.ready["amqp"].rpartition(":")[2])

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def connection_string(self) -> str:
        return str(self.ready["connection_string"])

    @property
    def port(self) -> int:
        return self._port

    def log(self) -> str:
        return self._log.read_text()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def health(self) -> dict[str, Any]:
        """What it answers to ``/health``; empty: nothing."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        except OSError:
            return {}
        return found

    def metric(self, name: str) -> float:
        """One value of ``/health/metrics``; its labels are part of the name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)

    def relayed(self) -> int:
        """How many connections this node has relayed."""
        return int(self.metric("pairbus_cluster_relayed_connections_total"))

    @property
    def role(self) -> str:
        return str(self.health().get("role", "")) if self.is_running else ""

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(WAIT_SECONDS)


class Cluster:
    """Some nodes over one database."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        directory: Path,
        url: str,
        *names: str,
        namespace: str = "contoso",
        options: tuple[str, ...] = (),
        descriptors: int = 0,
    ) -> None:
        """``options``: further ones of ``pairbus serve``; ``descriptors``: how many files a node may open, 0: as many as this process."""
        self.descriptors = descriptors
        self.directory = directory
        self.options = options
        directory.mkdir(exist_ok=True)
        self.url = url
        self.namespace = namespace
        self.config = directory / "Config.json"
        queues = [{"Name": name, "Properties": {"LockDuration": f"PT{LOCK_SECONDS:g}S"}} for name in QUEUES]
        self.config.write_text(
            json.dumps({"UserConfig": {"Namespaces": [{"Name": namespace, "Queues": queues}]}})
        )
        self.nodes = [NodeProcess(self, name) for name in names]

    def begin(self) -> None:
        """Start the nodes that do not run, without waiting for them."""
        for node in self.nodes:
            if not node.is_running:
                node.begin()

    def start(self) -> None:
        """Start the nodes that do not run, and wait until all are ready."""
        self.begin()
        for node in self.nodes:
            node.await_ready()
        self.await_owner()

    def await_owner(self, *, but: NodeProcess | None = None) -> NodeProcess:
        found: list[NodeProcess] = []

        def is_owned() -> bool:
            found[:] = [node for node in self.nodes if node is not but and node.role == "owner"]
            return bool(found)

        wait_until(
            is_owned, f"an owner of {self.namespace}:\n" + "\n".join(node.log() for node in self.nodes)
        )
        return found[0]

    def owner_and_other(self) -> tuple[NodeProcess, NodeProcess]:
        owner = self.await_owner()
        other = next(node for node in self.nodes if node is not owner)
        wait_until(lambda: other.role == "relay", f"{other.name} relays")
        return owner, other

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


class Load:
    """Senders and receivers of the official SDK, and a record of everything that they were told.

    Args:
        connection_string: Of the node that they use.
        queue: Where they send and receive.
    """

    def __init__(self, connection_string: str, queue: str = QUEUE, *, receivers: int = 2) -> None:
        self._connection_string = connection_string
        self._queue = queue
        self._stop = threading.Event()
        self._stop_sending = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: list[tuple[float, str]] = []
        """When the broker has accepted which message."""
        self.received: list[tuple[float, str, int, str, int]] = []
        """When, which message, its sequence number, which receiver, its delivery count."""
        self.completed: dict[str, float] = {}
        self.unanswered: set[str] = set()
        """Messages that a receiver wanted to complete without learning the outcome: they may be completed."""
        self.released: dict[tuple[str, int], float] = {}
        """When a receiver gave a delivery up, or settled it."""
        self.errors: list[str] = []
        self._senders = [threading.Thread(target=self._send, args=(0,))]
        self._receivers = [threading.Thread(target=self._receive, args=(f"r{n}",)) for n in range(receivers)]

    def start(self) -> None:
        for thread in (*self._senders, *self._receivers):
            thread.start()

    def stop_sending(self) -> None:
        self._stop_sending.set()
        for thread in self._senders:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def stop(self) -> None:
        self._stop_sending.set()
        self._stop.set()
        for thread in (*self._senders, *self._receivers):
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def await_all_completed(self) -> None:
        """After ``stop_sending``: everything that was acknowledged has been received and completed."""
        wait_until(lambda: not self._missing(), "every acknowledged message completed")

    def _missing(self) -> set[str]:
        with self._lock:
            return {name for _, name in self.acknowledged} - set(self.completed) - self.unanswered

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(
            self._connection_string, retry_total=0, retry_backoff_factor=0.05
        )

    def _send(self, number: int) -> None:
        names = itertools.count()
        while not self._stop_sending.is_set():
            try:
                with self._client() as client, client.get_queue_sender(self._queue) as sender:
                    while not self._stop_sending.is_set():
                        batch = [f"m{number}-{next(names)}" for _ in range(5)]
                        sender.send_messages([ServiceBusMessage(name, message_id=name) for name in batch])
                        now = time.monotonic()
                        with self._lock:
                            self.acknowledged += [(now, name) for name in batch]
                        time.sleep(0.005)
            except (ServiceBusError, OSError, ValueError) as error:
                self.errors.append(f"send: {error}")
                time.sleep(0.02)

    def _receive(self, receiver_name: str) -> None:
        while not self._stop.is_set():
            try:
                with self._client() as client, client.get_queue_receiver(self._queue) as receiver:
                    while not self._stop.is_set():
                        for message in receiver.receive_messages(10, max_wait_time=0.2):
                            self._take(receiver_name, receiver, message)
            except (ServiceBusError, OSError, ValueError) as error:
                self.errors.append(f"receive: {error}")
                time.sleep(0.02)

    def _take(self, receiver_name: str, receiver: Any, message: Any) -> None:
        name = str(message.message_id)
        with self._lock:
            place = len(self.received)
            self.received.append(
                (time.monotonic(), name, message.sequence_number, receiver_name, message.delivery_count)
            )
        try:
            receiver.complete_message(message)
            with self._lock:
                self.completed[name] = time.monotonic()
        except Exception:
            with self._lock:
                self.unanswered.add(name)
            raise
        finally:
            self.released[name, place] = time.monotonic()

    def silence(self, since: float) -> float:
        """The longest time between two acknowledgements after an instant."""
        with self._lock:
            instants = [since, *(at for at, _ in self.acknowledged if at >= since)]
        return max((after - before for before, after in itertools.pairwise(instants)), default=0.0)

    def check(self, interruptions: list[float]) -> None:
        """Nothing acknowledged is lost, no number is given twice, nothing completed comes back, and nobody holds what another holds.

        Args:
            interruptions: Instants at which the owner changed: locks end there.
        """
        assert self._missing() == set()
        numbers: dict[int, str] = {}
        last: dict[str, tuple[int, float, int]] = {}
        for place, (at, name, number, _, _) in enumerate(self.received):
            assert numbers.setdefault(number, name) == name, f"number {number} was given twice"
            if name in last:
                before_place, before_at, before_number = last[name]
                assert number == before_number, f"{name} has two numbers: it was sent once and stored twice"
                assert any(before_at <= end <= at for end in interruptions) or (
                    min(self.released.get((name, before_place), at + 1), before_at + LOCK_SECONDS - 0.5) <= at
                ), f"{name} is in two hands"
                assert self.completed.get(name, at) >= at, f"{name} was completed and came back"
            last[name] = (place, at, number)


class Recorder:
    """Stands between clients and a node, and records when the node sent how many bytes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sent: list[tuple[float, int]] = []
        """Instant and number of bytes that the node sent."""
        self.ends = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._pass, args=(client, node, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(node, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_node: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_node:
                    self.sent.append((time.monotonic(), len(data)))
                target.sendall(data)
        if is_node:
            self.ends += 1
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def load(node: NodeProcess, queue: str = QUEUE) -> Iterator[Load]:
    """Traffic through a node, under way."""
    made = Load(node.connection_string, queue)
    made.start()
    try:
        wait_until(lambda: len(made.completed) >= 20, "the load is under way")
        yield made
    finally:
        made.stop()
