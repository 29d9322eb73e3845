"""A PostgreSQL that stops answering while its connections stay up: the calls of the broker find the server that takes writes now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pairbus.storage.postgres.connection import Address, Session
from pairbus.storage.table.ports import OutcomeUnknown
from tests.postgres_kit import ADMINISTRATOR, PostgresServer, own_server
from tests.swallowing import swallowing_way
from tests.waiting import wait_until

SILENT_SECONDS = 0.3
SECONDS_MAX = 60


def url(*ports: int) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"postgresql://{ADMINISTRATOR}@{hosts}/postgres?connect_timeout=2"


def session_at(address: Address, port: int) -> Session:
    """A connection that leads through one of the ports."""
    session = Session(address, "commit")
    session.run("select 1")
    assert session._connection is not None
    assert session._connection.info.port == port
    return session


def under_way(pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Future[Any]:
    """A call that must not end yet."""
    future = pool.submit(call)
    with pytest.raises(TimeoutError):
        future.result(SILENT_SECONDS / 2)
    return future


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.mark.promise("S5")
def test_a_server_that_swallows_everything_is_left_for_the_one_that_takes_writes(
    pool: ThreadPoolExecutor,
) -> None:
    with own_server(tcp=True) as primary, swallowing_way(("127.0.0.1", primary.port)) as way:
        standby = primary.add_standby()
        try:
            address = Address(url(way.port, standby.port), silent_seconds=SILENT_SECONDS)
            told: list[tuple[str, str]] = []
            address.looker.report = lambda *what: told.append(what)
            session, idle = session_at(address, way.port), session_at(address, way.port)
            session.run("create table kept as select 1 as one")
            way.swallow()
            call = under_way(pool, lambda: session.run("insert into kept values (2)"))
            wait_until(
                lambda: any("finds no server that takes writes" in why for _, why in told), "it is told"
            )
            assert not call.done(), "there is nowhere to go yet"
            primary.pause()
            standby.run("alter system set synchronous_standby_names = ''")
            standby.promote()
            with pytest.raises(OutcomeUnknown, match="another server takes writes now"):
                call.result(SECONDS_MAX)
            for one in (session, idle):
                one.run("insert into kept values (3)")
                assert one._connection is not None
                assert one._connection.info.port == standby.port
            primary.resume()
            way.pass_on()
            with address.connect("test") as another:
                assert another.info.port == standby.port, "the former primary is first in the list, and back"
            assert [row[0] for row in standby.run("select one from kept")] == [1, 3, 3], "nothing comes late"
            address.cut()
        finally:
            primary.resume()
            standby.dispose()


@pytest.fixture(scope="module")
def server() -> Any:
    with own_server(tcp=True) as made:
        yield made


@pytest.mark.promise("S5")
@pytest.mark.parametrize("swallowed", ["the question", "the answer"])
def test_a_way_that_swallows_everything_is_left_for_another_way_to_the_same_server(
    server: PostgresServer, pool: ThreadPoolExecutor, swallowed: str
) -> None:
    with swallowing_way(("127.0.0.1", server.port)) as first:
        address = Address(url(first.port, server.port), silent_seconds=SILENT_SECONDS)
        session = session_at(address, first.port)
        if swallowed == "the question":
            first.swallow()
            call = pool.submit(session.run, "select 1")
        else:
            call = pool.submit(session.run, "select pg_sleep(1)")
            wait_until(lambda: _sleeps(server), "the server is at work")
            first.swallow()
        with pytest.raises(OutcomeUnknown, match="lost on its way"):
            call.result(SECONDS_MAX)
        session.run("select 1")
        address.cut()


def _sleeps(server: PostgresServer) -> bool:
    return bool(
        server.run("select 1 from pg_stat_activity where query = 'select pg_sleep(1)' and state = 'active'")
    )


def test_a_call_that_waits_for_a_lock_goes_on_and_no_backends_pile_up(
    server: PostgresServer, pool: ThreadPoolExecutor
) -> None:
    server.run("create table if not exists locked (one int)")
    address = Address(url(server.port), silent_seconds=SILENT_SECONDS)
    looks = 0
    seen = threading.Event()
    told: list[tuple[str, str]] = []

    def tell(purpose: str, why: str) -> None:
        nonlocal looks
        told.append((purpose, why))
        looks += 1
        if looks >= 2:
            seen.set()

    address.looker.report = tell
    session = session_at(address, server.port)
    with server.connect() as holder:
        holder.execute("begin")
        holder.execute("lock table locked")
        call = under_way(pool, lambda: session.run("insert into locked values (1)"))
        assert seen.wait(SECONDS_MAX)
        assert not call.done()
        wait_until(lambda: _connections(server) == 1, "the looks have hung up")
        holder.execute("commit")
        call.result(SECONDS_MAX)
    assert {purpose for purpose, _ in told} == {"commit"}
    assert "it waits for a lock on locked that another session holds" in told[0][1]
    wait_until(lambda: told[-1] == ("commit", ""), "the answer is told")
    address.cut()


def _connections(server: PostgresServer) -> int:
    return int(
        server.run("select count(*) from pg_stat_activity where application_name like 'pairbus-%'")[0][0]
    )


@pytest.mark.promise("S5")
def test_a_commit_that_waits_for_its_standby_goes_on(pool: ThreadPoolExecutor) -> None:
    """Cancelled, it would be answered with success."""
    with own_server(tcp=True) as primary:
        standby = primary.add_standby()
        try:
            address = Address(url(primary.port), silent_seconds=SILENT_SECONDS)
            told: list[str] = []
            address.looker.report = lambda _, why: told.append(why)
            session = session_at(address, primary.port)
            session.run("create table kept (one int)")
            standby.pause()
            call = under_way(pool, lambda: session.run("insert into kept values (1)"))
            wait_until(lambda: len(told) >= 2, "two looks were taken")
            assert told[0].startswith("the commit waits for a synchronous standby")
            assert not call.done()
            standby.resume()
            call.result(SECONDS_MAX)
            address.cut()
        finally:
            standby.resume()
            standby.dispose()


def test_the_only_server_that_is_silent_is_told_of_and_waited_for(pool: ThreadPoolExecutor) -> None:
    with own_server(tcp=True) as server:
        address = Address(url(server.port), silent_seconds=SILENT_SECONDS)
        told: list[tuple[str, str]] = []
        address.looker.report = lambda *what: told.append(what)
        session = session_at(address, server.port)
        server.pause()
        try:
            call = pool.submit(session.run, "select 1")
            wait_until(lambda: bool(told), "it is told")
            assert told[0][0] == "commit"
            assert "finds no server that takes writes" in told[0][1]
            assert not call.done()
        finally:
            server.resume()
        call.result(SECONDS_MAX)
        wait_until(lambda: told[-1] == ("commit", ""), "the answer is told")
        address.cut()


def test_a_connection_that_its_server_does_not_know_is_given_up(
    server: PostgresServer, pool: ThreadPoolExecutor
) -> None:
    with swallowing_way(("127.0.0.1", server.port)) as way:
        address = Address(url(way.port, server.port), silent_seconds=SILENT_SECONDS)
        session = session_at(address, way.port)
        way.swallow()
        call = pool.submit(session.run, "select 1")
        with server.connect() as administrator:
            administrator.execute(f"select pg_terminate_backend({session.backend})")
        with pytest.raises(OutcomeUnknown, match="does not know this connection"):
            call.result(SECONDS_MAX)
        address.cut()
