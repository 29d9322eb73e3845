"""The drain as Spark runs it, with failures: slices, shares, tasks with a budget, and tasks that are killed and tried again.

The driver's loop is played here; how a slice is shared out, the drain of a task and its ledger rows are production code.
A task may be killed, or be lost: then it runs on, unheard, beside its second attempt. Only rows of attempts that Spark
heard of count. There is no ledger of sends in doubt that outlives a task.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Multiset
from collections.abc import Sequence
from pathlib import Path

from pairbus.drain.shell import BUDGET_STOP_SECONDS, Drain
from pairbus.spark.drain.rows import LOCK_LOST, MOVED, SET_ASIDE, LedgerRow
from pairbus.spark.drain.shares import share_out
from pairbus.spark.drain.task import Rows, TaskSettings, task_drain
from tests.simulation.drain_world import BAD_SECONDS, MESSAGES, WINDOW, DrainWorld, Inbox, Outlet

ATTEMPTS_MAX = 4
SLICES_MAX = 400
CLOSE_SECONDS = 60.0
"""How long after its time, and the time for answers, a task may need on a slow network."""


class Attempt:
    """One attempt at a task."""

    def __init__(self, world: SparkWorld, queues: Sequence[str]) -> None:
        self.rows = Rows(world.now)
        self._inboxes = [Inbox(world, queue) for queue in queues]
        self._outlet = Outlet(world)
        self.drain: Drain = task_drain(
            world.settings, self._inboxes, self._outlet, self.rows, clock=world.now, wall_clock=world.now
        )
        world.prepare(self.drain)
        self.running = asyncio.ensure_future(self.drain.run())

    async def kill(self) -> None:
        """As SIGKILL: nothing more reaches a port, and its rows are lost."""
        ports: list[Inbox | Outlet] = [*self._inboxes, self._outlet]
        for port in ports:
            port.is_dead = True
        self.running.cancel()
        await asyncio.wait([self.running])


class SparkWorld(DrainWorld):
    """One seed: a driver, its tasks, two namespaces, and what goes wrong."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.tasks = self.dice.choice([1, 2, 3])
        self.drains = self.tasks * ATTEMPTS_MAX
        self.kill_rate = self.dice.choice([0.0, 0.2, 0.5])
        self.settings = TaskSettings(
            primary="",
            secondary="",
            seconds=self.dice.choice([3.0, 20.0]),
            window=self.dice.choice([4, WINDOW]),
            messages_max=self.dice.choice([10, 1_000]),
        )
        self.rows: list[LedgerRow] = []
        self.slices = 0
        self._lost: list[Attempt] = []

    async def _main(self) -> None:
        while (waiting := self._waiting()) and self.slices < SLICES_MAX:
            self.slices += 1
            self.is_calm = self.now() > BAD_SECONDS * 1000
            shares = share_out(waiting, self.tasks)
            kept = await asyncio.gather(*(self._run_share(queues) for queues in shares))
            self.rows += [row for rows in kept for row in rows]
            await asyncio.sleep(0.5)
        self.require(not self._waiting(), "P41: the backlog is not empty after the calm")
        for attempt in self._lost:
            await asyncio.wait([attempt.running])
            self.killed_with.update(attempt.drain._doubts.ids())

    def _waiting(self) -> dict[str, int | None]:
        counts = {queue: len(self.secondary.queue(queue).messages) for queue in self.queues}
        return {queue: count for queue, count in counts.items() if count}

    async def _run_share(self, queues: Sequence[str]) -> list[LedgerRow]:
        """Run a task as often as Spark would, and return the rows of the attempt that ended."""
        for _ in range(ATTEMPTS_MAX):
            attempt = Attempt(self, queues)
            begun = self.now()
            if not self.is_calm and self.dice.random() < self.kill_rate:
                await asyncio.sleep(self.dice.uniform(0, self.settings.seconds))
                # In doubt when it dies: what it sent and has not completed.
                self.killed_with.update(attempt.drain._doubts.ids())
                if self.dice.random() < 0.3:
                    self._lost.append(attempt)
                else:
                    await attempt.kill()
                continue
            await attempt.running
            # The same holds for a task whose last sends had no answer in time.
            self.killed_with.update(attempt.drain._doubts.ids())
            seconds = (self.now() - begun) / 1000
            most = self.settings.seconds + BUDGET_STOP_SECONDS + CLOSE_SECONDS
            self.require(seconds <= most, f"D3: a task took {seconds} s")
            self._check_rows(attempt)
            return attempt.rows.rows
        return []

    def _check_rows(self, attempt: Attempt) -> None:
        """What a task reports is true at the moment at which it ends."""
        if self.is_calm:
            held = [row for row in attempt.rows.rows if row.outcome not in (MOVED, SET_ASIDE, LOCK_LOST)]
            # A window is held. Where some of it waits for older ones, one more (``ready_max``) may be held of what does not wait,
            # and one is left locked because it waits.
            self.require(len(held) <= 3 * self.settings.window, f"P38: {len(held)} messages were held")
        for row in attempt.rows.rows:
            model = self.secondary.queue(row.backlog_queue)
            if row.outcome in (MOVED, SET_ASIDE):
                self.require(
                    row.sequence_number not in model.messages,
                    f"P45: {row.message_id} is reported as {row.outcome} and is in the backlog",
                )
            if row.outcome == LOCK_LOST:
                self.lost_locks[row.message_id] += 1

    def _explained(self, name: str) -> int:
        # Tasks share queues and keep no ledger: everything that was in doubt once may be there once more.
        return 1 + self.doubtful_sends[name] + self.killed_with[name] + self.lost_locks[name]

    def _check_end(self) -> None:
        super()._check_end()
        moved = Multiset(row.message_id for row in self.rows if row.outcome == MOVED)
        assert max(moved.values(), default=0) <= 1, f"seed {self.seed}: P45: {moved.most_common(1)}"
        if not self.kill_rate and not self.error_rate and not self.lost_lock_rate and not self.slow_rate:
            assert moved.total() == MESSAGES, f"seed {self.seed}: P45: {moved.total()} rows"
