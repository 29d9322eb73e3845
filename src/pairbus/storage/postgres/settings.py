"""What all nodes of a shard share besides its log: the certificate authority, the certificate and its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.storage.postgres.binary import BYTEA, INT4, TEXT, int4, raw
from pairbus.storage.postgres.connection import Session

if TYPE_CHECKING:
    from pairbus.storage.postgres.connection import Address

MOVED: Final = "moved"
"""The setting of a shard whose namespace lives elsewhere now: where."""
COPY: Final = "copy"
"""The setting of a shard that a move has filled: which move, and from which directory."""
_GET: Final = b"select value from pairbus_setting where shard = $1 and name = $2"
_PUT: Final = b"insert into pairbus_setting values ($1, $2, $3) on conflict (shard, name) do update set value = excluded.value"
_ADD: Final = b"insert into pairbus_setting values ($1, $2, $3) on conflict do nothing"


class PostgresSettings:
    """Named values of a shard. Values may be secrets: they are never part of an error's text."""

    def __init__(self, address: Address, shard: int) -> None:
        self._session = Session(address, "settings")
        self._shard = int4(shard)

    def get(self, name: str) -> bytes | None:
        return _value(self._session, self._shard, name)

    def put(self, name: str, value: bytes) -> None:
        """Set a value, whatever it was."""
        self._session.execute(b"put", _PUT, (INT4, TEXT, BYTEA), (self._shard, name.encode(), value))

    def settle(self, name: str, value: bytes) -> bytes:
        """Set a value unless there is one. Returns the one that holds: nodes that start together all get the same."""
        self._session.execute(b"add", _ADD, (INT4, TEXT, BYTEA), (self._shard, name.encode(), value))
        found = self.get(name)
        assert found is not None, "a setting is never removed"
        return found

    def close(self) -> None:
        self._session.close()


def setting_of(session: Session, shard: int, name: str) -> bytes | None:
    """One value, by a connection that is open already."""
    return _value(session, int4(shard), name)


def _value(session: Session, shard: bytes, name: str) -> bytes | None:
    found = session.execute(b"get", _GET, (INT4, TEXT), (shard, name.encode()))
    return raw(found, 0, 0) if found.ntuples else None
