"""Backlog queues that appear while a drain runs, and a drain that starts before any client has paired."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.drain.hosting import those_that_open
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import by_hand, paired, text
from tests.integration.pairing.syphon_process import LOCAL, SPARK, SyphonProcess, backlog_queue, wait_for_home
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
SESSIONS = 40


def park(pair: Pair, count: int, name: str) -> None:
    """Park a message in each session, with a client that has so many backlog queues and keeps the order."""
    with paired(pair, by_hand(backlog_queue_count=count, order="session")) as client:
        client.fail_over("orders")
        with client.get_queue_sender("orders") as sender:
            for number in range(SESSIONS):
                sender.send_messages(text(f"{name}{number}", session_id=f"s{number}"))


@pytest.mark.promise("P41")
def test_queues_of_a_client_with_a_higher_count_are_drained_by_a_drain_that_runs(
    pair: Pair, tmp_path: Path
) -> None:
    with paired(pair, by_hand(backlog_queue_count=2)):
        pass
    with SyphonProcess(pair, tmp_path / "drain", "--queues", "4", "--extra") as drain:
        # What is parked before the drain has listed the queues would show nothing.
        park(pair, 2, "first")
        wait_for_home(pair.primary, "orders", SESSIONS)
        park(pair, 4, "m")
        park(pair, 2, "n")
        wait_for_home(pair.primary, "orders", 3 * SESSIONS)
        # On a busy machine everything may arrive by the queues it had: then the list is looked at within a minute.
        wait_until(
            lambda: "transfer/3 has appeared and is drained too" in drain.log.read_text(),
            "it says so",
            pause=0.1,
        )


@pytest.mark.promise("P41")
@pytest.mark.parametrize("program", [pytest.param(LOCAL, id="local"), pytest.param(SPARK, id="spark")])
def test_a_drain_waits_for_the_first_client_that_pairs(
    pair: Pair, tmp_path: Path, program: tuple[str, ...]
) -> None:
    with SyphonProcess(pair, tmp_path / "drain", program=program) as drain:
        wait_until(lambda: "this drain waits for that" in drain.log.read_text(), "it says so", pause=0.1)
        park(pair, 2, "m")
        wait_for_home(pair.primary, "orders", SESSIONS)
        drain.process.terminate()
        assert drain.wait(60) == 0
        assert drain.log.read_text().count("this drain waits for that") == 1


def test_a_drain_that_should_end_has_nothing_to_do_before_a_client_pairs_and_names_a_wrong_namespace(
    pair: Pair, tmp_path: Path
) -> None:
    with SyphonProcess(pair, tmp_path / "drain", "--once") as drain:
        assert drain.wait(60) == 0
        assert "no backlog queues of 'contoso'" in drain.log.read_text()
    with (
        Namespace("adatum", queues=["orders"]) as other,
        paired(Pair(other, pair.secondary), by_hand(backlog_queue_count=1)),
        SyphonProcess(pair, tmp_path / "other", "--once") as drain,
    ):
        assert drain.wait(60) == 2
        assert "but of 'adatum'" in drain.log.read_text()


@pytest.mark.promise("P41")
async def test_a_hosted_drain_finds_a_queue_that_was_missing_when_its_client_paired(pair: Pair) -> None:
    names = [backlog_queue(index) for index in range(3)]
    with pair.secondary.administration_client() as admin:
        admin.create_queue(names[0])
        admin.create_queue(names[1])
    async with pair.secondary.aio_client() as secondary:
        find = those_that_open(secondary, names)
        assert await find({names[0]}) == [names[1]]
