"""What every store over a table does with limited space: a quota, or a database that is full (B12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.contract.owner_kit import Owner
from tests.contract.store_kinds import StoreKind, TableKind
from tests.contract.table_kinds import postgres_table
from tests.simulation.cluster.table import quiet_table

RANGE_FRAMES: Final = 256
"""More than the messages that fit, so that space runs out within one range."""
LIMIT: Final = 400_000
RESERVE: Final = 100_000
SIZE: Final = 9_000

KINDS: Final[dict[str, Callable[[], StoreKind]]] = {
    "simulated, full": lambda: TableKind(
        quiet_table(RANGE_FRAMES, LIMIT), is_background=False, reserve_bytes=RESERVE
    ),
    "simulated, quota": lambda: TableKind(
        quiet_table(RANGE_FRAMES), is_background=False, reserve_bytes=RESERVE, bytes_max=LIMIT
    ),
    "postgres, quota": lambda: TableKind(
        postgres_table(RANGE_FRAMES), is_background=False, reserve_bytes=RESERVE, bytes_max=LIMIT
    ),
}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Iterator[StoreKind]:
    made = KINDS[request.param]()
    yield made
    made.tear_down()


def opened(kind: StoreKind) -> Owner:
    store = kind.open()
    return Owner(store, store.replay())


@pytest.mark.promise("B12")
def test_space_comes_back_after_messages_were_taken(kind: StoreKind) -> None:
    owner = opened(kind)
    sent = owner.send_until_refused(SIZE)
    assert 10 < sent < RANGE_FRAMES // 2
    owner.settle(sent - 2)
    owner.rounds_until_room(SIZE)
    assert owner.send_until_refused(SIZE) >= sent // 2


@pytest.mark.promise("B12", "S3")
def test_space_comes_back_for_the_next_owner(kind: StoreKind) -> None:
    owner = opened(kind)
    sent = owner.send_until_refused(SIZE)
    owner.settle(sent // 3)
    kept = set(owner.messages)
    for _ in range(3):
        kind.kill(owner.store)
        owner = opened(kind)
        assert set(owner.messages) == kept
        owner.keep_house(30)
        assert owner.send_until_refused(SIZE) < sent
        taken = len(owner.messages) // 2
        owner.settle(taken)
        kept = set(owner.messages)
    owner.settle(len(owner.messages))
    owner.rounds_until_room(SIZE)
