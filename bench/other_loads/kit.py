"""What all loads share: a broker, interleaved turns, a row of the table."""

from __future__ import annotations

import dataclasses
import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.loadgen import Load, LoadGenerator, LoadResult
from bench.peer import BenchError, Peer
from pairbus.sdk.credentials import sas_token

TOKEN_SECONDS: Final = 3600
MIB: Final = 1024 * 1024
BUSY_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what a load costs, and what its yardstick costs in the same run."""

    load: str
    cost: float
    yardstick: float
    unit: str
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.cost / self.yardstick if self.yardstick else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of the broker for a message, and the rate that came of it."""

    cpu_us: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Setting:
    """How long and how often is measured."""

    generator: LoadGenerator
    home: Path
    rounds: int
    seconds: float
    is_full: bool
    show: Callable[[str], None]


def cost_of(peer: Peer, work: Callable[[], int]) -> Cost:
    """What the broker spends on a piece of work, by message; ``work`` returns how many there were."""
    before, started = peer.cpu_seconds(), time.monotonic()
    count = work()
    took, spent = time.monotonic() - started, peer.cpu_seconds() - before
    return Cost(spent * 1e6 / max(1, count), count / took)


def generated(setting: Setting, peer: Peer, load: Load) -> Callable[[], int]:
    """Work for ``cost_of``: one run of the load generator."""

    def work() -> int:
        result: LoadResult = setting.generator.run(peer, load)
        if result.rejected or result.duplicates:
            raise BenchError(f"{result.rejected} messages rejected and {result.duplicates} repeated")
        return result.messages

    return work


def beside(
    setting: Setting, peer: Peer, yardstick: Callable[[], int], work: Callable[[], int]
) -> tuple[Cost, Cost]:
    """Costs of the yardstick and of the work, turn by turn: medians, so that a busy moment of the machine hurts neither."""
    pairs = [(cost_of(peer, yardstick), cost_of(peer, work)) for _ in range(setting.rounds)]
    return _median([pair[0] for pair in pairs]), _median([pair[1] for pair in pairs])


def _median(costs: list[Cost]) -> Cost:
    return Cost(median(cost.cpu_us for cost in costs), median(cost.per_s for cost in costs))


def elsewhere(peer: Peer, port: int) -> Peer:
    """The same broker through another port."""
    return dataclasses.replace(peer, port=port)


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError(f"process {pid} has ended")


class Management:
    """One connection to the management API and the page."""

    def __init__(self, peer: Peer) -> None:
        expires_at = int(time.time()) + TOKEN_SECONDS
        self._headers = {
            "Authorization": sas_token(f"http://{peer.host}/", peer.user, peer.password, expires_at),
            "Content-Type": "application/atom+xml",
        }
        self._connection = http.client.HTTPConnection(peer.host, peer.port, timeout=120)

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer. A busy broker is asked again."""
        while True:
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
            text = answer.read()
            if answer.status == 503:
                time.sleep(BUSY_RETRY_S)
                continue
            if answer.status >= 400:
                raise BenchError(f"{method} {path}: {answer.status} {text[:300]!r}")
            return text

    def close(self) -> None:
        self._connection.close()


def as_table(rows: list[Row]) -> list[str]:
    """The table as Markdown."""
    return [
        "| load | cost | beside | unit | ratio | |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row.load} | {_number(row.cost)} | {_number(row.yardstick)} | {row.unit} | {row.ratio:.2f} | {row.note} |"
            for row in rows
        ),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def as_json(rows: list[Row]) -> str:
    return json.dumps([{**dataclasses.asdict(row), "ratio": row.ratio} for row in rows], indent=1)
