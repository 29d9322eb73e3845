"""The page of one namespace in a real Chromium: each view, rights, hostile content, phone."""

from __future__ import annotations

import json
import math
import os
import time
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.testing import Namespace
from tests.integration.web.chromium import Browser
from tests.integration.web.kit import (
    HOSTILE,
    LISTENER,
    Traffic,
    enter,
    go,
    photograph,
    wait_quiet,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.mark.promise("M6")
def test_nothing_is_shown_before_sign_in_and_a_wrong_key_is_refused(
    browser: Browser, namespace: Namespace
) -> None:
    browser.open(f"http://{namespace.http_address}/")
    browser.wait_text("Sign in")
    assert "contoso" not in browser.text()
    photograph(browser, "sign-in")
    browser.fill("#key", "wrong")
    browser.click("button[type=submit]")
    browser.wait_text("The rule's name or its key is wrong.")
    browser.fill("#key", "Endpoint=sb://contoso.local/;SharedAccesKeyName=Root;SharedAccessKey=abc=")
    browser.click("button[type=submit]")
    browser.wait_text("unknown part, “SharedAccesKeyName”")
    assert "orders" not in browser.text()


def test_the_overview_shows_every_entity_and_asks_nobody_else(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    for wanted in ("orders", "payments", "invoices", "events › audit", "Serving", "Live"):
        browser.wait_text(wanted)
    with namespace.administration_client() as administration:
        active = administration.get_queue_runtime_properties("orders").active_message_count
    read = "[...document.querySelectorAll('.entities tbody tr')].find((row) => row.querySelector('a').textContent === 'orders')"
    browser.wait(f"Number({read}.querySelector('td.number').textContent) === {active}")
    assert {address.split("/")[2] for address in browser.requests} == {namespace.http_address}
    assert browser.run("document.cookie") == "", "the cookie is out of reach of scripts"
    assert namespace.connection_string.split("SharedAccessKey=")[1].split(";")[0] not in browser.run(
        "document.documentElement.outerHTML"
    )


def test_the_overview_while_programs_work(browser: Browser, fresh: Namespace) -> None:
    with Traffic(fresh):
        enter(browser, fresh)
        rates = "[...document.querySelectorAll('.tile')].filter((one) => /^(In|Out)/.test(one.textContent)).map((one) => Number(one.querySelector('strong').textContent))"
        browser.wait(f"{rates}.every((rate) => rate > 0)")
        if os.environ.get("PAIRBUS_SCREENSHOTS"):
            browser.wait("performance.now() > 30_000", seconds=40)
        photograph(browser, "overview")


@pytest.mark.promise("M15")
def test_the_page_and_the_management_api_agree(browser: Browser, fresh: Namespace) -> None:
    administration = fresh.administration_client()
    administration.create_queue("relay-target")
    administration.create_queue("relay", forward_to="relay-target")
    administration.delete_queue("relay-target")
    later = datetime.now(UTC) + timedelta(hours=1)
    with fresh.client() as client:
        with client.get_queue_sender("orders") as orders, client.get_topic_sender("events") as events:
            orders.schedule_messages([ServiceBusMessage("later") for _ in range(3)], later)
            events.schedule_messages([ServiceBusMessage("later") for _ in range(2)], later)
        with client.get_queue_sender("relay") as relay:
            relay.send_messages(ServiceBusMessage("nowhere to go"))
        with client.get_queue_receiver("orders") as receiver:
            for message in receiver.receive_messages(max_message_count=2, max_wait_time=5):
                receiver.defer_message(message)
        with client.get_subscription_receiver("events", "billing") as receiver:
            for message in receiver.receive_messages(max_message_count=4, max_wait_time=5):
                receiver.dead_letter_message(message, reason="Unreadable")
    enter(browser, fresh)
    browser.wait_text("1 transfer dead letter")
    browser.wait_text("2 deferred")
    read = "Object.fromEntries([...document.querySelectorAll('.entities tbody tr')].map((row) => [row.querySelector('a').textContent, ['active', 'scheduled', 'dead_letter'].map((state) => Number(row.querySelector(`td.${state}`).textContent))]))"
    told: dict[str, list[int | None]] = {}
    for queue in administration.list_queues_runtime_properties():
        told[str(queue.name)] = [
            queue.active_message_count,
            queue.scheduled_message_count,
            queue.dead_letter_message_count,
        ]
    for topic in administration.list_topics_runtime_properties():
        told[str(topic.name)] = [0, topic.scheduled_message_count, 0]
        for one in administration.list_subscriptions_runtime_properties(str(topic.name)):
            told[f"{topic.name} › {one.name}"] = [
                one.active_message_count,
                0,
                one.dead_letter_message_count,
            ]
    browser.wait(
        f"JSON.stringify(Object.entries({read}).sort()) === JSON.stringify(Object.entries({json.dumps(told)}).sort())"
    )
    assert told["orders"] == [46, 3, 0]
    assert told["events"] == [0, 2, 0]
    assert told["events › billing"] == [8, 0, 4]

    sums = "Object.fromEntries([...document.querySelectorAll('.tile')].map((tile) => [tile.querySelector('.label').textContent, tile.querySelector('strong').textContent]))"
    for path, counts in (
        ("orders", told["orders"]),
        ("events/Subscriptions/billing", told["events › billing"]),
    ):
        go(browser, f"#/e/local/{path.replace('/', '%2F')}", path)
        wanted = [str(count) for count in counts]
        browser.wait(
            f"JSON.stringify(Object.values({sums}).slice(0, 3)) === JSON.stringify({json.dumps(wanted)})"
        )
    go(browser, "#/e/local/relay", "Transfer dead-letter")
    lost = administration.get_queue_runtime_properties("relay").transfer_dead_letter_message_count
    browser.wait(f"({sums})['Transfer dead-letter'] === '{lost}'")
    browser.click(".tabs a", "Transfer dead-letter")
    browser.click(".message summary")
    browser.wait_text("relay-target", ".reason")
    photograph(browser, "transfer-dead-letter", ".tabs")


def test_the_page_follows_by_itself(browser: Browser, fresh: Namespace) -> None:
    enter(browser, fresh)
    fresh.create_queue("late")
    browser.wait_text("late")
    with fresh.client() as client, client.get_queue_sender("late") as sender:
        sender.send_messages([ServiceBusMessage("x") for _ in range(7)])
    browser.wait(
        "[...document.querySelectorAll('.entities tr')].some((row) => row.innerText.includes('late') && row.innerText.includes('7'))"
    )


def test_looking_into_a_queue(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    browser.click("a", "orders")
    browser.wait_text("order-1000")
    browser.click(".message summary", "order-1001")
    browser.wait_text('"country": "UK"', "pre")
    browser.wait_text("region")
    photograph(browser, "queue", ".tabs", height=1200)
    browser.click(".segments button", "Hex")
    browser.wait_text("7b 22 6f", "pre")
    browser.click("button", "Later")
    browser.wait_text("order-1020")
    browser.wait_text("page 2")
    browser.click("button", "Earlier")
    browser.wait_text("order-1000")
    browser.wait("document.querySelectorAll('.chart .line').length >= 3")
    browser.click(".tabs a", "Settings")
    browser.wait_text("Lock duration")
    photograph(browser, "settings", ".tabs")


def test_a_body_of_json_is_shown_as_it_was_sent(browser: Browser, fresh: Namespace) -> None:
    body = r'{"id":9007199254740993,"price": 10.00,"key":1,"key":2,"text":"a\"{,\u0041","none":[ ],"list":[1e400,{}]}'
    shown = r"""{
  "id": 9007199254740993,
  "price": 10.00,
  "key": 1,
  "key": 2,
  "text": "a\"{,\u0041",
  "none": [],
  "list": [
    1e400,
    {}
  ]
}"""
    deep = "[" * 200 + "]" * 200
    with fresh.client() as client, client.get_queue_sender("inbox") as sender:
        sender.send_messages(ServiceBusMessage(body, message_id="exact"))
        sender.send_messages(ServiceBusMessage(deep, message_id="deep"))
    enter(browser, fresh)
    go(browser, "#/e/local/inbox/messages", "exact")
    for name, wanted in (("exact", shown), ("deep", deep)):
        browser.click(".message summary", name)
        browser.wait(
            f"[...document.querySelectorAll('pre')].some((one) => one.textContent === {json.dumps(wanted)})"
        )


def test_charts_follow_a_queue_that_is_busy(browser: Browser, namespace: Namespace) -> None:
    namespace.create_queue("telemetry")
    seconds = 45 if os.environ.get("PAIRBUS_SCREENSHOTS") else 5
    enter(browser, namespace)
    browser.wait_text("telemetry")
    with (
        namespace.client() as client,
        client.get_queue_sender("telemetry") as sender,
        client.get_queue_receiver("telemetry", receive_mode="receiveanddelete") as receiver,
    ):
        begun = time.monotonic()
        go(browser, "#/e/local/telemetry", "Depth")
        while time.monotonic() < begun + seconds:
            wave = 1 + math.sin((time.monotonic() - begun) / 4)
            sender.send_messages([ServiceBusMessage("22.4 °C") for _ in range(1 + int(6 * wave))])
            if wave < 1.3:
                receiver.receive_messages(max_message_count=9, max_wait_time=0.1)
    browser.wait("Number(document.querySelectorAll('.legend strong')[1].textContent) > 1")
    browser.wait("document.querySelector('.chart .line.depth').getAttribute('d').split('L').length > 3")
    photograph(browser, "busy-queue")


def test_sending_a_test_message(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/e/local/invoices/send", "Session id")
    browser.wait("document.querySelector('.sendform input:required') !== null")
    browser.run("document.querySelector('.sendform input:required').value = 'ada'")
    photograph(browser, "send", ".tabs", height=1040)
    browser.click("button[type=submit]", "Send")
    browser.wait_text("1 message accepted by invoices")
    go(browser, "#/e/local/invoices/messages", "boots")


def test_a_messages_fate_redrive_and_purge_with_the_path_typed(browser: Browser, fresh: Namespace) -> None:
    enter(browser, fresh)
    go(browser, "#/e/local/payments/dead-letter", "CardRefused")
    browser.click(".message summary")
    browser.wait_text("The bank refused the card twice.")
    photograph(browser, "dead-letter", ".tabs", height=1180)
    browser.click(".detail button", "Redrive")
    browser.wait_text("1 message sent to payments again")
    wait_quiet(browser)
    browser.click("button", "Purge…")
    browser.wait_text("payments/$DeadLetterQueue", "dialog")
    assert browser.run("document.querySelector('dialog button.danger').disabled") is True
    photograph(browser, "purge")
    browser.fill("dialog input", "payments/$DeadLetterQueue")
    browser.click("dialog button", "Purge")
    browser.wait_text("2 messages purged")
    browser.wait_text("Nothing is dead-lettered")
    counts = fresh.administration_client().get_queue_runtime_properties("payments")
    assert (counts.active_message_count, counts.dead_letter_message_count) == (2, 0)


def test_dead_letters_that_come_straight_back_are_in_the_list_and_not_only_in_the_count(
    browser: Browser, fresh: Namespace
) -> None:
    enter(browser, fresh)
    go(browser, "#/e/local/payments/dead-letter", "CardRefused")
    browser.wait("document.querySelectorAll('.message').length === 3")
    # The list was read a second time, for the count that stands next to it.
    reads = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/messages?')).length"
    browser.wait(f"{reads} >= 2")
    # Counts wait, as they do between two rounds of the page.
    browser.run("""(() => {
      const real = window.fetch;
      const held = new Promise((go) => { window.__go = go; });
      window.fetch = (address, ...rest) => String(address).includes("/entity?") ? held.then(() => real(address, ...rest)) : real(address, ...rest);
    })()""")
    browser.click("button", "Redrive all…")
    browser.click("dialog button", "Redrive all")
    browser.wait_text("3 messages sent to payments again")
    browser.wait_text("Nothing is dead-lettered")
    with fresh.client() as client, client.get_queue_receiver("payments") as receiver:
        for message in receiver.receive_messages(max_message_count=3, max_wait_time=5):
            receiver.dead_letter_message(message, reason="CardRefused")

    browser.run("window.__go()")

    browser.wait("document.querySelectorAll('.message').length === 3")
    assert "Nothing is dead-lettered" not in browser.text("main")


@pytest.mark.promise("M8")
def test_hostile_content_is_inert(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/e/local/inbox/messages", "<img src=x")
    browser.click(".message summary")
    browser.wait_text(HOSTILE, "pre")
    go(browser, "#/e/local/inbox/dead-letter", "Dead-letter")
    browser.click(".message summary")
    browser.wait_text(HOSTILE, ".reason")
    browser.wait_text("javascript:alert(1)", ".properties")
    assert browser.run("window.__hit") is None
    assert browser.run("document.querySelectorAll('main img, main script, main svg[onload]').length") == 0
    go(browser, "#/e/local/" + "%3Cimg%20src%3Dx%20onerror%3Dwindow.__hit%3D1%3E", "No such entity")
    assert browser.run("window.__hit") is None


@pytest.mark.promise("M1")
def test_a_rule_with_too_few_rights_is_told_so(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace, LISTENER)
    browser.wait_text("orders")
    assert "payments" not in browser.text()
    assert "listener on orders" in browser.text("header")
    assert "Faults" not in browser.text("nav")
    go(browser, "#/e/local/orders/send", "Sending needs the right to send")
    go(browser, "#/e/local/orders/settings", "Settings need the right to manage")
    photograph(browser, "too-few-rights", ".tabs")
    status = browser.run(
        "fetch('/$page/api/send', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"path\":\"orders\"}'}).then((answer) => answer.status)"
    )
    assert status == 401, "M10: without the token nothing changes"


def test_the_fault_switchboard(browser: Browser, fresh: Namespace) -> None:
    enter(browser, fresh)
    go(browser, "#/faults", "Black hole")
    browser.run("document.querySelector('input[value=delay]').click()")
    browser.fill("select", "orders")
    browser.click("button[type=submit]", "Switch on")
    browser.wait_text("Delay is on for orders.")
    browser.wait_text("left", ".faultlist")
    wait_quiet(browser)
    photograph(browser, "faults")
    with fresh.client() as client, client.get_queue_sender("orders") as sender:
        begun = time.monotonic()
        sender.send_messages(ServiceBusMessage("late"))
        assert time.monotonic() - begun >= 1.5, "the fault is on"
    browser.click("button", "Switch all off")
    browser.wait_text("No fault is on")


@pytest.mark.promise("M15")
def test_old_data_is_marked_when_the_broker_stops_answering(browser: Browser, fresh: Namespace) -> None:
    enter(browser, fresh)
    browser.wait_text("orders")
    fresh.pause()
    try:
        browser.wait_text("does not answer. What is shown of it is")
        browser.wait_text("Stale")
        browser.wait("document.getElementById('live').textContent.includes('does not answer')")
        photograph(browser, "stale")
    finally:
        fresh.resume()
    browser.wait(
        "!document.body.innerText.includes('does not answer') && document.body.innerText.includes('Live')"
    )


def test_a_namespace_alone_says_how_to_pair(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/pairing", "This namespace holds no backlog")
    photograph(browser, "not-paired")


def test_sign_out_and_the_end_of_a_session(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    said = "document.getElementById('live').textContent"
    browser.run(
        "import('/$page/live.js').then((live) => ['orders is suspect.', 'payments waits.'].forEach(live.toast))"
    )
    browser.wait(f"{said}.includes('orders')")
    browser.click("button", "Sign out")
    browser.wait_text("With the key of a shared access rule")
    assert browser.run(f"{said} + document.getElementById('toasts').textContent") == ""
    browser.open(f"http://{namespace.http_address}/#/e/local/orders")
    browser.wait_text("Sign in")


def test_the_page_is_on_the_namespaces_one_port_too(namespace: Namespace) -> None:
    for address in (namespace.amqp_address, namespace.http_address):
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert b"PairBus" in answer.read()
