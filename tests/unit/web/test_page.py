from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.gateway.http import BURST, STRANGER_BURST, HttpRequest
from pairbus.model.entity import QUEUE, Settings
from pairbus.sdk.credentials import sas_token
from pairbus.web.page import SHARED_FROM, Page
from pairbus.web.responses import MAX_AGE_MS
from pairbus.web.sessions import FAILURES_MAX, LIFE_MS, SESSIONS_MAX
from tests.unit.web.page_kit import ENTITY_KEY, KEYS, NOW, Bench

API = "/$page/api"
READS = ("session", "overview", "entity?path=orders", "messages?path=orders", "faults")
WRITES = {
    "send": {"path": "orders", "body": "x"},
    "redrive": {"path": "orders"},
    "purge": {"path": "orders", "confirm": "orders"},
    "faults": {"kind": "refuse"},
    "faults/clear": {},
}
ALLOWED = {
    "listener": {"session", "overview", "entity", "messages", "purge"},
    "sender": {"session", "overview", "entity", "send"},
    "manager": {
        "session",
        "overview",
        "entity",
        "messages",
        "faults",
        "send",
        "redrive",
        "purge",
        "faults/clear",
    },
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_everything_that_is_not_the_pages_is_left_to_the_broker(bench: Bench) -> None:
    for method, target in (
        ("GET", "/orders"),
        ("GET", "/?api-version=2021-05"),
        ("PUT", "/"),
        ("GET", "/$Resources/queues"),
    ):
        assert bench.page(HttpRequest(method, target, {}, b"", "127.0.0.1:1", False), NOW) is None
    assert Page()(HttpRequest("GET", "/", {}, b"", "127.0.0.1:1", False), NOW) is None


def test_a_request_for_the_root_with_a_token_is_for_the_management_api(bench: Bench) -> None:
    request = HttpRequest("GET", "/", {"authorization": "SharedAccessSignature x"}, b"", "127.0.0.1:1", False)

    assert bench.page(request, NOW) is None


@pytest.mark.parametrize("target", ["/", "/$page/app.js", "/$page/app.css", "/$page/icon.svg"])
def test_files_come_with_a_policy_that_lets_nothing_foreign_run(bench: Bench, target: str) -> None:
    answer = bench.ask("GET", target)
    headers = dict(answer.headers)

    assert answer.status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert bench.ask("GET", target, None, {"if-none-match": headers["ETag"]}).status == 304


def test_the_page_has_no_inline_script_no_outside_host_and_parses_no_markup(bench: Bench) -> None:
    for name in bench.page._assets:
        text = bench.ask("GET", f"/$page/{name}").body.decode()
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "https://" not in text, name
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "onclick=",
        ):
            assert forbidden not in text, f"{forbidden} in {name}"
    assert b"<script>" not in bench.ask("GET", "/").body


@pytest.mark.promise("M6")
@pytest.mark.parametrize("name", READS)
def test_nothing_is_told_before_sign_in(bench: Bench, name: str) -> None:
    bench.store("orders", b"canary")
    for headers in (
        {},
        {"cookie": "pairbus-contoso=guess"},
        {"authorization": "SharedAccessSignature sr=x&sig=y&se=1&skn=z"},
    ):
        answer = bench.ask("GET", f"{API}/{name}", None, headers)
        assert answer.status == 401
        assert b"orders" not in answer.body
        assert b"canary" not in answer.body
        assert b"contoso" not in answer.body


@pytest.mark.promise("M10")
@pytest.mark.parametrize("name", WRITES)
def test_a_change_needs_the_anti_forgery_token(bench: Bench, name: str) -> None:
    visitor = bench.sign_in()
    bench.store("orders")
    for headers in ({"cookie": visitor.cookie}, {"cookie": visitor.cookie, "x-pairbus-token": "guess"}, {}):
        assert bench.ask("POST", f"{API}/{name}", WRITES[name], headers).status == 401
    assert visitor.read(f"{API}/overview")["entities"][0]["active"] == 1
    assert not bench.broker.faults.is_on


@pytest.mark.promise("M10")
@pytest.mark.parametrize("name", WRITES)
def test_get_changes_nothing(bench: Bench, name: str) -> None:
    visitor = bench.sign_in()
    bench.store("orders")
    before = visitor.read(f"{API}/overview")

    bench.ask(
        "GET",
        f"{API}/{name}?path=orders&confirm=orders",
        None,
        {"cookie": visitor.cookie, "x-pairbus-token": visitor.token},
    )

    assert visitor.read(f"{API}/overview")["entities"] == before["entities"]


@pytest.mark.promise("M1")
@pytest.mark.parametrize("rule", ALLOWED)
@pytest.mark.parametrize("name", [*READS, *(f"POST {name}" for name in WRITES)])
def test_a_rule_may_do_on_the_page_what_it_may_do_elsewhere(bench: Bench, rule: str, name: str) -> None:
    visitor = bench.sign_in(rule)
    bench.store("orders")
    short = name.removeprefix("POST ").partition("?")[0]
    if name.startswith("POST "):
        answer = visitor.post(f"{API}/{short}", WRITES[short])
    else:
        answer = visitor.get(f"{API}/{name}")

    assert (answer.status == 200) == (short in ALLOWED[rule]), (answer.status, answer.body)
    if answer.status != 200:
        assert answer.status == 403


@pytest.mark.promise("M1")
def test_settings_are_for_who_may_manage(bench: Bench) -> None:
    assert bench.sign_in("manager").read(f"{API}/entity?path=orders")["settings"] is not None
    assert bench.sign_in("listener").read(f"{API}/entity?path=orders")["settings"] is None


@pytest.mark.promise("M1")
def test_the_key_of_an_entity_opens_that_entity_alone(bench: Bench) -> None:
    bench.store("other", b"canary")
    visitor = bench.sign_in("own", ENTITY_KEY, "orders")

    shown = visitor.read(f"{API}/overview")
    assert [row["path"] for row in shown["entities"]] == ["orders"]
    assert shown["connections"] is None
    assert shown["operations"] is None
    assert visitor.get(f"{API}/messages?path=other").status == 403
    assert visitor.get(f"{API}/entity?path=nothing").status == 403
    assert visitor.post(f"{API}/send", {"path": "other"}).status == 403
    assert visitor.post(f"{API}/send", {"path": "orders", "body": "x"}).status == 200


@pytest.mark.promise("M3", "M5")
def test_a_session_ends_with_its_life_and_with_its_key(bench: Bench) -> None:
    visitor = bench.sign_in()
    bench.now += LIFE_MS - 1
    assert visitor.get(f"{API}/overview").status == 200
    bench.now += 1
    assert visitor.get(f"{API}/overview").status == 401

    visitor = bench.sign_in()
    rules = bench.broker.namespace.access_rules
    rotated = tuple(replace(rule, primary_key="N" * 44) if rule.name == "manager" else rule for rule in rules)
    bench.broker.namespace.set_access_rules(rotated, bench.now)
    assert visitor.get(f"{API}/overview").status == 401


def test_sign_out_ends_the_session(bench: Bench) -> None:
    visitor = bench.sign_in()
    visitor.post("/$page/sign-out", {})
    assert visitor.get(f"{API}/overview").status == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(bench: Bench) -> None:
    wish = {"rule": "manager", "key": KEYS["manager"]}
    plain = dict(bench.ask("POST", "/$page/sign-in", wish).headers)["Set-Cookie"]
    secure = dict(bench.ask("POST", "/$page/sign-in", wish, secure=True).headers)["Set-Cookie"]

    for cookie in (plain, secure):
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Max-Age=" in cookie
    assert "Secure" in secure
    assert "Secure" not in plain


@pytest.mark.promise("M12", "M13")
def test_wrong_keys_are_limited_and_recorded(bench: Bench) -> None:
    wish = {"rule": "manager", "key": "wrong-canary"}
    answers = [bench.ask("POST", "/$page/sign-in", wish).status for _ in range(FAILURES_MAX + 1)]

    assert answers == [401] * FAILURES_MAX + [429]
    assert bench.audits == [("page.sign-in", "", "manager", "refused", "127.0.0.1:5555")] * FAILURES_MAX
    bench.now += 60_001
    assert bench.ask("POST", "/$page/sign-in", {"rule": "manager", "key": KEYS["manager"]}).status == 200


@pytest.mark.parametrize("wish", [{"rule": "manager", "key": ""}, {"rule": "", "key": ""}, {"rule": "nobody", "key": "-" * 44}, {"rule": "own", "key": ENTITY_KEY}, {"rule": "own", "key": ENTITY_KEY, "entity": "other"}, {"rule": "own", "key": KEYS["manager"], "entity": "orders"}])  # fmt: skip
def test_wrong_keys_are_refused_alike(bench: Bench, wish: dict[str, str]) -> None:
    answer = bench.ask("POST", "/$page/sign-in", wish)
    assert (answer.status, json.loads(answer.body)) == (
        401,
        {"error": "The rule's name or its key is wrong."},
    )


@pytest.mark.promise("M12")
def test_the_number_of_sessions_is_bounded(bench: Bench) -> None:
    first = bench.sign_in()
    for _ in range(SESSIONS_MAX):
        bench.sign_in()
    assert len(bench.page._sessions) == SESSIONS_MAX
    assert first.get(f"{API}/overview").status == 401


@pytest.mark.promise("M7")
def test_no_answer_holds_a_key(bench: Bench) -> None:
    visitor = bench.sign_in()
    seen = b"".join(visitor.get(f"{API}/{name}").body for name in READS)
    for key in (*KEYS.values(), ENTITY_KEY):
        assert key.encode() not in seen
    assert KEYS["manager"] not in repr(bench.page._sessions._sessions)


def test_a_program_signs_its_requests_instead(bench: Bench) -> None:
    token = sas_token("http://localhost", "sender", KEYS["sender"], NOW // 1000 + 60)
    wish = {"path": "orders", "body": "x"}

    assert bench.ask("POST", f"{API}/send", wish, {"authorization": token}).status == 200
    assert (
        bench.ask(
            "POST", f"{API}/purge", {"path": "orders", "confirm": "orders"}, {"authorization": token}
        ).status
        == 403
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"nonsense", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(bench: Bench, body: bytes) -> None:
    visitor = bench.sign_in()
    headers = {"cookie": visitor.cookie, "x-pairbus-token": visitor.token, "content-type": "application/json"}
    answer = bench.page(HttpRequest("POST", f"{API}/send", headers, body, "127.0.0.1:1", False), NOW)
    assert answer is not None
    assert answer.status == 400


@pytest.mark.promise("M13")
def test_every_change_is_written_down_once(bench: Bench) -> None:
    visitor = bench.sign_in()
    bench.audits.clear()
    visitor.post(f"{API}/send", {"path": "orders", "body": "x"})
    visitor.post(f"{API}/purge", {"path": "orders", "confirm": "wrong"})

    assert bench.audits == [
        ("page.send", "orders", "manager", "200", "127.0.0.1:5555"),
        ("page.purge", "orders", "manager", "400", "127.0.0.1:5555"),
    ]


def test_a_picture_that_has_not_changed_is_not_sent_again(bench: Bench) -> None:
    visitor = bench.sign_in()
    tag = dict(visitor.get(f"{API}/overview").headers)["ETag"]
    bench.now += 5_000
    assert visitor.get(f"{API}/overview", **{"if-none-match": tag}).status == 304
    bench.store("orders")
    assert visitor.get(f"{API}/overview", **{"if-none-match": tag}).status == 200


@pytest.mark.parametrize(
    "target",
    [
        "messages?path=orders&from=x",
        "messages?path=orders&from=-1",
        "messages?path=orders&count=9999999999999999999",
    ],
)
def test_numbers_that_are_none_are_refused(bench: Bench, target: str) -> None:
    assert bench.sign_in().get(f"{API}/{target}").status == 400


@pytest.mark.promise("M12")
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"rule": "manager", "key": "\\ud800"}',
        b'{"rule": "\\udfff", "key": "x"}',
        b'{"rule": "own", "key": "\\ud800", "entity": "orders"}',
        b'{"\\ud800": 1}',
        b"1" * 10_000,
    ],
)
def test_a_body_that_would_break_the_broker_is_refused_before_sign_in(bench: Bench, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = bench.page(HttpRequest("POST", "/$page/sign-in", headers, body, "127.0.0.1:1", False), NOW)
    assert answer is not None
    assert answer.status == 400


@pytest.mark.promise("M10")
def test_signing_out_needs_the_token_too(bench: Bench) -> None:
    visitor = bench.sign_in()
    assert bench.ask("POST", "/$page/sign-out", {}, {"cookie": visitor.cookie}).status == 401
    assert visitor.get(f"{API}/overview").status == 200
    assert visitor.post("/$page/sign-out", {}).status == 200
    assert visitor.get(f"{API}/overview").status == 401
    assert bench.ask("POST", "/$page/sign-out", {}, {"cookie": visitor.cookie}).status == 200, "idempotent"


def test_a_token_of_strange_bytes_is_only_wrong(bench: Bench) -> None:
    visitor = bench.sign_in()
    headers = {"cookie": visitor.cookie, "x-pairbus-token": "\xff\udcff"}
    assert bench.ask("POST", f"{API}/send", {"path": "orders"}, headers).status == 401


@pytest.mark.promise("M8")
def test_the_policy_allows_nothing_inline_and_no_text_to_become_script(bench: Bench) -> None:
    for target in ("/", "/$page/app.js", "/$page/app.css", f"{API}/overview"):
        policy = dict(bench.ask("GET", target).headers)["Content-Security-Policy"]
        assert "unsafe" not in policy, target
        for directive in (
            "default-src 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "trusted-types 'none'",
        ):
            assert directive in policy, target


def test_no_file_of_the_page_names_another_host_or_builds_markup(bench: Bench) -> None:
    for name, asset in bench.page._assets.items():
        text = asset.body.decode()
        for address in ("http://", "https://", "//cdn"):
            assert address not in text.replace("http://www.w3.org/2000/svg", ""), name
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, name


@pytest.mark.promise("M12")
def test_an_overview_of_many_entities_is_made_once_for_many_pages(bench: Bench) -> None:
    for number in range(SHARED_FROM):
        bench.broker.namespace.create(QUEUE, f"q{number}", Settings(), NOW)
    pages = [bench.sign_in() for _ in range(3)]
    tags = {dict(page.get(f"{API}/overview").headers)["ETag"] for page in pages}
    bench.store("orders")
    assert {dict(page.get(f"{API}/overview").headers)["ETag"] for page in pages} == tags, "within a moment"
    narrow = bench.sign_in("own", ENTITY_KEY, "orders")
    assert [row["path"] for row in narrow.read(f"{API}/overview")["entities"]] == ["orders"], "M1: not shared"

    bench.now += MAX_AGE_MS
    shown = pages[0].read(f"{API}/overview")["entities"]
    assert next(row for row in shown if row["path"] == "orders")["active"] == 1


@pytest.mark.promise("M12")
def test_requests_to_the_page_have_a_rate_limit(bench: Bench) -> None:
    signed_in = bench.sign_in()
    answers = [bench.ask("GET", f"{API}/overview") for _ in range(STRANGER_BURST)]  # one went to signing in
    assert {answer.status for answer in answers[:-1]} == {401}
    assert answers[-1].status == 503
    assert dict(answers[-1].headers)["Retry-After"] == "1"
    assert bench.ask("GET", "/").status == 200, "the page's own files are not counted"
    mine = [signed_in.get(f"{API}/overview").status for _ in range(BURST + 1)]
    assert mine == [200] * BURST + [503], "strangers use up nothing of a session's"
    bench.now += 1_000
    assert bench.ask("GET", f"{API}/overview").status == 401
