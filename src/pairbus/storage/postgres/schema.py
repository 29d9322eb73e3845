"""The tables: made at the first start, migrated by later versions, refused if a newer PairBus made them.

    pairbus_schema    version
    pairbus_shard     shard, name, epoch, owner, address, until, frames in a range    one row for each shard: who may write and speak
    pairbus_frame     shard, seq, epoch, crc, head, body                              the log: one row for each commit
    pairbus_setting   shard, name, value                                              what all nodes of a shard share: certificates, keys
    pairbus_node      shard, node, address, names, state, version, asked, seen        the nodes that serve a shard
    pairbus_barrier   shard, passed                                                   written to learn that everything before is durable

    pairbus_reserve_<shard>   filling    space that is given up when the database is full; made by the writer

``pairbus_frame`` is partitioned by shard, and below it by ranges of ``seq``, the segments of the log: space is given back by dropping
whole ranges. The range of a number follows from the number alone, so that two nodes can never write one number into two ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.errors import UsageError
from pairbus.storage.postgres.binary import INT4, TEXT, number, text
from pairbus.storage.postgres.connection import DROPPED
from pairbus.storage.postgres.settings import COPY, MOVED
from pairbus.storage.table.ports import TableFailed, TableFull

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Session

VERSION: Final = 1
RANGE_FRAMES: Final = 8192
"""Frames in a range of a new shard."""
DROP_LOCK_MS: Final = 100
"""How long a table that is dropped may wait for a reader, such as a backup: commits wait behind it."""
DROP_TRIES_MAX: Final = 128
"""How often a table is dropped on a full disk until that succeeds: each try takes about a millisecond."""
_LOCK: Final = 0x7061_6972_6275_73
"""The advisory lock that nodes starting at the same time take in turn."""
_GUARD: Final = f"""
set local lock_timeout = '60s';
select pg_advisory_xact_lock({_LOCK});
set local lock_timeout = 0;
"""

_TABLES: Final = """
create table if not exists pairbus_schema (version int not null);
create table if not exists pairbus_shard (
  shard int generated always as identity primary key, name text unique not null, epoch bigint not null default 0,
  owner text not null default '', address text not null default '', until timestamptz not null default 'epoch',
  range_frames bigint not null);
create table if not exists pairbus_frame (
  shard int not null, seq bigint not null, epoch bigint not null, crc bigint not null, head bytea not null, body bytea not null,
  primary key (shard, seq)) partition by list (shard);
alter table pairbus_frame alter column head set storage external, alter column body set storage external;
create table if not exists pairbus_setting (
  shard int not null references pairbus_shard, name text not null, value bytea not null, primary key (shard, name));
create table if not exists pairbus_node (
  shard int not null references pairbus_shard, node text not null, address text not null, names text not null, state text not null,
  version text not null, asked text not null default '', seen timestamptz not null, primary key (shard, node));
create table if not exists pairbus_barrier (shard int primary key references pairbus_shard, passed bigint not null);
insert into pairbus_schema select 1 where not exists (select from pairbus_schema);
"""

MIGRATIONS: Final[dict[int, str]] = {}
"""Version to the statements that lead to the next one; they run under the lock, in one transaction with the new number."""


def found_version(session: Session) -> int | None:
    """The version of the tables; None: there are none."""
    result = session.run("select to_regclass('pairbus_schema') is not null")
    if result.get_value(0, 0) != b"t":
        return None
    result = session.run("select max(version)::text from pairbus_schema")
    value = result.get_value(0, 0)
    return None if value is None else int(value)


def ensure(session: Session) -> None:
    """See to it that the tables are there, in this version. Nodes that start together agree. Raises TableFailed."""
    version = found_version(session)
    if version is None:
        session.run(_GUARD + _TABLES)
        version = found_version(session)
    while version is not None and version < VERSION:
        # Guarded by the number: the second of two nodes finds nothing to update, and its transaction changes nothing.
        _migrate(session, version)
        version = found_version(session)
    if version is None or version > VERSION:
        raise TableFailed(
            f"the tables in {session.address} have version {version}, and this PairBus knows {VERSION}: use the PairBus "
            "that made them, or a newer one"
        )


def _migrate(session: Session, version: int) -> None:
    session.run(
        f"{_GUARD}\ndo $pairbus$ begin\n"
        f"if (select max(version) from pairbus_schema) = {version} then\n"
        f"{MIGRATIONS[version]}\nupdate pairbus_schema set version = {version + 1};\nend if;\nend $pairbus$;"
    )


def find_shard(session: Session, namespace: str) -> tuple[int, int] | None:
    """The number of a namespace's shard and the frames in each of its ranges; None: there is none. Makes nothing."""
    if found_version(session) is None:
        return None
    select = b"select shard, range_frames from pairbus_shard where name = $1"
    found = session.execute(b"shard", select, (TEXT,), (namespace.encode(),))
    if not found.ntuples:
        _refuse_other_case(session, namespace)
    return (number(found, 0, 0), number(found, 0, 1)) if found.ntuples else None


def _refuse_other_case(session: Session, namespace: str) -> None:
    """Names of namespaces ignore case, as in Service Bus. Raises UsageError if the database has this one in another spelling."""
    select = b"select name from pairbus_shard where lower(name) = lower($1) and name <> $1"
    found = session.execute(b"other_case", select, (TEXT,), (namespace.encode(),))
    if found.ntuples:
        name = text(found, 0, 0)
        raise UsageError(
            f"the database has the namespace {name}, and names of namespaces ignore case: write --namespace {name} instead of {namespace}"
        )


def shard_of(session: Session, namespace: str, range_frames: int = RANGE_FRAMES) -> tuple[int, int, bool]:
    """The number of a namespace's shard, the frames in each of its ranges, and whether it was made because it was not there.

    Raises UsageError if the database has the namespace in another spelling.
    """
    name = namespace.encode()
    select = b"select shard, range_frames from pairbus_shard where name = $1"
    found = session.execute(b"shard", select, (TEXT,), (name,))
    is_made = False
    if not found.ntuples:
        quoted = _literal(namespace)
        inserted = session.run(
            f"{_GUARD} insert into pairbus_shard (name, range_frames) select {quoted}, {range_frames} "
            f"where not exists (select from pairbus_shard where lower(name) = lower({quoted}))"
        )
        is_made = inserted.command_tuples == 1
        found = session.execute(b"shard", select, (TEXT,), (name,))
        if not found.ntuples:
            _refuse_other_case(session, namespace)
    shard, frames = number(found, 0, 0), number(found, 0, 1)
    # As for a range: attaching waits for no reader, so a backup that runs holds up neither this nor the commits of other shards.
    table = f"pairbus_frame_{shard}"
    session.run(
        f"""do $pairbus$ begin
        if to_regclass('{table}') is null then
          lock table pairbus_frame in share update exclusive mode;
          if to_regclass('{table}') is null then
            create table {table} (like pairbus_frame including all) partition by range (seq);
            alter table pairbus_frame attach partition {table} for values in ({shard});
          end if;
        end if;
        end $pairbus$"""
    )
    return shard, frames, is_made


def drop_shard(
    session: Session, shard: int, *, name: str, epoch: int, owner: str, copied: bytes | None, is_empty: bool
) -> bool:
    """Remove a shard and everything in it, if it is still as it was seen; False: it is not, so it belongs to somebody else by now.

    In one transaction with that check: a move that looks first and removes then may sleep in between for as long as a node takes to serve it.

    Args:
        session: A connection.
        shard: Its number.
        name: Its namespace, which another may have got meanwhile.
        epoch: That it had.
        owner: Who may own it all the same; whose lease has ended does not count.
        copied: What it has as ``COPY``.
        is_empty: Whether it must hold nothing but fences.
    """
    mark = "null" if copied is None else f"decode('{copied.hex()}', 'hex')"
    is_same = (
        f"select from pairbus_shard where shard = {shard} and name = {_literal(name)} and epoch = {epoch} "
        f"and (owner in ('', {_literal(owner)}) or until <= clock_timestamp()) "
        f"and (select value from pairbus_setting where shard = {shard} and name = '{COPY}') is not distinct from {mark}"
        + (f" and not exists ({_filled(shard)})" if is_empty else "")
    )
    result = session.run(
        f"""do $pairbus$ begin
        if exists ({is_same}) then
          set local lock_timeout = '10s';
          -- First, as an acquisition does, and as dropping one of its parts would: who waits for the row holds this one.
          lock table pairbus_frame in access exclusive mode;
          perform from pairbus_shard where shard = {shard} for update;
          if exists ({is_same}) then {_drop_script(shard)}; end if;
        end if;
        end $pairbus$;
        select exists (select from pairbus_shard where shard = {shard})"""
    )
    return result.get_value(0, 0) != b"t"


def _filled(shard: int) -> str:
    """Frames that are not fences."""
    return f"select from pairbus_frame where shard = {shard} and length(head) > 0"


def replace_shard(session: Session, old: int, new: int, namespace: str) -> None:
    """Remove one shard and give its namespace to another, in one transaction. Nothing happens if that was done already.

    Raises TableFailed if the copy is gone, or the old shard is neither marked as moved nor empty: then a node may have served it.
    """
    name = _literal(namespace)
    session.run(
        f"""set local lock_timeout = '10s';
        lock table pairbus_frame in access exclusive mode;
        do $pairbus$ begin
        if not exists (select from pairbus_shard where shard = {new}) then
          raise exception 'the new copy of % is gone: something else moves it too', {name};
        end if;
        perform from pairbus_shard where shard = {old} for update;
        if not exists (select from pairbus_setting where shard = {old} and name = '{MOVED}')
           and exists (select from pairbus_shard where shard = {old} and owner <> '' and until > clock_timestamp()
                       union all {_filled(old)}) then
          raise exception 'a node has begun namespace % meanwhile: stop the nodes, delete what it holds, and repeat the command', {name};
        end if;
        end $pairbus$;
        {_drop_script(old)};
        update pairbus_shard set name = {name} where shard = {new}"""
    )


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _drop_script(shard: int) -> str:
    return (
        f"drop table if exists pairbus_frame_{shard}; drop table if exists {reserve_name(shard)};"
        f"delete from pairbus_setting where shard = {shard}; delete from pairbus_node where shard = {shard};"
        f"delete from pairbus_barrier where shard = {shard}; delete from pairbus_shard where shard = {shard}"
    )


def last_frame(session: Session, shard: bytes) -> int:
    """The number of a shard's last frame; 0: there is none. ``shard``: in binary form."""
    statement = b"select seq from pairbus_frame where shard = $1 order by seq desc limit 1"
    found = session.execute(b"last", statement, (INT4,), (shard,))
    return number(found, 0, 0) if found.ntuples else 0


def run_drop(session: Session, script: str) -> None:
    """Run what drops a table, also on a full disk.

    To read a page of its catalogs the database takes the place of another in its memory, and writes that one first if it was changed.
    A page of a database that was just made has no space on disk until the first checkpoint, so on a full disk this fails. The next
    try takes the place of another page: one that has its space will come.
    """
    for tries in range(1, DROP_TRIES_MAX + 1):
        try:
            session.run(script)
            return
        except TableFull:
            if tries == DROP_TRIES_MAX:
                raise


def reserve_name(shard: int) -> str:
    """The table that only takes up space."""
    return f"pairbus_reserve_{shard}"


def range_name(shard: int, place: int) -> str:
    """The table of one range."""
    return f"pairbus_frame_{shard}_{place}"


def make_range(session: Session, shard: int, place: int, range_frames: int) -> None:
    """See to it that a range can be written. Raises SequenceTaken if it was dropped: its frames were written long ago.

    Attaching a table, unlike making it in place, waits for no reader. The lock lets nodes make and drop ranges one after the other.
    """
    parent = f"pairbus_frame_{shard}"
    name = range_name(shard, place)
    # Frames are written once and dropped together, so there is nothing to vacuum until their transaction numbers age.
    session.run(
        f"""do $pairbus$ begin
        if to_regclass('{name}') is null then
          lock table {parent} in share update exclusive mode;
          if to_regclass('{name}') is null then
            if exists (select from pg_inherits join pg_class on pg_class.oid = inhrelid
                       where inhparent = '{parent}'::regclass and substring(relname from '_([0-9]+)$')::bigint > {place}) then
              raise exception 'range {place} was dropped' using errcode = '{DROPPED}';
            end if;
            create table {name} (like {parent} including all) with (toast_tuple_target = 8160,
              autovacuum_enabled = false, toast.autovacuum_enabled = false);
            alter table {parent} attach partition {name}
              for values from ({place * range_frames}) to ({(place + 1) * range_frames});
          end if;
        end if;
        end $pairbus$"""
    )
