"""Sessions through real syphons: one is killed in the middle, another runs beside it. P14."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus.pairing import parking
from pairbus.pairing.parking import Follows, Passport
from pairbus.sdk.links.browsing import Browser
from pairbus.sdk.messages import message_bytes
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.pairing.syphon_process import SyphonProcess, backlog_queue, wait_for_home, waiting
from tests.payloads import message_id_of
from tests.simulation.pair.model import original
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

QUEUES = 2
SESSIONS = 20
MESSAGES = 1_200


@pytest.fixture
def pair() -> Iterator[Pair]:
    # Short locks: what a killed syphon held comes back soon.
    backlog = [Queue(backlog_queue(index), lock_duration=timedelta(seconds=5)) for index in range(QUEUES)]
    with Pair(
        Namespace("contoso", process=True, queues=["orders"]),
        Namespace("fabrikam", process=True, queues=backlog),
    ) as started:
        yield started


def park_sessions(secondary: Namespace) -> dict[str, list[str]]:
    """Park messages of many sessions; halfway each third session moves to the other queue. Returns them by session."""
    parked: dict[str, list[str]] = defaultdict(list)
    queues: dict[int, list[bytes]] = {index: [] for index in range(QUEUES)}
    last: dict[int, int] = {}
    for number in range(MESSAGES):
        session = number % SESSIONS
        is_moved = number >= MESSAGES // 2 and session % 3 == 0
        first = (session % QUEUES, (session + is_moved) % QUEUES)
        follows: tuple[Follows, ...] = ()
        if is_moved and number < MESSAGES // 2 + SESSIONS:
            follows = (Follows(backlog_queue(first[0]), "f", last[session]),)
        last[session] = number + 1
        passport = Passport("f", 1, number + 1, "r", follows=follows, order="session")
        sent = original(number, f"s{session}", has_alias_name=False, has_life=False)
        queues[first[1]].append(parking.park(sent, "orders", passport))
        parked[f"s{session}"].append(f"m{number}")
    with secondary.client() as client:
        for index, payloads in queues.items():
            with client.get_queue_sender(backlog_queue(index)) as sender:
                for start in range(0, len(payloads), 200):
                    batch = message_bytes.new_batch(250_000, sender)
                    some = payloads[start : start + 200]
                    assert len(message_bytes.batch_of(batch, some)) == len(some)
                    sender.send_messages(batch)
    return parked


def arrived(primary: Namespace) -> list[str]:
    """The message ids of a queue in their order, each once: where it arrived first."""
    found: dict[str, None] = {}
    with primary.client() as client, client.get_queue_receiver("orders") as receiver:
        browser = Browser(receiver)
        number = 1
        while page := browser.page(number, 250):
            for one in page:
                found.setdefault(message_id_of(one.payload))
            number = page[-1].sequence_number + 1
    return list(found)


@pytest.mark.slow
@pytest.mark.promise("P14")
def test_sessions_arrive_in_order_though_a_syphon_is_killed_and_another_runs_beside_it(
    pair: Pair, tmp_path: Path
) -> None:
    parked = park_sessions(pair.secondary)

    with SyphonProcess(pair, tmp_path / "first") as first, SyphonProcess(pair, tmp_path / "second") as second:
        wait_for_home(pair.primary, "orders", MESSAGES // 4)
        first.kill()
        with SyphonProcess(pair, tmp_path / "third") as third:
            backlog = [backlog_queue(index) for index in range(QUEUES)]
            wait_until(
                lambda: not any(waiting(pair.secondary, queue) for queue in backlog),
                "the backlog is empty",
                120,
            )
            assert second.process.poll() is None, second.log.read_text()
            assert third.process.poll() is None, third.log.read_text()

    order = arrived(pair.primary)
    assert len(order) == MESSAGES
    for session, sent in parked.items():
        of_it = set(sent)
        assert [name for name in order if name in of_it] == sent, session
