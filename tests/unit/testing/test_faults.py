"""The switchboard's requests, against a small HTTP server that writes down what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pairbus.errors import ManagementFailed, UsageError
from pairbus.local.management import ManagementClient
from pairbus.sdk.credentials import credentials_of, sas_token
from pairbus.testing import FaultSwitchboard

KEY = "c2VjcmV0LWNhbmFyeQ=="
CONNECTION_STRING = f"Endpoint=sb://localhost:5672/;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


class Recorder:
    """What was asked, and what to answer."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, str]] = []
        self.status = 200
        self.body = b"{}"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def address(recorder: Recorder) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            recorder.requests.append((self.command, self.path, body, self.headers["Authorization"]))
            self.send_response(recorder.status)
            self.send_header("Content-Length", str(len(recorder.body)))
            self.end_headers()
            self.wfile.write(recorder.body)

        do_POST = do_DELETE = _answer  # noqa: N815  (the standard library's names)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def faults(address: str) -> FaultSwitchboard:
    return FaultSwitchboard(ManagementClient(address, CONNECTION_STRING))


@pytest.mark.parametrize(
    ("switch", "wanted"),
    [
        (lambda f: f.refuse("q", seconds=1.5), ("refuse", "q", 1500, None, None)),
        (lambda f: f.delay(70, count=3), ("delay", None, None, 3, 70)),
        (lambda f: f.drop_acknowledgements("q", count=1), ("drop_acknowledgements", "q", None, 1, None)),
        (lambda f: f.throttle(), ("throttle", None, None, None, None)),
        (lambda f: f.fill("q"), ("fill", "q", None, None, None)),
        (lambda f: f.lose_locks("q", count=2), ("lose_locks", "q", None, 2, None)),
        (lambda f: f.cut(seconds=0.0001), ("cut", None, 1, None, None)),
        (lambda f: f.black_hole("q"), ("black_hole", "q", None, None, None)),
    ],
)
def test_each_fault_is_one_request(
    switch: Callable[[FaultSwitchboard], None],
    wanted: tuple[object, ...],
    faults: FaultSwitchboard,
    recorder: Recorder,
) -> None:
    switch(faults)

    [(method, path, body, _)] = recorder.requests
    assert (method, path) == ("POST", "/$faults")
    asked = json.loads(body)
    assert tuple(asked[key] for key in ("kind", "entity", "duration_ms", "count", "delay_ms")) == wanted


def test_clear_is_a_delete(faults: FaultSwitchboard, recorder: Recorder) -> None:
    faults.clear()

    assert [request[:3] for request in recorder.requests] == [("DELETE", "/$faults", "")]


def test_requests_carry_a_token_and_never_the_key(faults: FaultSwitchboard, recorder: Recorder) -> None:
    faults.throttle()

    token = recorder.requests[0][3]
    assert token.startswith("SharedAccessSignature sr=http%3A%2F%2Flocalhost%3A5672&sig=")
    assert token.endswith("&skn=Root")
    assert KEY not in token


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"seconds": 0}, "seconds is 0: give a number above 0 and up to 86400; leave it out"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": 1e9}, "seconds is 1000000000.0"),
        ({"seconds": "5"}, "seconds is '5'"),
        ({"seconds": True}, "seconds is True"),
        ({"count": 0}, "count is 0: give a whole number from 1 to 1000000000; leave it out"),
        ({"count": "1"}, "count is '1'"),
        ({"count": 1.5}, "count is 1.5"),
        ({"count": True}, "count is True"),
        ({"entity": ""}, "entity is '': give the name of an entity, or leave it out"),
        ({"entity": 5}, "entity is 5"),
    ],
)
def test_a_fault_that_cannot_strike_is_refused_before_it_is_sent(
    arguments: dict[str, Any], told: str, faults: FaultSwitchboard, recorder: Recorder
) -> None:
    with pytest.raises(UsageError) as caught:
        faults.refuse(**arguments)

    assert told in str(caught.value)
    assert recorder.requests == []


@pytest.mark.parametrize("delay_ms", ["orders", 0, 600_001, 1.5, True])
def test_a_delay_names_its_range_and_its_order(
    delay_ms: Any, faults: FaultSwitchboard, recorder: Recorder
) -> None:
    with pytest.raises(UsageError, match=r"delay_ms is .*from 1 to 600000; .*delay\(500, 'orders'\)"):
        faults.delay(delay_ms)

    assert recorder.requests == []


def test_a_refused_request_says_what_was_asked_and_answered(
    faults: FaultSwitchboard, recorder: Recorder
) -> None:
    recorder.status, recorder.body = 404, b"the switchboard is off"

    with pytest.raises(
        ManagementFailed, match=r"POST /\$faults was answered 404 .*the switchboard is off"
    ) as caught:
        faults.cut()

    assert KEY not in str(caught.value)


def test_a_broker_that_is_down_is_named() -> None:
    client = ManagementClient("127.0.0.1:1", CONNECTION_STRING)

    with pytest.raises(ManagementFailed, match=r"got no answer from 127\.0\.0\.1:1"):
        FaultSwitchboard(client).clear()


def test_token_is_the_documented_signature() -> None:
    token = sas_token("sb://contoso/q", "Root", "key", 1_700_000_000)

    # Computed with openssl over "sb%3A%2F%2Fcontoso%2Fq\n1700000000".
    assert token == (
        "SharedAccessSignature sr=sb%3A%2F%2Fcontoso%2Fq"
        "&sig=H05D8kGdyqKOYZfTFQUndd2aSjoIQx51XQgZbOvavpY%3D&se=1700000000&skn=Root"
    )


@pytest.mark.promise("M7")
def test_a_broken_connection_string_is_not_repeated_in_the_error() -> None:
    with pytest.raises(UsageError, match="no Endpoint") as caught:
        credentials_of(f"SharedAccessKeyName=Root;SharedAccessKey={KEY}")

    assert KEY not in str(caught.value)
    assert KEY not in repr(credentials_of(CONNECTION_STRING))
