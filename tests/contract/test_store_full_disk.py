"""A store over a PostgreSQL whose disk is really full (B12): a small file system that holds one tablespace."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from pairbus.storage.postgres.database import Database
from tests.contract.owner_kit import Owner
from tests.contract.store_kinds import TableKind
from tests.postgres_kit import own_server
from tests.small_disk import mounted

DISK_MB: Final = 24
LARGER_MB: Final = 64
RANGE_FRAMES: Final = 64
RESERVE: Final = 3 << 20
SIZE: Final = 30_000
QUIET: Final = {"autovacuum": "off", "bgwriter_lru_maxpages": "0", "checkpoint_timeout": "1h"}
"""Nothing but the test decides when pages are written."""


@dataclass(frozen=True, slots=True)
class Small:
    """A namespace whose log is on a small disk."""

    kind: TableKind
    disk: Path

    def resize(self, size_mb: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size_mb}m", str(self.disk)], check=True)

    def fill(self) -> None:
        """Somebody else takes all the space that is left."""
        with (self.disk / "other").open("wb", buffering=0) as other, pytest.raises(OSError, match="space"):
            for _ in range(DISK_MB << 10):
                other.write(b"x" * 4096)


@pytest.fixture(params=["just made", "after a checkpoint"])
def small(request: pytest.FixtureRequest) -> Iterator[Small]:
    """The log of a namespace on a small disk. The database's own log is elsewhere: it would stop without.

    The catalogs of a database that was just made are mostly holes on disk, which PostgreSQL fills at the next checkpoint, or when it needs the
    memory of their pages.
    """
    with contextlib.ExitStack() as ending:
        server = ending.enter_context(own_server(settings=QUIET))
        disk = server.directory / "small"
        disk.mkdir()
        ending.enter_context(mounted(disk, f"{DISK_MB}m"))
        ending.callback(server.kill)
        place = disk / "tablespace"
        place.mkdir()
        owner = server.data.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        server.run(f"create tablespace small location '{place}'")
        server.run("create database small tablespace small")
        if request.param == "after a checkpoint":
            server.run("checkpoint")
        database = Database(server.url("small"), "contoso", range_frames=RANGE_FRAMES)
        database.prepare()
        kind = TableKind(database, is_background=False, reserve_bytes=RESERVE)
        ending.callback(kind.tear_down)
        yield Small(kind, disk)


def opened(kind: TableKind) -> Owner:
    store = kind.open()
    return Owner(store, store.replay())


@pytest.mark.promise("B12", "S8")
def test_a_full_disk_of_the_database_refuses_sends_and_takes_settlements(
    small: Small,
) -> None:
    kind = small.kind
    owner = opened(kind)
    sent = owner.send_until_refused(SIZE)
    assert sent > 50
    assert owner.store.statistics().is_full
    owner.settle(sent - 2)
    kept = set(owner.messages)
    owner.rounds_until_room(SIZE)
    assert owner.send_until_refused(SIZE) >= sent // 3, "space came back"
    assert kept <= set(owner.messages)

    kept = set(owner.messages)
    kind.kill(owner.store)
    owner = opened(kind)
    assert set(owner.messages) == kept, "the next owner finds everything on the full disk"
    small.resize(LARGER_MB)
    owner.rounds_until_room(SIZE)
    assert owner.send_until_refused(SIZE, 20) == 20


@pytest.mark.promise("B12", "S8")
def test_a_node_takes_over_a_full_disk_on_which_the_former_owner_left_its_reserve(small: Small) -> None:
    """Though its fence begins a range, and so needs a page."""
    owner = opened(small.kind)
    sent = owner.send_until_refused(SIZE, RANGE_FRAMES - 2)
    assert sent == RANGE_FRAMES - 2
    small.fill()
    small.kind.kill(owner.store)
    owner = opened(small.kind)
    assert len(owner.messages) == sent
    assert not owner.store.has_room(SIZE), "the reserve is used"
    owner.settle(sent)
