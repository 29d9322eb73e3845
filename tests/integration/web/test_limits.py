"""The page at its bounds: a thousand entities, deep queues, large bodies, a namespace that hangs beside one that is well."""

from __future__ import annotations

import json

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.testing import Namespace
from tests.integration.web.chromium import Browser
from tests.integration.web.kit import HOSTILE, enter, go, photograph

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MANY = 1_012


@pytest.mark.promise("M12")
def test_a_thousand_entities_are_shown_in_part_found_by_name_and_still_live(browser: Browser) -> None:
    config = {"Queues": [{"Name": f"team-{number % 20:02}/queue-{number:04}"} for number in range(MANY)]}
    with Namespace("contoso", process=True, config=config) as namespace:
        enter(browser, namespace)
        rows = "document.querySelectorAll('.entities tbody tr').length"
        browser.wait(f"{rows} === 200")
        browser.wait_text("12 further entities not listed")
        photograph(browser, "many-entities")
        browser.fill("input[type=search]", "queue-0777")
        browser.wait(f"{rows} === 1")
        browser.fill("input[type=search]", "team-19/queue-0999")
        browser.click("a", "open team-19/queue-0999")
        browser.wait_text("team-19/queue-0999", "h1")
        browser.wait_text("No messages")
        go(browser, "#/", "Show all")
        browser.click("button", "Show all 1,000")
        browser.wait(f"{rows} === 1000")
        with namespace.client() as client, client.get_queue_sender("team-00/queue-0000") as sender:
            sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
        browser.wait("document.querySelector('.entities tbody td.active').textContent === '3'")
        assert "Live" in browser.text("header")


@pytest.mark.promise("M12")
def test_a_deep_queue_is_paged_and_purged_in_one_go(browser: Browser) -> None:
    with Namespace("contoso", process=True, config={"Queues": [{"Name": "deep"}]}) as namespace:
        with namespace.client() as client, client.get_queue_sender("deep") as sender:
            for _ in range(5):
                sender.send_messages([ServiceBusMessage("x") for _ in range(1_800)])
        enter(browser, namespace)
        go(browser, "#/e/local/deep", "Messages 1 – 20")
        browser.wait_text("9,000", ".tiles")
        with namespace.client() as client, client.get_queue_receiver("deep") as receiver:
            message = receiver.receive_messages(max_message_count=1, max_wait_time=5)[0]
            browser.wait_text("1 locked", ".tiles")
            browser.click("button", "Purge…")
            browser.wait_text("8,999 messages will be deleted", "dialog")
            browser.wait_text("1 message that a receiver has locked stays.", "dialog")
            browser.click("dialog button", "Cancel")
            receiver.abandon_message(message)
        browser.wait_text("1 earlier delivery", ".message")
        browser.wait("!document.querySelector('.tiles').innerText.includes('locked')")
        browser.click("button", "Purge…")
        browser.wait_text("9,000 messages will be deleted", "dialog")
        browser.fill("dialog input", "deep")
        browser.click("dialog button", "Purge")
        browser.wait_text("9,000 messages purged.", seconds=60)
        browser.wait_text("No messages")
        counts = namespace.administration_client().get_queue_runtime_properties("deep")
        assert counts.total_message_count == 0


@pytest.mark.promise("M12")
def test_a_large_body_is_cut_and_shown_whole_on_request(browser: Browser) -> None:
    with Namespace("contoso", process=True, config={"Queues": [{"Name": "large"}]}) as namespace:
        with namespace.client() as client, client.get_queue_sender("large") as sender:
            body = json.dumps({"padding": "x" * 200_000, "last": HOSTILE})
            sender.send_messages(ServiceBusMessage(body, message_id="large-1"))
        enter(browser, namespace)
        go(browser, "#/e/local/large", "large-1")
        browser.click(".message summary")
        browser.wait_text("the first 16 KB shown", ".body")
        assert HOSTILE not in browser.text("pre")
        browser.click("button", "Show all of it")
        browser.wait(f"document.querySelector('pre').textContent.includes({json.dumps(json.dumps(HOSTILE))})")
        assert browser.run("document.activeElement.tagName") == "PRE"
        assert browser.run("window.__hit") is None


@pytest.mark.promise("M8")
def test_no_text_can_become_markup(browser: Browser) -> None:
    with Namespace("contoso", process=True, config={}) as namespace:
        enter(browser, namespace)
        for attempt in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.write('<b>x</b>')",
            "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
            "document.createElement('a').setAttribute('onclick', 'window.__hit = 1')",
            "Object.assign(document.createElement('script'), {src: 'data:text/javascript,window.__hit=1'})",
        ):
            refused = browser.run(
                f"(() => {{ try {{ {attempt}; return false; }} catch (error) {{ return error instanceof TypeError; }} }})()"
            )
            assert refused, attempt
        assert browser.run("window.__hit") is None
        browser.errors.clear()  # the policy tells each of them to the console
