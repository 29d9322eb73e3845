"""The page of one namespace: sign-in, files, JSON. Plugs into ``server.Server(page=…)``; no I/O of its own.

Rule 1: before sign-in only the page's own files are served (M6).
Rule 2: GET and HEAD change nothing; POST needs the session's token, or a shared-access signature, which no browser
sends by itself (M10).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

from pairbus.errors import ArgumentError, EntityNotFound, Refusal, Unauthorized
from pairbus.gateway.broker import Broker
from pairbus.gateway.http import (
    STRANGER_BURST,
    STRANGER_REQUESTS_PER_SECOND,
    HttpRequest,
    HttpResponse,
    RateLimit,
)
from pairbus.gateway.rights.access import missing_claim
from pairbus.model.access import LISTEN, MANAGE, SEND
from pairbus.model.names import canonical
from pairbus.web import actions, messages, queries
from pairbus.web.assets import INDEX, load
from pairbus.web.responses import (
    SnapshotCache,
    error_response,
    file_response,
    json_response,
    parse_body,
    snapshot_response,
)
from pairbus.web.sessions import COOKIE_PREFIX, LIFE_MS, Sessions, rights_of, sign_in

if TYPE_CHECKING:
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.rights.access import Grant
    from pairbus.server.assemble import Assembly
    from pairbus.server.config.options import Options
    from pairbus.server.server import Assemble
    from pairbus.web.sessions import Session

PREFIX: Final = "/$page/"
API: Final = PREFIX + "api"
TOKEN_HEADER: Final = "x-pairbus-token"  # noqa: S105 - the header's name
BODY_BYTES_MAX: Final = 1_048_576
SECRET_BYTES: Final = 32
SHARED_FROM: Final = 100
"""From this many entities on, one overview is shared by all pages that show it."""
PLACES: Final = ("main", "dead-letter", "transfer-dead-letter")

Handler = Callable[["ApiRequest"], HttpResponse]
ClusterPicture = Callable[[], dict[str, object] | None]
"""What a node knows of its cluster: see ``server.cluster.status``."""


class ApiRequest:
    """A request of somebody who signed in, or sent a token."""

    def __init__(
        self,
        broker: Broker,
        request: HttpRequest,
        grant: Grant,
        session: Session | None,
        now: int,
        snapshots: SnapshotCache,
        cluster: ClusterPicture | None = None,
    ) -> None:
        self.broker = broker
        self.request = request
        self.grant = grant
        self.session = session
        self.now = now
        self.snapshots = snapshots
        self.cluster = cluster
        self.query = {name: values[0] for name, values in parse_qs(request.target.partition("?")[2]).items()}
        self.body: dict[str, object] = {}

    def need(self, path: str, right: str) -> None:
        """Refuse unless the right is there (M1)."""
        if not self.broker.access.allows(self.grant, path, right, self.now):
            raise Unauthorized(missing_claim(right, path))

    def entity(self, *rights: str) -> Entity:
        """The entity that is asked for; rights are checked before existence. No right named: any will do."""
        path = str(self.body.get("path") or self.query.get("path") or "").strip("/")
        for right in rights:
            self.need(path, right)
        if not rights and not rights_of(self.broker.access, self.grant, path, self.now):
            raise Unauthorized(missing_claim(LISTEN, path))
        entity = self.broker.namespace.find(path)
        if entity is None:
            raise EntityNotFound(path)
        return entity

    def place(self, entity: Entity) -> Queue:
        """Which of an entity's places is asked for."""
        name = self.body.get("place") or self.query.get("place") or PLACES[0]
        if name not in PLACES:
            raise ArgumentError(f"place is not one of {', '.join(PLACES)}.")
        return entity.queues[PLACES.index(str(name))]

    def number(self, name: str, default: int) -> int:
        """A whole number of the query. Raises ArgumentError."""
        value = self.query.get(name, str(default))
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise ArgumentError(f"{name} is not a whole number.")
        return int(value)

    @property
    def known_tag(self) -> str | None:
        """The entity tag of the snapshot that the page has already."""
        return self.request.headers.get("if-none-match")


class Page:
    """Answers the page's requests; everything else it leaves to the broker (None)."""

    def __init__(self, new_secret: Callable[[], str] | None = None) -> None:
        self._assets = load()
        self._sessions = Sessions(new_secret or _new_secret)
        self._snapshots = SnapshotCache()
        self._rate = RateLimit()
        self._stranger_rate = RateLimit(STRANGER_REQUESTS_PER_SECOND, STRANGER_BURST)
        self._broker: Broker | None = None
        self._cluster: ClusterPicture | None = None

    def join(self, cluster: ClusterPicture) -> None:
        """The broker is a node of a cluster, which can be shown."""
        self._cluster = cluster

    def assembling(self, assemble: Assemble) -> Assemble:
        """An assembler that lets this page know the broker it serves."""

        def assembled(options: Options, now: int) -> Assembly:
            assembly = assemble(options, now)
            assert isinstance(assembly.broker, Broker), assembly.broker
            self._broker = assembly.broker
            return assembly

        return assembled

    def __call__(self, request: HttpRequest, now: int) -> HttpResponse | None:
        path = unquote(request.target.partition("?")[0])
        broker = self._broker
        if broker is None:
            return None
        if _asks_for_index(path, request):
            return self._file(INDEX, request)
        if not path.startswith(PREFIX):
            return None
        broker.let_in(now)
        if request.method in ("GET", "HEAD") and path[len(PREFIX) :] in self._assets:
            return self._file(path[len(PREFIX) :], request)
        request.is_known = self._is_known(broker, request, now)
        if not (self._rate if request.is_known else self._stranger_rate).takes(now):
            answer = error_response(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests: ask again in a second."
            )
            answer.headers.append(("Retry-After", "1"))
            return answer
        try:
            if path == PREFIX + "sign-in":
                return self._sign_in(broker, request, now)
            if path == PREFIX + "sign-out":
                return self._sign_out(broker, request, now)
            return self._api(broker, path, request, now)
        except Refusal as refusal:
            return error_response(refusal.status, refusal.description)
        except _BadBody as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error))

    def _file(self, name: str, request: HttpRequest) -> HttpResponse:
        asset = self._assets[name]
        return file_response(asset.body, asset.content_type, asset.etag, request.headers.get("if-none-match"))

    # -- sign-in -------------------------------------------------------------------------------

    def _sign_in(self, broker: Broker, request: HttpRequest, now: int) -> HttpResponse:
        if request.method != "POST":
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "Sign in with POST.")
        body = _body_of(request)
        address = request.peer.rpartition(":")[0]
        wait_ms = self._sessions.must_wait_ms(address, now)
        if wait_ms:
            answer = error_response(
                HTTPStatus.TOO_MANY_REQUESTS, f"Too many wrong keys: try again in {wait_ms // 1000 + 1} s."
            )
            answer.headers.append(("Retry-After", str(wait_ms // 1000 + 1)))
            return answer
        name, key = actions.text(body, "rule") or "", actions.text(body, "key") or ""
        path = actions.text(body, "entity")
        entity = broker.namespace.find(path) if path is not None else None
        rules = entity.settings.access_rules if entity is not None else ()
        grant = sign_in(broker.access, rules, path, name, key)
        if grant is None:
            self._sessions.failed(address, now)
            broker.audit_refusal("page.sign-in", path or "", name, "refused", request.peer)
            return error_response(HTTPStatus.UNAUTHORIZED, "The rule's name or its key is wrong.")
        cookie, session = self._sessions.open(grant, now)
        broker.audit("page.sign-in", path or "", name, "200", request.peer)
        answer = json_response(_session_view(broker, grant, session, now))
        secure = "; Secure" if request.secure else ""
        answer.headers.append((
            "Set-Cookie",
            f"{_cookie_name(broker)}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={LIFE_MS // 1000}{secure}",
        ))  # fmt: skip
        return answer

    def _sign_out(self, broker: Broker, request: HttpRequest, now: int) -> HttpResponse:
        if request.method != "POST":
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "Sign out with POST.")
        cookie = _cookie(request, _cookie_name(broker))
        session = self._sessions.find(cookie, now)
        if session is not None:
            _check_token(request, session)
            self._sessions.close(cookie)
        answer = json_response({"signed_out": True})
        answer.headers.append(
            ("Set-Cookie", f"{_cookie_name(broker)}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
        )
        return answer

    def _is_known(self, broker: Broker, request: HttpRequest, now: int) -> bool:
        """Whether the caller has signed in or sent a valid token."""
        header = request.headers.get("authorization")
        if header:
            return broker.access.knows(header, now)
        return self._sessions.find(_cookie(request, _cookie_name(broker)), now) is not None

    def _authenticate(self, broker: Broker, request: HttpRequest, now: int) -> tuple[Grant, Session | None]:
        header = request.headers.get("authorization")
        if header:
            return broker.access.verify(header, now), None
        session = self._sessions.find(_cookie(request, _cookie_name(broker)), now)
        if session is None or not rights_of(broker.access, session.grant, session.grant.path, now):
            raise Unauthorized("Sign in: there is no session, or its key was replaced.")
        if request.method not in ("GET", "HEAD"):
            _check_token(request, session)
        return session.grant, session

    # -- queries and commands ------------------------------------------------------------------

    def _api(self, broker: Broker, path: str, request: HttpRequest, now: int) -> HttpResponse:
        try:
            grant, session = self._authenticate(broker, request, now)
        except Unauthorized as refusal:
            if request.method not in ("GET", "HEAD") or request.headers.get("authorization"):
                broker.audit_refusal(
                    "page.request", path[len(PREFIX) :], "", str(refusal.status), request.peer
                )
            return error_response(HTTPStatus.UNAUTHORIZED, refusal.description)
        api = ApiRequest(broker, request, grant, session, now, self._snapshots, self._cluster)
        name = path[len(API) + 1 :] if path.startswith(API + "/") else ""
        if request.method in ("GET", "HEAD"):
            answer = _QUERIES.get(name)
            return answer(api) if answer is not None else _unknown()
        answer = _COMMANDS.get(name)
        if answer is None or request.method != "POST":
            return _unknown()
        api.body = _body_of(request)
        where = str(api.body.get("path") or "")
        try:
            response = answer(api)
        except Refusal as refusal:
            audit = broker.audit_refusal if isinstance(refusal, Unauthorized) else broker.audit
            audit(f"page.{name}", where, grant.rule_name, str(refusal.status), request.peer)
            # A browser takes 401 for "sign in again"; the session is good, the right is missing.
            status = HTTPStatus.FORBIDDEN if isinstance(refusal, Unauthorized) else refusal.status
            return error_response(status, refusal.description)
        broker.audit(f"page.{name}", where, grant.rule_name, "200", request.peer)
        return response


class _BadBody(Exception):
    """The body is not the JSON it should be."""


def _guarded(answer: Handler) -> Handler:
    """A missing right is 403 here: the session itself is good."""

    def guarded(api: ApiRequest) -> HttpResponse:
        try:
            return answer(api)
        except Unauthorized as refusal:
            return error_response(HTTPStatus.FORBIDDEN, refusal.description)

    return guarded


def _session(api: ApiRequest) -> HttpResponse:
    return json_response(_session_view(api.broker, api.grant, api.session, api.now))


def _session_view(broker: Broker, grant: Grant, session: Session | None, now: int) -> dict[str, object]:
    name = broker.namespace.name
    rights = rights_of(broker.access, grant, grant.path, now)
    return {
        "rule": grant.rule_name,
        "scope": grant.path or None,
        "token": session.forgery_token if session is not None else None,
        "pairing": False,
        "is_pair": False,
        "namespaces": [
            {
                "id": "local",
                "name": name,
                "role": None,
                "base": API,
                "rights": rights,
                "faults": broker.offers_faults,
            }
        ],
    }


def _overview(api: ApiRequest) -> HttpResponse:
    grant, now = api.grant, api.now
    key = (grant.path, grant.rule_path, grant.rule_name, grant.key)
    known = api.snapshots.find(key, now, api.known_tag)
    if known is not None:
        return known
    shown = queries.overview(api.broker, grant, now)
    # The time would make every snapshot a new one; the response's date header has it.
    del shown["at_ms"]
    rows = shown["entities"]
    if isinstance(rows, list) and len(rows) >= SHARED_FROM:
        return api.snapshots.keep(key, shown, now, api.known_tag)
    return snapshot_response(shown, api.known_tag)


def _cluster(api: ApiRequest) -> HttpResponse:
    """The nodes, with their addresses: for who has a right on the whole namespace. An empty object: it is no cluster."""
    if not rights_of(api.broker.access, api.grant, "", api.now):
        raise Unauthorized(missing_claim(LISTEN, ""))
    picture = api.cluster() if api.cluster is not None else None
    return json_response(picture or {})


def _entity(api: ApiRequest) -> HttpResponse:
    entity = api.entity()
    rights = rights_of(api.broker.access, api.grant, entity.path, api.now)
    view = queries.entity_view(api.broker, entity, rights, with_settings=MANAGE in rights)
    return snapshot_response(view, api.known_tag)


def _messages(api: ApiRequest) -> HttpResponse:
    from_number, count = api.number("from", 0), api.number("count", 20)
    entity = api.entity(LISTEN)
    is_whole = api.query.get("whole") == "1"
    place = api.place(entity)
    return json_response(messages.page_of(api.broker, place, from_number, count, api.now, is_whole=is_whole))


def _faults(api: ApiRequest) -> HttpResponse:
    api.need("", MANAGE)
    return json_response(actions.faults(api.broker, api.now))


def _add_fault(api: ApiRequest) -> HttpResponse:
    api.need("", MANAGE)
    actions.faults(api.broker, api.now)
    return json_response(actions.add_fault(api.broker, api.body, api.now))


def _clear_faults(api: ApiRequest) -> HttpResponse:
    api.need("", MANAGE)
    return json_response(actions.clear_faults(api.broker, api.now))


def _send(api: ApiRequest) -> HttpResponse:
    return json_response(actions.send(api.broker, api.entity(SEND), api.body, api.now))


def _redrive(api: ApiRequest) -> HttpResponse:
    return json_response(actions.redrive(api.broker, api.entity(LISTEN, SEND), api.body, api.now))


def _purge(api: ApiRequest) -> HttpResponse:
    entity = api.entity(LISTEN)
    return json_response(actions.purge(api.broker, api.place(entity), api.body))


_QUERIES: Final[dict[str, Handler]] = {
    "session": _session,
    "overview": _overview,
    "cluster": _guarded(_cluster),
    "entity": _guarded(_entity),
    "messages": _guarded(_messages),
    "faults": _guarded(_faults),
}
_COMMANDS: Final[dict[str, Handler]] = {
    "send": _send,
    "redrive": _redrive,
    "purge": _purge,
    "faults": _add_fault,
    "faults/clear": _clear_faults,
}


def _unknown() -> HttpResponse:
    return error_response(HTTPStatus.NOT_FOUND, "The page has no such address.")


def _body_of(request: HttpRequest) -> dict[str, object]:
    if len(request.body) > BODY_BYTES_MAX:
        raise _BadBody(f"The body is larger than {BODY_BYTES_MAX} bytes.")
    try:
        return parse_body(request.body, request.headers.get("content-type", ""))
    except ValueError as error:
        raise _BadBody(str(error)) from None


def _check_token(request: HttpRequest, session: Session) -> None:
    given = request.headers.get(TOKEN_HEADER, "").encode(errors="replace")
    if not secrets.compare_digest(given, session.forgery_token.encode()):
        raise Unauthorized("The request has no valid anti-forgery token: reload the page.")


def _cookie_name(broker: Broker) -> str:
    # Cookies do not know ports: each namespace of this machine needs a name of its own.
    return COOKIE_PREFIX + canonical(broker.namespace.name)


def _cookie(request: HttpRequest, name: str) -> str:
    for part in request.headers.get("cookie", "").replace(",", ";").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def _new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _asks_for_index(path: str, request: HttpRequest) -> bool:
    """A browser does; a client of the management API brings a version, or at least a token."""
    is_plain = path == "/" and "?" not in request.target and "authorization" not in request.headers
    return is_plain and request.method in ("GET", "HEAD")
