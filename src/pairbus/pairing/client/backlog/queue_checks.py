"""Finds out whether a backlog queue that accepts sends keeps them, once pairing has looked at it.

Somebody may delete a backlog queue and create a topic with its name, or let it forward. Sends there go on being accepted, and what
was sent is nowhere. A receiver is refused by both, so one is opened, and receives nothing, after the first message over each new
connection to a backlog queue, before its send returns, and again when the last look is older than a ping interval. Sends to
the primary pay nothing, and of those that are parked few: all senders of a client share a look.

Where the key may not listen, nobody can tell, and sends are trusted.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import MessagingEntityDisabledError

from pairbus.pairing.events import Kind
from pairbus.sdk.failures import Failure, classify, is_of_the_entity, shown
from pairbus.sdk.links import handlers

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.client.sending.send import Send
    from pairbus.pairing.runtime.ports import Link

LOOK_SECONDS: Final = 5.0
"""How long a send waits for a look at most. A queue that does not answer in time is trusted."""

_LOST: Final = "What was parked there may be lost; `pairbus reconcile` names the messages that never arrived"
LEAKS: Final = (
    "it accepts messages and does not keep them, so none are parked there. A topic has its name now, or it forwards: delete the topic, "
    f"or remove the forwarding. {_LOST}"
)
"""It has accepted a message, and refuses a receiver. One that requires sessions would have refused the message."""
REFUSES: Final = (
    "the secondary lets nobody receive from it, so none are parked there. Its answer shows whether a topic has its name now, it "
    "forwards, or it requires sessions: delete the topic, remove the forwarding, or delete the queue and pair again to get a plain one. "
    f"{_LOST}"
)
"""It refuses a receiver. Whether it would accept a message was not tried."""
NOT_DRAINED: Final = "nothing can be received from it, so messages are parked there and no drain delivers them: set its status to Active"


class QueueChecks:
    """What one paired client knows about the backlog queues that it sends to."""

    def __init__(self, client: PairedClient[Any, Any]) -> None:
        self._client = client
        self._state = client._state
        self._runtime = client._runtime
        self._may_listen = True
        self._unfit: dict[str, str] = {}
        """Queues that no message is parked in, and why."""
        self._not_drained: set[str] = set()
        self._numbers = itertools.count(1)
        self._begun: dict[str, int] = {}
        """The number of the last look at each queue that has ended."""
        self._looking: set[str] = set()
        self._again_ms: dict[str, int] = {}
        self._connections: weakref.WeakKeyDictionary[Link, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        """The connection of each link for which there was a look."""

    # --- what is known ------------------------------------------------------------------------------------

    def found(self, queue: str, error: Exception | None, *, has_accepted: bool = False) -> None:
        """An attempt to receive from a queue ended with an error, or without. Tells what that means, once.

        ``has_accepted``: the queue has just accepted a message.
        """
        failure = None if error is None else classify(error)
        with self._state.lock:
            if failure is None:
                self._unfit.pop(queue, None)
                self._not_drained.discard(queue)
            elif failure is Failure.UNAUTHORIZED:
                self._may_listen = False
            elif failure is Failure.DISABLED and queue not in self._not_drained:
                self._not_drained.add(queue)
                self._state.emit(Kind.PROPERTY_DIFFERENCE, queue, NOT_DRAINED, is_loud=True)
            elif error is not None and is_of_the_entity(error):
                self.found_unfit(queue, shown(error), LEAKS if has_accepted else REFUSES)

    def found_unfit(self, queue: str, why: str, text: str = REFUSES) -> None:
        """A receiver is refused because of what the queue is: it leaves the rotation."""
        with self._state.lock:
            if queue not in self._unfit:
                self._unfit[queue] = text
                self._state.emit(Kind.QUEUE_UNUSABLE, queue, f"{text} ({why})", is_loud=True)
            self._state.refused(queue, why)

    # --- sends --------------------------------------------------------------------------------------------

    async def before_send(self, queue: str, until_ms: int) -> None:
        """A send tries a queue. Raises MessagingEntityDisabledError: it still does not keep what it accepts."""
        if queue in self._unfit:
            await self._look_since(queue, until_ms, has_accepted=False)
            self._check(queue)

    async def after_send(self, send: Send, link: Link, queue: str, until_ms: int) -> None:
        """A queue has accepted a message. Raises MessagingEntityDisabledError: it does not keep it."""
        connection = handlers.connection_of(link.sender)
        known = self._connections.get(link)
        is_known = known is not None and known() is connection
        if not self._may_listen or (is_known and self._state.clock() < self._again_ms.get(queue, 0)):
            return
        await self._look_since(queue, until_ms, has_accepted=True)
        if queue in self._unfit:
            # Whatever stands behind it may deliver it all the same.
            send.is_in_doubt = True
        self._check(queue)
        if connection is not None:
            self._connections[link] = weakref.ref(connection)

    def _check(self, queue: str) -> None:
        text = self._unfit.get(queue)
        if text is not None:
            raise MessagingEntityDisabledError(message=f"backlog queue {queue!r}: {text}")

    async def _look_since(self, queue: str, until_ms: int, *, has_accepted: bool) -> None:
        """Return once a look has ended that began after this call, its own or another's, or there is no time left."""
        number = next(self._numbers)
        while True:
            with self._state.lock:
                token = self._runtime.change_token()
                left_ms = until_ms - self._state.clock()
                if self._begun.get(queue, 0) > number or left_ms <= 0 or self._client._is_ended:
                    return
                is_mine = queue not in self._looking
                if is_mine:
                    self._looking.add(queue)
            if not is_mine:
                await self._runtime.wait_for_change(token, left_ms / 1000)
                continue
            begun = next(self._numbers)
            try:
                await self._look(queue, min(LOOK_SECONDS, left_ms / 1000), has_accepted=has_accepted)
                self._begun[queue] = begun
                self._again_ms[queue] = self._state.clock() + self._state.ping_interval_ms
            finally:
                with self._state.lock:
                    self._looking.discard(queue)
                self._runtime.notify()

    async def _look(self, queue: str, seconds: float, *, has_accepted: bool) -> None:
        receiver = None
        error: Exception | None = None
        try:
            receiver = self._client.secondary.get_queue_receiver(queue)
            handlers.for_one_try(receiver)
            async with self._runtime.limit(receiver, seconds):
                await self._runtime.call(handlers.open_with_retries, receiver)
        except Exception as caught:  # noqa: BLE001 - judged below; what says nothing about the queue changes nothing
            error = caught
        finally:
            # Closing takes the SDK half a second, and the send need not wait for it.
            self._runtime.spawn(self._client._close_quietly, receiver)
        self.found(queue, error, has_accepted=has_accepted)
