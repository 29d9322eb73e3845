"""How long the event loop of a watched broker pauses, measured inside it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Final

from bench.other_loads.kit import Row
from bench.peer import BenchError, Peer
from bench.watched import PAUSES_FILE

PAUSE_MS_MAX: Final = 50
ANSWER_S_MAX: Final = 30.0


class Pauses:
    """The longest callbacks of a watched broker."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "pauses.json"
        os.environ[PAUSES_FILE] = str(self._file)

    def take(self, peer: Peer) -> dict[str, list[tuple[float, str]]]:
        """Those since last taken, longest first, in milliseconds."""
        self._file.unlink(missing_ok=True)
        os.kill(peer.pid, signal.SIGUSR2)
        deadline = time.monotonic() + ANSWER_S_MAX
        while not self._file.exists():
            if time.monotonic() > deadline:
                raise BenchError("the watched broker tells no pauses")
            time.sleep(0.05)
        told: dict[str, list[tuple[float, str]]] = json.loads(self._file.read_text())
        return told

    def row(self, what: str, peer: Peer) -> Row:
        """The longest pause since last taken, beside the goal."""
        told = self.take(peer)
        longest, callback = told["cpu"][0] if told["cpu"] else (0.0, "")
        collected = told["gc"][0][0] if told["gc"] else 0.0
        wall = told["wall"][0][0] if told["wall"] else 0.0
        where = callback.split(" at 0x")[0].removeprefix("<")[:50]
        return Row(
            load=f"longest pause of the loop: {what}",
            cost=longest,
            yardstick=PAUSE_MS_MAX,
            unit="ms of the loop's own CPU, beside the goal",
            note=f"by the wall {wall:.0f} ms; longest collection of garbage {collected:.0f} ms; {where}",
        )
