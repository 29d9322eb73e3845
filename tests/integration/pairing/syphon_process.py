"""A syphon in a process of its own that can be killed, and a backlog to drain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.sdk.messages import message_bytes
from pairbus.testing import Namespace, Pair
from tests.simulation.pair.model import original
from tests.waiting import wait_until

BATCH = 200


def backlog_queue(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


def fill(secondary: Namespace, queues: int, count: int, path: str = "orders", *, factory: str = "f") -> None:
    """Park ``count`` messages m0, m1, … for ``path``, spread over the backlog queues."""
    with secondary.client() as client:
        for index in range(queues):
            numbers = range(index, count, queues)
            parked = [
                parking.park(
                    original(number, None, has_alias_name=False, has_life=False),
                    path,
                    Passport(factory, 1, number + 1, "r"),
                )
                for number in numbers
            ]
            with client.get_queue_sender(backlog_queue(index)) as sender:
                for first in range(0, len(parked), BATCH):
                    batch = message_bytes.new_batch(250_000, sender)
                    some = parked[first : first + BATCH]
                    assert len(message_bytes.batch_of(batch, some)) == len(some)
                    sender.send_messages(batch)


def waiting(namespace: Namespace, queue: str) -> int:
    """How many messages a queue holds."""
    with namespace.administration_client() as client:
        return int(client.get_queue_runtime_properties(queue).active_message_count or 0)


LOCAL = ("-m", "pairbus", "syphon", "--engine", "local")
SPARK = ("-m", "pairbus", "syphon", "--engine", "spark", "--master", "local[2,4]", "--order", "session")


class SyphonProcess:
    """``pairbus syphon --engine local``, or another program that drains, as a child process."""

    def __init__(
        self,
        pair: Pair,
        state: Path,
        *options: str,
        program: Sequence[str] = LOCAL,
        **environment: str,
    ) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self.log = state / "syphon.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *options],
                env={
                    **os.environ,
                    "PAIRBUS_PRIMARY": pair.primary.connection_string,
                    "PAIRBUS_SECONDARY": pair.secondary.connection_string,
                    "PAIRBUS_STATE_DIR": str(state),
                    **environment,
                },
                stdout=log,
                stderr=log,
                # A group of its own: a kill takes Java and its workers along, as the end of a machine does.
                start_new_session=True,
            )

    def wait(self, seconds: float) -> int:
        """Its exit code, within a time."""
        return self.process.wait(seconds)

    def ended_at(self) -> float:
        """Wait for its end. Returns when that was, on the steady clock."""
        self.process.wait()
        return time.monotonic()

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()


def wait_for_home(
    namespace: Namespace, queue: str, count: int, seconds: float = 120.0, *, pause: float = 0.25
) -> float:
    """Wait until a queue holds at least ``count`` messages. Returns how long that took."""
    begun = time.monotonic()
    wait_until(
        lambda: waiting(namespace, queue) >= count, f"{count} messages in {queue}", seconds, pause=pause
    )
    return time.monotonic() - begun
