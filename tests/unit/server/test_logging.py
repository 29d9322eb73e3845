"""Log lines: one event each, as text or JSON, whatever text they carry."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.server.logs.format import JSON, TEXT, JsonFormatter, TextFormatter, configure_logging


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
