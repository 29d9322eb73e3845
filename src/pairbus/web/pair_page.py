"""The page of a pair: serves the same files, asks both namespaces on the person's behalf, and adds the pairing.

The person signs in once. Every request goes on to a namespace with a signature of the key that the person gave, so each
namespace decides by itself what is allowed; the owner of one side's root key owns the pair, for one person started both.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from aiohttp import web

from pairbus.errors import PairbusError
from pairbus.gateway.http import STRANGER_BURST, STRANGER_REQUESTS_PER_SECOND, HttpResponse, RateLimit
from pairbus.model.access import MANAGE, ROOT_RULE, SEND
from pairbus.sdk.credentials import Credentials, credentials_of, sas_token
from pairbus.web.assets import INDEX, load
from pairbus.web.page import API, BODY_BYTES_MAX, PREFIX, TOKEN_HEADER
from pairbus.web.pair_summary import SideWatch, summary
from pairbus.web.responses import error_response, file_response, json_response, parse_body
from pairbus.web.sessions import FAILURES_MAX, FAILURES_WINDOW_MS, LIFE_MS, RIGHTS, SESSIONS_MAX

COOKIE: Final = "pairbus-pair"
TOKEN_SECONDS: Final = 300
UPSTREAM_SECONDS: Final = 3.0
SNAPSHOT_SECONDS: Final = 5.0
SNAPSHOT_AGE_SECONDS_MAX: Final = 0.4
"""How old a shared snapshot of the pairing may be: less than the pages' polling interval."""
SENDS_MAX: Final = 2
"""Test sends through the pair at once: each may wait for a timeout, and the page needs threads too."""
_PASSED_ON: Final = ("content-type", "etag", "cache-control")
_LISTED: Final = frozenset(
    {"overview", "cluster", "entity", "messages", "faults", "send", "redrive", "purge", "faults/clear"}
)

logger = logging.getLogger("pairbus.web")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One namespace of the pair."""

    id: str
    name: str
    role: str
    http: str
    connection_string: str = field(repr=False)
    others: tuple[str, ...] = ()
    """Further addresses: of the other nodes that serve the namespace."""


@dataclass(kw_only=True)
class _Session:
    token: str = field(repr=False)
    ends_at: float
    keys: dict[str, Credentials] = field(repr=False)
    described: dict[str, dict[str, object]]
    rule: str
    scope: str | None
    is_owner: bool
    opened_by: set[str]
    """Sides that took the key that the person gave: it ends when one of them takes it no more, as on the page of one namespace (M5)."""
    refused: set[str] = field(default_factory=set)
    """Sides that do not take the key that is used for them."""


class PairPageServer:
    """An HTTP server for one pair.

    Args:
        sides: Both namespaces.
        snapshot: Returns the pairing as it is now.
        send: Sends test messages through the pair.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        sides: list[Side],
        *,
        snapshot: Callable[[], Mapping[str, object]],
        send: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sides = {side.id: side for side in sides}
        self._snapshot = snapshot
        self._send = send
        self._clock = clock
        self._assets = load()
        self._sessions: dict[str, _Session] = {}
        self._failures: list[float] = []
        self._rate = RateLimit()
        self._stranger_rate = RateLimit(STRANGER_REQUESTS_PER_SECOND, STRANGER_BURST)
        self._looking: asyncio.Task[Mapping[str, object]] | None = None
        self._seen: tuple[float, Mapping[str, object]] | None = None
        self._watches = {side.id: SideWatch() for side in sides}
        self._sending = 0
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Serve; the port. Raises OSError when it is taken."""
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=UPSTREAM_SECONDS))
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Serve no more. Idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._client is not None:
            await self._client.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self._route(request)
        except PairbusError as error:
            response = error_response(HTTPStatus.BAD_REQUEST, str(error))
        except web.HTTPException as error:
            response = error_response(error.status, error.reason)
        except Exception:
            logger.exception("request broke", extra={"event": "hub.broke"})
            response = error_response(
                HTTPStatus.INTERNAL_SERVER_ERROR, "The page met a fault of its own; its log has more."
            )
        answer = web.Response(status=response.status, body=response.body)
        for name, value in response.headers:
            answer.headers[name] = value
        return answer

    async def _route(self, request: web.Request) -> HttpResponse:
        path, method = request.path, request.method
        is_safe = method in ("GET", "HEAD")
        name = INDEX if path == "/" else path.removeprefix(PREFIX)
        if is_safe and name in self._assets and (path == "/" or path.startswith(PREFIX)):
            asset = self._assets[name]
            return file_response(
                asset.body, asset.content_type, asset.etag, request.headers.get("if-none-match")
            )
        session = self._find(request)
        rate = self._stranger_rate if session is None else self._rate
        if not rate.takes(int(self._clock() * 1000)):
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests: ask again in a second.")
        if path == PREFIX + "sign-in" and method == "POST":
            return await self._sign_in(request)
        is_leaving = path == PREFIX + "sign-out" and method == "POST"
        if session is None and not is_leaving:
            return error_response(
                HTTPStatus.UNAUTHORIZED, "Sign in: there is no session, or its key was replaced."
            )
        given = request.headers.get(TOKEN_HEADER, "").encode(errors="replace")
        if session is not None and not is_safe and not hmac.compare_digest(given, session.token.encode()):
            return error_response(
                HTTPStatus.UNAUTHORIZED, "The request has no valid anti-forgery token: reload the page."
            )
        if session is None or is_leaving:
            return self._sign_out(request)
        return await self._serve(request, session, path, is_safe=is_safe)

    async def _serve(
        self, request: web.Request, session: _Session, path: str, *, is_safe: bool
    ) -> HttpResponse:
        if path == API + "/session" and is_safe:
            return json_response(await self._described(session))
        if path == API + "/pairing" and is_safe:
            return await self._pairing(session)
        if path == API + "/pairing/send" and not is_safe and self._send is not None:
            return await self._send_through(request, session)
        side_id, _, name = path.removeprefix(PREFIX + "ns/").partition("/")
        if side_id in self._sides and name in _LISTED:
            return await self._pass_on(request, session, self._sides[side_id], name)
        return error_response(HTTPStatus.NOT_FOUND, "The page has no such address.")

    # -- sign-in -------------------------------------------------------------------------------

    def _find(self, request: web.Request) -> _Session | None:
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        if session is None or session.ends_at <= self._clock():
            return None
        return session if not session.refused & session.opened_by else None

    def _sign_out(self, request: web.Request) -> HttpResponse:
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        answer = json_response({"signed_out": True})
        answer.headers.append(("Set-Cookie", f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"))
        return answer

    async def _sign_in(self, request: web.Request) -> HttpResponse:
        now = self._clock()
        self._failures = [at for at in self._failures if at > now - FAILURES_WINDOW_MS / 1000]
        if len(self._failures) >= FAILURES_MAX:
            return error_response(HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong keys: try again in a minute.")
        body = await _body_of(request)
        rule, key, entity = (str(body.get(name) or "") for name in ("rule", "key", "entity"))
        owned = self._owned(rule, key)
        is_root = bool(owned)
        keys = self._keys_of(rule, key)
        described: dict[str, dict[str, object]] = {}
        for side in self._sides.values():
            try:
                found = await self._ask_session(side, keys[side.id], entity)
            except _KeyRefused:
                owned.discard(side.id)
                continue
            if found is not None:
                described[side.id] = found
        opened_by = owned if is_root else {*described}
        if not opened_by:
            self._failures.append(now)
            return error_response(HTTPStatus.UNAUTHORIZED, "The rule's name or its key is wrong.")
        session = _Session(
            token=secrets.token_urlsafe(32),
            ends_at=now + LIFE_MS / 1000,
            keys=keys,
            described=described,
            rule=rule,
            scope=entity or None,
            is_owner=is_root,
            opened_by=opened_by,
        )
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = session
        answer = json_response(await self._described(session))
        answer.headers.append(
            ("Set-Cookie", f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={LIFE_MS // 1000}")
        )
        return answer

    def _owned(self, rule: str, key: str) -> set[str]:
        """The sides whose root key this is, as it was when the pair was started."""
        roots = {side.id: credentials_of(side.connection_string) for side in self._sides.values()}
        owned = {
            side_id for side_id, root in roots.items() if hmac.compare_digest(root.key.encode(), key.encode())
        }
        return owned if rule == ROOT_RULE else set()

    def _keys_of(self, rule: str, key: str) -> dict[str, Credentials]:
        if self._owned(rule, key):
            return {side.id: credentials_of(side.connection_string) for side in self._sides.values()}
        return {side.id: Credentials(side.http, rule, key) for side in self._sides.values()}

    async def _ask_session(
        self, side: Side, credentials: Credentials, entity: str
    ) -> dict[str, object] | None:
        token = _token(side, credentials, entity)
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with await self._request(
                side, "GET", "session", headers={"Authorization": token}
            ) as answer:
                if answer.status == HTTPStatus.OK:
                    found: dict[str, Any] = await answer.json()
                    namespace: dict[str, object] = found["namespaces"][0]
                    return namespace if namespace["rights"] else None
                if answer.status == HTTPStatus.UNAUTHORIZED:
                    raise _KeyRefused
        return None

    async def _described(self, session: _Session) -> dict[str, object]:
        for side in self._sides.values():
            if side.id not in session.described:
                with suppress(_KeyRefused):
                    found = await self._ask_session(side, session.keys[side.id], session.scope or "")
                    if found is not None:
                        session.described[side.id] = found
                        if not session.is_owner:
                            session.opened_by.add(side.id)
        namespaces = []
        for side in self._sides.values():
            known = session.described.get(side.id)
            if known is None and not session.is_owner:
                continue
            # A side that is down is shown all the same to who owns the pair.
            rights = known["rights"] if known is not None else list(RIGHTS)
            faults = known["faults"] if known is not None else False
            base = f"{PREFIX}ns/{side.id}"
            namespaces.append(
                {
                    "id": side.id,
                    "name": side.name,
                    "role": side.role,
                    "base": base,
                    "rights": rights,
                    "faults": faults,
                }
            )
        return {
            "rule": session.rule,
            "scope": session.scope,
            "token": session.token,
            "pairing": self._sees_pair(session),
            "is_pair": True,
            "namespaces": namespaces,
        }

    # -- the pair ------------------------------------------------------------------------------

    def _sees_pair(self, session: _Session, *, right: str | None = None) -> bool:
        """Whether a session may see the pair, or do with it: its rule must hold in all of both namespaces, still."""
        if session.scope is not None or session.refused:
            return False
        for side in self._sides:
            known = session.described.get(side)
            rights = known["rights"] if known is not None else list(RIGHTS) if session.is_owner else []
            if (
                not isinstance(rights, list)
                or not rights
                or not (right is None or {right, MANAGE} & {*rights})
            ):
                return False
        return True

    async def _pairing(self, session: _Session) -> HttpResponse:
        if not self._sees_pair(session):
            return error_response(
                HTTPStatus.FORBIDDEN, "The pair is shown to rules that hold in both namespaces."
            )
        seen = self._seen
        if seen is not None and self._clock() - seen[0] < SNAPSHOT_AGE_SECONDS_MAX:
            return self._pairing_response(seen[1])
        if self._looking is None or self._looking.done():
            # However many pages are open, the pairing is looked at by one thread.
            self._looking = asyncio.create_task(self._look())
        try:
            found = await asyncio.wait_for(asyncio.shield(self._looking), SNAPSHOT_SECONDS)
            return self._pairing_response(found)
        except TimeoutError:
            return error_response(HTTPStatus.GATEWAY_TIMEOUT, "The pairing does not answer.")

    async def _look(self) -> Mapping[str, object]:
        found = await asyncio.to_thread(self._snapshot)
        self._seen = (self._clock(), found)
        return found

    def _pairing_response(self, found: Mapping[str, Any]) -> HttpResponse:
        now = self._clock()
        sides = {side.role: self._watches[side.id] for side in self._sides.values()}
        said = summary(
            primary=sides["primary"].is_answering(now),
            secondary=sides["secondary"].is_answering(now),
            states=[str(row["state"]) for row in found.get("entities", ())],
            backlog=sides["secondary"].backlog(now),
        )
        return json_response({**found, "summary": asdict(said)})

    # -- on the person's behalf ----------------------------------------------------------------

    async def _request(self, side: Side, method: str, name: str, **options: Any) -> aiohttp.ClientResponse:
        """Ask the first address of a namespace that takes a connection."""
        assert self._client is not None, "api while it serves"
        *others, last = side.http, *side.others
        for http in others:
            with suppress(aiohttp.ClientConnectorError):
                return await self._client.request(method, f"http://{http}{API}/{name}", **options)
        return await self._client.request(method, f"http://{last}{API}/{name}", **options)

    async def _pass_on(self, request: web.Request, session: _Session, side: Side, name: str) -> HttpResponse:
        headers = {"Authorization": _token(side, session.keys[side.id], session.scope or "")}
        for header in ("if-none-match", "content-type"):
            if header in request.headers:
                headers[header] = request.headers[header]
        is_watched = name == "overview" and self._sees_pair(session)
        if is_watched and headers.get("if-none-match") != self._watches[side.id].tag:
            # "Not changed" must be about the counts that the summary knows, not about those of another page.
            headers.pop("if-none-match", None)
        query = f"?{request.query_string}" if request.query_string else ""
        body = await request.read() if request.method == "POST" else None
        try:
            async with await self._request(
                side, request.method, name + query, headers=headers, data=body
            ) as answer:
                passed = [(key, answer.headers[key]) for key in _PASSED_ON if key in answer.headers]
                response = json_response({}, answer.status)
                own = [pair for pair in response.headers if pair[0].lower() not in _PASSED_ON]
                status = answer.status
                if status == HTTPStatus.UNAUTHORIZED:
                    session.refused.add(side.id)
                    if side.id in session.opened_by:
                        return error_response(HTTPStatus.UNAUTHORIZED, "Sign in: the key was replaced.")
                    status = HTTPStatus.FORBIDDEN  # this page's session is good; the namespace's rule is not
                else:
                    session.refused.discard(side.id)
                content = await answer.read()
                tag = answer.headers.get("etag")
                self._note_answer(session, side, name, answer.status, tag, content)
                return HttpResponse(status, passed + own, content)
        except (aiohttp.ClientError, TimeoutError, OSError):
            self._watches[side.id].note(self._clock(), is_answering=False)
            return error_response(HTTPStatus.BAD_GATEWAY, f"Namespace {side.name} does not answer.")

    def _note_answer(
        self, session: _Session, side: Side, name: str, status: int, tag: str | None, content: bytes
    ) -> None:
        """Remember what a namespace answered, for the summary of the pair."""
        now, watch = self._clock(), self._watches[side.id]
        watch.note(now, is_answering=status < HTTPStatus.INTERNAL_SERVER_ERROR)
        # A rule of one entity does not see the whole backlog.
        if name != "overview" or not self._sees_pair(session):
            return
        if status == HTTPStatus.OK:
            rows = [row for row in json.loads(content)["entities"] if row["backlog"]]
            waiting = sum(row["active"] + row["scheduled"] for row in rows)
            watch.note_backlog(now, waiting, sum(row["received"] for row in rows))
            watch.tag = tag
        elif status == HTTPStatus.NOT_MODIFIED and tag == watch.tag:
            watch.note_unchanged(now)

    async def _send_through(self, request: web.Request, session: _Session) -> HttpResponse:
        assert self._send is not None, "offered only with a way to send"
        if not self._sees_pair(session, right=SEND):
            return error_response(
                HTTPStatus.FORBIDDEN, "Sending through the pair needs the right to send in both namespaces."
            )
        body = await _body_of(request)
        if self._sending >= SENDS_MAX:
            return error_response(
                HTTPStatus.SERVICE_UNAVAILABLE, "Other test messages are on their way: wait for them."
            )
        self._sending += 1
        try:
            return json_response(await asyncio.to_thread(self._send, body))
        except PairbusError:
            raise
        except Exception as error:  # noqa: BLE001 - the person must read what the client says, whatever it is
            text = (str(error) or type(error).__name__).splitlines()[0]
            return error_response(HTTPStatus.BAD_GATEWAY, f"The send failed: {text[:300]}")
        finally:
            self._sending -= 1


class _KeyRefused(Exception):
    """A namespace does not take a key."""


def _token(side: Side, credentials: Credentials, entity: str) -> str:
    resource = f"http://{side.http}/{entity}".rstrip("/")
    return sas_token(resource, credentials.key_name, credentials.key, int(time.time()) + TOKEN_SECONDS)


async def _body_of(request: web.Request) -> dict[str, object]:
    try:
        return parse_body(await request.read(), request.headers.get("content-type", ""))
    except ValueError as error:
        raise PairbusError(str(error)) from None
