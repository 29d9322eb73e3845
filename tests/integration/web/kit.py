"""What tests of the page share: a stocked namespace, signing in, going somewhere, looking at what is shown.

With PAIRBUS_SCREENSHOTS set to a directory the views are also photographed there.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from pairbus.testing import Namespace
from tests.integration.web.axe import violations
from tests.integration.web.chromium import Browser

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
_CUT_TABLES = """
    [...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)
"""


@contextmanager
def stocked() -> Iterator[Namespace]:
    """A namespace with something of everything in it."""
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


class Traffic:
    """Programs at work: in waves they send to some entities and receive from them, until told to stop."""

    def __init__(self, namespace: Namespace, *, per_turn: int = 4) -> None:
        self._namespace = namespace
        self._per_turn = per_turn
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def _send(self) -> None:
        begun = time.monotonic()
        with (
            self._namespace.client() as client,
            client.get_queue_sender("orders") as orders,
            client.get_queue_sender("payments") as payments,
            client.get_topic_sender("events") as events,
        ):
            while not self._stop.wait(0.2):
                wave = 1 + math.sin((time.monotonic() - begun) / 3)
                for sender, share in ((orders, 1.0), (payments, 0.5), (events, 0.8)):
                    amount = 1 + int(self._per_turn * wave * share)
                    sender.send_messages([ServiceBusMessage('{"item": "boots"}') for _ in range(amount)])

    def _receive(self) -> None:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with (
            self._namespace.client() as client,
            client.get_queue_receiver("orders", receive_mode=mode) as orders,
            client.get_subscription_receiver("events", "audit", receive_mode=mode) as audit,
        ):
            while not self._stop.wait(0.2):
                for receiver in (orders, audit):
                    receiver.receive_messages(max_message_count=self._per_turn, max_wait_time=0.1)


def enter(browser: Browser, namespace: Namespace, connection_string: str | None = None) -> None:
    browser.open(f"http://{namespace.http_address}/")
    browser.wait_text("Sign in")
    browser.fill("#key", connection_string or namespace.connection_string)
    browser.click("button[type=submit]")
    browser.wait_text("Overview", "nav")


def go(browser: Browser, address: str, wanted: str) -> None:
    browser.run(f"location.hash = {json.dumps(address)}")
    browser.wait_text(wanted)


def photograph(browser: Browser, name: str, focus: str = "", *, height: int = 860) -> None:
    """Light, dark and as narrow as a phone: axe finds nothing, nothing sticks out; pictures when somebody wants them."""
    directory = os.environ.get("PAIRBUS_SCREENSHOTS")
    if directory and browser.run("document.querySelector('.chart, .spark') !== null"):
        browser.wait("performance.now() > 14_000")  # charts and trends need a while to show something
    browser.run("window.scrollTo(0, 0)")
    browser.size(1280, height)
    settle(browser)
    for tone in ("light", "dark"):
        browser.dark(tone == "dark")
        if directory:
            browser.screenshot(Path(directory) / f"{name}-{tone}.png")
        assert not (found := violations(browser)), f"{name} in {tone}: {found}"
    browser.dark(False)
    browser.size(360, 760, phone=True)
    settle(browser)
    browser.wait("document.documentElement.scrollWidth <= window.innerWidth")
    # A table that must be scrolled on a phone hides the ends of its last column, and nothing shows that there is more.
    assert not (cut := browser.run(_CUT_TABLES)), f"{name} on a phone: cut at the edge: {cut}"
    if focus:
        browser.run(f"document.querySelector({json.dumps(focus)})?.scrollIntoView()")
        browser.run("window.scrollBy(0, -104)")
    if directory:
        browser.screenshot(Path(directory) / f"{name}-phone.png")
    assert not (found := violations(browser)), f"{name} on a phone: {found}"
    browser.size(1280, 860)
    browser.run("window.scrollTo(0, 0)")


def settle(browser: Browser) -> None:
    """Until the page has drawn itself anew: charts take their size from the screen once a round."""
    browser.wait(
        "[...document.querySelectorAll('.chart')].every((one) => one.getAttribute('viewBox') === `0 0 ${one.clientWidth} ${one.clientHeight}`)"
    )


def wait_quiet(browser: Browser) -> None:
    """Until what was done is no longer told: toasts have gone."""
    browser.wait("document.getElementById('toasts').childElementCount === 0")
