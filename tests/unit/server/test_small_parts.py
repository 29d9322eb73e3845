from __future__ import annotations

import gc
import io
import itertools
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import RemoteProtocolError, UsageError
from pairbus.gateway.http import HttpRequest, HttpResponse
from pairbus.server.layers.http import HttpLayer
from pairbus.server.layers.websocket import is_websocket_path
from pairbus.server.logs import audit as audit_module
from pairbus.server.logs.audit import AuditLog
from pairbus.server.logs.format import JSON, TEXT, JsonFormatter, TextFormatter, configure_logging
from pairbus.server.memory import NEVER_COLLECTIONS, CollectorPolicy
from pairbus.server.metrics import Metric, Sample, render
from pairbus.server.ready import ReadyInfo, connection_string, write_ready_file
from pairbus.server.registry import Limits, bind_all, is_home_only


def record(message: str, **data: object) -> logging.LogRecord:
    made = logging.LogRecord("pairbus.server", logging.INFO, __file__, 1, message, (), None)
    vars(made).update(data)
    return made


def test_json_log_lines_hold_the_event_and_its_data() -> None:
    line = json.loads(JsonFormatter().format(record("serving", event="server.ready", amqp="127.0.0.1:5672")))

    assert (line["event"], line["message"], line["level"]) == ("server.ready", "serving", "info")
    assert line["amqp"] == "127.0.0.1:5672"


@pytest.mark.promise("M8")
@given(st.text(), st.text())
def test_foreign_text_never_makes_a_second_log_line(message: str, value: str) -> None:
    made = record("x", event="e", peer=value)
    made.msg = message

    for formatter in (JsonFormatter(), TextFormatter()):
        line = formatter.format(made)
        assert len(line.splitlines()) == 1


def test_logging_goes_to_the_stream_that_was_asked_for() -> None:
    loggers = [logging.getLogger(name) for name in ("pairbus", "asyncio")]
    before = [(log.handlers[:], log.level, log.propagate) for log in loggers]
    try:
        for form in (TEXT, JSON):
            stream = io.StringIO()
            configure_logging(form, "warning", stream)
            logging.getLogger("pairbus.server.x").info("quiet")
            logging.getLogger("pairbus.server.x").warning("loud", extra={"event": "e"})
            assert "loud" in stream.getvalue()
            assert "quiet" not in stream.getvalue()
    finally:
        for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
            log.handlers[:], log.propagate = handlers, propagate
            log.setLevel(level)


def test_metrics_are_written_exactly_and_escaped() -> None:
    text = render([Metric("a_total", "counter", "Help.", [Sample("a_total", 12345678901, {"x": 'q"\n\\'})])])

    assert text == '# HELP a_total Help.\n# TYPE a_total counter\na_total{x="q\\"\\n\\\\"} 12345678901\n'


def test_the_connection_string_is_for_the_emulator_at_home_only() -> None:
    assert connection_string("127.0.0.1", 5672, "contoso", "K=") == (
        "Endpoint=sb://127.0.0.1:5672/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=K=;"
        "UseDevelopmentEmulator=true;Namespace=contoso"
    )
    assert connection_string("::1", 1, "n", "K").startswith("Endpoint=sb://[::1]:1/;")
    assert "sb://127.0.0.1:1/" in connection_string("0.0.0.0", 1, "n", "K")
    assert "UseDevelopmentEmulator" not in connection_string("10.0.0.1", 1, "n", "K")


def test_the_ready_file_is_whole_private_and_has_exactly_the_products_keys(tmp_path: Path) -> None:
    info = ReadyInfo(
        namespace="contoso",
        pid=7,
        amqp="127.0.0.1:1",
        http="127.0.0.1:2",
        connection_string="SECRET",
        ca_file=None,
    )

    write_ready_file(tmp_path / "ready.json", info)

    assert list(json.loads((tmp_path / "ready.json").read_text())) == [
        "namespace", "pid", "amqp", "http", "connection_string", "ca_file",
    ]  # fmt: skip
    assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
    assert "SECRET" not in repr(info)


def ready_info(pid: int = 7) -> ReadyInfo:
    return ReadyInfo(
        namespace="contoso", pid=pid, amqp="h:1", http="h:2", connection_string="SECRET", ca_file=None
    )


def test_the_ready_file_follows_no_link_and_keeps_no_foreign_mode(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    ready = tmp_path / "ready.json"
    ready.symlink_to(victim)
    (tmp_path / "ready.json.7.new").symlink_to(
        victim
    )  # a name that could once be guessed from the process id

    write_ready_file(ready, ready_info())

    assert victim.read_text() == "precious"
    assert not ready.is_symlink()
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    ready.unlink()
    ready.write_text("planted")
    ready.chmod(0o666)
    planted = ready.open()
    write_ready_file(ready, ready_info())
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    assert "SECRET" in ready.read_text()
    with planted:
        assert planted.read() == "planted"  # whoever held the old file open reads nothing new


def test_a_ready_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "ready.json").mkdir()
    with pytest.raises(OSError, match="ready.json"):
        write_ready_file(tmp_path / "ready.json", ready_info())
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


def test_the_first_names_of_ready_files_cannot_be_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append((str(path), flags))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    for _ in range(3):
        write_ready_file(tmp_path / "ready.json", ready_info())
    ours = [(path, flags) for path, flags in opened if str(tmp_path) in path]
    assert len({path for path, _ in ours}) == 3
    assert all(Path(path).parent == tmp_path for path, _ in ours)
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in ours)


@pytest.mark.promise("M13")
def test_audit_records_are_appended_and_survive_a_reopening(tmp_path: Path) -> None:
    for number in range(2):
        log = AuditLog(tmp_path / "audit", lambda: 1_700_000_000_000)
        log.write("create", f"q{number}\n", "RootManageSharedAccessKey", "201")
        log.close()

    files = list((tmp_path / "audit").iterdir())
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [line["path"] for line in lines] == ["q0\n", "q1\n"]
    assert lines[0]["time"] == "2023-11-14T22:13:20.000Z"
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


@pytest.mark.promise("M12")
def test_the_audit_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "FILE_BYTES_MAX", 300)
    log = AuditLog(tmp_path)
    for number in range(200):
        log.write("login", str(number), "peer", "refused")
    log.close()

    files = sorted(tmp_path.iterdir())
    assert len(files) == audit_module.FILES_MAX
    assert json.loads(files[-1].read_text().splitlines()[-1])["path"] == "199"


def test_the_collector_never_walks_everything_by_itself_after_recovery() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovered()
        assert gc.get_threshold()[2] == NEVER_COLLECTIONS
        frozen = gc.get_freeze_count()
        kept = [[number] for number in range(250_000)]
        policy.tick()
        assert gc.get_freeze_count() > frozen + 200_000
        assert len(kept) == 250_000
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_the_collector_rests_while_a_restart_recovers_and_works_afterwards() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovering()
        assert not gc.isenabled()
        policy.gave_up()
        assert gc.isenabled()
        policy.recovering()
        policy.recovered()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_bad_limits_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="connections_max must be above 0 and is 0"):
        Limits(connections_max=0)


def test_a_host_is_bound_on_one_port_for_all_its_addresses() -> None:
    sockets = bind_all("localhost", 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()
    assert is_home_only("127.0.0.1")
    assert is_home_only("localhost")
    assert not is_home_only("0.0.0.0")
    with pytest.raises(UsageError, match="no address"):
        bind_all("no-such-host.invalid", 0)


@pytest.mark.parametrize(
    "target", ["/$servicebus/websocket", "/%24servicebus/websocket?x=1", "/$ServiceBus/WebSocket"]
)
def test_the_place_of_the_websocket_is_known_in_every_spelling(target: str) -> None:
    assert is_websocket_path(target)
    assert not is_websocket_path("/servicebus/websocket")


def layer() -> HttpLayer:
    def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [("x-method", request.method)], request.body)

    return HttpLayer(
        answer, peer="127.0.0.1:9", secure=False, upgrade=True, body_bytes_max=1000, now=lambda: 0
    )


REQUESTS = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    b"PUT /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"DELETE /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)


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


def test_remote_errors_carry_their_condition() -> None:
    assert RemoteProtocolError("amqp:decode-error", "x").condition == "amqp:decode-error"
