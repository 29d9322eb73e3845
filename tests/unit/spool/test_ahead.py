"""What spools of other clients hold that a client with an order stays behind."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from pairbus.spool import ahead as ahead_rules
from pairbus.spool.directory import Spools
from pairbus.spool.file import About
from pairbus.spool.store import Append

ABOUT = About("contoso", "contoso.example:5672", 0, "session")


def opened(root: Path) -> Spools:
    """A client whose messages have their session before a slash."""
    return Spools(
        root,
        ABOUT,
        bytes_max=1 << 30,
        age_ms_max=1 << 40,
        key_of=lambda payload: payload.partition(b"/")[0].decode() or None,
    )


def keep(spools: Spools, *payloads: bytes, key: str = "orders", at_ms: int = 1_000) -> None:
    append = Append(key, key, payloads, max(at_ms, spools.not_before_ms))
    spools.enter(append).commit(append)


def killed(spools: Spools) -> None:
    for lock in spools._locks.values():
        os.close(lock)
    spools._locks.clear()


def replay(spools: Spools, key: str = "orders") -> list[bytes]:
    """What a replay may send now. It is removed."""
    sent: list[bytes] = []
    while (first := spools.first(key, 10, 1 << 20)) is not None:
        free = spools.free(key, *first)
        if not free:
            break
        first[0].delivered(key, free)
        sent += [message.payload for message in free]
    return sent


def look(spools: Spools) -> list[str]:
    """Look once. The spools that were taken."""
    looks, taken = spools.look_ahead()
    for one, found in looks:
        one.note(found)
    spools.ahead = [one for one in spools.ahead if one.parts]
    return [spool.directory.name for spool in taken]


@pytest.mark.promise("P51")
def test_a_client_stays_behind_its_messages_that_another_one_has_taken(tmp_path: Path) -> None:
    before = opened(tmp_path)
    keep(before, b"x/1", b"x/2")
    killed(before)
    other = opened(tmp_path)
    again = opened(tmp_path)

    assert again.is_ahead("orders", ["x"])
    assert not again.is_ahead("orders", ["y"])
    assert not again.is_ahead("events", ["x"])
    keep(again, b"y/1", b"x/3")
    assert replay(again) == [b"y/1"]
    assert replay(other) == [b"x/1", b"x/2"]
    assert look(again) == []
    assert not again.paths_ahead()
    assert replay(again) == [b"x/3"]


@pytest.mark.promise("P51")
def test_new_messages_of_another_client_are_not_waited_for(tmp_path: Path) -> None:
    other = opened(tmp_path)
    keep(other, b"x/1")
    client = opened(tmp_path)
    keep(other, b"x/2")
    keep(client, b"x/3")

    message = other.first("orders", 1, 1)
    assert message is not None
    message[0].delivered("orders", message[1])
    look(client)
    assert replay(client) == [b"x/3"]


@pytest.mark.promise("P51")
def test_a_spool_whose_owner_has_gone_is_taken_and_replayed_first(tmp_path: Path) -> None:
    other = opened(tmp_path)
    keep(other, b"x/1")
    client = opened(tmp_path)
    keep(client, b"x/2")
    assert replay(client) == []

    killed(other)
    assert look(client) == ["0"]
    assert replay(client) == [b"x/1", b"x/2"]
    client.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_was_deleted_and_made_again_by_another_client_is_not_waited_for(tmp_path: Path) -> None:
    other = opened(tmp_path)
    keep(other, b"x/1")
    client = opened(tmp_path)
    keep(client, b"x/2")
    replay(other)
    other.close()
    new = opened(tmp_path)
    keep(new, b"x/9")
    assert {one.directory.name for one in new.all} == {"0"}

    look(client)
    # The inode may be used again; then what is waited for is only what has such a low number.
    replay(new)
    look(client)
    assert replay(client) == [b"x/2"]


def test_two_clients_that_hold_older_messages_for_each_other_do_not_wait_for_ever(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    for at_ms in (1_000, 3_000):
        keep(first, b"x/%d" % at_ms, at_ms=at_ms)
        keep(second, b"x/%d" % (at_ms + 1_000), at_ms=at_ms + 1_000)
    killed(first)
    one = opened(tmp_path)
    killed(second)
    two = opened(tmp_path)
    assert one.ahead
    assert two.ahead

    sent: list[bytes] = []
    for _ in range(10):
        for client in (two, one):
            look(client)
            sent += replay(client)
    assert sent == [b"x/1000", b"x/2000", b"x/3000", b"x/4000"]


@pytest.mark.promise("P51")
def test_the_spools_of_several_lives_are_replayed_in_the_order_of_each_entity(tmp_path: Path) -> None:
    one = opened(tmp_path)
    keep(one, b"x/1", at_ms=1_000)
    keep(one, b"x/late", key="events", at_ms=9_000)
    live = opened(tmp_path)
    keep(live, b"x/2", at_ms=2_000)
    killed(one)
    killed(live)

    following = opened(tmp_path)
    keep(following, b"x/3")
    assert replay(following) == [b"x/1", b"x/2", b"x/3"]


def test_new_messages_are_younger_than_what_they_follow_when_the_clock_was_set_back(tmp_path: Path) -> None:
    other = opened(tmp_path)
    keep(other, b"x/1", at_ms=50_000)
    client = opened(tmp_path)
    keep(client, b"x/2", at_ms=10_000)

    assert replay(client) == []


def test_with_too_many_sessions_every_one_of_the_entity_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_rules, "SESSIONS_MAX", 2)
    other = opened(tmp_path)
    keep(other, b"a/1", b"b/1", b"c/1")

    assert opened(tmp_path).is_ahead("orders", ["z"])


def test_a_spool_of_another_client_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    other = opened(tmp_path)
    keep(other, b"x/1")
    database = sqlite3.connect(tmp_path / "0" / "spool.db")
    database.execute("UPDATE about SET value = '99' WHERE name = 'format'")
    database.commit()
    database.close()

    client = opened(tmp_path)
    assert len(client.not_seen) == 1
    assert str(tmp_path / "0") in client.not_seen[0]


def test_a_client_without_an_order_looks_into_no_spool_of_another(tmp_path: Path) -> None:
    other = opened(tmp_path)
    keep(other, b"x/1")

    client = Spools(tmp_path, About("contoso", "contoso.example:5672"), bytes_max=1 << 30, age_ms_max=1 << 40)
    assert (client.ahead, client.not_seen) == ([], [])
