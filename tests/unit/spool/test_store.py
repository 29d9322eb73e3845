"""One spool: groups, order, damage, and a crash at every place of its file."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from pairbus.errors import SpoolError, SpoolNotStored
from pairbus.spool.file import About
from pairbus.spool.store import Append, Spool

ABOUT = About("contoso", "contoso.example:5672")


def keep(spool: Spool, *payloads: bytes, key: str = "orders", at_ms: int = 1_000) -> Append:
    append = Append(key, key, payloads, at_ms)
    spool.enter(append)
    spool.commit(append)
    return append


def everything(spool: Spool, key: str = "orders") -> list[bytes]:
    return [message.payload for message in spool.first(key, 10_000, 1 << 40)]


@pytest.mark.promise("P50", "P51")
def test_messages_of_an_entity_come_back_in_order_from_the_next_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    for number in range(20):
        keep(spool, b"%d" % number, key="orders" if number % 2 else "bills")
    del spool  # not closed: the process is gone

    again = Spool(tmp_path, ABOUT)
    assert everything(again) == [b"%d" % number for number in range(1, 20, 2)]
    assert everything(again, "bills") == [b"%d" % number for number in range(0, 20, 2)]
    assert again.contents["orders"].count == 10
    assert again.about == ABOUT


def test_what_is_removed_stays_removed_and_what_is_undeliverable_stays_with_its_reason(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one", b"two", at_ms=1_000)
    keep(spool, b"three", at_ms=2_000)
    one, two, three = spool.first("orders", 10, 1 << 20)
    spool.remove("orders", [one])
    spool.mark_undeliverable("orders", two, "too large")
    spool.close()

    again = Spool(tmp_path, ABOUT)
    content = again.contents["orders"]
    assert (content.count, content.undeliverable, content.oldest_ms) == (1, 1, 2_000)
    assert again.first("orders", 10, 1 << 20) == [three]
    assert not again.is_empty
    again.remove("orders", [three])
    assert again.waits("orders") == 0
    assert again.retry_undeliverable() == 1
    assert everything(again) == [b"two"]


def test_what_a_namespace_has_does_not_wait_while_the_disk_is_too_full_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one", b"two", at_ms=1_000)
    keep(spool, b"three", b"four", at_ms=2_000)
    one, two, three, four = spool.first("orders", 10, 1 << 20)

    with monkeypatch.context() as full:
        full.setattr(spool, "_change", disk_is_full)
        with pytest.raises(SpoolError, match="disk is full"):
            spool.delivered("orders", [one, two])
        with pytest.raises(SpoolError, match="disk is full"):
            spool.mark_undeliverable("orders", three, "no session id")
        content = spool.contents["orders"]
        assert (content.count, content.undeliverable, content.oldest_ms) == (1, 1, 2_000)
        assert spool.first("orders", 10, 1 << 20) == [four]
        assert spool.find("orders", one.number) is None
        with pytest.raises(SpoolError):
            spool.tidy()
        assert set(spool._unsaved) == {1, 2, 3}

    spool.tidy()
    assert spool.is_tidy
    spool.delivered("orders", [four])
    with sqlite3.connect(spool.file) as reader:
        assert reader.execute("SELECT number, reason FROM message").fetchall() == [(3, "no session id")]


def test_a_file_of_which_all_messages_are_delivered_counts_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one")
    monkeypatch.setattr(spool, "_change", disk_is_full)
    with pytest.raises(SpoolError):
        spool.delivered("orders", spool.first("orders", 10, 1 << 20))
    spool.close()
    assert spool.is_empty


def disk_is_full(*_given: object) -> int:
    raise sqlite3.OperationalError("database or disk is full")


def test_an_append_that_does_not_fit_is_certainly_not_stored(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    spool._database.execute("PRAGMA max_page_count = 10").fetchone()

    with pytest.raises(SpoolNotStored, match="The spool does not have the message"):
        keep(spool, b"x" * 100_000)

    assert everything(spool) == []
    keep(spool, b"small")
    assert everything(spool) == [b"small"]


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one", b"two")
    spool.remove("orders", spool.first("orders", 10, 1 << 20))
    spool.close()

    assert list(keep(Spool(tmp_path, ABOUT), b"three").numbers) == [3]


def test_all_who_wait_share_a_write(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    appends = [Append("orders", "orders", [b"%d" % number], 1) for number in range(50)]
    for append in appends:
        spool.enter(append)
    assert spool.waits("orders") == 50
    spool.commit(appends[0])

    assert all(append.is_done for append in appends)
    assert everything(spool) == [b"%d" % number for number in range(50)]


def test_threads_get_each_their_own_place(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)

    def work(name: int) -> None:
        for number in range(10):
            keep(spool, b"%d-%d" % (name, number))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = everything(spool)
    assert len(found) == len(set(found)) == 80
    for name in range(8):
        own = [payload for payload in found if payload.startswith(b"%d-" % name)]
        assert own == [b"%d-%d" % (name, number) for number in range(10)]


@pytest.mark.promise("P50")
def test_every_message_that_was_durable_is_there_wherever_the_log_is_cut(tmp_path: Path) -> None:
    """A crash leaves the file as far as it was written: what was committed before that place is there, in order."""
    whole = tmp_path / "whole"
    whole.mkdir()
    spool = Spool(whole, ABOUT)
    durable: list[tuple[int, int]] = []
    """How long the log was when a message was durable."""
    for number in range(8):
        keep(spool, b"%d" % number * random.Random(number).choice([10, 900, 9_000]))
        durable.append((os.path.getsize(whole / "spool.db-wal"), number))
    first = spool.first("orders", 2, 1 << 20)
    spool.remove("orders", first)
    removed_at = os.path.getsize(whole / "spool.db-wal")
    log = (whole / "spool.db-wal").read_bytes()
    base = (whole / "spool.db").read_bytes()
    frame = 24 + 4_096
    places = sorted(
        {length + step for length, _ in durable for step in (-1, 0, 1)}
        | {32 + frame * number + step for number in range(len(log) // frame) for step in (-1, 0, 24)}
        | {0, 1, 31, 32, len(log) - 1, len(log)}
    )
    for place in places:
        if not 0 <= place <= len(log):
            continue
        cut = tmp_path / "cut"
        cut.mkdir()
        (cut / "spool.db").write_bytes(base)
        (cut / "spool.db-wal").write_bytes(log[:place])
        found = [int(payload[:1]) for payload in everything(Spool(cut, ABOUT))]
        promised = [number for length, number in durable if length <= place]
        if place >= removed_at:
            promised = promised[2:]
        assert found[: len(promised)] == promised, place
        assert found == sorted(found)
        shutil.rmtree(cut)


def test_bytes_that_changed_are_noticed_and_named(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"A" * 100, b"B" * 100)
    spool.close()
    file = tmp_path / "spool.db"
    content = file.read_bytes()
    assert content.count(b"A" * 100) == 1
    file.write_bytes(content.replace(b"A" * 100, b"A" * 99 + b"x"))

    damaged, whole = Spool(tmp_path, ABOUT).first("orders", 10, 1 << 20)

    assert (damaged.number, damaged.is_damaged) == (1, True)
    assert (whole.number, whole.is_damaged) == (2, False)


def test_a_file_that_is_no_spool_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_bytes(b"not a database, certainly not one of ours" * 100)

    with pytest.raises(SpoolError, match=r"spool\.db cannot be opened.*spool export"):
        Spool(tmp_path, ABOUT)


def test_a_spool_of_another_format_is_refused(tmp_path: Path) -> None:
    Spool(tmp_path, ABOUT).close()
    database = sqlite3.connect(tmp_path / "spool.db")
    database.execute("UPDATE about SET value = '99' WHERE name = 'format'")
    database.commit()
    database.close()

    with pytest.raises(SpoolError, match="has the format '99'"):
        Spool(tmp_path, ABOUT)


@pytest.mark.promise("P50")
def test_a_full_disk_refuses_the_message_and_keeps_the_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one")
    (pages,) = spool._database.execute("PRAGMA page_count").fetchone()
    spool._database.execute(f"PRAGMA max_page_count = {pages}")
    append = Append("orders", "orders", [b"x" * 100_000], 1)
    spool.enter(append)

    with pytest.raises(SpoolError, match="cannot be written.*full"):
        spool.commit(append)

    assert (spool.waits("orders"), everything(spool)) == (1, [b"one"])
    spool._database.execute("PRAGMA max_page_count = 100000")
    keep(spool, b"two")
    assert everything(spool) == [b"one", b"two"]


def test_an_entity_whose_first_write_failed_is_written_by_the_next(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one", key="bills")
    (pages,) = spool._database.execute("PRAGMA page_count").fetchone()
    spool._database.execute(f"PRAGMA max_page_count = {pages}")
    append = Append("orders", "orders", [b"x" * 100_000], 1)
    spool.enter(append)
    with pytest.raises(SpoolError):
        spool.commit(append)
    spool._database.execute("PRAGMA max_page_count = 100000")
    keep(spool, b"two")

    assert everything(spool) == [b"two"]
    assert everything(spool, "bills") == [b"one"]


def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ABOUT)
    keep(spool, b"one")

    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_a_spool_knows_the_strictest_order_of_those_whose_messages_are_in_it(tmp_path: Path) -> None:
    def opened(order: str | None) -> Spool:
        return Spool(tmp_path, About("contoso", "contoso.example:5672", 0, order))

    def noted() -> str | None:
        spool = Spool(tmp_path, ABOUT)
        spool.close()
        return spool.about.order

    for order, expected in (("session", "session"), ("relaxed", "session"), ("partition", "partition")):
        spool = opened(order)
        keep(spool, b"one")
        spool.close()
        assert noted() == expected
    spool = opened("session")
    spool.remove("orders", spool.first("orders", 10, 1_000))
    spool.close()
    spool = opened("relaxed")
    assert spool.about.order == "partition", "nothing was written since"
    keep(spool, b"two")
    spool.close()
    assert noted() == "relaxed"
