"""A broker on a store in memory, and clients that speak bytes to it; no socket, no thread, no clock but ``now``."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote, quote_plus

from pairbus.amqp.message.whole import DecodedMessage, encode_message
from pairbus.engine.entity import Entity
from pairbus.gateway.broker import Broker
from pairbus.gateway.connection import GatewayConnection
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.model.access import LISTEN, MANAGE, RIGHTS, SEND, AccessRule
from pairbus.model.entity import QUEUE, Settings
from pairbus.storage.memory import MemoryDisk, MemoryStore
from tests.simulation.wire import ClientConnection, ClientSession, RequestLink

START = 1_700_000_000_000
HOUR = 3_600_000
HOST = "localhost"


def rule(name: str, *rights: str, key: str = "") -> AccessRule:
    """An access rule whose keys are easily told."""
    wanted = RIGHTS if MANAGE in rights else rights
    return AccessRule(name=name, rights=wanted, primary_key=key or f"{name}-1", secondary_key=f"{name}-2")


def token(
    name: str,
    key: str,
    path: str = "",
    *,
    expires_at: int = START + HOUR,
    scheme: str = "sb://",
    quoted: str | None = None,
) -> str:
    """A shared-access signature as clients make it."""
    resource = quote_plus(f"{scheme}{HOST}/{path}") if quoted is None else quoted
    expiry = str(expires_at // 1000)
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"


class Peer:
    """One client with its connection in the broker."""

    def __init__(
        self,
        bench: WireBench,
        user: str | None,
        password: str,
        skips_sasl: bool = False,
        max_frame_size: int = 1 << 20,
    ) -> None:
        self.bench = bench
        self.client = ClientConnection(
            "peer", user, password, skips_sasl=skips_sasl, max_frame_size=max_frame_size
        )
        self.gateway: GatewayConnection = bench.broker.connect(
            "127.0.0.1:50000", secure=True, loopback=True, now=bench.now
        )
        self.session: ClientSession = self.client.session()
        self._cbs: RequestLink | None = None
        self._nodes: dict[str, RequestLink] = {}

    def put_token(self, text: str, audience: str) -> int:
        """Put a token; the status of the answer."""
        if self._cbs is None:
            self._cbs = self.session.request_link("$cbs")
            self.bench.settle()
        properties: dict[str, object] = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": f"amqp://{HOST}/{audience}",
        }
        asked = self._cbs.request(properties, text)
        self.bench.settle()
        status = self._cbs.responses.pop(asked).application_properties["status-code"]
        assert isinstance(status, int)
        return status

    def ask(
        self, path: str, operation: str, body: object, link: str = "", state: bytes = b""
    ) -> DecodedMessage | None:
        """A request to a management node; None if the node refused to be attached."""
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = self.session.request_link(path + "/$management")
            self.bench.settle()
        if node.sender.detached or node.receiver.detached:
            del self._nodes[path]
            return None
        properties: dict[str, object] = {"operation": "com.microsoft:" + operation}
        if link:
            properties["associated-link-name"] = link
        asked = node.request(properties, body, state=state)
        self.bench.settle()
        return node.responses.pop(asked)

    def answer(self, path: str, operation: str, body: object, link: str = "") -> dict[str, object]:
        """The body of an answer that must be 200."""
        found = self.ask(path, operation, body, link)
        assert found is not None
        assert found.application_properties["statusCode"] == 200, found.application_properties
        assert isinstance(found.body, dict)
        return found.body

    def refusal(self, path: str, operation: str, body: object, link: str = "") -> tuple[object, object]:
        """Status and condition of an answer that must not be 200."""
        found = self.ask(path, operation, body, link)
        assert found is not None
        status = found.application_properties["statusCode"]
        assert status != 200
        return status, found.application_properties.get("errorCondition")


class WireBench:
    """A broker and its clients."""

    def __init__(self, disk: MemoryDisk | None = None, secret: bytes = bytes(range(16))) -> None:
        self.now = START
        self.store = MemoryStore(disk)
        self.audits: list[tuple[str, str, str, str, str]] = []
        self.broker = Broker("contoso", self.store, secret, self._audit)
        self.namespace = self.broker.namespace
        for record in self.store.replay():
            self.namespace.fold(record)
        self.namespace.replayed()
        self.store.live(self.namespace.live_messages())
        self.broker.serve(None)
        self.peers: list[Peer] = []
        rules = (rule("root", MANAGE), rule("listener", LISTEN), rule("sender", SEND), rule("nobody"))
        self.namespace.set_access_rules(rules, self.now)

    def _audit(self, *event: str) -> None:
        self.audits.append(event)  # type: ignore[arg-type]

    def queue(self, path: str = "q", settings: Settings | None = None) -> Entity:
        return self.namespace.create(QUEUE, path, settings or Settings(), self.now)

    def peer(
        self,
        user: str | None = "root",
        password: str = "root-1",
        *,
        skips_sasl: bool = False,
        max_frame_size: int = 1 << 20,
    ) -> Peer:
        """A client that has logged in; without a user it is anonymous and must put tokens."""
        peer = Peer(self, user, password, skips_sasl, max_frame_size)
        self.peers.append(peer)
        self.settle()
        return peer

    def settle(self) -> None:
        """Carry bytes both ways, commit and deliver until nobody has anything to say."""
        for _ in range(200):
            is_quiet = True
            for peer in self.peers:
                data = peer.client.take_output()
                if data:
                    is_quiet = False
                    peer.gateway.receive(data, self.now)
            self.broker.pump(self.now)
            batch = self.store.seal()
            if batch is not None:
                self.store.commit(batch)
            for peer in self.peers:
                back = b"".join(peer.gateway.take_output())
                if back:
                    is_quiet = False
                    peer.client.receive(back)
            self.broker.take_dirty()
            if is_quiet:
                return
        raise AssertionError("they do not stop talking")

    def wait(self, ms: int) -> None:
        """Let time pass, after what is on its way has arrived."""
        self.settle()
        until = self.now + ms
        while True:
            deadline = self.broker.next_deadline()
            if deadline is None or deadline > until:
                break
            self.now = max(self.now, deadline)
            self.broker.tick(self.now)
            self.settle()
        self.now = until
        self.settle()

    def http(self, method: str, target: str, authorization: str | None, body: bytes = b"") -> HttpResponse:
        """One HTTP request."""
        headers = {"host": HOST}
        if authorization is not None:
            headers["authorization"] = authorization
        return self.broker.http(
            HttpRequest(method, target, headers, body, "127.0.0.1:50001", secure=True), self.now
        )


def message(body: object = "x", **fields: object) -> bytes:
    """One encoded message."""
    return encode_message(body=body, **fields)  # type: ignore[arg-type]


def with_messages(count: int, settings: Settings | None = None) -> tuple[WireBench, Peer]:
    """A broker whose queue "q" holds messages of one session, and a client."""
    bench = WireBench()
    bench.queue("q", settings)
    peer = bench.peer()
    sender = peer.session.sender("q")
    bench.settle()
    for number in range(count):
        sender.send(message(f"m{number}", message_id=f"id-{number}", group_id="s"))
    bench.settle()
    return bench, peer
