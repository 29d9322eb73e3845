"""An event loop that ends before its client was closed: what the client held is free, and it can be closed and entered again."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient, aio
from pairbus.testing import Pair
from tests.integration.pairing.kit import bodies, options, paired
from tests.integration.pairing.test_lives import paired_aio
from tests.waiting import until, wait_until

SEND_SECONDS = 30


class EndedError(Exception):
    """What ends the program's first loop."""


def text(number: object) -> ServiceBusMessage:
    return ServiceBusMessage(str(number), session_id="s")


async def live_unclosed(client: aio.PairedServiceBusClient) -> None:
    """Pair, use what works in the background, and end in the middle."""
    await client.pair()
    sender = client.get_queue_sender("orders")
    await sender.send_messages(text(0))
    client.fail_over("orders")
    await sender.send_messages(text(1), timeout=SEND_SECONDS)
    raise EndedError


def end_at_once(client: aio.PairedServiceBusClient) -> None:
    """As ``asyncio.run``, but nobody cancels the tasks that are left."""
    loop = asyncio.new_event_loop()
    with pytest.raises(EndedError):
        loop.run_until_complete(live_unclosed(client))
    loop.close()


def end_in_order(client: aio.PairedServiceBusClient) -> None:
    with pytest.raises(EndedError):
        asyncio.run(live_unclosed(client))


@pytest.mark.promise("P44")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("work", "end", "is_closed_first"),
    [
        ("pings", end_in_order, True),
        ("pings", end_at_once, False),
        ("syphon", end_in_order, True),
        ("syphon", end_in_order, False),
        ("order", end_in_order, True),
        ("order", end_at_once, False),
        ("spool", end_in_order, True),
        ("spool", end_at_once, False),
        ("all", end_in_order, True),
    ],
)
def test_a_client_whose_loop_has_ended_is_closed_and_entered_again(
    pair: Pair, tmp_path: Path, work: str, is_closed_first: bool, end: Any
) -> None:
    changes: dict[str, Any] = {
        "pings": {},
        "syphon": {"enable_syphon": True},
        "order": {"order": "session"},
        "spool": {"spool": tmp_path / "spool"},
    }
    changes["all"] = {name: value for one in changes.values() for name, value in one.items()}
    client = paired_aio(pair, **changes[work])
    end(client)
    has_drain = bool(changes[work].get("enable_syphon"))

    async def then() -> None:
        if is_closed_first:
            await client.close()
            assert client.is_closed
        async with client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(text(2), timeout=SEND_SECONDS)
            client.fail_over("orders")
            await sender.send_messages(text(3), timeout=SEND_SECONDS)
            if has_drain:
                await until(lambda: client.statistics().restored >= 2, "the new drain")
        assert client.is_closed

    asyncio.run(then())
    expected = {"pings": ["0", "2"], "order": ["0"], "spool": ["0", "2"]}.get(work, ["0", "1", "2", "3"])
    assert sorted(bodies(pair.primary, "orders", len(expected))) == expected


@pytest.mark.promise("P44")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "collected"])
def test_what_a_client_has_spooled_whose_loop_has_ended_is_replayed_by_the_next_one(
    pair: Pair, tmp_path: Path, is_kept: bool
) -> None:
    kept = [paired_aio(pair, spool=tmp_path)]
    after = paired(pair, options(spool=tmp_path))
    pair.primary.kill()
    pair.secondary.kill()

    async def first() -> None:
        client = kept[0]
        await client.pair()
        await client.get_queue_sender("orders").send_messages(text(1), timeout=SEND_SECONDS)
        assert client.statistics().spooled == 1
        raise EndedError

    with pytest.raises(EndedError):
        asyncio.run(first())
    if not is_kept:
        kept.clear()
        gc.collect()
    pair.secondary.restart()
    pair.primary.restart()
    with after as client:
        wait_until(lambda: client.statistics().replayed_to_primary == 1, "the replay")
    assert sorted(bodies(pair.primary, "orders", 1)) == ["1"]
    if is_kept:
        asyncio.run(kept[0].close())


@pytest.mark.promise("P44")
def test_the_spool_of_a_client_on_threads_that_was_dropped_is_the_next_ones(
    pair: Pair, tmp_path: Path
) -> None:
    def drop() -> None:
        client: PairedServiceBusClient = paired(pair, options(spool=tmp_path))
        client.pair()
        client.get_queue_sender("orders").send_messages(text(1))

    drop()
    gc.collect()
    with paired(pair, options(spool=tmp_path)) as client:
        client.get_queue_sender("orders").send_messages(text(2))
        assert [one.name for one in tmp_path.iterdir()] == ["0"], "the spool of the one before was taken"
    assert sorted(bodies(pair.primary, "orders", 2)) == ["1", "2"]
