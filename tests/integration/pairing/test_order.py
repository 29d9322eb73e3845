"""End to end with real brokers: ``order="session"`` while the primary is killed and comes back. P15."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import AccessRights, AuthorizationRule

from pairbus import NoListenRightError, PairedServiceBusClient, SessionFencedError, aio
from pairbus.pairing.events import Kind
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.pairing.kit import by_hand, options, paired, text
from tests.integration.pairing.order_process import LAST_SECONDS, QUEUES
from tests.integration.pairing.syphon_process import SPARK, SyphonProcess, backlog_queue, waiting
from tests.integration.pairing.test_credentials import KEY, parts
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

SEND_SECONDS = 20
SESSIONS = ("a", "b", "c")
PROGRAM = str(Path(__file__).with_name("order_process.py"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(queues=["orders"]) as started:
        yield started


def arrived(namespace: Namespace) -> dict[str, list[int]]:
    """The numbers of each session in the order in which they first arrived."""
    found: dict[str, list[int]] = {}
    with namespace.client() as client, client.get_queue_receiver("orders") as receiver:
        number = 1
        while page := receiver.peek_messages(max_message_count=250, sequence_number=number):
            for message in page:
                session, one = str(message).rsplit(" ", 1)
                if int(one) not in found.setdefault(session, []):
                    found[session].append(int(one))
            number = int(page[-1].sequence_number or 0) + 1
    return found


def kept(order: str, name: str, number: int, **details: Any) -> ServiceBusMessage:
    """A message of a session, or with a partition key."""
    key = {"session_id": name} if order == "session" else {"partition_key": name}
    return text(f"{name} {number}", **key, **details)


def check(found: dict[str, list[int]], accepted: dict[str, list[int]]) -> None:
    """Everything whose send has returned is there, in order."""
    for session, numbers in accepted.items():
        wanted = set(numbers)
        assert [number for number in found.get(session, []) if number in wanted] == numbers, session


@pytest.mark.promise("P15")
@pytest.mark.parametrize("order", ["session", "partition"])
def test_messages_arrive_in_order_through_an_outage(order: str, pair: Pair) -> None:
    accepted: dict[str, list[int]] = {session: [] for session in SESSIONS}
    is_over = threading.Event()
    with paired(pair, options(order=order, enable_syphon=True)) as client:

        def send(session: str) -> None:
            sender = client.get_queue_sender("orders")
            number = 0
            while not is_over.is_set() or number < 10:
                number += 1
                sender.send_messages(kept(order, session, number), timeout=SEND_SECONDS)
                accepted[session].append(number)
                time.sleep(0.02)

        threads = [threading.Thread(target=send, args=(session,)) for session in SESSIONS]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(len(numbers) > 3 for numbers in accepted.values()), "sends before")
        pair.primary.kill()
        wait_until(lambda: client.statistics().to_backlog > 20, "parked messages")
        pair.primary.restart()
        wait_until(lambda: client.statistics().fences_lifted >= len(SESSIONS), "the fences are lifted")
        before = client.statistics().to_primary
        wait_until(lambda: client.statistics().to_primary > before + 10, "sends go direct again")
        is_over.set()
        for thread in threads:
            thread.join(100)
        wait_until(lambda: client.statistics().restored >= client.statistics().to_backlog, "the drain")
        assert client.statistics().fence_peeks > 0
        kinds = {event.kind for event in client.events()}
        assert {Kind.FENCE_STANDS, Kind.FENCE_LIFTED} <= kinds

    check(arrived(pair.primary), accepted)


@pytest.mark.promise("P15")
def test_messages_arrive_in_order_through_an_outage_with_coroutines(pair: Pair) -> None:
    accepted: dict[str, list[int]] = {session: [] for session in SESSIONS}

    async def live() -> None:
        client = aio.PairedServiceBusClient.from_connection_strings(
            pair.primary.connection_string,
            pair.secondary.connection_string,
            options=options(order="session", enable_syphon=True),
            retry_total=0,
        )
        is_over = asyncio.Event()
        async with client:

            async def send(session: str) -> None:
                sender = client.get_queue_sender("orders")
                number = 0
                while not is_over.is_set():
                    both = [
                        text(
                            f"{session} {number + place}",
                            session_id=session,
                            message_id=f"{session}{number + place}",
                        )
                        for place in (1, 2)
                    ]
                    await sender.send_messages(both, timeout=SEND_SECONDS)
                    accepted[session] += [number + 1, number + 2]
                    number += 2
                    await asyncio.sleep(0.02)

            async def until(condition: object, what: str) -> None:
                assert callable(condition)
                await asyncio.get_running_loop().run_in_executor(None, wait_until, condition, what)

            senders = [asyncio.ensure_future(send(session)) for session in SESSIONS]
            await until(lambda: all(len(numbers) > 3 for numbers in accepted.values()), "sends before")
            await asyncio.to_thread(pair.primary.kill)
            await until(lambda: client.statistics().to_backlog > 20, "parked messages")
            await asyncio.to_thread(pair.primary.restart)
            await until(lambda: client.statistics().fences_lifted >= len(SESSIONS), "the fences are lifted")
            is_over.set()
            await asyncio.gather(*senders)
            await until(lambda: client.statistics().restored >= client.statistics().to_backlog, "the drain")

    asyncio.run(live())
    check(arrived(pair.primary), accepted)


@pytest.mark.promise("P15")
@pytest.mark.parametrize("order", ["session", "partition"])
def test_a_client_that_is_started_again_stays_behind_what_was_parked_before(order: str, pair: Pair) -> None:
    with paired(pair, by_hand(order=order)) as first:
        first.fail_over("orders")
        for number in (1, 2, 3):
            first.get_queue_sender("orders").send_messages(kept(order, "a", number))
    with paired(pair, by_hand(order=order)) as again:
        sender = again.get_queue_sender("orders")
        assert again.statistics().sessions_fenced == 1
        sender.send_messages(kept(order, "a", 4))
        sender.send_messages(kept(order, "b", 1))
        assert (again.statistics().to_backlog, again.statistics().to_primary) == (1, 1)
        report = again.health()["orders"]
        assert report.fenced_sessions == 1
        assert report.oldest_parked_age_ms is not None
        with paired(pair, by_hand(enable_syphon=True)):
            wait_until(lambda: again.statistics().sessions_fenced == 0, "the fence is lifted")
        sender.send_messages(kept(order, "a", 5))
        assert again.statistics().to_primary == 2
        assert again.health()["orders"].oldest_parked_age_ms is None

    assert arrived(pair.primary) == {"b": [1], "a": [1, 2, 3, 4, 5]}


def test_a_fence_that_stands_too_long_raises_or_is_overtaken(pair: Pair) -> None:
    for policy, kind in (("raise", Kind.FENCE_TIMED_OUT), ("overtake", Kind.FENCE_OVERTAKEN)):
        changed = by_hand(order="session", fence_timeout=timedelta(seconds=1), fence_policy=policy)
        with paired(pair, changed) as client:
            sender = client.get_queue_sender("orders")
            client.fail_over("orders")
            sender.send_messages(text("a 1", session_id="a", message_id="oldest"))
            client.mark_healthy("orders")
            wait_until(lambda: kind in {event.kind for event in client.events()}, "the bound")  # noqa: B023
            if policy == "raise":
                with pytest.raises(SessionFencedError, match="oldest"):
                    sender.send_messages(text("a 2", session_id="a"))
            else:
                sender.send_messages(text("a 2", session_id="a"))
                assert client.statistics().to_primary == 1


def test_a_key_that_may_not_listen_is_refused_at_pairing(pair: Pair) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND],
        key_name="worker",
        primary_key=KEY,
        secondary_key=KEY,
    )
    name = parts(pair.primary)["Namespace"]
    with pair.secondary.administration_client() as management:
        management.create_queue(f"{name}/x-servicebus-transfer/0", authorization_rules=[rule])
    endpoint = parts(pair.secondary)["Endpoint"]
    secondary = (
        f"Endpoint={endpoint};SharedAccessKeyName=worker;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    )
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        secondary,
        options=options(order="session", backlog_queue_count=1),
        retry_total=0,
    )
    with pytest.raises(NoListenRightError, match="right to listen"):
        client.pair()
    assert not client.is_paired
    client.close()


@pytest.mark.slow
@pytest.mark.promise("P15", "P35")
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("drain", ["in-process", "spark"])
def test_many_processes_keep_their_sessions_in_order_through_ten_kills(drain: str, tmp_path: Path) -> None:
    # What a killed drain held comes back soon, however often that happens, and a busy machine still renews its locks in time.
    backlog = [
        Queue(
            backlog_queue(index), lock_duration=timedelta(seconds=15), max_delivery_count=MAX_DELIVERY_COUNT
        )
        for index in range(QUEUES)
    ]
    with Pair(
        Namespace("contoso", process=True, queues=["orders"]),
        Namespace("fabrikam", process=True, queues=backlog),
    ) as pair:
        day = _Day(pair, drain, tmp_path)
        with day:
            for index in range(KILLS):
                day.kill_both(index)
            day.end()
        accepted = day.accepted()
        assert len(accepted) == PROCESSES * SESSIONS_EACH
        check(arrived(pair.primary), accepted)


PROCESSES, SESSIONS_EACH, KILLS = 8, 25, 10
PAUSE_SECONDS = {"in-process": 2.0, "spark": 4.0}
"""Between two sends of a session, on average. A drain on Spark takes a while to start, and two cores carry all of this."""
SPARK_KILLS = 3
"""The drain on Spark is killed in every so many rounds: it takes a while to start again."""
MAX_DELIVERY_COUNT = 2_147_483_647
"""As pairing creates backlog queues: each kill costs the messages that the drain had locked one delivery."""
MOVED = 50
STEP_SECONDS = 120


class _Day:
    """Processes that send, and a drain that is killed and started again, while the brokers are killed."""

    def __init__(self, pair: Pair, drain: str, directory: Path) -> None:
        self._pair = pair
        self._drain = drain
        self._directory = directory
        self._stop = directory / "stop"
        self._logs = [directory / f"{index}.log" for index in range(PROCESSES)]
        self._senders: list[subprocess.Popen[bytes]] = []
        self._syphon: SyphonProcess | None = None

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            "PAIRBUS_PRIMARY": self._pair.primary.connection_string,
            "PAIRBUS_SECONDARY": self._pair.secondary.connection_string,
        }
        pause = str(PAUSE_SECONDS[self._drain])
        for index, log in enumerate(self._logs):
            command = [
                sys.executable,
                PROGRAM,
                f"p{index}",
                str(SESSIONS_EACH),
                pause,
                str(log),
                str(self._stop),
            ]
            with log.with_suffix(".err").open("wb") as errors:
                self._senders.append(subprocess.Popen(command, env=environment, stderr=errors))
        self._start_syphon()
        wait_until(lambda: all(log.exists() and log.stat().st_size for log in self._logs), "all send", 300)
        return self

    def __exit__(self, *details: object) -> None:
        for sender in self._senders:
            sender.kill()
            sender.wait(30)
        if self._syphon is not None:
            self._syphon.kill()

    def _start_syphon(self) -> None:
        if self._drain == "spark":
            self._syphon = SyphonProcess(self._pair, self._directory, "--queues", str(QUEUES), program=SPARK)
        else:
            host = (PROGRAM, "host", "0", "0", os.devnull, os.devnull)
            self._syphon = SyphonProcess(self._pair, self._directory, program=host)

    def kill_both(self, index: int) -> None:
        """Kill the primary, the secondary and the drain, each in the middle of what it does, and start them again."""
        pair = self._pair
        pair.primary.kill()
        before = self._parked()
        wait_until(lambda: self._parked() > before + MOVED, "messages are parked", STEP_SECONDS, pause=0.5)
        if index % 2:
            self._kill_secondary()
        pair.primary.restart()
        home = waiting(pair.primary, "orders")
        wait_until(
            lambda: waiting(pair.primary, "orders") > home + MOVED, "messages arrive", STEP_SECONDS, pause=0.5
        )
        if not index % 2:
            self._kill_secondary()
        if self._drain != "spark" or index % SPARK_KILLS == 1:
            assert self._syphon is not None
            self._syphon.kill()
            self._start_syphon()

    def _kill_secondary(self) -> None:
        self._pair.secondary.kill()
        self._pair.secondary.restart()

    def _parked(self) -> int:
        return sum(waiting(self._pair.secondary, backlog_queue(index)) for index in range(QUEUES))

    def end(self) -> None:
        """Let the senders come to their end, and the backlog home."""
        self._stop.touch()
        for sender, log in zip(self._senders, self._logs, strict=True):
            assert sender.wait(LAST_SECONDS + 60) == 0, log.with_suffix(".err").read_text()[-4_000:]
        wait_until(lambda: not self._parked(), "the backlog is empty", STEP_SECONDS, pause=0.5)

    def accepted(self) -> dict[str, list[int]]:
        """The numbers of each session whose sends have returned, in their order."""
        accepted: dict[str, list[int]] = {}
        for log in self._logs:
            for line in log.read_text().splitlines():
                session, number = line.split()
                accepted.setdefault(session, []).append(int(number))
        return accepted


@pytest.mark.parametrize("is_found_by", ["a send", "a look"])
def test_messages_of_a_deleted_backlog_queue_are_never_said_to_have_arrived(
    is_found_by: str, pair: Pair
) -> None:
    with (
        paired(pair, by_hand(order="session")) as client,
        client.get_queue_sender("orders") as sender,
        pair.secondary.administration_client() as management,
    ):
        client.fail_over("orders")
        for number in (1, 2, 3):
            sender.send_messages(kept("session", "a", number), timeout=SEND_SECONDS)
        queue = client.health()["orders"].backlog_queue
        assert queue is not None
        management.delete_queue(queue)
        if is_found_by == "a send":
            sender.send_messages(kept("session", "a", 4), timeout=SEND_SECONDS)
            assert waiting(pair.secondary, queue) == 1
            with pair.secondary.client() as official, official.get_queue_receiver(queue) as receiver:
                receiver.complete_message(receiver.receive_messages(max_wait_time=SEND_SECONDS)[0])
        client.mark_healthy("orders")
        wait_until(lambda: client.health()["orders"].fenced_sessions == 0, "the fence ends")
        sender.send_messages(kept("session", "a", 5), timeout=SEND_SECONDS)

        events = client.events()
        (lost,) = [event for event in events if event.kind is Kind.BACKLOG_LOST]
        assert (lost.subject, lost.is_loud, lost.data["messages"]) == (queue, True, 3)
        (ended,) = [event.text for event in events if event.kind is Kind.FENCE_LIFTED]
        assert ended.startswith(
            "messages of session 'a' are no longer in the backlog: their queue was deleted"
        )
        assert client.health()["orders"].parked_lost == 3
        found = client.statistics()
        assert (found.backlog_queues_lost, found.parked_lost) == (1, 3)
        assert (found.fences_lifted, found.fences_lost) == (0, 1)


def test_the_drain_inside_a_client_tells_that_its_queue_was_deleted(pair: Pair) -> None:
    with (
        paired(pair, by_hand(enable_syphon=True)) as client,
        client.get_queue_sender("orders") as sender,
        pair.secondary.administration_client() as management,
    ):
        client.fail_over("orders")
        sender.send_messages(text("a 1"), timeout=SEND_SECONDS)
        queue = client.health()["orders"].backlog_queue
        assert queue is not None
        wait_until(lambda: client.statistics().received >= 1, "the drain has read the queue")

        management.delete_queue(queue)

        wait_until(lambda: client.statistics().backlog_queues_lost == 1, "the drain misses its queue")
        assert client.health()["orders"].parked_lost == 1
