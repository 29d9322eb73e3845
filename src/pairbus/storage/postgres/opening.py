"""How others reach the database: psycopg is loaded here, and only when a database is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pairbus.storage.postgres.database import Database

ANSWER_SECONDS_MAX: Final = 20.0
"""How long a command waits for each answer of the database, unless it has an option for it."""
SCHEMES: Final = ("postgresql://", "postgres://")


def is_database(url: str) -> bool:
    """Whether the URL of a store names a PostgreSQL database."""
    return url.startswith(SCHEMES)


def open_database(url: str, namespace: str) -> Database:
    """Connect once: make or migrate the tables, and find the namespace's shard or begin it.

    Raises:
        UsageError: psycopg is not installed, or the URL cannot be understood.
        OutcomeUnknown: The database does not answer; try again.
        ShardMoved: The namespace was moved elsewhere.
        TableFailed: It refuses: missing rights, or a newer PairBus made the tables.
    """
    database = named_database(url, namespace)
    database.prepare()
    return database


def find_database(url: str, namespace: str, answer_seconds_max: float) -> Database:
    """The shard of a namespace that is there already, for a command; makes nothing.

    Raises as ``open_database`` does, UsageError if it is not there, and NotAnswered after ``answer_seconds_max``, as each call of its parts.
    """
    database = named_database(url, namespace, answer_seconds_max)
    if not database.find():
        raise UsageError(
            f"{database} has no namespace {namespace!r}: name it with --namespace, or begin it with `pairbus serve --store …`"
        )
    return database


def named_database(url: str, namespace: str, answer_seconds_max: float | None = None) -> Database:
    """The database, before anything is asked of it. ``answer_seconds_max``: of each call, for a command. Raises UsageError."""
    try:
        from pairbus.storage.postgres.database import Database  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "--store postgresql:… needs psycopg, which is not installed: pip install 'pairbus[postgres]'"
        ) from error
    return Database(url, namespace, answer_seconds_max=answer_seconds_max)
