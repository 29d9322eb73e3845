"""Decides how a move goes on from what it finds on both sides: see ``move``. Nothing is read or written here."""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    COPY = "copy"
    """The source counts: discard what an earlier move has left, and copy."""
    CONFIRM = "confirm"
    """The source is marked by the move that made the copy: give the copy its name."""
    DONE = "done"
    """The copy has its name."""
    REFUSE = "refuse"
    """The source does not count, and its copy is not here."""


def into_files(*, named: str | None, copy: str | None, mark: str | None, is_marked: bool) -> Step:
    """Out of a database into a directory.

    Args:
        named: The move that made what the directory has under its own name; None: it holds nothing that a move brought.
        copy: The move that made the whole copy which has no name yet; None: there is none.
        mark: The move that marked the database; None: not known, or none has.
        is_marked: Whether the database is marked as moved.
    """
    if not is_marked:
        return Step.COPY if named is None else Step.REFUSE
    if mark is not None and mark == named:
        return Step.DONE
    return Step.CONFIRM if mark is not None and mark == copy and named is None else Step.REFUSE


def into_database(*, mark: str | None, named: str | None, copy: str | None) -> Step:
    """Out of a directory into a database.

    Args:
        mark: The move that marked the directory as moved; None: it still counts.
        named: The move that made what the database has under the namespace's name; None: none did.
        copy: The move that made the copy beside it; None: there is none.
    """
    if mark is None:
        return Step.COPY
    if mark == named:
        return Step.DONE
    return Step.CONFIRM if mark == copy else Step.REFUSE
