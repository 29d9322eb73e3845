"""The shared link that ships, with many coroutines on one sender that give up at any moment, over a false network on virtual time.

Callers have time limits of their own, are cancelled, and want different things of the link: to send, to have it to themselves, to have
it opened. Moments are drawn from few, so that what seldom comes together does so often here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from pairbus.pairing.runtime.asyncio_link import AsyncioLink
from pairbus.pairing.runtime.attempts import Failed, NotWanted
from tests.simulation.false_network import FalseNamespace, false_network
from tests.unit.drain.virtual_loop import VirtualLoop

HORIZON_S: Final = 12.0
LIFE_S_MAX: Final = 600.0
GRACE_S: Final = 1.0
"""By how much an attempt may overrun its own time, as the client asks."""
SLACK_S: Final = 1.0
"""Two more cancellations of a call that dropped the first."""
LEFT_S: Final = 3.0
LATE_S_MAX: Final = 2.0
"""How long a send takes at most that has to open a connection, when all is well."""
EXPECTED: Final = (OperationTimeoutError, ServiceBusConnectionError, NotWanted)
"""What the SDK raises on these networks, and what the link says to who goes another way."""


class LinkWorld:
    """One link and everything that happens to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = dice = random.Random(f"link-{seed}")
        self.callers = dice.choice([3, 12, 80, 150])
        self.calls_each = dice.choice([1, 3])
        self.spread_s = dice.choice([0.0, 1.0, HORIZON_S])
        self.step_s = dice.choice([0.0, 0.5])
        """Moments are multiples of this."""
        self.cancels = dice.choice([0.0, 0.1, 0.5])
        self.impatient = dice.choice([0.0, 0.1, 0.5])
        """The share of calls that have little time."""
        self.others = dice.choice([0.0, 0.05, 0.3])
        """The share of calls that want something else than to send."""
        self.retries = dice.choice([0, 3])
        self.is_open_at_first = dice.random() < 0.5
        self.strikes = dice.choices(STRIKES, k=dice.randrange(5))
        self.fails_over = dice.random() < 0.15
        self.is_wanted = True
        self.strange: list[str] = []

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Live; each call is judged when it ends, and the link at the end."""
        loop = VirtualLoop()
        loop.set_exception_handler(lambda _, context: self.strange.append(f"in a callback: {context}"))
        logging.disable(logging.CRITICAL)
        try:
            with false_network(monkeypatch, loop, self.seed) as (primary, _):
                self.primary: FalseNamespace = primary
                loop.run_until_complete(self._live())
        finally:
            logging.disable(logging.NOTSET)
            loop.close()
        assert not self.strange, (
            f"seed {self.seed}, {self.strikes}: {len(self.strange)} strange, {self.strange[:3]}"
        )

    # --- what happens -----------------------------------------------------------------------------

    async def _live(self) -> None:
        text = f"Endpoint=sb://{self.primary.host}/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
        client = ServiceBusClient.from_connection_string(text, retry_total=self.retries)
        self.link = AsyncioLink(client.get_queue_sender("orders"), lambda: self.is_wanted)
        if self.is_open_at_first:
            await self.link.open(5.0)
        strikes = [asyncio.ensure_future(self._strike(what)) for what in self.strikes]
        callers = [asyncio.ensure_future(self._caller()) for _ in range(self.callers)]
        if self.fails_over:
            strikes.append(asyncio.ensure_future(self._fail_over()))
        _, endless = await asyncio.wait([*strikes, *callers], timeout=LIFE_S_MAX)
        if endless:
            self.strange.append(f"{len(endless)} callers never ended")
            for task in endless:
                task.cancel()
            await asyncio.wait(endless, timeout=LIFE_S_MAX)
        for caller in callers:
            if caller.done() and not caller.cancelled():
                caller.result()
        await self._judge_what_is_left()
        await self.link.close()
        await client.close()
        await asyncio.sleep(LEFT_S)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if left or self.primary.connections:
            self.strange.append(f"left behind: {left}, {self.primary.connections}")

    def _moment(self, until: float) -> float:
        drawn = self.dice.uniform(0, until)
        return drawn - drawn % self.step_s if self.step_s else drawn

    async def _fail_over(self) -> None:
        await asyncio.sleep(self._moment(HORIZON_S))
        self.is_wanted = False
        self.link.look_again()
        back = random.Random(f"back-{self.seed}")
        if back.random() < 0.5:
            await asyncio.sleep(back.choice([0.0, 0.5, 3.0]))
            self.is_wanted = True
            self.link.look_again()

    async def _strike(self, what: str) -> None:
        await asyncio.sleep(self._moment(HORIZON_S / 2))
        primary = self.primary
        if what == "slow opening":
            primary.opening_s = self.dice.choice([0.5, 3.0])
        elif what == "slow answers":
            primary.latency_s = self.dice.choice([0.5, 3.0])
        elif what == "silent":
            primary.fall_silent()
        elif what == "stalled":
            primary.stall()
        elif what == "lost":
            primary.get_lost()
        else:
            primary.kill()
        await asyncio.sleep(0.5 + self._moment(HORIZON_S))
        primary.opening_s, primary.latency_s = 0.0, 0.005
        primary.recover()

    async def _caller(self) -> None:
        for _ in range(self.calls_each):
            await asyncio.sleep(self._moment(self.spread_s))
            seconds = self.dice.choice(
                [0.5, 1.0, 2.0] if self.dice.random() < self.impatient else [8.0, 20.0]
            )
            patience = self.dice.choice([1, 1, 3]) * seconds
            call = self._send
            if self.dice.random() < self.others:
                call = self.dice.choice([self._have_it, self._open])
            await self._judged(call, seconds, patience)

    async def _send(self, seconds: float, patience: float) -> BaseException | None:
        message = ServiceBusMessage("x")
        failed: Failed | None = await self.link.try_to_send(
            message, seconds, seconds + GRACE_S, None, patience
        )
        return None if failed is None else failed.error

    async def _have_it(self, seconds: float, patience: float) -> BaseException | None:
        took = self.dice.choice([0.0, 0.5, 30.0])
        try:
            await self.link.call(asyncio.sleep, seconds, took, patience=patience)
        except BaseException as error:  # noqa: BLE001 - it is judged
            return error
        return None

    async def _open(self, seconds: float, patience: float) -> BaseException | None:
        try:
            await self.link.open(seconds)
        except BaseException as error:  # noqa: BLE001 - it is judged
            return error
        return None

    # --- what must hold ---------------------------------------------------------------------------

    async def _judged(
        self, call: Callable[[float, float], Awaitable[BaseException | None]], seconds: float, patience: float
    ) -> None:
        """One call in a task of its own, which may be cancelled at any moment."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        until = begun + max(seconds, patience) + GRACE_S + SLACK_S
        task = asyncio.ensure_future(call(seconds, patience))
        is_cancelled = False
        if self.dice.random() < self.cancels:
            await asyncio.wait([task], timeout=self._moment(seconds))
            is_cancelled = task.cancel()
            until = min(until, loop.time() + SLACK_S)
        await asyncio.wait([task])
        error = asyncio.CancelledError() if task.cancelled() else task.result()
        say = f"{call.__name__} of {seconds} s, {patience} s in all, at {begun}: {error!r}"
        if loop.time() > until:
            self.strange.append(f"too late at {loop.time()}: {say}")
        if is_cancelled is not isinstance(error, asyncio.CancelledError):
            self.strange.append(f"cancelled: {is_cancelled}: {say}")
        elif error is not None and not is_cancelled and not isinstance(error, EXPECTED):
            self.strange.append(f"no error of the SDK: {say}")

    async def _judge_what_is_left(self) -> None:
        """When all calls have ended nothing is left of them, and the link does what it did before."""
        await asyncio.sleep(SLACK_S)
        if self.link._limits.until:
            self.strange.append(f"limits of calls that have ended: {list(self.link._limits.until)}")
        if not self.link.is_idle:
            self.strange.append("the link waits for somebody")
        self.is_wanted, self.cancels = True, 0.0
        error = await self._send(8.0, 8.0)
        if error is not None:  # a connection that was lost without a word costs one attempt
            error = await self._send(8.0, 8.0)
        if error is not None:
            self.strange.append(f"not sent though all is well: {error!r}")
        self.primary.fall_silent()
        async with asyncio.timeout(LIFE_S_MAX):
            await asyncio.gather(*(self._judged(self._send, 8.0, 8.0) for _ in range(3)))
        self.primary.recover()
        await self._leave_together()

    async def _leave_together(self) -> None:
        """All who wait for a silent peer are cancelled in one moment, in which another one comes: it is not left to that peer."""
        loop, crowd = asyncio.get_running_loop(), random.Random(f"crowd-{self.seed}")
        opens = crowd.random() < 0.5
        if opens:
            self.link.rest()
        else:
            await self._send(8.0, 8.0)
        held = asyncio.ensure_future(self.link.call(asyncio.sleep, 8.0, 0.1)) if not opens else None
        await asyncio.sleep(0.01)
        self.primary.get_lost()
        waiting = [asyncio.ensure_future(self._send(8.0, 8.0)) for _ in range(crowd.choice([1, 2, 10, 70]))]
        await asyncio.sleep(0.5 + crowd.choice([0.0, 1.0, 3.0]) + crowd.uniform(0, 0.2))
        self.primary.recover()
        if crowd.random() < 0.5:
            waiting += [asyncio.ensure_future(self._send(8.0, 8.0)) for _ in range(crowd.choice([1, 5]))]
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        begun = loop.time()
        error = await self._send(8.0, 8.0)
        if error is not None or loop.time() > begun + LATE_S_MAX:
            what = "an opening" if opens else "answers"
            self.strange.append(f"left to a silent peer with those who waited for {what}: {error!r}")
        await asyncio.gather(*waiting, *([held] if held else []), return_exceptions=True)


STRIKES: Final = ["slow opening", "slow opening", "slow answers", "silent", "lost", "killed", "stalled"]
