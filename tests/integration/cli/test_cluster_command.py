"""``pairbus cluster`` without nodes: a database that does not answer, and what the how-to says of one."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.engine.records import MessageStored
from pairbus.errors import StorageError, StoreCorrupt, UsageError
from pairbus.model.message import Message
from pairbus.server.assemble import open_table_store
from pairbus.storage.postgres.database import Database
from pairbus.storage.postgres.opening import open_database
from pairbus.storage.table.ports import SequenceTaken
from pairbus.storage.table.store import TableStore
from tests.contract.table_kinds import new_name
from tests.postgres_kit import shared_server

NAME = "contoso"
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "run-a-cluster.md"


@pytest.fixture
def url() -> str:
    return shared_server().new_database(new_name("command"))


@pytest.mark.parametrize("words", [("status",), ("move",), ("drain", "node-1")])
def test_a_command_gives_up_after_its_timeout(url: str, words: tuple[str, ...]) -> None:
    open_database(url, NAME)
    arguments = ["cluster", *words, "--store", url, "--namespace", NAME, "--timeout"]
    with psycopg.connect(url) as other:
        other.execute("lock table pairbus_shard in access exclusive mode")
        result = CliRunner().invoke(root, [*arguments, "3"], standalone_mode=False)
    assert isinstance(result.exception, StorageError)
    assert "no answer within 3 s: it waits for a lock" in str(result.exception)
    result = CliRunner().invoke(root, [*arguments, "0"], standalone_mode=False)
    assert isinstance(result.exception, UsageError)


def owned(database: Database) -> TableStore:
    """The store of a new owner."""
    lease = database.lease()
    while True:
        try:
            held = lease.acquire("node", "", 60_000)
        except SequenceTaken:
            continue
        assert held is not None
        lease.release(held.epoch)
        lease.close()
        return open_table_store(database, held, lambda: True, NAME, reserve_bytes=0)


def numbers(store: TableStore) -> list[int]:
    try:
        return [
            record.message.sequence_number for record in store.replay() if isinstance(record, MessageStored)
        ]
    finally:
        store.close()


@pytest.mark.promise("S1")
@pytest.mark.parametrize("range_frames", [8, 8192])
def test_a_log_with_a_hole_is_read_again_after_the_sql_of_the_how_to(url: str, range_frames: int) -> None:
    """As an earlier version left it behind. The page's own example: frames 24 to 38 are missing."""
    database = Database(url, NAME, range_frames=range_frames)
    database.prepare()
    store = owned(database)
    list(store.replay())
    for number in range(1, 60):
        store.append(MessageStored(4, Message(number, 1000, 0, 3, None), b"abc", b""))
        batch = store.seal()
        assert batch is not None
        store.commit(batch)
    store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from pairbus_frame where seq between 24 and 38")
    with pytest.raises(StoreCorrupt, match="frame 24 .*is missing: frame 39 follows in its place"):
        numbers(owned(database))
    (script,) = re.findall(r"```sql\n(delete from .*?)```", HOW_TO.read_text(), re.DOTALL)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())
    assert numbers(owned(database)) == list(range(1, 23))
    store = owned(database)
    list(store.replay())
    store.append(MessageStored(4, Message(99, 1000, 0, 3, None), b"abc", b""))
    batch = store.seal()
    assert batch is not None
    store.commit(batch)
    store.close()
    assert numbers(owned(database)) == [*range(1, 23), 99]
