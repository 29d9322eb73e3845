"""B10: acknowledged data that vanishes is noticed, whichever file of the store is cut short, zeroed or deleted."""

from __future__ import annotations

import errno
import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pairbus.errors import StorageError, StoreCorrupt
from pairbus.storage.identity import FORMAT_FILE
from pairbus.storage.log.frame import HEADER_BYTES
from pairbus.storage.log.mark import MARK_BYTES, MARK_FILE, SLOT_BYTES, make_mark, open_mark, read_mark
from pairbus.storage.log.segment import SEGMENT_HEADER_BYTES, segment_name, segment_number
from pairbus.storage.log.store import LogStore
from pairbus.storage.tools.inspect import check
from pairbus.storage.tools.repair import repair
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import (
    commit,
    numbers,
    open_log,
    ready_log,
    remove,
    replay,
    send,
    store_frames,
)

FRAMES = 18
Places = list[tuple[str, int, int]]


def written(*, is_closed: bool, frames: int = FRAMES) -> tuple[SimulatedDisk, Places]:
    """A disk with acknowledged messages 1, 2, 3 …, one per frame, in several segments; and (file, start, end) of each frame."""
    disk = SimulatedDisk()
    store = ready_log(disk)
    places = store_frames(store, frames)
    if is_closed:
        store.close()
    return disk.killed(), places


def outcome(disk: SimulatedDisk) -> list[int] | str:
    """The messages that come back, or what is said instead. The check must say the same."""
    checked, is_placed = "", True
    is_known = FORMAT_FILE in disk.names()
    try:
        check("simulated", file_system=disk)
    except StorageError as error:
        checked = str(error)
        is_placed = not isinstance(error, StoreCorrupt) or None not in (error.file, error.offset)
    try:
        store = open_log(disk)
    except StorageError as error:
        found: list[int] | str = str(error)
    else:
        try:
            found = numbers(replay(store))
        except StorageError as error:
            found = str(error)
        store.close()
    assert is_placed, "damage has a file and an offset"
    if isinstance(found, str):
        assert checked == found
    elif is_known:
        assert not checked
    else:
        assert "holds no data: the file 'format' is missing" in checked
    return found


def all_numbers(frames: int = FRAMES) -> list[int]:
    return list(range(1, frames + 1))


def lengths(disk: SimulatedDisk, name: str, places: Places) -> set[int]:
    """A length of each kind that a file can be cut to."""
    size = disk.size(name)
    frames = [(start, end) for file, start, end in places if file == name]
    found = {
        0,
        1,
        size // 2,
        size - 1,
        SEGMENT_HEADER_BYTES - 1,
        SEGMENT_HEADER_BYTES,
        SEGMENT_HEADER_BYTES + 1,
    }
    found.update((SLOT_BYTES - 1, SLOT_BYTES, 2 * SLOT_BYTES))
    for start, end in frames:
        found.update((start, start + 9, start + HEADER_BYTES, (start + end) // 2, end - 1, end, end + 10))
    return {length for length in found if length < size}


def damages(disk: SimulatedDisk, places: Places) -> Iterator[tuple[str, Callable[[SimulatedDisk], None]]]:
    """Every way of damage: what is done to which file, and how."""
    names = sorted(disk.names())
    for name in names:
        for length in sorted(lengths(disk, name, places)):
            yield f"{name} cut to {length}", partial(SimulatedDisk.truncate, name=name, length=length)
            yield f"{name} zeroed from {length}", partial(SimulatedDisk.zero, name=name, offset=length)
    for count in range(1, len(names)):
        for lost in itertools.combinations(names, count):
            yield f"{', '.join(lost)} deleted", partial(lose, names=lost)


def lose(disk: SimulatedDisk, names: tuple[str, ...]) -> None:
    for name in names:
        disk.lose(name)


@pytest.mark.promise("B10")
@pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "closed"])
def test_whatever_is_cut_zeroed_or_deleted_is_noticed_or_costs_nothing(is_closed: bool) -> None:
    disk, places = written(is_closed=is_closed)
    assert len({name for name, _, _ in places}) >= 3
    refused = harmless = 0
    for what, damage in damages(disk, places):
        damaged = disk.killed()
        damage(damaged)
        found = outcome(damaged)
        if isinstance(found, str):
            refused += 1
            names = [name for name in disk.names() if name in found]
            assert names or "lost all its segments" in found, (what, found)
            assert "copy" in found, (what, found)
        else:
            harmless += 1
            assert found == all_numbers(), what
    assert refused > 100
    assert harmless > 3


@pytest.mark.promise("B10")
@pytest.mark.parametrize("seed", range(8))
def test_after_a_loss_of_power_files_that_are_cut_or_deleted_are_noticed(seed: int) -> None:
    disk, places = written(is_closed=False)
    disk = disk.crashed(random.Random(seed))
    assert outcome(disk.killed()) == all_numbers()
    for what, damage in damages(disk, places):
        if "zeroed" not in what or MARK_FILE in what:
            damaged = disk.killed()
            damage(damaged)
            found = outcome(damaged)
            assert isinstance(found, str) or found == all_numbers(), what


@pytest.mark.promise("B10")
def test_a_lost_end_is_refused_with_file_offset_and_both_frames() -> None:
    disk, places = written(is_closed=False)
    name, start, _ = places[-2]
    disk.zero(name, start)
    with pytest.raises(StoreCorrupt) as caught:
        open_log(disk)
    text = str(caught.value)
    assert f"{name}: damage at offset {start}" in text
    assert f"ends with frame {FRAMES - 2}, and frame {FRAMES} was acknowledged" in text
    assert "pairbus store repair --accept-loss" in text


def test_a_segment_that_grew_and_was_cut_back_is_noticed(disk: SimulatedDisk, store: LogStore) -> None:
    send(store, 1, 20_000)
    commit(store)
    disk = disk.killed()
    name = segment_name(1)
    assert disk.size(name) > 20_000
    for length in (4096, 10_000, disk.size(name) - 1):
        damaged = disk.killed()
        damaged.truncate(name, length)
        assert f"{name}: damage at offset {SEGMENT_HEADER_BYTES}" in str(outcome(damaged))


def test_a_frame_that_was_being_written_is_still_dropped() -> None:
    disk, _ = written(is_closed=False)
    store = open_log(disk)
    replay(store)
    send(store, 99, 300)
    batch = store.seal()
    assert batch is not None
    store._writer._write(batch.frames[0])  # type: ignore[union-attr]  # written, not acknowledged
    disk = disk.killed()
    disk.zero(segment_name(batch.frames[0].segment), batch.frames[0].offset + 10)
    assert outcome(disk) == all_numbers()


def test_a_first_start_that_is_interrupted_anywhere_begins_again() -> None:
    for seed, is_killed in itertools.product(range(6), (False, True)):
        left: list[SimulatedDisk] = []
        chance = random.Random(seed)
        disk = SimulatedDisk()
        disk.watch = lambda _, d=disk, c=chance, k=is_killed, to=left: to.append(
            d.killed() if k else d.crashed(c)
        )
        store = ready_log(disk)
        send(store, 1)
        disk.watch = None
        assert len(left) > 10
        for other in left:
            store = open_log(other)
            assert numbers(replay(store)) == []
            for number in range(1, 30):
                send(store, number)
                commit(store)
            store.close()
            assert outcome(other) == all_numbers(29)


# -- data of the format before ---------------------------------------------------------------------------


def as_format_1(disk: SimulatedDisk) -> None:
    """Make the data look as earlier versions wrote it: no mark, no lengths."""
    import struct
    from zlib import crc32

    disk.lose(MARK_FILE)
    for name in disk.names():
        number = segment_number(name)
        if number is not None:
            body = struct.pack("<8sII8s", b"PAIRBUS\n", 1, number, disk.contents(name)[16:24])
            handle = disk.open(name)
            disk.write(
                handle, ((body + struct.pack("<I", crc32(body))).ljust(SEGMENT_HEADER_BYTES, b"\0"),), 0
            )
            disk.sync(handle)
            disk.close(handle)
    disk.lose(FORMAT_FILE)
    handle = disk.create(FORMAT_FILE, 0)
    disk.write(handle, (b'{"format": 1, "namespace": "ns"}\n',), 0)
    disk.sync(handle)
    disk.sync_directory()
    disk.close(handle)


def test_data_of_the_format_before_opens_and_is_guarded_from_then_on() -> None:
    disk, places = written(is_closed=True)
    as_format_1(disk)
    assert check("simulated", file_system=disk).format_version == 1
    assert outcome(disk) == all_numbers()
    assert json.loads(disk.contents(FORMAT_FILE)) == {"format": 2, "namespace": "ns", "check": "7159cf79"}
    assert disk.size(MARK_FILE) == MARK_BYTES
    name, start, _ = places[-1]
    disk.truncate(name, start)
    assert f"{name}: damage at offset {start}" in str(outcome(disk))


def test_the_step_to_the_new_format_may_be_interrupted_anywhere() -> None:
    for seed in range(6):
        disk, _ = written(is_closed=True)
        as_format_1(disk)
        left: list[SimulatedDisk] = []
        chance = random.Random(seed)
        disk.watch = lambda _, d=disk, c=chance, to=left: to.append(d.crashed(c))
        assert outcome(disk) == all_numbers()
        assert len(left) > 5
        assert all(outcome(other) == all_numbers() for other in left)


# -- giving a loss up ------------------------------------------------------------------------------------


def test_a_loss_that_is_accepted_is_told_exactly_and_the_store_goes_on() -> None:
    disk, places = written(is_closed=False)
    name, start, _ = places[-3]
    disk.truncate(name, start + 20)
    before = {file: disk.contents(file) for file in disk.names()}
    report = repair("simulated", accepts_loss=False, file_system=disk)
    assert (report.file, report.offset, report.last_frame, report.lost_frames) == (name, start, FRAMES - 3, 3)
    assert {file: disk.contents(file) for file in disk.names()} == before
    assert repair("simulated", accepts_loss=True, file_system=disk) == report
    store = open_log(disk)
    assert numbers(replay(store)) == all_numbers(FRAMES - 3)
    send(store, 50)
    commit(store)
    store.close()
    assert outcome(disk) == [*all_numbers(FRAMES - 3), 50]
    assert repair("simulated", accepts_loss=True, file_system=disk).damage == ""


def test_data_without_its_format_file_is_refused_alike_by_broker_check_and_repair() -> None:
    disk, _ = written(is_closed=True)
    disk.unlink(FORMAT_FILE)
    said = []
    for attempt in (
        lambda: open_log(disk),
        lambda: check("simulated", file_system=disk),
        lambda: repair("simulated", accepts_loss=False, file_system=disk),
    ):
        with pytest.raises(StorageError) as caught:
            attempt()
        said.append(str(caught.value))

    assert said == ["format is missing: restore it from a copy"] * 3


def test_an_unreadable_segment_behind_the_end_is_put_aside() -> None:
    disk, places = written(is_closed=False)
    names = sorted(name for name in disk.names() if segment_number(name) is not None)
    tail = places[-1][0]
    disk.truncate(tail, 40)
    report = repair("simulated", accepts_loss=True, file_system=disk)
    assert report.damaged_files == (tail,)
    assert report.lost_frames == sum(name == tail for name, _, _ in places)
    assert f"{tail}.damaged" in disk.names()
    assert names[-1] not in disk.names() or names[-1] == tail
    assert outcome(disk) == all_numbers(FRAMES - report.lost_frames)


def test_a_damaged_spare_names_the_command_that_goes_on_without_it_and_nothing_is_lost() -> None:
    disk, _ = written(is_closed=True)
    spare = max(name for name in disk.names() if segment_number(name) is not None)
    disk.flip(spare, 3)
    with pytest.raises(
        StoreCorrupt, match=f"{spare}: damaged header .*`pairbus store repair` .* --accept-loss"
    ):
        open_log(disk)

    report = repair("simulated", accepts_loss=True, file_system=disk)

    assert (report.damaged_files, report.lost_frames) == ((spare,), 0)
    assert outcome(disk) == all_numbers(FRAMES)


def test_damage_before_the_end_cannot_be_given_up() -> None:
    disk, places = written(is_closed=True)
    disk.flip(places[2][0], places[2][1] * 8 + 80)
    with pytest.raises(StoreCorrupt, match="damage at offset"):
        repair("simulated", accepts_loss=True, file_system=disk)


def let_go() -> tuple[SimulatedDisk, str, int]:
    """A disk whose last commit of many lets old segments go, which are used again; the newest segment, and where its last frame starts."""
    disk = SimulatedDisk()
    store = ready_log(disk)
    kept = []
    for number in range(1, 16):
        kept.append(send(store, number, 500))
        commit(store)
    for number in range(100, 103):
        send(store, number, 200)
        commit(store)
    for one in kept[:8]:
        remove(store, one)
    start = store._staging.frame_start
    commit(store)
    newest = segment_name(store._staging.segment)
    assert segment_name(1) not in disk.names(), "the oldest was used again"
    store.close()
    return disk.killed(), newest, start


@pytest.mark.promise("B10")
def test_a_lost_commit_that_let_old_segments_go_is_blamed_and_can_be_given_up() -> None:
    disk, newest, start = let_go()
    ways: list[Callable[[SimulatedDisk], None]] = [
        partial(SimulatedDisk.truncate, name=newest, length=start),
        partial(SimulatedDisk.truncate, name=newest, length=start + 9),
        partial(SimulatedDisk.zero, name=newest, offset=start),
        partial(SimulatedDisk.lose, name=newest),
    ]
    for damage in ways:
        damaged = disk.killed()
        damage(damaged)
        assert newest in str(outcome(damaged)).partition(";")[0]
        assert "--accept-loss" in str(outcome(damaged))
        before = {file: damaged.contents(file) for file in damaged.names()}
        report = repair("simulated", accepts_loss=False, file_system=damaged)
        assert {file: damaged.contents(file) for file in damaged.names()} == before
        assert segment_name(1) in report.missing_files
        assert report.lost_frames
        assert repair("simulated", accepts_loss=True, file_system=damaged) == report
        found = outcome(damaged)
        assert isinstance(found, list), found
        assert found
        assert (report.unowned_messages, report.are_keys_lost) == (len(found), True), (
            "no entity was made here"
        )
        store = open_log(damaged)
        replay(store)
        send(store, 200)
        commit(store)
        store.close()
        assert outcome(damaged) == [*found, 200]
        assert repair("simulated", accepts_loss=True, file_system=damaged).damage == ""


def test_giving_up_a_commit_that_let_old_segments_go_may_be_interrupted_anywhere() -> None:
    disk, newest, start = let_go()
    disk.truncate(newest, start)
    left: list[SimulatedDisk] = []
    chance = random.Random(1)
    disk.watch = lambda _: left.extend((disk.killed(), disk.crashed(chance)))
    repair("simulated", accepts_loss=True, file_system=disk)
    disk.watch = None
    whole = outcome(disk)
    assert isinstance(whole, list)
    assert len(left) > 6
    for other in left:
        repair("simulated", accepts_loss=True, file_system=other)
        found = outcome(other)
        assert isinstance(found, list), found
        assert found[-len(whole) :] == whole, "a loss of power may bring a segment back that was let go"


def test_an_old_segment_that_is_missing_while_the_end_is_there_cannot_be_given_up() -> None:
    disk, places = written(is_closed=True)
    disk.lose(places[0][0])
    with pytest.raises(StoreCorrupt, match=f"{places[0][0]}: the file is missing; restore"):
        repair("simulated", accepts_loss=True, file_system=disk)


def test_segments_used_again_are_guarded_too(disk: SimulatedDisk, store: LogStore) -> None:
    for number in range(1, 60):
        remove(store, send(store, number, 500))
        commit(store)
    send(store, 60, 500)
    commit(store)
    disk = disk.killed()
    name = segment_name(store._staging.segment)
    assert store._staging.segment > 4
    for length in (600, 2000, disk.size(name) - 1):
        damaged = disk.killed()
        damaged.truncate(name, length)
        assert f"{name}: damage at offset" in str(outcome(damaged))


@pytest.mark.promise("B10")
def test_a_mark_whose_sync_failed_is_written_again_before_the_one_that_is_durable() -> None:
    """After a failed sync the newest mark may be in memory only: a loss of power during the next start must leave the one before."""
    disk = SimulatedDisk()
    make_mark(disk, 1, 100)
    writer = open_mark(disk, 1, 100)
    writer.confirm(2, 200)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        writer.confirm(3, 300)
    again = disk.killed()
    after_power_loss: list[SimulatedDisk] = []
    again.watch = lambda _: after_power_loss.extend(again.crashed(random.Random(seed)) for seed in range(20))
    open_mark(again, 3, 300).close()

    marks = [read_mark(one) for one in after_power_loss]
    assert len(marks) == 40, "the power goes after the write and after the sync"
    assert all(mark is not None and mark.number >= 2 for mark in marks)
