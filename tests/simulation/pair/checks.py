"""What the world of pairs holds the production code to; each check names its promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.rules.trigger import counts
from pairbus.sdk.failures import IN_DOUBT, classify
from pairbus.sdk.messages import sections
from tests.payloads import message_id_of

if TYPE_CHECKING:
    from pairbus.drain.rules.message import BacklogMessage
    from pairbus.pairing.client.state import PairingState
    from tests.simulation.pair.world import World

Key = tuple[str, str]


class Checks:
    """A ledger of what was seen and told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: dict[int, tuple[str, bytes]] = {}
        self.outcome: dict[int, str] = {}
        self.broken: list[str] = []
        self.changes = 0
        self.pings = 0
        self.parked = 0
        self.aside: dict[str, str] = {}
        self._doubts: Counter[str] = Counter()
        self._parked_doubts: Counter[str] = Counter()
        self._first_failure: dict[Key, int] = {}
        self._failure: dict[Key, int] = {}
        """The last failure that counts."""
        self._healthy_since: dict[Key, int] = {}
        self._ping_at: dict[Key, int] = {}
        self._pings_in_flight: Counter[Key] = Counter()
        self._proof: dict[Key, int] = {}
        self._state: dict[Key, Health] = {}
        self._refused: dict[Key, int] = {}
        self._trials: dict[str, int] = {}
        self._secondary_back: dict[str, int] = {}
        """When a backlog queue last accepted a message while all of a client had refused."""
        self._returned: dict[Key, int] = {}
        """When a queue that had refused accepted again."""
        self._acknowledged: set[tuple[str, int] | tuple[str, int, int] | None] = set()

    def _require(self, claim: object, text: str) -> None:
        # Noted, not raised: the code under test catches every error of a send.
        if not claim:
            self.broken.append(f"seed {self._world.seed}: {text} (at {self._world.now} ms)")

    # --- sends ------------------------------------------------------------------------------------

    def begun(self, number: int, path: str, payload: bytes) -> None:
        """A send begins."""
        self.sent[number] = (path, payload)

    def returned(self, number: int, outcome: str) -> None:
        """A send returned or raised: ok, fail or unknown."""
        self.outcome[number] = outcome

    def pending(self) -> int:
        """Sends that nobody has answered yet."""
        return len(self.sent) - len(self.outcome)

    def to_primary(self, factory: str, record: EntityHealth, now: int) -> None:
        """Data is about to go to the primary."""
        key = (factory, record.path)
        self._require(
            record.state is not Health.FAILED_OVER, f"P21: data went to {record.path} while failed over"
        )
        first = self._first_failure.get(key)
        overdue = first is not None and now - first > record.failover_interval_ms + 1
        self._require(
            not overdue or record.state in (Health.HEALTHY, Health.REFUSING),
            f"P18: {record.path} should have failed over {now - (first or 0) - record.failover_interval_ms} ms ago",
        )

    def primary_failed(
        self,
        factory: str,
        record: EntityHealth,
        number: int,
        error: BaseException,
        begun: int,
        now: int,
    ) -> None:
        """The primary said no, or nothing since ``begun``."""
        key = (factory, record.path)
        is_silent = classify(error) in IN_DOUBT
        if is_silent:
            self._doubts[f"m{number}"] += 1
        is_outdated = is_silent and begun < self._healthy_since.get(key, 0)
        if counts(error, "documented", has_accepted=record.has_accepted) and not is_outdated:
            self._first_failure.setdefault(key, now)
            self._failure[key] = now

    def primary_accepted(self, factory: str, record: EntityHealth, now: int) -> None:
        """The primary said yes: proof of health."""
        self._first_failure.pop((factory, record.path), None)
        self._proof[factory, record.path] = now

    def to_backlog(self, factory: str, queue: str, now: int, shared: PairingState) -> None:
        """A parked message is about to go to a backlog queue."""
        self.parked += 1
        refused = self._refused.get((factory, queue))
        if refused is None:
            return
        # A send may have decided a moment ago, when no queue was usable: one that has just come back does not count.
        others = [
            name
            for name in shared.queues
            if (factory, name) not in self._refused and self._returned.get((factory, name)) != now
        ]
        is_trial = now - refused >= shared.ping_interval_ms
        self._require(
            is_trial or not others, f"P32: {queue} refused {now - refused} ms ago and was used again"
        )
        if others:
            since = now - self._trials.get(factory, -shared.ping_interval_ms)
            self._require(
                since >= shared.ping_interval_ms, f"P32: {queue} was tried {since} ms after another trial"
            )
            self._trials[factory] = now

    def queue_refused(self, factory: str, queue: str, now: int) -> None:
        """A backlog queue is out of the rotation, or was tried and stays out."""
        self._refused[factory, queue] = now

    def backlog_failed(self, number: int, error: BaseException) -> None:
        """A backlog queue refused a message, or did not answer."""
        if classify(error) in IN_DOUBT:
            self._parked_doubts[f"m{number}"] += 1

    def backlog_accepted(self, factory: str, queue: str, now: int, shared: PairingState) -> None:
        """A backlog queue said yes. If all had refused, the secondary was away, and the others may come back with it."""
        if all((factory, name) in self._refused for name in shared.queues):
            self._secondary_back[factory] = now
        if self._refused.pop((factory, queue), None) is not None:
            self._returned[factory, queue] = now

    def queue_back(self, factory: str, queue: str, now: int) -> None:
        """A backlog queue is in the rotation again."""
        refused = self._refused.pop((factory, queue), None)
        self._require(
            refused is None or self._secondary_back.get(factory) == now,
            f"P32: {queue} is used again, and has accepted nothing since it refused",
        )

    # --- health -----------------------------------------------------------------------------------

    def changed(self, factory: str, record: EntityHealth, now: int) -> None:
        """An entity's state changed."""
        key = (factory, record.path)
        self.changes += 1
        if record.state is Health.FAILED_OVER:
            first = self._first_failure.get(key)
            # The failure that is being reported right now is the first one when the interval is zero.
            since = now - first if first is not None else 0
            self._require(
                since >= record.failover_interval_ms, f"P17: {record.path} failed over after {since} ms"
            )
        if record.state is Health.HEALTHY:
            self._require(
                self._proof.get(key) == now, f"P25: {record.path} became healthy without a good ping or send"
            )
            self._first_failure.pop(key, None)
            self._healthy_since[key] = now
        if record.state is Health.SUSPECT:
            self._require(
                self._failure.get(key) == now,
                f"P17: {record.path} became suspect by an attempt from before the proof of its health",
            )

    def ping_sent(self, factory: str, record: EntityHealth, now: int) -> None:
        """A ping leaves."""
        key = (factory, record.path)
        self.pings += 1
        last = self._ping_at.get(key)
        self._require(
            last is None or now - last >= record.pings.interval_ms, "P22: pings closer than the interval"
        )
        self._pings_in_flight[key] += 1
        self._require(self._pings_in_flight[key] == 1, "P22: two pings in flight")
        self._require(
            record.state in (Health.FAILED_OVER, Health.REFUSING), f"P22: a ping while {record.state}"
        )
        self._ping_at[key] = now

    def ping_answered(
        self, factory: str, record: EntityHealth, error: BaseException | None, now: int
    ) -> None:
        """A ping was answered or given up."""
        self._pings_in_flight[factory, record.path] -= 1
        if error is None:
            self._proof[factory, record.path] = now

    # --- drains -----------------------------------------------------------------------------------

    def acknowledged(self, message: BacklogMessage) -> None:
        """The primary took a restored message."""
        self._acknowledged |= {(message.queue, message.sequence_number), message.detour}

    def completing(self, message: BacklogMessage) -> None:
        """A backlog message is about to be completed."""
        # It, or another copy of the same parked message.
        self._require(
            not self._acknowledged.isdisjoint({(message.queue, message.sequence_number), message.detour}),
            f"P34: {message.message_id} is completed before the primary has it",
        )

    def dead_letter(self, message: BacklogMessage, reason: str) -> None:
        """A backlog message was set aside."""
        self._require(reason == "DestinationNotFound", f"P38: {message.message_id} set aside as {reason}")
        self.aside[message.message_id] = reason

    def in_doubt_resend(self, message_id: str) -> None:
        """A re-send may have to be repeated."""
        self._doubts[message_id] += 1

    def crashed(self, messages: Iterable[BacklogMessage]) -> None:
        """A syphon was killed: each message that it had in flight or sent may come once more (P36)."""
        for message in messages:
            self._doubts[message.message_id] += 1

    # --- the end ----------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """After the calm: nothing accepted is lost, nothing comes too often, everything is as it was sent."""
        homes: dict[str, list[tuple[str, bytes]]] = {}
        for queue in self._world.primary.queues.values():
            for payload in queue.history:
                homes.setdefault(message_id_of(payload), []).append((queue.name, payload))
        dead = {
            message_id_of(stored.payload)
            for queue in self._world.secondary.queues.values()
            for stored, _ in queue.dead
        }
        for number, (path, payload) in self.sent.items():
            name = f"m{number}"
            copies = homes.get(name, [])
            outcome = self.outcome[number]
            if outcome == "ok":
                self._require(copies or name in dead, f"P1: {name} was accepted and is nowhere")
            if outcome == "fail":
                self._require(not copies and name not in dead, f"P5: {name} was refused and is there")
            for where, found in copies:
                self._require(where == path, f"P12: {name} for {path} is in {where}")
                self._require(_same(found, payload), f"P8: {name} is not as it was sent")
            if self._world.primary.queues[path].detects_duplicates:
                self._require(len(copies) <= 1, f"P2: {name} is stored {len(copies)} times")
            most = 1 + self._doubts[name]
            if not self._world.one_drain_sees_all:
                most += self._parked_doubts[name]
            self._require(
                len(copies) <= most, f"P36: {name} has {len(copies)} copies, at most {most} are explained"
            )

    def digest(self) -> tuple[object, ...]:
        """What must be the same for the same seed."""
        return (self._world.now, tuple(sorted(self.outcome.items())), self.changes, self.pings, self.parked)


def _same(found: bytes, sent: bytes) -> bool:
    return sections.join(sections.split(found)) == sent
