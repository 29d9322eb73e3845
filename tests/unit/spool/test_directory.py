"""The spools of a directory: whose they are, and who takes those that were left behind."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from pairbus.errors import SpoolError, SpoolFull, SpoolNotStored
from pairbus.spool import store
from pairbus.spool.directory import Spools, is_held
from pairbus.spool.file import About
from pairbus.spool.store import Append
from tests.unit.spool import full_disk

ABOUT = About("contoso", "contoso.example:5672")


def opened(root: Path, about: About = ABOUT, **bounds: int) -> Spools:
    limits = {"bytes_max": 1 << 30, "age_ms_max": 1 << 40, **bounds}
    return Spools(root, about, bytes_max=limits["bytes_max"], age_ms_max=limits["age_ms_max"])


def keep(spools: Spools, *payloads: bytes, key: str = "orders", at_ms: int = 1_000) -> None:
    append = Append(key, key, payloads, at_ms)
    spools.enter(append).commit(append)


def abandon(spools: Spools) -> None:
    """As a process that was killed leaves it: nothing is closed but the lock."""
    for lock in spools._locks.values():
        os.close(lock)
    spools._locks.clear()


def everything(spools: Spools, key: str = "orders") -> list[bytes]:
    """Read and remove all, in the order of a replay."""
    found = []
    while (first := spools.first(key, 2, 1 << 20)) is not None:
        spool, messages = first
        found += [message.payload for message in messages]
        spool.remove(key, messages)
    return found


def test_two_clients_have_a_spool_each(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "s"), opened(tmp_path / "s")
    keep(one, b"one")
    keep(two, b"two")

    assert everything(one) == [b"one"]
    assert everything(two) == [b"two"]
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "s" / "0").stat().st_mode) == 0o700


@pytest.mark.promise("P50")
def test_the_next_client_takes_what_others_left_behind_and_replays_it_first(tmp_path: Path) -> None:
    one, two, alive = opened(tmp_path), opened(tmp_path), opened(tmp_path)
    keep(two, b"2", at_ms=2_000)
    keep(one, b"1", at_ms=1_000)
    keep(alive, b"not ours")
    abandon(one)
    abandon(two)

    following = opened(tmp_path)
    assert following.waits("orders") == 2
    keep(following, b"3", at_ms=3_000)
    assert everything(following) == [b"1", b"2", b"3"]
    assert everything(alive) == [b"not ours"]


def test_an_empty_spool_is_deleted_and_one_with_messages_is_not(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    keep(two, b"two")
    one.close()
    two.close()

    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
    assert everything(opened(tmp_path)) == [b"two"]


def test_a_spool_of_another_primary_is_left_alone(tmp_path: Path) -> None:
    other = opened(tmp_path, About("contoso", "elsewhere:5672"))
    keep(other, b"not for us")
    abandon(other)

    ours = Spools(
        tmp_path,
        ABOUT,
        bytes_max=1 << 20,
        age_ms_max=1 << 40,
        accepts=lambda address: address == ABOUT.address,
    )
    assert ours.first("orders", 1, 1) is None
    assert everything(opened(tmp_path, About("contoso", "elsewhere:5672"))) == [b"not for us"]


def test_a_damaged_spool_is_named_and_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "spool.db").write_bytes(b"something else" * 1_000)

    spools = opened(tmp_path)
    keep(spools, b"one")

    assert "0/spool.db cannot be opened" in spools.problems[0]
    assert everything(spools) == [b"one"]
    assert (tmp_path / "0" / "spool.db").exists()


@pytest.mark.promise("P52")
def test_the_bound_in_bytes_counts_what_was_left_behind(tmp_path: Path) -> None:
    before = opened(tmp_path)
    keep(before, b"x" * 600)
    abandon(before)
    spools = opened(tmp_path, bytes_max=1_500)
    keep(spools, b"x" * 600)

    with pytest.raises(
        SpoolFull, match=r"1,328 bytes of at most 1,500 \(spool_max_bytes\), and 664 more do not fit"
    ):
        keep(spools, b"x" * 600)
    assert len(everything(spools)) == 2
    keep(spools, b"x" * 600)


@pytest.mark.promise("P52")
def test_the_bound_in_age_keeps_what_is_old_and_takes_nothing_new(tmp_path: Path) -> None:
    spools = opened(tmp_path, age_ms_max=60_000)
    keep(spools, b"old", at_ms=1_000)
    keep(spools, b"newer", at_ms=61_000)

    with pytest.raises(SpoolFull, match=r"waited for 61 s, longer than 60 s \(spool_max_age\)"):
        keep(spools, b"too late", key="bills", at_ms=62_000)
    assert everything(spools) == [b"old", b"newer"]
    keep(spools, b"again", at_ms=62_000)


def test_a_directory_that_cannot_be_written_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")

    with pytest.raises(SpoolError, match=r"spool directory .*file/spool cannot be used.*may write"):
        opened(file / "spool")


def test_a_spool_that_cannot_be_created_on_a_full_disk_leaves_nothing_and_is_created_later(
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        full_disk.fill(patch)
        spools = opened(tmp_path)
        assert (spools.all, len(spools.problems)) == ([], 1)
        with pytest.raises(SpoolNotStored, match=r"0/spool\.db cannot be opened.*disk is full: free space"):
            keep(spools, b"refused")
        assert list(tmp_path.iterdir()) == []

    keep(spools, b"one")
    assert everything(spools) == [b"one"]
    spools.close()
    assert list(tmp_path.iterdir()) == []


def test_an_order_is_not_broken_by_a_full_disk_that_hides_a_spool(tmp_path: Path) -> None:
    left = opened(tmp_path)
    keep(left, b"first")
    left.close()

    def no_room(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "connect", no_room)
        with pytest.raises(SpoolNotStored, match="disk is full: free space"):
            opened(tmp_path, About(ABOUT.primary, ABOUT.address, 0, "session"))
        relaxed = opened(tmp_path, About(ABOUT.primary, ABOUT.address, 0, "relaxed"))
        assert (relaxed.all, len(relaxed.problems)) == ([], 2)

    assert everything(opened(tmp_path)) == [b"first"]


def test_a_spool_that_was_never_written_is_taken_as_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "spool.db").touch()
    (tmp_path / "0" / "lock").touch()

    spools = opened(tmp_path)
    keep(spools, b"one")

    assert (spools.problems, [one.directory.name for one in spools.all]) == ([], ["0"])
    assert everything(spools) == [b"one"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_a_spool_of_its_own(tmp_path: Path) -> None:
    spools = opened(tmp_path)
    keep(spools, b"parent")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_child, args=(spools,))
    child.start()
    child.join(30)
    assert child.exitcode == 0

    keep(spools, b"parent again")
    assert everything(spools) == [b"parent", b"parent again"]
    assert everything(opened(tmp_path)) == [b"child"]


def _child(spools: Spools) -> None:
    assert spools.first("orders", 1, 1) is None
    keep(spools, b"child")
    assert spools.waits("orders") == 1
    os._exit(0)


# --- owners that never closed ---------------------------------------------------------------------


@pytest.mark.promise("P44")
def test_a_spool_is_free_when_its_owner_is_collected_unless_it_is_being_written(tmp_path: Path) -> None:
    spools = opened(tmp_path)
    keep(spools, b"1")
    spool = spools.all[0]
    del spools
    gc.collect()
    assert is_held(tmp_path / "0"), "a thread may still write it"
    del spool
    gc.collect()
    assert not is_held(tmp_path / "0")
    after = opened(tmp_path)
    assert everything(after) == [b"1"]
    after.close()


@pytest.mark.promise("P44")
def test_a_spool_whose_owner_is_over_is_taken_within_the_process_with_all_that_was_entered(
    tmp_path: Path,
) -> None:
    is_over = False
    before = Spools(tmp_path, ABOUT, bytes_max=1 << 30, age_ms_max=1 << 40, is_over=lambda: is_over)
    keep(before, b"1")
    before.enter(Append("orders", "orders", [b"2"], 1_000))
    beside = opened(tmp_path)
    assert not beside.waits("orders"), "its owner is at work"
    beside.close()

    is_over = True
    after = opened(tmp_path)
    assert everything(after) == [b"1", b"2"]
    with pytest.raises(SpoolNotStored, match="is closed"):
        before.enter(Append("orders", "orders", [b"3"], 1_000))
    before.close()
    assert is_held(tmp_path / "0"), "the lock is that of the new owner"
    after.close()
