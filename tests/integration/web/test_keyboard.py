"""The page without a mouse and without eyes: every action by keys alone, focus that is seen and kept, few words aloud."""

from __future__ import annotations

import json

import pytest

from pairbus.testing import Namespace
from tests.integration.web.chromium import Browser
from tests.integration.web.kit import Traffic, enter, go

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

AWAY, BACK = "Namespace contoso does not answer.", "Namespace contoso answers again."
LISTEN_IN = """window.__heard = []; new MutationObserver((changes) => {
  for (const change of changes) {
    const region = (change.target.nodeType === 1 ? change.target : change.target.parentElement)?.closest('[aria-live], [role=status], [role=alert]');
    if (region && region.textContent) window.__heard.push(region.textContent);
  }
}).observe(document.body, {subtree: true, childList: true, characterData: true})"""


def press_enter(browser: Browser) -> None:
    browser.key("Enter", 13, "\r")


def focused(browser: Browser) -> str:
    return str(browser.run("document.activeElement.textContent.trim().slice(0, 60)"))


def test_sign_in_open_a_queue_and_look_into_it(browser: Browser, namespace: Namespace) -> None:
    browser.open(f"http://{namespace.http_address}/")
    browser.wait("document.activeElement.id === 'key'")
    browser.type(namespace.connection_string)
    press_enter(browser)
    browser.wait_text("orders")
    browser.wait("document.activeElement.tagName === 'H1'")
    browser.tab_to("e.tagName === 'A' && e.textContent === 'orders'")
    press_enter(browser)
    browser.wait_text("order-1000")
    assert focused(browser) == "orders", "a new view begins at its heading"
    browser.tab_to("e.id === 'tab-messages'")
    browser.tab_to("e.tagName === 'SUMMARY' && e.textContent.includes('order-1000')")
    press_enter(browser)
    browser.wait_text('"country": "UK"', "pre")
    browser.tab_to("e.tagName === 'BUTTON' && e.textContent === 'Hex'")
    browser.key(" ", 32, " ")
    browser.wait_text("7b 22 6f", "pre")
    browser.tab_to("e.tagName === 'BUTTON' && e.textContent === 'Later'")
    press_enter(browser)
    browser.wait_text("page 2")
    browser.wait("document.getElementById('live').textContent.includes('page 2')")


def test_tabs_are_walked_with_arrows_and_a_message_is_sent(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/e/local/payments", "Settings")
    browser.tab_to("e.id === 'tab-messages'")
    for key, wanted in (("ArrowRight", "dead-letter"), ("ArrowRight", "send"), ("End", "settings"), ("Home", "messages"), ("ArrowLeft", "settings"), ("ArrowLeft", "send")):  # fmt: skip
        browser.key(key, {"ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36}[key])
        browser.wait(
            f"document.activeElement.id === 'tab-{wanted}' && document.activeElement.getAttribute('aria-selected') === 'true'"
        )
    browser.tab_to("e.tagName === 'TEXTAREA'")
    browser.tab_to("e.type === 'submit'")
    press_enter(browser)
    browser.wait_text("1 message accepted by payments")
    browser.wait("document.getElementById('live').textContent.includes('accepted')")
    assert focused(browser) == "Send", "the focus stays where the work is"


def test_purging_asks_first_escape_says_no_and_the_focus_comes_back(
    browser: Browser, namespace: Namespace
) -> None:
    enter(browser, namespace)
    go(browser, "#/e/local/inbox/dead-letter", "Purge…")
    browser.tab_to("e.textContent === 'Purge…'")
    press_enter(browser)
    browser.wait("document.activeElement.id === 'dialog-typed'")
    browser.key("Escape", 27)
    browser.wait("document.querySelector('dialog') === null")
    assert focused(browser) == "Purge…"

    press_enter(browser)
    browser.wait("document.activeElement.id === 'dialog-typed'")
    browser.type("inbox/$DeadLetterQueue")
    press_enter(browser)
    browser.wait_text("1 message purged")
    browser.wait_text("Nothing is dead-lettered")
    assert browser.run("document.activeElement !== document.body"), "the button has gone; the focus has not"


def test_a_single_message_is_deleted_and_the_focus_goes_on(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/e/local/payments/dead-letter", "CardRefused")
    browser.tab_to("e.tagName === 'SUMMARY' && e.textContent.includes('payment-')")
    press_enter(browser)
    browser.tab_to("e.textContent === 'Delete…'")
    press_enter(browser)
    browser.wait("document.querySelector('dialog')?.open")
    assert focused(browser) == "Cancel", "what does no harm comes first"
    browser.tab_to("e.textContent === 'Delete'")
    press_enter(browser)
    browser.wait_text("The message is deleted.")
    browser.wait("document.activeElement.tagName === 'SUMMARY'")


def test_a_fault_is_switched_on_and_off(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    go(browser, "#/faults", "Black hole")
    browser.tab_to("e.type === 'radio'")
    browser.key("ArrowDown", 40)
    browser.wait("document.activeElement.value === 'delay'")
    browser.tab_to("e.type === 'submit'")
    press_enter(browser)
    browser.wait_text("Delay is on for the whole namespace.")
    browser.tab_to("e.textContent === 'Switch all off'")
    press_enter(browser)
    browser.wait_text("No fault is on")
    browser.wait("document.activeElement !== document.body")


def test_the_skip_link_leads_past_the_frame(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    browser.run("document.querySelector('.skip').focus()")
    press_enter(browser)
    browser.wait("document.activeElement.tagName === 'H1'")
    assert browser.run("location.hash") in ("", "#/")


def test_everything_that_can_be_used_has_a_name(browser: Browser, namespace: Namespace) -> None:
    enter(browser, namespace)
    for address, wanted in (("#/", "orders"), ("#/e/local/orders/send", "Body"), ("#/faults", "Black hole")):
        go(browser, address, wanted)
        tree = browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = {
            "button",
            "link",
            "textbox",
            "searchbox",
            "combobox",
            "radio",
            "checkbox",
            "tab",
            "spinbutton",
        }
        unnamed = [
            node
            for node in tree
            if node.get("role", {}).get("value") in roles
            and not node.get("ignored")
            and not node.get("name", {}).get("value")
        ]
        assert unnamed == [], address


def test_numbers_move_in_silence_and_an_outage_is_said_once(browser: Browser, fresh: Namespace) -> None:
    enter(browser, fresh)
    browser.wait_text("orders")
    browser.run(LISTEN_IN)
    rate = "Number([...document.querySelectorAll('.tile')].find((one) => one.textContent.startsWith('In')).querySelector('strong').textContent)"
    with Traffic(fresh):
        browser.wait(f"{rate} > 0")
        go(browser, "#/e/local/orders", "Depth")
        first = browser.text(".range")
        browser.wait(f"document.querySelector('.range').textContent !== {json.dumps(first)}")
    # A machine under load may hold the broker up for seconds, and that is said; numbers are not.
    assert set(browser.run("window.__heard")) <= {AWAY, BACK}

    fresh.pause()
    try:
        browser.wait_text("does not answer. What is shown of it is")
        browser.wait_text("6 s old", "#notices")
    finally:
        fresh.resume()
    browser.wait(f"window.__heard.at(-1) === {json.dumps(BACK)}")
    heard = browser.run("window.__heard")
    assert heard == [AWAY, BACK] * (len(heard) // 2), "each outage and each return once"


def test_who_wants_no_motion_gets_none(browser: Browser, namespace: Namespace) -> None:
    browser.prefer("prefers-reduced-motion", "reduce")
    enter(browser, namespace)
    for address, wanted in (("#/", "orders"), ("#/e/local/orders", "Depth"), ("#/faults", "Black hole")):
        go(browser, address, wanted)
        moving = "[...document.querySelectorAll('*')].filter((e) => ['', '::before', '::after'].some((part) => { const style = getComputedStyle(e, part); return style.animationName !== 'none' || style.transitionDuration.split(', ').some((time) => parseFloat(time) > 0); })).length"
        assert browser.run(moving) == 0, address
