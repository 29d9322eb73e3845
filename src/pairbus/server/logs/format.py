"""How log lines look: text for people, JSON for programs. One event, one line; foreign text cannot forge another (M8)."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

DEBUG: Final = "debug"
TEXT: Final = "text"
JSON: Final = "json"
REPEATS_MAX: Final = 30
"""Lines of one kind that are written in ``REPEAT_SECONDS``; further ones are counted."""
REPEAT_SECONDS: Final = 60.0
KINDS_MAX: Final = 1000
"""Kinds that are counted separately; with more of them all counts begin again."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class RepeatLimit(logging.Filter):
    """Lets through the first lines of a kind in each minute and counts the others; the next line of that kind that comes
    through says how many were left out. A kind is what a line reports (its event), not what it says about it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int, str], list[float]] = {}
        """Logger, level and event to: when its minute began, lines since then, lines left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written."""
        kind = (record.name, record.levelno, str(getattr(record, "event", record.msg))[:200])
        state = self._kinds.get(kind)
        if state is None or not 0 <= record.created - state[0] < REPEAT_SECONDS:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            if state is not None and state[2]:
                record.lines_left_out = int(state[2])
            self._kinds[kind] = [record.created, 1, 0]
            return True
        state[1] += 1
        if state[1] <= REPEATS_MAX:
            return True
        state[2] += 1
        return False


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
    """Send the package's log, and the event loop's, to a stream, standard error by default. For the process that is the broker."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
    if level != DEBUG:
        handler.addFilter(RepeatLimit())
    for name in ("pairbus", "asyncio"):
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.setLevel(level.upper() if name == "pairbus" else logging.WARNING)
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
