"""The page of one namespace in a real Chromium: each view, rights, hostile content, keyboard, phone.

With PAIRBUS_SCREENSHOTS set to a directory the views are also photographed there.
"""

from __future__ import annotations

import json
import math
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.testing import Namespace
from tests.integration.chromium import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

HOSTILE = '<img src=x onerror="window.__hit=1"><script>window.__hit=1</script>\'"><svg onload=window.__hit=1>'
LISTENER = "Endpoint=sb://x;SharedAccessKeyName=listener;EntityPath=orders;SharedAccessKey=" + "L" * 44
CONFIG = {
    "Queues": [
        {
            "Name": "orders",
            "AuthorizationRules": [{"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "L" * 44}],
        },
        {"Name": "payments"},
        {"Name": "inbox"},
        {"Name": "invoices", "Properties": {"RequiresSession": True}},
    ],
    "Topics": [{"Name": "events", "Subscriptions": [{"Name": "audit"}, {"Name": "billing"}]}],
}


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    with Namespace("contoso", process=True, config=CONFIG) as running:
        with running.client() as client:
            stock(client)
        yield running


def stock(client: ServiceBusClient) -> None:
    details = {"order": 1000, "item": "boots", "price": 89.5, "customer": {"name": "Ada", "country": "UK"}}
    orders = [
        ServiceBusMessage(
            json.dumps({**details, "order": 1000 + number}),
            message_id=f"order-{1000 + number}",
            content_type="application/json",
            subject="order.created",
            application_properties={"region": "north", "priority": 3},
        )
        for number in range(45)
    ]
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(orders)
        sender.send_messages(ServiceBusMessage(bytes(range(256)), message_id="binary"))
    with client.get_topic_sender("events") as sender:
        sender.send_messages([ServiceBusMessage(f"event {number}") for number in range(12)])
    with client.get_queue_sender("payments") as sender:
        sender.send_messages(
            [ServiceBusMessage("card 4711", message_id=f"payment-{number}") for number in range(4)]
        )
    with client.get_queue_receiver("payments") as receiver:
        for message in receiver.receive_messages(max_message_count=3, max_wait_time=5):
            receiver.dead_letter_message(
                message, reason="CardRefused", error_description="The bank refused the card twice."
            )
    with client.get_queue_sender("inbox") as sender:
        for _ in range(2):
            sender.send_messages(
                ServiceBusMessage(
                    HOSTILE,
                    message_id=HOSTILE[:100],
                    subject=HOSTILE,
                    application_properties={HOSTILE: HOSTILE, "javascript:alert(1)": "x"},
                )
            )
    with client.get_queue_receiver("inbox") as receiver:
        message = receiver.receive_messages(max_message_count=1, max_wait_time=5)[0]
        receiver.dead_letter_message(message, reason=HOSTILE, error_description=HOSTILE)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as running:
        running.size(1280, 860)
        yield running
        assert running.errors == []


def enter(browser: Browser, namespace: Namespace, connection_string: str | None = None) -> None:
    browser.open(f"http://{namespace.http_address}/")
    browser.wait_text("Sign in")
    browser.fill("#key", connection_string or namespace.connection_string)
    browser.click("button[type=submit]")
    browser.wait_text("Overview", "nav")


def go(browser: Browser, address: str, wanted: str) -> None:
    browser.run(f"location.hash = {json.dumps(address)}")
    browser.wait_text(wanted)


def photograph(browser: Browser, name: str, focus: str = "header") -> None:
    """Light and dark and as narrow as a phone, when somebody wants pictures; the width is checked in any case."""
    directory = os.environ.get("PAIRBUS_SCREENSHOTS")
    if directory:
        browser.wait("performance.now() > 8000")  # rates and trends need a while to show something
        for is_dark in (False, True):
            browser.dark(is_dark)
            browser.screenshot(Path(directory) / f"{name}-{'dark' if is_dark else 'light'}.png")
    browser.dark(False)
    browser.size(360, 760, phone=True)
    browser.wait("document.documentElement.scrollWidth <= window.innerWidth")
    if directory:
        browser.run(f"document.querySelector({json.dumps(focus)})?.scrollIntoView()")
        browser.run("window.scrollBy(0, -110)")
        browser.screenshot(Path(directory) / f"{name}-phone.png")
    browser.size(1280, 860)


def test_M6_nothing_is_shown_before_sign_in_and_a_wrong_key_is_refused(
    browser: Browser, namespace: Namespace
) -> None:
    browser.open(f"http://{namespace.http_address}/")
    browser.wait_text("Sign in")
    assert "contoso" not in browser.text()
    photograph(browser, "sign-in")
    browser.fill("#key", "wrong")
    browser.click("button[type=submit]")
    browser.wait_text("The rule's name or its key is wrong.")
    assert "orders" not in browser.text()


def test_the_overview_shows_every_entity_and_asks_nobody_else(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    for wanted in ("orders", "payments", "invoices", "events › audit", "Serving", "Live"):
        browser.wait_text(wanted)
    with namespace.administration_client() as administration:
        active = administration.get_queue_runtime_properties("orders").active_message_count
    read = "[...document.querySelectorAll('.entities tbody tr')].find((row) => row.querySelector('a').textContent === 'orders')"
    browser.wait(f"Number({read}.querySelector('td.number').textContent) === {active}")
    photograph(browser, "overview")
    assert {address.split("/")[2] for address in browser.requests} == {namespace.http_address}
    assert browser.run("document.cookie") == "", "the cookie is out of reach of scripts"
    assert namespace.connection_string.split("SharedAccessKey=")[1].split(";")[0] not in browser.run(
        "document.documentElement.outerHTML"
    )


def test_M15_the_page_and_the_management_api_agree(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    browser.wait_text("events › audit")
    read = "Object.fromEntries([...document.querySelectorAll('.entities tbody tr')].map((row) => [row.querySelector('a').textContent, [...row.querySelectorAll('td.number')].slice(0, 4).map((cell) => Number(cell.textContent))]))"
    administration = namespace.administration_client()
    for name in ("orders", "payments", "inbox", "invoices"):
        told = administration.get_queue_runtime_properties(name)
        active, scheduled, dead, total = (
            int(count or 0)
            for count in (
                told.active_message_count,
                told.scheduled_message_count,
                told.dead_letter_message_count,
                told.total_message_count,
            )
        )
        assert browser.run(read)[name] == [active, scheduled, total - active - scheduled - dead, dead]
    subscription = administration.get_subscription_runtime_properties("events", "audit")
    assert browser.run(read)["events › audit"][0] == subscription.active_message_count


def test_the_page_follows_by_itself(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    namespace.create_queue("late")
    browser.wait_text("late")
    with namespace.client() as client, client.get_queue_sender("late") as sender:
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
    photograph(browser, "queue", ".tabs")
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
    photograph(browser, "send", ".tabs")
    browser.click("button[type=submit]", "Send")
    browser.wait_text("1 message accepted by invoices")
    go(browser, "#/e/local/invoices/messages", "boots")


def test_a_messages_fate_redrive_and_purge_with_the_path_typed(
    browser: Browser, namespace: Namespace
) -> None:
    enter(browser, namespace)
    go(browser, "#/e/local/payments/dead-letter", "CardRefused")
    browser.click(".message summary")
    browser.wait_text("The bank refused the card twice.")
    photograph(browser, "dead-letter", ".tabs")
    browser.click(".detail button", "Redrive")
    browser.wait_text("1 message sent to payments again")
    browser.click("button", "Purge…")
    browser.wait_text("payments/$DeadLetterQueue", "dialog")
    assert browser.run("document.querySelector('dialog button.danger').disabled") is True
    photograph(browser, "purge")
    browser.fill("dialog input", "payments/$DeadLetterQueue")
    browser.click("dialog button", "Purge")
    browser.wait_text("2 messages purged")
    browser.wait_text("Nothing is dead-lettered")
    counts = namespace.administration_client().get_queue_runtime_properties("payments")
    assert (counts.active_message_count, counts.dead_letter_message_count) == (2, 0)


def test_M8_hostile_content_is_inert(browser: Browser, namespace: Namespace) -> None:
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


def test_M1_a_rule_with_too_few_rights_is_told_so(browser: Browser, namespace: Namespace) -> None:
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


def test_the_fault_switchboard(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/faults", "Black hole")
    browser.run("document.querySelector('input[value=delay]').click()")
    browser.fill("select", "orders")
    browser.click("button[type=submit]", "Switch on")
    browser.wait_text("Delay is on for orders.")
    browser.wait_text("left", ".faultlist")
    photograph(browser, "faults")
    with namespace.client() as client, client.get_queue_sender("orders") as sender:
        begun = time.monotonic()
        sender.send_messages(ServiceBusMessage("late"))
        assert time.monotonic() - begun >= 1.5, "the fault is on"
    browser.click("button", "Switch all off")
    browser.wait_text("All quiet")


def test_M15_old_data_is_marked_when_the_broker_stops_answering(
    browser: Browser, namespace: Namespace
) -> None:
    enter(browser, namespace)
    browser.wait_text("orders")
    namespace.pause()
    try:
        browser.wait_text("does not answer. What is shown of it is")
        browser.wait_text("Stale")
        browser.wait("document.getElementById('live').textContent.includes('does not answer')")
        photograph(browser, "stale")
    finally:
        namespace.resume()
    browser.wait(
        "!document.body.innerText.includes('does not answer') && document.body.innerText.includes('Live')"
    )


def test_the_keyboard_is_enough(browser: Browser, namespace: Namespace) -> None:
    browser.open(f"http://{namespace.http_address}/")
    browser.wait_text("Sign in")
    browser.fill("#key", namespace.connection_string)
    browser.key("Enter", 13, "\r")
    browser.wait_text("orders")
    browser.run("document.querySelector('.entities a[href$=orders]').focus()")
    browser.key("Enter", 13, "\r")
    browser.wait_text("order-1000")
    browser.run("document.querySelector('.message summary').focus()")
    browser.key("Enter", 13, "\r")
    browser.wait("document.querySelector('.message').open")
    browser.run("document.querySelector('#tab-messages').focus()")
    browser.key("ArrowRight", 39)
    browser.wait(
        "document.activeElement.id === 'tab-dead-letter' && document.activeElement.getAttribute('aria-selected') === 'true'"
    )
    unnamed = browser.run(
        "[...document.querySelectorAll('button, a, input, select, textarea')].filter((e) => e.offsetParent && !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length || e.title)).length"
    )
    assert unnamed == 0, "everything that can be used has a name"


def test_a_namespace_alone_says_how_to_pair(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/pairing", "This namespace is not part of a pair")
    photograph(browser, "not-paired")


def test_sign_out_and_the_end_of_a_session(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    browser.click("button", "Sign out")
    browser.wait_text("With the key of a shared access rule")
    browser.open(f"http://{namespace.http_address}/#/e/local/orders")
    browser.wait_text("Sign in")


def test_the_page_is_on_the_namespaces_one_port_too(namespace: Namespace) -> None:
    for address in (namespace.amqp_address, namespace.http_address):
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert b"PairBus" in answer.read()
