"""The management API on a namespace in memory, and transports that carry the official clients' requests to it."""

from __future__ import annotations

import time
from typing import Any

from azure.core.pipeline.transport import AsyncHttpResponse, AsyncHttpTransport, HttpResponse, HttpTransport

from pairbus.engine.namespace import Namespace
from pairbus.engine.ports import Outbox, RecordLog
from pairbus.engine.records import Record
from pairbus.gateway import http
from pairbus.gateway.atom.api import ManagementApi
from pairbus.gateway.atom.routes import route_of
from pairbus.gateway.rights.access import Access
from pairbus.gateway.telemetry.tracking import Tracker
from pairbus.model.access import LISTEN, MANAGE, SEND, AccessRule

HOST = "localhost:5671"
PEER = "127.0.0.1:49152"
ROOT_KEY = "cm9vdC1rZXk="
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def connection_string(name: str = "root", key: str = ROOT_KEY) -> str:
    return (
        f"Endpoint=sb://{HOST}/;SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"
    )


def entry(description: str) -> bytes:
    """A request body around the inside of ``content``."""
    text = f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{description}</content></entry>'
    return text.encode()


def queue_entry(inside: str = "") -> bytes:
    return entry(f'<QueueDescription xmlns="{SERVICE_BUS}">{inside}</QueueDescription>')


class Journal(RecordLog):
    """Keeps records in memory: what a failed request appended would show here."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, record: Record) -> None:
        self.records.append(record)

    def has_room(self, size: int) -> bool:
        return True

    def read(self, location: int, size: int) -> bytes:
        raise AssertionError("no message is stored in these tests")

    def forget(self, location: int, size: int) -> None:
        raise AssertionError("no message is stored in these tests")


class Silence(Outbox):
    """An outbox for a namespace without consumers: it can do nothing."""


class Allowing:
    """Lets everybody in under one name; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str, str]] = []

    def check_http(self, header: str | None, path: str, right: str, now: int) -> str:
        self.asked.append((header, path, right))
        return "root"


class Bench:
    """A namespace, its API, every request that came and every audit event."""

    def __init__(self, access: Any = None) -> None:
        self.now = int(time.time() * 1000)
        self.journal = Journal()
        self.namespace = Namespace("contoso", self.journal, Silence())
        root = AccessRule(
            name="root", rights=(LISTEN, SEND, MANAGE), primary_key=ROOT_KEY, secondary_key="c2Vjb25k"
        )
        self.namespace.set_access_rules((root,), self.now)
        self.audits: list[tuple[str, str, str, str, str]] = []
        self.requests: list[http.HttpRequest] = []
        tracker = Tracker("contoso", bytes(range(8)))
        self.api = ManagementApi(self.namespace, access or Access(self.namespace), tracker, self._audit)

    def _audit(self, action: str, path: str, who: str, result: str, peer: str) -> None:
        self.audits.append((action, path, who, result, peer))

    def ask(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> http.HttpResponse:
        """One request as the server would hand it over; a millisecond passes."""
        self.now += 1
        request = http.HttpRequest(method, target, {"host": HOST, **(headers or {})}, body, PEER, secure=True)
        self.requests.append(request)
        return self.api.handle(request, route_of(request.target), self.now)

    def options(self, face: str) -> dict[str, Any]:
        """What makes the official client of this flavour speak to this bench."""
        return {"transport": Transport(self) if face == "sync" else AsyncTransport(self)}

    def carry(self, request: Any) -> http.HttpResponse:
        """A request of the official client's, to the API."""
        prefix = f"https://{HOST}"
        assert request.url.startswith(prefix), request.url
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        return self.ask(request.method, request.url.removeprefix(prefix), body, headers)


class Answer(HttpResponse):
    """One answer in the form the client's pipeline reads."""

    def __init__(self, request: Any, answer: http.HttpResponse) -> None:
        super().__init__(request, answer)
        self._content = answer.body
        self.status_code = answer.status
        self.headers = dict(answer.headers)
        self.content_type = self.headers.get("content-type")
        self.reason = ""

    def body(self) -> bytes:
        return self._content


class AsyncAnswer(AsyncHttpResponse):
    def __init__(self, request: Any, answer: http.HttpResponse) -> None:
        super().__init__(request, answer)
        self._content = answer.body
        self.status_code = answer.status
        self.headers = dict(answer.headers)
        self.content_type = self.headers.get("content-type")
        self.reason = ""

    def body(self) -> bytes:
        return self._content

    async def load_body(self) -> None:
        """It is there already."""


class Transport(HttpTransport[Any, Any]):
    """Carries requests by calling a function."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def send(self, request: Any, **kwargs: Any) -> Answer:
        return Answer(request, self._bench.carry(request))

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class AsyncTransport(AsyncHttpTransport[Any, Any]):
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def send(self, request: Any, **kwargs: Any) -> AsyncAnswer:
        return AsyncAnswer(request, self._bench.carry(request))

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        pass
