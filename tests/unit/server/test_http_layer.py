"""The HTTP layer reads any bytes in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.layers.http import HttpLayer
from pairbus.server.layers.websocket import is_websocket_path

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
