"""The log table in PostgreSQL: what the contract of the port cannot say of every table."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pairbus.errors import UsageError
from pairbus.storage.postgres import schema
from pairbus.storage.postgres.connection import Address, NotAnswered, Session
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.lease import PostgresLease
from pairbus.storage.postgres.opening import find_database, is_database, open_database
from pairbus.storage.postgres.waiting import waits_for
from pairbus.storage.table.ports import (
    FrameMark,
    OutcomeUnknown,
    SequenceTaken,
    ShardMoved,
    TableFailed,
    TableFull,
)
from tests.contract.table_kinds import new_name
from tests.postgres_kit import PostgresServer, own_server, shared_server
from tests.waiting import wait_until

MARK = FrameMark(1, 5)
WAIT_SECONDS_MAX = 60
SHORT_SECONDS = 0.5


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def url(server: PostgresServer) -> str:
    """An empty database."""
    return server.new_database(new_name("db"))


@pytest.fixture
def database(url: str) -> Database:
    """A database with one shard that was taken."""
    made = Database(url, "contoso", range_frames=8)
    made.prepare()
    take(made)
    return made


def take(database: Database) -> None:
    lease = database.lease()
    for _ in range(2):
        try:
            assert lease.acquire("a", "", 60_000) is not None
            break
        except SequenceTaken:
            continue
    lease.close()


@pytest.fixture
def writer(database: Database) -> Iterator[Any]:
    made = database.writer()
    yield made
    made.close()


def run(database: Database, statement: str) -> list[tuple[Any, ...]]:
    with database.address.connect("test") as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


# -- tables ------------------------------------------------------------------------------------------------------


def test_nodes_that_start_together_agree_on_tables_and_shards(server: PostgresServer) -> None:
    url = server.new_database(new_name("together"))

    def start(number: int) -> tuple[str, int]:
        name = f"namespace-{number % 2}"
        database = open_database(url, name)
        return name, database.shard

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(start, range(8)))
    assert len(found) == 2
    assert {name for name, _ in found} == {"namespace-0", "namespace-1"}
    assert len({shard for _, shard in found}) == 2
    assert open_database(url, "namespace-1").shard in {shard for _, shard in found}


def test_tables_of_a_newer_version_are_refused_and_left_alone(database: Database) -> None:
    run(database, "update pairbus_schema set version = 99")
    with pytest.raises(TableFailed, match="version 99"):
        database.prepare()
    assert run(database, "select version from pairbus_schema") == [(99,)]


def test_tables_of_an_older_version_are_migrated_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setitem(
        schema.MIGRATIONS, schema.VERSION - 1, "alter table pairbus_shard add column added int default 7;"
    )
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: database.prepare(), range(4)))
    assert run(database, "select version from pairbus_schema") == [(schema.VERSION,)]
    assert run(database, "select added from pairbus_shard") == [(7,)]


def test_rights_that_are_missing_are_told_once_and_for_all(server: PostgresServer) -> None:
    server.new_database("closed")
    server.run("create role stranger login")
    server.run("revoke create on schema public from public", "closed")
    url = server.url("closed").replace("pairbus@", "stranger@")
    with pytest.raises(TableFailed, match="permission denied"):
        open_database(url, "contoso")


# -- a namespace that was moved ----------------------------------------------------------------------------------


@pytest.mark.promise("S3", "S6")
def test_an_acquisition_that_waits_while_the_shard_is_moved_away_does_not_take_it(url: str) -> None:
    """It began before the mark was there, so its statement does not see what other tables got meanwhile."""
    database = Database(url, "contoso", range_frames=8)
    database.prepare()
    mover, other = database.lease(), database.lease()
    with pytest.raises(SequenceTaken):
        mover.acquire("mover", "", 1)
    held = mover.acquire("mover", "", 1)  # its lease is over at once
    assert held is not None

    def waiting() -> int:
        found = run(
            database,
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        return int(found[0][0])

    with database.address.connect("test") as blocker, ThreadPoolExecutor(2) as pool:
        with blocker.transaction():
            blocker.execute("select 1 from pairbus_shard for update")
            marked = pool.submit(mover.move_away, held.epoch, "elsewhere")
            wait_until(lambda: waiting() == 1)
            taken = pool.submit(other.acquire, "a", "", 60_000)
            wait_until(lambda: waiting() == 2)
        assert marked.result(WAIT_SECONDS_MAX)
        assert taken.result(WAIT_SECONDS_MAX) is None
    for lease in (mover, other):
        with pytest.raises(ShardMoved):
            lease.look()
        lease.close()


def test_the_mark_of_an_earlier_version_is_heeded_by_nodes_that_run(database: Database) -> None:
    run(database, "insert into pairbus_setting select shard, 'moved', 'there' from pairbus_shard")
    run(database, "update pairbus_shard set owner = ''")
    lease = database.lease()
    assert lease.acquire("a", "", 60_000) is None
    with pytest.raises(ShardMoved, match="to there"):
        lease.look()
    run(database, "delete from pairbus_setting")
    run(database, "delete from pairbus_shard")
    with pytest.raises(ShardMoved, match="is gone"):
        lease.look()
    lease.close()


# -- outcomes ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("S5")
def test_a_lost_connection_leaves_the_outcome_unknown_and_the_next_call_connects(
    database: Database, writer: Any
) -> None:
    writer.insert(2, MARK, b"", [])
    kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pairbus-commit' and datname = current_database()"
    assert run(database, kill) == [(True,)]
    with pytest.raises(OutcomeUnknown):
        writer.insert(3, MARK, b"", [])
    try:
        writer.insert(3, MARK, b"", [])
    except SequenceTaken:
        assert writer.mark_of(3) == MARK


@pytest.mark.promise("S5", "S7")
def test_a_commit_whose_wait_for_the_standby_is_cancelled_proves_nothing() -> None:
    """PostgreSQL answers such a commit with success and a warning."""
    with own_server() as server:
        database = open_database(server.url(), "contoso")
        take(database)
        writer = database.writer()
        writer.insert(2, MARK, b"", [])
        server.wait_for_copies("ANY 1 (nobody)")
        with ThreadPoolExecutor(1) as pool:
            committed = pool.submit(writer.insert, 3, MARK, b"", [])
            waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
            wait_until(lambda: len(server.run(waiting)) == 1)
            server.run(f"select pg_cancel_backend({server.run(waiting)[0][0]})")
            with pytest.raises(OutcomeUnknown, match="warned"):
                committed.result(WAIT_SECONDS_MAX)
            assert writer.mark_of(3) == MARK  # seen, and on one disk alone
            barrier = pool.submit(writer.barrier)
            wait_until(lambda: len(server.run(waiting)) == 1)
            assert not barrier.done()
            server.wait_for_copies("")
            barrier.result(WAIT_SECONDS_MAX)
            # A node that ends does not wait for a commit that hangs.
            server.wait_for_copies("ANY 1 (nobody)")
            hanging = pool.submit(writer.insert, 4, MARK, b"", [])
            wait_until(lambda: len(server.run(waiting)) == 1)
            writer.close()
            with pytest.raises((OutcomeUnknown, TableFailed)):
                hanging.result(WAIT_SECONDS_MAX)
            with pytest.raises(TableFailed, match="closed"):
                writer.mark_of(4)
        # A command does not wait for ever either, and says what for.
        command = find_database(server.url(), "contoso", SHORT_SECONDS).lease()
        with pytest.raises(
            NotAnswered, match=r"waits for a synchronous standby .*nobody.* may still take effect"
        ):
            command.renew(1, "", 1)
        command.close()


def test_a_command_does_not_wait_for_ever_for_a_lock_of_others(url: str, database: Database) -> None:
    with psycopg.connect(url) as other:
        other.execute("lock table pairbus_shard in access exclusive mode")
        with pytest.raises(NotAnswered, match=rf"lock .*process {other.info.backend_pid}") as refused:
            find_database(url, database.namespace, SHORT_SECONDS)
        assert f"no answer within {SHORT_SECONDS:g} s" in str(refused.value)
    assert find_database(url, database.namespace, WAIT_SECONDS_MAX).shard == database.shard


def _backends(url: str, pid: int) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as asking:
        return asking.execute("select state from pg_stat_activity where pid = %s", (pid,)).fetchall()


def _backend(lease: Any) -> int:
    return int(lease._session._connection.info.backend_pid)


@contextlib.contextmanager
def _renewal_under_way(url: str) -> Iterator[psycopg.Connection[Any]]:
    """The owner's lease has ended. It has renewed it, and that commit waits: the row is locked. When it is committed, that lease has ended too."""
    with psycopg.connect(url) as owner:
        for _ in range(2):
            owner.commit()
            owner.execute("update pairbus_shard set until = clock_timestamp() - interval '1 second'")
        yield owner


@pytest.mark.promise("S4")
def test_a_command_does_not_wait_for_a_lease_whose_owner_is_renewing_it(url: str, database: Database) -> None:
    """It would get the lease when the standby is back that the renewal waits for, and fence an owner that runs."""
    command = find_database(url, database.namespace, WAIT_SECONDS_MAX).lease()
    with _renewal_under_way(url) as owner:
        assert command.acquire("pairbus-store", "", 60_000) is None
        owner.commit()
    assert database.lease().look().epoch == 1
    assert command.acquire("pairbus-store", "", 60_000) is not None  # nobody renews it any more
    command.close()


@pytest.mark.promise("S4")
@pytest.mark.uncompiled
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_command_leaves_a_lease_alone_that_is_renewed_while_it_looks(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """The standby came back between two renewals of an owner: its lease has ended, and it runs."""
    with _renewal_under_way(url):
        pass
    command = find_database(url, database.namespace, WAIT_SECONDS_MAX).lease()
    with psycopg.connect(url) as owner:

        def renews(_: float) -> None:
            owner.execute("update pairbus_shard set until = clock_timestamp() + interval '1 minute'")
            if is_committed:
                owner.commit()

        monkeypatch.setattr("pairbus.storage.postgres.lease.time.sleep", renews)
        assert command.acquire("pairbus-store", "", 60_000) is None
    assert database.lease().look().epoch == 1
    command.close()


@pytest.mark.promise("S4")
def test_a_command_leaves_a_lease_alone_whose_renewal_waits_for_a_table(url: str, database: Database) -> None:
    """The row itself is free. When the table is unlocked, the renewal and what the command asked would come through in any order."""
    with _renewal_under_way(url):
        pass
    command = find_database(url, database.namespace, SHORT_SECONDS).lease()
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("lock table pairbus_shard in share mode")
        renewal = pool.submit(database.lease().renew, 1, "", 60_000)
        wait_until(lambda: database.nodes().held_up() != (), "the renewal waits")
        assert command.acquire("pairbus-store", "", 60_000) is None
        other.rollback()
        assert renewal.result()
    assert database.lease().look().epoch == 1
    command.close()


@pytest.mark.promise("S4")
def test_a_command_whose_statement_lay_unread_does_not_take_the_lease_later(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was frozen until the command had ended."""
    with _renewal_under_way(url):
        pass
    command = find_database(url, database.namespace, SHORT_SECONDS).lease()
    deadline = PostgresLease._deadline

    def freezes(lease: PostgresLease) -> int:
        found = deadline(lease)
        os.kill(_backend(lease), signal.SIGSTOP)
        return found

    monkeypatch.setattr(PostgresLease, "_deadline", freezes)
    command.look()
    pid = _backend(command)
    try:
        with pytest.raises(NotAnswered):
            command.acquire("pairbus-store", "", 60_000)
    finally:
        os.kill(pid, signal.SIGCONT)
    command.close()
    wait_until(lambda: not _backends(url, pid))
    assert database.lease().look().epoch == 1


@pytest.mark.promise("S8")
def test_a_process_that_ends_cuts_every_call_to_the_database(url: str, database: Database) -> None:
    lease, reader = database.lease(), database.reader()
    assert reader.oldest() == 1
    with ThreadPoolExecutor(1) as pool, _renewal_under_way(url):
        waiting = pool.submit(lease.renew, 1, "", 60_000)
        wait_until(lambda: lease._session._connection is not None)
        assert not waiting.done()
        database.cut()
        with pytest.raises((OutcomeUnknown, TableFailed)):
            waiting.result(WAIT_SECONDS_MAX)
    for call in (reader.oldest, lease.look, database.writer().barrier):
        with pytest.raises(TableFailed, match="is closed"):
            call()


@pytest.mark.promise("S4")
def test_a_node_that_ended_while_it_waited_for_the_lease_does_not_get_it(
    url: str, database: Database
) -> None:
    lease = database.lease()
    lease.look()
    pid = _backend(lease)
    with ThreadPoolExecutor(1) as pool, _renewal_under_way(url) as owner:
        waiting = pool.submit(lease.acquire, "b", "", 60_000)
        wait_until(lambda: _backends(url, pid) == [("active",)])
        lease.close()
        with pytest.raises((OutcomeUnknown, TableFailed)):
            waiting.result(WAIT_SECONDS_MAX)
        wait_until(lambda: not _backends(url, pid))
        owner.commit()
    assert database.lease().look().epoch == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            ("IPC", "SyncRep", "", "ANY 1 (gone)"),
            "a synchronous standby (synchronous_standby_names is 'ANY 1 (gone)')",
        ),
        (
            ("Lock", "SyncRep", "17", "gone", "pairbus_shard"),
            "behind a commit that waits for a synchronous standby",
        ),
        (("Lock", "relation", "17, 18", ""), "a lock that another session holds (process 17, 18)"),
        (
            ("Lock", "transactionid", "17", "", "pairbus_shard"),
            "a lock on pairbus_shard that another session holds (process 17)",
        ),
        (("IO", "WALSync", "", ""), "at work (IO: WALSync)"),
        (("", "", "", ""), "the database is at work"),
    ],
)
def test_what_a_command_waits_for_is_told_in_words(row: tuple[str, ...], said: str) -> None:
    assert said in waits_for(*row)


@pytest.mark.promise("S3", "S5", "S8")
def test_a_killed_primary_is_followed_to_its_standby() -> None:
    with own_server() as primary:
        standby = primary.add_standby()
        try:
            database = open_database(primary.url("postgres", standby), "contoso")
            take(database)
            writer, reader = database.writer(), database.reader()
            for sequence in range(2, 20):
                writer.insert(sequence, MARK, b"%d" % sequence, [b"body"])
            primary.kill()
            with pytest.raises(OutcomeUnknown):
                writer.insert(20, MARK, b"20", [b"body"])
            standby.promote()
            writer.insert(20, MARK, b"20", [b"body"])
            assert [frame.sequence for frame in reader.heads(1, 99)] == list(range(1, 21))
            writer.close()
            reader.close()
        finally:
            standby.dispose()


@pytest.mark.parametrize(("text", "state"), [("full", "53100"), ("Disk quota exceeded", "58030")])
def test_a_database_without_space_changes_nothing_and_says_so(
    database: Database, writer: Any, text: str, state: str
) -> None:
    writer.insert(2, MARK, b"", [])
    run(
        database,
        "create function full_disk() returns trigger language plpgsql as $$ begin raise exception '"
        + text
        + "' using errcode = '"
        + state
        + "'; end $$",
    )
    run(
        database,
        "create trigger full_disk before insert on pairbus_frame for each row execute function full_disk()",
    )
    with pytest.raises(TableFull):
        writer.insert(3, MARK, b"", [])
    assert writer.mark_of(3) is None
    run(database, "drop trigger full_disk on pairbus_frame")
    writer.insert(3, MARK, b"", [])


def test_a_primary_that_was_demoted_is_left_for_the_new_one(database: Database, writer: Any) -> None:
    writer.insert(2, MARK, b"", [])
    name = database.namespace  # only to say that nothing else is changed
    run(
        database,
        "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$",
    )
    writer.close()
    again = database.writer()
    with pytest.raises(OutcomeUnknown):
        again.insert(3, MARK, b"", [])
    assert database.namespace == name
    again.close()


def test_no_timeout_of_a_role_reaches_the_connections(database: Database) -> None:
    run(
        database,
        "do $$ begin execute format('alter database %I set statement_timeout = 1234', current_database()); "
        "execute format('alter database %I set synchronous_commit = off', current_database()); end $$",
    )
    session = Session(database.address, "test")
    for name, value in (("statement_timeout", b"0"), ("lock_timeout", b"0"), ("synchronous_commit", b"on")):
        assert session.run(f"show {name}").get_value(0, 0) == value
    session.close()


@pytest.mark.parametrize(
    "ask",
    [lambda session: session.run("select 1"), lambda session: session.execute(b"one", b"select 1", (), ())],
    ids=["run", "execute"],
)
def test_a_call_that_libpq_has_no_result_for_is_a_lost_connection(
    database: Database, ask: Callable[[Session], object]
) -> None:
    """Every thread of a node expects the errors of the port; one of psycopg's own would end it."""
    session = Session(database.address, "test")
    ask(session)
    assert session._connection is not None
    session._connection.pgconn.finish()
    with pytest.raises(OutcomeUnknown, match="was lost"):
        ask(session)
    ask(session)
    session.close()


def test_a_reader_that_stays_does_not_hold_up_commits(url: str, database: Database, writer: Any) -> None:
    """A backup holds a lock on every table for as long as it runs."""
    for sequence in range(2, 20):
        writer.insert(sequence, MARK, b"", [])
    with database.address.connect("test") as backup:
        backup.autocommit = False
        backup.execute(b"select count(*) from pairbus_frame")
        assert not writer.drop_below(16), "it is to be tried again"
        another = Database(url, "fabrikam", range_frames=8)
        another.prepare()
        take(another)
        for sequence in range(20, 60):
            writer.insert(sequence, MARK, b"", [])
        backup.rollback()
    reader = database.reader()
    assert reader.oldest() == 1
    assert writer.drop_below(16)
    assert reader.oldest() == 16
    reader.close()


def test_a_reserve_is_held_step_by_step_and_given_up_at_once(database: Database, writer: Any) -> None:
    for held in (1, 2, 3, 4, 5, 6, 6):
        assert writer.hold_reserve(6 << 20) == held << 20
    size = f"select pg_total_relation_size('pairbus_reserve_{database.shard}')"
    assert run(database, size)[0][0] >= 6 << 20
    assert not writer.hold_reserve(0)
    assert run(database, f"select to_regclass('pairbus_reserve_{database.shard}')") == [(None,)]


@pytest.mark.promise("B12")
def test_a_reserve_is_given_up_though_the_database_has_no_space_for_the_first_tries(
    database: Database, writer: Any
) -> None:
    """A sequence counts the tries, because it does not roll back."""
    assert writer.hold_reserve(1) == 1 << 20
    run(
        database,
        "create sequence tries; create function full_disk() returns event_trigger language plpgsql as $$ begin "
        f"if nextval('tries') % {schema.DROP_TRIES_MAX + 2} <> 0 then raise exception 'full' using errcode = '53100'; end if; end $$;"
        "create event trigger full_disk on sql_drop execute function full_disk()",
    )
    with pytest.raises(TableFull):
        writer.hold_reserve(0)
    assert writer.hold_reserve(1) == 1 << 20, "it is still held"
    assert writer.hold_reserve(0) == 0
    assert run(database, "select last_value from tries") == [(schema.DROP_TRIES_MAX + 2,)]


@pytest.mark.promise("B12")
def test_a_reserve_is_taken_from_an_owner_only_when_its_lease_has_ended(
    database: Database, writer: Any
) -> None:
    assert writer.hold_reserve(1) == 1 << 20
    lease = PostgresLease(database.address, database.shard, 8)
    assert not lease._gave_up_reserve()
    assert writer.hold_reserve(1) == 1 << 20
    lease.release(1)
    assert lease._gave_up_reserve()
    assert not lease._gave_up_reserve(), "there is none"
    lease.close()


# -- settings, addresses -----------------------------------------------------------------------------------------


def test_all_nodes_get_the_setting_of_the_first(database: Database) -> None:
    one, other = database.settings(), database.settings()
    assert one.get("authority") is None
    assert one.settle("authority", b"first\x00") == b"first\x00"
    assert other.settle("authority", b"second") == b"first\x00"
    other.put("authority", b"third")
    assert one.get("authority") == b"third"
    one.close()
    other.close()


@pytest.mark.parametrize(
    "url", ["postgresql://me:geheim%zz@h/db", "postgresql://me:geheim@127.0.0.1:1/db?connect_timeout=2"]
)
def test_a_password_is_in_no_error_and_no_name(url: str) -> None:
    with pytest.raises((UsageError, OutcomeUnknown)) as caught:
        open_database(url, "contoso")
    error: BaseException | None = caught.value
    while error is not None:
        assert "geheim" not in str(error)
        error = error.__cause__
    if "%zz" not in url:
        assert "geheim" not in f"{Address(url)} {Address(url)!r}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:geheim@db-1/bus", "database 'bus' on db-1:5432"),
        ("postgresql://db-1:5433,db-2/bus", "database 'bus' on db-1:5433,db-2:5432"),
        ("postgresql://[::1]:5433/bus", "database 'bus' on [::1]:5433"),
        ("postgresql:///bus?host=/run/postgres&port=5433", "database 'bus' on /run/postgres:5433"),
        ("postgresql:///bus", "database 'bus' on localhost:5432"),
    ],
)
def test_a_database_is_named_with_its_ports(url: str, shown: str) -> None:
    """Two servers may share a host."""
    assert str(Address(url)) == shown


def test_a_store_in_a_database_is_known_by_its_scheme() -> None:
    assert is_database("postgresql://h/db")
    assert is_database("postgres://h/db")
    assert not is_database("memory:")
    assert not is_database("./postgresql")


def test_a_namespace_is_one_however_its_name_is_spelled(url: str) -> None:
    """As in Service Bus, names of namespaces ignore case: a second spelling is refused, and the first one named."""
    open_database(url, "contoso")
    with pytest.raises(UsageError, match="--namespace contoso instead of Contoso"):
        open_database(url, "Contoso")
    with pytest.raises(UsageError, match="--namespace contoso instead of CONTOSO"):
        find_database(url, "CONTOSO", WAIT_SECONDS_MAX)
    with pytest.raises(UsageError, match="has no namespace 'fabrikam'"):
        find_database(url, "fabrikam", WAIT_SECONDS_MAX)


def test_of_two_spellings_that_begin_together_one_is_refused(url: str) -> None:
    schema.ensure(Session(Database(url, "x").address, "setup"))
    spellings = ["contoso", "Contoso", "CONTOSO", "contosO"]

    def begin(name: str) -> bool:
        with contextlib.suppress(UsageError):
            open_database(url, name)
            return True
        return False

    with ThreadPoolExecutor(len(spellings)) as pool:
        assert sum(pool.map(begin, spellings)) == 1


def test_namespaces_of_earlier_versions_that_differ_by_case_alone_are_both_found(url: str) -> None:
    open_database(url, "contoso")
    with psycopg.connect(url) as connection:
        connection.execute("insert into pairbus_shard (name, range_frames) values ('Contoso', 8192)")
    assert open_database(url, "contoso").shard != open_database(url, "Contoso").shard
