"""A syphon in a process of its own that is killed, stopped and misdirected. P35, P36, P41, P44."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus.sdk.links.browsing import browse
from pairbus.sdk.messages import sections
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.pairing.kit import options, paired
from tests.integration.pairing.syphon_process import (
    SyphonProcess,
    backlog_queue,
    fill,
    wait_for_home,
    waiting,
)
from tests.payloads import message_id_of
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

QUEUES = 2
LOCK_SECONDS = 5


POLL_SECONDS = 0.05


@pytest.fixture
def pair() -> Iterator[Pair]:
    with new_pair() as started:
        yield started


@contextmanager
def new_pair() -> Iterator[Pair]:
    # Short locks: what a killed syphon held comes back soon.
    backlog = [
        Queue(backlog_queue(index), lock_duration=timedelta(seconds=LOCK_SECONDS)) for index in range(QUEUES)
    ]
    with Pair(
        Namespace("contoso", process=True, queues=["orders", "events"]),
        Namespace("fabrikam", process=True, queues=backlog),
    ) as started:
        yield started


def copies(namespace: Namespace, queue: str) -> Counter[str]:
    """How often each message id is in a queue."""
    found: Counter[str] = Counter()
    with namespace.client() as client, client.get_queue_receiver(queue) as receiver:
        number = 1
        while page := browse(receiver, number, 250):
            for payload in page:
                found[message_id_of(payload)] += 1
            number = _number(page[-1]) + 1
    return found


def _number(payload: bytes) -> int:
    items = sections.map_items(sections.find(sections.split(payload), sections.MESSAGE_ANNOTATIONS))
    return next(
        sections.long_of(value) or 0
        for key, value in items
        if sections.text_of(key) == "x-opt-sequence-number"
    )


@pytest.mark.promise("P35", "P36", "P44")
def test_a_drain_survives_a_kill_stops_on_request_and_ends_fast(pair: Pair, tmp_path: Path) -> None:
    count = 1_500
    fill(pair.secondary, QUEUES, count)
    with SyphonProcess(pair, tmp_path, "--once") as killed:
        wait_for_home(pair.primary, "orders", 300)
        killed.kill()
    with SyphonProcess(pair, tmp_path) as stopped:
        wait_for_home(pair.primary, "orders", waiting(pair.primary, "orders") + 1)
        begun = time.monotonic()
        stopped.process.send_signal(signal.SIGTERM)
        assert stopped.wait(60) == 0, stopped.log.read_text()
        seconds = time.monotonic() - begun
        assert seconds < 5 + 2, f"{seconds:.1f} s: 5 s and a slow machine's share"
    with SyphonProcess(pair, tmp_path, "--once") as drain:
        assert drain.wait(90) == 0, drain.log.read_text()

    found = copies(pair.primary, "orders")
    assert len(found) == count, "none is lost"
    assert max(found.values()) <= 2, "P36: one kill, and a stop repeats nothing"
    twice = sum(1 for times in found.values() if times > 1)
    assert twice <= 100, f"{twice} came twice: more than the batch whose bytes were still under way"
    assert waiting(pair.secondary, backlog_queue(0)) == 0


@pytest.mark.promise("P44")
def test_close_ends_a_hosted_syphon_within_seconds_while_it_works_on_what_is_in_doubt(
    pair: Pair, tmp_path: Path
) -> None:
    fill(pair.secondary, QUEUES, 1_000)
    with (tmp_path / "contoso-0.ledger").open("w") as ledger:
        for number in range(1_000):
            queue, position = backlog_queue(number % QUEUES), number // QUEUES + 1
            ledger.write(json.dumps(["+", queue, position, f"m{number}"]) + "\n")
    client = paired(pair, options(enable_syphon=True, backlog_queue_count=QUEUES))
    client.ledger = tmp_path
    client.pair()
    wait_until(lambda: client.statistics().restored > 0, "the first is home")
    begun = time.monotonic()
    client.close()
    seconds = time.monotonic() - begun

    assert seconds < 5 + 2, f"{seconds:.1f} s: 5 s and a slow machine's share"
    assert not [thread for thread in threading.enumerate() if thread.name == "pairbus-syphon"]


def test_once_ends_with_a_sentence_when_the_key_is_wrong(pair: Pair, tmp_path: Path) -> None:
    fill(pair.secondary, QUEUES, 10)
    wrong = pair.primary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AA")
    with SyphonProcess(pair, tmp_path, "--once", PAIRBUS_PRIMARY=wrong) as drain:
        assert drain.wait(60) == 3, drain.log.read_text()
        assert "check the key" in drain.log.read_text()


@pytest.mark.slow
def test_once_ends_with_a_sentence_when_the_primary_is_down(pair: Pair, tmp_path: Path) -> None:
    fill(pair.secondary, QUEUES, 10)
    drain = SyphonProcess(pair, tmp_path, "--once")  # started before the kill: it needs the connection string
    pair.primary.kill()
    with drain:
        assert drain.wait(90) == 3, drain.log.read_text()
    assert "is the namespace running" in drain.log.read_text()
    assert "still in the backlog" in drain.log.read_text()


@pytest.mark.promise("P41")
@pytest.mark.slow
def test_a_drain_with_six_kills_keeps_at_least_half_its_speed(pair: Pair, tmp_path: Path) -> None:
    """Beside it another drain, which nobody disturbs, has three times as much to do at the same time: both meet the same load.

    The start of each process does not count, nor the one wait for the last locks, which every kill costs whatever it does. A start
    lasts until the first message arrives. One that lasts much longer than the first, which follows no kill, waited for locks: that counts.
    """
    count, kills = 20_000, 6
    fill(pair.secondary, QUEUES, count)
    with new_pair() as beside:
        fill(beside.secondary, QUEUES, 3 * count)
        with SyphonProcess(beside, tmp_path / "undisturbed", "--once") as undisturbed:
            wait_for_home(beside.primary, "orders", 1, pause=POLL_SECONDS)
            begun, at_start = time.monotonic(), waiting(beside.primary, "orders")
            ended: list[float] = []
            threading.Thread(target=lambda: ended.append(undisturbed.ended_at()), daemon=True).start()
            starts: list[float] = []
            for kill in range(kills + 1):
                already = waiting(pair.primary, "orders")
                with SyphonProcess(pair, tmp_path / "disturbed", "--once") as drain:
                    starts.append(wait_for_home(pair.primary, "orders", already + 1, pause=POLL_SECONDS))
                    if kill < kills:
                        wait_for_home(pair.primary, "orders", count * (kill + 1) // (kills + 1))
                        drain.kill()
                    else:
                        assert drain.wait(300) == 0, drain.log.read_text()
            seconds = time.monotonic() - begun
            reached = waiting(beside.primary, "orders") - at_start
            seconds_beside = (ended[0] if ended else begun + seconds) - begun

    found = copies(pair.primary, "orders")
    assert len(found) == count
    speed = reached / seconds_beside
    starting = sum(min(start, 2 * starts[0]) for start in starts)
    speed_with_kills = count / (seconds - starting - LOCK_SECONDS)
    told = (
        f"with {kills} kills {seconds:.1f} s, of which {starting:.1f} s for starts; beside it {reached} messages in {seconds_beside:.1f} s: "
        f"{speed_with_kills:.0f} and {speed:.0f} messages/s, ratio {speed_with_kills / speed:.2f}; "
        f"{sum(found.values()) - count} copies too many"
    )
    print(told)
    assert speed_with_kills >= speed / 2, told
