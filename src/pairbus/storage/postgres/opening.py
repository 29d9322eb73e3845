"""How others reach the database: psycopg is loaded here, and only when a database is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pairbus.storage.postgres.database import Database

SCHEMES: Final = ("postgresql://", "postgres://")


def is_database(url: str) -> bool:
    """Whether the URL of a store names a PostgreSQL database."""
    return url.startswith(SCHEMES)


def open_database(url: str, namespace: str, *, replaces_moved: bool = False) -> Database:
    """Connect once: make or migrate the tables, and find the namespace's shard or begin it.

    A namespace that was moved elsewhere is refused; with ``replaces_moved`` what is left of it is removed.

    Raises:
        UsageError: psycopg is not installed, or the URL cannot be understood.
        OutcomeUnknown: The database does not answer; try again.
        TableFailed: It refuses: missing rights, or a newer PairBus made the tables.
    """
    try:
        from pairbus.storage.postgres.database import Database  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "--store postgresql:… needs psycopg, which is not installed: pip install 'pairbus[postgres]'"
        ) from error
    database = Database(url, namespace)
    database.prepare(replaces_moved=replaces_moved)
    return database
