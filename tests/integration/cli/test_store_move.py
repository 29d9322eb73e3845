"""``pairbus store move``: a namespace goes into PostgreSQL and back, and both hold the same."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from pairbus.cli.broker import store as command_module
from pairbus.cli.root import root
from pairbus.engine.namespace import Namespace
from pairbus.engine.ports import Outbox
from pairbus.engine.queues.consumer import Consumer
from pairbus.engine.records import AuditMarked
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import StorageError, StoreCorrupt, StoreUnavailable, UsageError
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC, Settings
from pairbus.server.assemble import STORE_DIRECTORY, open_store, open_table_store, recover
from pairbus.server.config.options import Options
from pairbus.server.offline import move as module
from pairbus.server.offline.marks import Mark, Moved
from pairbus.server.offline.namespace import NoOutbox, entities, opened
from pairbus.server.offline.places import locked
from pairbus.storage.codec_rare import encode_extra
from pairbus.storage.log.store import LogStore
from pairbus.storage.ports import Store
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.opening import open_database
from pairbus.storage.table.ports import MOVER, Ownership, SequenceTaken, ShardMoved, TableFailed
from tests.contract.table_kinds import new_name
from tests.postgres_kit import shared_server
from tests.unit.engine.engine_kit import START, TRUE_RULE, incoming

NAME = "contoso"
DAY = 86_400_000


class Hand(Outbox):
    """The outbox of a receiver that remembers its locks."""

    def __init__(self) -> None:
        self.locks: list[Any] = []

    def deliver(self, consumer: Consumer, message: object, lock: object) -> None:
        self.locks.append(lock)

    def session_accepted(self, consumer: Consumer) -> None: ...

    def detach(self, consumer: Consumer, condition: str, description: str) -> None: ...


def commit(store: Store) -> None:
    batch = store.seal()
    if batch is not None:
        store.commit(batch)


def fill(data: Path) -> None:
    """A namespace with something in every state."""
    store = LogStore.open(data / STORE_DIRECTORY, namespace=NAME, segment_bytes=64 * 1024)
    list(store.replay())
    hand = Hand()
    namespace = Namespace(NAME, store, hand)
    chance = random.Random(5)
    rule = AccessRule(name=ROOT_RULE, rights=RIGHTS, primary_key="one", secondary_key="two")
    namespace.set_access_rules((rule,), START)
    plain = namespace.create(QUEUE, "plain", Settings(), START)
    orders = namespace.create(QUEUE, "orders", replace(Settings(), requires_duplicate_detection=True), START)
    baskets = namespace.create(QUEUE, "baskets", replace(Settings(), requires_session=True), START)
    gone = namespace.create(QUEUE, "gone", Settings(), START)
    topic = namespace.create(TOPIC, "events", Settings(), START)
    namespace.create(
        SUBSCRIPTION, "events/Subscriptions/audit", replace(Settings(), rules=(TRUE_RULE,)), START
    )
    for number in range(400):
        namespace.send(
            plain, incoming(chance.randbytes(chance.randrange(2_000)), body_kind="data"), START + number
        )
    for number in range(20):
        namespace.send(orders, incoming("x", message_id=f"id-{number}"), START + number)
        namespace.send(baskets, incoming("x", session_id=f"s{number % 3}"), START + number)
        namespace.send(topic, incoming(f"event {number}"), START + number)
    namespace.send(plain, incoming("later", scheduled_at=START + DAY), START)
    namespace.send(gone, incoming("x"), START)
    namespace.delete(gone, START)
    commit(store)
    consumer = Consumer(None, False)
    plain.main.attach(consumer, START)
    plain.main.set_credit(consumer, 12)
    orders_consumer = Consumer(None, False)
    orders.main.attach(orders_consumer, START)
    orders.main.set_credit(orders_consumer, 5)
    namespace.pump(START)
    first = hand.locks[:12]
    for lock in first[:3]:
        plain.main.dead_letter(lock, "reason", "because", b"", START)
    for lock in first[3:6]:
        plain.main.defer(lock, b"", START)
    for lock in first[6:9]:
        plain.main.abandon(lock, b"", START)
    for lock in hand.locks[12:]:
        orders.main.complete(lock, START)  # their ids are still remembered
    holder = Consumer(None, False)
    session_ops.accept(baskets.main, holder, "s1", 60_000, START)
    session_ops.set_state(
        baskets.main, session_ops.held_session(baskets.main, None, "s1", START), b"state", START
    )
    store.append(AuditMarked(17))
    commit(store)
    store.close()


def described(namespace: Namespace, store: Store) -> dict[str, Any]:
    """Everything that a namespace is."""
    places: dict[str, Any] = {}
    for entity in entities(namespace):
        queues = []
        for queue in entity.queues:
            messages = [
                (
                    number, m.state, m.delivery_count, m.enqueued_at, m.expires_at, m.session_id,
                    None if m.extra is None else encode_extra(m.extra), store.read(m.location, m.size),
                )
                for number, m in sorted(queue.messages.items())
            ]  # fmt: skip
            sessions = (
                {}
                if queue.sessions is None
                else {
                    one: (s.state, s.state_at)
                    for one, s in queue.sessions.sessions.items()
                    if s.state is not None
                }
            )
            keys = [] if queue.duplicates is None else [
                (f"id-{n}", queue.duplicates.accepted_at(f"id-{n}".encode())) for n in range(30)
            ]  # fmt: skip
            queues.append((queue.queue_id, messages, sessions, keys))
        numbers = (entity.numbers.next_sequence_number, entity.numbers.last_enqueued_at)
        places[entity.path] = (entity.entity_id, entity.kind, entity.settings.to_json(), numbers, queues)
    rules = [(one.name, one.rights, one.primary_key, one.secondary_key) for one in namespace.access_rules]
    return {
        "places": places,
        "rules": rules,
        "created": namespace.created_at,
        "audited": namespace.audited_batch,
        "next": namespace._next_entity_id,
    }


def on_disk(data: Path) -> dict[str, Any]:
    with opened(data, lambda *_: None) as found:
        return described(found.namespace, found.store)


@contextmanager
def taken(database: Database) -> Iterator[tuple[Namespace, Store]]:
    lease = database.lease()
    held = None
    while held is None:
        try:
            held = lease.acquire("test", "", 60_000)
            assert held is not None
        except SequenceTaken:
            continue
    store = open_table_store(database, held, lambda: True, "test", reserve_bytes=0)
    namespace = Namespace(NAME, store, NoOutbox())
    recover(namespace, store)
    yield namespace, store
    store.close()
    lease.release(held.epoch)
    lease.close()


def in_database(url: str) -> dict[str, Any]:
    with taken(open_database(url, NAME)) as (namespace, store):
        return described(namespace, store)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data: Path = tmp_path_factory.mktemp("filled") / "data"
    data.mkdir()
    fill(data)
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def url() -> str:
    return shared_server().new_database(new_name("move"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, ["store", "move", *map(str, arguments)], standalone_mode=False)


def moved(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exception is None, result.exception
    told: dict[str, Any] = json.loads(result.stdout)
    return told


@pytest.mark.promise("B1", "B19")
def test_a_namespace_is_the_same_in_the_database_and_on_disk_again(
    data: Path, url: str, tmp_path: Path
) -> None:
    before = on_disk(data)
    (data / "tls").mkdir()
    (data / "tls" / "ca.pem").write_text("certificate")
    (data / "tls" / "ca.key").write_text("key")

    told = moved("--data", data, "--to", url)

    assert told["messages"] == sum(len(queue[1]) for place in before["places"].values() for queue in place[4])
    assert told["namespace"] == NAME
    assert url.partition("@")[2] not in json.dumps(told)
    assert in_database(url) == before

    back = tmp_path / "back"
    assert moved("--data", back, "--from", url, "--namespace", NAME)["messages"] == told["messages"]
    assert on_disk(back) == before
    assert (back / "tls" / "ca.key").read_text() == "key"


def test_what_was_moved_away_is_not_served_by_mistake(data: Path, url: str, tmp_path: Path) -> None:
    moved("--data", data, "--to", url)
    with pytest.raises(StoreUnavailable, match="was moved to database '"):
        open_store(Options(namespace=NAME, data=data))
    arguments = ["store", "check", "--data", str(data)]
    result = CliRunner().invoke(root, arguments, standalone_mode=False)
    assert isinstance(result.exception, StoreUnavailable)
    assert "was moved to database '" in str(result.exception)
    (data / "store.moved" / "moved-to").unlink()
    with pytest.raises(StoreUnavailable, match="was moved to a database"):
        open_store(Options(namespace=NAME, data=data))  # as an earlier version left it
    moved("--data", tmp_path / "back", "--from", url, "--namespace", NAME)
    arguments = ["connection-string", "--store", url, "--namespace", NAME]
    asked = CliRunner().invoke(root, arguments, standalone_mode=False)
    assert isinstance(asked.exception, StoreUnavailable)
    assert f"to {tmp_path / 'back'}: ask for its connection string there" in str(asked.exception)
    with pytest.raises(TableFailed, match="was moved"):
        open_database(url, NAME)
    result = run("--data", data, "--to", url)
    assert isinstance(result.exception, StoreUnavailable), "it is not there any more"
    assert "was moved to a database" in str(result.exception)
    # The way in is open again: what is left there was moved out.
    moved("--data", tmp_path / "back", "--to", url)
    assert len(in_database(url)["places"]) == 5


def test_a_target_that_holds_something_is_not_overwritten(data: Path, url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    moved("--data", data, "--to", url)
    before = in_database(url)
    result = run("--data", copy, "--to", url)
    assert isinstance(result.exception, UsageError)
    assert "already" in str(result.exception)
    assert in_database(url) == before
    assert on_disk(copy) == before
    result = run("--data", copy, "--from", url, "--namespace", NAME)
    assert isinstance(result.exception, UsageError)


def test_a_namespace_that_a_node_serves_is_not_moved(data: Path, url: str, tmp_path: Path) -> None:
    moved("--data", data, "--to", url)
    with taken(open_database(url, NAME)):
        result = run("--data", tmp_path / "back", "--from", url, "--namespace", NAME)
        assert isinstance(result.exception, StoreUnavailable)
        assert "served by node test" in str(result.exception)


def _moved_out(data: Path, url: str, back: Path) -> None:
    """The namespace is on disk again, and the database keeps its copy, marked as moved."""
    moved("--data", data, "--to", url)
    moved("--data", back, "--from", url, "--namespace", NAME)


def _kept(url: str) -> dict[str, Any]:
    """The copy that a database keeps of a namespace that was moved out. Its mark is taken off for good."""
    with pytest.raises(ShardMoved):
        open_database(url, NAME)
    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute(
            "select shard from pairbus_shard"
        ).fetchall()  # nothing else was left behind
        connection.execute("delete from pairbus_setting where name = 'moved'")
        connection.execute("update pairbus_shard set owner = '', until = 'epoch'")
        ranges = connection.execute("select count(*) from pg_class where relname like 'pairbus_frame\\__' ")
        assert ranges.fetchall() == [(1,)], row
    return in_database(url)


@pytest.mark.promise("B1")
@pytest.mark.parametrize("why", ["in use", "damaged", "interrupted", "at the last step"])
def test_a_move_back_that_fails_leaves_the_copy_that_the_database_kept(
    why: str, data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = on_disk(data)
    back = tmp_path / "back"
    _moved_out(data, url, back)
    if why == "in use":
        with opened(back, lambda *_: None):
            assert isinstance(run("--data", back, "--to", url).exception, StoreUnavailable)
    elif why == "damaged":
        for segment in (back / STORE_DIRECTORY).glob("*.segment"):
            segment.write_bytes(b"\0" * segment.stat().st_size)
        assert isinstance(run("--data", back, "--to", url).exception, StoreCorrupt)
    elif why == "interrupted":
        monkeypatch.setattr(module, "COMMIT_BYTES", 20_000)
        with pytest.raises(KeyboardInterrupt):
            module.move_to_database(back, Database(url, NAME), START, _interrupting(300))
    else:

        def fails(*_: object) -> None:
            raise TableFailed("no rights")

        monkeypatch.setattr(Database, "replace_with", fails)
        assert isinstance(run("--data", back, "--to", url).exception, StoreUnavailable)
        monkeypatch.undo()
        with pytest.raises(ShardMoved):
            open_database(url, NAME)
        # What was copied is removed by the next move.
        moved("--data", back, "--to", url)
        assert in_database(url) == before
        return
    if why != "damaged":
        assert on_disk(back) == before
    assert _kept(url) == before


def test_a_move_that_is_refused_makes_nothing(data: Path, url: str, tmp_path: Path) -> None:
    def tables() -> int:
        with psycopg.connect(url) as connection:
            found = connection.execute(
                "select count(*) from pg_class where relname like 'pairbus%'"
            ).fetchall()
            return int(found[0][0])

    with opened(data, lambda *_: None):
        assert isinstance(run("--data", data, "--to", url).exception, StoreUnavailable)
    back = tmp_path / "back"
    assert isinstance(run("--data", back, "--from", url, "--namespace", NAME).exception, UsageError)
    assert tables() == 0
    assert not back.exists()
    moved("--data", data, "--to", url)
    with taken(open_database(url, NAME)):
        assert isinstance(run("--data", back, "--from", url, "--namespace", NAME).exception, StoreUnavailable)
    assert not back.exists()


@pytest.mark.promise("S3", "S6")
def test_a_node_that_took_the_namespace_while_it_was_copied_keeps_it(
    data: Path, url: str, tmp_path: Path
) -> None:
    """The move was paused for longer than its lease."""
    moved("--data", data, "--to", url)
    before = in_database(url)
    back = tmp_path / "back"

    def progress(done: int, total: int) -> None:
        if total and done == total:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("update pairbus_shard set until = 'epoch'")
            lease = open_database(url, NAME).lease()
            with suppress(SequenceTaken):
                lease.acquire("node", "", 60_000)
            lease.acquire("node", "", 60_000)
            lease.release(lease.look().epoch)
            lease.close()

    with pytest.raises(StoreUnavailable, match="a node has taken"):
        module.move_to_files(Database(url, NAME), back, START, progress)
    assert not back.exists()
    assert in_database(url) == before


@pytest.mark.promise("B1")
def test_an_interrupted_move_has_changed_nothing_and_is_begun_again(
    data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = on_disk(data)
    monkeypatch.setattr(module, "COMMIT_BYTES", 20_000)

    with pytest.raises(KeyboardInterrupt):
        module.move_to_database(data, open_database(url, NAME), START, _interrupting(300))
    assert on_disk(data) == before
    assert in_database(url)["places"] == {}
    moved("--data", data, "--to", url)
    assert in_database(url) == before

    back = tmp_path / "back"
    with pytest.raises(KeyboardInterrupt):
        module.move_to_files(open_database(url, NAME), back, START, _interrupting(300))
    assert in_database(url) == before
    moved("--data", back, "--from", url, "--namespace", NAME)
    assert on_disk(back) == before


def _interrupting(after: int) -> Any:
    def progress(done: int, total: int) -> None:
        if total and done >= after:
            raise KeyboardInterrupt

    return progress


@pytest.mark.promise("S4")
@pytest.mark.parametrize("way", ["--to", "--from"])
def test_a_move_that_sigterm_ends_gives_its_lease_back_at_once(
    way: str, data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its lease is short: after SIGKILL nodes wait for its end."""
    monkeypatch.setattr(module, "COMMIT_BYTES", 20_000)
    where = data
    if way == "--from":
        moved("--data", data, "--to", url)
        where = tmp_path / "back"
    database = open_database(url, NAME)

    def progress(done: int, total: int) -> None:
        if total and done >= 300:
            lease = database.lease()
            seen.append(lease.look())
            lease.close()
            signal.raise_signal(signal.SIGTERM)

    seen: list[Ownership] = []
    monkeypatch.setattr(command_module, "progress_bar", lambda _: nullcontext(progress))
    before = signal.getsignal(signal.SIGTERM)
    assert run("--data", where, way, url, "--namespace", NAME).exit_code == 128 + signal.SIGTERM
    assert seen[0].owner == MOVER
    assert seen[0].remaining_ms <= 5_000
    lease = database.lease()
    assert lease.look().owner == ""
    lease.close()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.promise("B1")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_last_step_of_a_move_is_not_interrupted_by_a_signal(
    number: signal.Signals, data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise both copies could count."""
    before, mark, rename = on_disk(data), module._mark_moved, Path.rename

    def marks(*given: Any) -> bool:
        signal.raise_signal(number)
        return mark(*given)

    def renames(path: Path, target: Path) -> Path:
        if target.name == "store.moved":
            signal.raise_signal(number)
        return rename(path, target)

    monkeypatch.setattr(module, "_mark_moved", marks)
    monkeypatch.setattr(Path, "rename", renames)
    moved("--data", data, "--to", url)
    assert not (data / STORE_DIRECTORY).exists()
    moved("--data", tmp_path / "back", "--from", url, "--namespace", NAME)
    assert on_disk(tmp_path / "back") == before
    with pytest.raises(ShardMoved):
        open_database(url, NAME)


def test_wrong_directions_are_refused(data: Path, url: str) -> None:
    for arguments in ((), ("--to", url, "--from", url), ("--to", "./elsewhere")):
        result = run("--data", data, *arguments)
        assert isinstance(result.exception, UsageError), arguments
    result = run("--data", data.parent / "new", "--from", url, "--namespace", "nobody")
    assert isinstance(result.exception, UsageError | StorageError)
    assert "holds no namespace" in str(result.exception)


@pytest.mark.parametrize("place", ["store", "store.moving"])
def test_foreign_files_in_the_way_of_a_move_are_named_and_kept(
    data: Path, url: str, tmp_path: Path, place: str
) -> None:
    moved("--data", data, "--to", url)
    precious = tmp_path / "back" / place / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")

    result = run("--data", tmp_path / "back", "--from", url, "--namespace", NAME)

    assert isinstance(result.exception, UsageError)
    assert f"{precious.parent} holds what is not PairBus's: precious" in str(result.exception)
    assert precious.read_text() == "mine"
    precious.unlink()
    moved("--data", tmp_path / "back", "--from", url, "--namespace", NAME)


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    "name",
    [
        "format.new",
        "0000000001.segment.new",
        "mark",
        "mark.new",
        "moving-from",
        ".moving-from.0a1b2c3d.new",
        "lock",
    ],
)
def test_what_a_move_that_was_killed_has_left_of_a_log_is_not_foreign(
    data: Path, url: str, tmp_path: Path, name: str
) -> None:
    """It was killed while it began its copy, or while it removed an older one: any part may be left."""
    before = on_disk(data)
    moved("--data", data, "--to", url)
    left = tmp_path / "back" / "store.moving" / name
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    if name == "moving-from":
        of_this = Moved(namespace=NAME, entities=1, messages=1, bytes=1)
        Mark(move="0a", database=str(Database(url, NAME)), moved=of_this).write(left)
    moved("--data", tmp_path / "back", "--from", url, "--namespace", NAME)
    assert on_disk(tmp_path / "back") == before


@pytest.mark.promise("B1")
@pytest.mark.parametrize("name", ["mark", "moved-to", "moved-by", "0000000003.segment.new"])
def test_what_is_left_of_an_older_log_that_was_moved_is_replaced(data: Path, url: str, name: str) -> None:
    before = on_disk(data)
    left = data / "store.moved" / name
    left.parent.mkdir()
    left.write_bytes(b"")
    moved("--data", data, "--to", url)
    assert in_database(url) == before


def test_foreign_files_under_the_name_of_a_moved_log_are_named_and_kept(data: Path, url: str) -> None:
    precious = data / "store.moved" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")

    result = run("--data", data, "--to", url)

    assert isinstance(result.exception, UsageError)
    assert "holds what is not PairBus's: precious" in str(result.exception)
    assert precious.read_text() == "mine"


def test_a_file_is_no_data_directory(url: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for direction in (("--from", url, "--namespace", NAME), ("--to", url)):
        result = run("--data", file, *direction)
        assert isinstance(result.exception, UsageError)
        assert f"--data is {file}, and that is a file: name a directory" in str(result.exception)


KILLED = """
import os, signal, sys
from pathlib import Path
from pairbus.cli.root import root
from pairbus.server.offline import marks, move
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.lease import PostgresLease
from pairbus.storage.postgres.settings import PostgresSettings

left = int(sys.argv[1])

def counted(owner, name):
    real = getattr(owner, name)
    def call(*given, **named):
        count()
        result = real(*given, **named)
        count()
        return result
    setattr(owner, name, call)

def count():
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1

run = move._Copy.run
def copied(*given):
    moved = run(*given)
    # What comes now is the end of the move.
    for owner, name in ((marks, "write_whole"), (PostgresSettings, "put"), (PostgresLease, "move_away"), (PostgresLease, "release"),
                        (Database, "replace_with"), (Path, "rename"), (Path, "unlink")):
        counted(owner, name)
    return moved
move._Copy.run = copied
root(["store", "move", *sys.argv[2:]])
"""
"""Kills itself at the given place among the effects of the end of a move, counted before and after each."""
PLACES = 15


def _is_on_disk(data: Path, before: dict[str, Any]) -> bool:
    try:
        assert on_disk(data) == before
    except StoreUnavailable:
        return False
    return True


def _is_in_database(url: str, before: dict[str, Any]) -> bool:
    """As a node would see it that starts now, once the lease of the killed move has ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("update pairbus_shard set until = 'epoch' where owner = %s", [MOVER])
    try:
        found = in_database(url)
    except TableFailed:
        return False
    assert found["places"] in ({}, before["places"])
    return found == before


@pytest.mark.promise("B1", "S3")
@pytest.mark.parametrize("way", ["--to", "--from"])
@pytest.mark.parametrize("place", range(PLACES))
def test_a_move_killed_at_its_end_leaves_one_side_and_is_finished_by_the_same_command(
    place: int, way: str, data: Path, url: str, tmp_path: Path
) -> None:
    before = on_disk(data)
    where = data
    if way == "--from":
        moved("--data", data, "--to", url)
        where = tmp_path / "back"
    arguments = ["--data", str(where), way, url, "--namespace", NAME]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place), *arguments], capture_output=True, timeout=60, check=False
    )
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    assert place or done.returncode, "the first place is there"
    sides = {"--from": _is_on_disk(where, before), "--to": _is_in_database(url, before)}
    if way == "--to":
        sides["--from"] = _is_on_disk(data, before)
    assert not all(sides.values()), "both sides are served"
    is_finished = sides[way]
    result = run(*arguments)
    assert result.exception is None, result.exception
    if is_finished:
        assert run(*arguments).exception is None, "the same command again says the same"
    assert _is_on_disk(where, before) is (way == "--from")
    assert _is_in_database(url, before) is (way == "--to")


KILLED_IN_COPY = """
import os, signal, sys
from pairbus.cli.root import root
from pairbus.server.offline import load, move

def end(*_):
    os.kill(os.getpid(), signal.SIGKILL)

move._Copy._staged = load._Import._message = end
root(sys.argv[1:])
"""


def _killed_in_copy(*arguments: str | Path) -> None:
    command = [sys.executable, "-c", KILLED_IN_COPY, "store", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.promise("B1", "S3")
def test_what_a_move_that_was_killed_in_its_copy_leaves_is_not_served_as_an_empty_namespace(
    data: Path, url: str, tmp_path: Path
) -> None:
    before, back = on_disk(data), tmp_path / "back"
    moved("--data", data, "--to", url)
    arguments = ("--data", back, "--from", url, "--namespace", NAME)
    _killed_in_copy("move", *arguments)
    assert (back / "store.moving").is_dir()
    with pytest.raises(StoreUnavailable, match="is not finished: repeat .* remove .*store.moving"):
        open_store(Options(namespace=NAME, data=back))
    assert _is_in_database(url, before)
    moved(*arguments)
    assert _is_on_disk(back, before)


@pytest.mark.promise("B1", "S3")
def test_no_broker_begins_an_empty_namespace_where_a_move_copies_to(
    data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, back = on_disk(data), tmp_path / "back"
    moved("--data", data, "--to", url)
    refused: list[str] = []

    def progress(_done: int, _total: int) -> None:
        for check in (None, lambda _: None):
            with pytest.MonkeyPatch.context() as patch:
                if check is not None:  # a broker that has looked before the move began
                    patch.setattr("pairbus.server.assemble.refuse_moved", check)
                with pytest.raises(StoreUnavailable) as error:
                    open_store(Options(namespace=NAME, data=back))
                refused.append(str(error.value))

    monkeypatch.setattr(command_module, "progress_bar", lambda _: nullcontext(progress))
    moved("--data", back, "--from", url, "--namespace", NAME)
    assert "is not finished" in refused[0]
    assert "is in use by process" in refused[1]
    assert _is_on_disk(back, before)


def test_a_move_into_a_directory_that_a_broker_serves_is_refused_at_once(
    data: Path, url: str, tmp_path: Path
) -> None:
    before, back = on_disk(data), tmp_path / "back"
    moved("--data", data, "--to", url)
    with locked(back / "store"):
        result = run("--data", back, "--from", url, "--namespace", NAME)
    assert isinstance(result.exception, StoreUnavailable)
    assert "is in use by process" in str(result.exception)
    assert _is_in_database(url, before)


def test_a_log_that_an_earlier_version_began_beside_an_unfinished_copy_is_named(
    data: Path, url: str, tmp_path: Path
) -> None:
    before, back = on_disk(data), tmp_path / "back"
    moved("--data", data, "--to", url)
    arguments = ("--data", back, "--from", url, "--namespace", NAME)
    moved(*arguments)
    (back / "store").rename(back / "store.moving")  # as a move leaves it that is killed before its last step
    store = LogStore.open(back / "store", namespace=NAME)
    store.close()
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert f"move {back / 'store'} to another place, and repeat the command" in str(result.exception)
    shutil.move(back / "store", tmp_path / "elsewhere")
    moved(*arguments)
    assert _is_on_disk(back, before)


def test_what_an_import_that_was_killed_leaves_is_not_served_as_an_empty_namespace(
    data: Path, tmp_path: Path
) -> None:
    before, export, back = on_disk(data), tmp_path / "export", tmp_path / "back"
    CliRunner().invoke(
        root,
        ["store", "export", str(export), "--data", str(data)],
        standalone_mode=False,
        catch_exceptions=False,
    )
    _killed_in_copy("import", "--data", back, export)
    with pytest.raises(StoreUnavailable, match="an import into .* is not finished: repeat"):
        open_store(Options(namespace=NAME, data=back))
    arguments = ["store", "import", "--data", str(back), str(export)]
    CliRunner().invoke(root, arguments, standalone_mode=False, catch_exceptions=False)
    assert on_disk(back)["places"] == before["places"]


@pytest.mark.promise("B1", "S3")
def test_a_move_out_that_gives_up_on_its_mark_is_finished_or_begun_again_by_the_same_command(
    data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the row of the shard: whether the mark will be there is not known."""
    before, back = on_disk(data), tmp_path / "back"
    moved("--data", data, "--to", url)
    monkeypatch.setattr("pairbus.storage.postgres.opening.ANSWER_SECONDS_MAX", 2.0)
    holder = psycopg.connect(url)

    def progress(done: int, total: int) -> None:
        if total and done == total:
            holder.execute("select from pairbus_shard for update")

    monkeypatch.setattr(command_module, "progress_bar", lambda _: nullcontext(progress))
    given_up = run("--data", back, "--from", url, "--namespace", NAME)
    holder.close()
    assert isinstance(given_up.exception, StoreUnavailable)
    assert "Repeat the command" in str(given_up.exception)
    assert "Nothing was changed" not in str(given_up.exception)
    assert not _is_on_disk(back, before)
    with pytest.raises(StoreUnavailable, match="is not finished: repeat"):
        open_store(Options(namespace=NAME, data=back))
    monkeypatch.setattr(command_module, "progress_bar", lambda _: nullcontext(lambda *_: None))
    assert _is_in_database(url, before)
    moved("--data", back, "--from", url, "--namespace", NAME)
    assert _is_on_disk(back, before)
    assert not _is_in_database(url, before)


def test_a_namespace_that_was_only_begun_in_the_database_is_replaced(data: Path, url: str) -> None:
    before = on_disk(data)
    rule = AccessRule(name=ROOT_RULE, rights=RIGHTS, primary_key="new", secondary_key="newer")
    with taken(open_database(url, NAME)) as (namespace, store):
        namespace.set_access_rules((rule,), START)
        commit(store)
    moved("--data", data, "--to", url)
    assert in_database(url) == before


@pytest.mark.promise("B1", "S3")
def test_a_second_move_into_the_same_directory_is_refused_and_touches_nothing(
    data: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, back = on_disk(data), tmp_path / "back"
    moved("--data", data, "--to", url)
    arguments = ("--data", back, "--from", url, "--namespace", NAME)
    refused: list[str] = []

    def progress(_done: int, _total: int) -> None:
        if refused:
            return
        refused.append("")  # the second one makes no progress of its own
        written = {path.name for path in (back / "store.moving").iterdir() if path.suffix != ".new"}
        refused[0] = str(run(*arguments).exception)
        assert {path.name for path in (back / "store.moving").iterdir()} >= written

    monkeypatch.setattr(command_module, "progress_bar", lambda _: nullcontext(progress))
    moved(*arguments)
    assert "is under way" in refused[0]
    assert _is_on_disk(back, before)


@pytest.mark.promise("B1", "S3")
def test_a_whole_copy_of_an_unfinished_move_is_removed_by_no_other_move(
    data: Path, url: str, tmp_path: Path
) -> None:
    before, back, other = on_disk(data), tmp_path / "back", tmp_path / "other"
    store = LogStore.open(other / STORE_DIRECTORY, namespace="other", segment_bytes=64 * 1024)
    list(store.replay())
    rule = AccessRule(name=ROOT_RULE, rights=RIGHTS, primary_key="one", secondary_key="two")
    Namespace("other", store, NoOutbox()).set_access_rules((rule,), START)
    commit(store)
    store.close()
    moved("--data", other, "--to", url)
    moved("--data", data, "--to", url)
    arguments = ("--data", back, "--from", url, "--namespace", NAME)
    moved(*arguments)
    (back / "store").rename(back / "store.moving")  # as a move leaves it that is killed before its last step

    wrong = ("--data", back, "--from", url, "--namespace", "other")
    with taken(open_database(url, "other")):
        assert isinstance(run(*wrong).exception, StoreUnavailable)
    result = run(*wrong)
    assert isinstance(result.exception, UsageError)
    assert f"the copy of namespace {NAME}" in str(result.exception)

    moved(*arguments)
    assert _is_on_disk(back, before)
