"""How log lines look: text for people, JSON for programs. One event, one line; foreign text cannot forge another (M8)."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

TEXT: Final = "text"
JSON: Final = "json"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, message, and the data beside it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "message": record.getMessage(),
            **_data(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """``time level message key=value …``, control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        data = " ".join(f"{key}={_shown(value)}" for key, value in _data(record).items())
        line = f"{_time(record)} {record.levelname.lower():<7} {_escaped(record.getMessage())}"
        if data:
            line += f"  {data}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send the package's log to a stream, standard error by default. For the process that is the broker."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
    root = logging.getLogger("pairbus")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _data(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD and key != "event"}


def _shown(value: object) -> str:
    text = str(value)
    return (
        json.dumps(text)
        if not text or any(c.isspace() or c in '"=' or not c.isprintable() for c in text)
        else text
    )


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
