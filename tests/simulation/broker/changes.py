"""Who changes settings while others work: an administrator with the management API, and clients of the entity it changes.

Rule 1: what was acknowledged is in force, over any crash; what had no answer may be (B16).
Rule 2: only an entity that may be disabled refuses, and one that certainly is disabled accepts nothing.
Rule 3: the key that was replaced opens nothing any more, the new one does (M5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.gateway.http import HttpRequest
from pairbus.model.access import ROOT_RULE
from pairbus.model.entity import ACTIVE_STATUS, DISABLED, RECEIVE_DISABLED, SEND_DISABLED
from pairbus.sdk.credentials import sas_token
from tests.simulation.broker.checkers import FAILED, OK, PromiseBroken
from tests.simulation.broker.consumers import Consumer
from tests.simulation.broker.producers import Producer
from tests.simulation.broker.scene import ROOT_KEY, START

if TYPE_CHECKING:
    from pairbus.engine.namespace import Namespace
    from pairbus.gateway.http import HttpResponse
    from tests.simulation.broker.checkers import Sent
    from tests.simulation.broker.scene import Scene
    from tests.simulation.wire import ClientSession

FICKLE: Final = "fickle"
RESOURCE: Final = f"sb://world/{FICKLE}"
DESK_RULE: Final = "desk"
PATIENCE_MS: Final = 6_000
"""After this long without an answer the administrator takes it that none will come."""
FAR_S: Final = START // 1000 + 10_000_000
_STATUSES: Final = (ACTIVE_STATUS, ACTIVE_STATUS, SEND_DISABLED, RECEIVE_DISABLED, DISABLED)
_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    "<LockDuration>PT{lock}S</LockDuration><MaxDeliveryCount>{deliveries}</MaxDeliveryCount><AuthorizationRules>"
    '<AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType>'
    "<ClaimValue>None</ClaimValue><Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights>"
    "<AccessRights>Listen</AccessRights></Rights><KeyName>desk</KeyName><PrimaryKey>{key}</PrimaryKey>"
    "<SecondaryKey>{key}</SecondaryKey></AuthorizationRule></AuthorizationRules><Status>{status}</Status>"
    "<UserMetadata>{mark}</UserMetadata></QueueDescription></content></entry>"
)


class Change:
    """One set of settings that was asked for."""

    def __init__(
        self, mark: str, status: str, lock_seconds: int, deliveries: int, key: str, asked_at: int
    ) -> None:
        self.mark = mark
        self.status = status
        self.lock_seconds = lock_seconds
        self.deliveries = deliveries
        self.key = key
        self.asked_at = asked_at
        self.over_at = -1
        """When another one was acknowledged in its stead; -1: it may still be in force."""

    @property
    def takes_sends(self) -> bool:
        """Whether messages may come in."""
        return self.status in (ACTIVE_STATUS, RECEIVE_DISABLED)

    def body(self) -> bytes:
        """The request that asks for it."""
        return _ENTRY.format(
            lock=self.lock_seconds,
            deliveries=self.deliveries,
            key=self.key,
            status=self.status,
            mark=self.mark,
        ).encode()


class Caller:
    """One request of the administrator's and the answer that may come. See ``committer.Speaker``."""

    def __init__(self, administrator: Administrator, life: int) -> None:
        self.administrator = administrator
        self.life = life
        self.is_over = False

    def write(self, chunks: list[bytes], closes: bool) -> None:
        """See Speaker."""
        world = self.administrator.world
        world.at(world.time + world.delay(), self._hear, int(chunks[0]))

    def _hear(self, status: int) -> None:
        if not self.is_over:
            self.is_over = True
            self.administrator.answered(status)


class Administrator:
    """Changes the settings of one entity, one request after the other."""

    def __init__(self, world: Scene) -> None:
        self.world = world
        self.changes = [Change("", ACTIVE_STATUS, 5, 50, "", 0)]
        """All that were ever asked for, in order."""
        self.in_force: list[Change] = list(self.changes)
        """Those of which one is in force."""
        self._asked: Caller | None = None
        self._count = 0
        self.is_finished = False
        world.ledger.lost_locks = self.may_have_lost_locks
        world.at(world.chance.randrange(1_500), self._act)

    # -- what others ask

    def may_refuse(self, sent: Sent) -> bool:
        """Whether the entity may have been disabled at some moment between a send and its answer."""
        return any(not change.takes_sends for change in self._between(sent.sent_at, self.world.time))

    def must_refuse(self, sent: Sent) -> bool:
        """Whether it certainly was all that time."""
        return not any(change.takes_sends for change in self._between(sent.sent_at, self.world.time))

    def _between(self, begin: int, end: int) -> list[Change]:
        return [
            change
            for change in self.changes
            if change.asked_at <= end and (change.over_at < 0 or change.over_at >= begin)
        ]

    def may_have_lost_locks(self, path: str, begin: int, end: int) -> bool:
        """Whether a change may have ended the locks of an entity at some moment between two."""
        if path != FICKLE:
            return False
        return any(
            change.asked_at <= end and (change in self.in_force or change.over_at >= begin)
            for change in self.changes[1:]
        )

    def check(self, namespace: Namespace) -> None:
        """A new life has begun: what was acknowledged is in force (B16). From now on what it shows is certain."""
        entity = namespace.find(FICKLE)
        if entity is None:
            raise PromiseBroken(f"B16: {FICKLE} is gone")
        settings = entity.settings
        found = (
            settings.user_metadata or "",
            settings.status,
            settings.lock_duration_ms // 1000,
            settings.max_delivery_count,
            "".join(rule.primary_key for rule in settings.access_rules),
        )
        allowed = [(c.mark, c.status, c.lock_seconds, c.deliveries, c.key) for c in self.in_force]
        if found not in allowed:
            raise PromiseBroken(f"B16: {FICKLE} has the settings {found}, allowed are {allowed}")
        self._settle_on(self.in_force[allowed.index(found)])

    # -- what it does

    def _act(self) -> None:
        world = self.world
        if self._asked is not None or self.is_finished:
            return
        process = world.current()
        if process is None:
            world.at(world.time + 500, self._act)
            return
        self._count += 1
        chance = world.chance
        change = Change(
            f"change-{self._count}",
            ACTIVE_STATUS if world.is_calm else chance.choice(_STATUSES),
            chance.choice((5, 6, 9)),
            chance.choice((40, 50, 60)),
            f"a2V5{self._count:04}",
            world.time,
        )
        self.changes.append(change)
        self.in_force.append(change)
        self._asked = Caller(self, process.life)
        world.say("administrator", f"asks for {change.mark}: {change.status}, {change.lock_seconds} s")
        token = sas_token(RESOURCE, ROOT_RULE, ROOT_KEY, FAR_S)
        headers = {"authorization": token, "host": "world", "if-match": "*"}
        request = HttpRequest(
            "PUT", f"/{FICKLE}?api-version=2021-05", headers, change.body(), "peer:1", secure=True
        )
        world.at(world.time + world.delay(), self._deliver, request, self._asked)
        world.at(world.time + PATIENCE_MS, self._give_up, self._asked)

    def _deliver(self, request: HttpRequest, caller: Caller) -> None:
        process = self.world.current()
        if process is not None and process.life == caller.life and not caller.is_over:
            process.request(request, caller)

    def answered(self, status: int) -> None:
        """An answer came."""
        self._asked = None
        change = self.in_force[-1]
        self.world.say("administrator", f"is told {status} for {change.mark}")
        if status != 200:
            raise PromiseBroken(f"{change.mark} was refused with {status}")
        self._settle_on(change)
        self._try_keys()
        self._next()

    def _give_up(self, caller: Caller) -> None:
        if not caller.is_over:
            caller.is_over = True
            self._asked = None
            self.world.say("administrator", "never learns")
            self._next()

    def _next(self) -> None:
        if self.world.is_calm and len(self.in_force) == 1 and self.in_force[0].status == ACTIVE_STATUS:
            self.is_finished = True
        else:
            self.world.at(self.world.time + self.world.chance.choice((50, 1_000, 5_000)), self._act)

    def calm_down(self) -> None:
        """From now on it only sets things right."""
        self.world.at(self.world.time, self._act)

    def _settle_on(self, change: Change) -> None:
        for other in self.in_force:
            if other is not change:
                other.over_at = self.world.time
        self.in_force = [change]

    def _try_keys(self) -> None:
        """The new key opens, those before it do not (M5)."""
        process = self.world.current()
        if process is None:
            return
        for change in self.changes[1:]:
            if change.asked_at == self.world.time:
                continue
            token = sas_token(RESOURCE, DESK_RULE, change.key, FAR_S)
            request = HttpRequest(
                "GET",
                f"/{FICKLE}?api-version=2021-05",
                {"authorization": token, "host": "world"},
                b"",
                "peer:1",
                secure=True,
            )
            answer: HttpResponse = process.broker.http(request, process.clock())
            expected = 200 if change is self.in_force[0] else 401
            if answer.status != expected:
                raise PromiseBroken(f"M5: the key of {change.mark} is answered with {answer.status}")


class PatientProducer(Producer):
    """Sends to an entity that may refuse, and holds it to why it does."""

    administrator: Administrator

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        self._session = session
        super().attach(session)

    def check_link(self) -> bool:
        """See Producer: a link that was refused is asked for again."""
        sender = self._sender
        if sender is not None and sender.detached:
            self._sender = self._session.sender(self._workload.entity)
            return False
        return True

    def check_answer(self, uid: str, outcome: str) -> None:
        """See Producer."""
        sent = self.world.ledger.sent[uid]
        if outcome == FAILED and not self.administrator.may_refuse(sent):
            raise PromiseBroken(f"{uid} was refused though {FICKLE} took sends all the time")
        if outcome == OK and self.administrator.must_refuse(sent):
            raise PromiseBroken(f"B16: {uid} was accepted though {FICKLE} was disabled all the time")


class PatientConsumer(Consumer):
    """Receives from an entity that may send it away, and comes back."""

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        super().attach(session)
        self._session = session

    def react(self) -> None:
        """See Client."""
        super().react()
        if self.receiver is not None and self.receiver.detached:
            self.receiver = None
            self.later(400, self._again)

    def _again(self) -> None:
        self._settling.clear()
        self.receiver = self.open(self._session)
        self.receiver.on_delivery = self._got
