"""The page of a pair in a real Chromium, while the primary is killed and returns."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient, SendAvailabilityOptions
from pairbus.testing import Namespace, Pair, Queue
from pairbus.web.pair_page import PairPageServer, Side
from pairbus.web.pairing_view import PairingView
from tests.integration.web.chromium import Browser
from tests.integration.web.kit import HOSTILE, photograph, wait_quiet

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

TOPICS = {"Topics": [{"Name": "events", "Subscriptions": [{"Name": "billing"}]}]}


class Stage:
    """A pair with a page on a loop of its own, and a program that sends all the time."""

    def __init__(
        self,
        work: Path,
        stack: ExitStack,
        monkeypatch: pytest.MonkeyPatch,
        senders: tuple[str, ...] = ("orders", "payments", "events"),
    ) -> None:
        self.journal = journal = work / "journal"
        monkeypatch.setenv("PAIRBUS_JOURNAL", str(journal))
        monkeypatch.setenv("PAIRBUS_STATE_DIR", str(work / "state"))
        queues = [Queue("orders"), Queue("payments"), Queue("invoices", requires_session=True)]
        primary = Namespace("contoso", process=True, queues=queues, config=TOPICS)
        self.pair = stack.enter_context(Pair(primary, Namespace("contoso-backup", process=True)))
        options = SendAvailabilityOptions(
            backlog_queue_count=3,
            failover_interval=timedelta(seconds=6),
            ping_primary_interval=timedelta(seconds=3),
            enable_syphon=True,
            while_suspect="wait",
        )
        strings = (self.pair.primary.connection_string, self.pair.secondary.connection_string)
        self.client = PairedServiceBusClient.from_connection_strings(*strings, options=options, retry_total=0)
        stack.callback(self.client.close)
        self.client.pair()
        view = PairingView(self.client, journal)
        sides = [
            Side(
                id=role,
                name=one.name,
                role=role,
                http=one.http_address,
                connection_string=one.connection_string,
            )
            for role, one in (("primary", self.pair.primary), ("secondary", self.pair.secondary))
        ]
        self._page = page = PairPageServer(sides, snapshot=view.snapshot, send=view.send)
        self._loop = loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        self.port = asyncio.run_coroutine_threadsafe(page.start("127.0.0.1", 0), loop).result(10)
        stack.callback(loop.close)
        stack.callback(thread.join, 5)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        stack.callback(self.stop_page)
        self._stop = threading.Event()
        self._senders = [threading.Thread(target=self._send, args=(name,)) for name in senders]
        for sender in self._senders:
            sender.start()
        stack.callback(self._end)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def stop_page(self) -> None:
        asyncio.run_coroutine_threadsafe(self._page.stop(), self._loop).result(10)

    def _send(self, name: str) -> None:
        make = self.client.get_topic_sender if name == "events" else self.client.get_queue_sender
        number = 0
        with make(name) as sender:
            while not self._stop.wait(0.15):
                number += 1
                body = json.dumps({"order": number, "entity": name, "item": "boots"})
                sender.send_messages(
                    ServiceBusMessage(body, message_id=f"{name}-{number}", content_type="application/json"),
                    timeout=30,
                )

    def _end(self) -> None:
        self._stop.set()
        for sender in self._senders:
            sender.join(35)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack, monkeypatch)


def ask(address: str, body: object = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        address, content, {"Content-Type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, (
                json.loads(answer.read()),
                answer.headers.get("Set-Cookie", "").partition(";")[0],
            )
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_outage_while_it_happens(stage: Stage, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        sign_in(browser, stage)
        if os.environ.get("PAIRBUS_SCREENSHOTS"):
            browser.wait("performance.now() > 20_000", seconds=30)
        photograph(browser, "pair-overview")
        browser.run("location.hash = '#/pairing'")
        browser.wait_text("All healthy")
        browser.wait_text("orders", ".health")
        photograph(browser, "pairing-healthy", height=1240)

        stage.pair.primary.kill()
        browser.wait_text("Suspect", ".health")
        browser.wait_text("fails over in", ".health")
        photograph(browser, "pairing-suspect", height=1240)
        browser.wait_text("Failed over", ".health")
        browser.wait_text("3 entities failed over")
        browser.wait_text("ping in", ".health")
        browser.wait_text("contoso does not answer")
        browser.wait_text("Failed over orders", ".timeline")
        browser.wait("document.getElementById('live').textContent !== ''")
        browser.wait("Number(document.querySelector('.pair .side:last-child strong').textContent) > 100")
        photograph(browser, "pairing-failed-over", height=1240)

        browser.run("location.hash = '#/'")
        browser.wait_text("waiting for the primary")
        photograph(browser, "pair-overview-outage", height=1020)
        # Senders choose their backlog queues at random: take one that holds something.
        busy = "[...document.querySelectorAll('.backlog tbody tr')].find((row) => row.querySelector('td.number').textContent !== '0')"
        browser.wait(f"{busy} !== undefined")
        browser.run(f"{busy}.querySelector('a').click()")
        browser.click(".message summary")
        browser.wait_text("As it will be delivered")
        browser.wait_text("Goes to")
        photograph(browser, "backlog", ".tabs", height=1120)

        browser.run("location.hash = '#/pairing'")
        browser.click("summary", "Send through the pair")
        browser.fill("#pair-target", "payments")
        browser.click(".sendform button", "Send")
        browser.wait_text("parked in the backlog (1 message)")
        browser.click("summary", "Send through the pair")

        stage.pair.primary.restart()
        browser.wait_text("All healthy", seconds=40)
        browser.wait_text("Recovered orders", ".timeline")
        browser.wait_text("delivered, 0 waiting", seconds=40)
        browser.wait("!document.body.innerText.includes('does not answer')")
        wait_quiet(browser)
        photograph(browser, "pairing-home", height=1240)
        assert browser.errors == []
    statistics = stage.client.statistics()
    assert statistics.to_backlog == statistics.restored > 20


def test_a_dead_primary_that_no_client_reports_is_named_and_its_cost_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack, Browser(tmp_path / "profile") as browser:
        stage = Stage(tmp_path, stack, monkeypatch, senders=())
        stage.pair.primary.kill()
        browser.open(stage.address)
        browser.fill("#key", stage.pair.secondary.connection_string)
        browser.click("button[type=submit]")
        browser.wait_text("contoso-backup")
        browser.run("location.hash = '#/pairing'")
        browser.wait_text("The primary does not answer")
        browser.wait_text("No paired client reports here. The backlog is empty.")
        browser.wait_text("Without contoso: no answer since this page was opened.")
        browser.wait("document.querySelector('.plain tbody td').textContent === '–'")
        assert "All healthy" not in browser.text()
        assert browser.errors == []


@pytest.mark.promise("M15")
def test_a_page_whose_server_is_gone_claims_nothing(stage: Stage, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        sign_in(browser, stage)
        browser.run("location.hash = '#/pairing'")
        browser.wait_text("All healthy", ".flow strong")
        browser.wait_text("orders", ".health")
        assert browser.run("document.querySelectorAll('.stale').length") == 0
        stage.stop_page()
        browser.wait_text("Not known now", ".flow strong")
        browser.wait_text("s ago: All healthy.", ".flow")
        browser.wait_text("in its entities when last seen", ".side:first-child")
        browser.wait_text("in the backlog when last seen", ".side:last-child")
        browser.wait_text("What is shown of the pairing is")
        since = "parseInt(document.querySelector('.health [data-label=For]').textContent)"
        shown = browser.run(since)
        browser.wait(f"{since} > {shown}")
        browser.wait("document.querySelectorAll('.side.stale, .card.stale').length === 7")
        colours = "new Set([...document.querySelectorAll('.health td, .pill, .timeline .icon, .bignumber, .plain td')].map((one) => getComputedStyle(one).color)).size"
        browser.wait(f"{colours} === 1")
        photograph(browser, "pairing-old", height=1240)
        assert browser.errors == []


def test_the_hub_lets_nobody_in_without_a_key_and_changes_nothing_without_a_token(stage: Stage) -> None:
    for path in ("session", "pairing"):
        assert ask(f"{stage.address}$page/api/{path}")[0] == 401
    assert ask(f"{stage.address}$page/ns/primary/overview")[0] == 401
    assert (
        ask(f"{stage.address}$page/sign-in", {"rule": "RootManageSharedAccessKey", "key": "wrong"})[0] == 401
    )

    key = stage.pair.primary.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    status, (session, cookie) = ask(
        f"{stage.address}$page/sign-in", {"rule": "RootManageSharedAccessKey", "key": key}
    )
    assert status == 200
    assert [one["name"] for one in session["namespaces"]] == ["contoso", "contoso-backup"]
    assert key not in json.dumps(session)
    wish = {"path": "orders", "body": "x"}
    assert ask(f"{stage.address}$page/ns/primary/send", wish, {"Cookie": cookie})[0] == 401, "M10"
    with_token = {"Cookie": cookie, "X-PairBus-Token": session["token"]}
    assert ask(f"{stage.address}$page/ns/primary/send", wish, with_token)[0] == 200
    assert ask(f"{stage.address}$page/ns/primary/nonsense", wish, with_token)[0] == 404
    assert ask(f"{stage.address}$page/ns/other/send", wish, with_token)[0] == 404


@pytest.mark.promise("M8")
def test_a_journal_of_hostile_text_is_shown_as_text(stage: Stage, tmp_path: Path) -> None:
    at = time.time_ns() // 1_000_000
    kinds = ["pairing.suspect", "pairing.constructor", "pairing.__proto__", f"pairing.{HOSTILE}", "unseen"]
    with stage.journal.open("a") as file:
        for kind in kinds:
            event = {"at_ms": at, "factory": HOSTILE, "kind": kind, "subject": HOSTILE, "text": HOSTILE}
            file.write(json.dumps(event) + "\n")
    with Browser(tmp_path / "profile") as browser:
        sign_in(browser, stage)
        browser.run("location.hash = '#/pairing'")
        browser.wait_text(HOSTILE, ".timeline")
        browser.wait_text(HOSTILE, ".health")
        for wanted in ("constructor", "proto", "unseen"):
            browser.wait_text(wanted, ".timeline")
        browser.wait(f"document.querySelectorAll('.timeline li').length >= {len(kinds)}")
        assert (
            browser.run("document.querySelectorAll('main img, main script, .timeline .unseen').length") == 0
        )
        assert browser.run("window.__hit") is None
        assert browser.errors == []


@pytest.mark.promise("M15")
def test_a_namespace_that_hangs_does_not_make_the_other_look_old(stage: Stage, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        sign_in(browser, stage)
        browser.run("location.hash = '#/e/primary/orders'")
        browser.wait_text("orders-")
        browser.run(
            "window.__stale = new Set(); setInterval(() => document.querySelectorAll('#notices strong').forEach((one) => window.__stale.add(one.textContent)), 100)"
        )
        stage.pair.primary.pause()
        try:
            browser.wait_text("12 s old", "#notices", seconds=40)
        finally:
            stage.pair.primary.resume()
        browser.wait("document.querySelector('.pulse').textContent === 'Live'", seconds=40)
        assert browser.run("[...window.__stale]") == ["contoso"]


def sign_in(browser: Browser, stage: Stage) -> None:
    browser.size(1280, 860)
    browser.open(stage.address)
    browser.wait_text("Sign in")
    assert "contoso" not in browser.text(), "M6"
    browser.fill("#key", stage.pair.secondary.connection_string)
    browser.click("button[type=submit]")
    browser.wait_text("contoso-backup")
    browser.wait_text("orders")
