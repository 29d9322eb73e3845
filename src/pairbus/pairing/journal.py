"""Events of paired clients in a file, so that another process can say why an entity is in its state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.pairing.events import Event

ENVIRONMENT: Final = "PAIRBUS_JOURNAL"
"""Names the file; no journal is kept unless it is set."""
BYTES_MAX: Final = 10_000_000
"""A journal that is larger becomes ``.1`` and a new one begins."""


class Journal:
    """Appends events to a file that several processes may share: each event is one short write."""

    def __init__(self, path: Path, factory: str) -> None:
        self._path = path
        self._factory = factory
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, event: Event, at_ms: int) -> None:
        """Write one event. ``at_ms`` is the time of day."""
        line = {
            "at_ms": at_ms,
            "factory": self._factory,
            "kind": event.kind.value,
            "subject": event.subject,
            "text": event.text,
            "data": dict(event.data),
        }
        content = json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, content)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > BYTES_MAX:
            self._path.replace(self._path.with_name(self._path.name + ".1"))


def read(path: Path) -> Iterator[dict[str, object]]:
    """The events of a journal, oldest first; torn lines are left out."""
    for file in (path.with_name(path.name + ".1"), path):
        if file.exists():
            yield from _lines(file.read_text(encoding="utf-8", errors="replace").splitlines())


def _lines(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
