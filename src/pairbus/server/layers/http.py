"""HTTP/1.1 without I/O: bytes in, whole requests out, answers back, in order and within limits (M12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11

from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.layers.target import origin_form
from pairbus.server.layers.websocket import is_websocket_path

HEADER_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX_DEFAULT: Final = 4 * 1024 * 1024
PENDING_BYTES_MAX: Final = 256 * 1024
"""Answers that wait to be written before further pipelined requests are looked at."""
REFUSALS_MAX: Final = 20
"""Requests that are refused to an unknown caller before its connection is closed."""
_BODILESS: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class HttpLayer:
    """The server's side of one HTTP connection.

    Args:
        answer: Answers one whole request.
        now: The broker's clock, for the date header.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_connection",
        "_head",
        "_now",
        "_peer",
        "_pending",
        "_pending_bytes",
        "_refusals",
        "_secure",
        "_target",
        "is_behind",
        "is_ended",
        "is_known",
        "is_served",
        "upgrade_head",
    )

    def __init__(
        self,
        answer: Callable[[HttpRequest], HttpResponse],
        *,
        peer: str,
        secure: bool,
        body_bytes_max: int,
        now: Callable[[], int],
    ) -> None:
        self._answer = answer
        self._peer = peer
        self._secure = secure
        self._body_bytes_max = body_bytes_max
        self._now = now
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._head: h11.Request | None = None
        self._target = b""
        """Path and query that the head asks for."""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._refusals = 0
        """Requests of an unknown caller that were refused since a known one last asked."""
        self.is_behind = False
        """More may have come than was looked at: call ``proceed`` when there is time and room."""
        self.is_known = False
        """The last caller proved to hold a key."""
        self.is_ended = False
        """The connection ends after the output."""
        self.is_served = False
        """A request has been answered since this was last set to False."""
        self.upgrade_head: bytes | None = None
        """A request that asks for a WebSocket, as bytes; from then on the bytes are no longer HTTP's."""

    @property
    def has_output(self) -> bool:
        """Whether there is something to write."""
        return bool(self._pending)

    @property
    def held_bytes(self) -> int:
        """What is kept of a request whose end has not come."""
        return 0 if self._head is None or self.is_ended else self._body_bytes

    @property
    def is_full(self) -> bool:
        """Whether so many answers wait that the socket should not be read."""
        return self._pending_bytes >= PENDING_BYTES_MAX

    def receive(self, data: bytes) -> None:
        """Bytes have come; the answers to what they complete are in the output."""
        if not self.is_ended:
            self._connection.receive_data(data)
            self.proceed()

    def receive_eof(self) -> None:
        """The peer will send no more: answer what is whole, then end."""
        if not self.is_ended:
            if self._connection.their_state is not h11.CLOSED:
                self._connection.receive_data(b"")
            self.proceed()

    def take_output(self) -> list[bytes]:
        """Everything to write since last asked."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        return pending

    def trailing_data(self) -> bytes:
        """What came after a request that asks for a WebSocket."""
        return bytes(self._connection.trailing_data[0])

    def proceed(self) -> None:
        """Look at what has come so far, up to the end of one request, if there is room for its answer.

        One at a time: a peer that sends a thousand requests in one piece must not keep everybody waiting for them.
        """
        self.is_behind = False
        while not self.is_ended and self.upgrade_head is None:
            if self.is_full:
                self.is_behind = True
                return
            try:
                event = self._connection.next_event()
                if event is h11.NEED_DATA:
                    self._continue_if_awaited()
                    return
                if event is h11.PAUSED:
                    if (
                        self._connection.our_state is not h11.DONE
                        or self._connection.their_state is not h11.DONE
                    ):
                        self.is_ended = True
                        return
                    self._connection.start_next_cycle()
                    continue
                self._take(event)
                if isinstance(event, h11.EndOfMessage):
                    self.is_behind = True
                    return
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, f"the request cannot be understood: {error}")
                _forget_tracebacks(error)

    def _take(self, event: type[h11.NEED_DATA | h11.PAUSED] | h11.Event) -> None:
        if isinstance(event, h11.Request):
            self._head, self._body, self._body_bytes = event, [], 0
            if _head_size(event) > HEADER_BYTES_MAX:
                # h11 limits heads that come in pieces; one that came at once is limited here.
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head exceeds {HEADER_BYTES_MAX} bytes"
                )
                return
            if said := _length_said_twice(event):
                self._refuse(HTTPStatus.BAD_REQUEST, said)
                return
            try:
                self._target = origin_form(event.target)
            except ValueError as error:
                self._refuse(HTTPStatus.BAD_REQUEST, str(error))
                return
            if _asks_for_websocket(event, self._target):
                self.upgrade_head = _head_bytes(event, self._target)
            elif _content_length(event) > self._body_bytes_max:
                self._refuse_body()
        elif isinstance(event, h11.Data):
            self._body.append(bytes(event.data))
            self._body_bytes += len(event.data)
            if self._body_bytes > self._body_bytes_max:
                self._refuse_body()
        elif isinstance(event, h11.EndOfMessage):
            self._finish_request()
        elif isinstance(event, h11.ConnectionClosed):
            self.is_ended = True

    def _finish_request(self) -> None:
        head = self._head
        assert head is not None, "a request ends after its head"
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("ascii").lower(), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        request = HttpRequest(
            head.method.decode("ascii").upper(),
            self._target.decode("latin-1"),
            headers,
            b"".join(self._body),
            self._peer,
            self._secure,
        )
        self._head, self._body = None, []
        response = self._answer(request)
        self.is_known = request.is_known
        if self.is_known:
            self._refusals = 0
        elif response.status >= HTTPStatus.BAD_REQUEST:
            self._refusals += 1
        closes = self._refusals >= REFUSALS_MAX
        self._send(response, is_head=request.method == "HEAD", closes=closes)
        self.is_served = True

    def _send(self, response: HttpResponse, *, is_head: bool, closes: bool = False) -> None:
        headers = [("date", formatdate(self._now() / 1000, usegmt=True)), *response.headers]
        if response.status not in _BODILESS:
            headers.append(("content-length", str(len(response.body))))
        if closes:
            headers.append(("connection", "close"))
        reason = HTTPStatus(response.status).phrase if response.status in _STATUSES else ""
        self._queue(
            self._connection.send(
                h11.Response(
                    status_code=response.status,
                    headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
                    reason=reason.encode("ascii"),
                )
            )
        )
        if response.body and not is_head and response.status not in _BODILESS:
            self._queue(self._connection.send(h11.Data(data=response.body)))
        self._queue(self._connection.send(h11.EndOfMessage()))
        if self._connection.our_state is h11.MUST_CLOSE:
            self.is_ended = True

    def _refuse(self, status: int, reason: str) -> None:
        """Answer with the reason and end: what follows on the connection cannot be trusted to be a request."""
        if self._connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(problem(status, reason), is_head=False, closes=True)
        self.is_ended = True

    def refuse_busy(self) -> None:
        """Too much is held of requests that are not whole: this one cannot go on."""
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at once; try again in a moment")
        self._head, self._body = None, []

    def _refuse_body(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request's body is larger than {self._body_bytes_max} bytes",
        )

    def _continue_if_awaited(self) -> None:
        if self._connection.they_are_waiting_for_100_continue:
            self._queue(self._connection.send(h11.InformationalResponse(status_code=100, headers=[])))

    def _queue(self, data: bytes | None) -> None:
        if data:
            self._pending.append(data)
            self._pending_bytes += len(data)


_STATUSES: Final = frozenset(int(status) for status in HTTPStatus)


def problem(status: int, reason: str) -> HttpResponse:
    """An answer with the reason of a refusal, as JSON."""
    body = json.dumps({"status": status, "error": reason}).encode() + b"\n"
    return HttpResponse(status, [("content-type", "application/json")], body)


def _forget_tracebacks(error: BaseException | None) -> None:
    """Undo the circle of h11's errors, whose tracebacks hold the frames that hold the errors, and us with them."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _asks_for_websocket(head: h11.Request, target: bytes) -> bool:
    if head.method != b"GET" or not is_websocket_path(target.decode("latin-1")):
        return False
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in head.headers)


def _head_bytes(head: h11.Request, target: bytes) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (head.method, target)]
    lines += [b"%b: %b" % (name, value) for name, value in head.headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _head_size(head: h11.Request) -> int:
    return len(head.target) + sum(len(name) + len(value) for name, value in head.headers)


def _length_said_twice(head: h11.Request) -> str:
    """Why nobody can be sure where the request ends; empty: it is certain. h11 takes such requests (RFC 9112, 6.1 and 6.3).

    A proxy ahead that believes the other header sees other requests on the connection, and lets some pass that it never judged.
    """
    names = {name for name, _ in head.headers}
    if b"transfer-encoding" not in names:
        return ""
    if b"content-length" in names:
        return "the request has both Transfer-Encoding and Content-Length: send one of them"
    if head.http_version < b"1.1":
        return "the request has Transfer-Encoding, which HTTP/1.0 does not know: send Content-Length"
    return ""


def _content_length(head: h11.Request) -> int:
    for name, value in head.headers:
        if name == b"content-length":
            # h11 has checked that these are digits.
            return int(value)
    return 0
