"""A proxy of the environment sees no management request that goes without TLS: it would read the token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from azure.core.rest import HttpRequest

from pairbus.cli.kit.errors import PROXY, way_out
from pairbus.sdk.addresses import Addresses
from pairbus.sdk.management import plain_http, plain_http_aio


class Recorder:
    """An HTTP server on this machine that remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.seen.append(self.requestline)
                self.send_response(204)
                self.end_headers()

            def do_CONNECT(self) -> None:
                recorder.seen.append(self.requestline)
                self.send_error(403)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@pytest.fixture
def namespace() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.close()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://{recorder.address}")
        monkeypatch.setenv(name.upper(), f"http://{recorder.address}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield recorder
    recorder.close()


def made(module: Any, kind: str, address: str) -> Any:
    if kind == "plain":
        return module.PlainHttpTransport(connection_timeout=5, use_env_settings=True)
    return module.SpreadHttpTransport(Addresses([address], uses_tls=kind == "tls"), connection_timeout=5)


@pytest.mark.parametrize("kind", ["plain", "spread"])
def test_a_request_without_tls_passes_the_proxy_by(namespace: Recorder, proxy: Recorder, kind: str) -> None:
    with made(plain_http, kind, namespace.address) as transport:
        answer = transport.send(HttpRequest("GET", f"https://{namespace.address}/orders"))
        assert answer.status_code == 204
    assert (namespace.seen, proxy.seen) == (["GET /orders HTTP/1.1"], [])


@pytest.mark.parametrize("kind", ["plain", "spread"])
async def test_an_asynchronous_one_does_too(namespace: Recorder, proxy: Recorder, kind: str) -> None:
    async with made(plain_http_aio, kind, namespace.address) as transport:
        answer = await transport.send(HttpRequest("GET", f"https://{namespace.address}/orders"))
        assert answer.status_code == 204
    assert (namespace.seen, proxy.seen) == (["GET /orders HTTP/1.1"], [])


def test_tls_goes_through_the_proxy_and_its_refusal_is_no_refused_key(proxy: Recorder) -> None:
    with made(plain_http, "tls", "contoso.example") as transport, pytest.raises(Exception) as refused:
        transport.send(HttpRequest("GET", "https://contoso.example/orders"))
    assert [line.rpartition(" ")[0] for line in proxy.seen] == ["CONNECT contoso.example:443"]
    assert way_out(refused.value) == PROXY
