"""An event loop whose time passes at once when nobody has anything to do."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Never waits: it moves the loop's clock instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.loop.offset += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Days pass in milliseconds."""

    def __init__(self) -> None:
        self.offset = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.offset

    def now_ms(self) -> int:
        """The loop's time in milliseconds."""
        return round(self.offset * 1000)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """At once: the clock must not run on while a thread works."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            done.set_exception(error)
        return done
