"""Which primary a certificate is about. One secondary may have the backlog queues of several primaries, and these may have destinations of the
same name: what is said of one primary must not stand for another. Nor are the messages of the secondary's own entities those of the primary.

Both engines collect the names, take the choice from here, and leave out the rows of other primaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pairbus.reports.engines.audit_log import BACKLOG, DEAD_LETTER, RECEIVED, SENT

PARKED_ROLES: Final = (SENT, BACKLOG, DEAD_LETTER)
"""The inputs whose rows about a backlog queue are left out if it is of another primary."""
DIRECT_ROLES: Final = (SENT, RECEIVED, DEAD_LETTER)
"""The inputs whose other rows are left out if their namespace is another primary."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a row says of the primary it is about."""

    role: str
    primary: str
    """The primary of its backlog queue, in lower case; empty if it is not about a backlog queue."""
    namespace: str
    """As ``namespace_key`` gives it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows count."""

    parked_others: tuple[str, ...] = ()
    """Rows about backlog queues of these primaries are left out."""
    direct_others: tuple[str, ...] = ()
    """Rows of these namespaces that are not about a backlog queue are left out."""
    doubt: str = ""
    """Why the answer cannot be trusted; empty if it can."""
    secondaries: tuple[str, ...] = ()
    """Those of ``direct_others`` that have the backlog."""
    unasked: tuple[str, ...] = ()
    """Namespaces that have the backlog, and of which no sends are given although all sends name their namespace."""

    @property
    def leaves_out(self) -> bool:
        return bool(self.parked_others or self.direct_others)

    @property
    def unheard(self) -> tuple[str, ...]:
        """Namespaces whose times without an audit do not matter: no row of them counts."""
        return tuple(name for name in self.direct_others if name not in self.secondaries)


def namespace_key(namespace: str | None) -> str:
    """The name of a namespace as backlog queues have it: without the rest of its host name, in lower case."""
    return (namespace or "").strip().lower().partition(".")[0]


def choose(seen: Iterable[Seen], wanted: Sequence[str] = ()) -> Choice:
    """Choose the rows of one primary: the one that ``wanted`` names, else the one whose arrivals are given. Without the rows of secondaries that are
    not about a backlog queue.
    """
    rows = list(seen)
    choice = _choose_primary(rows, wanted)
    if choice.doubt:
        return choice
    secondaries = {row.namespace for row in rows if row.namespace and (row.role == BACKLOG or row.primary)}
    arrivals = {row.namespace for row in rows if row.role == RECEIVED and not row.primary}
    own: set[str] = set()
    # Only if it is known whose arrivals are given: else the secondary's may be among them.
    if arrivals and "" not in arrivals:
        accepted = {row.namespace for row in rows if row.role in DIRECT_ROLES and not row.primary}
        primary = arrivals - set(choice.direct_others) | {namespace_key(name) for name in wanted}
        own = secondaries & accepted - primary
    others = own | set(choice.direct_others)
    return replace(
        choice,
        direct_others=tuple(sorted(others)),
        secondaries=tuple(sorted(others & secondaries)),
        unasked=tuple(sorted(_unasked(rows, choice.parked_others))),
    )


def _unasked(rows: Sequence[Seen], parked_others: Sequence[str]) -> set[str]:
    sends = {row.namespace for row in rows if row.role == SENT}
    if not sends or "" in sends:
        return set()  # ledgers of senders have what was parked, too
    backlog = {
        row.namespace
        for row in rows
        if row.role == BACKLOG and row.primary and row.primary not in parked_others
    }
    return backlog - sends - {""}


def _choose_primary(rows: Sequence[Seen], wanted: Sequence[str]) -> Choice:
    parked = {row.primary for row in rows if row.primary and row.role in PARKED_ROLES}
    arrivals = {row.namespace for row in rows if row.role == RECEIVED and not row.primary}
    named = arrivals - {""}
    chosen = {namespace_key(name) for name in wanted}
    if not chosen:
        return _choose_by_arrivals(parked, named, is_partly_named="" in arrivals)
    # A name that only backlog queues have is another name of the one namespace that is given.
    kept = named & chosen or named
    doubt = _several(kept)
    if not doubt and not chosen & (parked | named):
        doubt = f"No row is about the primary {_listed(chosen)}: the rows are about {_listed(parked | named) or 'no named one'}."
    direct = (parked | named) - kept - chosen
    return Choice(tuple(sorted(parked - chosen)), tuple(sorted(direct)), doubt)


def _choose_by_arrivals(parked: set[str], named: set[str], *, is_partly_named: bool) -> Choice:
    if len(named) > 1:
        return Choice(doubt=_several(named))
    if len(parked) > 1 and (not named or is_partly_named):
        return Choice(
            doubt=f"The backlog queues are those of several primaries ({_listed(parked)}), and the arrivals do not all name their namespace: "
            "say which one to look at (--primary NAME)."
        )
    if not named or not parked:
        return Choice()
    if not parked & named:
        return Choice(
            doubt=f"The backlog queues are those of {_listed(parked)}, and the arrivals are those of {_listed(named)}: "
            "say which primary to look at (--primary NAME)."
        )
    others = tuple(sorted(parked - named))
    return Choice(others, others)


def _several(namespaces: set[str]) -> str:
    if len(namespaces) < 2:
        return ""
    return (
        f"The arrivals are those of several namespaces ({_listed(namespaces)}), whose destinations may have the same names: "
        "certify one primary at a time (--primary NAME)."
    )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
