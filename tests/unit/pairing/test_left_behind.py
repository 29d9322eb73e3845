"""A spool of the directory that names another primary: it is not replayed, and the client says so."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.events import Event, Kind
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.sdk.messages import message_bytes
from pairbus.spool.directory import Spools
from pairbus.spool.file import About
from pairbus.spool.reading import listed
from pairbus.spool.store import Append
from tests.unit.pairing.fake_sdk import Bench, Stage, text

OWN = "p.servicebus.windows.net"
MOVED = "10.0.0.5:5673"


def left(root: Path, address: str, *, primary: str = "p", count: int = 2, queues: int = 7) -> None:
    """A client of a primary at this address was closed, and has left messages of ``orders``."""
    spools = Spools(root, About(primary, address, queues), bytes_max=1 << 20, age_ms_max=1 << 50)
    payloads = [message_bytes.encoded(text(number)) for number in range(count)]
    append = Append("orders", "Orders", payloads, 1_000)
    spools.enter(append).commit(append)
    spools.close()


def opened(root: Path, *aliases: str) -> tuple[Bench, PairedServiceBusClient]:
    bench = Bench(spool=root)
    client = bench.paired()
    client._identity = PrimaryIdentity.make(OWN, aliases)
    assert client._spooling is not None
    client._spooling.open()
    client._spooling.start()
    return bench, client


def told(client: PairedServiceBusClient) -> list[Event]:
    return [event for event in client.events() if event.kind is Kind.SPOOL_LEFT_BEHIND]


async def replayed(client: PairedServiceBusClient) -> None:
    for _ in range(100):
        if Kind.SPOOL_REPLAYED in [event.kind for event in client.events()]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("nothing was replayed")


@pytest.mark.promise("P50")
def test_a_spool_of_the_same_primary_at_another_address_is_named(stage: Stage, tmp_path: Path) -> None:
    left(tmp_path, MOVED)

    async def act() -> None:
        bench, client = opened(tmp_path)
        (event,) = told(client)
        assert event.subject == str(tmp_path / "0")
        assert (event.data["messages"], event.data["address"]) == (2, MOVED)
        assert f"primary_aliases=['{MOVED}']" in event.text
        assert f"at {OWN}" in event.text
        report = client.health()["Orders"]
        assert (report.left_behind, report.spooled) == (2, 0)
        assert (report.oldest_left_behind_age_ms or 0) > 0
        assert str(tmp_path / "0") in report.left_behind_why
        assert report.left_behind_why in client.explain("orders")
        assert client.statistics().spool_left_behind == 2
        assert not bench.primary.stored
        await client.close()

    stage.play(act)
    (found,) = listed(tmp_path)[0]
    assert (found.about.queues, found.total().count) == (7, 2), "another primary's spool is not touched"


@pytest.mark.parametrize("address", [MOVED, OWN.upper(), f"{OWN}:5671"])
def test_a_spool_at_an_address_of_the_primary_is_replayed(address: str, stage: Stage, tmp_path: Path) -> None:
    # As a client writes it: in the one form that passports and backlog queues have, too.
    left(tmp_path, PrimaryIdentity.make(address).address, primary="P")

    async def act() -> None:
        bench, client = opened(tmp_path, MOVED)
        assert told(client) == []
        await replayed(client)
        assert len(bench.primary.stored["Orders"]) == 2
        await client.close()

    stage.play(act)


def test_what_somebody_else_replays_is_not_left_behind_any_more(stage: Stage, tmp_path: Path) -> None:
    left(tmp_path, MOVED)

    async def act() -> None:
        _, client = opened(tmp_path)
        assert client.health()["Orders"].left_behind == 2
        _, other = opened(tmp_path, MOVED)
        assert client.health()["Orders"].left_behind == 0, "the other client has it open"
        await replayed(other)
        await other.close()
        report = client.health()["Orders"]
        assert (report.left_behind, report.left_behind_why) == (0, "")
        await client.close()

    stage.play(act)


def test_a_spool_of_a_primary_with_another_name_is_named_and_is_no_entity_of_ours(
    stage: Stage, tmp_path: Path
) -> None:
    left(tmp_path, "fabrikam.example", primary="fabrikam", count=1)

    async def act() -> None:
        _, client = opened(tmp_path)
        (event,) = told(client)
        assert "1 message in the spool" in event.text
        assert "A client of fabrikam replays it" in event.text
        assert client.health() == {}
        await client.close()

    stage.play(act)


def test_an_empty_spool_takes_the_address_of_the_client_that_uses_it(tmp_path: Path) -> None:
    before = Spools(tmp_path, About("p", MOVED), bytes_max=1, age_ms_max=1)
    for spool in before.all:
        spool.close()
    for lock in before._locks.values():
        os.close(lock)
    after = Spools(tmp_path, About("p", OWN), bytes_max=1, age_ms_max=1)
    assert [spool.directory.name for spool in after.all] == ["0"]
    assert [one.about.address for one in listed(tmp_path)[0]] == [OWN]
    after.close()
