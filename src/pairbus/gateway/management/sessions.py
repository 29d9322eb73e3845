"""Management operations on sessions: renew, state, list."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.types import Array, Int, Timestamp
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import ArgumentError
from pairbus.gateway.management.request import NoContent, Request
from pairbus.gateway.telemetry.meter import RENEW, SESSION

ALL_SESSIONS_MS: Final = 253_402_300_800_000
"""The instant by which clients ask for all sessions instead of those changed since."""
INT_MAX: Final = 2_147_483_647
PAGE_MAX: Final = 1_000


def renew(request: Request) -> dict[str, object]:
    """Extend the hold on a session."""
    session = request.session(request.text("session-id"))
    request.tally(RENEW).add(0)
    until = session_ops.renew(request.queue, session, request.now)
    return {"expiration": Timestamp(request.connection.broker.date_of(until))}


def set_state(request: Request) -> dict[str, object]:
    """Keep or clear the application's state of a session."""
    session = request.session(request.text("session-id"))
    state = request.value("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentError(f"'session-state' is a {type(state).__name__}: binary or null is needed.")
    session_ops.set_state(request.queue, session, state, request.now)
    request.tally(SESSION).add(len(state or b""))
    return {}


def get_state(request: Request) -> dict[str, object]:
    """The application's state of a session; null when there is none."""
    session = request.session(request.text("session-id"))
    request.tally(SESSION).add(len(session.state or b""))
    return {"session-state": session.state}


def list_sessions(request: Request) -> dict[str, object]:
    """Ids of sessions, a page at a time."""
    since = request.instant("last-updated-time")
    skip = request.number("skip", 0, INT_MAX)
    top = min(request.number("top", 1, INT_MAX), PAGE_MAX)
    found = session_ops.list_sessions(request.queue, None if since >= ALL_SESSIONS_MS else since, skip, top)
    request.tally(SESSION).add(0)
    if not found:
        raise NoContent("com.microsoft:session-not-found", "There is no session to list.")
    return {"skip": Int(skip + len(found)), "sessions-ids": Array(found)}
