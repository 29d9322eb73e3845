"""The load generator from Python: compile it, point it at a peer, read its one line of JSON."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer import BenchError, Peer

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).with_name("load.c")
RUN_SLACK_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What the generator measured in one run."""

    messages: int
    wall_s: float
    msgs_per_s: float
    send_acked_per_s: float
    receive_settled_per_s: float
    ack_us_p50: float
    ack_us_p99: float
    ack_us_max: float
    rejected: int
    duplicates: int
    generator_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run: ``seconds`` of sending (then everything is drained), or exactly ``count`` messages."""

    mode: str = "both"
    window: int = 100
    connections: int = 1
    seconds: float = 0.0
    count: int = 0
    rate: float = 0.0
    """Messages a second and sender at most; 0: as many as the window lets through."""
    is_verified: bool = True
    address: str = ""
    """Where to send; empty: the peer's own queue."""
    receive_address: str = ""
    """Where to receive, if not from there."""
    subject: str = ""
    sessions: int = 0
    """So many session ids take turns; 0: none."""
    spread: int = 0
    """So many queues, named ``<address>-0`` and on, share the connections."""
    deletes: bool = False
    """Receive and delete, instead of peek-lock."""

    def arguments(self) -> list[str]:
        words = [self.mode, "--window", str(self.window), "--connections", str(self.connections)]
        words += ["--count", str(self.count)] if self.count else ["--seconds", str(self.seconds)]
        words += ["--rate", str(self.rate)] if self.rate else []
        words += ["--receive-address", self.receive_address] if self.receive_address else []
        words += ["--subject", self.subject] if self.subject else []
        words += ["--sessions", str(self.sessions)] if self.sessions else []
        words += ["--spread", str(self.spread)] if self.spread else []
        words += ["--delete"] if self.deletes else []
        return words if self.is_verified else [*words, "--no-verify"]


class LoadGenerator:
    """The compiled binary, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise BenchError("a C compiler is missing. Install one: sudo apt-get install gcc libc6-dev")
        self._binary = directory / "load"
        command = [compiler, "-std=c99", "-O2", "-o", str(self._binary), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} failed:\n{done.stderr}")

    def run(self, peer: Peer, load: Load) -> LoadResult:
        where = ["--host", peer.host, "--port", str(peer.port), "--address", load.address or peer.address]
        who = ["--user", peer.user, "--password", peer.password] if peer.user else []
        done = subprocess.run(
            [str(self._binary), *load.arguments(), *where, *who],
            capture_output=True,
            text=True,
            timeout=load.seconds + RUN_SLACK_S,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"{peer.name}, {' '.join(load.arguments())}: {done.stderr.strip()}")
        told = json.loads(done.stdout)
        return LoadResult(
            messages=told["acked"] if load.mode != "receive" else told["settled"],
            **{name: told[name] for name in LoadResult.__slots__ if name != "messages"},
        )

    @contextlib.contextmanager
    def null_broker(self) -> Iterator[Peer]:
        """A broker in C that answers at once and stores nothing: what the generator can do alone."""
        command = [str(self._binary), "--serve-null", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                port = int(json.loads(process.stdout.readline())["port"])
                yield Peer(
                    name="null broker",
                    host="127.0.0.1",
                    port=port,
                    user="",
                    password="",
                    address="q",
                    pid=process.pid,
                )
            finally:
                process.terminate()
