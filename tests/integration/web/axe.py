"""axe-core in the page under test: what it finds wrong for people who do not see, do not point, or see little contrast."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from tests.integration.web.chromium import Browser

_RUN = """axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((one) =>
  `${one.impact} ${one.id}: ${one.help}; ` + one.nodes.slice(0, 5).map((node) =>
    `${node.target.join(' ')} [${node.any.concat(node.all).map((check) => check.message).join('; ')}]`).join(' | ')))"""


@cache
def script() -> str:
    """The checker. Its absence is a failure and not a skip: the promise is held here or nowhere."""
    found = importlib.util.find_spec("axe_playwright_python")
    assert found is not None, (
        "axe-core is not installed: `make browser` does it, from requirements/browser.lock"
    )
    assert found.origin is not None, found
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(browser: Browser) -> list[str]:
    """What is wrong with what is shown now, one line for each rule that is broken."""
    if not browser.run("'axe' in window"):
        browser.call("Runtime.evaluate", expression=script(), returnByValue=False)
    found: list[str] = browser.run(_RUN)
    return found
