"""Kill the broker at random moments under load, restart it on its data, and judge what clients were told.

    python tests/soak/kill.py --kills 200 --seed 7

Prints a summary. Exit code 0: every promise held; 1: a violation or an error that no kill explains.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conformance.haste import make_haste
from tests.soak import kill_changes, kill_fanout, kill_transactions
from tests.soak.kill_history import Event, Operation, Verdict, Violation, judge
from tests.soak.kill_load import LOCK_SECONDS, ORDERS, SESSIONS, Drain, Yard, crew

NAMESPACE = "contoso"
UP_SECONDS_MAX = 1.6
"""The longest the broker lives."""
INTERRUPTED_SHARE = 0.3
"""How many recoveries are killed on their way (B9)."""
INTERRUPTED_SECONDS = (0.2, 1.0)
"""When, counted from the start of the process: before, in or just after its recovery."""

STOP_SECONDS_MAX = 180
ENOUGH_SECONDS_MAX = 180
LOG_CHARACTERS_SHOWN = 4_000


def run(
    kills: int, seed: int, progress: bool = False, at_least: Mapping[str, int] | None = None
) -> tuple[Verdict, list[Event]]:
    """One run; ends with a full drain and the verdict.

    ``at_least``: how often something must have happened; the last of the broker's lives lasts until then.
    """
    from pairbus.testing import Namespace, Queue

    queues = [
        Queue(ORDERS, lock_duration=timedelta(seconds=LOCK_SECONDS)),
        Queue(SESSIONS, requires_session=True, lock_duration=timedelta(seconds=LOCK_SECONDS)),
    ]
    make_haste()
    # The client tells of every connection that dies under it; here that is all of them.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    moments = random.Random(seed)
    queues += [*kill_fanout.queues(), *kill_transactions.queues(), *kill_changes.queues()]
    topics = {"Topics": [*kill_fanout.configuration()["Topics"], *kill_changes.configuration()["Topics"]]}
    with Namespace(NAMESPACE, process=True, queues=queues, config=topics, faults=False) as namespace:
        yard = Yard(namespace.connection_string, namespace.ca_file, seed)
        clerk = kill_changes.Clerk(yard, "clerk")
        actors = [*crew(yard), *kill_fanout.crew(yard), *kill_transactions.crew(yard), clerk]
        for actor in actors:
            actor.start()
        for number in range(kills):
            yard.is_up.set()
            time.sleep(moments.uniform(0, UP_SECONDS_MAX))
            began = yard.history.now()
            yard.is_up.clear()
            namespace.kill()
            yard.history.add(Operation.KILL, began, actor="killer")
            if moments.random() < INTERRUPTED_SHARE:
                interrupt_recovery(namespace.data, moments.uniform(*INTERRUPTED_SECONDS))
            namespace.restart()
            if progress and number % 10 == 9:
                print(f"{number + 1} kills, {len(yard.history.events)} events", flush=True)
        yard.is_up.set()
        wait_for_enough(yard, at_least or {})
        yard.is_over.set()
        for actor in actors:
            actor.join(STOP_SECONDS_MAX)
        # One more kill frees every lock, so that the drain need not wait them out (B17).
        began = yard.history.now()
        namespace.kill()
        yard.history.add(Operation.KILL, began, actor="killer")
        namespace.restart()
        try:
            Drain(yard).everything()
            with yard.client() as client:
                kill_fanout.drain(yard, client)
                kill_transactions.drain(yard, client)
                clerk.close_books(client)
        except Exception:
            print(namespace.log[-LOG_CHARACTERS_SHOWN:])
            raise
    verdict = judge(yard.history.events)
    strange = [Violation("client", "", text) for text in yard.unexpected]
    strange += [Violation("client", actor.name, "did not stop") for actor in actors if actor.is_alive()]
    return Verdict(verdict.violations + strange, verdict.counts), yard.history.events


def wait_for_enough(yard: Yard, at_least: Mapping[str, int]) -> None:
    """On a slow machine little may have happened between the kills."""
    give_up_at = time.monotonic() + ENOUGH_SECONDS_MAX
    while time.monotonic() < give_up_at:
        counts = judge(list(yard.history.events)).counts
        if all(counts.get(name, 0) > number for name, number in at_least.items()):
            return
        time.sleep(1)


def interrupt_recovery(data: Path, seconds: float) -> None:
    """Start a broker on the data and kill it on its way up."""
    command = [sys.executable, "-m", "pairbus", "serve", "--namespace", NAMESPACE, "--data", str(data)]
    command += ["--amqp", "127.0.0.1:0", "--http", "off"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds)
    process.kill()
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--history", type=Path, help="write the history there, one JSON object a line")
    options = parser.parse_args()
    start = time.monotonic()
    verdict, events = run(options.kills, options.seed, progress=True)
    if options.history:
        options.history.write_text("".join(json.dumps(asdict(event), default=str) + "\n" for event in events))
    print(verdict.summary())
    print(f"seed {options.seed}, {time.monotonic() - start:.0f} s")
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
