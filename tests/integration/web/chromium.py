"""A real Chromium for tests of the page, driven by its own DevTools protocol: no driver and no library beside it."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import websocket

from tests.waiting import wait_until

WAIT_SECONDS = 60.0
CALL_SECONDS = 120.0
"""How long one answer of Chromium may take: a check of a page of a thousand rows, on a machine with other work."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def executable() -> str:
    """Where Chromium is. Its absence is a failure and not a skip: the page's promises are held here or nowhere."""
    given = os.environ.get("PAIRBUS_CHROMIUM")
    for name in (given,) if given else NAMES:
        found = shutil.which(name)
        if found:
            return found
    raise AssertionError(
        "no Chromium found: `apt-get install -y chromium`, or name one with PAIRBUS_CHROMIUM=/path/to/chrome"
    )


class Browser:
    """One Chromium with a profile of its own, and one page in it."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: websocket.WebSocket | None = None
        self.errors: list[str] = []
        """Uncaught errors, console errors and violations of the content security policy."""
        self.requests: list[str] = []
        """Every address that was asked for."""

    def __enter__(self) -> Self:
        command = [executable(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = self._profile / "DevToolsActivePort"
        wait_until(lambda: port_file.exists() and port_file.read_text().count("\n"), "Chromium listens")
        port = port_file.read_text().split("\n")[0]
        pages = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10).read())
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self._socket = websocket.create_connection(address, timeout=CALL_SECONDS, suppress_origin=True)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    # --- protocol -----------------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; events that come meanwhile are noted."""
        assert self._socket is not None
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, details = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.errors.append(str(thrown.get("exception", {}).get("description", thrown.get("text"))))
        elif method == "Log.entryAdded" and details["entry"]["level"] == "error":
            # A failed request is part of an outage, and the page says so; anything else is an error of the page.
            if details["entry"].get("source") != "network":
                self.errors.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"a script spoke: {details['message']}")
            assert self._socket is not None
            number = next(self._ids)
            self._socket.send(
                json.dumps(
                    {"id": number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                )
            )

    # --- pages --------------------------------------------------------------------------------------

    def open(self, address: str) -> None:
        """Go to an address and wait until it has loaded."""
        self.call("Page.navigate", url=address)
        wait_until(lambda: self.run("document.readyState") == "complete", f"{address} loads")

    def run(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What a person reads there; empty when nothing is."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_text(self, wanted: str, selector: str = "body", seconds: float = WAIT_SECONDS) -> None:
        """Wait until a person reads this."""
        try:
            wait_until(lambda: wanted in self.text(selector), "", seconds)
        except AssertionError:
            raise AssertionError(
                f"{wanted!r} not in {selector}: {self.text(selector)!r}; {self.errors}"
            ) from None

    def wait(self, expression: str, seconds: float = WAIT_SECONDS) -> Any:
        """Wait until an expression is true."""
        return wait_until(
            lambda: self.run(expression), f"{expression}; page says {self.text()!r}; {self.errors}", seconds
        )

    def click(self, selector: str, containing: str = "") -> None:
        """Click the first visible element of this kind with this text."""
        script = (
            f"(() => {{ const found = [...document.querySelectorAll({json.dumps(selector)})].find((e) => "
            f"e.offsetParent !== null && e.textContent.includes({json.dumps(containing)})); "
            "if (found) found.click(); return Boolean(found); })()"
        )
        wait_until(lambda: self.run(script), f"{selector} with {containing!r} to click")

    def fill(self, selector: str, value: str) -> None:
        """Type into a field as a person would: the page hears of it."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus(); "
            f"field.value = {json.dumps(value)}; field.dispatchEvent(new Event('input', {{bubbles: true}})); "
            "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def key(self, key: str, code: int = 0, text: str = "") -> None:
        """Press and release one key."""
        parameters = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **parameters)
        self.call("Input.dispatchKeyEvent", type="keyUp", **parameters)

    def type(self, text: str) -> None:
        """Type into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def tab_to(self, wanted: str, presses: int = 60) -> None:
        """Press Tab until an expression about the focused element ``e`` is true. Where the focus stops it must show."""
        for _ in range(presses):
            self.key("Tab", 9)
            found = self.run(
                "(() => { const e = document.activeElement; const ring = e.closest('.choice') ?? e; "
                "const style = getComputedStyle(ring); "
                "return {is: Boolean(" + wanted + "), name: e.outerHTML.slice(0, 200), "
                "shows: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0}; })()"
            )
            # After the last stop the focus leaves the page for a moment.
            assert found["shows"] or found["name"].startswith("<body"), (
                f"the focus cannot be seen on {found['name']}"
            )
            if found["is"]:
                return
        raise AssertionError(f"Tab does not lead to {wanted}; page says {self.text()!r}")

    # --- looks --------------------------------------------------------------------------------------

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """The window's size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def dark(self, is_dark: bool) -> None:
        """The person's preference for dark or light."""
        self.prefer("prefers-color-scheme", "dark" if is_dark else "light")

    def prefer(self, name: str, value: str) -> None:
        """One preference of the person."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value}])

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """A picture of what is shown."""
        file.parent.mkdir(parents=True, exist_ok=True)
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))
