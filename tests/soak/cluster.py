"""Strike a cluster again and again under load, and judge what clients were told.

    python tests/soak/cluster.py --kills 100 --seed 7

Nodes of ``pairbus serve`` over a PostgreSQL with a synchronous standby, behind one address. The owner is killed KILLS times. Between these
kills nodes and database servers are killed, paused or cut off, sometimes two at once. Prints one line for each strike, then a verdict.
A standby is promoted by Patroni where it is installed, and by the soak itself, within half a second, where it is not.
Exit code 0: every promise held; 1: a violation or an error that no strike explains.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

sys.path.insert(0, str(Path(__file__).parents[2]))

from pairbus.testing import Queue
from pairbus.testing.entities import configuration
from tests.conformance.haste import make_haste
from tests.integration.cluster.kit import LEASE_SECONDS, NodeProcess
from tests.soak.cluster_parts import ClusterYard, DatabasePair, Front, Nodes
from tests.soak.kill_history import Event, Operation, Outcome, Verdict, Violation, judge
from tests.soak.kill_load import LOCK_SECONDS, ORDERS, SESSIONS, Actor, Drain, Yard, crew
from tests.soak.patroni import TTL_SECONDS, PatroniPair, is_installed
from tests.soak.ways import can_use_namespaces
from tests.waiting import wait_until

NODES: Final = 3
BACK_SECONDS_MAX: Final = 150.0
STOP_SECONDS_MAX: Final = 180.0
LOCK_SLACK_MS: Final = 1_500
OTHER_SHARE: Final = 0.5
"""How often something else happens between two kills of the owner."""
TWO_SHARE: Final = 0.25
"""How often a kill of the owner comes with another strike in the same second."""
BOTH_EVERY: Final = 10
"""So often the owner and the database's primary are lost in the same second."""
DRAIN_TRIES: Final = 5
MENDERS: Final = 6
Blow: TypeAlias = Callable[[NodeProcess], str]
"""Strikes something, given the node that owns the namespace; returns what was struck."""


class Soak:
    """One run."""

    def __init__(
        self, seed: int, directory: Path, *, uses_namespaces: bool = False, uses_patroni: bool = False
    ) -> None:
        self._chance = random.Random(seed)
        self._directory = directory
        make = PatroniPair if uses_patroni else DatabasePair
        self._database: DatabasePair | PatroniPair = make(NODES, uses_namespaces=uses_namespaces)
        queues = [
            Queue(ORDERS, lock_duration=timedelta(seconds=LOCK_SECONDS)),
            Queue(SESSIONS, requires_session=True, lock_duration=timedelta(seconds=LOCK_SECONDS)),
        ]
        entities = configuration("contoso", queues)
        self._nodes = Nodes(directory, self._database, NODES, entities)
        self._front = Front(self._nodes.all, seed)
        direct = self._nodes.all[0].connection_string
        through = direct.replace(f":{self._nodes.all[0].port}/", f":{self._front.port}/")
        self._yard = ClusterYard(through, "", seed)
        self._violations: list[Violation] = []
        self._silences: dict[str, list[float]] = defaultdict(list)
        self._served: dict[str, list[float]] = defaultdict(list)
        self._numbers = 0
        self._heals: list[Future[None]] = []
        # Threads that last: a server of the kit ends with the thread that started it.
        self._menders = ThreadPoolExecutor(MENDERS)

    # -- strikes: each returns what was struck; what must be mended is mended by a thread

    def _owner(self) -> NodeProcess:
        """The node that serves."""
        found: list[NodeProcess] = []

        def is_served() -> bool:
            found[:] = [node for node in self._nodes.all if node.role == "owner"]
            return bool(found)

        wait_until(is_served, "a node serves", BACK_SECONDS_MAX)
        return found[0]

    def _other(self, owner: NodeProcess) -> NodeProcess:
        return self._chance.choice([node for node in self._nodes.all if node is not owner])

    def kill_owner(self, owner: NodeProcess) -> str:
        owner.kill()
        return f"owner {owner.name} killed"

    def kill_other(self, owner: NodeProcess) -> str:
        node = self._other(owner)
        node.kill()
        return f"{node.name}, which relays, killed"

    def pause_owner(self, owner: NodeProcess) -> str:
        """Longer than the lease: not one byte may come from it afterwards (S4)."""
        node, seconds = owner, LEASE_SECONDS * self._chance.uniform(1.5, 2.5)
        paused_at = time.monotonic()
        node.signal(signal.SIGSTOP)
        self._later(seconds, lambda: self._wake(node, paused_at))
        return f"owner {node.name} paused for {seconds:.1f} s"

    def _wake(self, node: NodeProcess, paused_at: float) -> None:
        epoch_owner = self._database.owner()[1]
        woken_at = time.monotonic()
        if not node.is_running:
            return
        node.signal(signal.SIGCONT)
        if epoch_owner == node.name:
            return  # nobody took the shard meanwhile, for the database was struck too: it may go on
        time.sleep(LEASE_SECONDS)
        count = self._front.sent_after(node, paused_at, woken_at)
        if count:
            self._violations.append(
                Violation("S4", node.name, f"sent on {count} connections after it woke without its lease")
            )

    def pause_briefly(self, owner: NodeProcess) -> str:
        node, seconds = owner, LEASE_SECONDS * self._chance.uniform(0.2, 0.8)
        node.signal(signal.SIGSTOP)
        self._later(seconds, lambda: _go_on(node))
        return f"owner {node.name} paused for {seconds:.1f} s, less than its lease"

    def pause_other(self, owner: NodeProcess) -> str:
        node, seconds = self._other(owner), self._chance.uniform(1, 5)
        node.signal(signal.SIGSTOP)
        self._later(seconds, lambda: _go_on(node))
        return f"{node.name}, which relays, paused for {seconds:.1f} s"

    def cut_owner(self, owner: NodeProcess) -> str:
        return self._cut(owner)

    def cut_other(self, owner: NodeProcess) -> str:
        return self._cut(self._other(owner))

    def _cut(self, node: NodeProcess) -> str:
        ways = self._database.ways[self._nodes.all.index(node)]
        seconds = LEASE_SECONDS * self._chance.uniform(0.5, 2.5)
        ways.cut()
        self._later(seconds, ways.mend)
        return f"{node.name} cut off from the database for {seconds:.1f} s"

    def kill_primary(self, _owner: NodeProcess) -> str:
        former = self._database.primary
        former.kill()
        self._database.fail_over(former)
        self._later(0, self._database.add_standby)
        return "database primary killed, standby promoted"

    def strand_primary(self, _owner: NodeProcess) -> str:
        """The primary stands still, its standby is promoted, then it goes on for a while without knowing."""
        former = self._database.primary
        former.pause()
        self._database.fail_over(former)
        former.resume()

        def end() -> None:
            former.dispose()
            self._database.add_standby()

        self._later(2.0, end)
        return "database primary replaced while it stood still, and goes on for 2 s without knowing"

    def restart_primary(self, _owner: NodeProcess) -> str:
        self._database.restart_primary()
        return "database primary killed and started again"

    def pause_primary(self, _owner: NodeProcess) -> str:
        server, seconds = self._database.primary, self._chance.uniform(1, 5)
        server.pause()
        self._later(seconds, server.resume)
        return f"database primary paused for {seconds:.1f} s"

    def kill_standby(self, _owner: NodeProcess) -> str:
        server, seconds = self._database.standby, self._chance.uniform(0.5, 4)
        assert server is not None, "strikes begin with a standby"
        server.kill()
        self._later(seconds, server.start)
        return f"database standby killed, back after {seconds:.1f} s"

    def pause_standby(self, _owner: NodeProcess) -> str:
        server, seconds = self._database.standby, self._chance.uniform(0.5, 4)
        assert server is not None, "strikes begin with a standby"
        server.pause()
        self._later(seconds, server.resume)
        return f"database standby paused for {seconds:.1f} s"

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        def run() -> None:
            time.sleep(seconds)
            try:
                action()
            except Exception as error:  # noqa: BLE001 - told in the verdict
                self._violations.append(Violation("soak", "", f"could not be mended: {error!r}"))
                print(f"could not be mended: {error!r}", flush=True)

        self._heals.append(self._menders.submit(run))

    # -- one strike, and until everything is as before

    def strike(self, *blows: Blow) -> None:
        """Strike, wait until a send is acknowledged, then until all is mended. Prints one line."""
        self._numbers += 1
        struck = self._owner()
        began, wall, index = time.monotonic(), time.time(), self._yard.history.now()
        self._yard.history.add(Operation.KILL, index, actor="strike")
        told = " and ".join(blow(struck) for blow in blows)
        print(f"{self._numbers:4} {told}: ", end="", flush=True)
        silence = self._await_send(began)
        kind = (
            re.sub(r"node-\d+", "node", re.split(" for |, back after", told)[0])
            if len(blows) == 1
            else "two at once"
        )
        self._silences[kind].append(silence)
        heals, self._heals = self._heals, []
        for heal in heals:
            heal.result(BACK_SECONDS_MAX)
        owner = self._owner()
        self._database.wait_streaming()
        self._yard.history.add(Operation.KILL, self._yard.history.now(), actor="strike")
        epoch, _ = self._database.owner()
        self._note_served(kind, wall)
        print(f"silence {silence:.1f} s, then {owner.name} serves epoch {epoch}", flush=True)

    def _note_served(self, kind: str, wall: float) -> None:
        """How soon a node served the namespace again, by its own log: a client's silence also contains its way back."""
        times = [
            datetime.fromisoformat(entry["time"]).timestamp()
            for node in self._nodes.all
            for entry in node.events()
            if entry.get("event") == "cluster.serving"
        ]
        after = [at - wall for at in times if at >= wall]
        if after:
            self._served[kind].append(min(after))

    def _await_send(self, began: float) -> float:
        """Seconds until a send that began after the strike is acknowledged; what was under way counts only if it ends later."""
        mark = len(self._yard.history.events)
        wall_ms = int(time.time() * 1000 - (time.monotonic() - began) * 1000)

        def heard() -> Event | None:
            events = self._yard.history.events
            for event in events[mark:]:
                if (
                    event.operation is Operation.SEND
                    and event.outcome is Outcome.OK
                    and event.at_ms > wall_ms + 300
                ):
                    return event
            return None

        wait_until(heard, "a send is acknowledged again", BACK_SECONDS_MAX)
        event = heard()
        assert event is not None, "it has just been heard"
        return (event.at_ms - wall_ms) / 1000

    # -- the run

    def plan(self, kills: int) -> Iterator[tuple[Blow, ...]]:
        """The owner is killed so many times, sometimes together with something else, and other strikes come between."""
        others = (
            self.kill_other, self.pause_owner, self.pause_briefly, self.pause_other, self.cut_owner, self.cut_other,
            self.kill_primary, self.strand_primary, self.restart_primary, self.pause_primary, self.kill_standby,
            self.pause_standby,
        )  # fmt: skip
        beside = (
            self.kill_other, self.cut_other, self.kill_primary, self.restart_primary, self.pause_primary, self.kill_standby,
        )  # fmt: skip
        chance = self._chance
        for number in range(kills):
            if number % BOTH_EVERY == BOTH_EVERY - 1:
                yield self.kill_owner, self.kill_primary
            else:
                yield (
                    (self.kill_owner, chance.choice(beside))
                    if chance.random() < TWO_SHARE
                    else (self.kill_owner,)
                )
            if chance.random() < OTHER_SHARE:
                yield (chance.choice(others),)

    def run(
        self, strikes: Iterable[tuple[Blow, ...]], employ: Callable[[Yard], list[Actor]] = crew
    ) -> Verdict:
        """Strike, drain, judge. ``employ``: who works meanwhile."""
        make_haste()
        # The client tells of every connection that dies under it; here that is all of them.
        logging.getLogger("azure").setLevel(logging.CRITICAL)
        actors = employ(self._yard)
        self._yard.is_up.set()
        try:
            for actor in actors:
                actor.start()
            self._await_send(time.monotonic())
            for blows in strikes:
                self.strike(*blows)
                self._yard.is_over.wait(self._chance.uniform(0, 1))
            self._yard.is_over.set()
            for actor in actors:
                actor.join(STOP_SECONDS_MAX)
            self._drain()
        finally:
            self._yard.is_over.set()
            self._nodes.end()
            self._database.dispose()
        events = self._yard.history.events
        verdict = judge(events)
        strange = [Violation("client", "", text) for text in self._yard.unexpected]
        strange += [Violation("client", actor.name, "did not stop") for actor in actors if actor.is_alive()]
        strange += [Violation("exit", name, f"ended with {how}") for name, how in self._nodes.exits]
        strange += self._complaints()
        counts = {**verdict.counts, "kills": self._numbers, "nodes fenced": self._nodes.fenced}
        counts["starts without a database"] = self._nodes.unreached
        return Verdict(verdict.violations + judge_hands(events) + self._violations + strange, counts)

    def _drain(self) -> None:
        """One more kill frees every lock, so that the drain need not wait them out (B17)."""
        self.strike_quietly()
        for number in range(DRAIN_TRIES):
            try:
                Drain(self._yard).everything()
            except Exception:
                if number == DRAIN_TRIES - 1:
                    raise
                time.sleep(1)
            else:
                return

    def strike_quietly(self) -> None:
        self._yard.history.add(Operation.KILL, self._yard.history.now(), actor="strike")
        self.kill_owner(self._owner())
        time.sleep(LEASE_SECONDS / 2)
        self._owner()

    def _complaints(self) -> list[Violation]:
        """What nodes logged and no strike explains."""
        found = []
        for node in self._nodes.all:
            for entry in node.events():
                text = str(entry)
                if "damaged" in text or "Traceback" in text:
                    found.append(Violation("log", node.name, text[:600]))
        return found

    def silences(self) -> str:
        """How long senders heard nothing, for each kind of strike."""
        lines = [
            f"{kind:>60}: {len(all_of)} times, median {statistics.median(all_of):.1f} s, longest {max(all_of):.1f} s"
            for kind, all_of in sorted(self._silences.items())
        ]
        lines += [
            f"{kind}, until a node served: median {statistics.median(all_of):.2f} s, longest {max(all_of):.2f} s"
            for kind, all_of in sorted(self._served.items())
        ]
        return "\n".join(lines)


def _go_on(node: NodeProcess) -> None:
    if node.is_running:
        node.signal(signal.SIGCONT)


def judge_hands(events: list[Event]) -> list[Violation]:
    """B25: while nothing was struck and no client ended, a message that one receiver has and has not settled comes to no other.

    Not of sessions: there a receiver gives up what it has with the session.
    """
    found = []
    interruptions = [event.index for event in events if event.operation is Operation.KILL]
    by_uid: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.uid and event.entity != SESSIONS and event.operation is not Operation.SEND:
            by_uid[event.entity, event.uid].append(event)
    for (_, uid), mine in by_uid.items():
        deliveries = [event for event in mine if event.operation is Operation.DELIVERY]
        for held, event in pairwise(sorted(deliveries, key=lambda one: one.index)):
            # A settlement may take effect as soon as it was asked for.
            is_settled = any(
                one.operation is not Operation.DELIVERY
                and one.actor == held.actor
                and held.index <= one.began <= event.index
                for one in mine
            )
            is_interrupted = any(held.began <= index <= event.index for index in interruptions)
            has_ended = event.at_ms - held.at_ms > LOCK_SECONDS * 1000 - LOCK_SLACK_MS
            if held.actor != event.actor and not is_settled and not is_interrupted and not has_ended:
                found.append(Violation("B25", uid, f"{event.actor} got it while {held.actor} held it"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--promotion",
        choices=("patroni", "built-in", "auto"),
        default="auto",
        help="who promotes a standby: Patroni with etcd, or the soak itself; auto: Patroni if it is installed",
    )
    options = parser.parse_args()
    start = time.monotonic()
    uses_namespaces = can_use_namespaces()
    uses_patroni = options.promotion == "patroni" or (options.promotion == "auto" and is_installed())
    if uses_patroni and not is_installed():
        parser.error(
            "--promotion patroni needs the programs patroni and etcd (Debian: apt install patroni etcd-server python3-etcd)"
        )
    print(f"seed {options.seed}", flush=True)
    print(
        "nodes are cut off in network namespaces"
        if uses_namespaces
        else "NOT in network namespaces, which need root: nodes are cut off by ways that pass nothing on",
        flush=True,
    )
    print(
        f"Patroni promotes standbys, after up to {TTL_SECONDS} s"
        if uses_patroni
        else "NOT with Patroni and etcd, which are not used or not installed: the soak promotes standbys itself, at once",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="pairbus-soak-cluster-") as directory:
        soak = Soak(options.seed, Path(directory), uses_namespaces=uses_namespaces, uses_patroni=uses_patroni)
        verdict = soak.run(soak.plan(options.kills))
    print(soak.silences())
    print(verdict.summary())
    print(f"seed {options.seed}, {time.monotonic() - start:.0f} s")
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
