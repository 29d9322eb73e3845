"""The HTTP layer reads any bytes in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.layers.http import HttpLayer
from pairbus.server.layers.websocket import WebSocketLayer, is_websocket_path

REQUESTS = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    b"PUT /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"DELETE /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)


@pytest.mark.parametrize(
    "target",
    [
        "/$servicebus/websocket",
        "/$servicebus/websocket/",
        "/%24servicebus/websocket?x=1",
        "/%24servicebus/websocket/?x=1",
        "/$ServiceBus/WebSocket",
        "/",
        "/?x=1",
    ],
)
def test_the_place_of_the_websocket_is_known_in_every_spelling(target: str) -> None:
    assert is_websocket_path(target)
    assert not is_websocket_path("/servicebus/websocket")
    assert not is_websocket_path("/$servicebus/websocket//")
    assert not is_websocket_path("/$servicebus/websocket/x")
    assert not is_websocket_path("//")


def layer() -> HttpLayer:
    def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [("x-method", request.method)], request.body)

    return HttpLayer(answer, peer="127.0.0.1:9", secure=False, body_bytes_max=1000, now=lambda: 0)


def asked(target: bytes, *headers: bytes) -> tuple[list[str], bytes, HttpLayer]:
    """What a request with this target comes to: targets that are answered, the answer, the layer."""
    targets: list[str] = []

    def answer(request: HttpRequest) -> HttpResponse:
        targets.append(request.target)
        return HttpResponse(200, [], b"")

    http = HttpLayer(answer, peer="", secure=True, body_bytes_max=1000, now=lambda: 0)
    http.receive(b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: x", *headers, b"", b""]))
    return targets, b"".join(http.take_output()), http


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"https://contoso.servicebus.windows.net/health", "/health"),
        (b"HTTP://localhost:5300/metrics?x=http://y/z", "/metrics?x=http://y/z"),
        (b"http://[::1]:5300/q/$management", "/q/$management"),
        (b"http://127.0.0.1", "/"),
        (b"https://x?api-version=2021-05", "/?api-version=2021-05"),
        (b"/https://x/q", "/https://x/q"),
    ],
)
def test_a_target_in_absolute_form_names_its_path(target: bytes, path: str) -> None:
    """RFC 9112, 3.2.2: a server must take it."""
    targets, answer, _ = asked(target)

    assert targets == [path]
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "target",
    [
        b"https://user:password@x/health",
        b"https:///health",
        b"https://:443/health",
        b"https://x:443000/health",
        b"https://x:port/health",
        b"https://x\\health",
        b"https://x/health#part",
        b"http://[::1/health",
    ],
)
def test_a_target_that_is_no_absolute_form_is_refused_with_the_reason(target: bytes) -> None:
    targets, answer, http = asked(target)

    assert targets == []
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"scheme://host:port/path?query" in answer
    assert http.is_ended


def test_a_websocket_is_opened_by_a_target_in_absolute_form() -> None:
    """Microsoft's Java client asks for it so."""
    targets, _, http = asked(
        b"https://contoso.servicebus.windows.net/$servicebus/websocket",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Protocol: AMQPWSB10",
    )

    assert targets == []
    assert http.upgrade_head is not None
    assert WebSocketLayer(http.upgrade_head).is_accepted


@given(st.lists(st.integers(1, len(REQUESTS) - 1), max_size=12))
def test_http_answers_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    whole, pieces = layer(), layer()
    whole.receive(REQUESTS)
    edges = [0, *sorted(set(cuts)), len(REQUESTS)]
    for start, end in itertools.pairwise(edges):
        pieces.receive(REQUESTS[start:end])
    for http in (whole, pieces):
        while http.is_behind:
            http.proceed()

    assert b"".join(pieces.take_output()) == b"".join(whole.take_output())
    assert pieces.is_ended
    assert whole.is_ended


@pytest.mark.promise("B59")
@given(st.binary(max_size=300))
def test_any_bytes_are_an_http_request_or_refused(data: bytes) -> None:
    http = layer()

    http.receive(b"GET / " + data)
    http.receive_eof()
    while http.is_behind:
        http.proceed()

    assert http.is_ended


@pytest.mark.parametrize(
    "lines",
    [
        b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
        b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: chunked",
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"content-length: 5\r\ntransfer-encoding: CHUNKED",
        b"PUT /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_request_whose_length_is_said_twice_is_refused_and_ends_the_connection(lines: bytes) -> None:
    asked: list[str] = []

    def answer(request: HttpRequest) -> HttpResponse:
        asked.append(request.target)
        return HttpResponse(200, [], b"")

    http = HttpLayer(answer, peer="", secure=True, body_bytes_max=1000, now=lambda: 0)
    http.receive(lines + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    output = b"".join(http.take_output())

    assert asked == []
    assert output.startswith(b"HTTP/1.1 400 ")
    assert b"transfer-encoding" in output.lower()
    assert output.count(b"HTTP/1.1 ") == 1
    assert http.is_ended
