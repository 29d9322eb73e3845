"""Who sends in a simulated world, and what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.amqp.encode import encode_binary, encode_described
from pairbus.amqp.message.layout import DATA
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE
from pairbus.amqp.types import Symbol, Timestamp, UInt
from tests.simulation.broker.checkers import FAILED, OK, UNKNOWN, PromiseBroken, Sent
from tests.simulation.broker.clients import Client
from tests.simulation.wire import BATCH_FORMAT, ClientSender

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.broker.scene import Scene
    from tests.simulation.wire import ClientSession


class Producer(Client):
    """Sends its messages, one by one or in batches, and remembers what it was told.

    Args:
        make: Gives the fields of a message by its number.
        refused: Whether the broker must refuse such a message.
    """

    def __init__(self, world: Scene, name: str, workload: Workload, count: int) -> None:
        super().__init__(world, name)
        self._workload = workload
        self._left = count
        self._again: list[str] = []
        self._sender: ClientSender | None = None
        self._waiting: dict[int, list[str]] = {}
        self._payloads: dict[str, bytes] = {}

    @property
    def is_finished(self) -> bool:
        """All sent, and every answer has come."""
        return not self._left and not self._again and not self._waiting

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        self._sender = session.sender(self._workload.entity)
        self.later(self.world.chance.randrange(400), self._send)

    def _send(self) -> None:
        sender, chance = self._sender, self.world.chance
        if sender is None or self.is_finished:
            return
        if self.check_link() and sender.is_attached:
            if self._again:
                self._transfer(sender, [self._again.pop()], 0)
            elif self._left:
                size = min(self._left, chance.choice((1, 1, 1, 2, 4)))
                self._left -= size
                batch = self.world.next_emission() if size > 1 else 0
                uids = [self._new(batch) for _ in range(size)]
                self._transfer(sender, uids, batch)
        self.later(chance.choice((1, 20, 150, 900)), self._send)

    def check_link(self) -> bool:
        """Whether the link serves. Nobody here gives the broker a reason to end it."""
        if self._sender is not None and self._sender.detached:
            raise PromiseBroken(f"{self.name}: the broker detached a sender: {self._sender.error}")
        return True

    def _new(self, batch: int) -> str:
        number = len(self.world.ledger.sent)
        uid = f"uid-{self._workload.entity}-{number}"
        sent, payload = self._workload.message(self.world, uid, number, batch)
        self.world.ledger.sent[uid] = sent
        self._payloads[uid] = payload
        return uid

    def _transfer(self, sender: ClientSender, uids: list[str], batch: int) -> None:
        payloads = [self._payloads[uid] for uid in uids]
        if batch:
            payload = b"".join(encode_described(DATA, encode_binary(one)) for one in payloads)
            delivery_id = sender.send(payload, message_format=BATCH_FORMAT)
        else:
            delivery_id = sender.send(payloads[0])
        self._waiting[delivery_id] = uids
        self.world.say(self.name, f"sends {' '.join(uids)}")

    def react(self) -> None:
        """See Client."""
        sender = self._sender
        if sender is None:
            return
        for delivery_id in [one for one in self._waiting if one in sender.outcomes]:
            outcome = OK if sender.outcomes.pop(delivery_id).code == ACCEPTED_CODE else FAILED
            uids = self._waiting.pop(delivery_id)
            self.world.say(self.name, f"is told {outcome} for {' '.join(uids)}")
            for uid in uids:
                self.check_answer(uid, outcome)
                self.world.ledger.told(uid, outcome, self.world.time)

    def check_answer(self, uid: str, outcome: str) -> None:
        """A refusal must have a reason."""
        if outcome == FAILED and not self._workload.may_be_refused(self.world.ledger.sent[uid]):
            raise PromiseBroken(f"{uid} was refused for no reason")

    def forget(self) -> None:
        """See Client."""
        self._sender = None
        waiting, self._waiting = self._waiting, {}
        for uids in waiting.values():
            for uid in uids:
                self.world.ledger.told(uid, UNKNOWN, self.world.time)
                if self._workload.retries:
                    self._again.append(uid)
        if waiting:
            self.world.say(self.name, f"never learns of {sum(map(len, waiting.values()))} sends")


class Workload:
    """What is sent to one entity, and where it must turn up."""

    def __init__(
        self,
        entity: str,
        *,
        sessions: int = 0,
        ttl_ms: tuple[int, ...] = (0,),
        schedules: float = 0.0,
        retries: bool = False,
        refusals: float = 0.0,
        destinations: Callable[[int], tuple[str, ...]] | None = None,
    ) -> None:
        self.entity = entity
        self.retries = retries
        """Whether a send without an answer is tried again: only where duplicates are detected."""
        self._sessions = sessions
        self._ttl_ms = ttl_ms
        self._schedules = schedules
        self._refusals = refusals
        self._destinations = destinations

    def message(self, world: Scene, uid: str, number: int, batch: int) -> tuple[Sent, bytes]:
        """Draw one message."""
        chance = world.chance
        body = f"{uid}:{'x' * chance.choice((0, 30, 400))}:"
        ttl_ms = chance.choice(self._ttl_ms)
        scheduled_at = 0
        annotations: dict[str, object] | None = None
        if chance.random() < self._schedules and (life := world.current()) is not None:
            scheduled_at = life.wall() + chance.choice((200, 3_000, 15_000))
            annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(scheduled_at)}
        if not batch and chance.random() < self._refusals:
            body += "y" * 3_000  # more than the entity takes
        kind = number % 4
        destinations = (self.entity,) if self._destinations is None else self._destinations(kind)
        payload = encode_message(
            message_id=uid,
            group_id=f"session-{chance.randrange(self._sessions)}" if self._sessions else None,
            header=[None, None, UInt(ttl_ms)] if ttl_ms else None,
            message_annotations=annotations,
            application_properties={"n": kind},
            body=body,
        )
        return Sent(uid, self.entity, body, destinations, scheduled_at, ttl_ms, batch, world.time), payload

    def may_be_refused(self, sent: Sent) -> bool:
        """Whether a refusal is what the entity's settings ask for."""
        return self._refusals > 0 and len(sent.body) > 2_000
