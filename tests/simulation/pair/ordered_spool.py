"""A paired client with an order and a spool: parked messages, spooled ones and direct ones of the same sessions, and kills.

Both promises hold at once. What is parked, what is in the spool and what is sent next arrive in the order of their sends, also when the
next process finds some of them in the backlog, some in the spool, and the secondary away. Some of those processes are the command
that replays a spool by hand: they send nothing of their own.

In some worlds a second program uses the same directory. It is started while the first one is away, so it takes the spool of that one,
and the first one must stay behind its own messages there. The second has sessions of its own, and is killed, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from pairbus.cli.pairing.spool import replay_options
from pairbus.pairing.client.backlog.later import pair_later
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.order_keys import key_of
from pairbus.pairing.rules.flow import SendFlow
from pairbus.spool.reading import listed
from tests.simulation.pair.clients import SimClient
from tests.simulation.pair.ordered import Ordered, OrderedClient
from tests.simulation.pair.spool_world import NO_CLIENT, SpoolChecks, SpoolWorld, process
from tests.simulation.pair.world import PRIMARY_DOWN, QUEUE_DISABLED, SECONDARY_DOWN

PLANTED: Final = {
    "replay_ignores_order": "order",
    "fence_dropped_at_restart": "order",
    "direct_before_secondary_answers": "order",
    "command_forgets_order": "order",
    "last_seen_is_last": "order",
    "passes_spools_of_others": "(P51|order)",
    "passes_what_others_have_parked": "(P51|order)",
    "sends_do_not_join": "P51",
    "replayed_out_of_order": "P51",
}
"""Bugs to plant, and what each must be found by."""
NEIGHBOUR_SHARE: Final = 0.4
NEIGHBOUR_LIVES: Final = 1_000
"""Lives of the second program have numbers from here on."""
NEIGHBOUR_SESSIONS: Final = ("n", "o")
ANSWER_MS: Final = 5_000
SPELL_MS: Final = 14_000
"""How long it takes until messages are parked, then spooled, and both namespaces are back."""


class SpoolingClient(OrderedClient):
    """One life of a client with an order and a spool. It pairs also while the secondary does not answer, and looks for its queues later."""

    def _pair(self) -> None:
        world, state = self.world, self.state
        if not (world.secondary.is_down or world.secondary.is_silent):
            super()._pair()
            return
        self.client._setup.usable_queues = self._queues  # type: ignore[method-assign]
        state.paired_with([])
        if world.bug == "direct_before_secondary_answers":
            state.order._unseen.clear()
            state.order._settle()
        self.client._runtime.spawn(pair_later, self.client)

    async def _queues(self, **_: object) -> list[str]:
        return list(await self.world.ask(self.world.secondary, self.world.backlog.copy, ANSWER_MS))

    def _plant_order(self, bug: str) -> None:
        super()._plant_order(bug)
        if bug == "replay_ignores_order":
            state: Any = self.state
            flow = state.flow

            def careless(*given: Any, has_spool: bool = False, order: Any = None) -> SendFlow:
                found: SendFlow = flow(*given, has_spool=has_spool, order=order if has_spool else None)
                return found

            state.flow = careless
        if bug == "passes_what_others_have_parked":
            book: Any = self.state.order
            book.parked_by_others = lambda entity, now: None


class OrderedSpoolChecks(SpoolChecks):
    """As those of the spool, but sessions have no order between them: a replay puts each into its own backlog queue."""

    def __init__(self, world: OrderedSpoolWorld) -> None:
        super().__init__(world)
        self._keeps = world
        self._keys: dict[int, str | None] = {}

    def begun(self, number: int, path: str, payload: bytes) -> None:
        super().begun(number, path, payload)
        key = self._keys[number] = key_of(payload, self._keeps.keeps)
        self.before[number] = [earlier for earlier in self.before[number] if self._keys[earlier] == key]


class OrderedSpoolWorld(Ordered, SpoolWorld):
    """One program that keeps an order and has a spool, killed and started again."""

    def __init__(self, seed: int, directory: Path, bug: str = "", *, is_plain: bool | None = None) -> None:
        super().__init__(seed, directory, bug)
        self.bug = bug
        self.crashes = self.random.randrange(3)
        self._draw_order(is_plain=is_plain)
        self._dice = Random(f"by-hand-{seed}")
        self.is_by_hand = False
        """Whether the process that runs is the command that replays the spool."""
        self.by_hand = 0
        self._other = Random(f"neighbour-{seed}")
        self.neighbour: SpoolingClient | None = None
        self.neighbours = 0
        self.stays_behind = 0
        """How often a client found messages in a spool of another one."""
        # A disk that stays full keeps what the second program has delivered.
        self._neighbour_share = 0.0 if self.full_at_ms is not None else NEIGHBOUR_SHARE
        if bug:
            self._neighbour_share = 1.0 if bug.startswith("passes_") else 0.0
        self.checks: Any = OrderedSpoolChecks(self)
        self._spells = [
            start
            for start in range(2_000, self.horizon_ms - SPELL_MS, SPELL_MS)
            if bug or self.random.random() < 0.5
        ]
        for start in self._spells:
            if bug or self.random.random() < 0.5:
                # The next process finds messages in the backlog and in the spool, the primary up and the secondary away.
                self.kill_times.append(start + self.random.randrange(6_500, 9_000))
        self.kill_times.sort()

    def _options(self) -> SendAvailabilityOptions:
        options = super()._options()
        return SendAvailabilityOptions(
            failover_interval=options.failover_interval,
            ping_primary_interval=options.ping_primary_interval,
            while_suspect=options.while_suspect,
            spool=options.spool,
            spool_max_bytes=options.spool_max_bytes,
            order=self.keeps,
            fence_timeout=timedelta(seconds=self.random.choice([1, 20, 300])),
        )

    def _start_life(self, messages: int) -> None:
        share = {"": 0.6, "command_forgets_order": 0.7}.get(self.bug, 0.0)
        self.is_by_hand = self.life > 0 and not self.is_by_hand and self._dice.random() < share
        self.by_hand += self.is_by_hand
        if self.life > 0:
            self._change_neighbour(messages)
        super()._start_life(messages)
        spools = self.clients[0].state.spools
        assert spools is not None
        self.stays_behind += bool(spools.ahead)
        if self.neighbour is not None:
            self.clients.append(self.neighbour)

    def _change_neighbour(self, messages: int) -> None:
        """The second program is killed, or started: then it takes the spool of the first one."""
        dice = self._other
        if self.neighbour is not None and dice.random() < 0.5:
            self._end_process(self.neighbour, self._neighbour_life)
            self.neighbour = None
        if self.neighbour is None and dice.random() < self._neighbour_share:
            self.neighbours += 1
            process.set(self._neighbour_life)
            client = self.neighbour = SpoolingClient(self, 1, self.neighbours, self._options())
            self._open_spool(client)
            is_sending = dice.random() < 0.5
            if is_sending:
                path = dice.choice(self.entities)
                client.tasks.append(
                    asyncio.ensure_future(client.send_lists(path, list(NEIGHBOUR_SESSIONS), messages // 8))
                )
            process.set(NO_CLIENT)
            if not is_sending and dice.random() < 0.5:
                life = self._neighbour_life
                self._at(self.now + dice.choice([500, 3_000, 10_000]), partial(self._kill_neighbour, life))

    @property
    def _neighbour_life(self) -> int:
        return NEIGHBOUR_LIVES + self.neighbours

    def _kill_neighbour(self, life: int) -> None:
        """While the first one runs: that one must take what it stays behind, or nobody does."""
        neighbour = self.neighbour
        if neighbour is not None and life == self._neighbour_life and not self._is_calm:
            self._end_process(neighbour, life)
            self.neighbour = None
            if neighbour in self.clients:
                self.clients.remove(neighbour)

    async def _run(self, messages: int) -> None:
        await super()._run(messages)
        if self.neighbours and self.left:
            # A client that was killed with an empty spool, which nobody stays behind, leaves it to the next one.
            client = SpoolingClient(self, 0, self.life + 1, self._options())
            spooling = client.client._spooling
            assert spooling is not None
            spooling.open()
            spooling.close()
            client.client._is_ended = True
            self.left = sorted(entry.name for entry in self.directory.iterdir())

    def _watch_disk(self, client: SimClient) -> None:
        super()._watch_disk(client)
        spools = client.state.spools
        assert spools is not None
        if self.bug == "passes_spools_of_others":
            spools.ahead.clear()

    def _client(self) -> SpoolingClient:
        options = self._options()
        spools = listed(self.directory)[0] if self.is_by_hand else []
        # The command ends at once when another program has all spools open; an idle program is started in its place.
        if any(not one.is_in_use for one in spools):
            options = replay_options(self.directory, spools)
            if self.bug == "command_forgets_order":
                options = replace(options, order="relaxed")
        return SpoolingClient(self, 0, self.life, options)

    def _start_sending(self, messages: int) -> None:
        if self.is_by_hand:
            return
        client: Any = self.clients[0]
        self._start_lists(client, messages if self.look_pages is None else 2 * messages)

    def _both_away(self) -> None:
        super()._both_away()
        for start in self._spells:
            self._at(start, self._fault(PRIMARY_DOWN, 6_000))
            if self.look_pages is None:
                self._at(start + 3_000, self._fault(SECONDARY_DOWN, 7_000))
            else:
                # Sessions move while they are parked, and looks do not see to the end of what they have left.
                self._at(start + 1_000, self._fault(QUEUE_DISABLED, 3_000))
                self._at(start + 5_000, self._fault(SECONDARY_DOWN, 5_000))
