"""The page of a pair, before two namespaces that are played: who may see the pair, and what many pages cost."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pairbus.web.pair_page import PairPageServer, Side
from pairbus.web.responses import snapshot_response
from pairbus.web.sessions import FAILURES_MAX

KEY = "K" * 44
ROOT = "RootManageSharedAccessKey"
ALL = ["Listen", "Send", "Manage"]


class Played:
    """A namespace that answers as told: which rights each rule has."""

    def __init__(self) -> None:
        self.rights: dict[str, list[str]] = {}
        self.is_down = False
        self.entities: list[dict[str, object]] = []
        self.statuses: list[int] = []
        """Of its answers about the overview."""

    async def answer(self, request: web.Request) -> web.Response:
        if self.is_down:
            return web.json_response({"error": "down"}, status=503)
        token = request.headers.get("authorization", "")
        rule = next((name for name in self.rights if f"skn={name}" in token), None)
        if rule is None:
            return web.json_response({"error": "no"}, status=401)
        name = request.path.rpartition("/")[2]
        if name == "session":
            return web.json_response({"namespaces": [{"rights": self.rights[rule], "faults": True}]})
        response = snapshot_response({"entities": self.entities}, request.headers.get("if-none-match"))
        self.statuses.append(response.status)
        return web.Response(
            status=response.status, body=response.body, headers={"ETag": dict(response.headers)["ETag"]}
        )


class Stage:
    """A page with two played namespaces, and a browser before it."""

    def __init__(
        self, page: PairPageServer, address: str, sides: dict[str, Played], client: aiohttp.ClientSession
    ) -> None:
        self.page = page
        self.sides = sides
        self._address = address
        self._client = client
        self.token = ""
        self.tags: dict[str, str] = {}

    async def poll(self) -> str:
        """Ask as an open page does: for what it does not have already. The title of the pair's summary."""
        for side in self.sides:
            path = f"ns/{side}/overview"
            assert (await self.ask("GET", path, tag=self.tags.get(path)))[0] in (200, 304)
        return await self.title()

    async def title(self) -> str:
        return str((await self.ask("GET", "api/pairing"))[1]["summary"]["title"])

    async def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, tag: str | None = None
    ) -> tuple[int, Any]:
        headers = {"X-PairBus-Token": self.token if token is None else token}
        if tag is not None:
            headers["If-None-Match"] = tag
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        async with self._client.request(
            method,
            f"{self._address}$page/{path}",
            data=None if data is None else io.BytesIO(data),
            headers=headers,
        ) as got:
            assert "default-src 'none'" in got.headers["Content-Security-Policy"]
            self.tags[path] = got.headers.get("ETag", "")
            return got.status, json.loads(await got.read() or b"null")

    async def sign_in(self, rule: str, key: str = KEY, entity: str = "") -> int:
        status, told = await self.ask("POST", "sign-in", {"rule": rule, "key": key, "entity": entity})
        self.token = told.get("token", "")
        return status


@asynccontextmanager
async def staged(
    snapshot: Callable[[], Mapping[str, object]] = dict,
    send: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda wish: {"sent": 1, "parked": 0},
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Stage]:
    sides, played, runners = [], {}, []
    for role in ("primary", "secondary"):
        one = played[role] = Played()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", one.answer)
        runner = web.AppRunner(application)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = f"127.0.0.1:{runner.addresses[0][1]}"
        string = f"Endpoint=sb://{http};SharedAccessKeyName={ROOT};SharedAccessKey={role[0] * 44}"
        sides.append(Side(id=role, name=role, role=role, http=http, connection_string=string))
    page = PairPageServer(sides, snapshot=snapshot, send=send, clock=clock)
    port = await page.start("127.0.0.1", 0)
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(cookie_jar=jar) as client:
            yield Stage(page, f"http://127.0.0.1:{port}/", played, client)
    finally:
        await page.stop()
        for runner in runners:
            await runner.cleanup()


@pytest.mark.promise("M1")
async def test_a_rule_of_one_entity_sees_nothing_of_the_pair() -> None:
    async with staged() as stage:
        for side in stage.sides.values():
            side.rights["own"] = ALL
        assert await stage.sign_in("own", entity="orders") == 200
        session = (await stage.ask("GET", "api/session"))[1]
        assert (session["pairing"], session["is_pair"]) == (False, True)
        assert (await stage.ask("GET", "api/pairing"))[0] == 403
        assert (await stage.ask("POST", "api/pairing/send", {"path": "payments"}))[0] == 403
        assert (await stage.ask("GET", "ns/primary/overview"))[0] == 200, "its own it sees"


@pytest.mark.promise("M1")
@pytest.mark.parametrize(("rights", "sees", "sends"), [(["Listen"], 200, 403), (["Send"], 200, 200), (ALL, 200, 200)])  # fmt: skip
async def test_the_pair_is_used_with_rights_in_both_namespaces(
    rights: list[str], sees: int, sends: int
) -> None:
    async with staged() as stage:
        stage.sides["primary"].rights["team"] = ALL
        stage.sides["secondary"].rights["team"] = rights
        await stage.sign_in("team")
        assert (await stage.ask("GET", "api/pairing"))[0] == sees
        assert (await stage.ask("POST", "api/pairing/send", {"path": "orders"}))[0] == sends
        assert (await stage.ask("POST", "api/pairing/send", {"path": "orders"}, token="x"))[0] == 401


@pytest.mark.promise("M1")
async def test_a_rule_of_one_side_sees_that_side_only() -> None:
    async with staged() as stage:
        stage.sides["primary"].rights["team"] = ALL
        await stage.sign_in("team")
        session = (await stage.ask("GET", "api/session"))[1]
        assert [one["id"] for one in session["namespaces"]] == ["primary"]
        assert (await stage.ask("GET", "api/pairing"))[0] == 403
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 403


async def test_who_owns_the_pair_signs_in_and_sends_while_a_side_is_away() -> None:
    async with staged() as stage:
        stage.sides["primary"].is_down = True
        stage.sides["secondary"].rights[ROOT] = ALL
        assert await stage.sign_in(ROOT, "s" * 44) == 200
        session = (await stage.ask("GET", "api/session"))[1]
        assert [one["id"] for one in session["namespaces"]] == ["primary", "secondary"]
        assert session["pairing"] is True
        assert (await stage.ask("GET", "api/pairing"))[0] == 200
        assert (await stage.ask("POST", "api/pairing/send", {"path": "orders"}))[0] == 200


@pytest.mark.promise("M5")
async def test_a_key_that_was_replaced_ends_what_it_opened() -> None:
    async with staged() as stage:
        primary, secondary = stage.sides.values()
        primary.rights["team"] = secondary.rights["team"] = ALL
        await stage.sign_in("team")
        del primary.rights["team"]
        assert (await stage.ask("GET", "ns/primary/overview"))[0] == 401, "one side refuses: sign in again"
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 401
        assert (await stage.ask("GET", "api/pairing"))[0] == 401
        assert (await stage.ask("POST", "api/pairing/send", {"path": "orders"}))[0] == 401
        assert await stage.sign_in("team") == 200
        session = (await stage.ask("GET", "api/session"))[1]
        assert ([one["id"] for one in session["namespaces"]], session["pairing"]) == (["secondary"], False)
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 200
        del secondary.rights["team"]
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 401


@pytest.mark.promise("M5")
async def test_a_root_key_that_was_replaced_ends_its_session_and_opens_none() -> None:
    async with staged() as stage:
        primary, secondary = stage.sides.values()
        primary.rights[ROOT] = secondary.rights[ROOT] = ALL
        assert await stage.sign_in(ROOT, "p" * 44) == 200
        del primary.rights[ROOT]
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 200
        assert (await stage.ask("GET", "ns/primary/overview"))[0] == 401
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 401
        assert await stage.sign_in(ROOT, "p" * 44) == 401
        assert await stage.sign_in(ROOT, "s" * 44) == 200, "the key of the other side is good"
        assert (await stage.ask("GET", "ns/primary/overview"))[0] == 403
        assert (await stage.ask("GET", "api/pairing"))[0] == 403
        assert (await stage.ask("GET", "ns/secondary/overview"))[0] == 200


@pytest.mark.promise("M10")
async def test_signing_out_needs_the_token() -> None:
    async with staged() as stage:
        stage.sides["primary"].rights["team"] = ALL
        await stage.sign_in("team")
        assert (await stage.ask("POST", "sign-out", {}, token="wrong"))[0] == 401
        assert (await stage.ask("GET", "api/session"))[0] == 200
        assert (await stage.ask("POST", "sign-out", {}))[0] == 200
        assert (await stage.ask("GET", "api/session"))[0] == 401


@pytest.mark.promise("M12")
@pytest.mark.parametrize(
    ("body", "status"),
    [(b"[" * 200_000, 400), (b'{"key": "\\ud800"}', 400), (b"[]", 400), (b"{", 400), (b'{"a":"' + b"x" * 1_100_000 + b'"}', 413)],
)  # fmt: skip
async def test_bodies_that_are_none_are_refused(body: bytes, status: int) -> None:
    async with staged() as stage:
        assert (await stage.ask("POST", "sign-in", body))[0] == status


@pytest.mark.promise("M12")
async def test_wrong_keys_are_limited() -> None:
    async with staged() as stage:
        answers = [await stage.sign_in("nobody") for _ in range(FAILURES_MAX + 1)]
        assert answers == [401] * FAILURES_MAX + [429]


@pytest.mark.promise("M12")
async def test_many_pages_look_at_the_pairing_once() -> None:
    begun, go_on = threading.Event(), threading.Event()
    looks: list[int] = []

    def snapshot() -> dict[str, object]:
        looks.append(1)
        begun.set()
        assert go_on.wait(20)
        return {"look": len(looks)}

    async with staged(snapshot) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")
        pages = [asyncio.create_task(stage.ask("GET", "api/pairing")) for _ in range(20)]
        await asyncio.to_thread(begun.wait, 20)
        go_on.set()
        assert {(status, told["look"]) for status, told in await asyncio.gather(*pages)} == {(200, 1)}


@pytest.mark.promise("M12")
async def test_test_sends_that_wait_do_not_pile_up() -> None:
    waiting = threading.Semaphore(0)
    go_on = threading.Event()

    def send(wish: Mapping[str, object]) -> Mapping[str, object]:
        waiting.release()
        assert go_on.wait(20)
        return {"sent": 1, "parked": 0}

    async with staged(send=send) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")
        first = [asyncio.create_task(stage.ask("POST", "api/pairing/send", {"path": "q"})) for _ in range(2)]
        for _ in first:
            await asyncio.to_thread(waiting.acquire)
        assert (await stage.ask("POST", "api/pairing/send", {"path": "q"}))[0] == 503
        assert (await stage.ask("GET", "api/pairing"))[0] == 200, "the page goes on meanwhile"
        go_on.set()
        assert [status for status, _ in await asyncio.gather(*first)] == [200, 200]


async def test_a_send_that_fails_says_why() -> None:
    def send(wish: Mapping[str, object]) -> Mapping[str, object]:
        raise TimeoutError

    async with staged(send=send) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")
        status, told = await stage.ask("POST", "api/pairing/send", {"path": "q"})
        assert (status, told["error"]) == (502, "The send failed: TimeoutError")


async def test_the_summary_follows_what_the_namespaces_answer() -> None:
    async with staged(lambda: {"entities": []}) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")

        assert await stage.title() == "Not known yet"
        assert await stage.poll() == "Both namespaces answer"
        stage.sides["primary"].is_down = True
        await stage.ask("GET", "ns/primary/overview")
        assert await stage.title() == "The primary does not answer"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def backlog(active: int, received: int) -> list[dict[str, object]]:
    return [{"backlog": True, "active": active, "scheduled": 0, "received": received}]


async def test_a_pair_in_which_nothing_changes_stays_known() -> None:
    clock = Clock()
    async with staged(lambda: {"entities": []}, clock=clock) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")
        for _ in range(30):
            clock.now += 1
            assert await stage.poll() == "Both namespaces answer"
        assert stage.sides["secondary"].statuses == [200, *[304] * 29]


async def test_a_backlog_that_no_longer_shrinks_is_not_being_drained() -> None:
    clock = Clock()
    async with staged(lambda: {"entities": []}, clock=clock) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")
        said = []
        for waiting in (3, 2, *[1] * 30):
            stage.sides["secondary"].entities = backlog(waiting, received=3 - waiting)
            clock.now += 1
            said.append(await stage.poll())
        assert said[1:11] == ["Draining the backlog"] * 10
        assert said[13:] == ["1 message waits in the backlog"] * 19


async def test_no_change_since_other_counts_is_not_taken_for_these() -> None:
    """A second page may hold a snapshot that the namespace returned to, as after a restart; its 304 is about that one."""
    clock = Clock()
    async with staged(lambda: {"entities": []}, clock=clock) as stage:
        for side in stage.sides.values():
            side.rights["team"] = ALL
        await stage.sign_in("team")
        secondary, path = stage.sides["secondary"], "ns/secondary/overview"
        await stage.poll()
        old = stage.tags[path]
        secondary.entities = backlog(5, received=0)
        assert await stage.poll() == "5 messages wait in the backlog"
        secondary.entities = []
        clock.now += 1
        assert (await stage.ask("GET", path, tag=old))[0] == 200
        assert await stage.title() == "Both namespaces answer"
