"""Keeps a client with an order behind messages of its sessions in spools that other clients have open (``spool.ahead``).

A session with such messages is fenced: its new messages go to the client's own spool, and that is replayed when those ahead have left.
They leave a spool once a namespace has them, perhaps as parked messages. So before anything goes on behind them, the backlog queues
count as unseen, and are looked through again. Other sessions are not held up, as long as the client's own spool is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.errors import SessionFencedError
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import milliseconds

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.rules.health import EntityHealth
    from pairbus.pairing.rules.send_order import SendOrder
    from pairbus.spool.directory import Spools
    from pairbus.spool.file import Spooled
    from pairbus.spool.store import Spool

PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 2.0
"""Bounds of the pause between looks into the spools of others. It begins again when something has left them."""
THEN: Final = {
    "wait": "later ones of their sessions go on waiting behind them",
    "raise": "sends of their sessions raise SessionFencedError until they have left",
    "overtake": "later ones of their sessions overtake them",
}


@dataclass(slots=True)
class _Behind:
    """An entity of which messages are ahead."""

    since_ms: int
    """When it began, or when one of them has left last."""
    has_moved: bool = False
    """Whether some have left since the backlog queues were unseen."""
    is_timed_out: bool = False
    pause_seconds: float = PAUSE_SECONDS_MIN


class Following:
    """The entities of one client of which messages are ahead. Its methods are called under the lock of the state, but for ``look``."""

    def __init__(self, client: PairedClient[Any, Any]) -> None:
        self._client = client
        self._state = client._state
        self._behind: dict[str, _Behind] = {}

    def begin(self, key: str) -> None:
        """Messages of an entity are ahead."""
        self._behind.setdefault(key, _Behind(self._state.clock()))

    def is_behind(self, key: str) -> bool:
        """Whether messages of an entity are ahead."""
        return key in self._behind

    def pause_seconds(self, key: str) -> float:
        """How long to wait before the next look."""
        behind = self._behind.get(key)
        return 0.0 if behind is None else behind.pause_seconds

    def _spools(self) -> Spools:
        spools = self._state.spools
        assert spools is not None
        return spools

    # --- sends and replays ------------------------------------------------------------------------

    def may_pass(self, health: EntityHealth, order: SendOrder | None) -> bool:
        """Whether a new send need not join the spool: nothing is ahead of it. Raises SessionFencedError."""
        key = entity_key(health.path)
        behind = self._behind.get(key)
        if behind is None:
            return False
        spools = self._spools()
        names = () if order is None else order.names
        if not spools.is_ahead(key, names):
            return not spools.waits(key)
        if behind.is_timed_out and self._state.options.fence_policy == "raise":
            first = next(name for name in names if spools.is_ahead(key, [name]))
            raise SessionFencedError(health.path, first, "", spool=str(spools.root))
        return False

    def free(self, key: str, spool: Spool, messages: Sequence[Spooled]) -> list[Spooled]:
        """Those of the messages of the own spools that may be replayed now: all before one that must wait."""
        behind = self._behind.get(key)
        if behind is None:
            return list(messages)
        free = self._spools().free(key, spool, messages)
        if free and behind.has_moved:
            behind.has_moved = False
            self._unseen(key)
        return free

    # --- looks ------------------------------------------------------------------------------------

    async def look(self) -> bool:
        """Look whether messages that are ahead have left. True: spools were taken whose owners have gone."""
        spools, state = self._spools(), self._state
        looks, taken = await self._client._runtime.blocking(spools.look_ahead)
        with state.lock:
            now = state.clock()
            moved = {key for ahead, found in looks for key in ahead.note(found)}
            for key in moved.intersection(self._behind):
                behind = self._behind[key]
                behind.since_ms, behind.has_moved, behind.is_timed_out = now, True, False
                behind.pause_seconds = PAUSE_SECONDS_MIN
            spools.ahead = [one for one in spools.ahead if one.parts]
            left = spools.paths_ahead()
            for key, behind in list(self._behind.items()):
                if key not in left:
                    self._end(key, "messages in the spool of another client have left it")
                elif key not in moved:
                    behind.pause_seconds = min(behind.pause_seconds * 2, PAUSE_SECONDS_MAX)
                    self._expire(key, behind, now)
        return bool(taken)

    def _expire(self, key: str, behind: _Behind, now: int) -> None:
        """Apply ``fence_policy`` when nothing has left for as long as ``fence_timeout``."""
        state, options = self._state, self._state.options
        if behind.is_timed_out or now - behind.since_ms < milliseconds(options.fence_timeout):
            return
        behind.is_timed_out = True
        state.counters.fences_timed_out += 1
        is_overtaken = options.fence_policy == "overtake"
        state.emit(
            Kind.FENCE_OVERTAKEN if is_overtaken else Kind.FENCE_TIMED_OUT,
            state.path_of(key),
            f"messages for it wait in a spool of {self._spools().root} that another client has open, and none has left it for "
            f"{options.fence_timeout.total_seconds():g} s: {THEN[options.fence_policy]}",
        )
        if is_overtaken:
            for one in self._spools().ahead:
                one.parts.pop(key, None)
            self._end(key, "messages in the spool of another client are overtaken")

    def _end(self, key: str, why: str) -> None:
        # First: what has left may be parked.
        self._unseen(key)
        del self._behind[key]
        self._state.note(self._state.health_of(self._state.path_of(key)), why)

    def _unseen(self, key: str) -> None:
        self._state.order.parked_by_others(key, self._state.clock())
        self._client._fences.watch()
